"""The parts of Gorila: Nair et al., Massively parallel methods for deep reinforcement learning, arXiv 1507.04296.

Each server holds a shard of the parameters. Learners draw minibatches from replay and compute gradients of the loss of
deep Q-learning, each with its own target network. They send the gradients to the servers, which apply them on arrival.
This is asynchronous SGD, and so is its record (chronograd.backends.parameter_server). In a bundle, a learner, an actor
and their replay are one process; otherwise each has its own.

The server drops a gradient that is too stale. The learner drops one whose loss is far from the usual.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chronograd.backends.apex.keepers import ApexLayout, Stopwatch
from chronograd.backends.apex.roles import EMPTY_S, Actor, NothingToDraw, RemoteReplay
from chronograd.backends.parameter_server.actors import Flat, ParameterServer, Shard, gradients_of
from chronograd.backends.ray_session import ray_module
from chronograd.job import Job, changed
from chronograd.reinforce import environments
from chronograd.reinforce.agent import epsilon_at
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.replay import Replay, Transitions, UniformReplay
from chronograd.reinforce.replay.transitions import Array
from chronograd.reinforce.systems import Report

# Weight of the newest loss in its running mean and variance.
NEWEST = 0.01
# Losses before the first outlier can be detected.
KNOWN_LOSSES = 50
# The servers' updates trigger copies of the targets, not a learner's own.
NEVER = 2**40
# A part of the parameters and its server.
PartServer = tuple[Shard, Any]


@dataclass(frozen=True)
class GradientLimits:
    """Limits of gradients that are used.

    Attributes:
        staleness: a staler gradient is dropped.
        deviations: a gradient is dropped if its loss is this many standard deviations from the running mean.
    """

    staleness: int = 20
    deviations: float = 5.0


@dataclass(frozen=True)
class Update:
    """The result of one gradient. `step`: the number of the update, 0 if it was dropped."""

    step: int
    learner: int
    staleness: int
    loss: float
    pull_s: float
    compute_s: float
    push_s: float
    dropped: str = ""


class GorilaServer(ParameterServer):
    """A shard of the parameters, under AdaGrad. It counts its updates and the gradients it dropped."""

    def __init__(self, shard: Shard, job: Job, limits: GradientLimits, path: Sequence[str] = ()) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        groups = [{"params": list(range(len(shard.members))), "factor": 1.0}]
        super().__init__(shard, torch.optim.Adagrad, groups, job.training, 1, job.communication.staleness_aware)
        self._limits = limits

    def push_unless_stale(self, gradients: Flat, version: int) -> tuple[int, int]:
        """Return the number of the update (0 if it was dropped), and its staleness."""
        staleness = self._version - version
        if staleness > self._limits.staleness:
            return 0, staleness
        return self.push(gradients, frozenset(), version).update, staleness

    def start_from(self, values: Flat, sums: Sequence[torch.Tensor] | None, version: int) -> None:
        """Start from parameters after `version` updates, and AdaGrad's sums of squares; None at the beginning."""
        np.copyto(self._values.numpy(), values)
        for parameter, own in zip(self._parameters, sums or (), strict=bool(sums)):
            self._optimizer.state[parameter]["sum"].copy_(own)
        self._version = version

    def get(self) -> tuple[int, Flat]:
        """Return the version and a copy of the parameters."""
        version, values = self.pull()
        return version, values.copy()


class Outliers:
    """A detector of losses that are far from earlier ones."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._mean = self._variance = 0.0
        self._count = 0

    def is_one(self, loss: float) -> bool:
        """Return whether a loss is an outlier. Every finite loss updates mean and variance, which can follow a rise."""
        if not np.isfinite(loss):
            return True
        apart = loss - self._mean
        is_far = self._count >= KNOWN_LOSSES and apart * apart > self._deviations**2 * max(self._variance, 1e-12)
        weight = max(NEWEST, 1 / (self._count + 1))
        self._mean += weight * apart
        self._variance = (1 - weight) * (self._variance + weight * apart * apart)
        self._count += 1
        return is_far


class RemoteParameters:
    """The parameters of a network on servers. `version`: the first server's, when they were last pulled."""

    def __init__(self, agent: DQN, servers: Sequence[PartServer]) -> None:
        self._shards, self._servers = [shard for shard, _ in servers], [server for _, server in servers]
        self.version = self._bytes = 0
        self._parameters = list(agent.network.parameters())

    def pull(self) -> list[int]:
        """Pull the newest parameters. Return the version of each server."""
        answers = ray_module().get([server.get.remote() for server in self._servers])
        self._bytes += sum(values.nbytes for _, values in answers)
        self.version = answers[0][0]
        for shard, (_, values) in zip(self._shards, answers, strict=True):
            shard.copy_to(self._parameters, values)
        return [version for version, _ in answers]

    def taken_bytes(self) -> int:
        """Return the bytes pulled and pushed since the last call."""
        taken, self._bytes = self._bytes, 0
        return taken

    def push(self, versions: Sequence[int]) -> tuple[int, int]:
        """Push the current gradients. Return the first server's answer."""
        all_gradients = gradients_of(self._parameters)
        gradients = [shard.flat(all_gradients) for shard in self._shards]
        self._bytes += sum(gradient.nbytes for gradient in gradients)
        sent = zip(self._servers, gradients, versions, strict=True)
        first: tuple[int, int] = ray_module().get([s.push_unless_stale.remote(g, v) for s, g, v in sent])[0]
        return first


