"""Steps and samples to a target as a function of the batch: the gain from more workers, each with its samples.

A gradient over B samples is the true gradient G plus noise of covariance Σ/B. With S_min steps at an infinite batch,

    S(B) = S_min · (1 + B_noise/B)      steps to the target
    E(B) = S(B) · B = E_min + S_min·B   samples to the target, E_min = S_min · B_noise

and the noise scale B_noise = tr(Σ)/|G|². B = B_noise is the critical batch: a run there needs twice the minimum of steps and
twice the minimum of samples. Far below it, doubling the batch halves the steps; far above, it only costs samples.

Left out, as in the published theory:
- The learning rate has to be tuned again for each batch, or large batches fall behind their curve.
- The noise scale grows while the loss falls, so one number is a mean over the way to one target.
- tr(Σ)/|G|² assumes the same curvature in all directions.
- Generalisation.

Published measurements agree with S(B) within an order of magnitude. Shallue et al. measure the same shape of S(B) on many
workloads. The critical batch depends on network, optimizer and data, and no rule predicts the best learning rate.

Source: McCandlish, Kaplan, Amodei et al., An empirical model of large-batch training, arXiv 1812.06162, sections 2.2 to 2.4,
appendix A.1. Shallue et al., Measuring the effects of data parallelism on neural network training, arXiv 1811.03600.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.errors import InputError


@dataclass(frozen=True)
class BatchModel:
    """S(B) = min_steps + min_samples / B.

    Attributes:
        min_steps: steps to the target with an infinite batch, S_min.
        min_samples: samples to the target with the smallest batch, E_min.
    Raises: InputError if one is below 0 or both are 0.
    """

    min_steps: float
    min_samples: float

    def __post_init__(self) -> None:
        both = (self.min_steps, self.min_samples)
        if not all(0 <= value < math.inf for value in both) or not any(both):
            raise InputError(
                f"minimum of {both[0]:g} steps and {both[1]:g} samples", "give numbers of at least 0, one of them above"
            )

    @classmethod
    def through(cls, steps: float, batch: float, noise_scale: float) -> BatchModel:
        """Return the model through a run of `steps` steps at batch `batch`, with a measured noise scale.

        >>> BatchModel.through(steps=300, batch=100, noise_scale=200).steps(200)
        200.0
        """
        if not (steps > 0 and batch > 0 and 0 <= noise_scale < math.inf):
            raise InputError(
                f"{steps:g} steps at batch {batch:g} with noise scale {noise_scale:g}", "give numbers above 0"
            )
        least = steps / (1 + noise_scale / batch)
        return cls(least, least * noise_scale)

    @property
    def noise_scale(self) -> float:
        """Return B_noise in samples, the critical batch; infinite if more samples in a step always reduce the steps."""
        return self.min_samples / self.min_steps if self.min_steps else math.inf

    def steps(self, batch: Any) -> Any:
        """Return the steps to the target. Arrays give arrays."""
        found = self.min_steps + self.min_samples / np.asarray(batch, dtype=float)
        return float(found) if np.ndim(found) == 0 else found

    def samples(self, batch: Any) -> Any:
        """Return the samples to the target. Arrays give arrays."""
        found = self.min_samples + self.min_steps * np.asarray(batch, dtype=float)
        return float(found) if np.ndim(found) == 0 else found

    def efficiency(self, batch: Any) -> Any:
        """Return the samples of a tiny batch over those of this batch, E_min / E(B) = 1 / (1 + B/B_noise)."""
        return self.min_samples / self.samples(batch)


def steps_factor(batch: Any, reference_batch: Any, noise_scale: Any) -> Any:
    """Return steps to a target at a batch over those at a reference batch: (1 + Bn/B) / (1 + Bn/B_ref). Arrays broadcast.

    Raises: InputError for a batch of 0 or less, or a noise scale below 0.

    >>> steps_factor(256, 128, 128), steps_factor(256, 128, 0)
    (0.75, 1.0)
    """
    b, reference, noise = (np.asarray(value, dtype=float) for value in (batch, reference_batch, noise_scale))
    if not ((b > 0).all() and (reference > 0).all() and ((noise >= 0) & np.isfinite(noise)).all()):
        raise InputError("a batch of 0 or less, or a noise scale below 0", "give samples, such as 128")
    found = (1 + noise / b) / (1 + noise / reference)
    return float(found) if np.ndim(found) == 0 else found


def gradient_moments(
    sq_small: Any, sq_big: Any, batch_small: Any, batch_big: Any, population: float | None = None
) -> tuple[Any, Any]:
    """Return unbiased estimates of |G|² and tr(Σ) from squared norms of gradients over few samples and over many.

    |G|² = (B_big·|G_big|² − B_small·|G_small|²) / (B_big − B_small) and tr(Σ) = (|G_small|² − |G_big|²) / (1/B_small −
    1/B_big). Each may be below 0: only means over many steps are useful, and the noise scale is the ratio of means, not a mean
    of ratios.

    Args:
        sq_small, sq_big: squared norms, or means over several small gradients. Arrays broadcast.
        batch_small: samples of the small gradient; for several of different sizes, the harmonic mean.
        population: training samples N, if no batch contains a sample twice. The noise is then Σ·(1/B − 1/N), which makes |G|²
            too small by tr(Σ)/N; this is added. None for infinite data, as in the source.
    """
    small, big = np.asarray(batch_small, dtype=float), np.asarray(batch_big, dtype=float)
    if not (small < big).all():
        raise InputError(
            "the small batch is not smaller than the big one", "compare a part of a batch with the whole batch"
        )
    squared = (big * sq_big - small * sq_small) / (big - small)
    trace = (np.asarray(sq_small) - sq_big) / (1 / small - 1 / big)
    return squared + (trace / population if population else 0.0), trace
