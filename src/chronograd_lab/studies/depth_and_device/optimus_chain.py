"""The chain from the loss curves of some networks to the epochs of another, by Optimus' coefficients, and its uncertainty.

Peng et al., Optimus, EuroSys 2018: l(k) = 1/(b0·k + b1) + b2, with losses divided by the largest. The coefficients of each run
are regressed on depth and device. The curve of another depth follows from them. Its epochs to an accuracy follow from the loss
at which the known runs had that accuracy.

A network of a kind without any run is as far off as one known kind is from the others: intervals for it leave whole kinds out.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.stats import t as student

from chronograd.errors import InputError
from chronograd.forecast.curves import TINY, Array, evaluate
from chronograd.forecast.loss import fit_loss
from chronograd.forecast.published_curves import published
from chronograd.record import INTERVAL
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import Difference, Spread, difference
from chronograd_lab.studies.depth_and_device.curve_regression import (
    EPOCH_BY_EPOCH,
    Run,
    by_label,
    describe,
    regress,
    score,
    slope,
)
from chronograd_lab.studies.depth_and_device.depth_runs import (
    CIFAR,
    FULL,
    NUM_SHOWN,
    OPTIMUS,
    Logs,
    curve_prediction,
    epochs_prediction,
    plain,
    rounded,
)

COEFFICIENTS = ("b0", "b1", "b2", "largest loss")
ASKED = ("depth", "device")  # features of the coefficients
CHAIN, BEFORE, AFTER = "Optimus' coefficients on depth and device", "forecast made beforehand", "mean of the networks"
RULES = (BEFORE, CHAIN, AFTER)
# Epochs to each target with the 80 % interval, from the fifteen runs by `FULL`, before a run of depth 50 was read: at 9c22c1c.
FORECAST = {
    "accuracy 90 %": (8.2, 8.0, 15.0), "accuracy 95 %": (11.0, 10.4, 20.9), "accuracy 99 %": (21.5, 20.3, 34.0),
}  # fmt: skip
TARGET = "accuracy 92 %"
LEARNING = "accuracy 99 %"  # beyond it, losses are near 0, where a percentage error means little


# -- coefficients of the runs --------------------------------------------------------------------------


def plain_fit(losses: Array) -> Array:
    """Fit b0, b1, b2 to losses divided by the largest, by `scipy.optimize.curve_fit` with equal weights and no coefficient
    below 0.

    >>> k = np.arange(1.0, 21)
    >>> plain_fit(2 / (0.5 * k + 0.5) + 0.2).round(3).tolist()
    [0.55, 0.55, 0.091]
    """
    return _fitted(losses, (0.0, np.inf))


def is_lost_without_bounds(losses: Array) -> bool:
    """Return whether `curve_fit` without bounds, from its default start, ends at an impossible loss: below its level, or never
    falling.
    """
    b0, b1, _ = _fitted(losses, (-np.inf, np.inf))
    return bool(b0 <= 0 or b0 + b1 <= 0)


def _fitted(losses: Array, bounds: tuple[float, float]) -> Array:
    epochs = np.arange(1.0, len(losses) + 1)

    def curve(k: Array, b0: float, b1: float, b2: float) -> Array:
        return 1 / (b0 * k + b1) + b2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # the covariance is not used
        found, _ = curve_fit(curve, epochs, losses / losses.max(), bounds=bounds, maxfev=20_000)
    return np.asarray(found)


def weighted_fit(losses: Array) -> Array:
    """Fit the same by `fit_loss`; each later third of the points has a fourth of the sigma of the one before."""
    b0, b1, b2 = fit_loss(np.arange(1.0, len(losses) + 1), losses, OPTIMUS, draws=0).coefficients.values()
    largest = float(losses.max())
    return np.array([b0 * largest, b1 * largest, b2 / largest])


def triple_rows(logs: Logs) -> list[Row]:
    """Return the coefficients of each run by both fits, and the error of each, divided by the largest loss."""
    rows = []
    for run in logs.runs:
        epochs, relative = np.arange(1.0, len(run.losses) + 1), run.losses / run.losses.max()
        row: Row = {"network": run.network, "depth": int(run.numbers["depth"]), "run": run.labels["device"],
                    "family": run.labels["family"], "largest_loss": float(run.losses.max()),
                    "is_lost_without_bounds": is_lost_without_bounds(run.losses)}  # fmt: skip
        for name, fit in (("plain", plain_fit), ("weighted", weighted_fit)):
            b = fit(run.losses)
            row[name] = plain(b)
            row[f"{name}_error"] = float(np.mean(np.abs(evaluate(OPTIMUS, epochs, b) - relative)))
            row[f"{name}_first"] = float(evaluate(OPTIMUS, epochs[:1], b)[0] / relative[0])
        rows.append(row)
    return rows


def described(logs: Logs) -> Array:
    """Return the regressed values: b0, b1, b2 of the plain fit and the largest loss, (num_runs, 4)."""
    return np.array([[*np.where(b > TINY, b, 0.0), run.losses.max()]
                     for run in logs.runs for b in [plain_fit(run.losses)]])  # fmt: skip


def regression_rows(logs: Logs, new: Run) -> list[Row]:
    """Return for each coefficient its trend with depth, over all networks and over one family, with device, and at another
    depth.
    """
    found = described(logs)
    model = regress(logs.runs, found, ASKED)
    devices = list(dict.fromkeys(run.labels["device"] for run in logs.runs))
    rows = []
    for j, name in enumerate(COEFFICIENTS):
        row: Row = {"coefficient": name}
        for over, families in (("all", None), (CIFAR, CIFAR)):
            networks = [n for n in logs.networks if families in (None, _of(logs, n)[0].labels["family"])]
            means = [
                float(np.mean([found[i, j] for i, run in enumerate(logs.runs) if run.network == n])) for n in networks
            ]
            if min(means) > TINY:
                depths = [_of(logs, n)[0].numbers["depth"] for n in networks]
                row[f"slope_{over}"] = slope(depths, means)
        own = [float(model.predict(replace(new, labels={**new.labels, "device": device}))[j]) for device in devices]
        row |= {"predicted": own, "devices": devices}
        rows.append(row)
    return rows


def _of(logs: Logs, network: str) -> list[Run]:
    return [run for run in logs.runs if run.network == network]


# -- another network -----------------------------------------------------------------------------------


def chain_curve(known: Logs, new: Run, epochs: Array) -> Array:
    """Return the losses at some epochs from the regressed coefficients."""
    *b, largest = regress(known.runs, described(known), ASKED).predict(new)
    return np.asarray(largest * evaluate(OPTIMUS, epochs, np.array(b)))


def chain_epochs(known: Logs, new: Run) -> Array:
    """Return the epochs to each target, where that curve falls to the loss at which the known runs had the accuracy."""
    b0, b1, b2, largest = regress(known.runs, described(known), ASKED).predict(new)
    return np.asarray((1 / np.maximum(level_losses(known) / largest - b2, TINY) - b1) / b0)


def mean_epochs(known: Logs, new: Run) -> Array:
    """Return the epochs to each target of the mean network, with equal weights: no slope is trusted beyond a kind."""
    return regress(known.runs, known.epochs, ()).predict(new)


def mean_curve(known: Logs, new: Run, epochs: Array) -> Array:
    """Return the losses of the mean network at some epochs; constant before the first and beyond the last."""
    losses = regress(known.runs, describe(EPOCH_BY_EPOCH, known.runs), ()).predict(new)
    return np.interp(epochs, np.arange(1.0, len(losses) + 1), losses)


Rule = Callable[[Logs, Run], Array]


def kind_errors(known: Logs, rule: Rule, truth: Array, features: Sequence[str]) -> dict[str, tuple[Array, Array]]:
    """Return for each kind, when it is left out, the mean log(predicted / real), and its mean square for a leverage of 0."""
    errors = {}
    for kind in dict.fromkeys(run.labels["family"] for run in known.runs):
        at = [i for i, run in enumerate(known.runs) if run.labels["family"] == kind]
        others = known.of([known.runs[i].network for i in at], False)
        model = regress(others.runs, others.epochs, features)
        logs = np.log(np.array([rule(others, known.runs[i]) for i in at]) / truth[at])
        leverages = np.array([model.leverage(known.runs[i]) for i in at])
        errors[kind] = logs.mean(axis=0), (logs**2 / (1 + leverages[:, None])).mean(axis=0)
    return errors


def of_another_kind(
    known: Logs, new: Run, rule: Rule, truth: Array, features: Sequence[str]
) -> tuple[Array, Array, Array]:
    """Predict a network of a kind without any run, by a rule, with the 80 % interval.

    The interval is like that of a network left out, but whole kinds are left out. Student's t has one degree of freedom less
    than the number of kinds.
    """
    squares = np.mean([square for _, square in kind_errors(known, rule, truth, features).values()], axis=0)
    kinds = {run.labels["family"] for run in known.runs}
    sigma = np.sqrt(squares * (1 + regress(known.runs, known.epochs, features).leverage(new)))
    values = rule(known, new)
    spread = float(student.ppf(INTERVAL[1], len(kinds) - 1)) * sigma
    return values, values * np.exp(-spread), values * np.exp(spread)


def kind_rows(known: Logs) -> list[Row]:
    """Return the error of each rule for kinds left out, and the difference of two kinds in other recipes."""
    rows = []
    for name, rule, features in (
        (CHAIN, chain_epochs, ASKED),
        (AFTER, mean_epochs, ()),
        (BEFORE, _forecast_epochs, known.features[FULL]),
    ):
        for kind, (errors, _) in kind_errors(known, rule, known.epochs, features).items():
            rows += [{"rule": name, "kind": kind, "target": target, "ratio": math.exp(error)}
                     for target, error in zip(known.targets, errors.tolist(), strict=True)]  # fmt: skip
    return rows


def _forecast_epochs(known: Logs, new: Run) -> Array:
    return regress(known.runs, known.epochs, known.features[FULL]).predict(new)


def other_kind_rows(levels: Sequence[tuple[str, float]]) -> list[Row]:
    """Compare two kinds under one recipe, from runs on small data in the package: epochs of each to losses, and their ratio.

    Only recipes in which both kinds have a run that reaches all the losses.
    """
    reached: dict[tuple[str, str], list[Array]] = {}
    for run in published().losses:
        kind = run.team.rpartition(", ")[2]
        recipe = ", ".join(part for part in run.name.partition("/")[0].replace(": ", ", ").split(", ") if part != kind)
        epochs = np.array([_reached(run.steps, run.errors, loss) for _, loss in levels])
        if not np.isnan(epochs).any():
            reached.setdefault((recipe, kind), []).append(epochs)
    means = {key: np.exp(np.log(runs).mean(axis=0)) for key, runs in reached.items()}
    rows = []
    for a, b in itertools.combinations(means, 2):
        if a[0] == b[0]:
            rows += [{"recipe": a[0], "kinds": [a[1], b[1]], "target": target, "ratio": float(means[a][i] / means[b][i])}
                     for i, (target, _) in enumerate(levels)]  # fmt: skip
    return rows


def _reached(steps: Array, losses: Array, loss: float) -> float:
    """Return the step at which a loss is reached, linear in its logarithm between points; NaN if it is not, or at the first
    point.
    """
    below = np.flatnonzero(losses <= loss)
    if not len(below) or below[0] == 0:
        return math.nan
    i = int(below[0])
    return float(np.interp(-math.log(loss), -np.log(losses[[i - 1, i]]), steps[[i - 1, i]]))


def level_losses(known: Logs) -> Array:
    """Return the loss at which the known runs had each accuracy, their geometric mean, (num_targets,)."""
    return np.asarray(np.exp(np.log(known.levels).mean(axis=0)))


def ahead_rows(known: Logs, new: Run) -> dict[str, list[Row]]:
    """Return each rule's prediction for a network without any run, on no particular device, and its basis."""
    levels = list(zip(known.targets, level_losses(known).tolist(), strict=True))
    ahead = [{"rule": rule, "network": new.network, "depth": int(new.numbers["depth"]), "target": target,
              **rounded({"epochs": values[j], "low": low[j], "high": high[j]})}
             for rule, (values, low, high) in _by_rule(known, new).items()
             for j, target in enumerate(known.targets)]  # fmt: skip
    return {
        "ahead": ahead, "regression": regression_rows(known, new), "kinds": kind_rows(known),
        "levels": [{"target": target, "loss": loss} for target, loss in levels], "other_kinds": other_kind_rows(levels),
    }  # fmt: skip


