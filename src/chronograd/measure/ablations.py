"""Ablations at the end of a run, outside its clock: the last batch with fewer threads, and a larger batch.

Both run forward and backward of the last batch, without exchange or update, on every rank at once. Fewer threads are tried only
if the ranks have more threads than cores; a batch four times as large only if a step is short.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from chronograd.measure import environment
from chronograd.rundir.steps import Line, WhatIfBatch, WhatIfThreads

# Forward and backward of the last batch, with its samples repeated the given number of times.
Work = Callable[[int], None]
TIMES_LARGER = 4
ROUNDS = 8
BUDGET_S = 3.0
# In a longer forward and backward, launches and locks are negligible.
LONGEST_S = 0.5


def write_ablations(
    work: Work, device: torch.device, ranks_here: int, write: Callable[[Line], None], step: int = 0
) -> None:
    """Run the ablations that apply, and write WhatIfThreads or WhatIfBatch for each. A failed one is not written.

    The larger batch has no more threads than cores. The number of threads is restored.
    """
    threads = torch.get_num_threads()
    fair = max(1, environment.cores() // ranks_here)
    try:
        once_s = _seconds_of(work, 1, device)
        if device.type == "cpu" and threads > fair:
            # Not alternating: otherwise one rank's fair turn would overlap with the crowded turn of another.
            (crowded_s,) = _in_turn(once_s, lambda: _seconds_of(work, 1, device))
            torch.set_num_threads(fair)
            (fair_s,) = _in_turn(once_s, lambda: _seconds_of(work, 1, device))
            means = [statistics.fmean(seconds) for seconds in (crowded_s, fair_s)]
            write(WhatIfThreads(threads=threads, seconds=means[0], fair_threads=fair, fair_seconds=means[1]))
            once_s = means[1]
        if once_s < LONGEST_S:
            sizes = (partial(_seconds_of, work, times, device) for times in (1, TIMES_LARGER))
            small_s, large_s = _in_turn((1 + TIMES_LARGER) * once_s / 2, *sizes)
            # The minimum of each, because other programs may use the machine.
            write(WhatIfBatch(times=TIMES_LARGER, seconds=min(small_s), larger_seconds=min(large_s)))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return  # such as too little memory for a larger batch, or a network with a fixed input size
    finally:
        torch.set_num_threads(threads)


def _in_turn(once_s: float, *experiments: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of each experiment, alternating so that all see the same machine load; fewer rounds if one takes long."""
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
