"""The schedule of a learning rate, told from the rates that a log holds.

A rate that stays on levels and falls at once is multi_step; one that falls along a cosine or a line tells where it ends. What
rises first is warm-up, or from a tenth of the way on the first part of one cycle. Where the rate still rises, or falls otherwise,
nothing is told of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chronograd.forecast.curves import Array
from chronograd.forecast.schedule import Schedule

SAME = 1e-4  # of the largest rate: what logs round away
CLOSE = 0.005  # of the largest rate: a curve that is missed by more is another one
MIN_FALL = 0.01  # of the largest rate: from less its form cannot be told
ONE_CYCLE_FROM = 0.1  # share of the way: a longer rise is part of one cycle, a shorter one warm-up
MIN_POINTS = 4
# Share of the way to share of the rate, and the largest rate that may be left at the end: of a line that cannot be told.
SHAPES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "cosine": (lambda share: (1 + np.cos(np.pi * np.clip(share, 0, 1))) / 2, 0.5),
    "linear": (lambda share: 1 - np.clip(share, 0, 1), 1e-6),
}


@dataclass(frozen=True)
class Told:
    """What rates tell: a schedule as far as it goes, and in words."""

    schedule: Schedule
    text: str


def schedule_of_rates(steps: Array, rates: Array, unit: str) -> Told:
    """The schedule that rates follow, each used up to its step. A rate that never changed says nothing of what will be.

    >>> epochs = np.arange(1.0, 51.0)
    >>> schedule_of_rates(epochs, 0.1 * (1 + np.cos(np.pi * (epochs - 1) / 100)) / 2, "epoch").text
    'cosine until epoch 100'
    """
    known = np.isfinite(rates) & (rates >= 0)
    steps, rates = steps[known], rates[known]
    if not len(rates) or rates.max() <= 0:
        return Told(Schedule(), "no rate")
    largest = float(rates.max())
    start = int(np.argmax(rates >= (1 - SAME) * largest))  # what comes before rises
    steps_after, after = steps[start:], rates[start:] / largest
    if start and start == len(rates) - 1:
        return Told(Schedule(), f"still rising at {unit} {steps[-1]:g}")
    if after.min() > 1 - SAME:
        return Told(Schedule(), "constant so far")
    falls = np.flatnonzero(np.diff(after) < -SAME)
    if _is_in_steps(after, falls):
        return _multi_step(steps_after, falls, unit)
    if len(after) < MIN_POINTS or 1 - after.min() < MIN_FALL:
        return Told(Schedule(), "falling too little yet to tell how")
    return _annealed(steps, steps_after, after, start, unit)


def _is_in_steps(after: Array, falls: NDArray[np.intp]) -> bool:
    """Whether the rate only stays or falls at once, and stays at least twice as often."""
    changes = np.abs(np.diff(after)) > SAME
    return bool(
        len(falls) == changes.sum() and len(falls) <= len(after) / 3 and (after[falls + 1] < 0.9 * after[falls]).all()
    )


def _multi_step(steps: Array, falls: NDArray[np.intp], unit: str) -> Told:
    """Those that were seen; where two or more are evenly apart, as StepLR does it, the next one too."""
    drops = [float(steps[at]) for at in falls]
    seen = ", ".join(f"{drop:,.10g}" for drop in drops)
    apart = np.diff([0.0, *drops])
    if len(drops) > 1 and np.ptp(apart) <= SAME * apart.max():
        drops.append(drops[-1] + float(apart[-1]))
        return Told(
            Schedule("multi_step", tuple(drops)),
            f"drops after {unit} {seen}, the next expected after {drops[-1]:,.10g}",
        )
    return Told(
        Schedule("multi_step", tuple(drops)), f"drops after {unit} {seen}; give --drops if there are more to come"
    )


def _annealed(all_steps: Array, steps: Array, after: Array, start: int, unit: str) -> Told:
    fits = {name: _fitted(*shape, steps, after) for name, shape in SHAPES.items()}
    is_whole = unit == "epoch" and bool((steps == np.round(steps)).all())
    if start:  # warm-up may have replaced the first part of a curve that began with the first epoch
        over = {name: _fitted(*shape, steps, after, float(all_steps[0])) for name, shape in SHAPES.items()}
        fits |= {name: fit for name, fit in over.items() if fit[0] < fits[name][0]}
    name = min(fits, key=lambda one: fits[one][0])
    error, begin, end = fits[name]
    if error > CLOSE:
        return Told(Schedule(), "falling in no form that is known; give --schedule and --planned")
    if is_whole and begin > 0 and (not start or begin == all_steps[0]):
        end -= begin  # the first epoch has the rate at the start of the first epoch
    planned = float(round(end)) if unit == "epoch" or end > 100 else end
    rise = start and (all_steps[start] - all_steps[0]) / max(planned, 1e-9)
    named = "one_cycle" if rise >= ONE_CYCLE_FROM else f"{name} after warm-up" if rise else name
    return Told(Schedule("annealed", (), max(planned, float(steps[-1]))), f"{named} until {unit} {planned:,.10g}")


def _fitted(
    shape: Callable[[Array], Array], most_left: float, steps: Array, after: Array, begun: float | None = None
) -> tuple[float, float, float]:
    """Largest error, begin and end of a shape between a rate of 1 and a least rate, or from where it `begun` to the least."""
    first, span = float(steps[0]), float(steps[-1] - steps[0])

    def curve(p: Array) -> Array:
        begin, length, least = p
        form = shape((steps - (begin if begun is None else begun)) / length)
        top = (
            1.0 if begun is None else (1 - least * (1 - form[0])) / max(float(form[0]), SAME)
        )  # 1 where it is seen first
        return np.asarray(least + (top - least) * form)

    from scipy.optimize import least_squares  # importing it takes longer than most answers

    best = (np.inf, first, float(steps[-1]))
    for times in (1.0, 1.5, 3.0, 10.0):
        found = least_squares(
            lambda p: curve(p) - after,
            [first, times * span, 0.0],
            bounds=([first - span, 0.5 * span, 0.0], [first + span, 100 * span, most_left]),
            x_scale=[span, span, 1.0],
        )
        error = float(np.abs(found.fun).max())
        if error < best[0]:
            begin = float(found.x[0]) if begun is None else begun
            best = error, begin, begin + float(found.x[1])
    return best
