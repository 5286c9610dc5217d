"""The forecast of a learning curve: the family that fits best, later values, and when it reaches a target or has converged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from chronograd.forecast.curves import FAMILIES, TINY, Array
from chronograd.forecast.language import KINDS, LanguageCurve, known_rules
from chronograd.forecast.learning_curves import BITS_PER_BYTE, LearningCurve
from chronograd.forecast.loss import LARGEST, MIN_POINTS, LossModel, best_of, family_errors, fit_loss
from chronograd.forecast.own_curve import NUM_PATHS, OwnCurve, own_curve
from chronograd.forecast.pace import Pace, pace_of
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.record import INTERVAL, Z80
from chronograd.units import number
from chronograd.words import how_many

# Noise of log(level), in addition to the differences between runs, because few points give the level. For an error it is half
# of the scatter of the last points about the fit, and at most this; for a loss it is the full scatter.
LEVEL_SIGMA, SHARE_OF_SCATTER = 0.1, 0.5
# A run that is unlike all known runs may fall below its own curve once the rate falls. It gains these shares of log(first /
# now), at the lower bound and in the middle. We chose both by eye on fine-tuned language models, and did not fit them.
MAX_GAINED, GAINED = 0.25, 0.05
# Share of runs whose rate falls before the planned end, if the schedule is unknown: 37 of the 41 runs of DAWNBench.
FALLS = 37 / 41
# Share of classifiers of images among runs that do not show what they train. Seven of eight public logs of an accuracy are some
# (benchmarks/sources/logs), but a user may train anything: chosen between that and a half.
OF_IMAGES = 0.6
FAMILY_WORDS = {
    "inverse": "Optimus' curve",
    "power": "a power law",
    "exponential": "an exponential",
    "last": "the last value",
}
LANGUAGE = "it is a language model on real text, which has other curves"
NO_WORSE = 2.0  # times the error of the best family on held-out points: up to here a family is equally likely
NUM_STEPS = 400  # evaluated between now and the planned end
TIMES_AHEAD = 10.0  # times the last step: no level is looked for later if the planned end is unknown
MAX_HELD_OUT = 100  # evenly chosen points after the fitted ones, to compare with the forecast


@dataclass(frozen=True)
class At:
    """The value expected at a step, with the 80 % interval; `seen` is the measured value, if the curve extends that far."""

    step: float
    value: float
    low: float
    high: float
    seen: float | None


@dataclass(frozen=True)
class Reached:
    """The step at which a value is reached, with the 80 % interval; None: never, or too far ahead. `seen`: the actual step."""

    value: float
    step: float | None
    low: float | None
    high: float | None
    seen: float | None


@dataclass(frozen=True, eq=False)
class Course:
    """The family of a curve until `ahead`. From there on, published runs if some are like it, or `own`.

    Attributes:
        fitted: the fitted points, with steps counted from `started`: the last drop of the learning rate, or 0.
        errors: by family, of its forecast of the last quarter of the fitted points, over the largest value.
        until: the last fitted step.
        ahead: the step at which the rate falls next, or may fall; from there published runs replace the curve. None if it stays.
        own: the curve of the run's own points; None if `ahead` is None.
        language: the curve of a language model on real text, which then replaces all others.
        unlike: why no known run can forecast this one; None if some can, or if `ahead` is None.
    """

    curve: LearningCurve
    fitted: LearningCurve
    model: LossModel
    errors: dict[str, float]
    started: float
    until: float
    ahead: float | None
    known: PublishedCurves
    own: OwnCurve | None
    unlike: str | None
    language: LanguageCurve | None

    @property
    def is_open(self) -> bool:
        """Return whether the rate may stay or fall until the planned end: the schedule is unknown, and the end is stated."""
        return self.ahead is not None and self.curve.schedule.kind is None and self.curve.schedule.planned is not None

    @property
    def stays_in_middle(self) -> bool:
        """Return whether the middle is that of a constant rate, and only the interval covers a fall: on public logs of all kinds
        this was nearer (benchmarks/forecasts.py). Image classifiers gain so much that their middle covers it, too.
        """
        return self.is_open and self.curve.is_of_images is not True

    @property
    def uses_paths(self) -> bool:
        """Return whether the forecast is that of possible runs (`_paths`), not only of known runs or of the curve's family."""
        is_image_run = self.curve.is_of_images is True
        return self.ahead is not None and (self.unlike is not None or self.is_open or not is_image_run)

    def expected(self, step: float) -> At:
        if self.ahead is None or (step <= self.ahead and not self.unlike):
            value, low, high = self._by_family(step)
        else:
            value, low, high = self._by_paths(step) if self.uses_paths else self._as_published(step)
        low, high = sorted((self._shown(low), self._shown(high)))
        seen = self.curve.values[self.curve.steps == step]
        return At(step, self._shown(value), low, high, self._shown(float(seen[0])) if len(seen) else None)

    def _by_family(self, step: float) -> tuple[float, float, float]:
        """Return the value of the curve's family, and its 80 % bounds."""
        places = self.place(np.array([step]))
        low, high = self.model.bounds(places)
        return float(self.model.curve(places)[0]), float(low[0]), float(high[0])

    def _by_paths(self, step: float) -> tuple[float, float, float]:
        """Return the middle of the possible runs, and their 80 % bounds. Without known runs, the middle is from `own`."""
        steps = np.array([step])
        paths, weights = self._paths(steps)
        low, middle, high = weighted_quantiles(paths[:, 0], weights, SHARES)
        if self.language is not None:
            middle = float(self.language.middle(steps)[0])
        elif self.own is not None and (self.unlike or self.stays_in_middle):
            gained = 0.0 if self.stays_in_middle else GAINED * self._gain(steps)[0]
            middle = float(self.own.middle(self.place(steps))[0] - gained)
        return math.exp(middle), math.exp(min(low, middle)), math.exp(max(high, middle))

    def _paths(self, steps: Array) -> tuple[Array, Array]:
        """Return log(value) of possible runs, of shape (num_paths, num_steps), and their weights.

        The rate stays; or it falls, and the run gains a small share of its fall so far; or it falls, and the run gains as known
        runs did. If the schedule is stated, the rate does not stay. A run that shows what it trains has one kind. If the rate may
        stay, the first NUM_PATHS are those of a rate that stays.
        """
        if self.language is not None:
            paths = self.language.paths(steps)
            return paths, np.ones(len(paths))
        assert self.own is not None
        stays, ones = self.own.paths(self.place(steps), steps), np.ones(NUM_PATHS)
        shares = np.interp(np.linspace(0, 1, NUM_PATHS), (0.0, 0.5, INTERVAL[1]), (0.0, GAINED, MAX_GAINED))
        gains = stays - np.random.default_rng(2).permutation(shares)[:, None] * self._gain(steps)
        falls = FALLS if self.is_open else 1.0
        as_known = 0.0 if self.unlike else falls * (1.0 if self.curve.is_of_images else OF_IMAGES)
        kinds = [(1 - falls, stays, ones), (falls - as_known, gains, ones)]
        if as_known:
            kinds.append((as_known, *self._published_paths(steps)))
        used = [(paths, share / weights.sum() * weights) for share, paths, weights in kinds if share > 0]
        return np.concatenate([paths for paths, _ in used]), np.concatenate([weights for _, weights in used])

    def _published_paths(self, steps: Array) -> tuple[Array, Array]:
        """Return log(value) as it fell in each known run, with the noise of the level now, and their weights."""
        ratios, weights = self._ratios(steps)
        noise = self._level_sigma() * np.random.default_rng(3).standard_normal((len(ratios), 1))
        return np.log(np.maximum(self._level() * ratios, TINY)) + noise, weights

    def place(self, steps: Array) -> Array:
        """Return the steps in the family's scale: since `started`, or the sum of the rates for an annealed loss unlike all known
        ones.
        """
        return self.curve.places(steps) if self.unlike and not self.started else steps - self.started

    def _gain(self, steps: Array) -> Array:
        """Return the possible fall of log(value) at each step because the rate falls."""
        return np.asarray(max(0.0, -float(np.log(max(self._fallen(), TINY)))) * self._rate_fallen(steps))

    def _rate_fallen(self, steps: Array) -> Array:
        """Return the share of the rate's fall between `until` and each step: 1 after a drop, the progress of an annealed rate,
        and 0 up to `until`.
        """
        schedule = self.curve.schedule
        if self.ahead is None or not (schedule.kind or self.is_open):
            return np.zeros(len(steps))
        if self.is_open:  # at an unknown moment
            return np.clip((steps - self.until) / ((schedule.planned or 0.0) - self.until), 0.0, 1.0)
        if schedule.kind == "multi_step":
            return np.where(steps > self.ahead, 1.0, 0.0)
        ends = np.maximum(np.append(steps, self.until), schedule.falls_from) - schedule.falls_from
        fallen = np.minimum(ends / ((schedule.planned or self.until) - schedule.falls_from), 1.0)
        return np.asarray(np.maximum(0.0, fallen[:-1] - fallen[-1]))

    def _as_published(self, step: float) -> tuple[float, float, float]:
        level = self._level()
        ratios, weights = self._ratios(np.array([step]))
        low, middle, high = weighted_quantiles(level * ratios[:, 0], weights, SHARES)
        spread = float(np.exp(Z80 * self._level_sigma()))
        return middle, low / spread, high * spread

    def reaches(self, target: float) -> Reached:
        """Return when the expected curve reaches a target; `seen` is set if the curve reached it before the end of the fitted
        points.
        """
        value = float(self.curve.fitted(target))
        is_there = np.flatnonzero(self.curve.values <= value)
        seen = float(self.curve.steps[is_there[0]]) if len(is_there) else None
        if self.uses_paths:
            step, low, high = self._reached_by_paths(value)
            return Reached(target, step, low, high, seen)
        found = [self._steps_to(value), *self.model.steps_to_interval(value)]
        step, low, high = (None if k is None else k + self.started for k in found)
        low, high = (
            low if low is None or step is None else min(low, step),
            high if step is None or high is None else max(high, step),
        )
        if self.ahead is not None and (step is None or step > self.ahead):
            step, low, high = self._reached_as_published(value)
            zero = self.started + zero_reaches(value, self.fitted.steps, self.fitted.values)
            if self.curve.metric == "loss" and not self.curve.bottom and self.until < zero < (step or self._end()):
                step, low = zero, min(low or zero, zero)
        return Reached(target, step, low, high, seen)

    def _steps_to(self, value: float) -> float | None:
        """Return the step by the family; for a loss that may also fall to 0, by the line to 0 if that is sooner."""
        own, points = self.model.steps_to(value), self.fitted
        is_likely = zero_error(points.steps, points.values) <= NO_WORSE * min(self.errors.values(), default=0.0)
        if self.curve.metric != "loss" or not is_likely:
            return own
        zero = zero_reaches(value, points.steps, points.values)
        return own if zero <= 0 or zero >= (own or np.inf) else zero

    def _reached_by_paths(self, value: float) -> list[float | None]:
        """Return when possible runs first reach a value, up to the planned end; None for never. A point may reach it by its
        scatter.
        """
        known = self.curve.steps[self.curve.steps <= self.until]
        end = self.curve.schedule.planned or TIMES_AHEAD * self.until
        num = (end - self.until) / float(np.median(np.diff(known)))
        steps = np.linspace(self.until, end, int(np.clip(num, 1, NUM_STEPS)) + 1)[1:]
        paths, weights = self._paths(steps)
        step, low, high = self._firsts(np.exp(paths) <= value, steps, weights)
        if self.own is not None and self.stays_in_middle:
            stays = paths[:NUM_PATHS]
            step, _, _ = self._firsts(np.exp(stays) <= value, steps, np.ones(NUM_PATHS))
            low = min((k for k in (low, step) if k is not None), default=None)
            high = None if None in (high, step) else max(high or 0.0, step or 0.0)
        return [step, low, high]

    def _reached_as_published(self, value: float) -> list[float | None]:
        """Return when runs with such a schedule had fallen by the same ratio; None if they never did."""
        steps = np.linspace(self.until, self._end(), NUM_STEPS)[1:]
        ratios, weights = self._ratios(steps)
        return self._firsts(self._level() * ratios <= value, steps, weights)

    def _firsts(self, is_there: NDArray[np.bool_], steps: Array, weights: Array) -> list[float | None]:
        """Return the median and the 80 % interval of the first step at which each run is there; None for never."""
        firsts = np.where(is_there.any(1), steps[is_there.argmax(1)], np.inf)
        low, middle, high = weighted_quantiles(firsts, weights, SHARES)
        return [k if np.isfinite(k) else None for k in (middle, low, high)]

    def _ratios(self, steps: Array) -> tuple[Array, Array]:
        level = self._level() if self.curve.metric == "accuracy" else None
        return levels_ahead(self.curve.schedule, self.until, self._fallen(), steps, self.known, level)

    def _end(self) -> float:
        return self.curve.schedule.planned or 2 * self.until

    def _level(self) -> float:
        """Return the level now without noise: the curve's family at the last fitted step."""
        return float(self.model.curve(self.place(np.array([self.until])))[0])

    def _level_sigma(self) -> float:
        """Return the noise of log(level), from the last third of the fitted points."""
        if self.curve.metric == "loss":
            return LEVEL_SIGMA
        last = max(MIN_POINTS, len(self.fitted.steps) // 3)
        seen, fitted = (
            self.fitted.values[-last:],
            self.model.curve(self.place(self.fitted.steps[-last:] + self.started)),
        )
        residuals = np.log(np.maximum(seen, TINY) / np.maximum(fitted, TINY))
        return min(LEVEL_SIGMA, SHARE_OF_SCATTER * float(np.sqrt(np.mean(residuals**2))))

    def _fallen(self) -> float:
        return self._level() / max(float(self.curve.values[0]), TINY)

    def _shown(self, value: float) -> float:
        return float(self.curve.shown(value))


@dataclass(frozen=True, eq=False)
class Forecast(Course):
    """The forecast of a curve from its points up to `until`.

    Values are in the curve's metric; errors are converted back to accuracies.

    Attributes:
        earlier: steps, each with the convergence forecast from the points up to it.
    """

    at: tuple[At, ...]
    reached: Reached | None
    converged: Convergence
    earlier: tuple[tuple[float, Convergence], ...]

    @cached_property
    def held_out(self) -> tuple[At, ...]:
        """Return the known points that were not fitted, each with its forecast."""
        later = self.curve.steps[self.curve.steps > self.until]
        chosen = np.unique(np.linspace(0, len(later) - 1, min(len(later), MAX_HELD_OUT)).astype(int))
        return tuple(self.expected(float(later[i])) for i in chosen)

    @cached_property
    def pace(self) -> Pace | None:
        """Return the duration of an epoch or step in the fitted part; None if the curve has no times."""
        num = int((self.curve.steps <= self.until).sum())
        early = self.curve.first(num)
        return pace_of(early.steps, early.times, self.until)

    @property
    def basis(self) -> str:
        """Return the basis of the forecast, in words."""
        own = f"its own points since {self.curve.unit} {self.started:,.10g}" if self.started else "its own points"
        if self.language is not None:
            others = how_many(self.language.rules.num_runs, "small language models")
            return f"forecast from its own points, as a power law whose exponent falls; the fall is that of {others}"
        here = f"{own}, as {FAMILY_WORDS[self.model.family]}"
        if self.unlike and self.own is not None:
            families = [FAMILY_WORDS[model.family] for model in self.own.models]
            return (
                f"forecast from {own}, as the mean of {' and '.join(families)}; other runs are not used: {self.unlike}"
            )
        if self.ahead is None:
            return f"forecast from {here}"
        is_loss = self.curve.metric == "loss" and bool(self.known.losses)
        runs = len(self.known.losses if is_loss else self.known.alike_with_small(self.curve.schedule)[0])
        until = f"until {self.curve.unit} {number(self.ahead)} from {here}; then " if self.ahead > self.until else ""
        values, source = ("training losses", "our studies") if is_loss else ("errors", "DAWNBench and our studies")
        classifiers = f"{values} of {how_many(runs, 'image classifiers')} of {source}"
        if self.uses_paths:
            return f"forecast {until}from {own}, and from the {classifiers} with a falling rate"
        return f"forecast {until}from the {classifiers}{'' if is_loss else ' with such a schedule'}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings about the forecast: the effect of the schedule comes from other runs or is unknown, with typical
        errors.
        """
        if self.language is not None or self.ahead is None:
            return ()
        if self.unlike and self.curve.schedule.kind is not None:
            return ("the learning rate will fall, and its effect is unknown; the lower bound allows for it",)
        if self.unlike and not self.is_open:
            return ("a fall of the learning rate is not in this forecast; state it with --schedule and --planned",)
        notes = []
        if self.is_open:
            notes.append("the learning rate may stay or fall, and the interval covers both; state it with --schedule")
        if not self.unlike and not self.curve.is_of_images:
            notes.append(
                "nothing shows what this run trains; image classifiers gain most when the rate falls, others less"
            )
        if self.curve.metric == "accuracy" and not notes:
            notes.append(
                "on small data a falling rate may gain little or nothing; the interval allows for that, the middle may be too good"
            )
        return tuple(notes)

    @property
    def error(self) -> float | None:
        """Return the mean absolute error on `held_out` points over the largest value, the scale of `errors`; None without such
        points.
        """
        return float(np.mean(np.abs(self._off))) if self._off else None

    @property
    def bias(self) -> float | None:
        """Return the mean of forecast minus `held_out` points over the largest value: above 0 if the forecast was too high."""
        return float(np.mean(self._off)) if self._off else None

    @property
    def _off(self) -> list[float]:
        largest = max(float(self.curve.values.max()), TINY)
        return [(one.value - one.seen) / largest for one in self.held_out if one.seen is not None]

    @property
    def num_inside(self) -> int:
        """Return the number of `held_out` points inside their forecast 80 % interval."""
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


def _levels(curve: LearningCurve) -> tuple[float, float]:
    """Return the smallest and the largest level that a curve may reach."""
    if curve.metric == "accuracy":
        return 0.0, 1.0
    return 0.0 if curve.metric == "loss" and not curve.bottom else -LARGEST, LARGEST


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

    Beyond the next drop, and in an annealed schedule, values fall as they did in published runs with such a schedule. This
    needs known runs that are like this one (`convergence.why_unlike`); otherwise its own curve is used. If the schedule or the
    kind of the run is unknown, the interval covers both. Bits per byte of real
    text follow the curves of `chronograd.forecast.language`.

    Args:
        family: None selects the best on held-out points of the fitted part.
        target: a loss or an accuracy to reach. `at`: steps; the last step of the curve and the planned end are added.
        num_earlier: number of earlier forecasts of convergence, evenly spaced.
        known: published runs, by default those of the package. draws: refits for the intervals of values.
    Raises: InputError for too few points, or a target that is not a loss or accuracy.
    """
    count = int(fraction * len(curve.steps))
    if count < MIN_POINTS:
        raise InputError(
            "; ".join((f"{how_many(count, 'points')} of {curve.name} are too few for a curve", *curve.notes)),
            f"wait for {MIN_POINTS}, or give a larger --fraction",
        )
    least, largest = _levels(curve)
    if target is not None and not least <= target <= largest:
        raise InputError(f"a target {curve.metric} of {target}", "give an accuracy from 0 to 1, or a loss from 0")
    early, known = curve.first(count), published() if known is None else known
    started, points = early.since_last_drop(MIN_POINTS)
    errors = family_errors(points.steps, points.values)
    until = float(early.steps[-1])
    ahead = until if curve.may_fall and curve.schedule.kind is None else curve.schedule.next_fall(until)
    language = None
    if curve.column == BITS_PER_BYTE and curve.schedule.kind in KINDS and curve.schedule.planned:
        ahead, language = until, LanguageCurve(curve.schedule, early.steps, early.values, known_rules())
    own = None if ahead is None or language else own_curve(points, started, (family,) if family else tuple(FAMILIES))
    unlike = LANGUAGE if language else None if ahead is None else why_unlike(early, known, own)
    family = family or ("power" if unlike else best_of(errors))
    places = points.places(points.steps) if unlike and not started else points.steps
    model = fit_loss(places, points.values, family, 0 if unlike else draws)
    course = Course(curve, points, model, errors, started, until, ahead, known, own, unlike, language)
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
