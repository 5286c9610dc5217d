"""Servers and learners of asynchronous SGD, as plain classes; chronograd.backends.parameter_server.run makes Ray actors
of them.

Whole tensors are distributed over servers, and travel as one flat float32 array per server. Each server counts its own
updates, its version. A gradient carries the versions of the parameters on which it was computed, server by server. The
staleness of an update on a server is the number of updates in between.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.backends.ray_session import answer
from chronograd.data import datasets
from chronograd.eager import eager
from chronograd.errors import InputError
from chronograd.job import Job, Training
from chronograd.measure import environment
from chronograd.measure.memory import PeakMemory, keep_freed_memory
from chronograd.rundir.steps import MemoryLine, Start, StepLine
from chronograd.train import order
from chronograd.train.loop import seed_everything
from chronograd.train.optimizer import set_rate
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep
from chronograd.words import how_many

Flat = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Shard:
    """The parameters of one server: their numbers in the optimizer, ascending, and their shapes."""

    members: tuple[int, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a flat tensor, one per parameter."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def flat(self, tensors: Sequence[torch.Tensor]) -> Flat:
        """Return those of all tensors that belong to this shard, as one array on the CPU."""
        flat: Flat = torch.cat([tensors[i].detach().reshape(-1) for i in self.members]).cpu().numpy()
        return flat

    @torch.no_grad()
    def copy_to(self, tensors: Sequence[torch.Tensor], flat: Flat) -> None:
        """Copy an array to those of all tensors that belong to this shard."""
        for member, piece in zip(self.members, self.pieces(torch.tensor(flat)), strict=True):
            tensors[member].copy_(piece)


def shards(parameters: Sequence[torch.Tensor], count: int) -> list[Shard]:
    """Distribute parameters over servers, the largest first, each to the server with the least so far.

    Raises InputError for fewer parameters than servers, and for a parameter that is not float32.
    """
    if len(parameters) < count:
        raise InputError(
            f"communication.servers is {count}, and there are {how_many(len(parameters), 'parameters')} to distribute",
            "use fewer servers",
        )
    other = next((p.dtype for p in parameters if p.dtype != torch.float32), None)
    if other is not None:
        raise InputError(f"backend parameter_server has float32 parameters, not {other}", "use another backend")
    members: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for index in sorted(range(len(parameters)), key=lambda i: -parameters[i].numel()):
        least = sizes.index(min(sizes))
        members[least].append(index)
        sizes[least] += parameters[index].numel()
    return [Shard(tuple(sorted(own)), tuple(parameters[i].shape for i in sorted(own))) for own in members]


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the trained parameters in the optimizer's numbering."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def group_fields(optimizer: torch.optim.Optimizer, shard: Shard) -> list[dict[str, Any]]:
    """Return the optimizer's groups restricted to a shard: `params` are places in it."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        numbers = range(first, first := first + len(group["params"]))
        own = [place for place, member in enumerate(shard.members) if member in numbers]
        if own:
            groups.append({**group, "params": own})
    return groups


def gradients_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradient of each parameter, zeros if it has none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


@torch.no_grad()
def load_buffers(network: nn.Module, buffers: dict[str, Any]) -> None:
    """Set buffers, such as running means, from arrays by name."""
    for name, buffer in network.named_buffers():
        buffer.copy_(torch.tensor(buffers[name]))


@dataclass(frozen=True)
class Applied:
    """One update on one server: its number, counted from 1, its staleness, and the server's clock after it."""

    update: int
    staleness: int
    time_s: float


class ParameterServer:
    """One shard of the parameters and its optimizer. Gradients are applied in order of arrival.

    The schedule uses the server's own version. In staleness-aware mode, the rate is divided by a staleness above 1: W.
    Zhang et al., arXiv 1511.05950.
    """

    def __init__(
        self,
        shard: Shard,
        optimizer: type[torch.optim.Optimizer],
        groups: Sequence[dict[str, Any]],
        training: Training,
        num_steps: int,
        is_staleness_aware: bool,
    ) -> None:
        torch.set_num_threads(1)
        self._training, self._num_steps, self._is_staleness_aware = training, num_steps, is_staleness_aware
        self._values, self._gradients = torch.zeros(shard.size), torch.zeros(shard.size)
        self._parameters = [nn.Parameter(piece) for piece in shard.pieces(self._values)]
        self._pieces = shard.pieces(self._gradients)
        own = [{**group, "params": [self._parameters[i] for i in group["params"]]} for group in groups]
        self._optimizer = eager(optimizer)(own, lr=training.learning_rate)  # type: ignore[call-arg]
        self._version = 0

    def load(self, values: Flat, state: dict[int, dict[str, Any]], version: int) -> None:
        """Start from parameters and an optimizer's state after `version` updates."""
        np.copyto(self._values.numpy(), values)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._version = version

    def pull(self) -> tuple[int, Flat]:
        """Return version and parameters: the live array, which Ray copies before the next call."""
        return self._version, self._values.numpy()

    def push(self, gradients: Flat, unused: frozenset[int], version: int) -> Applied:
        """Apply a gradient that was computed on `version`. `unused`: parameters without a gradient, which stay."""
        staleness = self._version - version
        np.copyto(self._gradients.numpy(), gradients)
        for place, (parameter, piece) in enumerate(zip(self._parameters, self._pieces, strict=True)):
            parameter.grad = None if place in unused else piece
        set_rate(self._optimizer, self._training, self._version, self._num_steps)
        if self._is_staleness_aware:
            for group in self._optimizer.param_groups:
                group["lr"] /= max(1, staleness)
        self._optimizer.step()
        self._version += 1
        return Applied(self._version, staleness, time.monotonic())

    def optimizer_state(self) -> dict[int, dict[str, Any]]:
        """Return the state by place in the shard."""
        state: dict[int, dict[str, Any]] = self._optimizer.state_dict()["state"]
        return state


