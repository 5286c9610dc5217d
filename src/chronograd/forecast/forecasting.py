"""A learning curve's forecast: which family explains it best, what it will be, when it reaches a target or has converged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.convergence import (
    SHARES,
    Convergence,
    forecast_convergence,
    levels_ahead,
    why_unlike,
    zero_error,
    zero_reaches,
)
from chronograd.forecast.curves import TINY, Array
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.loss import MIN_POINTS, LossModel, best_of, family_errors, fit_loss
from chronograd.forecast.pace import Pace, pace_of
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.record import Z80
from chronograd.units import number
from chronograd.words import how_many

# Of log(level) beyond what runs differ by: the noise of a level that is read from few points.
# An error's is half of the scatter of its own last points about the fit, and at most this; a loss is given all of it.
LEVEL_SIGMA, SHARE_OF_SCATTER = 0.1, 0.5
# A run that is like no known one may fall further than its own curve where the rate falls: by these shares of log(first / now),
# at the lower bound and in the middle. We chose both by eye on fine-tuned language models, and did not fit them.
MAX_GAINED, GAINED = 0.25, 0.05
# Deviation of the log of a later value from such a run's own curve, over log(first / now) · sqrt(log(step / last step)). Fitted to half of
# the curves of small image networks that are unlike all others (907 values): 83 % of the values of either half are inside.
# `python -m benchmarks.convergence --coverage` counts them again.
OWN_SPREAD = 0.2
FAMILY_WORDS = {
    "inverse": "Optimus' curve",
    "power": "a power law",
    "exponential": "an exponential",
    "last": "the last value",
}
NO_WORSE = 2.0  # times the error of the best family on held-out points: as likely as that
NUM_STEPS = 400  # tried between now and the planned end
MAX_HELD_OUT = 100  # points after the fitted ones that a forecast is held against, evenly chosen


@dataclass(frozen=True)
class At:
    """The value expected at a step, with the 80 % interval; `seen` is what it was, where the curve goes so far."""

    step: float
    value: float
    low: float
    high: float
    seen: float | None


@dataclass(frozen=True)
class Reached:
    """When a value will be reached, with the 80 % interval; None: never, or beyond what can be told. `seen`: when it was."""

    value: float
    step: float | None
    low: float | None
    high: float | None
    seen: float | None


@dataclass(frozen=True, eq=False)
class Course:
    """A curve's family until `ahead`, and from there on published runs, if some are like it, or its own power law.

    Attributes:
        kept: the points that were fitted, their steps counted from `started`: the drop of the learning rate before them, or 0.
        errors: by family, of its forecast of the last quarter of the fitted points, over the largest value.
        until: the last step that was fitted.
        ahead: the step after which the rate falls on, and published runs rather than the curve are asked; None if it does not.
        unlike: why no known run says how this one goes on; None where some do, or where `ahead` is None.
    """

    curve: LearningCurve
    kept: LearningCurve
    model: LossModel
    errors: dict[str, float]
    started: float
    until: float
    ahead: float | None
    known: PublishedCurves
    unlike: str | None

    def expected(self, step: float) -> At:
        if self.ahead is None or step <= self.ahead or self.unlike:
            value, low, high = (float(bound[0]) for bound in self._own(np.array([step])))
        else:
            value, low, high = self._as_published(step)
        low, high = sorted((self._shown(low), self._shown(high)))
        seen = self.curve.values[self.curve.steps == step]
        return At(step, self._shown(value), low, high, self._shown(float(seen[0])) if len(seen) else None)

    def _own(self, steps: Array) -> tuple[Array, Array, Array]:
        """Return the curve's own family and its 80 % bounds.

        For a run that is like no known one they widen with the distance, and the lower one lies further down where the rate falls.
        """
        places = self.place(steps)
        low, high = self.model.bounds(places)
        fallen = max(0.0, -float(np.log(max(self._fallen(), TINY))))
        gain = fallen * self._rate_fallen(steps)
        middle = self.model.curve(places) * np.exp(-GAINED * gain)
        low = np.minimum(low, middle) * np.exp(-MAX_GAINED * gain)
        if not self.unlike:
            return middle, low, high
        sigma = OWN_SPREAD * fallen * np.sqrt(np.maximum(0.0, np.log(steps / self.until)))
        down, up = (
            np.hypot(np.log(np.maximum(a, TINY) / np.maximum(b, TINY)), Z80 * sigma)
            for a, b in ((middle, low), (high, middle))
        )
        return middle, middle * np.exp(-down), middle * np.exp(up)

    def place(self, steps: Array) -> Array:
        """Steps as the family counts them: since `started`; of an annealed run that is like no known one, at the full rate."""
        counts_rates = _counts_rates(self.curve, self.unlike)
        return self.curve.schedule.at_full_rate(steps) if counts_rates else steps - self.started

    def _rate_fallen(self, steps: Array) -> Array:
        """The share of its fall that the rate takes from `until` to each step: 1 after a drop, the progress where it is annealed, and
        0 until `until`."""
        schedule = self.curve.schedule
        if self.ahead is None:
            return np.zeros(len(steps))
        if schedule.kind == "multi_step":
            return np.where(steps > self.ahead, 1.0, 0.0)
        return np.maximum(0.0, schedule.progress(steps) - schedule.progress(np.array([self.until])))

    def _as_published(self, step: float) -> tuple[float, float, float]:
        level = self._level()
        ratios, weights = self._ratios(np.array([step]))
        low, middle, high = weighted_quantiles(level * ratios[:, 0], weights, SHARES)
        spread = float(np.exp(Z80 * self._level_sigma()))
        return middle, low / spread, high * spread

    def reaches(self, target: float) -> Reached:
        """Of the expected curve; one that was reached before the end of the fitted points is told by `seen`."""
        value = self._shown(target)
        is_there = np.flatnonzero(self.curve.values <= value)
        seen = float(self.curve.steps[is_there[0]]) if len(is_there) else None
        if self.unlike:
            step, low, high = self._reached_by_its_own(value)
            return Reached(target, step, low, high, seen)
        found = [self._steps_to(value), *self.model.steps_to_interval(value)]
        step, low, high = (None if k is None else k + self.started for k in found)
        low, high = (
            low if low is None or step is None else min(low, step),
            high if step is None or high is None else max(high, step),
        )
        if self.ahead is not None and (step is None or step > self.ahead):
            step, low, high = self._reached_as_published(value)
            zero = self.started + zero_reaches(value, self.kept.steps, self.kept.values)
            if self.curve.metric == "loss" and self.until < zero < (step or self._end()):
                step, low = zero, min(low or zero, zero)
        return Reached(target, step, low, high, seen)

    def _steps_to(self, value: float) -> float | None:
        """As the family has it; of a loss that may as well fall to 0, by the line to it where that is sooner."""
        own, kept = self.model.steps_to(value), self.kept
        is_likely = zero_error(kept.steps, kept.values) <= NO_WORSE * min(self.errors.values(), default=0.0)
        if self.curve.metric != "loss" or not is_likely:
            return own
        zero = zero_reaches(value, kept.steps, kept.values)
        return own if zero <= 0 or zero >= (own or np.inf) else zero

    def _reached_by_its_own(self, value: float) -> list[float | None]:
        """Return when its own curve and its bounds come down to a value, until the planned end; None for never."""
        steps = np.linspace(self.until, self._end(), NUM_STEPS)[1:]
        there = [np.flatnonzero(bound <= value) for bound in self._own(steps)]
        return [float(steps[at[0]]) if len(at) else None for at in there]

    def _reached_as_published(self, value: float) -> list[float | None]:
        """When runs of such a schedule had fallen as far as it is from here to the value; None where they never did."""
        steps = np.linspace(self.until, self._end(), NUM_STEPS)[1:]
        ratios, weights = self._ratios(steps)
        is_there = self._level() * ratios <= value
        firsts = np.where(is_there.any(1), steps[is_there.argmax(1)], np.inf)
        low, middle, high = weighted_quantiles(firsts, weights, SHARES)
        return [k if np.isfinite(k) else None for k in (middle, low, high)]

    def _ratios(self, steps: Array) -> tuple[Array, Array]:
        level = self._level() if self.curve.metric == "accuracy" else None
        return levels_ahead(self.curve.schedule, self.until, self._fallen(), steps, self.known, level)

    def _end(self) -> float:
        return self.curve.schedule.planned or 2 * self.until

    def _level(self) -> float:
        """Now, without noise: the curve's family where it was fitted."""
        return float(self.model.curve(self.place(np.array([self.until])))[0])

    def _level_sigma(self) -> float:
        """Of log(level): what the last third of the fitted points tells of its noise."""
        if self.curve.metric == "loss":
            return LEVEL_SIGMA
        last = max(MIN_POINTS, len(self.kept.steps) // 3)
        seen, fitted = self.kept.values[-last:], self.model.curve(self.place(self.kept.steps[-last:] + self.started))
        residuals = np.log(np.maximum(seen, TINY) / np.maximum(fitted, TINY))
        return min(LEVEL_SIGMA, SHARE_OF_SCATTER * float(np.sqrt(np.mean(residuals**2))))

    def _fallen(self) -> float:
        return self._level() / max(float(self.curve.values[0]), TINY)

    def _shown(self, value: float) -> float:
        return 1 - value if self.curve.metric == "accuracy" else value


@dataclass(frozen=True, eq=False)
class Forecast(Course):
    """What the points of a curve up to `until` say of the rest.

    Values are of the curve's metric: accuracies again, where it is one.

    Attributes:
        earlier: steps, and when convergence was forecast from the points up to each.
    """

    at: tuple[At, ...]
    reached: Reached | None
    converged: Convergence
    earlier: tuple[tuple[float, Convergence], ...]

    @cached_property
    def held_out(self) -> tuple[At, ...]:
        """The points that are known and were not fitted, each with what was forecast for it."""
        later = self.curve.steps[self.curve.steps > self.until]
        chosen = np.unique(np.linspace(0, len(later) - 1, min(len(later), MAX_HELD_OUT)).astype(int))
        return tuple(self.expected(float(later[i])) for i in chosen)

    @cached_property
    def pace(self) -> Pace | None:
        """How long an epoch or step took in the fitted part; None where the curve has no times."""
        num = int((self.curve.steps <= self.until).sum())
        early = self.curve.first(num)
        return pace_of(early.steps, early.times, self.until)

    @property
    def basis(self) -> str:
        """What the forecast rests on, in words."""
        own = f"its own points since {self.curve.unit} {self.started:,.10g}" if self.started else "its own points"
        here = f"{own}, as {FAMILY_WORDS[self.model.family]}"
        if self.unlike:
            of_rates = " in the sum of its learning rates" if _counts_rates(self.curve, self.unlike) else ""
            return f"forecast from {here}{of_rates}, not by other runs: {self.unlike}"
        if self.ahead is None:
            return f"forecast from {here}"
        is_loss = self.curve.metric == "loss" and bool(self.known.losses)
        runs = len(self.known.losses if is_loss else self.known.alike_with_small(self.curve.schedule)[0])
        until = f"until {self.curve.unit} {number(self.ahead)} from {here}; " if self.ahead > self.until else ""
        what = (
            f"training losses of {how_many(runs, 'other runs')}"
            if is_loss
            else f"errors of {how_many(runs, 'other runs')} with such a schedule"
        )
        return f"forecast {until}by how the {what} fell"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before trusting it: where levels are those of other runs' schedules, and how far off such are."""
        if self.unlike:
            return (
                "the learning rate will fall, and how much that gains is not known; the lower bound allows for it",
                "this interval may be too narrow: such intervals held 64 % of the later losses of small image networks, and 93 % of their errors",
            )
        if self.ahead is None or self.curve.metric != "accuracy":
            return ()
        return (
            "on small data little or nothing is gained where the rate falls; the interval allows for that, the middle may be too good",
        )

    @property
    def error(self) -> float | None:
        """Mean distance of forecast and `held_out` points over the largest value, the scale of `errors`; None without such."""
        return float(np.mean(np.abs(self._off))) if self._off else None

    @property
    def bias(self) -> float | None:
        """Mean of forecast less `held_out` points over the largest value: above 0 where it was forecast too high."""
        return float(np.mean(self._off)) if self._off else None

    @property
    def _off(self) -> list[float]:
        largest = max(float(self.curve.values.max()), TINY)
        return [(one.value - one.seen) / largest for one in self.held_out if one.seen is not None]

    @property
    def num_inside(self) -> int:
        """How many of `held_out` lie in the 80 % interval that was forecast for them."""
        return sum(one.seen is not None and one.low <= one.seen <= one.high for one in self.held_out)

    def as_data(self) -> dict[str, Any]:
        schedule = self.curve.schedule
        return {
            "name": self.curve.name,
            "metric": self.curve.metric,
            "unit": self.curve.unit,
            "points": self.model.num_points,
            "until": self.until,
            "since": self.started,
            "schedule": {"kind": schedule.kind, "drops": schedule.drops, "planned": schedule.planned},
            "family": self.model.family,
            "coefficients": self.model.coefficients,
            "errors": self.errors,
            "unlike_known_runs": self.unlike,
            "at": self.at,
            "reached": self.reached,
            "converged": {**vars(self.converged), "remaining": max(0.0, self.converged.step - self.until)},
            "earlier": [{"until": until, **vars(one)} for until, one in self.earlier],
            "notes": self.curve.notes,
        }


def _counts_rates(curve: LearningCurve, unlike: str | None) -> bool:
    """Return whether steps count as the sum of the learning rates: in an annealed run that is like no known one."""
    return unlike is not None and curve.schedule.kind != "multi_step"


def forecast(
    curve: LearningCurve,
    fraction: float = 1.0,
    family: str | None = None,
    target: float | None = None,
    at: Sequence[float] = (),
    num_earlier: int = 0,
    known: PublishedCurves | None = None,
    draws: int = 100,
) -> Forecast:
    """Fit the first `fraction` of a curve, since the last drop of its learning rate, and forecast.

    Beyond the next drop, and in an annealed schedule, levels fall as they did in published runs of such a schedule, if some
    are like this one (`convergence.why_unlike`); if none is, by its own power law.

    Args:
        family: None takes the best on held-out points of the fitted part.
        target: a loss, or an accuracy, to be reached. `at`: steps; the last of the curve and the planned one are added.
        num_earlier: forecasts of convergence that were made on the way, evenly spaced.
        known: published runs, those of the package by default. draws: refits for the intervals of values.
    Raises: InputError for too few points, or a target that is no loss or accuracy.
    """
    count = int(fraction * len(curve.steps))
    if count < MIN_POINTS:
        raise InputError(
            "; ".join((f"{how_many(count, 'points')} of {curve.name} do not make a curve", *curve.notes)),
            f"wait for {MIN_POINTS}, or give a larger --fraction",
        )
    if target is not None and not (0 <= target <= 1 if curve.metric == "accuracy" else 0 <= target < np.inf):
        raise InputError(f"a target {curve.metric} of {target}", "give an accuracy from 0 to 1, or a loss from 0")
    early, known = curve.first(count), published() if known is None else known
    started, kept = early.since_last_drop(MIN_POINTS)
    errors = family_errors(kept.steps, kept.values)
    until = float(early.steps[-1])
    ahead = curve.schedule.next_fall(until)
    unlike = None if ahead is None else why_unlike(early, known)
    family = family or ("power" if unlike else best_of(errors))
    places = curve.schedule.at_full_rate(kept.steps) if _counts_rates(curve, unlike) else kept.steps
    model = fit_loss(places, kept.values, family, draws)
    course = Course(curve, kept, model, errors, started, until, ahead, known, unlike)
    ends = [curve.steps[-1], *([curve.schedule.planned] if curve.schedule.planned else [])]
    counts = np.unique(np.linspace(0, count, num_earlier + 2)[1:-1].astype(int))
    steps = sorted({float(step) for step in (*at, *ends) if step > started})
    earlier = [
        (float(curve.steps[n - 1]), forecast_convergence(curve.first(n), known)) for n in counts if n >= MIN_POINTS
    ]
    return Forecast(
        **vars(course),
        at=tuple(map(course.expected, steps)),
        reached=None if target is None else course.reaches(target),
        converged=forecast_convergence(early, known),
        earlier=tuple(earlier),
    )
