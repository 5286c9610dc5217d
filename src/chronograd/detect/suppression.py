"""Suppression: from scores and boxes at every prior to one box for each object. The only file here that uses torchvision.

Section 2.3 of the SSD paper: greedy non-maximum suppression within each class. P priors, C classes with the background.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from chronograd.detect.boxes import Detections
from chronograd.errors import EXTRAS, MissingExtraError

# Values of the public SSD on MobileNet. The paper has the same, except that it uses 200 candidates over all classes.
MIN_CANDIDATE_SCORE = 0.01
MAX_OVERLAP = 0.45
CANDIDATES = 200


def detections(
    scores_PC: Tensor,
    boxes_P4: Tensor,
    *,
    least_score: float = MIN_CANDIDATE_SCORE,
    most_overlap: float = MAX_OVERLAP,
    candidates: int = CANDIDATES,
) -> Detections:
    """Return the objects of one image.

    Args:
        scores_PC: probabilities, the background in column 0.
        least_score: only higher scores remain.
        most_overlap: a box with a larger intersection over union with a better box of its class is left out.
        candidates: number of the best boxes of each class.
    """
    try:
        ops = importlib.import_module("torchvision.ops")
    except ModuleNotFoundError:
        raise MissingExtraError("torchvision", EXTRAS["torchvision"], "detection") from None
    scores_KP = scores_PC[:, 1:].T
    best_KD, prior_KD = (kind[:, :candidates] for kind in scores_KP.sort(dim=1, descending=True, stable=True))
    is_likely = best_KD > least_score
    label_D = (torch.nonzero(is_likely)[:, 0] + 1).to(torch.int64)
    scores_D, boxes_D4 = best_KD[is_likely], boxes_P4[prior_KD[is_likely]]
    # Class by class: torchvision's batched_nms moves each class to another place, which rounds overlaps, so that the server and the
    # graph of an exported detector could choose other objects.
    of_class = [torch.nonzero(label_D == 1 + k)[:, 0] for k in range(len(scores_KP))]
    chosen = torch.cat([own[ops.nms(boxes_D4[own].float(), scores_D[own].float(), most_overlap)] for own in of_class])
    chosen = chosen[scores_D[chosen].sort(descending=True, stable=True).indices]
    return Detections(boxes_D4[chosen], scores_D[chosen], label_D[chosen])
