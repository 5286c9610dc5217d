"""Training and testing of a detector, within the same loop as everything else.

A step differs in its input, which is augmented together with its boxes while it is read, and in its loss. The test
computes average precision.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.data.detection import PIXEL_MEAN, SIDE, KeptPictures
from chronograd.detect.augmentation import augmented
from chronograd.detect.boxes import Detections, decode
from chronograd.detect.loss import detection_loss
from chronograd.detect.matching import targets
from chronograd.detect.metrics import Metric, average_precisions, mean_average_precision
from chronograd.detect.scores import Activation, activation_of, probabilities
from chronograd.detect.suppression import detections
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir
from chronograd.train.heads import network_with
from chronograd.train.inputs import in_chunks
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep
from chronograd.words import how_many


class Detector(Protocol):
    """A network that returns logits and offsets at each of its priors; in evaluation mode, scores and boxes.

    An attribute `activation` is `softmax` or `sigmoid`; without it, scores are softmax.
    """

    priors: Tensor
    """As centre and size, (P, 4)."""

    def predictions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, P, K + 1) and encoded offsets (N, P, 4)."""


# The metric of VOC 2007 and of the published figures.
METRIC: Metric = "11-point"
OTHER: Metric = "area"


class DetectionStep(TrainingStep):
    """A training step over pictures with boxes, augmented as in the SSD paper.

    The random numbers of a picture are a function of seed, step and picture. Targets are one row per prior: the class,
    and the offsets of its box.
    """

    def __init__(self, job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None = None) -> None:
        super().__init__(job, dataset, place, initial_weights)
        assert dataset.annotated is not None
        self.annotated = dataset.annotated
        self.chunk = job.images_per_rank
        self.precisions: dict[Metric, list[float | None]] = {}
        self._picture = KeptPictures(self.annotated.train)
        self._side = dataset.card.shape[1]
        self._priors = cast(Detector, self.network).priors.cpu()
        self._pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="pictures")
        self._wanted = torch.empty(0)

    def gather(self, index: int) -> None:
        self._choose(index)
        made = list(self._pool.map(partial(self._sample, index), self._mine.tolist()))
        self._raw = torch.stack([seen for seen, _ in made])
        self._wanted = torch.stack([wanted for _, wanted in made])

    def prepare(self) -> None:
        self._seen = self.train_input.prepare(self._raw)
        self._targets = self._wanted.to(self.device)

    def _sample(self, index: int, number: int) -> tuple[Tensor, Tensor]:
        """Return an augmented picture and its targets: (3, S, S) and (P, 5)."""
        image = self.annotated.train[number]
        random = np.random.RandomState([self.training.seed, index, number])
        most = self.training.augmentation.expand
        seen, objects = augmented(self._picture(number), image.objects, self._side, PIXEL_MEAN, random, most)
        return seen, _rows(self._priors, objects.boxes_G4, objects.labels_G)

    def _loss_of(self, outputs: Any, targets: Tensor) -> Tensor:
        classes, places = _losses(outputs, targets, activation_of(self.network))
        return classes + places


def _rows(priors_P4: Tensor, boxes_G4: Tensor, labels_G: Tensor) -> Tensor:
    labels_P, offsets_P4 = targets(priors_P4, boxes_G4, labels_G)
    return torch.cat([labels_P[:, None].float(), offsets_P4], dim=1)


