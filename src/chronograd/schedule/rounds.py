"""Rounds: shares of the time become jobs that run until the next decision.

A policy of time shares states the part of the time for which each job should run at its requested size. Every round, each job earns
credit for its share, and spends it while it runs. The jobs with the most credit run next, as in deficit round robin. A job without a
share does not run.

Source: Narayanan et al., Gavel, OSDI 2020, section 5, whose priority is the ratio of the share to the rounds received. Shreedhar and
Varghese, Efficient fair queuing using deficit round robin, SIGCOMM 1995.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import brentq

from chronograd.schedule.jobs import NOTHING, JobState, Moment, Sizes, pack

_LEAST = 1e-9  # smaller shares are rounding of a solver


def next_round(moment: Moment, shares: Mapping[int, float]) -> Sizes:
    """Return the jobs of the next round, at their requested sizes. Keeps the credit of each job in its state."""
    for state in moment.jobs:
        passed_s = max(0.0, moment.now_s - state.decided_s)
        state.credit_s += passed_s * (state.share - (state.size != NOTHING))
        state.share, state.decided_s = shares.get(state.index, 0.0), moment.now_s
    quantum_s = moment.interval_s or 1.0

    def order(state: JobState) -> tuple[float, bool, float]:
        credit_s = state.credit_s + quantum_s * state.share
        return -round(credit_s, 6), state.size == NOTHING, state.job.arrival_s

    return pack(sorted((state for state in moment.jobs if state.share > _LEAST), key=order), moment.pool)


def shares_at(needed: Callable[[float], np.ndarray], jobs: Sequence[JobState], gpus: int) -> dict[int, float]:
    """Return the shares at the level at which they take all GPUs, each at most 1.

    Args:
        needed: the shares at a level above 0, which rise with it.
    """
    sizes = np.array([state.gpus for state in jobs])
    if sizes.sum() <= gpus:
        return {state.index: 1.0 for state in jobs}

    def excess(log: float) -> float:
        """Return the GPUs that the shares at a level take in addition to those of the cluster."""
        return float(sizes @ np.minimum(needed(math.exp(log)), 1.0)) - gpus

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    shares = np.minimum(needed(math.exp(brentq(excess, low, high, xtol=1e-9))), 1.0)
    return {state.index: float(share) for state, share in zip(jobs, shares, strict=True)}
