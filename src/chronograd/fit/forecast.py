"""A learning curve's forecast: which family explains it best, what it will be, and when it will reach a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.fit.learning_curves import LearningCurve
from chronograd.fit.loss import MIN_POINTS, LossModel, best_family, family_errors, fit_loss


@dataclass(frozen=True)
class At:
    """The value expected at a step, with the middle 80 %; `seen` is what it was, where the curve goes so far."""

    step: float
    value: float
    low: float
    high: float
    seen: float | None


@dataclass(frozen=True)
class Reached:
    """When a value will be reached, with the middle 80 %; None: never, or beyond what can be told. `seen`: when it was."""

    value: float
    step: float | None
    low: float | None
    high: float | None
    seen: float | None


@dataclass(frozen=True, eq=False)
class Forecast:
    """What the points of a curve up to `until` say of the rest.

    Values are of the curve's metric: accuracies again, where it is one.

    Attributes:
        started: the drop of the learning rate since which points were fitted; 0 if there was none.
        errors: by family, of its forecast of the last quarter of the fitted points, over the largest value.
    """

    curve: LearningCurve
    model: LossModel
    until: float
    started: float
    errors: dict[str, float]
    at: tuple[At, ...]
    reached: Reached | None

    def data(self) -> dict[str, Any]:
        return {
            "name": self.curve.name,
            "metric": self.curve.metric,
            "unit": self.curve.unit,
            "points": self.model.num_points,
            "until": self.until,
            "since": self.started,
            "family": self.model.family,
            "coefficients": self.model.coefficients,
            "errors": self.errors,
            "at": [vars(one) for one in self.at],
            "reached": None if self.reached is None else vars(self.reached),
        }


def forecast(
    curve: LearningCurve,
    fraction: float = 1.0,
    family: str | None = None,
    target: float | None = None,
    at: Sequence[float] = (),
) -> Forecast:
    """Fit the first `fraction` of a curve, since the last drop of its learning rate, and forecast.

    Args:
        family: None takes the best on held-out points of the fitted part.
        target: a loss, or an accuracy, to be reached. `at`: steps; the last of the curve and the planned one are added.
    Leaves out: drops that are still to come, after which a curve falls anew.
    Raises: InputError for too few points, or a target that is no loss or accuracy.
    """
    count = int(fraction * len(curve.steps))
    if count < MIN_POINTS:
        raise InputError(
            f"{count} points of {curve.name} do not make a curve", f"wait for {MIN_POINTS}, or give a larger --fraction"
        )
    if target is not None and not (0 <= target <= 1 if curve.metric == "accuracy" else 0 <= target < np.inf):
        raise InputError(f"a target {curve.metric} of {target}", "give an accuracy from 0 to 1, or a loss from 0")
    early = curve.first(count)
    started, kept = early.since_last_drop(MIN_POINTS)
    model = fit_loss(kept.steps, kept.values, family or best_family(kept.steps, kept.values))
    ends = [curve.steps[-1], *([curve.planned] if curve.planned else [])]
    steps = sorted({float(step) for step in (*at, *ends) if step > started})
    return Forecast(
        curve, model, float(early.steps[-1]), started, family_errors(kept.steps, kept.values),
        tuple(_at(curve, model, started, step) for step in steps),
        None if target is None else _reached(curve, model, started, target),
    )  # fmt: skip


def _shown(curve: LearningCurve, value: float) -> float:
    return 1 - value if curve.metric == "accuracy" else value


def _at(curve: LearningCurve, model: LossModel, started: float, step: float) -> At:
    low, high = sorted(_shown(curve, bound) for bound in model.interval(step - started))
    seen = curve.values[curve.steps == step]
    was = _shown(curve, float(seen[0])) if len(seen) else None
    return At(step, _shown(curve, model.at(step - started)), low, high, was)


def _reached(curve: LearningCurve, model: LossModel, started: float, target: float) -> Reached:
    """Of the expected curve; one that was reached before the end of the fitted points is told by `seen`."""
    value = _shown(curve, target)
    is_there = np.flatnonzero(curve.values <= value)
    seen = float(curve.steps[is_there[0]]) if len(is_there) else None
    low, high = model.steps_to_interval(value)
    step, low, high = (None if k is None else k + started for k in (model.steps_to(value), low, high))
    return Reached(target, step, low, high, seen)