def _losses(outputs: tuple[Tensor, Tensor], rows_NP5: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    return detection_loss(*outputs, rows_NP5[..., 0].long(), rows_NP5[..., 1:], activation)


@torch.no_grad()
def evaluate(step: TrainingStep, dataset: Dataset, place: RankContext) -> tuple[float, float]:
    """Return loss and mean average precision by the 11-point metric. The step stores both metrics for each class."""
    assert isinstance(step, DetectionStep)
    network = cast(Detector, step.evaluated.eval())
    activation = activation_of(step.network)
    priors_P4 = step._priors.to(place.device)
    images = step.annotated.test
    found: list[Detections] = []
    loss_sum, num_positives = 0.0, 0
    try:
        for chunk, seen in in_chunks(step.test_input, np.arange(len(images)), place.device, step.chunk):
            with step.arithmetic():
                logits, offsets = network.predictions(seen)
            rows = torch.stack([_rows(step._priors, *images[i].objects[:2]) for i in chunk]).to(place.device)
            positives = int((rows[..., 0] > 0).sum())
            loss_sum += float(sum(_losses((logits, offsets), rows, activation))) * positives
            num_positives += positives
            scores, boxes = probabilities(logits.float(), activation), decode(offsets.float(), priors_P4)
            found += [detections(s, b) for s, b in zip(scores.cpu(), boxes.cpu(), strict=True)]
    finally:
        step.train_mode()
    truths = [image.objects for image in images]
    classes = dataset.card.num_classes
    step.precisions = {m: average_precisions(found, truths, classes, m) for m in (METRIC, OTHER)}
    return loss_sum / max(num_positives, 1), mean_average_precision(step.precisions[METRIC]) or 0.0


# Prefix under which `record.put` stores the precision of a class.
OF_CLASS = "average_precision."


def detector_of(run: RunDir) -> tuple[torch.nn.Module, tuple[str, ...], int]:
    """Return the detector of a run with its newest weights, in evaluation mode; its classes; and the side of its input.

    A finished run has them in its record, so its data may be gone. Raises InputError for a run of another task.
    """
    job = run.job()
    if job.task != "detection":
        raise InputError(f"{run.path} is a run of {job.task}; it detects no objects", "name a run of task=detection")
    precisions = [name for name in run.record().quantities if name.startswith(OF_CLASS)] if run.is_finished else []
    names = tuple(name.removeprefix(OF_CLASS) for name in precisions) or datasets.card(job.data).class_names
    side = job.data.image_size or SIDE
    return network_with(job, str(run.path), (3, side, side), len(names))[0], names, side


@torch.no_grad()
def objects_in(network: torch.nn.Module, seen: Tensor) -> list[Detections]:
    """Detect objects in prepared pictures with a network in evaluation mode: one entry for each picture, on the CPU."""
    scores, boxes = network(seen.to(next(network.parameters()).device))
    return [detections(s, b) for s, b in zip(scores.float().cpu(), boxes.float().cpu(), strict=True)]


def put_precisions(record: Record, step: DetectionStep, dataset: Dataset, place: RankContext) -> None:
    """Store the average precision of each class, and its mean by either metric, for the current weights."""
    if not step.precisions:
        evaluate(step, dataset, place)
    names, truths = dataset.card.class_names, [image.objects for image in step.annotated.test]
    means = {m: mean_average_precision(values) for m, values in step.precisions.items()}
    pictures = how_many(len(truths), "test images")
    accuracy = record["test_accuracy"]
    source = f"mean average precision of {how_many(len(names), 'classes')}, {METRIC} metric, IoU above 0.5; {accuracy.source}"
    record.put("test_accuracy", accuracy.model_copy(update={"source": source}))
    record.put(
        "mean_average_precision_area",
        Quantity(value=means[OTHER], unit="1", n=len(truths), source=f"area below the curve, {pictures}")
        if means[OTHER] is not None
        else Quantity.missing("1", "no test image has an object"),
    )
    for k, (name, value) in enumerate(zip(names, step.precisions[METRIC], strict=True), 1):
        objects = sum(int(((t.labels_G == k) & ~t.is_difficult_G).sum()) for t in truths)
        record.put(
            f"{OF_CLASS}{name}",
            Quantity(
                value=value,
                unit="1",
                n=objects,
                source=f"{METRIC} metric, {how_many(objects, 'objects')} in {pictures}",
            )
            if value is not None
            else Quantity.missing("1", f"no test image has a {name}"),
        )
