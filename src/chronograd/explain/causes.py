"""Causes of lost time in one run, each a test on its evidence with numbers and the experiment that would disprove it.

A cause is reported if it costs a tenth of the time or more, and if both halves of the run show it. For a slow worker or a small
batch the limit is 15 %. The cost is the share of the time that the run would save without this cause alone. `explain/ranks.py`
compares several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.errors import ChronogradError
from chronograd.explain import remedies
from chronograd.explain.device_time import is_communication
from chronograd.explain.evidence import Evidence, Rank, usual_exchange_s
from chronograd.explain.remedies import Remedy
from chronograd.explain.split import Split
from chronograd.hardware import catalog
from chronograd.predict.collectives import bandwidths
from chronograd.units import percent, seconds, si
from chronograd.words import how_many

Verdict = Literal["found", "not found", "not measured"]

# Causes with a smaller cost are not reported.
MIN_COST = 0.10
# For a stall, which the ranks log themselves, so it is certain.
MIN_STALL_COST = 0.01
# For a slow worker: equal ranks of a healthy run differ by up to 11 % in the median of two dozen steps.
MIN_WORKER_COST = 0.15
# Quadrupling the batch almost always improves throughput slightly, so ignore smaller gains.
MIN_BATCH_COST = 0.15
# Threads per core that are certainly too many, even without another measurement.
PLAINLY_TOO_MANY = 4
# Steps of the run were timed with all threads, but the experiment at its end may have run on a quieter machine. The exchange
# may also cause a part of the difference.
SURELY = 0.9
# The threads that exchange gradients compete with those that compute, even on a host without other work.
MIN_BUSY_COST = 0.2
# For a profile: profiling itself lengthens the time between operators.
MIN_LAUNCH_COST = 0.4
# For a device's idle time: the profiler does not lengthen it on a busy device. Assumed.
MIN_IDLE_COST = 0.2
# A rank is slow if it is the slowest of all in this share of the steps.
PERSISTENT = 0.7
# An accelerator is faster than a processor at least by this factor, from the catalogue's data sheets.
ACCELERATOR_FACTOR = 10.0
# Tolerance for the samples that a sampler adds to give all ranks the same number.
PADDING = 1.1


@dataclass(frozen=True)
class Diagnosis:
    """The result for one cause.

    Attributes:
        cause: its key, one of CAUSES. `title`: the statement about this run.
        cost: share of the time that it takes, 0 to 1; None without a measurement.
        evidence: sentences with numbers. `experiment`: a test that would disprove it.
        remedies: what to do about it, best first; empty unless `verdict` is `found`.
    """

    cause: str
    verdict: Verdict
    title: str
    cost: float | None
    evidence: tuple[str, ...]
    experiment: str
    remedies: tuple[Remedy, ...] = ()

    @property
    def share(self) -> str:
        """Return the cost in brackets, to append to the title; empty if it was not measured."""
        whole = "run" if self.cause == "start_up" else "time"
        return "" if self.cost is None else f" ({percent(self.cost, 0)} of the {whole})"

    @property
    def is_found(self) -> bool:
        return self.verdict == "found"


@dataclass(frozen=True)
class Result:
    """The result of the test of a cause.

    Attributes:
        cost, halves: share of the time that it takes, in the whole run and in either half.
        title: the statement about the run with this cause, or with a given `verdict`.
        least: the minimum cost of a found cause.
        verdict: given if the cost does not decide.
    """

    evidence: tuple[str, ...] = ()
    cost: float | None = 0.0
    halves: tuple[float, ...] = ()
    title: str = ""
    least: float = MIN_COST
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Cause:
    """A cause. `test` returns a Result, or why it was not measured. `absent`: the statement about a run without it.

    `remedies`: what to do about it, from the run, its split and its cost. `applies`: whether a run could have it at all.
    """

    test: Callable[[Evidence, Split], Result | str]
    absent: str
    experiment: str
    remedies: Callable[[Evidence, Split, float | None], Sequence[Remedy]]
    applies: Callable[[Evidence], bool] = lambda run: True

    def judge(self, name: str, run: Evidence, split: Split) -> Diagnosis:
        """Return the diagnosis: found if the cost is large enough in the run and in both halves."""
        result = self.test(run, split)
        if isinstance(result, str):
            return Diagnosis(name, "not measured", result, None, (), self.experiment)
        cost, least = result.cost, result.least
        is_found = cost is not None and cost >= least and all(half >= least / 2 for half in result.halves)
        verdict = result.verdict or ("found" if is_found else "not found")
        title = result.title if is_found or result.verdict else self.absent
        cost = None if cost is None else min(1.0, max(0.0, cost))
        to_do = remedies.ranked(self.remedies(run, split, cost)) if verdict == "found" else ()
        return Diagnosis(name, verdict, title, cost, result.evidence, self.experiment, to_do)


def _no_accelerator(run: Evidence, split: Split) -> Result:
    """Test whether the CPU did the work although a GPU was requested or is present."""
    asked = _asked_for_gpu(run)
    ran_on = run.first.start.device or ""
    used = f"ran on {ran_on or 'an unknown device'}; " + (
        asked or "no accelerator was requested, and the machine has none"
    )
    if not ran_on:
        return Result((used,), None, title="the run did not log its device", verdict="not measured")
    if not asked or not ran_on.startswith("cpu"):
        return Result((used,))
    computing = split.share("computation_s") or 0.0
    evidence = (
        f"{asked}, and all ranks computed on {run.first.start.device_name or 'the processor'}",
        f"computation is {percent(computing, 0)} of a step; an accelerator is at least {ACCELERATOR_FACTOR:g} times as fast",
    )
    cost = computing * (1 - 1 / ACCELERATOR_FACTOR)
    return Result(evidence, cost, title="no accelerator was used, although one was requested")


def _no_sharding(run: Evidence, split: Split) -> Result | str:
    """Test whether every rank trains on the whole data set, or on more than its share."""
    if run.world == 1:
        return Result(("one rank has all samples to itself",))
    coverage, work = run.coverage, run.first.work
    if coverage is None:
        return "the recorder did not see the loop's loader, so the samples of a rank in an epoch are unknown"
    samples = (work.steps_per_epoch or 0) * (work.rank_batch or 0)
    sampler = f", by a {work.sampler}" if work.sampler is not None else ""
    evidence = (
        f"a rank reads {samples:,.0f} samples in an epoch{sampler}; {run.world} ranks together read "
        f"{coverage:.2f} times the {how_many(work.dataset_samples, 'samples')} of the data set",
    )
    if coverage < PADDING:
        return Result(evidence)
    title = (
        "every worker trains on the whole data set"
        if coverage > 0.9 * run.world
        else "workers train on the same samples"
    )
    return Result(evidence, 1 - 1 / coverage, title=title)


def _slow_link(run: Evidence, split: Split) -> Result | str:
    """Test the wait of all ranks for gradients, beyond the usual wait of processes on one machine."""
    if run.world == 1 and not run.exposed_K.any():
        return Result(("one rank exchanges nothing",))
    if run.kind == "profile":
        return _exposed(run)
    if not run.knows_waits:
        return "waiting for gradients was not timed"
    exposed_K, usual_s, step_s = run.exposed_K, usual_exchange_s(run), run.step_time_s
    cost, halves = _steady(exposed_K - usual_s, step_s)
    bytes_, rate = run.first.work.gradient_bytes, ""
    if bytes_:
        _, bus = bandwidths("all_reduce", bytes_, max(float(np.median(exposed_K)), 1e-9), run.world)
        rate = f", {si(float(bus), 'B/s')} of gradients if no exchange was hidden"
    evidence = (
        f"after its own last gradient even the slowest rank waits {seconds(float(np.median(exposed_K)))} of a step of "
        f"{seconds(step_s)}{rate}",
        f"processes of one machine would wait at most {seconds(usual_s)}"
        + (f" for {si(bytes_, 'B')} of gradients" if bytes_ else ""),
    )
    return Result(evidence, cost, halves, "the link between ranks is too slow for the gradients")


def _exposed(run: Evidence) -> Result:
    """Test the exposed communication of a trace. A trace of one rank among several does not show its reason."""
    exposed_K, step_s = run.exposed_K, run.step_time_s
    cost, halves = _steady(exposed_K, step_s, quantile=0.5)
    mean_s = float(np.mean(exposed_K))
    evidence = [f"collectives run without computation in {seconds(mean_s)} of a step of {seconds(step_s)}"]
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    whole_s = float(np.sum([device.communication_s for device in devices]))
    if whole_s:
        hidden = 1 - float(np.sum([device.exposed_s for device in devices])) / whole_s
        names = [name for name, _ in devices[0].kernels if is_communication(name)]
        longest = f"; the longest is {names[0].split('(')[0][:60]}" if names else ""
        evidence.append(f"{percent(max(0.0, hidden), 0)} of communication is hidden behind computation{longest}")
    if len(run.ranks) == run.world:
        return Result(tuple(evidence), cost, halves, "the link between ranks is too slow for the gradients")
    evidence.append(
        f"traces of {len(run.ranks)} of {run.world} ranks are available, which cannot distinguish a slow link from late ranks"
    )
    return Result(
        tuple(evidence), cost, halves, "communication is not hidden: the link is slow, or other ranks are late"
    )


def _idle_device(run: Evidence, split: Split) -> Result | str:
    """Test the idle time of the device in a trace without input waits: the host launches work, or waited for the device."""
    if run.captures_graph:
        return "the trace captures a graph: kernels do not run during capture"
    idle_K = np.mean([rank.launch_s for rank in run.ranks.values()], axis=0)
    cost, halves = _steady(idle_K, run.step_time_s, quantile=0.5)
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    waited_s, launched_s = (
        float(np.mean([getattr(device, name) for device in devices])) for name in ("synchronizing_s", "launching_s")
    )
    evidence = (
        f"no kernel runs in {seconds(float(np.mean(idle_K)))} of a step of {seconds(run.step_time_s)}",
        f"{percent(waited_s / max(waited_s + launched_s, 1e-12), 0)} of this follows a wait of the host for the device "
        "(synchronisation); in the rest the host launches work or does something else",
    )
    title = "the device is idle: " + (
        "the host waits for it before it launches more work"
        if waited_s > launched_s
        else "the host launches work too slowly"
    )
    return Result(evidence, cost, halves, title, MIN_IDLE_COST)


def _slow_worker(run: Evidence, split: Split) -> Result | str:
    """Test whether all others wait for one rank in most steps."""
    if run.world == 1:
        return Result(title="a single rank does not wait for others", verdict="not found")
    if len(run.ranks) < 2:
        return "only one rank wrote its steps"
    if run.kind == "record":
        return "a record does not distinguish ranks"
    own_RK = np.stack([_own(rank, run.knows_waits) for rank in run.ranks.values()])
    slowest = int(np.argmax(np.median(own_RK, axis=1)))
    others_K = np.median(np.delete(own_RK, slowest, axis=0), axis=0)
    persistent = float(np.mean(own_RK.argmax(axis=0) == slowest))
    part, number = _slow_part(list(run.ranks.values()), slowest), list(run.ranks)[slowest]
    evidence = (
        f"rank {number} works {seconds(float(np.median(own_RK[slowest])))} on a step, the others "
        f"{seconds(float(np.median(others_K)))}; it is the slowest in {percent(persistent, 0)} of the steps{part}",
        *(() if run.knows_waits else ("waits were not timed: these times only contain the parts without waiting",)),
    )
    if persistent < PERSISTENT:
        return Result(evidence)
    cost, halves = _steady(own_RK[slowest] - others_K, run.step_time_s, quantile=0.5)
    return Result(evidence, cost, halves, f"rank {number} is slow and the others wait for it", MIN_WORKER_COST)


def _input_bound(run: Evidence, split: Split) -> Result | str:
    """Test whether steps wait for their batch on every rank."""
    inputs_RK = np.stack([rank.input_s for rank in run.ranks.values()])
    if not np.isfinite(inputs_RK).all():
        return "input was not timed separately from the rest of a step"
    least_K = inputs_RK[np.argmin(np.median(inputs_RK, axis=1))]  # any excess of one rank is that rank's problem
    cost, halves = _steady(least_K, run.step_time_s, quantile=0.5, is_mean=True)
    workers = run.first.work.workers
    loader = "" if workers is None else f"; the loader has {workers} worker{'s' * (workers != 1)}"
    evidence = f"a step waits {seconds(float(np.mean(least_K)))} of {seconds(run.step_time_s)} for its batch{loader}"
    return Result((evidence,), cost, halves, "the input pipeline is too slow")


def _too_many_threads(run: Evidence, split: Split) -> Result | str:
    """Test whether threads outnumber cores: they then compete for cores, and wait by spinning."""
    threads, cores = run.first.start.threads, run.first.start.cores or run.cores
    if not threads or not cores:
        return "threads and cores were not logged"
    evidence = f"{run.ranks_here} rank{'s' * (run.ranks_here > 1)} of {how_many(threads, 'threads')} on {how_many(cores, 'cores')}"
    if threads * run.ranks_here <= cores or (run.first.start.device or "").startswith("cuda"):
        return Result((evidence,))
    tried = [rank.what_if_threads for rank in run.ranks.values() if rank.what_if_threads is not None]
    if not tried:
        is_plain = threads * run.ranks_here >= PLAINLY_TOO_MANY * cores
        title = "threads outnumber cores; the cost was not measured"
        return Result((evidence,), None, title=title, verdict="found" if is_plain else "not measured")
    crowded_s = float(np.median([p.seconds for p in tried]))
    fair_s = float(np.median([p.fair_seconds for p in tried]))
    trial = (
        f"forward and backward take {seconds(crowded_s)} with {how_many(threads, 'threads')} and {seconds(fair_s)} with "
        f"{tried[0].fair_threads}, measured on every rank at the end of the run"
    )
    computing_s = _computing_s(run, split)
    lost_s = computing_s - min(computing_s, fair_s * computing_s / max(crowded_s, SURELY * computing_s, 1e-9))
    return Result((evidence, trial), lost_s / run.step_time_s, title="each process has too many threads")


def _busy_host(run: Evidence, split: Split) -> Result | str:
    """Test whether other processes used the cores of every rank's host, while this run had no more threads than cores."""
    shares = []
    for rank in run.ranks.values():
        seconds_s, before_s, after_s = rank.end.time - rank.ready.time, rank.ready.queued_s, rank.end.queued_s
        if before_s is None or after_s is None or not np.isfinite(seconds_s):
            return "waiting for a CPU core was not logged"
        shares.append((after_s - before_s) / max(1e-9, seconds_s))
    evidence = f"every process spent at least {percent(min(shares), 0)} of the time waiting for a free CPU core"
    threads, cores = run.first.start.threads or 1, run.first.start.cores or 1
    if threads * run.ranks_here > cores:
        return Result((evidence, "its own threads outnumber the cores"))
    return Result((evidence,), min(shares), title="other processes use the host", least=MIN_BUSY_COST)


