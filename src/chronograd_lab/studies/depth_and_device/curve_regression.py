"""Regression across runs: the curve of a network that was never trained, from runs of other networks.

The description of a run's curve, its coefficients or its loss at each epoch, is regressed on features known before the run:

    log y = intercept + sum over numbers of slope * log(number) + sum over labels of the effect of the label

Slopes and effects are shrunk a little (ridge). Features that nearly agree, such as params and MACs of one family, then share
the effect, and a new label has the effect of the average run. Every network has the same weight for any number of runs, because
runs of one network show its noise, not its features. Errors are those of whole networks left out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from scipy.stats import t as student

from chronograd.errors import InputError, NotFoundError
from chronograd.forecast.curves import FAMILIES, TINY, Array, evaluate
from chronograd.forecast.loss import fit_loss
from chronograd.record import INTERVAL
from chronograd.words import how_many

EPOCH_BY_EPOCH = "epoch by epoch"  # no formula: regresses the loss of each epoch separately
FORMS = (*FAMILIES, EPOCH_BY_EPOCH)
# in units of a network's weight; no value from 0.03 to 3 predicts left-out networks of the fifteen runs much better
RIDGE = 0.1
MIN_NETWORKS = 3  # to leave one out and fit a slope through the others
SMOOTHED = 11  # epochs over which errors are pooled, because a few runs show little of the scatter at one epoch
NUM_QUANTILES = 99  # of each regression, if several make an interval
MAX_PERMUTATIONS = 100_000  # all are tried up to this number; otherwise this number is drawn


@dataclass(frozen=True, eq=False)
class Run:
    """A run: its network, and its losses.

    Attributes:
        network: runs of one network are left out together.
        numbers: above 0, by name, such as depth, params, macs. labels: by name, such as device, family.
        losses: of epochs 1, 2, ...: (num_epochs,), above 0.
    """

    network: str
    numbers: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    losses: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class Regression:
    """A ridge regression of several y on features, fitted by `regress`.

    Attributes:
        columns: a feature, and its label or None for a number. center, scale: of the columns.
        is_log: whether a y is regressed as its logarithm, (num_targets,).
        weights: (num_columns, num_targets). inverse: of the normal equations, (num_columns, num_columns).
    """

    columns: tuple[tuple[str, str | None], ...]
    center: Array
    scale: Array
    is_log: NDArray[np.bool_]
    intercept: Array
    weights: Array
    inverse: Array
    num_networks: int

    def predict(self, run: Run) -> Array:
        """Return every expected y of a run, none below 0."""
        y = self.intercept + self._row(run) @ self.weights
        return np.where(self.is_log, np.exp(np.where(self.is_log, y, 0.0)), np.maximum(y, 0.0))

    def leverage(self, run: Run) -> float:
        """Return the distance of a run's features from the fitted ones: the variance of its expected log y over that of one
        network.
        """
        row = self._row(run)
        return float(1 / self.num_networks + row @ self.inverse @ row)

    def _row(self, run: Run) -> Array:
        known = {name for name, label in self.columns if label is not None and run.labels.get(name) == label}
        values = [
            center if label is not None and name not in known else _value(run, name, label)
            for (name, label), center in zip(self.columns, self.center, strict=True)
        ]
        return (np.array(values) - self.center) / self.scale


@dataclass(frozen=True, eq=False)
class Predicted:
    """The expected values of a run, each (num_values,), with the 80 % interval."""

    values: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Score:
    """The error of a predicted curve.

    Attributes:
        mape: mean over epochs of |predicted / loss - 1|. It grows without bound as losses approach 0, so read it with the
            others.
        error_of_largest: mean over epochs of |predicted - loss| / largest loss.
        factor: exp of the mean of |log(predicted / loss)|: the typical factor, in either direction.
    """

    mape: float
    error_of_largest: float
    factor: float


@dataclass(frozen=True)
class LabelTest:
    """A test whether a label, such as the device, changes y, with networks as blocks.

    Attributes:
        p_value: share of the permutations of labels within networks that spread the labels' means at least as far.
        spread: the largest mean over the smallest, minus 1. low, high: the 95 % interval of that, by Student's t.
        noise: standard deviation of log y that neither network nor label explains.
        share: of the variance within networks that the label explains beyond chance (omega squared, at least 0).
    """

    num_networks: int
    num_permutations: int
    p_value: float
    spread: float
    low: float
    high: float
    noise: float
    share: float


def regress(runs: Sequence[Run], y: Array, features: Sequence[str]) -> Regression:
    """Fit y on features of runs.

    A y that is 0 in some run, such as a coefficient at its bound, has no logarithm: it is regressed without it.

    Args:
        y: at least 0, (num_runs, num_targets).
        features: names of numbers or labels; none for the mean of the networks.

    Raises: InputError for runs without a feature, or a y below 0.

    Source: Hoerl and Kennard, Ridge regression, Technometrics 1970.

    >>> runs = [Run(name, {"depth": depth}) for name, depth in (("a", 10), ("b", 20), ("c", 40))]
    >>> model = regress(runs, np.array([[4.0], [2.0], [1.0]]), ["depth"])
    >>> round(float(model.predict(Run("d", {"depth": 20}))[0]), 3)
    2.0
    """
    if y.ndim != 2 or len(y) != len(runs) or not (np.isfinite(y).all() and (y >= 0).all()):
        raise InputError(
            f"{how_many(len(runs), 'runs')} and y of shape {y.shape}", "give each run finite values of at least 0"
        )
    columns = _columns(runs, features)
    x = np.array([[_value(run, *column) for column in columns] for run in runs]).reshape(len(runs), len(columns))
    counts = Counter(run.network for run in runs)
    w = np.array([1 / counts[run.network] for run in runs])
    is_log = np.asarray((y > TINY).all(axis=0))
    told = np.where(is_log, np.log(np.where(is_log, y, 1.0)), y)
    center, intercept = w @ x / w.sum(), w @ told / w.sum()
    scale = np.sqrt(w @ (x - center) ** 2 / w.sum())
    scale[scale < 1e-9] = math.inf  # a column that never varies has no information
    z = (x - center) / scale
    inverse = np.linalg.inv((z.T * w) @ z + RIDGE * np.eye(len(columns)))
    weights = inverse @ (z.T * w) @ (told - intercept)
    return Regression(tuple(columns), center, scale, is_log, intercept, weights, inverse, len(counts))


def describe(form: str, runs: Sequence[Run]) -> Array:
    """Return the regressed description of each run: coefficients (num_runs, 3), or losses (num_runs, num_epochs).

    Coefficients are those of `fit_loss`, for epochs and losses without scaling. Runs are cut to the shortest.

    Raises: NotFoundError for a form; the errors of `fit_loss`.
    """
    if form not in FORMS:
        raise NotFoundError("form of a curve", form, FORMS)
    length = min((len(run.losses) for run in runs), default=0)
    if form == EPOCH_BY_EPOCH:
        return np.array([run.losses[:length] for run in runs])
    epochs = np.arange(1.0, length + 1)
    return np.array([list(fit_loss(epochs, run.losses[:length], form, draws=0).coefficients.values()) for run in runs])


def curve(form: str, described: Array, num_epochs: int) -> Array:
    """Return the losses of epochs 1 to num_epochs for a description."""
    if form == EPOCH_BY_EPOCH:
        return described[:num_epochs]
    return np.maximum(evaluate(form, np.arange(1.0, num_epochs + 1), described), TINY)


def left_out(
    runs: Sequence[Run], y: Array, features: Sequence[str], expand: Callable[[Array], Array] = lambda found: found
) -> tuple[Array, Array]:
    """Return, for every run, the prediction from the other networks, (num_runs, num_values), and its leverage, (num_runs,).

    Args:
        expand: converts the regressed y to the compared values, such as coefficients to a curve.

    Raises: InputError with too few networks.
    """
    networks = list(dict.fromkeys(run.network for run in runs))
    if len(networks) < MIN_NETWORKS:
        raise InputError(
            f"runs of {len(networks)} networks tell nothing of another", f"give at least {MIN_NETWORKS} networks"
        )
    models = {}
    for network in networks:
        others = [i for i, run in enumerate(runs) if run.network != network]
        models[network] = regress([runs[i] for i in others], y[others], features)
    values = np.array([expand(models[run.network].predict(run)) for run in runs])
    return values, np.array([models[run.network].leverage(run) for run in runs])


def predict(
    runs: Sequence[Run],
    y: Array,
    features: Sequence[str],
    new: Run,
    truth: Array,
    expand: Callable[[Array], Array] = lambda found: found,
    smoothed: int = 1,
    rivals: Sequence[Sequence[str]] = (),
) -> Predicted:
    """Predict a new run from the runs.

    The interval comes from the errors for left-out networks, and widens with the new one's leverage. It uses Student's t for
    the number of networks. With `rivals` it is the interval of all regressions with equal weights, because none is known to be
    valid for a new network: it is wide where they disagree.

    Args:
        truth: the real values of `expand`, (num_runs, num_values). smoothed: values over which errors are pooled.
        rivals: features of other regressions.
    """
    quantiles = np.linspace(0, 1, NUM_QUANTILES + 2)[1:-1, None]
    values, logs = [], []
    for names in (features, *rivals):
        model = regress(runs, y, names)
        scale = np.sqrt(_squared_error(runs, y, names, truth, expand, smoothed) * (1 + model.leverage(new)))
        values.append(expand(model.predict(new)))
        logs.append(np.log(np.maximum(values[-1], TINY)) + student.ppf(quantiles, model.num_networks - 1) * scale)
    low, high = np.exp(np.quantile(np.concatenate(logs), INTERVAL, axis=0))
    expected = values[0]
    return Predicted(expected, np.minimum(low, expected), np.maximum(high, expected))


def _squared_error(
    runs: Sequence[Run],
    y: Array,
    features: Sequence[str],
    truth: Array,
    expand: Callable[[Array], Array],
    smoothed: int,
) -> Array:
    """Return the mean over networks of the squared error of log values of left-out networks, for a leverage of 0,
    (num_values,).
    """
    predicted, leverages = left_out(runs, y, features, expand)
    squares = np.log(np.maximum(predicted, TINY) / np.maximum(truth, TINY)) ** 2 / (1 + leverages[:, None])
    networks = np.array([run.network for run in runs])
    pooled = np.mean([squares[networks == network].mean(axis=0) for network in dict.fromkeys(networks)], axis=0)
    return np.asarray(uniform_filter1d(pooled, smoothed, mode="nearest") if smoothed > 1 else pooled)


def score(predicted: Array, losses: Array) -> Score:
    """Compare a curve with the real one, epoch by epoch.

    >>> score(np.array([2.0, 0.5]), np.array([2.0, 1.0]))
    Score(mape=0.25, error_of_largest=0.125, factor=1.414...)
    """
    real = np.maximum(losses, TINY)
    ratio = np.maximum(predicted, TINY) / real
    off = float(np.mean(np.abs(predicted - losses)) / real.max())
    return Score(float(np.mean(np.abs(ratio - 1))), off, math.exp(float(np.mean(np.abs(np.log(ratio))))))


def epochs_to(values: Array, target: float) -> int | None:
    """Return the first epoch, from 1, at which a falling curve is no more than `target`; None if it never is.

    >>> epochs_to(np.array([3.0, 2.0, 1.0]), 2.0), epochs_to(np.array([3.0]), 2.0)
    (2, None)
    """
    reached = np.flatnonzero(values <= target)
    return int(reached[0]) + 1 if len(reached) else None


def label_test(runs: Sequence[Run], y: Sequence[float], label: str) -> LabelTest:
    """Test whether y differs by label, with the network as block: a permutation test of log y, and the size of the effect.

    Under the null hypothesis, a network's runs could have had its labels in any order. All orders are tried, or
    `MAX_PERMUTATIONS` random ones.

    Args:
        y: above 0, one per run. Every network has one run of each label.

    Raises: InputError if a run is missing or exists twice, or a y is not above 0.

    Source: Fisher, The design of experiments, 1935; Student's t on the residuals of the two-way table.
    """
    _, table = by_label(runs, y, label)
    seen = float((table.mean(axis=0) ** 2).sum())
    spreads = _permuted(table)
    b, k = table.shape
    residual = float(((table - table.mean(axis=0)) ** 2).sum()) / ((b - 1) * (k - 1))
    gap = float(np.ptp(table.mean(axis=0)))
    margin = float(student.ppf(0.975, (b - 1) * (k - 1))) * math.sqrt(2 * residual / b)
    among = b * seen - (k - 1) * residual
    return LabelTest(
        b, len(spreads), float(np.mean(spreads >= seen * (1 - 1e-9))), math.expm1(gap), math.expm1(gap - margin),
        math.expm1(gap + margin), math.sqrt(residual), max(0.0, among / max(float((table**2).sum()) + residual, TINY)),
    )  # fmt: skip


def by_label(runs: Sequence[Run], y: Sequence[float], label: str) -> tuple[list[str], Array]:
    """Return the labels, and log y less the mean of its network, (num_networks, num_labels).

    Raises: InputError if a run is missing or exists twice, or a y is not above 0.
    """
    networks = list(dict.fromkeys(run.network for run in runs))
    labels = sorted({run.labels[label] for run in runs})
    if not all(math.isfinite(value) and value > 0 for value in y):
        raise InputError("not every run has a value above 0", "test what all of them reached")
    cells = {(run.network, run.labels[label]): math.log(value) for run, value in zip(runs, y, strict=True)}
    if len(cells) != len(runs) or len(cells) != len(networks) * len(labels) or min(len(networks), len(labels)) < 2:
        raise InputError(
            f"{how_many(len(runs), 'runs')} of {how_many(len(networks), 'networks')} and {how_many(len(labels), 'labels')} of {label}",
            "give each of at least two networks one run with each of at least two labels",
        )
    table = np.array([[cells[network, name] for name in labels] for network in networks])
    return labels, table - table.mean(axis=1, keepdims=True)


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return the slope of log y against log x, with the 80 % interval. Raises InputError with fewer than 3 points or equal x.

    >>> slope([1, 2, 4], [1, 4, 16])
    (2.0, 2.0, 2.0)
    """
    u, v = np.log(x), np.log(y)
    u, v = u - u.mean(), v - v.mean()
    if len(u) < 3 or float(u @ u) < TINY:
        raise InputError(f"{len(u)} points make no slope with an interval", "give at least 3, at different x")
    found = float(u @ v / (u @ u))
    rest = float(((v - found * u) ** 2).sum())  # 0 for exact points, where scipy's linregress has no deviation
    error = math.sqrt(rest / (len(u) - 2) / float(u @ u)) * float(student.ppf(INTERVAL[1], len(u) - 2))
    return round(found, 9), round(found - error, 9), round(found + error, 9)


