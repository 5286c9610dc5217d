"""Predicted steps of a device, scaled by measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chronograd.large.step import StepTime


@dataclass(frozen=True)
class Scale:
    """The factor of a device and its software on predicted steps, and the standard deviation of its logarithm."""

    factor: float
    sigma_log: float

    @classmethod
    def of(cls, steps: Sequence[StepTime], measured_s: Sequence[float]) -> Scale:
        """Return the factor that fits measured steps, at least one.

        The logarithm of measured / predicted is that of the factor, with the predictions' `shared_sigma_log`, plus an error of
        each step with the rest of their `sigma_log`. The factor is the mean of its normal posterior.
        """
        weights = [1 / _own_variance(step) for step in steps]
        errors = [math.log(seconds / step.step_s) for step, seconds in zip(steps, measured_s, strict=True)]
        precision = sum(weights) + 1 / steps[0].shared_sigma_log ** 2
        mean = sum(weight * error for weight, error in zip(weights, errors, strict=True)) / precision
        return cls(math.exp(mean), precision**-0.5)

    def applied(self, step: StepTime) -> StepTime:
        """Return a prediction with its seconds scaled, and the sigma that remains."""
        return replace(
            step,
            step_s=self.factor * step.step_s,
            parts={name: self.factor * seconds for name, seconds in step.parts.items()},
            shared_sigma_log=self.sigma_log,
            sigma_log=math.hypot(math.sqrt(_own_variance(step)), self.sigma_log),
        )


def _own_variance(step: StepTime) -> float:
    return step.sigma_log**2 - step.shared_sigma_log**2