def _returned_memory(run: Evidence, split: Split) -> Result | str:
    """Test whether memory freed in a step returns to the system and causes page faults in the next step, on every rank."""
    faults_RK = [rank.page_faults * rank.page_fault_s for rank in run.ranks.values() if rank.page_fault_s is not None]
    if len(faults_RK) < len(run.ranks) or any(len(faults_K) == 0 for faults_K in faults_RK):
        return "page faults were not logged"
    cost, halves = _steady(np.min(faults_RK, axis=0), run.step_time_s, quantile=0.5)
    faults = float(np.median(run.first.page_faults))
    evidence = (
        f"a step has {faults:,.0f} page faults, at {seconds(run.first.page_fault_s or 0.0)} each: "
        f"{seconds(faults * (run.first.page_fault_s or 0.0))} of {seconds(run.step_time_s)}"
    )
    return Result(
        (evidence,),
        cost,
        halves,
        "each step returns its memory to the system, and the next one gets it back page by page",
    )


def _small_batch(run: Evidence, split: Split) -> Result | str:
    """Test the fixed cost of a step at any batch: launches, the update, an exchange even over a fast link."""
    if run.kind == "profile":
        return "a larger batch was not tried" if _has_device(run) else _launch_bound(run)
    tried = [rank.what_if_batch for rank in run.ranks.values() if rank.what_if_batch]
    if not tried:
        return "a larger batch was not tried"
    if CAUSES["busy_host"].judge("busy_host", run, split).is_found:
        return "the host was too busy to try a larger batch"
    small_s = float(np.median([p.seconds for p in tried]))
    large_s = float(np.median([p.larger_seconds for p in tried]))
    times = tried[0].times
    fixed = max(0.0, small_s - (large_s - small_s) / max(1, times - 1)) / max(small_s, 1e-9)
    update_s = run.update_s
    exchange_s = 0.0
    if run.world > 1 and run.knows_waits:
        exchange_s = min(usual_exchange_s(run), float(np.median(run.exposed_K)))
    computing_s = _computing_s(run, split)
    computing_s = min(computing_s, small_s) if run.first.what_if_threads is not None else computing_s
    fixed_s = fixed * computing_s + update_s + exchange_s
    batch = "" if run.rank_batch is None else f" of {run.rank_batch:g} samples"
    exchange = f" and {seconds(exchange_s)} of exchange" if exchange_s else ""
    evidence = (
        f"forward and backward of a rank's batch{batch} take {seconds(small_s)}; with a batch {times:g} times as large "
        f"{seconds(large_s)}: {percent(fixed, 0)} of the time does not depend on the batch",
        f"a step of {seconds(run.step_time_s)} also has {seconds(update_s)} of update{exchange}, independent of the batch",
    )
    cost = fixed_s * (1 - 1 / max(1, times)) / run.step_time_s
    return Result(evidence, cost, title="the batch of each rank is too small", least=MIN_BATCH_COST)


