"""Loss as a function of the step: fitted to the start of a run, it forecasts the rest.

The model of Optimus is l(k) = 1 / (b0*k + b1) + b2. No b is negative, and k is the step or epoch, from 1. Other families of
`curves` compete with it. Internally, steps are divided by the first step and losses by the largest loss.

Source: Peng, Bao, Chen, Wu, Guo, Optimus, EuroSys 2018, and its authors' code for the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chronograd.errors import InputError, NotFoundError
from chronograd.forecast.curves import FAMILIES, LAST, TINY, Array, evaluate, fit_curve, reach, replace_outliers
from chronograd.record import INTERVAL
from chronograd.words import how_many

MIN_POINTS = 3  # the number of coefficients, and the minimum in Optimus' code
SIGMA_FALLS_BY = 4.0  # as in Optimus' code: in each later third of the points, sigma is a fourth of the one before
ORIGINS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # shares of the points from which the rest is forecast, to measure the error
FARTHEST = 100.0  # times the last fitted step: forecasts beyond are not used
NUM_STEPS_TRIED = 500  # between the first step and the farthest, evenly in log(step): 2 % steps for 100 fitted steps
LARGEST = 1e30  # larger squares overflow a double, and no real loss is larger
LARGEST_DRIFT = 20.0  # of log(loss / forecast) per log(step): keeps exp finite for a loss or a forecast near 0


@dataclass(frozen=True, eq=False)
class LossModel:
    """A fitted loss curve with the data for its intervals.

    Attributes:
        family: a name of `curves.FAMILIES`, or `last`.
        first_step, largest_loss: divisors of steps and losses.
        thirds: the last step of each third of the points.
        p: coefficients for the divided steps and losses; `draws` are those of bootstrap refits, (num_draws, 3).
        noise: per draw, one residual of each third, (num_draws, 3).
        drift: per draw, the error of a forecast in log(loss) per log(step), with either sign, (num_draws,).
    """

    family: str
    first_step: float
    largest_loss: float
    thirds: tuple[float, float, float]
    num_points: int
    p: Array
    draws: Array
    noise: Array
    drift: Array

    @property
    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the formula, for the original steps and losses."""
        asymptote = float(self.p[2] * self.largest_loss)
        if self.family == LAST:
            return {"loss": asymptote}
        form = FAMILIES[self.family]
        first, second = form.rescale(self.p.tolist(), self.first_step, self.largest_loss)
        return dict(zip(form.names, (first, second, asymptote), strict=True))

    def curve(self, steps: Sequence[float] | Array) -> Array:
        """Return the expected loss at each step."""
        return evaluate(self.family, np.asarray(steps, float) / self.first_step, self.p) * self.largest_loss

    def at(self, step: float) -> float:
        """Return the expected loss at a step."""
        return float(self.curve([step])[0])

    def interval(self, step: float) -> tuple[float, float]:
        """Return the 80 % interval of the observed loss at a step; it always contains the expected loss.

        It covers the scatter of the fitted points and its effect on the coefficients. Beyond the fitted points it also covers
        the errors of forecasts from earlier points to later ones, which grow with the logarithm of the horizon.
        """
        low, high = self.bounds(np.array([step]))
        return float(low[0]), float(high[0])

    def steps_to(self, loss: float) -> float | None:
        """Return the steps until the expected loss is at most `loss`, at least the first step; None if it never is."""
        k = reach(self.family, loss / self.largest_loss, self.p)
        return None if k is None else self.first_step * k

    def steps_to_interval(self, loss: float) -> tuple[float | None, float | None]:
        """Return the steps at which the bounds of `interval` first reach `loss`; None if that is too far ahead to forecast."""
        steps = np.geomspace(self.first_step, self.thirds[2] * FARTHEST, NUM_STEPS_TRIED)
        reached = [np.flatnonzero(bound <= loss) for bound in self.bounds(steps)]
        low, high = (float(steps[at[0]]) if len(at) else None for at in reached)
        return low, high

    def bounds(self, steps: Array) -> tuple[Array, Array]:
        """Return the ends of `interval` at each of the steps, in their shape."""
        curves = np.array([evaluate(self.family, steps / self.first_step, p) for p in self.draws])
        beyond = np.maximum(0.0, np.log(steps / self.thirds[2]))
        third = np.minimum(2, np.searchsorted(self.thirds, steps))
        seen = curves * np.exp(self.drift[:, None] * beyond) + self.noise[:, third]
        low, high = np.quantile(np.maximum(seen, 0), INTERVAL, axis=0) * self.largest_loss
        expected = self.curve(
            steps
        )  # a third with one point has one residual, and therefore no scatter around the curve
        return np.minimum(low, expected), np.maximum(high, expected)


