"""Matching: the object that each prior has to detect, as training target.

Section 2.2 of the SSD paper. P priors, G objects.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chronograd.detect.boxes import corners, encode, iou

BACKGROUND = 0
# A prior with less overlap with every object is background.
MIN_MATCH_OVERLAP = 0.5


def match(priors_P4: Tensor, boxes_G4: Tensor) -> Tensor:
    """Return the number of the object of each prior, -1 for the background: int64 of shape (P,).

    Each prior takes the object with the largest overlap, if it reaches MIN_MATCH_OVERLAP. Before that, each object takes
    the prior with the largest overlap, even a small one, so that every object has a prior. If two objects want the same
    prior, the later one gets it.

    Args:
        priors_P4: as corners.
    """
    if not len(boxes_G4):
        return torch.full((len(priors_P4),), -1, dtype=torch.int64, device=priors_P4.device)
    overlaps_PG = iou(priors_P4, boxes_G4)
    best_P, object_P = overlaps_PG.max(dim=1)
    object_P = torch.where(best_P < MIN_MATCH_OVERLAP, -1, object_P)
    for number, prior in enumerate(overlaps_PG.argmax(dim=0).tolist()):
        object_P[prior] = number
    return object_P


def targets(priors_cxcywh: Tensor, boxes_G4: Tensor, labels_G: Tensor) -> tuple[Tensor, Tensor]:
    """Return the targets of each prior: class (P,), including the background, and offsets (P, 4), 0 for the background."""
    object_P = match(corners(priors_cxcywh), boxes_G4)
    labels_P = torch.full_like(object_P, BACKGROUND)
    offsets_P4 = torch.zeros_like(priors_cxcywh)
    is_object = object_P >= 0
    labels_P[is_object] = labels_G[object_P[is_object]]
    offsets_P4[is_object] = encode(boxes_G4[object_P[is_object]], priors_cxcywh[is_object])
    return labels_P, offsets_P4