def _launch_bound(run: Evidence) -> Result:
    """Test whether a profile shows operators so small that launching them takes most of the time."""
    launch_K = np.mean([rank.launch_s for rank in run.ranks.values()], axis=0)
    cost, halves = _steady(launch_K, run.step_time_s, quantile=0.5)
    evidence = f"no operator of 20 µs or more runs in {seconds(float(np.median(launch_K)))} of a step of {seconds(run.step_time_s)}"
    title = "the launched operators are too small, because the batch of each rank is too small"
    return Result((evidence,), cost, halves, title, MIN_LAUNCH_COST)


def _stall(run: Evidence, split: Split) -> Result | str:
    """Test for a moment in which all ranks stood still: a stopped process, a silent link, a disk that did not answer."""
    if run.kind in ("profile", "record"):
        return f"a {run.kind} does not show when each rank stood still"
    stalls = run.stalls_in_training
    if not stalls.found:
        return Result(tuple(f"{text}; this is part of start-up" for text in run.stalls_in_startup.sentences()))
    lost_s, longest = stalls.seconds, max(stalls.found, key=lambda one: one.seconds)
    whole_s = max(lost_s, run.wall_s or lost_s + run.step_time_s * len(run.first.step_s))
    ranks = ", ".join(map(str, longest.ranks))
    titles = {
        "stopped": f"the process of rank {ranks} was stopped, and all ranks stood still",
        "link": "a link between ranks was silent, and all ranks stood still",
        "rank": f"rank {ranks} stood still, and all waited for it",
        "waiting": "all ranks waited for an exchange that did not arrive: a link or another rank was silent",
    }
    return Result(tuple(stalls.sentences()), lost_s / whole_s, title=titles[longest.reason], least=MIN_STALL_COST)


