"""Sets of runs of several networks, and predictions for a network left out from the others' features: rows of plain data.

The published runs are in `CIFAR_RESNETS` of CHRONOGRAD_MEASURED: `history{depth}_{device}.json` with lists `loss` and `acc`, of
the training set, by epoch. Depths 18, 34, 50, 101 and 152 are torchvision's ImageNet networks on images of 32 x 32. Other
depths of the form 6n + 2 are the CIFAR networks of He et al. 2015. Source: github.com/alexunxus/DLSP_hw4_p4. Its runs of depth
50 are in a separate folder: they score predictions, and nothing is fitted to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.curves import FAMILIES, Array, crossing
from chronograd.forecast.learning_curves import read_curve
from chronograd_lab.common.published_runs import CIFAR_RESNETS, measured_folder
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import grouped, mean, six_digits
from chronograd_lab.studies.depth_and_device.curve_regression import (
    EPOCH_BY_EPOCH,
    FORMS,
    MIN_NETWORKS,
    SMOOTHED,
    Predicted,
    Run,
    curve,
    describe,
    epochs_to,
    label_test,
    left_out,
    predict,
    regress,
    score,
    slope,
)

TORCHVISION_DEPTHS = (18, 34, 50, 101, 152)
CIFAR, IMAGENET = "6n+2", "ImageNet-style"
FULL = "family, params, MACs"
FEATURES: dict[str, tuple[str, ...]] = {
    "none": (),
    "depth": ("depth",),
    "depth and device": ("depth", "device"),
    "family": ("family",),
    FULL: ("family", "params", "macs"),
}
OPTIMUS = "inverse"
AT_BOUND = 1e-9  # a smaller coefficient would be 0 without the fit's stopping rule
_NAME = re.compile(r"history(?P<depth>\d+)_(?P<device>[A-Za-z0-9-]+)\.json")
_TOLERANCE = 1e-9  # a share of correct answers is a quotient of whole numbers
NUM_SHOWN = 40  # epochs of a curve in a figure; a longer curve has fewer points


@dataclass(frozen=True, eq=False)
class Logs:
    """Runs that differ in network, and otherwise only in device or seed.

    Attributes:
        runs: with `numbers` depth, params, macs and `labels` family and device or seed.
        features: of each regression, by its name.
        targets: by name, such as `accuracy 90 %`. epochs: of each run to each, (num_runs, num_targets); NaN if not reached.
        levels: the loss at which each run had each accuracy, between epochs, (num_runs, num_targets); empty if the targets are
            losses.
    """

    name: str
    runs: tuple[Run, ...]
    features: Mapping[str, tuple[str, ...]]
    targets: tuple[str, ...]
    epochs: Array
    levels: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def of(self, networks: Sequence[str], wanted: bool = True) -> Logs:
        """Return the runs of some networks, or of all others."""
        at = [i for i, run in enumerate(self.runs) if (run.network in networks) == wanted]
        levels = self.levels[at] if len(self.levels) else self.levels
        return replace(self, runs=tuple(self.runs[i] for i in at), epochs=self.epochs[at], levels=levels)

    @property
    def networks(self) -> list[str]:
        """Return the networks by depth."""
        return list(dict.fromkeys(run.network for run in sorted(self.runs, key=lambda run: run.numbers["depth"])))

    @property
    def reached(self) -> list[int]:
        """Return the targets that every run reached: epochs are predicted only for these."""
        return np.flatnonzero(~np.isnan(self.epochs).any(axis=0)).tolist()


def published_folder(name: str = CIFAR_RESNETS) -> Path | None:
    """Return the folder of the published runs; None if they are not available."""
    measured = measured_folder()
    folder = measured / name if measured else None
    return folder if folder is not None and any(folder.glob("history*.json")) else None


def ahead(depth: int, known: Logs) -> Logs:
    """Return a network without a run, on each device of the known ones."""
    devices = dict.fromkeys(run.labels["device"] for run in known.runs)
    runs = tuple(_run(depth, device, np.zeros(0)) for device in devices)
    epochs = np.full((len(runs), len(known.targets)), np.nan)
    return replace(known, name=f"ahead, {runs[0].network}", runs=runs, epochs=epochs, levels=np.zeros((0, 0)))


def read_logs(name: str, files: Sequence[Path], accuracies: Sequence[float]) -> Logs:
    """Read published runs, or further ones with the same form and names.

    Raises: InputError for a name without depth and device, or a depth of neither family.
    """
    runs, epochs, levels = [], [], []
    for path in files:
        named = _NAME.fullmatch(path.name)
        if named is None:
            raise InputError(f"{path.name} does not tell depth and device", "name it history50_K80.json, for one")
        losses, errors = read_curve(path).values, read_curve(path, "accuracy").values
        runs.append(_run(int(named["depth"]), named["device"], losses))
        epochs.append([epochs_to(errors, 1 - accuracy + _TOLERANCE) or np.nan for accuracy in accuracies])
        levels.append([_level(losses, errors, 1 - accuracy) for accuracy in accuracies])
    names = tuple(f"accuracy {100 * accuracy:g} %" for accuracy in accuracies)
    reached, at = (np.array(rows, dtype=float).reshape(len(runs), len(names)) for rows in (epochs, levels))
    return Logs(name, tuple(runs), FEATURES, names, reached, at)


def _level(losses: Array, errors: Array, error: float) -> float:
    """Return the loss at which an error is first reached, linear between epochs; NaN if it is not."""
    at = crossing(np.arange(1.0, len(errors) + 1), errors, error)
    return np.nan if at is None else float(np.interp(at, np.arange(1.0, len(losses) + 1), losses))


def _run(depth: int, device: str, losses: Array) -> Run:
    reference, family, params, macs = _network(depth)
    numbers = {"depth": float(depth), "params": params, "macs": macs}
    return Run(reference, numbers, {"family": family, "device": device}, losses)


@cache
def _network(depth: int) -> tuple[str, str, float, float]:
    """Return its name in the zoo or torchvision, its family, params, and MACs of one image of 32 x 32, for 10 classes."""
    from chronograd.count.network import trace_network

    if depth in TORCHVISION_DEPTHS:
        reference, family = f"torchvision:resnet{depth}", IMAGENET
    elif depth % 6 == 2 and depth > 2:
        reference, family = f"resnet{depth}", CIFAR
    else:
        raise InputError(
            f"depth {depth} is none of torchvision's {', '.join(map(str, TORCHVISION_DEPTHS))}, and not 6n + 2",
            "give logs of such networks",
        )
    trace = trace_network(reference, {}, input_shape=(3, 32, 32), num_classes=10)
    return reference, family, float(trace.params), float(trace.macs())


# -- networks left out ---------------------------------------------------------------------------------


def analysed(logs: Logs, notes: list[str]) -> dict[str, list[Row]]:
    """Return coefficients, errors of networks left out, and the best prediction."""
    if len(logs.networks) <= MIN_NETWORKS:
        notes.append(f"{logs.name}: {len(logs.networks)} networks are too few for intervals of one left out")
    curves, targets, chosen = choice(logs)
    forms = tuple(dict.fromkeys((OPTIMUS, best_formula(curves))))
    return {
        "coefficients": coefficient_rows(logs, forms), "curves": [*curves, *repeat_rows(logs)], "targets": targets,
        "chosen": [chosen], "networks": _network_rows(logs),
    }  # fmt: skip


def choice(logs: Logs) -> tuple[list[Row], list[Row], Row]:
    """Return the errors of curves and epochs for networks left out, and the prediction with the smallest error, the only rule
    of choice.
    """
    curves = curve_rows(logs)
    targets = target_rows(logs) if len(logs.networks) > MIN_NETWORKS else []
    form, features = best(curves, "mape", "form", "features")
    epochs_by = best(targets, "error", "features")[0] if targets else features
    return curves, targets, {"set": logs.name, "form": form, "features": features, "target_features": epochs_by}


def best(rows: Sequence[Row], error: str, *keys: str) -> tuple[str, ...]:
    """Return the values of the keys, such as form and features, with the smallest mean error over the networks left out."""
    means = {tuple(own[0][key] for key in keys): mean(own, error) for own in grouped(rows, *keys).values()}
    return min((one for one in means if means[one] is not None), key=lambda one: means[one] or 0.0)


def best_formula(curves: Sequence[Row]) -> str:
    """Return the form with coefficients that predicts networks left out best."""
    return best([row for row in curves if row["form"] in FAMILIES], "mape", "form")[0]


def _network_rows(logs: Logs) -> list[Row]:
    rows = []
    for run, epochs in zip(logs.runs, logs.epochs, strict=True):
        reached = [None if np.isnan(epoch) else int(epoch) for epoch in epochs]
        ends = [float(run.losses[0]), float(run.losses[-1])]
        known = {"set": logs.name, "network": run.network, **run.numbers, **run.labels, "losses": ends}
        rows.append({**known, "epochs": dict(zip(logs.targets, reached, strict=True))})
    return rows


def coefficient_rows(logs: Logs, forms: Sequence[str]) -> list[Row]:
    """Return the fitted coefficients of each run, and the error of the fitted curve."""
    rows = []
    for form in forms:
        for run, own in zip(logs.runs, _described(logs, form), strict=True):
            fitted = vars(score(curve(form, own, len(run.losses)), run.losses))
            rows.append({**_named(logs, run), "form": form, "coefficients": plain(own), **rounded(fitted)})
    return rows


def curve_rows(logs: Logs) -> list[Row]:
    """Return the error of the curve predicted for each network left out, by form and features: the mean of its runs."""
    rows = []
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    for form in FORMS:
        for features, names in logs.features.items():
            predicted, _ = left_out(logs.runs, _described(logs, form), names, _expand(form, truth.shape[1]))
            rows += _by_network(logs, predicted, truth, {"form": form, "features": features})
    return rows


def repeat_rows(logs: Logs) -> list[Row]:
    """Return the same for the geometric mean of a network's other runs: no regression can be expected to be better."""
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    predicted = []
    for i, run in enumerate(logs.runs):
        others = [j for j, other in enumerate(logs.runs) if other.network == run.network and j != i]
        if not others:
            return []
        predicted.append(np.exp(np.log(truth[others]).mean(axis=0)))
    return _by_network(logs, np.array(predicted), truth, {"form": "", "features": "its other runs"})


