"""Depth and device: what the training curves of some networks tell of one never trained, and whether the device matters.

Published runs: ResNets of five depths on CIFAR-10, each on K80, P100 and V100; SGD with rate 0.01 and momentum 0.9, batch 128,
350 epochs, no schedule. Own runs: 6n + 2 ResNets on a part of CIFAR-10, a few epochs, with a depth that is left to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chronograd.answer import Answer
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.fit.curve_regression import MIN_NETWORKS, Run, epochs_to, label_test, slope
from chronograd.fit.curves import FAMILIES
from chronograd.fit.published_runs import MEASURED_VARIABLE
from chronograd.job import Job
from chronograd.study.arms import job_of
from chronograd.study.depth_page import AT_BOUND, OWN, PUBLISHED, TRUTH, make_page
from chronograd.study.depth_runs import (
    CIFAR,
    IMAGENET,
    OPTIMUS,
    Logs,
    ahead,
    best,
    coefficient_rows,
    curve_columns,
    curve_rows,
    published_folder,
    read_logs,
    repeat_rows,
    target_rows,
    truth_epoch_rows,
    truth_rows,
)
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import matching
from chronograd.study.runner import StudyRunner, curve, over_seeds, split_seed
from chronograd.study.study import Study

Rows = dict[str, list[Row]]
Curves = dict[str, dict[str, list[float | None]]]
OWN_FEATURES: dict[str, tuple[str, ...]] = {"none": (), "depth": ("depth",), "params, MACs": ("params", "macs")}
BESIDE = "depth"  # the regression that the exercise asks for


def job(settings: Settings, network: str) -> Job:
    """On one core, with the optimizer of the published runs: no weight decay, no schedule, no augmentation."""
    parts = {"cluster": {"device": "cpu", "threads": 1}}
    return job_of(settings, network, parts=parts, recipe="sgd-momentum", weight_decay=0.0)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Raises InputError if published runs are wanted and not there."""
    folder, files = _published(settings, runner.truth)
    found: Rows = {}
    curves: Curves = {}
    notes: list[str] = []
    if settings["networks"]:
        own = _own(runner, settings)
        known, held = own.of([settings["target"]], False), own.of([settings["target"]])
        _add(found, _analysed(known, notes))
        _score(found, curves, known, held)
    if folder is not None:
        published = read_logs(PUBLISHED, sorted(folder.glob("history*.json")), settings["accuracy_targets"])
        _add(found, _analysed(published, notes))
        slopes = _slopes(published, [row for row in found["coefficients"] if row["set"] == PUBLISHED])
        _add(found, {"devices": _devices(published, notes), "slopes": slopes})
        form, features = _chosen(found["chosen"], PUBLISHED)
        for network in published.networks:
            kept, held = published.of([network], False), published.of([network])
            curves |= dict(curve_columns(kept, held, form, features, BESIDE))
        for depth in settings["ahead"]:
            _predict_ahead(found, curves, published, depth)
        if files:
            truth = read_logs(TRUTH, files, settings["accuracy_targets"])
            _score(found, curves, published.of(truth.networks, False), truth)
    elif settings["published"]:
        notes.append(f"the published runs are not at hand: {MEASURED_VARIABLE} names no folder with them")
    return runner.results(settings, rows=found, curves=curves, notes=notes)


def _published(settings: Settings, truth: Sequence[Path]) -> tuple[Path | None, Sequence[Path]]:
    """Where they are, where they are wanted; and the logs that are scored by them, all read once before anything runs."""
    folder = published_folder() if settings["published"] or truth else None
    if folder is None and (truth or not settings["networks"]):
        raise InputError(
            f"the published runs are not at hand: {MEASURED_VARIABLE} names no folder with them",
            "name the folder of measured runs there, or leave --truth out and run --size laptop",
        )
    if truth:
        read_logs(TRUTH, truth, settings["accuracy_targets"])
    return folder, truth


