"""Causes of lost time in one run, each a test on its evidence with numbers and the experiment that would prove it wrong.

A cause is found where it costs a tenth of the time or more (a slow worker or a small batch: 15 %), and where both halves of
the run show it. What it costs is a share of the time: what would be saved if only this cause were gone. `explain/ranks.py`
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

# A cause that costs less is not named.
MIN_COST = 0.10
# Of a stall, which the ranks themselves noted: there is no doubt about it.
MIN_STALL_COST = 0.01
# Of a slow worker: like ranks of a healthy run differ by up to 11 % in the median of two dozen steps.
MIN_WORKER_COST = 0.15
# Of a batch: four times it nearly always helps a little.
MIN_BATCH_COST = 0.15
# Threads over cores at which there is no doubt that they are too many, even where nothing else was tried.
PLAINLY_TOO_MANY = 4
# Steps of the run took what they took with so many threads; the experiment at its end may have met a quieter machine. A part
# of the difference may be due to the exchange.
SURELY = 0.9
# The threads that exchange gradients take turns with those that compute, on a host of its own, too.
MIN_BUSY_COST = 0.2
# Of a profile: profiling itself lengthens what lies between operators.
MIN_LAUNCH_COST = 0.4
# Of a device's idle time: that of one that is kept busy is not longer for the profiler. Assumed.
MIN_IDLE_COST = 0.2
# A rank is slow if it is the slowest of all in so many of the steps.
PERSISTENT = 0.7
# What an accelerator is at least ahead of a processor, from the catalogue's data sheets.
ACCELERATOR_FACTOR = 10.0
# Samples that a sampler adds so that all ranks have equally many.
PADDING = 1.1


@dataclass(frozen=True)
class Diagnosis:
    """What is known of one cause.

    Attributes:
        cause: its key, one of CAUSES. `title`: what it says of this run.
        cost: share of the time that it takes, 0 to 1; None if it was not measured.
        evidence: sentences with numbers. `experiment`: what would prove it wrong.
        remedies: what to do about it, the best first; of what was found.
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
        """Its cost in brackets, behind its title; nothing if it was not measured."""
        whole = "run" if self.cause == "start_up" else "time"
        return "" if self.cost is None else f" ({percent(self.cost, 0)} of the {whole})"

    @property
    def is_found(self) -> bool:
        return self.verdict == "found"


@dataclass(frozen=True)
class Result:
    """What the test of a cause says of a run.

    Attributes:
        cost, halves: share of the time that it takes, in the whole run and in either half.
        title: what it says of the run where it is found, or where `verdict` is given.
        least: it is found where it costs so much.
        verdict: where the cost does not decide.
    """

    evidence: tuple[str, ...] = ()
    cost: float | None = 0.0
    halves: tuple[float, ...] = ()
    title: str = ""
    least: float = MIN_COST
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Cause:
    """`test` gives a Result, or why it was not measured. `absent`: what is said of a run without it.

    `remedies`: what to do about it, from the run, its split and what it costs. `applies`: whether a run could have it at all.
    """

    test: Callable[[Evidence, Split], Result | str]
    absent: str
    experiment: str
    remedies: Callable[[Evidence, Split, float | None], Sequence[Remedy]]
    applies: Callable[[Evidence], bool] = lambda run: True

    def judge(self, name: str, run: Evidence, split: Split) -> Diagnosis:
        """Found if it costs enough, in either half of the run, too."""
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
    """A GPU was asked for, or is there, and the processor did the work."""
    asked = _asked_for_gpu(run)
    ran_on = run.first.start.device or ""
    used = f"ran on {ran_on or 'an unknown device'}; " + (asked or "no accelerator was asked for, and none is there")
    if not ran_on:
        return Result((used,), None, title="the run did not note its device", verdict="not measured")
    if not asked or not ran_on.startswith("cpu"):
        return Result((used,))
    computing = split.share("computation_s") or 0.0
    evidence = (
        f"{asked}, and all ranks computed on {run.first.start.device_name or 'the processor'}",
        f"computation is {percent(computing, 0)} of a step; an accelerator is at least {ACCELERATOR_FACTOR:g} times as fast",
    )
    cost = computing * (1 - 1 / ACCELERATOR_FACTOR)
    return Result(evidence, cost, title="no accelerator was used, though one was asked for")