def _by_rule(known: Logs, new: Run) -> dict[str, tuple[Array, Array, Array]]:
    """Return epochs to each target, and their 80 % interval."""
    before = epochs_prediction(known, new, FULL)  # one of its regressions needs the device
    return {
        BEFORE: (before.values, before.low, before.high),
        CHAIN: of_another_kind(known, _anywhere(new), chain_epochs, known.epochs, ASKED),
        AFTER: of_another_kind(known, new, mean_epochs, known.epochs, ()),
    }


def _anywhere(run: Run) -> Run:
    """Return a run on no particular device: the mean of the known ones, because no device changes the epochs."""
    return replace(run, labels={"family": run.labels["family"]})


# -- against real runs ---------------------------------------------------------------------------------


def epoch_rows(known: Logs, held: Logs) -> list[Row]:
    """Return epochs to each target by each rule for networks held back, and the epochs of each run."""
    rows = []
    for run, seen in zip(held.runs, held.epochs, strict=True):
        for rule, (values, low, high) in _by_rule(known, run).items():
            for j, target in enumerate(known.targets):
                numbers = {"epochs": values[j], "low": low[j], "high": high[j], "error": values[j] / seen[j] - 1}
                own = {"rule": rule, "network": run.network, "run": run.labels["device"], "target": target}
                rows.append({**own, "seen": float(seen[j]), **rounded(numbers)})
    return rows


