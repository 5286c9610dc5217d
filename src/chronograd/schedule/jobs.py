"""Jobs as a scheduler sees them: the work until they are done, and how fast each size does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from chronograd.errors import InputError
from chronograd.predict.batch_size import steps_factor
from chronograd.predict.speed import SpeedModel
from chronograd.words import how_many


class Allocation(NamedTuple):
    """The tasks of a job: `workers` compute gradients, `servers` hold parameters (0 with an all-reduce)."""

    workers: int
    servers: int = 0

    def more_than(self, other: Allocation) -> Allocation:
        """Return the tasks that it has in addition to another."""
        return Allocation(self.workers - other.workers, self.servers - other.servers)


NOTHING = Allocation(0)

Speeds = Sequence[Sequence[float]]
"""Samples per second by workers (the first index, 0 has speed 0) and servers (the second)."""


class Phase(NamedTuple):
    """A part of a job with another batch: its speeds from the time that the job has done `start` of its work, in samples."""

    start: float
    samples_per_s: Speeds


@dataclass(frozen=True)
class Pool:
    """The resources that all jobs share.

    Attributes:
        gpus: one for each worker. slots: places for parameter servers, on CPUs.
        is_shared: servers take the same places as workers, as on a cluster of CPUs; then `slots` is 0.
        gpus_per_node: that are lost together. title: of a GPU. usd_per_hour: of one GPU; None if unknown.
    """

    gpus: int
    slots: int = 0
    is_shared: bool = False
    gpus_per_node: int = 1
    title: str = "GPU"
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not (self.gpus > 0 and self.slots >= 0 and 0 < self.gpus_per_node <= self.gpus):
            raise InputError(
                f"a cluster of {self.gpus} GPUs in nodes of {self.gpus_per_node}",
                "give at least 1 GPU, and no larger node",
            )

    def places(self, allocation: Allocation) -> tuple[int, int]:
        """Return the GPUs (or shared places) and the slots that an allocation takes."""
        if self.is_shared:
            return allocation.workers + allocation.servers, 0
        return allocation.workers, allocation.servers

    def check(self, name: str, size: Allocation) -> None:
        """Raise InputError if a job asks for more than the whole cluster has."""
        gpus, slots = self.places(size)
        if gpus > self.gpus:
            more = f" and {how_many(size.servers, 'servers')}" if self.is_shared and size.servers else ""
            raise InputError(
                f"{name} requests {how_many(size.workers, 'GPUs')}{more}, and the cluster has {self.gpus:,}",
                "request fewer, or give a larger cluster (--on)",
            )
        if slots > self.slots:
            raise InputError(
                f"{name} requests {how_many(size.servers, 'servers')}, and the cluster has places for {self.slots:,}",
                "request fewer, or give more places (--slots)",
            )

    def share(self, allocation: Allocation) -> float:
        """Return the largest share of a resource that the allocation takes: its dominant share."""
        gpus, slots = self.places(allocation)
        return max(gpus / self.gpus, slots / self.slots if slots else 0.0)


class Free:
    """Resources that are still free while a policy hands them out."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.gpus, self.slots = pool, pool.gpus, pool.slots

    def take(self, wanted: Allocation) -> bool:
        """Take the resources of an allocation; return False and take nothing if they do not fit."""
        gpus, slots = self.pool.places(wanted)
        if gpus > self.gpus or slots > self.slots:
            return False
        self.gpus, self.slots = self.gpus - gpus, self.slots - slots
        return True


