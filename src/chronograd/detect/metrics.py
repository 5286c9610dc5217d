"""Average precision of a detector, class by class.

The challenges of PASCAL VOC define it in two ways: Everingham et al., "The PASCAL visual object classes (VOC)
challenge", 2010, section 4.2. Until 2009, precision was read at eleven recalls. Since 2010 it is the area below the
curve. They differ by a few percentage points, so a figure states its metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from chronograd.detect.boxes import Detections, Objects, iou

Metric = Literal["11-point", "area"]
MIN_HIT_OVERLAP = 0.5
Array = np.ndarray[Any, Any]


def average_precisions(
    detections: Sequence[Detections], truths: Sequence[Objects], num_classes: int, metric: Metric
) -> list[float | None]:
    """Return the average precision of class 1, 2, … `num_classes` over all images; None for a class without objects that count.

    Detections of a class are taken in order of their score. One is right if it overlaps an object of its class by more than
    MIN_HIT_OVERLAP and no earlier detection did. A second detection of the same object is wrong. A detection of a difficult
    object does not count.
    """
    return [_average_precision(*_outcomes(detections, truths, k), metric) for k in range(1, num_classes + 1)]


def mean_average_precision(precisions: Sequence[float | None]) -> float | None:
    """Return the mean over the classes that have objects; None if none has.

    >>> mean_average_precision([1.0, None, 0.5])
    0.75
    """
    known = [one for one in precisions if one is not None]
    return sum(known) / len(known) if known else None


def _outcomes(detections: Sequence[Detections], truths: Sequence[Objects], label: int) -> tuple[Array, int]:
    """Return whether each detection of a class is right, highest score first, and the number of objects that are not difficult."""
    scores: list[float] = []
    is_right: list[bool] = []
    num_objects = 0
    for seen, there in zip(detections, truths, strict=True):
        of_class = there.labels_G == label
        is_difficult = there.is_difficult_G[of_class].tolist()
        num_objects += is_difficult.count(False)
        mine = (seen.labels_D == label).nonzero().squeeze(1)
        mine = mine[seen.scores_D[mine].argsort(descending=True, stable=True)]
        overlaps_DG = iou(seen.boxes_D4[mine].double().cpu(), there.boxes_G4[of_class].double().cpu()).numpy()
        is_taken = [False] * len(is_difficult)
        for overlaps_G, score in zip(overlaps_DG, seen.scores_D[mine].tolist(), strict=True):
            best = int(overlaps_G.argmax()) if is_taken else -1
            is_hit = best >= 0 and overlaps_G[best] > MIN_HIT_OVERLAP
            if is_hit and is_difficult[best]:
                continue
            scores.append(score)
            is_right.append(is_hit and not is_taken[best])
            if is_hit:
                is_taken[best] = True
    order = np.argsort(-np.array(scores, dtype=np.float64), kind="stable")
    return np.array(is_right, dtype=bool)[order], num_objects


def _average_precision(is_right_D: Array, num_objects: int, metric: Metric) -> float | None:
    if num_objects == 0:
        return None
    num_right_D = np.cumsum(is_right_D)
    precision_D = num_right_D / np.arange(1, len(is_right_D) + 1)
    # The best precision at this recall or a higher one.
    envelope_D = np.maximum.accumulate(precision_D[::-1])[::-1]
    if metric == "area":
        return float(envelope_D[is_right_D].sum() / num_objects)
    points = []
    for tenths in range(11):
        # Whole numbers avoid rounding: 3 times 0.1 is not exactly 0.3.
        reached = np.flatnonzero(10 * num_right_D >= tenths * num_objects)
        points.append(float(envelope_D[reached[0]]) if len(reached) else 0.0)
    return sum(points) / len(points)