def curves_of(known: Logs, new: Run, num_epochs: int) -> dict[str, tuple[Array, Array, Array]]:
    """Return by rule the loss of each epoch with its 80 % interval.

    For a network of another kind, the bounds are the curves of a faster and a slower learner. Their factor is that by which
    kinds differ in their epochs to `TARGET`.
    """
    before = curve_prediction(known, new, EPOCH_BY_EPOCH, FULL)
    curves = {BEFORE: (before.values[:num_epochs], before.low[:num_epochs], before.high[:num_epochs])}
    epochs, at = np.arange(1.0, num_epochs + 1), known.targets.index(TARGET) if TARGET in known.targets else 0
    for name, curve, (values, _, high) in (
        (CHAIN, chain_curve, of_another_kind(known, _anywhere(new), chain_epochs, known.epochs, ASKED)),
        (AFTER, mean_curve, of_another_kind(known, new, mean_epochs, known.epochs, ())),
    ):
        factor = float(high[at] / values[at])
        slow, expected, fast = (curve(known, _anywhere(new), epochs * by) for by in (1 / factor, 1, factor))
        curves[name] = expected, fast, slow
    return curves


def score_rows(known: Logs, held: Logs) -> list[Row]:
    """Return the error of each rule's curve in each run: over all epochs, and until the run is nearly perfect."""
    rows = []
    at = known.targets.index(LEARNING) if LEARNING in known.targets else -1
    for run, seen in zip(held.runs, held.epochs, strict=True):
        length = min(len(run.losses), min(len(one.losses) for one in known.runs))
        learning = int(seen[at]) if seen[at] <= length else length
        for rule, (values, low, high) in curves_of(known, run, length).items():
            real = run.losses[:length]
            inside = (low <= real) & (real <= high)
            first = score(values[:learning], real[:learning])
            numbers = {**vars(score(values, real)), "mape_learning": first.mape, "inside": float(inside.mean()),
                       "inside_learning": float(inside[:learning].mean())}  # fmt: skip
            rows.append(
                {
                    "rule": rule,
                    "network": run.network,
                    "run": run.labels["device"],
                    "learning": learning,
                    **rounded(numbers),
                }
            )
    return rows