def _start_up(run: Evidence, split: Split) -> Result | str:
    """Test the time before the first step, as a share of the whole run."""
    startup_s, wall_s = split.startup_s.value, run.wall_s
    if startup_s is None or not wall_s:
        return split.startup_s.reason or "the run did not finish"
    evidence = f"{seconds(startup_s)} before the first step, {seconds(wall_s)} from there to the end"
    evidences = (evidence, *run.stalls_in_startup.sentences())
    return Result(evidences, startup_s / (startup_s + wall_s), title="start-up takes much of the run")


CAUSES: dict[str, Cause] = {
    "no_accelerator": Cause(
        _no_accelerator,
        "the run used the requested device",
        "run it where `chronograd doctor` sees the accelerator; if the step time stays the same, this was not the cause",
        remedies.saves(
            "use the accelerator (lower bound of the gain)",
            "model.to('cuda')",
            "run it where `chronograd doctor` sees the GPU",
        ),
    ),
    "stall": Cause(
        _stall,
        "the ranks never all stood still",
        "run it again: a stall that returns at the same step belongs to the work of that step",
        remedies.stall,
    ),
    "no_sharding": Cause(
        _no_sharding,
        "the data set is divided among the ranks",
        "give the loader a DistributedSampler (or each rank every world-th sample): if an epoch of a rank keeps its "
        "number of steps, this was not the cause",
        remedies.saves("divide the samples among the ranks", "DataLoader(sampler=DistributedSampler(dataset))"),
    ),
    "slow_link": Cause(
        _slow_link,
        "steps do not wait for the link between ranks",
        "run `chronograd calibrate links` between these hosts: if it shows the bandwidth of the data sheet, or a network with "
        "fewer parameters waits equally long, the link is not the cause",
        remedies.slow_link,
    ),
    "slow_worker": Cause(
        _slow_worker,
        "no rank is slower than the others in most steps",
        "swap the hosts of that rank and another one: if the same rank number stays slow, the cause is the work or the "
        "code of that rank, not the host",
        remedies.slow_worker,
    ),
    "input_bound": Cause(
        _input_bound,
        "the input pipeline is fast enough",
        "train on the same batch in every step: if the step time stays the same, input is not the cause; otherwise use more "
        "loader workers, prefetching, or data in memory",
        remedies.input_bound,
    ),
    "too_many_threads": Cause(
        _too_many_threads,
        "threads do not outnumber cores",
        "set cluster.threads (OMP_NUM_THREADS) to cores over ranks: if the step time stays the same, threads are not the cause",
        remedies.too_many_threads,
    ),
    "busy_host": Cause(
        _busy_host,
        "no other process uses the cores of the run",
        "run it again while nothing else runs (`uptime` shows the load): if the step time stays the same, other processes are not the "
        "cause",
        remedies.saves("run it while nothing else runs", "see `uptime` and `top`"),
    ),
    "returned_memory": Cause(
        _returned_memory,
        "the process keeps freed memory",
        "set MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 before Python starts (glibc): if the step time stays the same, page "
        "faults are not the cause",
        # At most the page faults, because memory that stays may suit the caches less well.
        remedies.saves("keep freed memory (upper bound)", "chronograd.keep_freed_memory() before the loop"),
        lambda run: run.kind == "own loop" and not (run.first.start.device or "").startswith("cuda"),
    ),
    "small_batch": Cause(
        _small_batch,
        "the batch is large enough",
        "double training.batch: if samples per second do not rise, the batch is not the cause (you may have to adapt the "
        "learning rate)",
        remedies.small_batch,
    ),
    "idle_device": Cause(
        _idle_device,
        "the device is busy",
        "double the batch, without the profiler: if the step time doubles, the device does not wait for the host",
        remedies.idle_device,
        lambda run: _has_device(run),
    ),
    "start_up": Cause(
        _start_up,
        "start-up is short",
        "double the number of epochs: if the time doubles, start-up is not the cause",
        remedies.start_up,
    ),
}