class _Gradients(torch.optim.SGD):
    """A replacement of the agent's optimizer: servers do the steps."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return


class GorilaLearner:
    """A learner: it pulls, computes a gradient, pushes."""

    def __init__(
        self, number: int, job: Job, layout: ApexLayout, limits: GradientLimits, servers: Sequence[PartServer],
        replay: Replay | Sequence[Any], life: tuple[int, int], path: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Set up a learner. `replay` is its own, or the shards of a shared one; `life` is as for actors."""
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(1)
        assert job.reinforcement is not None
        self._number, self._job, self._target_every = number, job, job.reinforcement.target_every
        self._rng = np.random.default_rng((job.training.seed, 2**20 + number, *life))
        space, batch = environments.space_of(job), job.training.batch
        own = replay
        if isinstance(own, Sequence):
            own = RemoteReplay(own, batch, layout.prefetch, 0.0, self._rng)
        self._remote = own if isinstance(own, RemoteReplay) else None
        self.agent = DQN(changed(job, [f"reinforcement.target_every={NEVER}"]), space, own, torch.device("cpu"))
        self.agent.optimizer = _Gradients(self.agent.network.parameters(), lr=0.0)
        self._replay = own
        self._parameters = RemoteParameters(self.agent, servers)
        self._outliers = Outliers(limits.deviations)
        self._copied = -1
        self._drawn_bytes = 0
        self._watch = Stopwatch()

    def describe(self) -> tuple[int, int, int]:
        return os.getpid(), 0, self.agent.num_params()

    def replace_shard(self, number: int, shard: Any) -> None:
        if isinstance(self._remote, RemoteReplay):
            self._remote.replace(number, shard)

    def work(self, num_updates: int) -> Report:
        self._watch.begin()
        updates: list[Update] = []
        for _ in range(num_updates):
            try:
                updates.append(self.update())
            except NothingToDraw:  # a new shard is being filled in the place of a lost one
                time.sleep(EMPTY_S)
                break
        return self.told(self._watch, len(updates), updates)

    def told(self, watch: Stopwatch, amount: int, updates: Sequence[Update], **more: Any) -> Report:
        remote = self._remote
        lost = tuple(sorted(remote.lost)) if isinstance(remote, RemoteReplay) else ()
        figures = {
            "updates": float(self._parameters.version),
            "bytes": float(self._parameters.taken_bytes() + self._drawn_bytes),
        }
        self._drawn_bytes = 0
        if updates:
            figures["loss"] = float(np.mean([update.loss for update in updates]))
        report = watch.report("learner", self._number, amount, lost=lost, more={**figures, **more})
        report.lines = [vars(update) for update in updates]
        return report

    def update(self) -> Update:
        """Process one minibatch."""
        begin = time.monotonic()
        versions = self._parameters.pull()
        if self._target_every and versions[0] // self._target_every != self._copied:
            self._copied = versions[0] // self._target_every
            self.agent.target.load_state_dict(self.agent.network.state_dict())
        pulled = time.monotonic()
        self._watch.lap("pull_s")
        sample = self._replay.sample(self._job.training.batch, self._rng)
        self._watch.lap("sample_s")
        self._drawn_bytes += 0 if self._remote is None else sample.transitions.nbytes
        loss = float(self.agent.update(sample))
        computed = time.monotonic()
        self._watch.lap("learn_s")
        step, staleness, push_s, dropped = 0, 0, 0.0, "outlier"
        if not self._outliers.is_one(loss):
            step, staleness = self._parameters.push(versions)
            self._watch.lap("push_s")
            push_s, dropped = time.monotonic() - computed, "" if step else "stale"
        return Update(step, self._number, staleness, loss, pulled - begin, computed - pulled, push_s, dropped)


