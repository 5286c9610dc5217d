"""Step time by number of devices, from a few timed steps.

Two models. `scaled_step_s` needs one device and one larger count. `fit_step` needs a table of steps by local batch and
placement, and gives a step model with nine numbers:

    step    = (compute^γ + sync^γ)^(1/γ)
    compute = (c0 + c1 · local batch) · m^e               m replicas on the fullest node
    sync    = l0 + l1 · (replicas - 2)                    on one node; nothing for one replica
    sync    = s0 · (1 + s1 · (m - 1) · p) · (1 + s2 · log2 nodes)    across nodes; p is 1 except for two nodes

γ = 1 adds computation and synchronisation; a large γ hides the shorter behind the longer. Replicas of a node share its network
card, hence m. Two nodes have a separate factor, because they were slower than three or four nodes with the same number of
replicas each (Pollux's table, T4 machines). We do not know the reason.

Left out: memory that runs out, gradient accumulation, uneven batches. Source: the combination and the synchronisation on one
node are those of Qiao et al., Pollux, OSDI 2021, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.optimize import least_squares

from chronograd.errors import InputError
from chronograd.fit.device import soft_l1

Array = np.ndarray
# Log errors beyond this count linearly, not squared.
_ROBUST_AT = 0.1
_FOLDS = 5


def scaled_step_s(one_s: float, timed_s: float, timed_ranks: int, ranks: int, across_nodes: bool) -> float:
    """Return the step time in seconds on `ranks` devices from those on one and on `timed_ranks`; the batch per device is
    constant.

    The time of the exchange grows with its traffic. Within one node this is 2(n - 1)/n. Across nodes it is log2 n, the depth of
    a tree and the expected wait for the last of n. The timed step sets its size. A timed step that is shorter than that of one
    device counts as no exchange.

    Args:
        one_s, timed_s: step times; `timed_ranks` at least 2.
        across_nodes: whether the exchange leaves the node at any relevant count.
    Leaves out: a change of algorithm or link with the count, and a slow input pipeline.
    Raises: InputError if a time is not positive or a count too small.

    >>> round(scaled_step_s(1.0, 1.1, 2, 4, across_nodes=False), 3)
    1.15
    """
    if not (one_s > 0 and timed_s > 0):
        raise InputError(f"step times are {one_s} and {timed_s} s", "give positive times")
    if timed_ranks < 2 or ranks < 1:
        raise InputError(f"{timed_ranks} timed and {ranks} wanted ranks", "time at least two ranks")
    added = max(0.0, timed_s - one_s)
    return one_s + added * _growth(ranks, across_nodes) / _growth(timed_ranks, across_nodes)


def _growth(ranks: int, across_nodes: bool) -> float:
    return math.log2(ranks) if across_nodes else 2 * (ranks - 1) / ranks


@dataclass(frozen=True)
class Steps:
    """Steps of one network: arrays of shape (num_steps,). `seconds` may be empty for steps to predict."""

    local_batch: Array
    nodes: Array
    replicas: Array
    most_per_node: Array
    seconds: Array

    def chosen(self, mask: Array) -> Steps:
        return Steps(*(getattr(self, f.name)[mask] for f in fields(self)))


@dataclass(frozen=True)
class StepModel:
    """Natural logarithms of the numbers in the module's formulas, except that `e` is stored directly and `gamma` is log(γ - 1).

    `half_width80` is the 80th percentile of the log error on placements left out of the fit.
    """

    c0: float
    c1: float
    e: float
    gamma: float
    l0: float
    l1: float
    s0: float
    s1: float
    s2: float
    pair: float
    half_width80: float = math.nan

    def seconds(self, steps: Steps) -> Array:
        """Return predicted step times, shape (num_steps,)."""
        most, nodes = steps.most_per_node, steps.nodes
        compute = (np.exp(self.c0) + np.exp(self.c1) * steps.local_batch) * most**self.e
        pair = 1 + np.where(nodes == 2, np.exp(self.pair), 0.0)
        near = np.exp(self.l0) * (1 + np.exp(self.l1) * np.maximum(steps.replicas - 2, 0))
        far = np.exp(self.s0) * (1 + np.exp(self.s1) * (most - 1) * pair) * (1 + np.exp(self.s2) * np.log2(nodes))
        sync = np.where(steps.replicas <= 1, 0.0, np.where(nodes > 1, far, near))
        power = 1 + np.exp(self.gamma)
        longest = np.maximum(compute, sync)  # factored out so that a large power cannot overflow
        return np.asarray(longest * ((compute / longest) ** power + (sync / longest) ** power) ** (1 / power))


_NAMES = tuple(f.name for f in fields(StepModel) if f.name != "half_width80")
# Standard deviations of the priors: wide where the data decide, tighter where a table may lack such placements.
_SD = np.array([3, 3, 0.2, 1, 3, 1, 2, 1, 1, 1], dtype=float)


def fit_step(steps: Steps, groups: Sequence[str] | None = None) -> StepModel:
    """Fit the step model to timed steps: robust least squares of log errors, with weak priors.

    Args:
        groups: one name per step, such as its placement; full groups are left out to measure the error.
    Raises: InputError if there are fewer than ten steps or a time is not positive.
    """
    if len(steps.seconds) < 10 or not (steps.seconds > 0).all():
        raise InputError(f"{len(steps.seconds)} steps, or times not positive", "give at least ten positive step times")
    model = _solve(steps)
    if groups is None:
        return model
    names = sorted(set(groups))
    fold = np.array([names.index(g) % _FOLDS for g in groups])
    errors = []
    for k in range(min(_FOLDS, len(names))):
        out = fold == k
        if (~out).sum() >= 10 and out.any():
            errors.append(np.log(_solve(steps.chosen(~out)).seconds(steps.chosen(out)) / steps.seconds[out]))
    return replace(model, half_width80=float(np.quantile(np.abs(np.concatenate(errors)), 0.8)) if errors else math.nan)


def _solve(steps: Steps) -> StepModel:
    fastest = float(np.log(steps.seconds.min()))
    per_sample = float(np.log(np.median(steps.seconds / steps.local_batch)))
    start = np.array([fastest - 0.7, per_sample - 0.7, 0.0, 0.5, fastest - 3, -1, fastest, -1, -1, -1])
    measured = np.log(steps.seconds)

    def residuals(x: Array) -> Array:
        error = (np.log(StepModel(*x).seconds(steps)) - measured) / _ROBUST_AT
        return np.concatenate([soft_l1(error), (x - start) / _SD])

    return StepModel(*least_squares(residuals, start, max_nfev=200).x.tolist())