def fit_loss(
    steps: Sequence[float] | Array,
    losses: Sequence[float] | Array,
    family: str = "inverse",
    draws: int = 100,
    seed: int = 0,
) -> LossModel:
    """Fit a loss curve by weighted least squares with coefficients >= 0.

    Outliers are replaced, and losses are divided by the largest. Later points get more weight: sigma is 1, 1/4, 1/16 in the
    three thirds. Intervals come from refits to the curve plus resampled residuals, each from its own third of the points. They
    also include the errors of forecasts from earlier points to later ones.

    Args:
        steps: rising, above 0. losses: finite, at least 0, one per step.
        family: of `curves.FAMILIES`, or `last`.
        draws: bootstrap refits; with 0 the bounds of an interval equal the curve. seed: of the draws.
    Leaves out: changes of the learning rate, after which a new fit is needed.
    Raises: InputError for points that cannot be fitted; NotFoundError for a family.

    Source: Peng et al., Optimus, EuroSys 2018; the intervals are ours.

    >>> model = fit_loss([1, 2, 3, 4, 5, 6], [1 / (0.5 * k + 0.5) + 0.1 for k in range(1, 7)])
    >>> round(model.at(19), 3), round(model.steps_to(0.3), 3), model.steps_to(0.1)
    (0.2, 9.0, None)
    """
    if family != LAST and family not in FAMILIES:
        raise NotFoundError("loss family", family, [*FAMILIES, LAST])
    if draws < 0:
        raise InputError(f"{draws} bootstrap draws", "draw at least 1, or 0 for no intervals")
    k, observed = _points(steps, losses)
    first, largest = float(k[0]), max(float(replace_outliers(observed).max()), TINY)
    k, observed = k / first, observed / largest
    p = _fit(family, k, observed)
    ends = [float(first * third[-1]) for third in np.array_split(k, 3)]
    thirds = ends[0], ends[1], ends[2]
    if not draws:
        return LossModel(family, first, largest, thirds, len(k), p, p[None], np.zeros((1, 3)), np.zeros(1))
    fitted = evaluate(family, k, p)
    random = np.random.default_rng(seed)
    residuals = np.array_split(observed - fitted, 3)
    refits = []
    for _ in range(draws):
        sample = fitted + np.concatenate([random.choice(part, len(part)) for part in residuals])
        refits.append(_fit(family, k, sample, near=p))
    noise = np.column_stack([random.choice(part, draws) for part in residuals])
    drift = random.choice(_drift(family, k, observed), draws) * random.choice([-1.0, 1.0], draws)
    return LossModel(family, first, largest, thirds, len(k), p, np.array(refits), noise, drift)


def best_of(errors: Mapping[str, float]) -> str:
    """Return the family with the smallest of `family_errors`; `inverse` if there are none."""
    return min(errors, key=lambda family: errors[family]) if errors else "inverse"


def family_errors(steps: Sequence[float] | Array, losses: Sequence[float] | Array) -> dict[str, float]:
    """Return, by family, the mean absolute error of its forecast of the last quarter from the points before, over the largest
    loss.

    The result is empty if there are too few points to hold some out.
    """
    k, observed = _points(steps, losses)
    k, observed = k / k[0], observed / max(float(observed.max()), TINY)
    head = num_before_tail(len(k))
    if head < MIN_POINTS:
        return {}

    def error(family: str) -> float:
        forecast = evaluate(family, k[head:], _fit(family, k[:head], observed[:head]))
        return float(np.mean(np.abs(forecast - observed[head:])))

    return {family: error(family) for family in (*FAMILIES, LAST)}


def num_before_tail(num_points: int) -> int:
    """Return the number of points to fit when the last quarter is held out."""
    return num_points - max(1, round(0.25 * num_points))


def _points(steps: Sequence[float] | Array, losses: Sequence[float] | Array) -> tuple[Array, Array]:
    k, observed = np.asarray(steps, float), np.asarray(losses, float)
    if k.ndim != 1 or k.shape != observed.shape:
        raise InputError(f"{how_many(k.size, 'steps')} and {observed.size} losses", "give one loss for each step")
    if len(k) < MIN_POINTS:
        raise InputError(f"{len(k)} points are too few for a loss curve", f"at least {MIN_POINTS} are needed")
    if not (np.isfinite(k).all() and k[0] > 0 and (np.diff(k) > 0).all()):
        raise InputError("steps must rise from above 0", "count steps or epochs from 1")
    if k[-1] > LARGEST:
        raise InputError(f"a step numbered {k[-1]:g}", "count steps or epochs from 1")
    is_loss = (observed >= 0) & (observed <= LARGEST)
    if not is_loss.all():
        at = int(np.flatnonzero(~is_loss)[0])
        raise InputError(f"the loss at step {k[at]:g} is {observed[at]}", "fit the steps before it")
    return k, observed


def _fit(family: str, k: Array, observed: Array, near: Array | None = None) -> Array:
    weights = np.repeat(SIGMA_FALLS_BY ** np.arange(3), [len(third) for third in np.array_split(k, 3)])
    return fit_curve(family, k, replace_outliers(observed), weights, near)


def _drift(family: str, k: Array, observed: Array) -> Array:
    """Return |log(loss / forecast)| / log(horizon) of forecasts from earlier points to later ones; 0 if there are too few.

    Only the farther half of each forecast counts, in log(step), because noise dominates near its origin.
    """
    found = [np.zeros(0)]
    for n in sorted({round(share * len(k)) for share in ORIGINS}):
        if MIN_POINTS <= n < len(k):
            far = n + np.flatnonzero(k[n:] >= math.sqrt(k[n - 1] * k[-1]))
            forecast = evaluate(family, k[far], _fit(family, k[:n], observed[:n]))
            ratio = np.maximum(observed[far], TINY) / np.maximum(forecast, TINY)
            found.append(np.abs(np.log(ratio)) / np.log(k[far] / k[n - 1]))
    pooled = np.concatenate(found)
    return np.minimum(pooled, LARGEST_DRIFT) if len(pooled) else np.zeros(1)
