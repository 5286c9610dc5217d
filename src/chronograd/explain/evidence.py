"""The evidence on a run from any source: step times of each rank by part, and settings.

`read` reads a run directory, from Chronograd or from a recorder around a custom loop; chronograd.explain.profiler reads traces
of torch.profiler. Unknown times are NaN, unknown settings None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chronograd import job as jobs
from chronograd.errors import ChronogradError
from chronograd.explain.device_time import DeviceTime
from chronograd.hardware import catalog
from chronograd.predict.collectives import ring
from chronograd.record import OWN_PARTS, WARMUP, JobHeader, Quantity, Record
from chronograd.rundir import RunDir, StepLine, StepLog
from chronograd.rundir.stalls import Stalls, stalls_of
from chronograd.rundir.steps import End, PageFault, Ready, Start, WhatIfBatch, WhatIfThreads, WorkLine
from chronograd.units import seconds

# Ranks of a record are identical, so two represent all.
MAX_COPIES = 2
# Backward has twice the FLOPs of forward, and is rarely more than a quarter slower than that. The rest of a longer backward is
# waiting.
LONGEST_BACKWARD = 2.5
# All-reduces within a step compete for cores, so this much more than the time of the link alone is usual.
USUAL_FACTOR = 2.0
USUAL_S = 0.002
Kind = Literal["training", "measurement", "own loop", "profile", "record"]


@dataclass(frozen=True)
class Rank:
    """Steps of one rank after its warm-up: arrays of K steps, in seconds, and the events that it logged.

    Attributes:
        step_s: whole steps. `input_s`: until the batch is available. `wait_s`: for other ranks after its own last gradient.
        parts: the known ones of OWN_PARTS; backward includes the wait.
        start, ready, work, end, what_if_…: events; an empty event or None if missing.
        launch_s: in a profiled step, time for launching work: on a device, all idle time except for input. `copies_s`: exposed
            copies. Both empty if unknown.
        device: device activity over a whole trace; None without a device trace.
        operators: in a trace without a device, the operators with the largest self time, with their seconds.
        captures_graph: whether the trace captures a graph; kernels do not run during capture.
        page_faults: page faults in each step, and `page_fault_s` the time of one; empty or None if unknown.
        warmup_excess_s: total excess of the first steps over later ones, such as for a compiler.
    """

    step_s: np.ndarray
    input_s: np.ndarray
    wait_s: np.ndarray
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    start: Start = field(default_factory=lambda: Start(threads=None))
    ready: Ready = field(default_factory=Ready)
    work: WorkLine = field(default_factory=WorkLine)
    end: End = field(default_factory=End)
    what_if_threads: WhatIfThreads | None = None
    what_if_batch: WhatIfBatch | None = None
    page_faults: np.ndarray = field(default_factory=lambda: np.zeros(0))
    page_fault_s: float | None = None
    warmup_excess_s: float = 0.0
    launch_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    copies_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    device: DeviceTime | None = None
    operators: tuple[tuple[str, float], ...] = ()
    captures_graph: bool = False

    @property
    def own_s(self) -> np.ndarray:
        """Return the rank's own work in each step: everything except waiting, input included."""
        own_s: np.ndarray = self.step_s - np.nan_to_num(self.wait_s)
        return own_s