def _own(runner: StudyRunner, settings: Settings) -> Logs:
    """Own runs, seeds in place of devices: trained networks and the one left to predict."""
    runner.threads = 1
    jobs = {network: job(settings, network) for network in (*settings["networks"], settings["target"])}
    traces = {network: trace_job(own) for network, own in jobs.items()}
    runs, epochs = [], []
    for name, run in runner.train(over_seeds(jobs, settings["seeds"])).items():
        network, seed = split_seed(name)
        losses = np.array(curve(run.record())["train_loss"], dtype=float)
        trace = traces[network]
        numbers = {"depth": _depth(network), "params": float(trace.params), "macs": float(trace.macs())}
        runs.append(Run(network, numbers, {"family": CIFAR, "seed": str(seed)}, losses))
        epochs.append([epochs_to(losses, target) or np.nan for target in settings["loss_targets"]])
    targets = tuple(f"loss {target:g}" for target in settings["loss_targets"])
    return Logs(OWN, tuple(runs), OWN_FEATURES, targets, np.array(epochs, dtype=float))


def _depth(network: str) -> float:
    """
    >>> _depth("resnet50-cifar")
    50.0
    """
    return float(network.removeprefix("resnet").removesuffix("-cifar"))


def _analysed(logs: Logs, notes: list[str]) -> dict[str, list[Row]]:
    """Coefficients, errors of networks left out, and the prediction that has the least: no other rule chooses it."""
    if len(logs.networks) <= MIN_NETWORKS:
        notes.append(f"{logs.name}: {len(logs.networks)} networks are too few for intervals of one left out")
    curves = curve_rows(logs)
    targets = target_rows(logs) if len(logs.networks) > MIN_NETWORKS else []
    form, features = best(curves, "mape", "form", "features")
    chosen: Row = {"set": logs.name, "form": form, "features": features}
    chosen["target_features"] = best(targets, "error", "features")[0] if targets else features
    return {
        "coefficients": coefficient_rows(logs, tuple(dict.fromkeys((OPTIMUS, _best_formula(curves))))),
        "curves": [*curves, *repeat_rows(logs)],
        "targets": targets,
        "chosen": [chosen],
        "networks": _networks(logs),
    }


def _best_formula(curves: Sequence[Row]) -> str:
    """Of the forms that have coefficients, the one that predicts networks left out best."""
    return best([row for row in curves if row["form"] in FAMILIES], "mape", "form")[0]


def _networks(logs: Logs) -> list[Row]:
    rows = []
    for run, epochs in zip(logs.runs, logs.epochs, strict=True):
        reached = [None if np.isnan(epoch) else int(epoch) for epoch in epochs]
        ends = [float(run.losses[0]), float(run.losses[-1])]
        known = {"set": logs.name, "network": run.network, **run.numbers, **run.labels, "losses": ends}
        rows.append({**known, "epochs": dict(zip(logs.targets, reached, strict=True))})
    return rows


def _devices(logs: Logs, notes: list[str]) -> list[Row]:
    """Whether the device changes the epochs to each target, networks as blocks."""
    rows: list[Row] = []
    for j, target in enumerate(logs.targets):
        epochs = logs.epochs[:, j]
        try:
            tested = label_test(logs.runs, epochs.tolist(), "device")
        except InputError as error:
            notes.append(f"{target}: no test of the device, {error}")
            continue
        mean = float(np.exp(np.mean(np.log(epochs))))
        rows.append({"target": target, "mean_epochs": mean, **vars(tested)})
    return rows