def _has_device(run: Evidence) -> bool:
    """Return whether traces show device activity."""
    return all(rank.device is not None for rank in run.ranks.values())


def _steady(
    lost_K: np.ndarray, step_s: float, *, quantile: float = 0.25, is_mean: bool = False
) -> tuple[float, tuple[float, ...]]:
    """Return the share of a step that is lost, in the whole run and in its halves.

    A low quantile suits a loss in every step, so that single hiccups do not count. A mean suits irregular losses, such as a
    loader that stalls sometimes.
    """

    def share(part: np.ndarray) -> float:
        lost_s = float(np.mean(part)) if is_mean else float(np.quantile(part, quantile))
        return max(0.0, lost_s) / step_s

    middle = len(lost_K) // 2
    halves = (lost_K[:middle], lost_K[middle:]) if middle >= 2 else ()
    return share(lost_K), tuple(share(half) for half in halves)


def _computing_s(run: Evidence, split: Split) -> float:
    """Return the time of forward and backward in a step, averaged over ranks."""
    return (split.computation_s.value or 0.0) - run.update_s


def _own(rank: Rank, knows_waits: bool) -> np.ndarray:
    """Return a rank's own work; if its waits are unknown, the parts without waiting."""
    if knows_waits:
        return rank.own_s
    apart = [values for name, values in rank.parts.items() if name != "backward_s"]
    return np.nansum(apart, axis=0) if apart else np.zeros(len(rank.step_s))


