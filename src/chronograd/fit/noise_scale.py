"""The gradient noise scale of a run, from squared norms of gradients that its ranks wrote at regular steps.

The scale grows while the loss falls. At a scale Bn, a step of B samples makes as much progress as 1/(1 + Bn/B) steps without
noise. The mean in S(B) therefore weights each step by that: Σ Bn/(1 + Bn/B) over Σ 1/(1 + Bn/B). With Bn = tr(Σ)/|G|² this is
the ratio of two sums, of tr(Σ) and of |G|². Each term is divided by the mean square |G|² + tr(Σ)/B of the batch's gradient at
that stage. So no single stage needs an estimate above 0.

Source: McCandlish et al., arXiv 1812.06162, appendix A.1, for the ratio of averages; blocks, their weights and their bootstrap
are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from chronograd.predict.batch_size import gradient_moments
from chronograd.record import INTERVAL, Curve, Quantity
from chronograd.rundir import StepLine
from chronograd.words import how_many

Array = np.ndarray
FIELDS = ("grad_sq_small", "grad_sq_big", "batch_small", "batch_big")
# Steps of a block share one noise scale. MAX_BLOCKS blocks are enough for the bootstrap.
MIN_IN_BLOCK, MAX_BLOCKS, MIN_BLOCKS = 5, 20, 4
DRAWS = 1000


@dataclass(frozen=True, eq=False)
class NoiseLog:
    """Measured steps, in order; all of shape (num_measured,).

    Attributes:
        sq_small: squared norm of the gradient over `batch_small` samples, mean over ranks or parts.
        sq_big: the same for the whole batch, `batch_big`.
        population: see chronograd.predict.batch_size.gradient_moments.
    """

    steps: Array
    sq_small: Array
    sq_big: Array
    batch_small: Array
    batch_big: Array
    population: float | None = None

    @classmethod
    def of_lines(cls, ranks: Iterable[Iterable[StepLine]], population: float | None = None) -> NoiseLog:
        """Return the log from the steps of each rank, without steps that a rank lacks or whose gradient was not finite."""
        by_step: dict[int, list[list[float]]] = {}
        num_ranks = 0
        for lines in ranks:
            num_ranks += 1
            for line in lines:
                values = [getattr(line, name) for name in FIELDS]
                if all(value is not None and math.isfinite(value) for value in values):
                    by_step.setdefault(line.step, []).append([float(v) for v in values])
        whole = {step: np.array(rows) for step, rows in sorted(by_step.items()) if len(rows) == num_ranks}
        columns = [[r[:, 0].mean(), r[:, 1].mean(), 1 / (1 / r[:, 2]).mean(), r[:, 3].mean()] for r in whole.values()]
        small, big, batch_small, batch_big = np.array(columns).reshape(-1, 4).T
        return cls(np.array(list(whole), dtype=float), small, big, batch_small, batch_big, population)

    def blocks(self) -> tuple[Array, Array, Array]:
        """Return last step, |G|² and tr(Σ) of each block of steps, the latter two over the mean square of the batch's gradient."""
        squared, trace = gradient_moments(self.sq_small, self.sq_big, self.batch_small, self.batch_big, self.population)
        count = min(MAX_BLOCKS, len(self.steps) // MIN_IN_BLOCK)
        parts = np.array_split(np.arange(len(self.steps)), count)
        rows = [
            (self.steps[p[-1]], *(np.array([squared[p].mean(), trace[p].mean()]) / self.sq_big[p].mean()))
            for p in parts
        ]
        ends, squares, traces = np.array(rows).T
        return ends, squares, traces

    def quantity(self) -> Quantity:
        """Return B_noise of the whole run in samples, with the 80 % interval from a bootstrap of its blocks; or the reason
        without one.
        """
        num = len(self.steps)
        if num < MIN_BLOCKS * MIN_IN_BLOCK:
            needed = MIN_BLOCKS * MIN_IN_BLOCK
            return Quantity.missing(
                "sample", f"{num} steps measured the gradient's noise; at least {needed} are needed"
            )
        _, squares, traces = self.blocks()
        squared, trace = squares.mean(), traces.mean()
        if not (squared > 0 and trace > 0):
            what = "|G|²" if squared <= 0 else "tr(Σ)"
            return Quantity.missing(
                "sample", f"{what} is not above 0 on average over {how_many(num, 'steps')}: measure more steps"
            )
        chosen = np.random.default_rng(0).integers(0, len(squares), (DRAWS, len(squares)))
        below, above = squares[chosen].mean(axis=1), traces[chosen].mean(axis=1)
        drawn = np.where(below > 0, above / np.where(below > 0, below, 1.0), np.inf)
        low, high = np.quantile(drawn, INTERVAL, method="nearest")
        return Quantity(
            value=float(trace / squared),
            unit="sample",
            low=float(low) if np.isfinite(low) else None,
            high=float(high) if np.isfinite(high) else None,
            n=num,
            source=f"tr(Σ)/|G|² from gradients over {self.batch_small.mean():g} and {self.batch_big.mean():g} samples",
        )

    def curve(self) -> Curve:
        """Return the noise scale of each block by its last step; None if the estimate of |G|² is not above 0."""
        ends, squares, traces = self.blocks()
        scales = [float(t / g) if g > 0 and t > 0 else None for g, t in zip(squares, traces, strict=True)]
        return Curve(
            columns={"step": list(ends), "noise_scale": scales},
            units={"step": "count", "noise_scale": "sample"},
            source="gradient noise scale of the measured steps since the previous point",
        )
