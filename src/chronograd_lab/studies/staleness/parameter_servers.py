"""Runs on parameter servers and simulations of them: from the lines of learners to staleness and updates per second."""

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
# Columns of Updates, one value per gradient.
COLUMNS = ("learner", "index", "read_ns", "pulled_ns", "computed_ns", "pushed_ns", "applied_ns", "update", "staleness")
DRAWN = 40  # gradients of a run in its picture
PAUSE_S = 0.01  # length of one stop of a slow learner


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
    """Return updates in the order of server 0, without those of the beginning.

    `idle_s`: time between two updates of a learner, minus pull, compute and push of the later one.
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
    """Return the first updates of a run as a picture: an update at the end of its push, a read of weights at the start of a
    pull.

    No cycle begins before the update of the last.
    """
    first = lines[:DRAWN]
    start = min(line["time_s"] - sum(line[part] for part in PARTS) for line in first)
    rows, before = (
        [],
        dict[int, tuple[int, int]](),
    )  # for each learner, gradients so far and the time of the last update
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
    """Return the mean staleness of pushes at the times of a run's updates, if every learner pulled at the instant of its push."""
    start = min(line["time_s"] for line in lines) - 1.0
    found = of_pushes([[line["time_s"] - start for line in own] for own in _of_learners(lines)])
    return float(found.staleness[found.index > 1].mean())  # the first pulls of the updates left out are unknown


def simulated(lines: Sequence[Row], updates: int, outside: float | None = None) -> Updates:
    """Simulate learners with the durations of a run; each part is drawn independently.

    Args:
        outside: share of pull and push in which a gradient does not age, because weights are not read yet or it is already
            applied. It does not age either while a learner is idle. None to ignore all of this.
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
    """Compare each run with its simulations: one row per run, and the share of each staleness.

    A learner cannot know when in a pull weights are read, and when in a push they are updated. The first run of several
    learners gives the share of the two that lies outside; all runs use that share.
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
    """Return the longest cycle of any learner, and the number of learners that have their longest one at the same time."""
    longest = [max((sum(line[part] for part in PARTS), line["time_s"]) for line in own) for own in _of_learners(lines)]
    most, at = max(longest)
    overlapping = sum(end - seconds < at and at - most < end for seconds, end in longest)
    return {"longest_cycle_s": most, "learners_stalled": overlapping}


def _gap(lines: Sequence[Row]) -> Row:
    """Return the time from an update to the reading of weights for the learner's next gradient.

    Others update in that time, so replayed staleness is larger than counted staleness.
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
    """Return half the sum of the differences of two distributions: the share that would have to move.

    >>> total_variation({0: 0.5, 1: 0.5}, {1: 0.5, 2: 0.5})
    0.5
    """
    return sum(abs(a.get(value, 0.0) - b.get(value, 0.0)) for value in {*a, *b}) / 2
