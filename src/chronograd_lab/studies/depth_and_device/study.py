"""Depth and device: predict an untrained network from the training curves of others, and test whether the device matters.

Published runs: ResNets of five depths on CIFAR-10, each on K80, P100 and V100; SGD with rate 0.01 and momentum 0.9, batch 128,
350 epochs, no schedule. Three runs of ResNet-50 are not fitted to. Own runs: 6n + 2 ResNets on a part of CIFAR-10, a few
epochs; one depth is left to predict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd_lab.common.arms import Arm, job_of, train_arms
from chronograd_lab.common.published_runs import HELD_BACK, MEASURED_VARIABLE
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, ends, grouped, matching, mean
from chronograd_lab.common.runner import StudyRunner, curve
from chronograd_lab.common.study import Study
from chronograd_lab.common.written import key
from chronograd_lab.studies.depth_and_device import depth_runs as runs_of
from chronograd_lab.studies.depth_and_device import optimus_chain as chain
from chronograd_lab.studies.depth_and_device.blocks import (
    OWN,
    PUBLISHED,
    TRUTH,
    blocks,
    held_counts,
    inside,
    name_of,
    share_of,
)
from chronograd_lab.studies.depth_and_device.curve_regression import EPOCH_BY_EPOCH, Run, epochs_to
from chronograd_lab.studies.depth_and_device.depth_runs import AT_BOUND, CIFAR, FULL, IMAGENET, OPTIMUS, Logs
from chronograd_lab.studies.depth_and_device.optimus_chain import AFTER, BEFORE, CHAIN, FORECAST, TARGET

Rows = dict[str, list[Row]]
Curves = dict[str, dict[str, list[float | None]]]
OWN_FEATURES: dict[str, tuple[str, ...]] = {"none": (), "depth": ("depth",), "params, MACs": ("params", "macs")}
BASELINE = "depth"  # the regression that the exercise asks for


def job(settings: Settings, network: str) -> Job:
    """Return a job on one core, with the optimizer of the published runs: no weight decay, no schedule, no augmentation."""
    parts = {"cluster": {"device": "cpu", "threads": 1}}
    return job_of(settings, network, parts=parts, recipe="sgd-momentum", weight_decay=0.0)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Run the study. Raises InputError if it needs published runs and they are not available."""
    folder, accuracies = _published(settings, runner.truth), settings["accuracy_targets"]
    rows: Rows = {}
    curves: Curves = {}
    notes: list[str] = []
    if settings["networks"]:
        own = _own(runner, settings)
        known, held = own.of([settings["target"]], False), own.of([settings["target"]])
        _add(rows, runs_of.analysed(known, notes))
        _score(rows, curves, known, held)
    if folder is not None:
        published = runs_of.read_logs(PUBLISHED, sorted(folder.glob("history*.json")), accuracies)
        found, drawn = of_published(published, settings["ahead"], notes)
        _add(rows, found)
        curves |= drawn
        if runner.truth:
            truth = runs_of.read_logs(TRUTH, runner.truth, accuracies)
            _score(rows, curves, published.of(truth.networks, False), truth)
    elif settings["published"]:
        notes.append(f"the published runs are not available: {MEASURED_VARIABLE} names no folder with them")
    return runner.results(settings, rows=rows, curves=curves, notes=notes)