def _by_network(logs: Logs, predicted: Array, truth: Array, known: Row) -> list[Row]:
    rows = []
    for network in logs.networks:
        scores = [vars(score(predicted[i], truth[i])) for i, run in enumerate(logs.runs) if run.network == network]
        means = {key: mean(scores, key) for key in scores[0]}
        rows.append({"set": logs.name, **known, "network": network, **rounded(means)})
    return rows


def target_rows(logs: Logs) -> list[Row]:
    """Return epochs to each target for each network left out, by features, with their intervals."""
    return [
        row
        for network in logs.networks
        for features in logs.features
        for row in _epoch_rows(logs.of([network], False), logs.of([network]), features)
    ]


def _epoch_rows(known: Logs, held: Logs, features: str) -> list[Row]:
    rows = []
    model = regress(known.runs, known.epochs[:, known.reached], known.features[features])
    for run, seen in zip(held.runs, held.epochs, strict=True):
        among, alone = (epochs_prediction(known, run, features, is_alone) for is_alone in (False, True))
        for i, j in enumerate(known.reached):
            epochs, real = float(among.values[i]), None if np.isnan(seen[j]) else float(seen[j])
            numbers = {
                "epochs": epochs, "low": among.low[i], "high": among.high[i], "low_alone": alone.low[i],
                "high_alone": alone.high[i], "error": None if real is None else abs(epochs / real - 1),
                "leverage": model.leverage(run),
            }  # fmt: skip
            own = {"features": features, "target": known.targets[j], "seen": real}
            rows.append(_named(held, run) | own | rounded(numbers))
    return rows


