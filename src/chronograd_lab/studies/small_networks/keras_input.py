"""EfficientNet-Lite0 as Keras builds an EfficientNet: the network scales its input itself, and takes 0 … 255.

Keras' EfficientNet starts with the layers Rescaling(1/255) and Normalization. Images that are already 0 … 1 are scaled twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from chronograd.models.registry import optional_library


def efficientnet_lite0(num_classes: int = 10) -> nn.Module:
    """Return the network of timm, which was trained on −1 … 1, for an input of 0 … 255. The names of its weights stay."""
    network: nn.Module = optional_library("timm", "EfficientNet-Lite0").create_model(
        "tf_efficientnet_lite0", num_classes=num_classes
    )
    network.register_forward_pre_hook(_scale)
    return network


def _scale(network: nn.Module, images: tuple[Any, ...]) -> tuple[torch.Tensor]:
    """Map 0 … 255 to −1 … 1."""
    return (images[0] / 127.5 - 1,)
