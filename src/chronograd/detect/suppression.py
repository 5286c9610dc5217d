"""From scores and boxes at every prior to the objects of an image: one box for each. The only file here that uses torchvision.

Section 2.3 of the SSD paper: greedy non-maximum suppression within each class. P priors, C classes with the background.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from chronograd.detect.boxes import Detections
from chronograd.errors import EXTRAS, MissingExtraError

# Of the public SSD on MobileNet; the paper has the same but for candidates, of which it takes 200 of all classes together.
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
    """The objects of one image.

    Args:
        scores_PC: probabilities, those of the background in column 0.
        least_score: what is not above it is left out.
        most_overlap: intersection over union with a better box of the same class, above which a box is left out.
        candidates: boxes of each class that are looked at, the best.
    """
    try:
        ops = importlib.import_module("torchvision.ops")
    except ModuleNotFoundError:
        raise MissingExtraError("torchvision", EXTRAS["torchvision"], "detection") from None
    scores_KP = scores_PC[:, 1:].T
    best_KD, prior_KD = scores_KP.topk(min(candidates, scores_KP.shape[1]), dim=1)
    is_likely = best_KD > least_score
    label_D = (torch.nonzero(is_likely)[:, 0] + 1).to(torch.int64)
    scores_D, boxes_D4 = best_KD[is_likely], boxes_P4[prior_KD[is_likely]]
    chosen = ops.batched_nms(boxes_D4.float(), scores_D.float(), label_D, most_overlap)
    return Detections(boxes_D4[chosen], scores_D[chosen], label_D[chosen])