class GorilaActor(Actor):
    """An actor with parameters from the servers. Its ε falls with the steps of all actors, which the driver knows."""

    def __init__(
        self, number: int, job: Job, layout: ApexLayout, servers: Sequence[PartServer], shards: Sequence[Any],
        life: tuple[int, int], path: Sequence[str] = (),
    ) -> None:  # fmt: skip
        sys.path += [folder for folder in path if folder not in sys.path]
        super().__init__(number, job, layout, 1.0, shards, None, life)
        self._settings = job.reinforcement
        self._parameters = RemoteParameters(self._agent, servers)

    def act(self, num_steps: int, steps_so_far: int) -> Report:
        """Make steps as `work`, with the ε after `steps_so_far` steps."""
        assert self._settings is not None
        self._epsilon = epsilon_at(self._settings, steps_so_far, 0)
        return self.work(num_steps)

    def _refresh(self) -> None:
        self._version = self._parameters.pull()[0]
        self._bytes += self._parameters.taken_bytes()
        self._published_s, self._since_refresh = time.monotonic(), 0

    def _priorities(self, transitions: Transitions) -> Array:
        """Return equal priorities: replay is uniform."""
        return np.ones(len(transitions))


class _OwnActor(Actor):
    """The actor of a bundle: it uses its learner's network, and fills its learner's replay."""

    def __init__(
        self, number: int, job: Job, layout: ApexLayout, life: tuple[int, int], agent: DQN, replay: Replay
    ) -> None:
        super().__init__(number, job, layout, 1.0, [None], None, life)
        self._agent, self._replay = agent, replay

    def explore(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def _refresh(self) -> None:
        """Do nothing: its learner has pulled."""

    def _priorities(self, transitions: Transitions) -> Array:
        return np.ones(len(transitions))

    def _hand_over(self, transitions: Transitions, priorities: Array) -> Any:
        self._replay.add(transitions)

    def _confirm(self) -> None:
        self._under_way.popleft()


class Bundle:
    """An actor, its replay and a learner in one process, taking turns."""

    def __init__(
        self, number: int, job: Job, layout: ApexLayout, limits: GradientLimits, servers: Sequence[PartServer],
        life: tuple[int, int], path: Sequence[str] = (),
    ) -> None:  # fmt: skip
        sys.path += [folder for folder in path if folder not in sys.path]
        settings = job.reinforcement
        assert settings is not None
        self._settings = settings
        is_stacked = environments.space_of(job).dtype == np.uint8
        self._replay = UniformReplay(max(1, settings.replay_size // layout.learners), stores_frames_once=is_stacked)
        self._start = max(1, settings.replay_start // layout.learners)
        self._learner = GorilaLearner(number, job, layout, limits, servers, self._replay, life)
        self._actor = _OwnActor(number, job, layout, life, self._learner.agent, self._replay)
        self._watch = Stopwatch()

    def describe(self) -> tuple[int, int, int]:
        return self._learner.describe()

    def replace_shard(self, number: int, shard: Any) -> None:
        """Do nothing: a bundle has no shards."""

    def act(self, num_steps: int, steps_so_far: int) -> Report:
        """Make `num_steps` steps, and an update every `update_every` of them once the replay is large enough."""
        watch = self._watch
        watch.begin()
        episodes: list[tuple[float, int]] = []
        updates: list[Update] = []
        steps = 0
        while steps < num_steps:
            self._actor.explore(epsilon_at(self._settings, steps_so_far + steps, 0))
            acted = self._actor.work(min(self._settings.update_every, num_steps - steps))
            steps += acted.amount
            episodes += acted.episodes
            for part, seconds in acted.parts.items():
                if part != "idle_s":
                    watch.parts[part] = watch.parts.get(part, 0.0) + seconds
            if len(self._replay) >= self._start:
                updates.append(self._learner.update())
        for update in updates:
            for part in ("pull_s", "push_s"):
                watch.parts[part] = watch.parts.get(part, 0.0) + getattr(update, part)
            watch.parts["learn_s"] = watch.parts.get("learn_s", 0.0) + update.compute_s
        more = {"steps": float(steps), "size": float(len(self._replay))}
        report = self._learner.told(watch, len(updates), updates, **more)
        report.episodes = episodes
        return report