@dataclass(frozen=True)
class Evidence:
    """One run.

    Attributes:
        job: empty for a loop without one.
        world: number of ranks. `ranks`: those with known steps, all with the same number of steps.
        num_steps, batch: steps including warm-up, and samples per step over all ranks; None if unknown.
        wall_s: from the first step to the end; None if unknown.
        notes: unreadable parts, in words.
        stalls: of the run; `ranks` leaves out the steps with a stall.
        label: a short name for text if the name is too long.
        exposed_s: exposed communication of its record, if there is one; else it follows from the waits of the ranks.
    """

    name: str
    kind: Kind
    world: int
    ranks: dict[int, Rank]
    job: JobHeader = field(default_factory=JobHeader)
    environment: dict[str, Any] = field(default_factory=dict)
    num_steps: int | None = None
    batch: float | None = None
    wall_s: float | None = None
    notes: tuple[str, ...] = ()
    stalls: Stalls = field(default_factory=Stalls)
    label: str = ""
    exposed_s: Quantity | None = None

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def update_s(self) -> float:
        """Return the median time of the update on the first rank; 0 if unknown."""
        return float(np.median(self.first.parts.get("update_s", np.zeros(1))))

    @property
    def captures_graph(self) -> bool:
        return any(rank.captures_graph for rank in self.ranks.values())

    @property
    def first(self) -> Rank:
        return self.ranks[min(self.ranks)]

    @cached_property
    def waits_RK(self) -> np.ndarray:
        """Return waits of shape (ranks, steps): all NaN if a rank's wait is unknown; zero for one rank."""
        if self.world == 1:
            return np.zeros((1, len(self.first.step_s)))
        return np.stack([rank.wait_s for rank in self.ranks.values()])

    @cached_property
    def stalls_in_training(self) -> Stalls:
        """Return the stalls since the first step: earlier ones belong to start-up."""
        return replace(
            self.stalls, found=tuple(stall for stall in self.stalls.found if stall.is_in_step or stall.step > 0)
        )

    @cached_property
    def stalls_in_startup(self) -> Stalls:
        return replace(
            self.stalls, found=tuple(stall for stall in self.stalls.found if not (stall.is_in_step or stall.step > 0))
        )

    @property
    def knows_waits(self) -> bool:
        has_all = len(self.ranks) == self.world or self.kind == "record"
        return has_all and bool(np.isfinite(self.waits_RK).any(axis=1).all())

    @property
    def exposed_K(self) -> np.ndarray:
        """Return the wait of the rank that waits least, for each step; zero if no wait is known.

        In a trace, steps of ranks begin and end at different times. There it is the mean wait, minus the excess of the largest
        own work over the mean.
        """
        if self.kind == "profile":
            waits_K = np.nan_to_num(np.stack([rank.wait_s for rank in self.ranks.values()])).mean(axis=0)
            own_RK = np.stack([rank.own_s for rank in self.ranks.values()])
            most_K: np.ndarray = np.maximum(0.0, waits_K - (own_RK.max(axis=0) - own_RK.mean(axis=0)))
            return most_K
        exposed_K: np.ndarray = np.nan_to_num(self.waits_RK).min(axis=0)
        return exposed_K

    @property
    def coverage(self) -> float | None:
        """Return the number of times that all ranks together read each sample in an epoch; None if unknown."""
        work = self.first.work
        if work.dataset_samples is None or work.rank_batch is None or work.steps_per_epoch is None:
            return None
        return float(self.world * work.steps_per_epoch * work.rank_batch / max(1, work.dataset_samples))

    @property
    def step_time_s(self) -> float:
        """Return the mean over steps of the slowest rank's step time; for a trace, the mean over ranks too."""
        if self.kind == "profile":
            return float(np.mean([rank.step_s for rank in self.ranks.values()]))
        return float(np.mean(np.max([rank.step_s for rank in self.ranks.values()], axis=0)))

    @property
    def cores(self) -> int | None:
        """Return the number of cores of the machine; None if its environment does not state it."""
        cores = self.environment.get("cores")
        return cores if isinstance(cores, int) and cores > 0 else None

    @property
    def is_on_one_host(self) -> bool:
        """Return whether all ranks are known to share a host; a record of a job on the local device has them on this machine."""
        hosts = {rank.start.host for rank in self.ranks.values()}
        return len(hosts) == 1 and (None not in hosts or self.job.cluster.device == "local")

    @property
    def ranks_here(self) -> int:
        """Return the number of ranks on the host of rank 0."""
        hosts = [rank.start.host for rank in self.ranks.values()]
        return hosts.count(hosts[0]) if hosts and hosts[0] else self.world

    @property
    def rank_batch(self) -> float | None:
        batch = self.first.work.rank_batch
        return float(batch) if batch is not None else None if self.batch is None else self.batch / self.world


