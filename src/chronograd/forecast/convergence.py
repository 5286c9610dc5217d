"""Forecasts of convergence: a run has converged once it is within CONVERGED of its total fall from its final level.

A falling learning rate is what ends convergence. Published runs whose rate drops converge just after their second drop.
Annealed runs converge in their last quarter. So a run with such a schedule is compared with published runs at the same
progress. With a constant rate, the points of the run are extrapolated. The epoch is then corrected by the error of such
forecasts on other runs.

Source: Optimus (Peng et al., EuroSys 2018) for the use of the remaining epochs. The method is ours; docs/convergence.md has its
errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.curves import LARGEST_EXPONENT, TINY, Array
from chronograd.forecast.learning_curves import LearningCurve, is_score
from chronograd.forecast.logs import words
from chronograd.forecast.loss import FARTHEST, MIN_POINTS, fit_loss, num_before_tail
from chronograd.forecast.own_curve import OwnCurve, own_curve
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.forecast.schedule import Schedule
from chronograd.record import INTERVAL
from chronograd.units import percent
from chronograd.words import how_many

CONVERGED = 0.02  # share of the fall from the first value to the final level
END = 0.05  # share of the points, from the end; their median is the final level
WEIGHT_OF_ZERO = 2 / 3
# Chosen by leaving out the runs of one team, network or data set in turn; see "coverage" in docs/convergence.md.
NEAR = 0.2  # in log(error) and in its fall: runs that differ by more get little weight
FARTHEST_WEIGHT = 0.02  # share of the nearest run's weight, so that no forecast uses one run alone
STAYS = 0.11  # weight of a run without further gain: just enough for the upper bound
# The same for training losses. There are fewer of them, and they continue to fall.
NEAR_LOSS, STAYS_LOSS = 0.4, 0.05
# Two runs are alike if log(value) and its slope on logarithmic axes differ by at most this. The value is chosen, not fitted. A
# language model must not be like a classifier, and a network must be like itself with another schedule.
LIKE = 0.3
SHARE_LIKE = 0.05  # share of the known runs, also chosen; a few known runs diverged, so being like those proves nothing
# Known runs and the run's curve forecast its value now from earlier points. The known runs are not used if the curve has at most
# this share of their mean error: 0.5 and 0.8 gave the same coverage of losses of either kind.
NEARER = 0.8
NO_ENTROPIES = {"perplexity", "ppl", "error", "err", "wer", "mse", "rmse", "mae"}
LITTLE, MAX_TIMES = 0.1, 3.0  # of log(error): keeps the ratio of two falls finite at their start
MAX_APART = 4.0  # times the steps to its own level: a loss that needs longer to reach 0 does not fall to 0
SHARES = (INTERVAL[0], 0.5, INTERVAL[1])


@dataclass(frozen=True)
class Convergence:
    """The step of convergence with its 80 % interval. `source` is the run's `curve` or `published` runs.

    If the curve has converged already, `step`, `low` and `high` lie in the past.
    """

    step: float
    low: float
    high: float
    source: Literal["curve", "published"]


def converged_at(steps: Array, values: Array) -> float:
    """Return the step at which a complete curve had converged: the first whose median of three is near the final level.

    >>> converged_at(np.arange(1.0, 101), 0.5 ** np.arange(100) + 1)
    7.0
    """
    end = float(np.median(values[-max(3, math.ceil(END * len(values))) :]))
    near = end + CONVERGED * (values[0] - end)
    there = np.flatnonzero(median_of_three(values) <= near)
    return float(steps[there[0] if len(there) else -1])


def median_of_three(values: Array) -> Array:
    """Return the median of each value and its two neighbours; the first and last value stay."""
    beside = [values, np.append(values[:1], values[:-1]), np.append(values[1:], values[-1:])]
    return np.asarray(np.median(beside, axis=0))


def forecast_convergence(curve: LearningCurve, known: PublishedCurves | None = None) -> Convergence:
    """Forecast convergence from the points so far and the schedule.

    Args:
        known: published runs, by default those of the package.
    Leaves out: unknown drops of the learning rate. If only `planned` is known, published runs of all schedules are used.
    Raises: InputError for too few points.
    """
    known = published() if known is None else known
    schedule, now = curve.schedule, float(curve.steps[-1])
    if schedule.next_fall(now) is None and schedule.kind != "annealed":
        return from_curve(curve, known)
    return min(from_schedule(schedule, now, known), _at_zero(curve, known), key=lambda one: one.step)


def from_schedule(schedule: Schedule, now: float, known: PublishedCurves) -> Convergence:
    """Forecast from published runs with such a schedule that had not converged at the same progress."""
    runs, weights = known.alike(schedule)
    end, num_drops = schedule.step(math.inf), len(schedule.drops)
    whens = [_moved(float(run.scale(schedule).progress(np.array([run.converged]))[0]), num_drops) for run in runs]
    steps = np.array([schedule.step(when) for when in whens])
    later = steps > now
    if not later.any():
        return Convergence(end, now, end, "published")
    low, middle, high = weighted_quantiles(steps[later], weights[later], SHARES)
    return Convergence(middle, low, high, "published")


def _moved(progress: float, num_drops: int) -> float:
    """Return the progress with at most `num_drops` drops: the phase after a later drop counts as the phase after the last."""
    whole = math.floor(progress)
    return min(whole, num_drops) + progress - whole if num_drops else progress


def _at_zero(curve: LearningCurve, known: PublishedCurves) -> Convergence:
    """Forecast the step at which the curve, at its current rate of fall, is too near 0 for a drop of the rate to matter."""
    started, kept = curve.since_last_drop(MIN_POINTS)
    step = started + zero_reaches(CONVERGED * float(curve.values[0]), kept.steps, kept.values)
    return _corrected(curve, step, known)


def from_curve(curve: LearningCurve, known: PublishedCurves) -> Convergence:
    """Extrapolate the points since the last drop of the rate, and correct by the error on published runs.

    An error is extrapolated as an exponential that falls to a constant level. Modern networks bring a training loss down to 0,
    so a loss uses the geometric mean of that exponential and one to 0. The weights are those that were best on published runs.
    """
    started, kept = curve.since_last_drop(MIN_POINTS)
    first = float(curve.values[0])
    nearest, farthest = float(kept.steps[0]), FARTHEST * float(kept.steps[-1])
    to_level = float(np.clip(_to_level(kept.steps, kept.values, first), nearest, farthest))
    to_zero = float(np.clip(zero_reaches(CONVERGED * first, kept.steps, kept.values), nearest, MAX_APART * to_level))
    share = WEIGHT_OF_ZERO if curve.metric == "loss" else 0.0
    step = started + to_level ** (1 - share) * to_zero**share
    return _corrected(curve, step, known)


def _corrected(curve: LearningCurve, step: float, known: PublishedCurves) -> Convergence:
    """Correct a forecast by the errors of such forecasts on published runs; a step in the past is not corrected."""
    now = float(curve.steps[-1])
    ratios = np.concatenate([np.ones(1), *(np.array(values) for values in known.ratios.values())])
    low, middle, high = np.maximum(now, step * np.quantile(ratios, SHARES))
    if middle <= now:
        middle = low = high = converged_at(curve.steps, curve.values)
    return Convergence(float(middle), float(low), float(high), "curve")


def _to_level(steps: Array, values: Array, first: float) -> float:
    """Return the step at which the exponential is within CONVERGED of the fall from `first` to its level; the first step if
    the values are flat.
    """
    model = fit_loss(steps, values, "exponential", draws=0)
    level = model.coefficients["c"]
    near = CONVERGED * max(first - level, TINY)
    is_flat = float(np.ptp(values)) <= near
    reached = model.steps_to(level + near)
    return float(steps[0]) if is_flat else math.inf if reached is None else reached


def zero_line(steps: Array, values: Array) -> tuple[float, float]:
    """Return slope and intercept of the straight line through the later half of log(values): an exponential to 0."""
    late = slice(-max(MIN_POINTS, len(steps) // 2), None)
    slope, intercept = np.polyfit(steps[late], np.log(np.maximum(values[late], TINY * max(float(values[0]), TINY))), 1)
    return float(slope), float(intercept)


def zero_reaches(value: float, steps: Array, values: Array) -> float:
    """Return the step at which that line reaches a value; infinite if it does not fall."""
    slope, intercept = zero_line(steps, values)
    return math.inf if slope >= 0 else float((math.log(max(value, TINY)) - intercept) / slope)


def zero_error(steps: Array, values: Array) -> float:
    """Return the error of that line, defined as in `loss.family_errors`; infinite if there are too few points to hold some out."""
    head = num_before_tail(len(steps))
    if head < MIN_POINTS:
        return math.inf
    slope, intercept = zero_line(steps[:head], values[:head])
    forecast = np.exp(np.minimum(intercept + slope * steps[head:], LARGEST_EXPONENT))
    return float(np.mean(np.abs(forecast - values[head:])) / max(float(values.max()), TINY))


def why_unlike(curve: LearningCurve, known: PublishedCurves, own: OwnCurve | None = None) -> str | None:
    """Return the reason why known runs cannot forecast this curve; None if at least a share SHARE_LIKE of them is like it.

    A known run is unlike the curve in three cases: the curve started higher, is higher at the same progress, or falls less
    steeply, each by more than LIKE. A curve that falls faster than all known runs still counts as like them, because it falls
    towards 0. Known errors are those of image classifiers, and known losses are cross-entropies of classifiers with few classes.
    A perplexity, a squared error, a mean average precision or a return is not compared with them. Without a schedule, nothing
    shows that the rate will fall as in known runs.

    Args:
        own: the curve of the points since the last drop, fitted here if it is not given.
    """
    if curve.metric == "return" or is_score(curve.column):
        return f"{curve.column or curve.metric} is not the accuracy of a classifier"
    if curve.schedule.kind is None and curve.schedule.planned is None:
        return "whether the learning rate will fall is unknown"
    if curve.schedule.kind == "wsd":
        return "no known run has such a schedule"
    if curve.is_of_images is False:
        return "known runs are image classifiers trained from scratch, and this run is not one"
    if curve.metric == "loss" and (curve.bottom < 0 or not is_entropy(curve.column)):
        return f"{curve.column} is not a cross-entropy"
    runs = (
        known.of_losses()[0] if curve.metric == "loss" and known.losses else known.alike_with_small(curve.schedule)[0]
    )
    mine, now = shape_of(curve.steps, curve.values), curve.steps[-1:]
    at = curve.schedule.progress(now)
    apart = []
    for run in runs:
        seen = [run.steps <= run.scale(curve.schedule).step(progress) for progress in at]
        shapes = [shape_of(run.steps[part], run.errors[part]) for part in seen if int(part.sum()) >= MIN_POINTS]
        if shapes:
            apart.append(min((mine - shape for shape in shapes), key=max))
    apart.sort(key=max)
    if not apart:
        return "no known run has points this early"
    nearest = apart[int(SHARE_LIKE * len(apart))]
    if nearest.max() <= LIKE:
        return _why_unlike_so_far(curve, known, own or own_curve(*curve.since_last_drop(MIN_POINTS)[::-1]))
    kind = "loss" if curve.metric == "loss" else "error"
    what = (f"started at such a high {kind}", f"have such a high {kind} at this progress", "fall this slowly")
    return (
        f"fewer than {SHARE_LIKE:.0%} of {how_many(len(apart), 'known runs')} {what[int(np.argmax(nearest))]}".replace(
            "%", " %"
        )
    )


def _why_unlike_so_far(curve: LearningCurve, known: PublishedCurves, own: OwnCurve) -> str | None:
    """Return a reason if known runs, asked at earlier points, would have forecast less than the value now, and the own curve
    would have been nearer.

    Losses of language models may start as low as those of classifiers, and fall as slowly at one moment. But they fall towards
    a level far above 0, so forecasts from earlier points show the difference. Errors are tested only while the rate is annealed,
    because earlier points do not show the effect of a sudden drop.
    """
    if curve.metric == "accuracy" and curve.schedule.kind != "annealed":
        return None
    now, off, kind = shape_of(curve.steps, curve.values)[1], [], "loss" if curve.metric == "loss" else "error"
    before = int((curve.steps <= curve.since_last_drop(MIN_POINTS)[0]).sum())
    for num, forecast in own.hindsight.items():
        early = curve.first(before + num)
        first, level, _ = shape_of(early.steps, early.values)
        ratios, weights = levels_ahead(
            curve.schedule, float(early.steps[-1]), math.exp(level - first), curve.steps[-1:], known,
            None if kind == "loss" else math.exp(level),
        )  # fmt: skip
        (middle,) = weighted_quantiles(ratios[:, 0], weights, (0.5,))
        off.append((now - level - math.log(max(middle, TINY)), now - forecast))
    if not off:
        return None
    theirs, mine = np.array(off).T
    if theirs.mean() <= 0 or np.abs(mine).mean() > NEARER * np.abs(theirs).mean():
        return None
    less = percent(1 - math.exp(-theirs.mean()), 0)
    return f"at earlier points they would have forecast {less} less than the {kind} now"


def is_entropy(column: str) -> bool:
    """Return whether a column of losses may hold a cross-entropy.

    >>> is_entropy("eval_loss"), is_entropy("val_perplexity"), is_entropy("")
    (True, False, True)
    """
    return not set(words(column).split()) & NO_ENTROPIES


def shape_of(steps: Array, values: Array) -> Array:
    """Return the shape (3,) of log(value): first level, level at the last step, and slope. The last two come from a line
    through the later half of the points on logarithmic axes.
    """
    late = slice(-max(MIN_POINTS, len(steps) // 2), None)
    logs = np.log(np.maximum(values, TINY))
    slope, intercept = np.polyfit(np.log(steps[late]), logs[late], 1)
    level = float(intercept + slope * math.log(steps[-1]))
    return np.array([float(logs[0]), level, float(slope)])


def levels_ahead(
    schedule: Schedule, now: float, fallen: float, steps: Array, known: PublishedCurves, level: float | None = None
) -> tuple[Array, Array]:
    """Return the later errors over the error now, as they fell in each known run of that kind.

    A run gets more weight if it was nearer to this one at the same progress, in its fall so far and, for errors, in its level.
    We also add a chance of no further gain, as happens on small data: one in nine for errors, one in twenty for losses.

    Each run gives two answers. One is the same fall of log(error). The other is the same fall relative to the fall so far,
    because a run that learns little before a drop of the rate learns little after it. We do not know in advance which of the
    two is right.

    Args:
        fallen: the error or loss now over the first. level: the error now; None for a loss, which is compared on its own scale.
    Returns: ratios of shape (2 · num_runs + 1, num_steps), and their weights.
    """
    if schedule.kind == "constant" or not (schedule.kind or schedule.planned):
        raise InputError("published runs cannot forecast a curve whose schedule is unknown", "give --planned")
    is_loss = level is None and bool(known.losses)
    runs, weights = known.of_losses() if is_loss else known.alike_with_small(schedule)
    near, stays = (NEAR_LOSS, STAYS_LOSS) if is_loss else (NEAR, STAYS)
    here = schedule.progress(np.array([now, *steps]))
    logs = np.array([run.level(here, schedule) for run in runs])
    theirs = logs[:, 0] - np.array([math.log(max(float(run.errors[0]), TINY)) for run in runs])
    mine_fallen = -min(math.log(max(fallen, TINY)), 0.0)
    shares = np.clip((mine_fallen + LITTLE) / (LITTLE - np.minimum(theirs, 0.0)), 0.0, MAX_TIMES)
    ahead = np.minimum(logs[:, 1:] - logs[:, :1], 0.0)
    weights = weights * _nearness(
        near, theirs + mine_fallen, logs[:, 0] - math.log(max(level, TINY)) if level else None
    )
    ratios = np.exp(np.concatenate([ahead, ahead * shares[:, None], np.zeros((1, len(steps)))]))
    return ratios, np.append(np.tile(weights, 2), 2 * weights.sum() * stays / (1 - stays))


def _nearness(near: float, *apart: Array | None) -> Array:
    """Return the weights of runs at these logarithmic distances: a normal curve of width `near`, 1 for the nearest run."""
    squares = sum((one / near) ** 2 for one in apart if one is not None)
    return np.maximum(np.exp(-0.5 * (squares - np.min(squares))), FARTHEST_WEIGHT)
