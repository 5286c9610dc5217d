"""Curves that fall towards an asymptote, and their fit by least squares.

    inverse        f(k) = 1 / (b0*k + b1) + b2
    power          f(k) = a * k**-b + c
    exponential    f(k) = a * exp(-b*k) + c
    last           f(k) = the last value         the baseline for every forecast

No coefficient is negative, so no curve rises or falls below zero. They are fitted for k >= 1 and f <= about 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST = "last"
# Start points of the asymptote: its distance below the smallest value, as a share of the range of the values.
ASYMPTOTES_BELOW = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
TINY = 1e-12  # share of the largest value: keeps quotients and logarithms finite
MAX_EVALUATIONS = 100  # a fit that converges takes about 10; more do not help one that does not
LARGEST_EXPONENT = 700.0  # exp of more than 709 overflows a double


@dataclass(frozen=True)
class Family:
    """A curve f(k; p) with asymptote p[2]; its transform y(f - p[2]) is a straight line in x(k)."""

    names: tuple[str, str, str]
    curve: Callable[[Array, Any], Array]
    x: Callable[[Array], Array]
    y: Callable[[Array], Array]
    dz_dy: Callable[[Array], Array]  # turns weights of values into weights of points on the line
    start: Callable[[float, float], tuple[float, float]]  # p[:2] from slope and intercept of the line
    solve: Callable[[float, Any], float]  # k at which f - p[2] is z
    rescale: Callable[[Any, float, float], tuple[float, float]]  # p[:2] for k and f that were divided by first, largest


def _exp(value: float) -> float:
    return math.exp(value) if value < LARGEST_EXPONENT else math.inf


_LOG_LINE: dict[str, Any] = {
    "names": ("a", "b", "c"),
    "y": np.log,
    "dz_dy": lambda z: z,
    "start": lambda slope, intercept: (_exp(intercept), -slope),
}
FAMILIES = {
    "inverse": Family(
        names=("b0", "b1", "b2"),
        curve=lambda k, p: 1 / np.maximum(p[0] * k + p[1], TINY) + p[2],
        x=lambda k: k,
        y=lambda z: 1 / z,
        dz_dy=lambda z: z**2,
        start=lambda slope, intercept: (slope, intercept),
        solve=lambda z, p: (1 / z - p[1]) / p[0],
        rescale=lambda p, first, largest: (p[0] / first / largest, p[1] / largest),
    ),
    "power": Family(
        curve=lambda k, p: p[0] * k ** -p[1] + p[2],
        x=np.log,
        solve=lambda z, p: _exp(math.log(p[0] / z) / p[1]),
        rescale=lambda p, first, largest: (p[0] * largest * _exp(p[1] * math.log(first)), p[1]),
        **_LOG_LINE,
    ),
    "exponential": Family(
        curve=lambda k, p: p[0] * np.exp(-p[1] * k) + p[2],
        x=lambda k: k,
        solve=lambda z, p: math.log(p[0] / z) / p[1],
        rescale=lambda p, first, largest: (p[0] * largest, p[1] / first),
        **_LOG_LINE,
    ),
}


def evaluate(family: str, k: Array, p: Array) -> Array:
    """Return the value of the curve at each k.

    >>> evaluate("inverse", np.array([1.0, 3.0]), np.array([1.0, 1.0, 0.5])).tolist()
    [1.0, 0.75]
    """
    return np.full(len(k), p[2]) if family == LAST else FAMILIES[family].curve(k, p)


def reach(family: str, value: float, p: Array) -> float | None:
    """Return the smallest k >= 1 at which the curve is at most `value`; None if it never is.

    >>> reach("inverse", 0.75, np.array([1.0, 1.0, 0.5])), reach("inverse", 0.5, np.array([1.0, 1.0, 0.5]))
    (3.0, None)
    """
    z = value - float(p[2])
    if evaluate(family, np.ones(1), p)[0] <= value:
        return 1.0
    falls = family != LAST and p[0] > 0 and (family == "inverse" or p[1] > 0)
    if z <= TINY or not falls:
        return None
    k = FAMILIES[family].solve(z, p.tolist())
    return k if math.isfinite(k) else None


def crossing(x: Array, values: Array, target: float) -> float | None:
    """Return the point at which falling values reach a target, by linear interpolation; None if they do not reach it.

    >>> crossing(np.array([1.0, 2.0]), np.array([3.0, 1.0]), 1.5)
    1.75
    """
    below = np.flatnonzero(values <= target)
    if not len(below) or below[0] == 0:
        return float(x[0]) if len(below) else None
    last, first = int(below[0]), int(below[0]) - 1
    share = (values[first] - target) / (values[first] - values[last])
    return float(x[first] + share * (x[last] - x[first]))


def replace_outliers(values: Array) -> Array:
    """Return the values, with each outlier replaced by the mean of its two neighbours.

    A point outside the range of its neighbours is an outlier, unless a neighbour lies further outside its own range. So only
    the spike is replaced, not the points next to it. The first and last value stay.

    >>> replace_outliers(np.array([4.0, 3.0, 9.0, 2.0, 1.0])).tolist()
    [4.0, 3.0, 2.5, 2.0, 1.0]
    """
    before, here, after = values[:-2], values[1:-1], values[2:]
    outside = np.maximum(np.minimum(before, after) - here, here - np.maximum(before, after))
    of_neighbours = np.maximum(np.append(0, outside[:-1]), np.append(outside[1:], 0))
    is_outlier = (outside > 0) & (outside >= of_neighbours)
    return np.concatenate([values[:1], np.where(is_outlier, (before + after) / 2, here), values[-1:]])


def fit_curve(family: str, k: Array, values: Array, weights: Array, near: Array | None = None) -> Array:
    """Fit coefficients >= 0 that minimise the sum of (weight * (curve - value))**2, shape (3,).

    For each asymptote of a grid, the fit starts from the straight line of the family. With `near`, it starts only from there,
    and is less exact.
    """
    if family == LAST:
        return np.array([0.0, 0.0, values[-1]])

    def residuals(p: Array) -> Array:
        return weights * (evaluate(family, k, p) - values)

    def cost(p: Array) -> float:
        return float(np.sum(residuals(p) ** 2))

    starts = [near] if near is not None else sorted(_starts(family, k, values, weights), key=cost)[:3]
    tolerance = 1e-6 if near is not None else 1e-12
    stop = {"xtol": tolerance, "ftol": tolerance, "gtol": tolerance, "max_nfev": MAX_EVALUATIONS}
    from scipy.optimize import least_squares  # importing it takes longer than most answers

    found = [least_squares(residuals, p, bounds=(0, np.inf), x_scale="jac", **stop).x for p in starts]
    return np.asarray(min([*starts, *found], key=cost))


def _starts(family: str, k: Array, values: Array, weights: Array) -> list[Array]:
    """Fit weighted straight lines through y(value - asymptote), one for each asymptote of the grid."""
    form = FAMILIES[family]
    x, starts = form.x(k), []
    least, spread = float(values.min()), max(float(np.ptp(values)), TINY)
    for asymptote in sorted({max(least - share * spread, 0.0) for share in ASYMPTOTES_BELOW}):
        z = np.maximum(values - asymptote, TINY)
        w = (weights * form.dz_dy(z)) ** 2
        w, y = w / w.sum(), form.y(z)
        x_mean, y_mean = w @ x, w @ y
        slope = float(w @ ((x - x_mean) * (y - y_mean)) / max(w @ (x - x_mean) ** 2, TINY))
        first, second = form.start(slope, float(y_mean - slope * x_mean))
        starts.append(np.maximum([first, second, asymptote], 0.0))
    return starts
