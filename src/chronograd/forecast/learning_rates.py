"""The schedule of a learning rate, derived from the rates in a log.

A rate that stays on levels and drops at once is multi_step. A rate that falls along a cosine or a line shows where it ends. A
rise at the start is warm-up; if it lasts a tenth of the way or more, it is the first part of one cycle. If the rate stays that
long before it falls, the schedule is wsd (warm-up, stable, decay). If the rate still rises, or falls in another form, the rest of the schedule is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chronograd.forecast.curves import Array
from chronograd.forecast.schedule import Schedule

SAME = 1e-4  # share of the largest rate: rounding in logs
CLOSE = 0.005  # share of the largest rate: a shape with a larger error does not fit
MIN_FALL = 0.01  # share of the largest rate: a smaller fall does not show its shape
ONE_CYCLE_FROM = (
    0.1  # share of the way: a longer rise is part of one cycle; a rate that stays longer before it falls is wsd
)
MIN_POINTS = 4
# The function from share of the way to share of the rate, and the largest rate that may remain at the end. A line does not show
# the remaining rate.
SHAPES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "cosine": (lambda share: (1 + np.cos(np.pi * np.clip(share, 0, 1))) / 2, 0.5),
    "linear": (lambda share: 1 - np.clip(share, 0, 1), 1e-6),
}


@dataclass(frozen=True)
class RateSchedule:
    """The known part of a schedule, and a description in words."""

    schedule: Schedule
    text: str


def schedule_of_rates(steps: Array, rates: Array, unit: str) -> RateSchedule:
    """Return the schedule that rates follow, each used up to its step. A rate that never changed does not show its future.

    >>> epochs = np.arange(1.0, 51.0)
    >>> schedule_of_rates(epochs, 0.1 * (1 + np.cos(np.pi * (epochs - 1) / 100)) / 2, "epoch").text
    'cosine until epoch 100'
    """
    known = np.isfinite(rates) & (rates >= 0)
    steps, rates = steps[known], rates[known]
    if not len(rates) or rates.max() <= 0:
        return RateSchedule(Schedule(), "no rate")
    largest = float(rates.max())
    start = int(np.argmax(rates >= (1 - SAME) * largest))  # the rates before it rise
    steps_after, after = steps[start:], rates[start:] / largest
    if start and start == len(rates) - 1:
        return RateSchedule(Schedule(), f"still rising at {unit} {steps[-1]:g}")
    if after.min() > 1 - SAME:
        return RateSchedule(Schedule(), "constant so far")
    falls = np.flatnonzero(np.diff(after) < -SAME)
    if _is_in_steps(after, falls):
        return _multi_step(steps_after, falls, unit)
    if len(after) < MIN_POINTS or 1 - after.min() < MIN_FALL:
        return RateSchedule(Schedule(), "the fall is still too small to show its shape")
    return _annealed(steps, steps_after, after, start, unit)


def schedule_of_drops(steps: Array, unit: str) -> RateSchedule:
    """Return the schedule of a log that prints the rate only when it drops, after the given steps."""
    return _multi_step(steps, np.arange(len(steps)), unit)


def _is_in_steps(after: Array, falls: NDArray[np.intp]) -> bool:
    """Return whether the rate only stays or drops at once, and stays at least twice as often."""
    changes = np.abs(np.diff(after)) > SAME
    return bool(
        len(falls) == changes.sum() and len(falls) <= len(after) / 3 and (after[falls + 1] < 0.9 * after[falls]).all()
    )


def _multi_step(steps: Array, falls: NDArray[np.intp], unit: str) -> RateSchedule:
    """Return the observed drops; if two or more have equal distances, as with StepLR, also the next one."""
    drops = [float(steps[at]) for at in falls]
    seen = ", ".join(f"{round(drop, 3):,.10g}" for drop in drops)
    apart = np.diff([0.0, *drops])
    if len(drops) > 1 and np.ptp(apart) <= SAME * apart.max():
        drops.append(drops[-1] + float(apart[-1]))
        return RateSchedule(
            Schedule("multi_step", tuple(drops)),
            f"drops after {unit} {seen}, next one expected after {round(drops[-1], 3):,.10g}",
        )
    return RateSchedule(
        Schedule("multi_step", tuple(drops)), f"drops after {unit} {seen}; give --drops if more will come"
    )


def _annealed(all_steps: Array, steps: Array, after: Array, start: int, unit: str) -> RateSchedule:
    fits = {name: _fitted(*shape, steps, after) for name, shape in SHAPES.items()}
    is_whole = unit == "epoch" and bool((steps == np.round(steps)).all())
    if start:  # warm-up may have replaced the first part of a curve that began with the first epoch
        over = {name: _fitted(*shape, steps, after, float(all_steps[0])) for name, shape in SHAPES.items()}
        fits |= {name: fit for name, fit in over.items() if fit[0] < fits[name][0]}
    name = min(fits, key=lambda one: fits[one][0])
    error, begin, end = fits[name]
    if error > CLOSE:
        return RateSchedule(Schedule(), "falling in an unknown shape; give --schedule and --planned")
    stays_on = begin - float(steps[0]) > ONE_CYCLE_FROM * end
    if is_whole and begin > 0 and (not start or begin == all_steps[0]):
        end -= float(steps[0]) if stays_on else begin  # the first epoch has the rate at the start of the first epoch
    planned = float(round(end)) if unit == "epoch" or end > 100 else end
    if stays_on:
        stays = Schedule("wsd", (), max(planned, float(steps[-1])), begin)
        return RateSchedule(stays, f"constant until {unit} {begin:,.10g}, {name} until {planned:,.10g}")
    rise = start and (all_steps[start] - all_steps[0]) / max(planned, 1e-9)
    named = "one_cycle" if rise >= ONE_CYCLE_FROM else f"{name} after warm-up" if rise else name
    return RateSchedule(
        Schedule("annealed", (), max(planned, float(steps[-1]))), f"{named} until {unit} {planned:,.10g}"
    )


def _fitted(
    shape: Callable[[Array], Array], most_left: float, steps: Array, after: Array, begun: float | None = None
) -> tuple[float, float, float]:
    """Return largest error, begin and end of a shape between a rate of 1 and a minimum rate. It starts at `begun` if given."""
    first, span = float(steps[0]), float(steps[-1] - steps[0])

    def curve(p: Array) -> Array:
        begin, length, least = p
        form = shape((steps - (begin if begun is None else begun)) / length)
        top = (
            1.0 if begun is None else (1 - least * (1 - form[0])) / max(float(form[0]), SAME)
        )  # 1 at the first observed step
        return np.asarray(least + (top - least) * form)

    from scipy.optimize import least_squares  # importing it takes longer than most answers

    best = (np.inf, first, float(steps[-1]))
    left = float(steps[after > 1 - SAME][-1])  # where the rate of wsd starts to fall
    for start, times in ((first, 1.0), (first, 1.5), (first, 3.0), (first, 10.0), (left, 0.2)):
        found = least_squares(
            lambda p: curve(p) - after,
            [start, times * span, 0.0],
            bounds=([first - span, 0.02 * span, 0.0], [first + span, 100 * span, most_left]),
            x_scale=[span, span, 1.0],
        )
        error = float(np.abs(found.fun).max())
        if error < best[0]:
            begin = float(found.x[0]) if begun is None else begun
            best = error, begin, begin + float(found.x[1])
    return best
