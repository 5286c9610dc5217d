"""Annotation: the objects that a trained or a pretrained detector detects in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from chronograd.data.detection import PIXEL_MEAN, PIXEL_SCALE
from chronograd.detect import pictures
from chronograd.detect.annotating import MIN_DRAWN_SCORE, DetectedObject, Find
from chronograd.detect.augmentation import plain
from chronograd.detect.boxes import Detections, Objects
from chronograd.models import registry
from chronograd.models.pretrained import Pretrained
from chronograd.models.weights import load_pretrained
from chronograd.rundir import RunDir
from chronograd.train.detection import detector_of, objects_in


def finder(run: RunDir, least_score: float = MIN_DRAWN_SCORE) -> Find:
    """Return a function that detects the objects in a picture file with the detector of a run.

    Raises as `detector_of`. The function raises FileFormatError.
    """
    return _finder(*detector_of(run), least_score)


def finder_of(weights: Pretrained, path: Path, least_score: float = MIN_DRAWN_SCORE) -> Find:
    """Return a function that detects the objects in a picture file with a pretrained detector, whose classes are known.

    Args:
        path: of the file; if it does not exist, the file is located by its name.

    Raises as `load_pretrained`. The function raises FileFormatError.
    """
    names = weights.classes or ()
    network = registry.build(weights.network, num_classes=len(names))
    digest = f"#sha256={weights.sha256}" if weights.sha256 else ""
    load_pretrained(network, f"{path}{digest}" if path.exists() else weights.file, weights.network, head="kept")
    side = registry.spec(weights.network).required_input_shape()[1]
    return _finder(network.to("cuda" if torch.cuda.is_available() else "cpu").eval(), names, side, least_score)


def _finder(network: torch.nn.Module, names: Sequence[str], side: int, least_score: float) -> Find:
    def find_in(path: Path) -> list[DetectedObject]:
        picture = pictures.read(path)
        return in_pixels(picture, find(network, picture, side, least_score), names)

    return find_in


def find(network: torch.nn.Module, picture_CHW: Tensor, side: int, least_score: float = MIN_DRAWN_SCORE) -> Detections:
    """Return the objects in a picture with scores of at least `least_score`."""
    seen = (plain(picture_CHW, side).round().clamp(0, 255) - PIXEL_MEAN) / PIXEL_SCALE
    (found,) = objects_in(network, seen[None])
    is_kept = found.scores_D >= least_score
    return Detections(*(part[is_kept] for part in found))


def true_boxes(objects: Objects) -> Detections:
    """Return the annotated objects as detections with a score of 1."""
    return Detections(objects.boxes_G4, torch.ones(len(objects.labels_G)), objects.labels_G)


def in_pixels(picture_CHW: Tensor, found: Detections, names: Sequence[str]) -> list[DetectedObject]:
    """Return detections with the names of their classes, and boxes in pixels of a picture."""
    height, width = picture_CHW.shape[1:]
    boxes_D4 = found.boxes_D4.clamp(0, 1) * torch.tensor([width, height, width, height])
    rows = zip(boxes_D4.tolist(), found.labels_D.tolist(), found.scores_D.tolist(), strict=True)
    return [
        DetectedObject(names[label - 1], score, (round(left, 1), round(top, 1), round(right, 1), round(bottom, 1)))
        for (left, top, right, bottom), label, score in rows
    ]