def of_published(published: Logs, ahead: Sequence[int], notes: list[str]) -> tuple[Rows, Curves]:
    """Return results of the published runs: their own, predictions of each network left out, and of depths without published
    runs.
    """
    rows: Rows = {}
    curves: Curves = {}
    analysed = runs_of.analysed(published, notes)
    slopes = runs_of.slope_rows(published, analysed["coefficients"])
    _add(rows, {**analysed, "devices": runs_of.device_rows(published, notes), "slopes": slopes})
    _add(rows, {"triples": chain.triple_rows(published), "pairs": chain.pair_rows(published)})
    form, features = (analysed["chosen"][0][key] for key in ("form", "features"))
    for network in published.networks:
        kept, held = published.of([network], False), published.of([network])
        curves |= dict(runs_of.curve_columns(kept, held, form, features, BASELINE))
    for depth in ahead:
        if len({run.labels["family"] for run in published.runs}) > 1 and len(published.reached) == len(
            published.targets
        ):
            _add(rows, chain.ahead_rows(published, runs_of.ahead(depth, published).runs[0]))
            held_back = _held_back(depth, published)
            curves |= dict(chain.curve_columns(published, runs_of.ahead(depth, published).runs[0], held_back))
            if held_back is not None:
                _add(
                    rows,
                    {
                        "held": chain.epoch_rows(published, held_back),
                        "held_curves": chain.score_rows(published, held_back),
                        "held_triples": chain.triple_rows(held_back),
                    },
                )
                _add(rows, {"held_runs": _test_accuracies()})
    return rows, curves


def _held_back(depth: int, published: Logs) -> Logs | None:
    """Return the held-out runs of a depth; None if they are not available."""
    folder = runs_of.published_folder(HELD_BACK)
    files = sorted(folder.glob(f"history{depth}_*.json")) if folder else []
    accuracies = [float(target.split()[1]) / 100 for target in published.targets]
    return runs_of.read_logs("held back", files, accuracies) if files else None


def _test_accuracies() -> list[Row]:
    """Return the highest test accuracy of each held-out run."""
    folder = runs_of.published_folder(HELD_BACK)
    assert folder is not None
    accuracies = {
        path.stem.partition("_")[2]: json.loads(path.read_text()).get("val_acc")
        for path in sorted(folder.glob("*.json"))
    }
    return [{"run": run, "best_test_accuracy": max(values) if values else None} for run, values in accuracies.items()]


def _published(settings: Settings, truth: Sequence[Path]) -> Path | None:
    """Return the folder of the published runs if they are needed. Check the files to score before anything runs."""
    folder = runs_of.published_folder() if settings["published"] or truth else None
    if folder is None and (truth or not settings["networks"]):
        raise InputError(
            f"the published runs are not available: {MEASURED_VARIABLE} names no folder with them",
            "name the folder of measured runs there, or leave --truth out and run --size laptop",
        )
    if truth:
        runs_of.read_logs(TRUTH, truth, settings["accuracy_targets"])
    return folder


def _own(runner: StudyRunner, settings: Settings) -> Logs:
    """Return own runs, with seeds in place of devices: of trained networks and of the one left to predict."""
    runner.threads = 1
    arms = [
        Arm(network, job(settings, network), seeds=range(settings["seeds"]))
        for network in (*settings["networks"], settings["target"])
    ]
    traces = {arm.name: trace_job(arm.job) for arm in arms}
    runs, epochs = [], []
    for one in train_arms(runner, arms):
        losses = np.array(curve(one.run.record())["train_loss"], dtype=float)
        trace, depth = traces[one.arm.name], one.arm.name.removeprefix("resnet").removesuffix("-cifar")
        numbers = {"depth": float(depth), "params": float(trace.params), "macs": float(trace.macs())}
        runs.append(Run(one.arm.name, numbers, {"family": CIFAR, "seed": str(one.seed)}, losses))
        epochs.append([epochs_to(losses, target) or np.nan for target in settings["loss_targets"]])
    targets = tuple(f"loss {target:g}" for target in settings["loss_targets"])
    return Logs(OWN, tuple(runs), OWN_FEATURES, targets, np.array(epochs, dtype=float))


def _score(rows: Rows, curves: Curves, known: Logs, held: Logs) -> None:
    """Compare real runs of networks outside the known ones with each prediction from the known ones."""
    errors, _, chosen = runs_of.choice(known)
    form, features = chosen["form"], chosen["features"]
    forms = tuple(dict.fromkeys((form, runs_of.best_formula(errors), OPTIMUS)))
    scored = runs_of.truth_rows(known, held, forms)
    _add(rows, {"scored": scored, "scored_epochs": runs_of.truth_epoch_rows(known, held)})
    if held.name == TRUTH:
        _add(rows, {"chosen": [{**chosen, "set": TRUTH}]})
    curves |= dict(runs_of.curve_columns(known, held, form, features, BASELINE))


