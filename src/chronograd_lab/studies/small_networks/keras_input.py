"""Networks as Keras builds them: EfficientNet-Lite0, which scales its input of 0 … 255 itself, and the small CNN with dropout.

Keras' EfficientNet starts with the layers Rescaling(1/255) and Normalization. Images that are already 0 … 1 are scaled twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from chronograd.models.registry import build, optional_library


def efficientnet_lite0(num_classes: int = 10) -> nn.Module:
    """Return the network of timm, which was trained on −1 … 1, for an input of 0 … 255. The names of its weights stay."""
    network: nn.Module = optional_library("timm", "EfficientNet-Lite0").create_model(
        "tf_efficientnet_lite0", num_classes=num_classes
    )
    network.register_forward_pre_hook(_scale)
    return network


def small_cnn_with_dropout(num_classes: int = 10) -> nn.Sequential:
    """Return the small CNN with the dropout of Keras' mnist_cnn.py: 0.25 after the pooling, and 0.5 before the last layer."""
    network = build("small-cnn", num_classes=num_classes)
    assert isinstance(network, nn.Sequential)
    return network.insert(5, nn.Dropout(0.25)).insert(9, nn.Dropout(0.5))


def _scale(network: nn.Module, images: tuple[Any, ...]) -> tuple[torch.Tensor]:
    """Map 0 … 255 to −1 … 1."""
    return (images[0] / 127.5 - 1,)