class GradientLearner:
    """A learner: it computes gradients of minibatches on parameters that it pulls.

    Buffers, such as running means, belong to the learner: servers do not have them.
    """

    def __init__(
        self,
        number: int,
        job: Job,
        initial_weights: Path | None,
        device: str,
        threads: int,
        shards: Sequence[Shard],
        servers: Sequence[Any],
        path: Sequence[str],
    ) -> None:
        """Set up a learner. `servers` are handles of Ray actors; `path` is where the driver searches Python modules."""
        sys.path += [folder for folder in path if folder not in sys.path]
        torch.set_num_threads(threads)
        if device == "cpu":
            keep_freed_memory()
        place = RankContext(rank=0, world_size=1, device=torch.device(device), threads=threads)
        dataset = datasets.load(job.data, job.training.seed)
        self._memory = PeakMemory(place.device)
        self._step = TrainingStep(job, dataset, place, initial_weights)
        self._step.num_steps = 0  # no step reads ahead, because any learner may take the next minibatch
        self._number, self._shards, self._servers, self._epoch = number, shards, servers, -1
        self._parameters = trained_parameters(self._step.optimizer)

    def describe(self) -> Start:
        """Return the place of this learner."""
        device = self._step.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else environment.processor_name()
        return Start(device=str(device), device_name=name, threads=torch.get_num_threads(), pid=os.getpid())

    def load_buffers(self, buffers: dict[str, Any]) -> None:
        load_buffers(self._step.network, buffers)

    def buffers(self) -> dict[str, Any]:
        return {name: buffer.cpu().numpy() for name, buffer in self._step.network.named_buffers()}

    def learn(self, minibatch: int) -> StepLine:
        """Pull, compute the gradient of a minibatch (a step's samples, counted from 0), and push.

        Number (counted from 1), staleness and time of the update are server 0's. The loss is that on the pulled
        parameters. The seconds are: until all servers had answered; on the device; until all had updated.
        """
        epoch = minibatch // self._step.steps_per_epoch
        if epoch != self._epoch:
            seed_everything(order.random_seed(self._step.training.seed, epoch, self._number))
            self._epoch = epoch
        start = time.perf_counter()
        versions = self._pull()
        pulled = time.perf_counter()
        for name, call in self._step.parts(minibatch):
            if name != "update":
                call()
        all_gradients = gradients_of(self._parameters)
        gradients = [shard.flat(all_gradients) for shard in self._shards]
        loss = self._step.loss.item()
        computed = time.perf_counter()
        applied = self._push(gradients, versions)
        self._step.drop_gradients()
        return StepLine(
            step=applied[0].update,
            learner=self._number,
            staleness=applied[0].staleness,
            loss=loss,
            samples=self._step.rank_samples,
            pull_s=pulled - start,
            compute_s=computed - pulled,
            push_s=time.perf_counter() - computed,
            time_s=applied[0].time_s,
        )

    def memory(self, step: int) -> MemoryLine:
        """Return the peak memory until a step."""
        return MemoryLine(step=step, memory_peak_bytes=self._memory.peak_bytes(), source=self._memory.source)

    def _pull(self) -> list[int]:
        """Pull the newest parameters. Return the version of each server."""
        answers = self._answers([server.pull.remote() for server in self._servers])
        for shard, (_, values) in zip(self._shards, answers, strict=True):
            shard.copy_to(self._parameters, values)
        return [version for version, _ in answers]

    def _push(self, gradients: Sequence[Flat], versions: Sequence[int]) -> list[Applied]:
        unused = [
            frozenset(place for place, i in enumerate(shard.members) if self._parameters[i].grad is None)
            for shard in self._shards
        ]
        sent = zip(self._servers, gradients, unused, versions, strict=True)
        return self._answers([server.push.remote(*values) for server, *values in sent])

    def _answers(self, calls: Sequence[Any]) -> list[Any]:
        """Return the answers to one call of each server. Raises RunError if a server is gone."""
        return [answer(call, f"parameter server {number}") for number, call in enumerate(calls)]