def _no_sharding(run: Evidence, split: Split) -> Result | str:
    """Every rank works through the whole data set, or more of it than its share."""
    if run.world == 1:
        return Result(("one rank has all samples to itself",))
    coverage, work = run.coverage, run.first.work
    if coverage is None:
        return "the loop's loader was not seen: what a rank reads in an epoch is not known"
    samples = (work.steps_per_epoch or 0) * (work.rank_batch or 0)
    sampler = f", by a {work.sampler}" if work.sampler is not None else ""
    evidence = (
        f"a rank reads {samples:,.0f} samples in an epoch{sampler}; {run.world} ranks together "
        f"{coverage:.2f} times the {how_many(work.dataset_samples, 'samples')} there are",
    )
    if coverage < PADDING:
        return Result(evidence)
    title = "every worker trains the whole data set" if coverage > 0.9 * run.world else "workers train the same samples"
    return Result(evidence, 1 - 1 / coverage, title=title)


def _slow_link(run: Evidence, split: Split) -> Result | str:
    """What all ranks wait for each other's gradients, over what processes of one machine would."""
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
        rate = f", {si(float(bus), 'B/s')} of gradients if none was hidden"
    evidence = (
        f"after its own last gradient even the slowest rank waits {seconds(float(np.median(exposed_K)))} of a step of "
        f"{seconds(step_s)}{rate}",
        f"processes of one machine would wait at most {seconds(usual_s)}"
        + (f" for {si(bytes_, 'B')} of gradients" if bytes_ else ""),
    )
    return Result(evidence, cost, halves, "the link between ranks is slow for what is sent over it")


def _exposed(run: Evidence) -> Result:
    """Of a trace: communication while nothing is computed; of one rank of several it does not say whose fault it is."""
    exposed_K, step_s = run.exposed_K, run.step_time_s
    cost, halves = _steady(exposed_K, step_s, quantile=0.5)
    mean_s = float(np.mean(exposed_K))
    evidence = [f"collectives run and nothing is computed in {seconds(mean_s)} of a step of {seconds(step_s)}"]
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    whole_s = float(np.sum([device.communication_s for device in devices]))
    if whole_s:
        hidden = 1 - float(np.sum([device.exposed_s for device in devices])) / whole_s
        names = [name for name, _ in devices[0].kernels if is_communication(name)]
        longest = f"; the longest is {names[0].split('(')[0][:60]}" if names else ""
        evidence.append(f"{percent(max(0.0, hidden), 0)} of communication is hidden behind computation{longest}")
    if len(run.ranks) == run.world:
        return Result(tuple(evidence), cost, halves, "the link between ranks is slow for what is sent over it")
    evidence.append(
        f"traces of {len(run.ranks)} of {run.world} ranks were given: a slow link and ranks that come late look alike to these"
    )
    return Result(
        tuple(evidence), cost, halves, "communication is not hidden: the link is slow, or other ranks are late"
    )


def _idle_device(run: Evidence, split: Split) -> Result | str:
    """Of a trace: nothing runs on the device, and no batch is waited for; the host launches work, or waited for the device."""
    if run.captures_graph:
        return "the trace records a graph: kernels do not run while it is captured"
    idle_K = np.mean([rank.launch_s for rank in run.ranks.values()], axis=0)
    cost, halves = _steady(idle_K, run.step_time_s, quantile=0.5)
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    waited_s, launched_s = (
        float(np.mean([getattr(device, name) for device in devices])) for name in ("synchronizing_s", "launching_s")
    )
    evidence = (
        f"no kernel runs in {seconds(float(np.mean(idle_K)))} of a step of {seconds(run.step_time_s)}",
        f"of this {percent(waited_s / max(waited_s + launched_s, 1e-12), 0)} after the host had waited for the device "
        "(synchronisation), the rest while it launches work or does something else",
    )
    title = "the device is idle: " + (
        "the host waits for it, and only then launches more"
        if waited_s > launched_s
        else "the host launches work too slowly"
    )
    return Result(evidence, cost, halves, title, MIN_IDLE_COST)


