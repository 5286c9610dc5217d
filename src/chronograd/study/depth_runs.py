"""Sets of runs of several networks, and what each network's features tell of one left out: rows of plain data.

The published runs are in `CIFAR_RESNETS` of CHRONOGRAD_MEASURED: `history{depth}_{device}.json` with lists `loss` and `acc`, of the
training set, by epoch. Depths 18, 34, 50, 101 and 152 are there torchvision's ImageNet networks on images of 32 x 32, other
depths of the form 6n + 2 the CIFAR ones of He et al. 2015. Source: github.com/alexunxus/DLSP_hw4_p4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.fit.curve_regression import (
    EPOCH_BY_EPOCH,
    FORMS,
    SMOOTHED,
    Predicted,
    Run,
    curve,
    describe,
    epochs_to,
    left_out,
    predict,
    regress,
    score,
)
from chronograd.fit.curves import Array
from chronograd.fit.learning_curves import read_curve
from chronograd.fit.published_runs import CIFAR_RESNETS, MEASURED_VARIABLE
from chronograd.study.results import Row

TORCHVISION_DEPTHS = (18, 34, 50, 101, 152)
CIFAR, IMAGENET = "6n+2", "ImageNet-style"
FEATURES: dict[str, tuple[str, ...]] = {
    "none": (),
    "depth": ("depth",),
    "depth and device": ("depth", "device"),
    "family": ("family",),
    "family, params, MACs": ("family", "params", "macs"),
}
OPTIMUS = "inverse"
_NAME = re.compile(r"history(?P<depth>\d+)_(?P<device>[A-Za-z0-9-]+)\.json")
_TOLERANCE = 1e-9  # a share of correct answers is a quotient of whole numbers
_DIGITS = 6
NUM_SHOWN = 40  # epochs of a curve that are kept for a figure: of more, smaller points are drawn


@dataclass(frozen=True, eq=False)
class Logs:
    """Runs that differ in network, and in device or seed only beside.

    Attributes:
        runs: with `numbers` depth, params, macs and `labels` family and device or seed.
        features: those that runs are regressed on, by name of the regression.
        targets: by name, such as `accuracy 90 %`. epochs: of each run to each, (num_runs, num_targets); NaN: not reached.
    """

    name: str
    runs: tuple[Run, ...]
    features: Mapping[str, tuple[str, ...]]
    targets: tuple[str, ...]
    epochs: Array

    def of(self, networks: Sequence[str], wanted: bool = True) -> Logs:
        """Those of some networks, or the others."""
        kept = [i for i, run in enumerate(self.runs) if (run.network in networks) == wanted]
        runs = tuple(self.runs[i] for i in kept)
        return Logs(self.name, runs, self.features, self.targets, self.epochs[kept])

    @property
    def networks(self) -> list[str]:
        """By depth."""
        return list(dict.fromkeys(run.network for run in sorted(self.runs, key=lambda run: run.numbers["depth"])))


def published_folder() -> Path | None:
    """Where the published runs are; None if they are not at hand."""
    measured = os.environ.get(MEASURED_VARIABLE)
    folder = Path(measured).expanduser() / CIFAR_RESNETS if measured else None
    return folder if folder is not None and any(folder.glob("history*.json")) else None


def ahead(name: str, depth: int, known: Logs) -> Logs:
    """A network of which there is no run, on each device of the known ones."""
    devices = dict.fromkeys(run.labels["device"] for run in known.runs)
    runs = tuple(_run(depth, device, np.zeros(0)) for device in devices)
    return Logs(name, runs, known.features, known.targets, np.full((len(runs), len(known.targets)), np.nan))


def read_logs(name: str, files: Sequence[Path], accuracies: Sequence[float]) -> Logs:
    """Read published runs, or further ones of their form and naming.

    Raises: InputError for a name that does not tell depth and device, or a depth that is of neither family.
    """
    runs, epochs = [], []
    for path in files:
        told = _NAME.fullmatch(path.name)
        if told is None:
            raise InputError(f"{path.name} does not tell depth and device", "name it history50_K80.json, for one")
        depth = int(told["depth"])
        runs.append(_run(depth, told["device"], read_curve(path).values))
        errors = read_curve(path, "accuracy").values
        epochs.append([epochs_to(errors, 1 - accuracy + _TOLERANCE) or np.nan for accuracy in accuracies])
    names = tuple(f"accuracy {100 * accuracy:g} %" for accuracy in accuracies)
    return Logs(name, tuple(runs), FEATURES, names, np.array(epochs, dtype=float).reshape(len(runs), len(names)))


def _run(depth: int, device: str, losses: Array) -> Run:
    reference, family, params, macs = _network(depth)
    numbers = {"depth": float(depth), "params": params, "macs": macs}
    return Run(reference, numbers, {"family": family, "device": device}, losses)


@cache
def _network(depth: int) -> tuple[str, str, float, float]:
    """Its name in the zoo or torchvision, its family, params, and MACs of one image of 32 x 32, for 10 classes."""
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


def coefficient_rows(logs: Logs, forms: Sequence[str]) -> list[Row]:
    """The fitted coefficients of each run, and how far the fitted curve is off."""
    rows = []
    for form in forms:
        for run, own in zip(logs.runs, _described(logs, form), strict=True):
            fitted = score(curve(form, own, len(run.losses)), run.losses)
            rows.append({**_told(logs, run), "form": form, "coefficients": _plain(own), **_scored(fitted)})
    return rows


def curve_rows(logs: Logs) -> list[Row]:
    """How far the curve predicted for each network left out is off, by form and features: the mean of its runs."""
    rows = []
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    for form in FORMS:
        described = _described(logs, form)
        for features, names in logs.features.items():
            told, _ = left_out(logs.runs, described, names, _expand(form, truth.shape[1]))
            rows += _by_network(logs, told, truth, {"form": form, "features": features})
    return rows


def repeat_rows(logs: Logs) -> list[Row]:
    """The same, of the geometric mean of a network's other runs: no regression can be expected to be better."""
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    told = []
    for i, run in enumerate(logs.runs):
        others = [j for j, other in enumerate(logs.runs) if other.network == run.network and j != i]
        if not others:
            return []
        told.append(np.exp(np.log(truth[others]).mean(axis=0)))
    return _by_network(logs, np.array(told), truth, {"form": "", "features": "its other runs"})