def _slopes(logs: Logs, coefficients: Sequence[Row]) -> list[Row]:
    """d log y / d log depth of epochs and coefficients over the networks, with and without those of another family."""
    ys = {target: logs.epochs[:, j] for j, target in enumerate(logs.targets)}
    for form in dict.fromkeys(row["form"] for row in coefficients):
        values = np.array([row["coefficients"] for row in coefficients if row["form"] == form])
        ys |= {f"{form}, {name}": values[:, i] for i, name in enumerate(FAMILIES[form].names)}
    rows: list[Row] = []
    for name, y in ys.items():
        if not (y > AT_BOUND).all():  # NaN, where a run did not reach a target, is not
            continue
        for over, families in (("all", (CIFAR, IMAGENET)), (CIFAR, (CIFAR,))):
            own = [[i for i, run in enumerate(logs.runs) if run.network == network] for network in logs.networks]
            own = [at for at in own if logs.runs[at[0]].labels["family"] in families]
            depths = [logs.runs[at[0]].numbers["depth"] for at in own]
            value, low, high = slope(depths, [float(np.exp(np.log(y[at]).mean())) for at in own])
            rows.append({"target": name, "over": over, "slope": value, "low": low, "high": high})
    return rows


def _score(found: Rows, curves: Curves, known: Logs, held: Logs) -> None:
    """Real runs of networks that the known ones do not have, against what these predict, each way."""
    rows = curve_rows(known)
    form, features = best(rows, "mape", "form", "features")
    targets = target_rows(known) if len(known.networks) > MIN_NETWORKS else []
    target_features = best(targets, "error", "features")[0] if targets else features
    forms = tuple(dict.fromkeys((form, _best_formula(rows), OPTIMUS)))
    _add(found, {"scored": truth_rows(known, held, forms), "scored_epochs": truth_epoch_rows(known, held)})
    if held.name == TRUTH:
        chosen = {"set": TRUTH, "form": form, "features": features, "target_features": target_features}
        _add(found, {"chosen": [chosen]})
    curves |= dict(curve_columns(known, held, form, features, BESIDE))


def _predict_ahead(found: Rows, curves: Curves, known: Logs, depth: int) -> None:
    """What is to be expected of a network of which there is no run."""
    form, features = _chosen(found["chosen"], PUBLISHED)
    network = ahead("ahead", depth, known)
    network = replace(network, name=f"ahead, {network.networks[0]}")
    (run, *_) = network.runs
    _add(found, {"ahead": matching(truth_epoch_rows(known, network), run=run.labels["device"])})
    curves |= dict(curve_columns(known, network, form, features, BESIDE))


def _add(found: Rows, more: Rows) -> None:
    for name, rows in more.items():
        found.setdefault(name, []).extend(rows)


def _chosen(rows: Sequence[Row], of: str) -> tuple[str, str]:
    (row, *_) = matching(rows, set=of)
    return row["form"], row["features"]


def page(results: Results) -> Answer:
    return make_page(STUDY, results)


_ACCURACIES = [0.9, 0.95, 0.99]
_SMOKE = {
    "data": "digits", "samples": 100, "test_samples": 20, "image_size": 8, "networks": ["resnet8", "resnet14", "resnet20"],
    "target": "resnet32", "epochs": 3, "batch": 20, "learning_rate": 0.01, "momentum": 0.9, "seeds": 1,
    "loss_targets": [2.2], "published": False, "accuracy_targets": _ACCURACIES, "ahead": [],
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "samples": 2000, "test_samples": 200, "image_size": 16,
    "networks": ["resnet8", "resnet14", "resnet20", "resnet32", "resnet44"], "target": "resnet50-cifar", "epochs": 16,
    "batch": 32, "learning_rate": 0.01, "momentum": 0.9, "seeds": 2, "loss_targets": [1.75, 1.5, 1.25], "published": True,
    "accuracy_targets": _ACCURACIES, "ahead": [50],
}  # fmt: skip
_PAPER = {"networks": [], "published": True, "accuracy_targets": _ACCURACIES, "ahead": [50]}

STUDY = Study(
    name="depth-and-device",
    question="What do the training curves of some networks tell of one never trained, and do epochs depend on the device?",
    hypothesis="Epochs to an accuracy are a matter of the network and the same on every device; deeper networks of one family "
    "need fewer, and depth alone cannot tell of another family",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
    truth="logs of further runs, history{depth}_{device}.json: depth 18, 34, 50, 101, 152 are torchvision's, others 6n + 2",
)