def _add(rows: Rows, more: Rows) -> None:
    for name, own in more.items():
        rows.setdefault(name, []).extend(own)


# -- the page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, triples = results.rows, results.rows["triples"]
    held, curves, at_target = rows["held"], rows["held_curves"], {"rule": CHAIN, "target": TARGET}
    (ahead,) = matching(rows["ahead"], **at_target)
    said = [row for row in matching(held, rule=BEFORE) if row["target"] in FORECAST]
    plain = {row["coefficient"]: row for row in rows["regression"]}
    pairs, drawn = rows["pairs"], results.curves[f"{name_of(ahead['network'])}: {CHAIN}"]
    return {
        "plain": {network.rpartition(":")[2]: dict(zip(("b0", "b1"), np.mean([row["plain"] for row in own], axis=0), strict=False))
                  for network, own in grouped(triples, "network").items()},
        "runs": {"all": len(triples), "b2_is_0": sum(row["plain"][2] < AT_BOUND for row in triples),
                 "b1_is_0": sum(row["weighted"][1] < AT_BOUND for row in triples),
                 "lost": sum(row["is_lost_without_bounds"] for row in triples)},
        "regression": {key(name): {"mean": float(np.mean(row["predicted"])), "all": row.get("slope_all", [None])[0],
                                   "inside": row.get(f"slope_{CIFAR}", [None])[0]} for name, row in plain.items()},
        "real_coefficients": {f"b{j}": ends([row["plain"][j] for row in rows["held_triples"]]) for j in (0, 1)},
        "moved": max(max(row["predicted"]) / min(row["predicted"]) - 1 for name, row in plain.items() if name != "b2"),
        "curve": {"before": mean(curves, "mape_learning", rule=BEFORE), "ours": mean(curves, "mape_learning", rule=CHAIN),
                  **{row["run"]: row["mape_learning"] for row in matching(curves, rule=CHAIN)}},
        "first_loss": {device: drawn[device][0] for device in distinct(held, "run")},
        "levels": {_at(row["target"]): row["loss"] for row in rows["levels"]},
        "ahead": ahead,
        "seen": {row["run"]: row["seen"] for row in matching(held, **at_target)},
        "off": {"ours": mean(matching(held, **at_target), "error"), "mean": mean(held, "error", rule=AFTER, target=TARGET),
                "before": mean(said, "error")},
        "real": {_at(target): ends([row["seen"] for row in own]) for target, own in grouped(held, "target").items()},
        "held": {"before": held_counts(said), "ours": held_counts(matching(held, rule=CHAIN)), "mean": held_counts(matching(held, rule=AFTER))},
        "best_test": max(row["best_test_accuracy"] for row in rows["held_runs"]),
        "devices": {"pairs": len(pairs), "seen": sum(row["is_seen"] for row in pairs), "permutations": rows["devices"][0]["num_permutations"],
                    "least_p": min(row["p_value"] for row in rows["devices"]), "widest": max(abs(row[end]) for row in pairs for end in ("low", "high"))},
        "kinds": _kinds(rows),
        "published": _of_set(rows, PUBLISHED),
        "own": _of_set(rows, OWN),
        "confound": _confound(rows),
        "curves": {key(f"{form} {features}".strip()): {"mape": mean(own, "mape"), "error_of_largest": mean(own, "error_of_largest"), "text": share_of(mean(own, "mape"))}
                   for (form, features), own in grouped(matching(rows["curves"], set=PUBLISHED), "form", "features").items()},
        "left_out": _epochs_off(matching(rows["targets"], set=PUBLISHED), rows["chosen"], PUBLISHED),
        "scored": {features: {of: mean(own, of) for of in ("mape", "error_of_largest", "inside")}
                   for features, own in grouped(matching(rows["scored"], set=OWN, form=EPOCH_BY_EPOCH), "features").items()},
        "scored_epochs": _epochs_off(matching(rows["scored_epochs"], set=OWN), rows["chosen"], OWN),
    }  # fmt: skip