def read(path: Path) -> Evidence:
    """Read the evidence of a run directory. Raises FileFormatError, RunError; ChronogradError if it has no steps."""
    run = RunDir.open(path)
    logs = run.logs()
    ranks = {number: log for number, log in logs.items() if log.steps}
    if not ranks:
        raise ChronogradError(f"{path} has no steps yet", "wait for its first steps, or name another run")
    job, notes = _job(run)
    kind = _kind(next(iter(ranks.values())), job)
    if next(iter(ranks.values())).steps[0].staleness is not None:
        raise ChronogradError(
            f"{path} is asynchronous: its learners do not wait for each other",
            "its record has pull, compute and push times: `chronograd records` shows them",
        )
    stalls = stalls_of(ranks)
    known = _ranks(ranks, kind, stalls.steps)
    record = None
    with contextlib.suppress(ChronogradError):  # a run that still goes on, or died, has no record
        record = run.record()
    world = _world(job, record, len(logs))
    if world > 1 and not any(np.isfinite(rank.wait_s).any() for rank in known.values()):
        known, estimated = _with_estimated_waits(known)
        notes += estimated
    return Evidence(
        name=path.name,
        kind=kind,
        world=world,
        ranks=known,
        job=job,
        environment=run.environment(),
        num_steps=max(len(log.steps) for log in ranks.values()),
        batch=_batch(job, record),
        wall_s=_wall_s(known),
        stalls=stalls,
        exposed_s=None
        if record is None or record["communication_exposed_s"].value is None
        else record["communication_exposed_s"],
        notes=(*notes, *([f"only {len(known)} of {world} ranks logged steps"] if len(known) < world else [])),
    )


def of_record(record: Record, name: str) -> Evidence:
    """Return the evidence of a record without its run: means over steps, equal for all ranks, so stragglers are unknown.

    Raises ChronogradError if it has no step time.
    """
    step_s = record["step_time_s"].value
    if step_s is None:
        raise ChronogradError(f"{name} has no step time: {record['step_time_s'].reason}", "name a run that has steps")

    def mean(quantity: str) -> np.ndarray:
        value = record[quantity].value
        return np.array([np.nan if value is None else value])

    environment, ran_on = record.provenance.environment, record.cluster.ran_on
    is_processor = ran_on and ran_on == environment.get("processor")
    threads = record.cluster.threads
    start = Start(device="cpu" if is_processor else "", threads=None if threads is None else int(threads))
    exposed_s, backward_s = mean("communication_exposed_s"), mean("backward_s")
    parts = {part: mean(part) for part in OWN_PARTS} | {"backward_s": backward_s + np.nan_to_num(exposed_s)}
    rank = Rank(np.array([step_s]), mean("input_s") + np.nan_to_num(mean("transfer_s")), exposed_s, parts, start=start)
    world, lost = record.world, record["stall_s"]
    stalled = [f"{seconds(lost.value)} were lost in stalls, {lost.source}"] if lost.value else []
    return Evidence(
        name=name,
        kind="record",
        world=world,
        ranks=dict.fromkeys(range(min(world, MAX_COPIES)), rank) if world > 1 else {0: rank},
        job=record.job,
        environment=environment,
        batch=float(record.global_batch) if record.global_batch else None,
        notes=("a record has means only: ranks are not distinguished", *stalled),
    )


def _job(run: RunDir) -> tuple[JobHeader, list[str]]:
    if not (run.path / "job.yaml").exists():
        return JobHeader(), []
    try:
        return JobHeader.model_validate(jobs.resolved(run.job())), []
    except ChronogradError as error:
        return JobHeader(), [error.message]


def _kind(log: StepLog, job: JobHeader) -> Kind:
    first = log.steps[0]
    if first.loss is not None:
        return "training"
    return "measurement" if job.backend and first.mode != "warmup" else "own loop"


def _ranks(logs: Mapping[int, StepLog], kind: Kind, stalled: set[int]) -> dict[int, Rank]:
    """Return the steps that every rank has, in modes with whole steps; without stalled steps if others remain."""
    by_rank = {number: _timed(log, kind) for number, log in logs.items()}
    common = set.intersection(*(set(lines) for lines in by_rank.values()))
    steps = sorted(common - stalled) or sorted(common)
    if not steps:
        raise ChronogradError("no step was timed on every rank of the run", "wait for more steps, or time more")
    return {number: _rank([lines[s] for s in steps], logs[number]) for number, lines in by_rank.items()}