def _by_network(logs: Logs, told: Array, truth: Array, said: Row) -> list[Row]:
    rows = []
    for network in logs.networks:
        found = [score(told[i], truth[i]) for i, run in enumerate(logs.runs) if run.network == network]
        means = {key: float(np.mean([getattr(one, key) for one in found])) for key in vars(found[0])}
        rows.append({"set": logs.name, **said, "network": network, **_rounded(means)})
    return rows


def target_rows(logs: Logs) -> list[Row]:
    """Epochs to each target for each network left out, by features, with the interval of `prediction`."""
    rows = []
    for network in logs.networks:
        kept, held = logs.of([network], False), logs.of([network])
        for features in logs.features:
            rows += _epoch_rows(kept, held, features)
    return rows


def _epoch_rows(kept: Logs, held: Logs, features: str) -> list[Row]:
    rows = []
    at = reached_by_all(kept)
    model = regress(kept.runs, kept.epochs[:, at], kept.features[features])
    for run, seen in zip(held.runs, held.epochs, strict=True):
        told, alone = (epochs_prediction(kept, run, features, is_alone) for is_alone in (False, True))
        for i, j in enumerate(at):
            bounds = {key: float(getattr(told, key)[i]) for key in ("low", "high")}
            bounds |= {f"{key}_alone": float(getattr(alone, key)[i]) for key in ("low", "high")}
            epochs, real = float(told.values[i]), None if np.isnan(seen[j]) else float(seen[j])
            off = None if real is None else abs(epochs / real - 1)
            told_of = {"epochs": epochs, **bounds, "error": off, "leverage": model.leverage(run)}
            rows.append(
                {**_told(held, run), "features": features, "target": kept.targets[j], "seen": real} | _rounded(told_of)
            )
    return rows


