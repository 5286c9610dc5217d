"""Scores of a detector: from the logits of a prior to probabilities, and the loss that fits them.

Column 0 of the logits is the background, the others are the classes. N images, P priors, C columns.

    softmax    one distribution over the background and the classes, trained by cross-entropy, as in the SSD paper
    sigmoid    an independent probability for each column, trained by binary cross-entropy, as in TensorFlow's Object Detection
               API. The loss is summed over the columns, and the target of a background prior is 1 in column 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["softmax", "sigmoid"]


def activation_of(network: torch.nn.Module) -> Activation:
    """Return the activation of a detector: its attribute `activation`, by default softmax."""
    activation: Activation = getattr(network, "activation", "softmax")
    return activation


def probabilities(logits_NPC: Tensor, activation: Activation) -> Tensor:
    """Return the scores of logits: (N, P, C), 0 … 1."""
    return logits_NPC.sigmoid() if activation == "sigmoid" else logits_NPC.softmax(dim=2)


def column_losses(logits_MC: Tensor, labels_M: Tensor, activation: Activation) -> Tensor:
    """Return the loss of each of M priors for its label, which is the number of its column: (M,)."""
    logits_MC = logits_MC.float()
    if activation == "softmax":
        return functional.cross_entropy(logits_MC, labels_M, reduction="none")
    wanted_MC = functional.one_hot(labels_M, logits_MC.shape[1]).to(logits_MC.dtype)
    return functional.binary_cross_entropy_with_logits(logits_MC, wanted_MC, reduction="none").sum(dim=1)