def _columns(runs: Sequence[Run], features: Sequence[str]) -> list[tuple[str, str | None]]:
    columns: list[tuple[str, str | None]] = []
    for name in features:
        if all(run.numbers.get(name, 0) > 0 for run in runs):
            columns.append((name, None))
        elif all(name in run.labels for run in runs):
            columns += [(name, label) for label in sorted({run.labels[name] for run in runs})]
        else:
            raise InputError(f"not every run has a number above 0 or a label {name}", "leave that feature out")
    return columns


def _value(run: Run, name: str, label: str | None) -> float:
    if label is not None:
        return float(run.labels[name] == label)
    value = run.numbers.get(name, 0.0)
    if value <= 0:
        raise InputError(f"the run of {run.network} has {name} {value:g}", "give it a number above 0")
    return math.log(value)


def _permuted(table: Array) -> Array:
    """Return the sum of squared column means for permutations within rows: all, or the allowed number of random ones."""
    orders = np.array(list(itertools.permutations(range(table.shape[1]))))
    if len(orders) ** len(table) <= MAX_PERMUTATIONS:
        sums = np.zeros((1, table.shape[1]))
        for row in table:
            sums = (sums[:, None, :] + row[orders][None, :, :]).reshape(-1, table.shape[1])
    else:
        drawn = np.random.default_rng(0).integers(len(orders), size=(MAX_PERMUTATIONS, len(table)))
        sums = sum((row[orders[drawn[:, i]]] for i, row in enumerate(table)), np.zeros((1, table.shape[1])))
    return np.asarray(((sums / len(table)) ** 2).sum(axis=1))
