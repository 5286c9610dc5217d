"""The servers, learners and actors of Gorila, or its bundles, as Ray actors."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from chronograd.backends.apex.group import ApexGroup, Roles
from chronograd.backends.apex.keepers import ApexLayout, ReplayShard
from chronograd.backends.gorila.roles import Bundle, GorilaActor, GorilaLearner, GorilaServer, GradientLimits
from chronograd.backends.parameter_server.actors import Shard, shards
from chronograd.backends.ray_session import ray_module
from chronograd.job import Job
from chronograd.reinforce import environments
from chronograd.reinforce.networks import build
from chronograd.reinforce.systems import Report
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, Progress
from chronograd.train.shards import save_tensors


class GorilaGroup(ApexGroup):
    """A group as for Ape-X, but with servers for the parameters, and several learners.

    Attributes:
        is_bundled: `layout.learners` bundles, without separate actors and shards.
    """

    def __init__(
        self, job: Job, layout: ApexLayout, is_bundled: bool, limits: GradientLimits = GradientLimits(), checkpoints: Path | None = None  # noqa: B008
    ) -> None:  # fmt: skip
        self.is_bundled, self._limits = is_bundled, limits
        learner: Any = Bundle if is_bundled else GorilaLearner
        roles: Any = Roles(GorilaActor, ReplayShard, learner)
        super().__init__(job, layout, checkpoints, roles)
        self.updates_before = self.ledger.updates = self.ledger.updates_handed = self._version

    def _start_servers(self) -> None:
        space = environments.space_of(self._job)
        torch.manual_seed(self._job.training.seed)
        self._network = build(self._job, space)
        sums, self._version = self._restored()
        parameters = list(self._network.parameters())
        self._parts: list[Shard] = shards(parameters, self._job.communication.servers)
        server = ray_module().remote(num_cpus=0)(GorilaServer)
        self.servers = [server.remote(part, self._job, self._limits, sys.path) for part in self._parts]
        for part, one in zip(self._parts, self.servers, strict=True):
            own = [sums[member] for member in part.members] if sums else None
            self._asked(one.start_from.remote(part.flat(parameters), own, self._version), "parameter server")

    def _start(self, role: str, number: int) -> Any:
        life, job, layout = (self._life(role, number), self.steps_before), self._job, self._layout
        if role == "replay":
            return self._classes[role].remote(number, job, layout, sys.path)
        servers = list(zip(self._parts, self.servers, strict=True))
        if role == "actor":
            return self._classes[role].remote(number, job, layout, servers, self.shards, life, sys.path)
        if self.is_bundled:
            return self._classes[role].remote(number, job, layout, self._limits, servers, life, sys.path)
        return self._classes[role].remote(number, job, layout, self._limits, servers, self.shards, life, sys.path)

    def _server_name(self, number: int) -> str:
        return f"parameter server {number} of {len(self.servers)}, which held its part of the parameters,"

    def _call_of_actor(self, number: int, count: int) -> Any:
        return self.actors[number].act.remote(count, self.steps_before + self.ledger.steps)

    def _hand_learner(self, number: int, until_steps: int) -> None:
        if not self.is_bundled:
            super()._hand_learner(number, until_steps)
            return
        count = min(self._layout.block, until_steps - self.ledger.steps_handed)
        if count > 0 and self._is_free("learner", number):
            call = self.learners[number].act.remote(count, self.steps_before + self.ledger.steps)
            self._out[call] = "learner", number, count
            self.ledger.steps_handed += count

    def _count(self, role: str, report: Report, count: int) -> None:
        if not self.is_bundled:
            super()._count(role, report, count)
            return
        steps = int(report.more["steps"])
        self.ledger.steps += steps
        self.ledger.steps_handed += steps - count
        self.ledger.updates += report.amount
        self._sizes[report.number] = report.more["size"]

    def _forget(self, role: str, count: int) -> None:
        super()._forget("actor" if self.is_bundled else role, count)

    def _lost_with_learner(self, number: int, updates: int) -> str:
        """Describe the loss; the servers hold the parameters."""
        if not self.is_bundled:
            return "the gradient that it was at"
        return f"its replay of {self._sizes.get(number, 0):,.0f} transitions"

    def save(self, progress: Progress) -> None:
        """Save the state of the servers. On each server, parameters and optimizer state belong to the same moment."""
        assert self._checkpoints is not None
        weights, sums = self.parameters(), dict[str, torch.Tensor]()
        for part, server in zip(self._parts, self.servers, strict=True):
            state = self._asked(server.optimizer_state.remote(), "parameter server")
            sums |= {f"{part.members[place]}.sum": own["sum"] for place, own in state.items()}
        files = {MODEL: partial(save_tensors, weights), OPTIMIZER: partial(save_tensors, sums)}
        checkpoint_folder.write(
            self._checkpoints,
            progress,
            files,
            {"seed": self._job.training.seed, "agent": {"updates": self.ledger.updates}},
        )

    def _restored(self) -> tuple[dict[int, torch.Tensor], int]:
        """Load the weights of the newest checkpoint. Return AdaGrad's sums by parameter, and the updates."""
        newest, state, _ = checkpoint_folder.newest_sound(self._checkpoints)
        if newest is None:
            return {}, 0
        self._network.load_state_dict(load_file(newest / MODEL))
        sums = {int(name.removesuffix(".sum")): tensor for name, tensor in load_file(newest / OPTIMIZER).items()}
        return sums, int(state["agent"]["updates"])

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters of all servers."""
        parameters = list(self._network.parameters())
        for part, server in zip(self._parts, self.servers, strict=True):
            part.copy_to(parameters, self._asked(server.get.remote(), "parameter server")[1])
        return dict(self._network.state_dict())
