"""The forecast of a run from its own points: the mean of three families of curves, with the errors of their earlier forecasts.

The mean is that of the logarithms, with equal weights: which family fits best so far says little about the rest. The interval
comes from paths. Each path follows one family, drifts from it, and has the scatter of the points. The drift is that of
forecasts from earlier points to the last one, in log(value) per √log(step / last step); with so few of them, Student's t.

docs/convergence.md has its errors on public logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chronograd.forecast.curves import FAMILIES, TINY, Array
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.loss import MIN_POINTS, LossModel, fit_loss

ORIGINS = (0.4, 0.6, 0.8)  # shares of the points from which the last one is forecast
NUM_PATHS = 300
# Drift over log(first / last value), where no origin has enough points. From half of the curves of small image networks.
DRIFT = 0.2


@dataclass(frozen=True, eq=False)
class OwnCurve:
    """Curves of several families, fitted to the same points.

    Attributes:
        until: the last fitted step.
        hindsight: by number of points, the log(value) now as forecast from the first of them.
        drift: see above. scatter: deviations of log(value) of the last two thirds of the points from the middle.
    """

    models: tuple[LossModel, ...]
    until: float
    hindsight: dict[int, float]
    drift: float
    scatter: Array

    def middle(self, places: Array) -> Array:
        """Return log(value) at each place, the mean of the families."""
        return np.asarray(np.mean([_log(model.curve(places)) for model in self.models], axis=0))

    def paths(self, places: Array, steps: Array) -> Array:
        """Return log(value) of possible runs at the steps, which have these places on the scale of the fit.

        Returns: shape (NUM_PATHS, num_steps).
        """
        curves = np.array([_log(model.curve(places)) for model in self.models])
        ahead = np.sqrt(np.maximum(0.0, np.log(steps / self.until)))
        drifts, random = self._drifts, np.random.default_rng(1)
        noise = random.choice(self.scatter, (NUM_PATHS, len(steps)))
        return np.asarray(curves[np.arange(NUM_PATHS) % len(curves)] + drifts[:, None] * ahead + noise)

    @cached_property
    def _drifts(self) -> Array:
        freedom = max(1, len(self.hindsight) or len(ORIGINS))
        return self.drift * np.random.default_rng(0).standard_t(freedom, NUM_PATHS)


def own_curve(curve: LearningCurve, started: float = 0.0, families: Sequence[str] = tuple(FAMILIES)) -> OwnCurve:
    """Fit the families to all points of a curve, and to its first parts.

    Args:
        started: the step that the curve counts from.
    """
    places, logs, count = curve.places(curve.steps), _log(curve.values), len(curve.steps)

    def fitted(num: int) -> tuple[LossModel, ...]:
        return tuple(fit_loss(places[:num], curve.values[:num], family, draws=0) for family in families)

    hindsight, errors = {}, []
    for num in sorted({int(share * count) for share in ORIGINS}):
        if MIN_POINTS <= num < count:
            hindsight[num] = float(np.mean([_log(model.curve(places[-1:])) for model in fitted(num)]))
            ahead = math.log((curve.steps[-1] + started) / (curve.steps[num - 1] + started))
            errors.append((hindsight[num] - logs[-1]) / math.sqrt(ahead))
    drift = math.sqrt(np.mean(np.square(errors))) if errors else DRIFT * abs(float(logs[0] - logs[-1]))
    models, late = fitted(count), slice(count // 3, None)
    scatter = logs[late] - np.mean([_log(model.curve(places[late])) for model in models], axis=0)
    return OwnCurve(models, float(curve.steps[-1]) + started, hindsight, drift, scatter - scatter.mean())


def _log(values: Array) -> Array:
    return np.asarray(np.log(np.maximum(values, TINY)))
