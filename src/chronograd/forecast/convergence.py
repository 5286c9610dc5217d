"""When a training run will have converged: come within CONVERGED of its whole fall of the level at which it ends.

Where the learning rate falls, that is what ends convergence: published runs whose rate drops converge just after their second
drop, annealed ones in the last quarter. So a run of such a schedule is compared with them on the scale of its progress. Where the
rate is constant, its own points are extrapolated, and the epoch is corrected by how far off that was on other runs.

Source: the use of the remaining epochs is that of Optimus (Peng et al., EuroSys 2018); the method is ours, its errors are in
docs/convergence.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.curves import LARGEST_EXPONENT, TINY, Array
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.logs import words
from chronograd.forecast.loss import FARTHEST, MIN_POINTS, fit_loss, num_before_tail
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.forecast.schedule import Schedule
from chronograd.record import INTERVAL
from chronograd.words import how_many

CONVERGED = 0.02  # of the fall from the first value to the last level
END = 0.05  # of the points, the last ones, whose median is the last level
WEIGHT_OF_ZERO = 2 / 3
# Chosen with runs of one team, network or data set left out in turn; see "coverage" in docs/convergence.md.
NEAR = 0.2  # of log(error) and of its fall: runs that differ by more count little
FARTHEST_WEIGHT = 0.02  # of the nearest run's: so that there is no forecast of one run alone
STAYS = 0.11  # weight of a run that gains nothing: just enough for the upper bound
# The same of training losses, which are fewer, and go on falling.
NEAR_LOSS, STAYS_LOSS = 0.4, 0.05
# log(value), or its slope on logarithmic axes, may exceed that of a run that is like it by this much. We chose it, and did not fit it:
# a language model must not be like a classifier, and a network must be like the same network with another schedule.
LIKE = 0.3
SHARE_LIKE = 0.05  # of the known runs, also chosen: a few known runs diverged, and prove no likeness
EVERY_PROGRESS = (0.1, 0.25, 0.5, 0.75, 1.0)
NO_ENTROPIES = {"perplexity", "ppl", "error", "err", "wer", "mse", "rmse", "mae"}
LITTLE, MAX_TIMES = 0.1, 3.0  # of log(error): keep the ratio of two falls sane where they have hardly begun
MAX_APART = 4.0  # times the way to its own level: a loss that needs longer to 0 is not on its way there
SHARES = (INTERVAL[0], 0.5, INTERVAL[1])


@dataclass(frozen=True)
class Convergence:
    """When, with the 80 % interval, and from what: `curve`, or `published` runs.

    `step` lies in the past where the curve has converged already, and `low` and `high` with it.
    """

    step: float
    low: float
    high: float
    source: Literal["curve", "published"]


def converged_at(steps: Array, values: Array) -> float:
    """The step by which a curve, seen whole, had converged: the first at which the median of three is near its end's level.

    >>> converged_at(np.arange(1.0, 101), 0.5 ** np.arange(100) + 1)
    7.0
    """
    end = float(np.median(values[-max(3, math.ceil(END * len(values))) :]))
    near = end + CONVERGED * (values[0] - end)
    there = np.flatnonzero(median_of_three(values) <= near)
    return float(steps[there[0] if len(there) else -1])


def median_of_three(values: Array) -> Array:
    """Of each value and its neighbours; the ends stay."""
    beside = [values, np.append(values[:1], values[:-1]), np.append(values[1:], values[-1:])]
    return np.asarray(np.median(beside, axis=0))


def forecast_convergence(curve: LearningCurve, known: PublishedCurves | None = None) -> Convergence:
    """From the points so far and the schedule.

    Args:
        known: published runs, those of the package by default.
    Leaves out: drops in a schedule that nobody told; with `planned` alone published runs of all schedules are asked.
    Raises: InputError for too few points.
    """
    known = published() if known is None else known
    schedule, now = curve.schedule, float(curve.steps[-1])
    if schedule.next_fall(now) is None and schedule.kind != "annealed":
        return from_curve(curve, known)
    return min(from_schedule(schedule, now, known), _at_zero(curve, known), key=lambda one: one.step)


def from_schedule(schedule: Schedule, now: float, known: PublishedCurves) -> Convergence:
    """As published runs of such a schedule converged that had not yet at the same progress."""
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
    """Progress of a run with more drops than there are here: what came after a later one comes after the last."""
    whole = math.floor(progress)
    return min(whole, num_drops) + progress - whole if num_drops else progress


def _at_zero(curve: LearningCurve, known: PublishedCurves) -> Convergence:
    """When the curve, as it goes now, will be so near 0 that no drop of the rate can bring it much lower."""
    started, kept = curve.since_last_drop(MIN_POINTS)
    step = started + zero_reaches(CONVERGED * float(curve.values[0]), kept.steps, kept.values)
    return _corrected(curve, step, known)


def from_curve(curve: LearningCurve, known: PublishedCurves) -> Convergence:
    """As the points since the last drop of the rate extrapolate, times how far off that was on published runs.

    An error is extrapolated as an exponential that falls to a level of its own; a training loss, which networks of today bring
    down to 0, by the geometric mean of that and of an exponential to 0, with weights that were best on published runs.
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
    """By how far off such forecasts were on published runs; what lies behind us is told as it was."""
    now = float(curve.steps[-1])
    ratios = np.concatenate([np.ones(1), *(np.array(values) for values in known.ratios.values())])
    low, middle, high = np.maximum(now, step * np.quantile(ratios, SHARES))
    if middle <= now:
        middle = low = high = converged_at(curve.steps, curve.values)
    return Convergence(float(middle), float(low), float(high), "curve")