def _at(target: str) -> str:
    """Return a target as a name in the page.

    >>> _at("accuracy 92 %")
    'at_92'
    """
    return f"at_{target.split()[1]}"


def _kinds(rows: Mapping[str, list[Row]]) -> dict[str, Any]:
    """Return factors between kinds, the epochs of the network ahead over the mean, and the error of each rule."""
    ratios = [row["ratio"] for row in matching(rows["kinds"], rule=AFTER, target=TARGET)]
    ratios += [row["ratio"] for row in matching(rows["other_kinds"], target=TARGET)]
    off = {
        name: float(np.exp(np.mean([abs(np.log(row["ratio"])) for row in matching(rows["kinds"], rule=rule)])))
        for name, rule in (("before", BEFORE), ("ours", CHAIN), ("mean", AFTER))
    }
    times = [row["seen"] / row["epochs"] for row in matching(rows["held"], rule=AFTER, target=TARGET)]
    return {"factor": ends([max(ratio, 1 / ratio) for ratio in ratios]), "times": ends(times), "off": off}


def _of_set(rows: Mapping[str, list[Row]], of_set: str) -> dict[str, Any]:
    """Return the error of each form over the largest loss, and the network with the fewest epochs to the last target."""
    own = matching(rows["networks"], set=of_set)
    target = list(own[0]["epochs"])[-1]
    epochs = {name: mean([run["epochs"] for run in runs], target) for name, runs in grouped(own, "network").items()}
    first = min((name for name in epochs if epochs[name]), key=lambda name: epochs[name] or math.inf)
    fits = grouped(matching(rows["coefficients"], set=of_set), "form")
    return {
        **{form: mean(of, "error_of_largest") for form, of in fits.items()},
        "first": first,
        "epochs": epochs[first],
    }


def _confound(rows: Mapping[str, list[Row]]) -> dict[str, Any]:
    """Return slopes of the last target with and without the other family, and the error of its epochs."""
    left, params = matching(rows["targets"], set=PUBLISHED), {row["network"]: row["params"] for row in matching(rows["networks"], set=PUBLISHED)}  # fmt: skip
    (outsider,) = distinct(rows["networks"], "network", set=PUBLISHED, family=IMAGENET)
    slopes = {row["over"]: row for row in matching(rows["slopes"], target=left[-1]["target"])}
    leverages = {name: own[0]["leverage"] for name, own in grouped(matching(left, features=FULL), "network").items()}
    return {
        "outsider": outsider, "all": slopes["all"], "inside": slopes[CIFAR], "params": params[outsider] / min(params.values()),
        "by_depth": mean(left, "error", network=outsider, features="depth"), "by_all": mean(left, "error", network=outsider, features=FULL),
        "leverage": leverages.pop(outsider), "others": max(leverages.values()),
    }  # fmt: skip


def _epochs_off(rows: Sequence[Row], chosen: Sequence[Row], of_set: str) -> dict[str, Any]:
    """Return errors of predicted epochs by our features and by depth alone, and the number of intervals that contain the real
    ones.
    """
    by = matching(chosen, set=of_set)[0]["target_features"]
    ours = matching(rows, features=by)
    return {"by": by, "error": mean(ours, "error"), "by_depth": mean(rows, "error", features="depth"),
            "bias": float(np.mean([row["epochs"] / row["seen"] - 1 for row in ours])), "inside": inside(ours)}  # fmt: skip


_ACCURACIES = [0.9, 0.92, 0.95, 0.99]
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
    question="What do the training curves of some networks predict for an untrained one, and do epochs depend on the device?",
    hypothesis="Epochs to an accuracy depend on the network, not on the device. Deeper networks of one family need fewer. Depth "
    "alone does not predict another family",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    truth="logs of further runs, history{depth}_{device}.json: depth 18, 34, 50, 101, 152 are torchvision's, others 6n + 2",
)