def curve_columns(known: Logs, new: Run, held: Logs | None) -> Iterator[tuple[str, Any]]:
    """Yield by rule, for a figure: epochs with equal steps of their logarithm, the predicted loss with its bounds, and that of
    each run.
    """
    runs = held.runs if held else ()
    length = min(len(run.losses) for run in (*known.runs, *runs))
    epochs = np.unique(np.geomspace(1, length, NUM_SHOWN).astype(int))
    name = new.network.rpartition(":")[2].replace("resnet", "ResNet-")
    for rule, (values, low, high) in curves_of(known, new, length).items():
        columns = {"predicted": values, "low": low, "high": high, **{run.labels["device"]: run.losses for run in runs}}
        drawn = {key: plain(of[epochs - 1]) for key, of in columns.items()}
        yield f"{name}: {rule}", {"epoch": epochs.tolist(), **drawn}


# -- the device ----------------------------------------------------------------------------------------


def device_pairs(logs: Logs, values: Array) -> list[tuple[str, str, Difference]]:
    """Return the difference of log values of each two devices, with networks as repeats, by the one test of differences.

    The mean of each network is subtracted first; the spread is corrected for this estimate.
    """
    try:
        devices, table = by_label(logs.runs, values.tolist(), "device")
    except InputError:
        return []  # a network without a run on each of them is not a repeat
    k = len(devices)
    spreads = [Spread(float(c.mean()), float(c.std(ddof=1)) * math.sqrt(k / (k - 1)), len(c)) for c in table.T]
    pairs = itertools.combinations(range(k), 2)
    return [(devices[i], devices[j], difference(spreads[i], spreads[j])) for i, j in pairs]


def pair_rows(logs: Logs) -> list[Row]:
    """Return ratios of epochs minus 1, for each two devices and each target that all runs reached."""
    rows = []
    for j in logs.reached:
        for a, b, apart in device_pairs(logs, logs.epochs[:, j]):
            low, high = (None, None) if apart.interval is None else map(math.expm1, apart.interval)
            rows.append({"target": logs.targets[j], "a": a, "b": b, "ratio": math.expm1(apart.mean), "low": low, "high": high,
                         "p": apart.p, "is_seen": apart.is_seen})  # fmt: skip
    return rows