def _slow_worker(run: Evidence, split: Split) -> Result | str:
    """One rank that all others wait for, step after step."""
    if run.world == 1:
        return Result(title="one rank waits for nobody", verdict="not found")
    if len(run.ranks) < 2:
        return "only one rank wrote its steps"
    if run.kind == "record":
        return "a record does not tell ranks apart"
    own_RK = np.stack([_own(rank, run.knows_waits) for rank in run.ranks.values()])
    slowest = int(np.argmax(np.median(own_RK, axis=1)))
    others_K = np.median(np.delete(own_RK, slowest, axis=0), axis=0)
    persistent = float(np.mean(own_RK.argmax(axis=0) == slowest))
    part, number = _slow_part(list(run.ranks.values()), slowest), list(run.ranks)[slowest]
    evidence = (
        f"rank {number} works {seconds(float(np.median(own_RK[slowest])))} on a step, the others "
        f"{seconds(float(np.median(others_K)))}; it is the slowest in {percent(persistent, 0)} of the steps{part}",
        *(() if run.knows_waits else ("waits were not timed: this is from the parts that do not wait",)),
    )
    if persistent < PERSISTENT:
        return Result(evidence)
    cost, halves = _steady(own_RK[slowest] - others_K, run.step_time_s, quantile=0.5)
    return Result(evidence, cost, halves, f"rank {number} is slow, and the others wait for it", MIN_WORKER_COST)


def _input_bound(run: Evidence, split: Split) -> Result | str:
    """Steps wait for their batch, on every rank."""
    inputs_RK = np.stack([rank.input_s for rank in run.ranks.values()])
    if not np.isfinite(inputs_RK).all():
        return "input was not told apart from the rest of a step"
    least_K = inputs_RK[np.argmin(np.median(inputs_RK, axis=1))]  # what one rank has more is that rank's
    cost, halves = _steady(least_K, run.step_time_s, quantile=0.5, is_mean=True)
    workers = run.first.work.workers
    loader = "" if workers is None else f"; the loader has {workers} worker{'s' * (workers != 1)}"
    evidence = f"a step waits {seconds(float(np.mean(least_K)))} of {seconds(run.step_time_s)} for its batch{loader}"
    return Result((evidence,), cost, halves, "the input does not keep up")


def _too_many_threads(run: Evidence, split: Split) -> Result | str:
    """More threads than cores: they take the processor from each other, and wait by spinning."""
    threads, cores = run.first.start.threads, run.first.start.cores or run.cores
    if not threads or not cores:
        return "threads and cores were not noted"
    evidence = f"{run.ranks_here} rank{'s' * (run.ranks_here > 1)} of {how_many(threads, 'threads')} on {how_many(cores, 'cores')}"
    if threads * run.ranks_here <= cores or (run.first.start.device or "").startswith("cuda"):
        return Result((evidence,))
    tried = [rank.what_if_threads for rank in run.ranks.values() if rank.what_if_threads is not None]
    if not tried:
        is_plain = threads * run.ranks_here >= PLAINLY_TOO_MANY * cores
        title = "threads outnumber cores; what that costs was not measured"
        return Result((evidence,), None, title=title, verdict="found" if is_plain else "not measured")
    crowded_s = float(np.median([p.seconds for p in tried]))
    fair_s = float(np.median([p.fair_seconds for p in tried]))
    trial = (
        f"forward and backward take {seconds(crowded_s)} with {how_many(threads, 'threads')} and {seconds(fair_s)} with "
        f"{tried[0].fair_threads}, tried on every rank at the end of the run"
    )
    computing_s = _computing_s(run, split)
    lost_s = computing_s - min(computing_s, fair_s * computing_s / max(crowded_s, SURELY * computing_s, 1e-9))
    return Result((evidence, trial), lost_s / run.step_time_s, title="each process has too many threads")


def _busy_host(run: Evidence, split: Split) -> Result | str:
    """Other processes had the processors, on every rank's host, while this run had no more threads than cores."""
    shares = []
    for rank in run.ranks.values():
        seconds_s, before_s, after_s = rank.end.time - rank.ready.time, rank.ready.queued_s, rank.end.queued_s
        if before_s is None or after_s is None or not np.isfinite(seconds_s):
            return "waiting for a processor was not noted"
        shares.append((after_s - before_s) / max(1e-9, seconds_s))
    evidence = f"the least of all ranks waited for a processor in {percent(min(shares), 0)} of the time"
    threads, cores = run.first.start.threads or 1, run.first.start.cores or 1
    if threads * run.ranks_here > cores:
        return Result((evidence, "its own threads outnumber the cores"))
    return Result((evidence,), min(shares), title="other processes use the host", least=MIN_BUSY_COST)


