"""Runs on parameter servers beside simulations of them: from what learners wrote to staleness and updates per second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from chronograd.record import WARMUP
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Start, merged
from chronograd.simulate.staleness import NS, Duration, Learner, Updates, of_pushes, simulate
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import grouped

COUNTED, AT_ONCE, WITH_GAP = "counted", "simulated, reads at once", "simulated, with the gap"
PARTS = ("pull_s", "compute_s", "push_s")
# Of Updates, one value a gradient.
COLUMNS = ("learner", "index", "read_ns", "pulled_ns", "computed_ns", "pushed_ns", "applied_ns", "update", "staleness")
DRAWN = 40  # gradients of a run in its picture
PAUSE_S = 0.01  # a slow learner is stopped this long at a time


@contextlib.contextmanager
def paused(run: Path, learner: int, share: float) -> Iterator[None]:
    """Stop the process of a learner of a run on this machine for this share of the time, PAUSE_S at a time."""
    is_over = threading.Event()
    thread = threading.Thread(target=_pause, args=(run, learner, share, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _pause(run: Path, learner: int, share: float, is_over: threading.Event) -> None:
    import psutil

    since, pids = time.time(), list[int]()
    while not pids:
        if is_over.wait(0.05):
            return
        starts = RunDir(run).read_steps(learner).of(Start)
        pids = [start.pid for start in starts if start.pid is not None and start.time >= since]
    with contextlib.suppress(psutil.Error):  # it has ended
        process = psutil.Process(pids[-1])
        try:
            while not is_over.wait(PAUSE_S * (1 - share) / share):
                process.suspend()
                time.sleep(PAUSE_S)
                process.resume()
        finally:
            process.resume()


def lines_of(run: RunDir) -> list[Row]:
    """Updates in the order of server 0, less those of the beginning.

    `idle_s`: time from update to update of a learner, less pull, compute and push of the later.
    """
    kept = ("step", "learner", "staleness", "time_s", *PARTS)
    found, before = [], dict[float, float]()
    for step in merged(run.logs().values()).steps:
        line = {key: step.needed(key) for key in kept}
        if line["learner"] in before:
            idle = line["time_s"] - before[line["learner"]] - sum(line[part] for part in PARTS)
            found.append({**line, "idle_s": idle})
        before[line["learner"]] = line["time_s"]
    return [line for line in found if line["step"] > WARMUP * run.job().cluster.count]


def _of_learners(lines: Sequence[Row]) -> list[list[Row]]:
    return [own for _, own in sorted(grouped(lines, "learner").items())]


def _mean_parts(lines: Sequence[Row]) -> dict[str, float]:
    return {part: float(np.mean([line[part] for line in lines])) for part in (*PARTS, "idle_s")}


def timeline(lines: Sequence[Row]) -> Updates:
    """The first of a run, drawn as if an update came at the very end of its push, and weights were read as a pull began.

    No cycle is drawn as beginning before the update of the last.
    """
    first = lines[:DRAWN]
    start = min(line["time_s"] - sum(line[part] for part in PARTS) for line in first)
    rows, before = [], dict[int, tuple[int, int]]()  # of each learner, gradients so far and when the last was applied
    for line in first:
        index, free = before.get(line["learner"], (0, 0))
        applied = round((line["time_s"] - start) * NS)
        back = np.cumsum([line[part] for part in reversed(PARTS)])
        computed, pulled, read = (max(free, applied - round(seconds * NS)) for seconds in back.tolist())
        before[line["learner"]] = index + 1, applied
        times = (read, pulled, computed, applied, applied)
        rows.append((line["learner"] + 1, index + 1, *times, line["step"], line["staleness"]))
    return Updates(**dict(zip(COLUMNS, np.array(rows, dtype=np.int64).T, strict=True)), num_waiting=0)


def replayed(lines: Sequence[Row]) -> float:
    """Mean staleness of pushes at the times of a run's updates, if every learner pulled at the instant of its push."""
    start = min(line["time_s"] for line in lines) - 1.0
    found = of_pushes([[line["time_s"] - start for line in own] for own in _of_learners(lines)])
    return float(found.staleness[found.index > 1].mean())  # first pulls of those that are left out are not known


