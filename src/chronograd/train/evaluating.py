"""The work and the answer of `evaluate`: the accuracy of a network on test images, class by class. The network is that
of a run, or one with the weights of a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data import datasets
from chronograd.data.detection import is_detection
from chronograd.data.published import DatasetCard
from chronograd.detect.metrics import average_precisions, mean_average_precision
from chronograd.errors import InputError
from chronograd.job import Data, Job
from chronograd.rundir import RunDir
from chronograd.train.detection import METRIC, OTHER, detector_of, objects_in
from chronograd.train.heads import network_with
from chronograd.train.inputs import in_chunks, input_of
from chronograd.train.methods import teacher
from chronograd.units import percent
from chronograd.words import how_many, listed

# Batch size of a detector.
PICTURES_AT_ONCE = 16
INTERVAL = 0.95


@dataclass(frozen=True)
class _Evaluated:
    """The subject of an answer.

    Attributes:
        about: whose network it is, as data. note: what a reader has to know about it, or empty.
    """

    title: str
    about: dict[str, str]
    note: str = ""


def evaluate(run: RunDir, data: Data) -> Answer:
    """Return the accuracy of a classifier, or the average precision of a detector, on the test images of a data set. The newest
    weights are used.

    Raises: InputError for a run of text, and for a data set of another task; else as `datasets.load` and `load_pretrained`.
    """
    job = run.job()
    _check_images(job, f"{run.path} is a run", "its record has the loss: `chronograd records`")
    if is_detection(data.name) != (job.task == "detection"):
        has = "no boxes" if job.task == "detection" else "boxes"
        raise InputError(f"{run.path} is a run of {job.task}, and {data.name} has {has}", "name another data set")
    elsewhere = "" if data.name == job.data.name else f" on {data.name}"
    what = _Evaluated(f"Evaluation of {run.path.name}{elsewhere}", {"run": str(run.path)})
    if job.task == "detection":
        return _of_boxes(what, *detector_of(run), data)
    own, asked = datasets.card(job.data), datasets.card(data)
    if own.num_classes != asked.num_classes:
        raise InputError(
            f"{run.path} distinguishes {own.num_classes} classes, and {data.name} has {asked.num_classes}",
            "name a data set of the same classes",
        )
    datasets.fetch(data)
    return _of_classes(what, job, data, *teacher.probabilities(run, data, split="test"))


def evaluate_job(job: Job, name: str) -> Answer:
    """Evaluate a network with the weights of its job, without training, on the job's test images.

    Args:
        name: of the job or the network, as the user wrote it.

    Raises: InputError for text, for a network without weights, and for weights of other classes; else as
    `datasets.load` and `load_pretrained`.
    """
    _check_images(job, f"{name} is a job", "`chronograd train` has the loss")
    if job.network.weights is None:
        raise InputError(
            f"{job.network.name} has no weights; random weights give chance accuracy",
            "write network.weights=FILE, or a run, torchvision or timm; or train it, and evaluate the run",
        )
    card = datasets.card(job.data)
    datasets.check_task(job, card)
    datasets.fetch(job.data)
    network, weights = _with_weights(job, job.network.weights, card)
    what = _Evaluated(
        f"Evaluation of {Path(name).name} on {job.data.name}",
        {"network": job.network.name, "weights": weights},
        f"Weights: {weights}; pixels: {_PIXELS['boxes' if job.task == 'detection' else job.data.normalisation]}.",
    )
    if job.task == "detection":
        return _of_boxes(what, network, card.class_names, card.shape[1], job.data)
    return _of_classes(what, job, job.data, *teacher.probabilities_of(network, job, name, job.data, split="test"))


# How pixels are normalised. Weights from elsewhere may need another way.
_PIXELS = {
    "boxes": "less 127, over 128",
    "own": "minus the mean of the training images, divided by their deviation (data.normalisation=own)",
    "imagenet": "minus the mean of ImageNet, divided by its deviation (data.normalisation=imagenet)",
    "signed": "−1 to 1 (data.normalisation=signed)",
    "unit": "0 to 1 (data.normalisation=unit)",
    "raw": "0 to 255 (data.normalisation=raw)",
}


def _check_images(job: Job, whose: str, hint: str) -> None:
    if job.is_text:
        raise InputError(f"{whose} of text, and `evaluate` needs images", hint)
    if job.task == "reinforcement":
        raise InputError(f"{whose} of an agent, and `evaluate` needs images", "`chronograd train` has its returns")


def _with_weights(job: Job, weights: str, card: DatasetCard) -> tuple[torch.nn.Module, str]:
    """Return a network in evaluation mode with these weights, and their source. Raises InputError for another head."""
    torch.manual_seed(job.training.seed)
    network, loaded = network_with(job, weights, card.shape, card.num_classes)
    if loaded.fresh:
        raise InputError(
            f"{loaded.source} does not distinguish the {how_many(card.num_classes, 'classes')} of {card.name}: {loaded.fresh[0]} would stay random",
            "name data with its training classes; or train it first, and evaluate the run",
        )
    return network, loaded.source


# -- detectors --------------------------------------------------------------------------------------


def _of_boxes(what: _Evaluated, network: torch.nn.Module, names: tuple[str, ...], side: int, data: Data) -> Answer:
    # The selection of training pictures does not matter here.
    asked = {"class_names": names, "image_size": side, "samples": None, "skip": 0}
    dataset = datasets.load(data.model_copy(update=asked))
    assert dataset.annotated is not None
    device = next(network.parameters()).device
    seen = input_of(dataset.test, dataset, device)
    found = [
        objects
        for _, pictures in in_chunks(seen, np.arange(len(seen)), device, PICTURES_AT_ONCE)
        for objects in objects_in(network, pictures)
    ]
    truths = [image.objects for image in dataset.annotated.test]
    precisions = {m: average_precisions(found, truths, len(names), m) for m in (METRIC, OTHER)}
    means = {m: mean_average_precision(values) for m, values in precisions.items()}
    labels = np.concatenate([t.labels_G.numpy() for t in truths])
    is_difficult = np.concatenate([t.is_difficult_G.numpy() for t in truths])
    classes: list[dict[str, Any]] = [
        {
            "name": name,
            "objects": int(((labels == k) & ~is_difficult).sum()),
            "difficult": int(((labels == k) & is_difficult).sum()),
            **{f"average_precision_{_key(m)}": precisions[m][k - 1] for m in (METRIC, OTHER)},
        }
        for k, name in enumerate(names, 1)
    ]
    values = {
        **what.about,
        "data": data.name,
        "test_images": len(truths),
        "mean_average_precision": {_key(m): means[m] for m in (METRIC, OTHER)},
        "classes": classes,
    }
    rows = [
        [
            c["name"],
            f"{c['objects']:,}",
            f"{c['difficult']:,}",
            *(percent(c[f"average_precision_{_key(m)}"]) for m in (METRIC, OTHER)),
        ]
        for c in classes
    ]
    section = Section(
        title="Average precision",
        takeaway=_said(classes, means[METRIC], means[OTHER], len(truths)),
        table=Table(("class", "objects", "difficult", f"{METRIC} metric", f"{OTHER} metric"), rows, {1, 2, 3, 4}),
        caption="A detection is right that overlaps an object of its class by more than 0.5 (IoU) which no likelier one has; difficult "
        "objects count neither way. Published figures of VOC 2007 are by the 11-point metric.",
    )
    return _answer(what, values, section, dataset.notes, [Highlight("mAP", percent(means[METRIC]), METRIC)])


def _said(classes: list[dict[str, Any]], mean: float | None, other: float | None, num_images: int) -> str:
    key = f"average_precision_{_key(METRIC)}"
    known = sorted((c for c in classes if c[key] is not None), key=lambda c: -c[key])
    if mean is None or not known:
        return f"No class has an object in {how_many(num_images, 'test images')}, so there is no average precision."
    means = f"mAP {percent(mean)} by the {METRIC} metric, {percent(other)} by the {OTHER} metric, on {how_many(num_images, 'test images')}"
    ends = dict.fromkeys((known[0]["name"], known[-1]["name"]))
    each = [f"{c['name']} {percent(c[key])}" for c in known if c["name"] in ends]
    return f"{means}: {'from ' if len(each) > 1 else ''}{' to '.join(each)}."


def _key(metric: str) -> str:
    """Return the key of a metric.

    >>> _key("11-point")
    '11_point'
    """
    return metric.replace("-", "_")


# -- classifiers ------------------------------------------------------------------------------------


def _of_classes(
    what: _Evaluated, job: Job, data: Data, positions: teacher.Array, probability_NK: teacher.Array
) -> Answer:
    labels_N = datasets.load(data, job.training.seed).test_labels_N.numpy()[positions]
    is_right_N = probability_NK.argmax(axis=1) == labels_N
    accuracy, low, high = _share(is_right_N)
    classes: list[dict[str, Any]] = []
    for k, name in enumerate(datasets.card(data).class_names):
        of_class = is_right_N[labels_N == k]
        value, least, most = _share(of_class)
        classes.append({"name": name, "images": len(of_class), "accuracy": value, "low": least, "high": most})
    values = {
        **what.about,
        "data": data.name,
        "test_images": len(labels_N),
        "accuracy": {"value": accuracy, "low": low, "high": high, "level": INTERVAL},
        "classes": classes,
    }
    known = sorted((c for c in classes if c["accuracy"] is not None), key=lambda c: c["accuracy"])
    worst = [f"{c['name']} {percent(c['accuracy'])}" for c in known[:2]]
    section = Section(
        title="Accuracy",
        takeaway=f"{percent(accuracy)} of {len(labels_N):,} test images are right ({percent(low)} to {percent(high)} with "
        f"{100 * INTERVAL:.0f} % confidence); least of {listed(worst)}.",
        table=Table(
            ("class", "test images", "accuracy", "from", "to"),
            [
                [c["name"], f"{c['images']:,}", *(percent(c[key]) for key in ("accuracy", "low", "high"))]
                for c in classes
            ],
            {1, 2, 3, 4},
            most=40,
        ),
        caption="Intervals are Wilson's: they cover other images of the same kind, but not other seeds.",
    )
    return _answer(what, values, section, (), [Highlight("accuracy", percent(accuracy))])


def _share(is_right_N: Any) -> tuple[float | None, float | None, float | None]:
    """Return the share of correct answers and its interval by Wilson's method, 1927; None for no answers."""
    if not len(is_right_N):
        return None, None, None
    interval = stats.binomtest(int(is_right_N.sum()), len(is_right_N)).proportion_ci(INTERVAL, method="wilson")
    return float(is_right_N.mean()), float(interval.low), float(interval.high)


def _answer(
    what: _Evaluated,
    values: dict[str, Any],
    section: Section,
    notes: tuple[str, ...],
    highlights: list[Highlight],
) -> Answer:
    return Answer(
        title=what.title,
        highlights=highlights,
        sections=[section],
        data=values,
        notes=[*([what.note] if what.note else []), *notes],
    )