def _returned_memory(run: Evidence, split: Split) -> Result | str:
    """What is freed in a step goes back to the system, and comes again page by page in the next, on every rank."""
    faults_RK = [rank.page_faults * rank.page_fault_s for rank in run.ranks.values() if rank.page_fault_s is not None]
    if len(faults_RK) < len(run.ranks) or any(len(faults_K) == 0 for faults_K in faults_RK):
        return "page faults were not noted"
    cost, halves = _steady(np.min(faults_RK, axis=0), run.step_time_s, quantile=0.5)
    faults = float(np.median(run.first.page_faults))
    evidence = (
        f"a step takes {faults:,.0f} page faults, at {seconds(run.first.page_fault_s or 0.0)} each "
        f"{seconds(faults * (run.first.page_fault_s or 0.0))} of {seconds(run.step_time_s)}"
    )
    return Result(
        (evidence,), cost, halves, "memory goes back to the system after each step, and comes again page by page"
    )


def _small_batch(run: Evidence, split: Split) -> Result | str:
    """What a step costs whatever its batch: launches, the update, an exchange even over a fast link."""
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
    update_s = float(np.median(run.first.parts.get("update_s", np.zeros(1))))
    exchange_s = 0.0
    if run.world > 1 and run.knows_waits:
        exchange_s = min(usual_exchange_s(run), float(np.median(run.exposed_K)))
    computing_s = _computing_s(run, split)
    computing_s = min(computing_s, small_s) if run.first.what_if_threads is not None else computing_s
    fixed_s = fixed * computing_s + update_s + exchange_s
    batch = "" if run.rank_batch is None else f" of {run.rank_batch:g} samples"
    exchange = f" and {seconds(exchange_s)} of exchange" if exchange_s else ""
    evidence = (
        f"forward and backward of a rank's batch{batch} take {seconds(small_s)}, of one {times:g} times as large "
        f"{seconds(large_s)}: {percent(fixed, 0)} does not depend on the batch",
        f"nor do {seconds(update_s)} of update{exchange}, of a step of {seconds(run.step_time_s)}",
    )
    cost = fixed_s * (1 - 1 / max(1, times)) / run.step_time_s
    return Result(evidence, cost, title="the batch of a rank is too small", least=MIN_BATCH_COST)


def _launch_bound(run: Evidence) -> Result:
    """Of a profile: work is so small that launching it is what takes the time."""
    launch_K = np.mean([rank.launch_s for rank in run.ranks.values()], axis=0)
    cost, halves = _steady(launch_K, run.step_time_s, quantile=0.5)
    evidence = f"no operator of 20 µs or more runs in {seconds(float(np.median(launch_K)))} of a step of {seconds(run.step_time_s)}"
    title = "work is launched in pieces too small: the batch of a rank is too small"
    return Result((evidence,), cost, halves, title, MIN_LAUNCH_COST)


def _stall(run: Evidence, split: Split) -> Result | str:
    """A moment in which all stood still: a stopped process, a silent link, a disk that did not answer."""
    if run.kind in ("profile", "record"):
        return f"a {run.kind} does not say when each rank stood still"
    if not run.stalls.found:
        return Result()
    lost_s, longest = run.stalls.seconds, max(run.stalls.found, key=lambda one: one.seconds)
    whole_s = max(lost_s, run.wall_s or lost_s + run.step_time_s * len(run.first.step_s))
    ranks = ", ".join(map(str, longest.ranks))
    titles = {
        "stopped": f"the process of rank {ranks} was stopped, and all ranks stood still",
        "link": "a link between ranks was silent, and all ranks stood still",
        "rank": f"rank {ranks} stood still, and all waited for it",
        "waiting": "all ranks waited for an exchange that did not come: a link, or another rank, was silent",
    }
    return Result(tuple(run.stalls.sentences()), lost_s / whole_s, title=titles[longest.reason], least=MIN_STALL_COST)


def _start_up(run: Evidence, split: Split) -> Result | str:
    """What came before the first step, of the whole run."""
    startup_s, wall_s = split.startup_s.value, run.wall_s
    if startup_s is None or not wall_s:
        return split.startup_s.reason or "the run did not come to its end"
    evidence = f"{seconds(startup_s)} before the first step, {seconds(wall_s)} from there to the end"
    return Result((evidence,), startup_s / (startup_s + wall_s), title="start-up takes much of the run")