def epochs_prediction(logs: Logs, run: Run, features: str, is_alone: bool = False) -> Predicted:
    """Predict epochs to the targets that all runs reached, with the interval of all regressions, or of this one alone."""
    epochs = logs.epochs[:, logs.reached]
    rivals = [] if is_alone else _rivals(logs, features)
    return predict(logs.runs, epochs, logs.features[features], run, epochs, rivals=rivals)


def curve_prediction(logs: Logs, run: Run, form: str, features: str) -> Predicted:
    """Predict losses by epoch, up to the length of the shortest run."""
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    return predict(
        logs.runs, _described(logs, form), logs.features[features], run, truth, _expand(form, truth.shape[1]),
        min(SMOOTHED, truth.shape[1]), _rivals(logs, features),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _described(logs: Logs, form: str) -> Array:
    """Return descriptions, cached: fits of a long curve take a tenth of a second."""
    return describe(form, logs.runs)


def _rivals(logs: Logs, features: str) -> list[tuple[str, ...]]:
    return [names for other, names in logs.features.items() if other != features]


def _expand(form: str, num_epochs: int) -> Callable[[Array], Array]:
    return partial(curve, form, num_epochs=num_epochs)


# -- networks that were held back, or never trained ----------------------------------------------------


def truth_rows(known: Logs, truth: Logs, forms: Sequence[str]) -> list[Row]:
    """Compare curves predicted from known runs with real ones, for each regression."""
    rows = []
    for run in truth.runs:
        for features in known.features:
            for form in forms:
                predicted = curve_prediction(known, run, form, features)
                length = min(len(predicted.values), len(run.losses))
                real = run.losses[:length]
                inside = float(np.mean((predicted.low[:length] <= real) & (real <= predicted.high[:length])))
                scores = {**vars(score(predicted.values[:length], real)), "inside": inside}
                rows.append({**_named(truth, run), "form": form, "features": features, **rounded(scores)})
    return rows


def truth_epoch_rows(known: Logs, truth: Logs) -> list[Row]:
    return [row for features in known.features for row in _epoch_rows(known, truth, features)]


def curve_columns(known: Logs, truth: Logs, form: str, features: str, beside: str) -> Iterator[tuple[str, Any]]:
    """Yield for each network: epoch, predicted loss with its bounds, loss predicted by other features, and the loss of each
    run.

    A long curve has epochs with equal steps of their logarithm.
    """
    for network in truth.networks:
        runs = truth.of([network]).runs
        ours = curve_prediction(known, runs[0], form, features)
        length = min(len(ours.values), *(len(run.losses) or len(ours.values) for run in runs))
        epochs = np.unique(np.geomspace(1, length, NUM_SHOWN).astype(int))
        if length <= NUM_SHOWN:
            epochs = np.arange(1, length + 1)
        columns = {"predicted": ours.values, "low": ours.low, "high": ours.high}
        columns[beside] = curve_prediction(known, runs[0], form, beside).values
        columns |= {_replicate(run): run.losses for run in runs if len(run.losses)}
        drawn = {name: plain(values[epochs - 1]) for name, values in columns.items()}
        yield f"{truth.name}: {network}", {"epoch": epochs.tolist(), **drawn}


# -- tests of the published runs' claims --------------------------------------------------------------


def device_rows(logs: Logs, notes: list[str]) -> list[Row]:
    """Test whether the device changes the epochs to each target, with networks as blocks."""
    rows: list[Row] = []
    for j, target in enumerate(logs.targets):
        epochs = logs.epochs[:, j]
        try:
            tested = label_test(logs.runs, epochs.tolist(), "device")
        except InputError as error:
            notes.append(f"{target}: no test of the device, {error}")
            continue
        rows.append({"target": target, "mean_epochs": float(np.exp(np.mean(np.log(epochs)))), **vars(tested)})
    return rows


def slope_rows(logs: Logs, coefficients: Sequence[Row]) -> list[Row]:
    """Return d log y / d log depth of epochs and coefficients over the networks, with and without those of another family."""
    ys = {target: logs.epochs[:, j] for j, target in enumerate(logs.targets)}
    for form, fits in grouped(coefficients, "form").items():
        ys |= {f"{form}, {name}": np.array([row["coefficients"][i] for row in fits])
               for i, name in enumerate(FAMILIES[form].names)}  # fmt: skip
    rows: list[Row] = []
    for name, y in ys.items():
        if not (y > AT_BOUND).all():  # false for NaN, where a run did not reach a target
            continue
        for over, families in (("all", (CIFAR, IMAGENET)), (CIFAR, (CIFAR,))):
            own = [[i for i, run in enumerate(logs.runs) if run.network == network] for network in logs.networks]
            own = [at for at in own if logs.runs[at[0]].labels["family"] in families]
            depths = [logs.runs[at[0]].numbers["depth"] for at in own]
            value, low, high = slope(depths, [float(np.exp(np.log(y[at]).mean())) for at in own])
            rows.append({"target": name, "over": over, "slope": value, "low": low, "high": high})
    return rows


def _replicate(run: Run) -> str:
    return run.labels.get("device") or f"seed {run.labels['seed']}"


def _named(logs: Logs, run: Run) -> Row:
    return {"set": logs.name, "network": run.network, "depth": int(run.numbers["depth"]), "run": _replicate(run)}


def rounded(values: Mapping[str, float | None]) -> Row:
    """Round values to six digits."""
    return {key: None if value is None else six_digits(value) for key, value in values.items()}


def plain(values: Iterable[float]) -> list[float]:
    return [six_digits(value) for value in values]