@dataclass(frozen=True, eq=False)
class ScheduledJob:
    """A job that arrives at a cluster.

    Attributes:
        arrival_s: when the job is submitted. work: samples until it is done, at its own batch.
        samples_per_s: by size, with the workers on as few nodes as possible.
        requested: its size under policies that do not resize.
        spread: by workers, the speed of all-reduce on more nodes than necessary. Empty if placement makes no difference.
        phases: later parts of a job whose batch changes while it runs, in order. A scheduler knows the present one.
        goodput: by workers, with the best batch of each size. A sample counts as much as one at the job's own batch. Empty if
            the job cannot change its batch.
        work_sigma, speed_sigma: standard deviations of the logarithm of predicted work and speed.
        deadline_s: when it should be done; None without one.
    """

    name: str
    arrival_s: float
    work: float
    samples_per_s: Speeds
    requested: Allocation
    goodput: Sequence[float] = ()
    work_sigma: float = 0.0
    speed_sigma: float = 0.0
    deadline_s: float | None = None
    spread: Sequence[float] = ()
    phases: Sequence[Phase] = ()

    def __post_init__(self) -> None:
        size = self.requested
        if not (0 <= self.arrival_s < math.inf and 0 < self.work < math.inf):
            raise InputError(
                f"{self.name} arrives after {self.arrival_s:g} s with {self.work:g} samples", "give numbers above 0"
            )
        if not (0 < size.workers <= self.most_workers and 0 <= size.servers <= self.most_servers):
            raise InputError(
                f"{self.name} requests {how_many(size.workers, 'workers')} and {how_many(size.servers, 'servers')}",
                f"its speed is known for 1 to {self.most_workers} workers and up to {self.most_servers} servers",
            )
        tables = [self.samples_per_s, *(phase.samples_per_s for phase in self.phases)]
        speeds = [row[self.smallest.servers :] for table in tables for row in table[1:]]
        slowest = min(self.speed(size), *map(min, speeds), *self.goodput[1:], *self.spread[1:])
        if not (slowest > 0 and self.fastest < math.inf):
            raise InputError(f"{self.name} makes no progress at one of its sizes", "give finite speeds above 0")
        starts = [0.0, *(phase.start for phase in self.phases), self.work]
        if starts != sorted(set(starts)):
            raise InputError(
                f"{self.name} changes its batch after {starts[1:-1]} of {self.work:g} samples",
                "give increasing numbers between 0 and its work",
            )

    @property
    def most_workers(self) -> int:
        return len(self.samples_per_s) - 1

    @property
    def most_servers(self) -> int:
        return len(self.samples_per_s[0]) - 1

    @property
    def requested_s(self) -> float:
        """Return the predicted time at the requested size, in all phases."""
        ends = [*(phase.start for phase in self.phases), self.work]
        parts = np.diff([0.0, *ends])
        return float(sum(part / self.speed(self.requested, phase=i) for i, part in enumerate(parts)))

    @property
    def fastest(self) -> float:
        """Return the highest speed of all sizes and batches."""
        tables = [self.samples_per_s, *(phase.samples_per_s for phase in self.phases)]
        return max(*(max(row) for table in tables for row in table), *self.goodput)

    @property
    def smallest(self) -> Allocation:
        """Return one worker, and one server if the job has servers."""
        return Allocation(1, min(1, self.most_servers))

    def grown(self, size: Allocation) -> Allocation:
        """Return one worker more, with servers in the requested ratio."""
        workers = size.workers + 1
        servers = min(-(-workers * self.requested.servers // self.requested.workers), self.most_servers)
        return Allocation(workers, servers)

    def speed(self, size: Allocation, adapts_batch: bool = False, phase: int = 0, is_spread: bool = False) -> float:
        """Return samples per second, at the job's own batch or (`adapts_batch`) as much progress with the best.

        Args:
            phase: the number of changes of its batch. is_spread: the workers are on more nodes than necessary.
        """
        if adapts_batch and self.goodput:
            speed = self.goodput[size.workers]
        else:
            table = self.phases[phase - 1].samples_per_s if phase else self.samples_per_s
            speed = table[size.workers][size.servers]
        if is_spread and self.spread and size.workers:
            speed *= min(1.0, self.spread[size.workers] / self.samples_per_s[size.workers][size.servers])
        return speed

    @classmethod
    def of_model(
        cls,
        name: str,
        arrival_s: float,
        steps: float,
        model: SpeedModel,
        requested: Allocation,
        most: Allocation,
        **other: Any,
    ) -> ScheduledJob:
        """Return a job whose speed follows Optimus' model; a step is its unit of work.

        Args:
            most: the largest number of workers and servers. other: as in the attributes.
        """
        workers, servers = np.arange(1, most.workers + 1), np.arange(1, most.servers + 1)
        if model.mode == "all-reduce":
            speeds = [[0.0], *([float(f)] for f in np.atleast_1d(model.steps_per_s(workers)))]
        else:
            table = model.steps_per_s(workers[:, None], servers[None, :])
            speeds = [[0.0] * (most.servers + 1), *([0.0, *row] for row in table.tolist())]
        return cls(name, arrival_s, steps, speeds, requested, **other)


def best_goodput(samples_per_s: Sequence[dict[int, float]], batch: int, noise_scale: float) -> list[float]:
    """Return the goodput by workers: the largest product of throughput and statistical efficiency among the batches.

    Args:
        samples_per_s: for 1, 2, ... workers, the throughput by global batch.
        batch: the job's own, at which a sample counts 1. noise_scale: in samples.

    Source: Qiao et al., Pollux, OSDI 2021, sections 3.1 and 3.3. Its efficiency equals the ratio of samples to a target of
    McCandlish et al.

    >>> best_goodput([{100: 10.0, 200: 14.0}], batch=100, noise_scale=100)
    [0.0, 10.0]
    """
    found = [0.0]
    for by_batch in samples_per_s:
        found.append(max(rate * batch / (b * steps_factor(b, batch, noise_scale)) for b, rate in by_batch.items()))
    return found


@dataclass
class JobState:
    """A job that has arrived and is not done, as a policy sees it.

    Attributes:
        left: predicted samples until it is done. pace: measured over predicted speed; 1 before it has run.
        size: its present tasks. attained: GPU-seconds so far. restarts: changes of its size.
        phase: the number of changes of its batch so far.
        share, credit_s, decided_s: for policies that give shares of time, see `rounds`.
    """

    index: int
    job: ScheduledJob
    left: float
    pace: float = 1.0
    size: Allocation = NOTHING
    attained: float = 0.0
    restarts: int = 0
    started_s: float | None = None
    phase: int = 0
    share: float = 0.0
    credit_s: float = 0.0
    decided_s: float = math.inf

    def speed(self, size: Allocation, adapts_batch: bool = False) -> float:
        """Return the predicted samples per second with its present batch, or with the best one."""
        return self.job.speed(size, adapts_batch, self.phase)

    def seconds(self, size: Allocation) -> float:
        """Return the predicted time until it is done, at a size and its present batch."""
        speed = self.pace * self.speed(size)
        return self.left / speed if speed > 0 else math.inf

    @property
    def left_s(self) -> float:
        """Return the predicted time until it is done, at the requested size."""
        return self.seconds(self.job.requested)

    @property
    def gpus(self) -> int:
        """Return the GPUs that it requests."""
        return self.job.requested.workers


@dataclass(frozen=True)
class Moment:
    """The input of a policy: the jobs in the order of their arrival, the cluster, and the time.

    Attributes:
        resize_s: pause of a job that gets another size. interval_s: between regular decisions; 0 without them.
    """

    jobs: Sequence[JobState]
    pool: Pool
    now_s: float
    resize_s: float = 0.0
    interval_s: float = 0.0


Sizes = dict[int, Allocation]
"""The size of each job by its index; a job that is not there waits."""


def pack(ordered: Sequence[JobState], pool: Pool, in_order: bool = False) -> Sizes:
    """Give jobs their requested size, the first ones first. `in_order`: nobody starts before an earlier job."""
    free, sizes = Free(pool), Sizes()
    for state in ordered:
        if free.take(state.job.requested):
            sizes[state.index] = state.job.requested
        elif in_order:
            break
    return sizes
