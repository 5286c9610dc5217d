"""The loss of a detector: offsets of the objects' priors, and classes of these and of the hardest background.

Sections 2.2 and 2.3 of the SSD paper, with equal weights of the two. N images, P priors, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from chronograd.detect.matching import BACKGROUND

# Background priors in training for each prior of an object: nearly all others are easy.
NEGATIVES_PER_POSITIVE = 3


def hard_negatives(logits_NPC: Tensor, labels_NP: Tensor) -> Tensor:
    """Select the background priors to train on: bool of shape (N, P).

    In each image, select up to three times the number of its object priors. Those with the lowest background probability
    come first.
    """
    is_positive_NP = labels_NP != BACKGROUND
    surprise_NP = -functional.log_softmax(logits_NPC.detach().float(), dim=2)[..., BACKGROUND]
    surprise_NP = surprise_NP.masked_fill(is_positive_NP, -torch.inf)
    rank_NP = surprise_NP.argsort(dim=1, descending=True).argsort(dim=1)
    return (rank_NP < NEGATIVES_PER_POSITIVE * is_positive_NP.sum(dim=1, keepdim=True)) & ~is_positive_NP


def detection_loss(
    logits_NPC: Tensor, offsets_NP4: Tensor, labels_NP: Tensor, targets_NP4: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the losses of classes and offsets, each summed over priors and divided by the number of object priors.

    C is the background and the K classes. Both are 0, with gradients of 0, if no image has an object.
    """
    is_positive_NP = labels_NP != BACKGROUND
    is_trained_NP = is_positive_NP | hard_negatives(logits_NPC, labels_NP)
    classes = functional.cross_entropy(logits_NPC[is_trained_NP].float(), labels_NP[is_trained_NP], reduction="sum")
    places = functional.smooth_l1_loss(
        offsets_NP4[is_positive_NP].float(), targets_NP4[is_positive_NP], reduction="sum"
    )
    num_positives = is_positive_NP.sum().clamp(min=1)
    return classes / num_positives, places / num_positives
