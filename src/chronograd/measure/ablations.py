"""Ablations at the end of a run, outside its clock: the last batch with fewer threads, and a larger batch.

Both run forward and backward of the last batch, without exchange or update, on every rank at once. Threads are tried
only where ranks have more than there are cores; a batch four times as large only where a step is short.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from chronograd.measure import environment
from chronograd.rundir.steps import Line, WhatIfBatch, WhatIfThreads

# Forward and backward of the last batch, its samples repeated so many times.
Work = Callable[[int], None]
TIMES_LARGER = 4
ROUNDS, BUDGET_S = 8, 3.0
# A forward and backward longer than this is not made of launches and locks.
LONGEST_S = 0.5


def write_ablations(
    work: Work, device: torch.device, ranks_here: int, write: Callable[[Line], None], step: int = 0
) -> None:
    """Run what applies, and write WhatIfThreads or WhatIfBatch for each. What fails is not written.

    The larger batch has no more threads than cores. Leaves the number of threads as it was.
    """
    threads = torch.get_num_threads()
    fair = max(1, environment.cores() // ranks_here)
    try:
        once_s = _seconds_of(work, 1, device)
        if device.type == "cpu" and threads > fair:
            # One after the other: ranks that changed in turn would meet each other's crowd.
            (crowded_s,) = _in_turn(once_s, lambda: _seconds_of(work, 1, device))
            torch.set_num_threads(fair)
            (fair_s,) = _in_turn(once_s, lambda: _seconds_of(work, 1, device))
            means = [statistics.fmean(seconds) for seconds in (crowded_s, fair_s)]
            write(WhatIfThreads(threads=threads, seconds=means[0], fair_threads=fair, fair_seconds=means[1]))
            once_s = means[1]
        if once_s < LONGEST_S:
            sizes = (partial(_seconds_of, work, times, device) for times in (1, TIMES_LARGER))
            small_s, large_s = _in_turn((1 + TIMES_LARGER) * once_s / 2, *sizes)
            # The least of each: others may use the machine.
            write(WhatIfBatch(times=TIMES_LARGER, seconds=min(small_s), larger_seconds=min(large_s)))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return  # such as no memory for a larger batch, or a network that takes one size only
    finally:
        torch.set_num_threads(threads)


def _in_turn(once_s: float, *experiments: Callable[[], float]) -> list[list[float]]:
    """Seconds of each experiment, in turn so that they meet the same machine; fewer rounds where one takes long."""
    rounds = max(2, min(ROUNDS, int(BUDGET_S / max(once_s, 1e-6) / len(experiments))))
    for experiment in experiments:
        experiment()
    found = [[experiment() for experiment in experiments] for _ in range(rounds)]
    return [list(seconds) for seconds in zip(*found, strict=True)]


def _seconds_of(work: Work, times: int, device: torch.device) -> float:
    start_s = time.perf_counter()
    work(times)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s