def _timed(log: StepLog, kind: Kind) -> dict[int, StepLine]:
    """Return lines by step, each with `step_time_s`. A missing `exchange_wait_s` comes from the neighbouring step without
    exchange.
    """
    apart = {line.step - 1: line for line in log.steps if line.mode == "no_exchange"}
    found = {}
    lines = [line for line in log.steps if line.mode != "warmup"] or log.steps
    if kind == "training":
        lines = lines[min(WARMUP, len(lines) // 2) :]
    for line in lines:
        if line.mode in ("no_exchange", "plain"):
            continue
        wait_s, step_s = line.exchange_wait_s, line.step_time_s
        if wait_s is None and line.step in apart:
            wait_s = max(0.0, _work_s(line) - _work_s(apart[line.step]))
        if step_s is None:
            step_s = sum(getattr(line, part) or 0.0 for part in OWN_PARTS)
        if step_s > 0:
            found[line.step] = replace(line, exchange_wait_s=wait_s, step_time_s=step_s)
    return found


def _rank(lines: Sequence[StepLine], log: StepLog) -> Rank:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(line, name) for line in lines], dtype=float)

    parts = {name: column(name) for name in OWN_PARTS if any(getattr(line, name) is not None for line in lines)}
    input_s = parts.get("input_s", np.full(len(lines), np.nan)) + parts.get("transfer_s", 0.0)
    fault = log.last(PageFault)
    return Rank(
        column("step_time_s"),
        input_s,
        column("exchange_wait_s"),
        parts,
        start=log.last(Start) or Start(threads=None),
        ready=log.last(Ready) or Ready(),
        work=log.last(WorkLine) or WorkLine(),
        end=log.last(End) or End(),
        what_if_threads=log.last(WhatIfThreads),
        what_if_batch=log.last(WhatIfBatch),
        page_faults=np.nan_to_num(column("page_faults")) if lines[0].page_faults is not None else np.zeros(0),
        page_fault_s=None if fault is None else fault.seconds,
        warmup_excess_s=_excess_s(log, column("step_time_s")),
    )


def _excess_s(log: StepLog, later_s: np.ndarray) -> float:
    """Return the total excess of the first steps over the median of later ones; zero if the first were not logged."""
    first = [line for line in log.steps[:WARMUP] if line.step <= WARMUP]
    usual_s = float(np.median(later_s))
    return sum(max(0.0, (line.step_time_s or 0.0) - (line.input_s or 0.0) - usual_s) for line in first)


def _world(job: JobHeader, record: Record | None, ranks: int) -> int:
    if job.backend:
        return ranks
    stated = record.cluster.count if record is not None else None
    return max(ranks, stated or job.cluster.count or 1)


def _batch(job: JobHeader, record: Record | None) -> float | None:
    """Return the global batch: from the record's throughput if the loop reported it, else from the job."""
    if record is not None and not record.job:
        rate, step = record["throughput_samples_per_s"].value, record["step_time_s"].value
        if rate and step:
            return float(round(rate * step))
    return float(job.training.batch) if job.training.batch else None


def _wall_s(ranks: Mapping[int, Rank]) -> float | None:
    """Return the time from the first step of the first rank to the end of the last."""
    starts = [rank.ready.time for rank in ranks.values() if np.isfinite(rank.ready.time)]
    ends = [rank.end.time for rank in ranks.values() if np.isfinite(rank.end.time)]
    return max(ends) - min(starts) if starts and ends else None


def _with_estimated_waits(ranks: dict[int, Rank]) -> tuple[dict[int, Rank], list[str]]:
    """Estimate waits that were not timed, as backward beyond LONGEST_BACKWARD times forward. Also return a note."""
    if not all({"forward_s", "backward_s"} <= rank.parts.keys() for rank in ranks.values()):
        return ranks, []
    estimated = {}
    for number, rank in ranks.items():
        excess_s = rank.parts["backward_s"] - LONGEST_BACKWARD * rank.parts["forward_s"]
        estimated[number] = replace(rank, wait_s=np.maximum(0.0, excess_s))
    return estimated, [f"waits are estimated: backward beyond {LONGEST_BACKWARD:g} times forward"]


def _work_s(line: StepLine) -> float:
    return (line.forward_s or 0.0) + (line.backward_s or 0.0)


def usual_exchange_s(run: Evidence) -> float:
    """Return the time of an exchange of these gradients between processes of one machine, within a step."""
    bytes_ = run.first.work.gradient_bytes or 0
    link = catalog.link("loopback")
    alone_s = float(ring(bytes_, run.world, link.latency_s, link.bandwidth_bytes_per_s))
    return USUAL_FACTOR * alone_s + USUAL_S