def simulated(lines: Sequence[Row], updates: int, outside: float | None = None) -> Updates:
    """Learners with the durations of a run, each part drawn on its own.

    Args:
        outside: of pull and push the share in which a gradient does not age, as weights are not read yet or it is applied
            already; nor does it while a learner is idle. None for none of all this.
    """
    learners = []
    for own in _of_learners(lines):
        pull, compute, push, idle = (np.array([line[part] for line in own]) for part in (*PARTS, "idle_s"))
        if outside is None:
            learners.append(Learner(_samples(compute), _samples(pull), _samples(push)))
        else:
            gap = idle + outside * (pull + push)
            within = (_samples(compute), _samples((1 - outside) * pull), _samples((1 - outside) * push))
            learners.append(Learner(*within, _samples(gap)))
    return simulate(learners, updates)


def _samples(seconds: np.ndarray) -> Duration:
    return Duration("samples", tuple(np.maximum(seconds, 0.0).tolist()))


def compared(runs: Mapping[str, Sequence[Row]], updates: int) -> tuple[list[Row], list[Row]]:
    """Each run beside its simulations: one row a run, and the share of each staleness.

    Where in a pull weights are read, and where in a push they are updated, no learner can tell. The first run of several
    learners tells how much of the two lies outside; that share is then taken for all runs.
    """
    gaps = {name: _gap(lines) for name, lines in runs.items()}
    outside = next((gap["outside"] for gap in gaps.values() if gap["learners"] > 1), 0.0)
    rows, counts = [], []
    for name, lines in runs.items():
        staleness = np.array([line["staleness"] for line in lines])
        found = {
            COUNTED: shares_of(staleness),
            AT_ONCE: shares_of((at_once := simulated(lines, updates)).staleness),
            WITH_GAP: shares_of((with_gap := simulated(lines, updates, outside)).staleness),
        }
        counts += [
            {"run": name, "how": how, "staleness": value, "share": share}
            for how, shares in found.items()
            for value, share in shares.items()
        ]
        of_each = [[li["staleness"] for li in own] for own in _of_learners(lines)]
        rows.append({
            "run": name, **gaps[name], **_stall(lines), "updates": len(lines), "mean": float(staleness.mean()), "replayed": replayed(lines),
            **_mean_parts(lines),
            "last_learner": float(np.mean(of_each[-1])), "last_learner_with_gap": _last_mean(with_gap),
            "mean_at_once": at_once.mean, "mean_with_gap": with_gap.mean,
            "distance_at_once": total_variation(found[COUNTED], found[AT_ONCE]),
            "distance_with_gap": total_variation(found[COUNTED], found[WITH_GAP]),
            "updates_per_s_at_once": at_once.updates_per_s, "updates_per_s_with_gap": with_gap.updates_per_s,
        })  # fmt: skip
    return rows, counts


def _last_mean(updates: Updates) -> float:
    return float(updates.of_learner(int(updates.learner.max())).mean())


def _stall(lines: Sequence[Row]) -> Row:
    """The longest cycle of any learner, and how many learners have their own longest at the same time, itself included."""
    longest = [max((sum(line[part] for part in PARTS), line["time_s"]) for line in own) for own in _of_learners(lines)]
    most, at = max(longest)
    overlapping = sum(end - seconds < at and at - most < end for seconds, end in longest)
    return {"longest_cycle_s": most, "learners_stalled": overlapping}


def _gap(lines: Sequence[Row]) -> Row:
    """How long after its update the weights for a learner's next gradient are read.

    By then others have updated so often that replayed staleness is larger than counted.
    """
    learners = len(_of_learners(lines))
    times = sorted(line["time_s"] for line in lines)
    rate = (len(times) - 1) / (times[-1] - times[0])
    known = {"learners": learners, "updates_per_s": rate}
    if learners == 1:
        return {**known, "gap_s": None, "outside": None}
    missed = replayed(lines) - float(np.mean([line["staleness"] for line in lines]))
    gap, means = missed / (rate * (learners - 1) / learners), _mean_parts(lines)
    share = (gap - means["idle_s"]) / (means["pull_s"] + means["push_s"])
    return {**known, "gap_s": gap, "outside": min(1.0, max(0.0, share))}


def shares_of(staleness: np.ndarray | Sequence[int]) -> dict[int, float]:
    values, counts = np.unique(np.asarray(staleness), return_counts=True)
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def total_variation(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Half the sum of the differences of two distributions: the share that would have to move.

    >>> total_variation({0: 0.5, 1: 0.5}, {1: 0.5, 2: 0.5})
    0.5
    """
    return sum(abs(a.get(value, 0.0) - b.get(value, 0.0)) for value in {*a, *b}) / 2