def _slow_part(ranks: list[Rank], slowest: int) -> str:
    """Return the part in which the slowest rank loses most, in words."""
    behind: dict[str, float] = {}
    for name in ranks[slowest].parts:
        if all(name in rank.parts for rank in ranks):
            own = [rank.parts[name] - (np.nan_to_num(rank.wait_s) if name == "backward_s" else 0.0) for rank in ranks]
            medians = [float(np.median(values)) for values in own]
            behind[name] = medians[slowest] - float(np.median(medians[:slowest] + medians[slowest + 1 :]))
    if not behind or max(behind.values()) <= 0:
        return ""
    name = max(behind, key=lambda n: behind[n])
    return f", by {seconds(behind[name])} in {name.removesuffix('_s')}"


def _asked_for_gpu(run: Evidence) -> str:
    """Return why an accelerator was expected, in words; empty if it was not."""
    device = run.job.cluster.device or "local"
    if device not in ("local", "cpu") and not device.endswith(".toml"):
        try:
            is_gpu = catalog.device(device).kind == "gpu"
        except ChronogradError:
            is_gpu = False
        if is_gpu:
            return f"the job asks for cluster.device={device}"
    given = run.first.start.gpus_given
    if given:
        return f"the process has access to GPUs ({given})"
    gpus = run.environment.get("gpus")
    named = [gpu.get("name", "GPU") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return f"the machine has {len(named)} × {named[0]}" if named else ""