def reached_by_all(logs: Logs) -> list[int]:
    """Which targets every run reached: only of those are epochs predicted."""
    return [j for j in range(len(logs.targets)) if not np.isnan(logs.epochs[:, j]).any()]


def epochs_prediction(logs: Logs, run: Run, features: str, is_alone: bool = False) -> Predicted:
    """Epochs to the targets that all runs reached, with the interval of all regressions, or of this one alone."""
    epochs = logs.epochs[:, reached_by_all(logs)]
    rivals = [] if is_alone else _rivals(logs, features)
    return predict(logs.runs, epochs, logs.features[features], run, epochs, rivals=rivals)


def curve_prediction(logs: Logs, run: Run, form: str, features: str) -> Predicted:
    """Losses by epoch, as far as the shortest of the runs goes."""
    truth = describe(EPOCH_BY_EPOCH, logs.runs)
    return predict(
        logs.runs, _described(logs, form), logs.features[features], run, truth, _expand(form, truth.shape[1]),
        min(SMOOTHED, truth.shape[1]), _rivals(logs, features),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _described(logs: Logs, form: str) -> Array:
    """Fits of a long curve take a tenth of a second."""
    return describe(form, logs.runs)


def _rivals(logs: Logs, features: str) -> list[tuple[str, ...]]:
    return [names for other, names in logs.features.items() if other != features]


def _expand(form: str, num_epochs: int) -> Any:
    return lambda described: curve(form, described, num_epochs)


def best(rows: Sequence[Row], error: str, *keys: str) -> tuple[str, ...]:
    """What has the least mean error over the networks left out: values of the keys, such as form and features."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row[error] is not None:
            found.setdefault(tuple(row[key] for key in keys), []).append(row[error])
    return min(found, key=lambda one: float(np.mean(found[one])))


def truth_rows(known: Logs, truth: Logs, forms: Sequence[str]) -> list[Row]:
    """Curves predicted from known runs against real ones, with each regression."""
    rows = []
    for run in truth.runs:
        for features in known.features:
            for form in forms:
                told = curve_prediction(known, run, form, features)
                length = min(len(told.values), len(run.losses))
                real = run.losses[:length]
                inside = float(np.mean((told.low[:length] <= real) & (real <= told.high[:length])))
                found = _scored(score(told.values[:length], real)) | _rounded({"inside": inside})
                rows.append({**_told(truth, run), "form": form, "features": features, **found})
    return rows


def truth_epoch_rows(known: Logs, truth: Logs) -> list[Row]:
    return [row for features in known.features for row in _epoch_rows(known, truth, features)]


def curve_columns(known: Logs, truth: Logs, form: str, features: str, beside: str) -> Iterator[tuple[str, Any]]:
    """Of each network: epoch, loss predicted with its bounds, loss predicted by other features, and of each run.

    Of a long curve, epochs that are even in their logarithm.
    """
    for network in truth.networks:
        runs = truth.of([network]).runs
        told = curve_prediction(known, runs[0], form, features)
        length = min(len(told.values), *(len(run.losses) or len(told.values) for run in runs))
        is_long = length > NUM_SHOWN
        shown = np.unique(np.geomspace(1, length, NUM_SHOWN).astype(int)) if is_long else np.arange(1, length + 1)
        columns = {"predicted": told.values, "low": told.low, "high": told.high}
        columns[beside] = curve_prediction(known, runs[0], form, beside).values
        columns |= {_replicate(run): run.losses for run in runs if len(run.losses)}
        kept = {name: _plain(values[shown - 1]) for name, values in columns.items()}
        yield f"{truth.name}: {network}", {"epoch": shown.tolist(), **kept}


def _replicate(run: Run) -> str:
    return run.labels.get("device") or f"seed {run.labels['seed']}"


def _told(logs: Logs, run: Run) -> Row:
    return {"set": logs.name, "network": run.network, "depth": int(run.numbers["depth"]), "run": _replicate(run)}


def _scored(found: Any) -> Row:
    return _rounded(vars(found))


def _rounded(values: Mapping[str, float | None]) -> Row:
    return {key: None if value is None else float(f"{value:.{_DIGITS}g}") for key, value in values.items()}


def _plain(values: Array) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