def _to_level(steps: Array, values: Array, first: float) -> float:
    """Where the exponential has come within CONVERGED of the fall from `first` to its level; at once if nothing falls."""
    model = fit_loss(steps, values, "exponential", draws=0)
    level = model.coefficients["c"]
    near = CONVERGED * max(first - level, TINY)
    is_flat = float(np.ptp(values)) <= near
    reached = model.steps_to(level + near)
    return float(steps[0]) if is_flat else math.inf if reached is None else reached


def zero_line(steps: Array, values: Array) -> tuple[float, float]:
    """Slope and intercept of the straight line through the later half of log(values): an exponential to 0."""
    late = slice(-max(MIN_POINTS, len(steps) // 2), None)
    slope, intercept = np.polyfit(steps[late], np.log(np.maximum(values[late], TINY * max(float(values[0]), TINY))), 1)
    return float(slope), float(intercept)


def zero_reaches(value: float, steps: Array, values: Array) -> float:
    """Where that line has fallen to a value; infinite where it does not fall."""
    slope, intercept = zero_line(steps, values)
    return math.inf if slope >= 0 else float((math.log(max(value, TINY)) - intercept) / slope)


def zero_error(steps: Array, values: Array) -> float:
    """The error of that line, as `loss.family_errors` has it of families; infinite with too few points to spare any."""
    head = num_before_tail(len(steps))
    if head < MIN_POINTS:
        return math.inf
    slope, intercept = zero_line(steps[:head], values[:head])
    forecast = np.exp(np.minimum(intercept + slope * steps[head:], LARGEST_EXPONENT))
    return float(np.mean(np.abs(forecast - values[head:])) / max(float(values.max()), TINY))


def why_unlike(curve: LearningCurve, known: PublishedCurves) -> str | None:
    """Why known runs say nothing of how the values of a curve go on; None where a share SHARE_LIKE of them is like it.

    A known run is like a curve unless the curve started higher, lies higher at the same progress, or falls less steeply, by more
    than LIKE. One that falls faster than all that are known is still of their kind: it goes on towards 0. Where the end of a
    curve is not known, every progress is compared. Known losses are cross-entropies of classifiers of few classes; a perplexity
    or a squared error is not compared with them.
    """
    if curve.metric == "loss" and not is_entropy(curve.column):
        return f"{curve.column} is not a cross-entropy"
    runs = (
        known.of_losses()[0] if curve.metric == "loss" and known.losses else known.alike_with_small(curve.schedule)[0]
    )
    mine, now = shape_of(curve.steps, curve.values), curve.steps[-1:]
    at = curve.schedule.progress(now) if curve.schedule.planned else EVERY_PROGRESS
    apart = []
    for run in runs:
        seen = [run.steps <= run.scale(curve.schedule).step(progress) for progress in at]
        shapes = [shape_of(run.steps[part], run.errors[part]) for part in seen if int(part.sum()) >= MIN_POINTS]
        if shapes:
            apart.append(min((mine - shape for shape in shapes), key=max))
    apart.sort(key=max)
    if not apart:
        return "no known run has points so early"
    nearest = apart[int(SHARE_LIKE * len(apart))]
    if nearest.max() <= LIKE:
        return None
    kind = "loss" if curve.metric == "loss" else "error"
    what = (f"started at a {kind} as high", f"have a {kind} as high at this progress", "fall as slowly")
    return (
        f"fewer than {SHARE_LIKE:.0%} of {how_many(len(apart), 'known runs')} {what[int(np.argmax(nearest))]}".replace(
            "%", " %"
        )
    )


def is_entropy(column: str) -> bool:
    """Return whether a column of losses may hold a cross-entropy.

    >>> is_entropy("eval_loss"), is_entropy("val_perplexity"), is_entropy("")
    (True, False, True)
    """
    return not set(words(column).split()) & NO_ENTROPIES


def shape_of(steps: Array, values: Array) -> Array:
    """First level, level at the last step, and slope, of log(value); the last two by a line through the later half of the points
    on logarithmic axes: shape (3,)."""
    late = slice(-max(MIN_POINTS, len(steps) // 2), None)
    logs = np.log(np.maximum(values, TINY))
    slope, intercept = np.polyfit(np.log(steps[late]), logs[late], 1)
    level = float(intercept + slope * math.log(steps[-1]))
    return np.array([float(logs[0]), level, float(slope)])


def levels_ahead(
    schedule: Schedule, now: float, fallen: float, steps: Array, known: PublishedCurves, level: float | None = None
) -> tuple[Array, Array]:
    """What errors fall to by later steps, over what they are now, as they did in each known run of that kind.

    Runs count the more the nearer they were to this one at the same progress: in how far they had fallen and, of errors, in
    their level. One in nine, of losses in twenty, that nothing is gained any more is added: on small data that is what happens.

    Each run tells it twice: as large a fall of log(error) as there, and one that is as large over what the run has fallen so
    far, as one that learns little before a drop of the rate learns little after it. Which holds is not known beforehand.

    Args:
        fallen: the error or loss now over the first. level: the error now; None for a loss, which falls as losses of other runs
            did, on a scale of its own.
    Returns: ratios of shape (2 · num_runs + 1, num_steps), and their weights.
    """
    if schedule.kind == "constant" or not (schedule.kind or schedule.planned):
        raise InputError("no published run tells how a curve goes on whose schedule is not known", "give --planned")
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
    """Of runs whose logarithms are so far apart from this one's: a normal curve of width `near`, the nearest at 1."""
    squares = sum((one / near) ** 2 for one in apart if one is not None)
    return np.maximum(np.exp(-0.5 * (squares - np.min(squares))), FARTHEST_WEIGHT)
