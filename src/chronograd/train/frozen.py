"""A trunk that is not trained: frozen, and where every image is the same each time, run over each only once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.models.weights import head_of, without_head
from chronograd.train.inputs import FeatureInput, Input, in_chunks


def freeze_trunk(network: nn.Module) -> str:
    """Leave only the head's parameters to train. Returns the head's path. Raises InputError for a network without one."""
    path, head = head_of(network)
    network.requires_grad_(False)
    head.requires_grad_(True)
    return path


@torch.no_grad()
def features(
    network: nn.Module,
    images: Input,
    device: torch.device,
    arithmetic: Callable[[], AbstractContextManager[Any]],
) -> FeatureInput:
    """What the head gets of every image, in evaluation mode, kept on the device as float32: F numbers per image."""
    trunk, _ = without_head(network)
    trunk.eval()
    rows = []
    for _, seen in in_chunks(images, np.arange(len(images)), device):
        with arithmetic():
            rows.append(trunk(seen).float())
    return FeatureInput(torch.cat(rows))