CAUSES: dict[str, Cause] = {
    "no_accelerator": Cause(
        _no_accelerator,
        "the run used what it asked for",
        "run it where `chronograd doctor` sees the accelerator; if a step takes as long, this was not the cause",
        remedies.no_accelerator,
    ),
    "stall": Cause(
        _stall,
        "no moment in which all ranks stood still",
        "run it again: a stall that comes back at the same step is the work of that step, not an accident",
        remedies.stall,
    ),
    "no_sharding": Cause(
        _no_sharding,
        "the data set is shared out over the ranks",
        "give the loader a DistributedSampler (or each rank every world-th sample): if an epoch of a rank keeps its "
        "number of steps, this was not the cause",
        remedies.no_sharding,
    ),
    "slow_link": Cause(
        _slow_link,
        "the link between ranks is not what a step waits for",
        "`chronograd calibrate links` between these hosts: if it shows the bandwidth of the data sheet, or a network with "
        "fewer parameters waits as long, the link is not the cause",
        remedies.slow_link,
    ),
    "slow_worker": Cause(
        _slow_worker,
        "no rank is slower than the others, step after step",
        "give that rank's host another rank's work (exchange the two): if the same number stays slow, it is the work or the "
        "code of that rank, not the host; if none is slow then, it was the host",
        remedies.slow_worker,
    ),
    "input_bound": Cause(
        _input_bound,
        "input keeps up",
        "train on one batch again and again: if a step takes as long, input is not the cause; else more loader workers, "
        "prefetching, or data kept in memory",
        remedies.input_bound,
    ),
    "too_many_threads": Cause(
        _too_many_threads,
        "threads do not outnumber cores",
        "set cluster.threads (OMP_NUM_THREADS) to cores over ranks: if a step takes as long, threads are not the cause",
        remedies.too_many_threads,
    ),
    "busy_host": Cause(
        _busy_host,
        "the run has its processors to itself",
        "run it again while nothing else runs (`uptime` shows the load): if a step takes as long, other processes are not the "
        "cause",
        remedies.busy_host,
    ),
    "returned_memory": Cause(
        _returned_memory,
        "memory that is freed stays with the process",
        "set MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 before Python starts (glibc): if a step takes as long, page "
        "faults are not the cause",
        remedies.returned_memory,
        lambda run: run.kind == "own loop" and not (run.first.start.device or "").startswith("cuda"),
    ),
    "small_batch": Cause(
        _small_batch,
        "the batch is large enough",
        "double training.batch: if samples per second do not rise, the batch is not the cause (the learning rate may have "
        "to follow)",
        remedies.small_batch,
    ),
    "idle_device": Cause(
        _idle_device,
        "the device is kept busy",
        "double the batch, without the profiler: if a step takes twice as long, the host is not what it waits for",
        remedies.idle_device,
        lambda run: _has_device(run),
    ),
    "start_up": Cause(
        _start_up,
        "start-up does not matter",
        "train twice as many epochs: if the time doubles, start-up is not the cause",
        remedies.start_up,
    ),
}


def _has_device(run: Evidence) -> bool:
    """Whether traces tell what devices did."""
    return all(rank.device is not None for rank in run.ranks.values())


def _steady(
    lost_K: np.ndarray, step_s: float, *, quantile: float = 0.25, is_mean: bool = False
) -> tuple[float, tuple[float, ...]]:
    """What is lost in a step as a share of it, of the whole run and of its halves.

    A low quantile for what should be there in every step, so that single hiccups do not count; a mean where lumps are
    what it is about, such as a loader that stalls now and then.
    """

    def share(part: np.ndarray) -> float:
        lost_s = float(np.mean(part)) if is_mean else float(np.quantile(part, quantile))
        return max(0.0, lost_s) / step_s

    middle = len(lost_K) // 2
    halves = (lost_K[:middle], lost_K[middle:]) if middle >= 2 else ()
    return share(lost_K), tuple(share(half) for half in halves)


def _computing_s(run: Evidence, split: Split) -> float:
    """Forward and backward of a step, the mean over ranks."""
    return (split.computation_s.value or 0.0) - float(np.median(run.first.parts.get("update_s", np.zeros(1))))


def _own(rank: Rank, knows_waits: bool) -> np.ndarray:
    """A rank's own work; without its waits, the parts in which nobody waits."""
    if knows_waits:
        return rank.own_s
    apart = [values for name, values in rank.parts.items() if name != "backward_s"]
    return np.nansum(apart, axis=0) if apart else np.zeros(len(rank.step_s))


def _slow_part(ranks: list[Rank], slowest: int) -> str:
    """In which part the slowest rank is behind most, in words."""
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
    """Why an accelerator was to be expected, in words; empty if it was not."""
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
        return f"the process was given GPUs ({given})"
    gpus = run.environment.get("gpus")
    named = [gpu.get("name", "GPU") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return f"the machine has {len(named)} × {named[0]}" if named else ""
