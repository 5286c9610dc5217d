"""The loss of a detector: offsets of the objects' priors, and classes of these and of the hardest background.

Sections 2.2 and 2.3 of the SSD paper, with equal weights of the two. N images, P priors, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from chronograd.detect.matching import BACKGROUND
from chronograd.detect.scores import Activation, column_losses

# Background priors in training for each prior of an object: nearly all others are easy.
NEGATIVES_PER_POSITIVE = 3


def hard_negatives(logits_NPC: Tensor, labels_NP: Tensor, activation: Activation = "softmax") -> Tensor:
    """Select the background priors to train on: bool of shape (N, P).

    In each image, select up to three times the number of its object priors. Those with the highest loss as background come
    first; with softmax, these have the lowest background probability.
    """
    is_positive_NP = labels_NP != BACKGROUND
    background = torch.full_like(labels_NP, BACKGROUND).flatten()
    losses_NP = column_losses(logits_NPC.detach().flatten(0, 1), background, activation).view(labels_NP.shape)
    losses_NP = losses_NP.masked_fill(is_positive_NP, -torch.inf)
    rank_NP = losses_NP.argsort(dim=1, descending=True).argsort(dim=1)
    return (rank_NP < NEGATIVES_PER_POSITIVE * is_positive_NP.sum(dim=1, keepdim=True)) & ~is_positive_NP


def detection_loss(
    logits_NPC: Tensor,
    offsets_NP4: Tensor,
    labels_NP: Tensor,
    targets_NP4: Tensor,
    activation: Activation = "softmax",
) -> tuple[Tensor, Tensor]:
    """Return the losses of classes and offsets, each summed over priors and divided by the number of object priors.

    C is the background and the K classes. Both are 0, with gradients of 0, if no image has an object.
    """
    is_positive_NP = labels_NP != BACKGROUND
    is_trained_NP = is_positive_NP | hard_negatives(logits_NPC, labels_NP, activation)
    classes = column_losses(logits_NPC[is_trained_NP], labels_NP[is_trained_NP], activation).sum()
    places = functional.smooth_l1_loss(
        offsets_NP4[is_positive_NP].float(), targets_NP4[is_positive_NP], reduction="sum"
    )
    num_positives = is_positive_NP.sum().clamp(min=1)
    return classes / num_positives, places / num_positives
