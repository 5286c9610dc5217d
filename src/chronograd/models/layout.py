"""Channels last in memory, for images (NHWC) and volumes (NDHWC)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# By number of dimensions. torch.channels_last alone raises on the weight of a three-dimensional convolution.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    """Return whether an image or a volume is channels last, and not contiguous at the same time."""
    layout = CHANNELS_LAST.get(x.dim())
    return layout is not None and not x.is_contiguous() and x.is_contiguous(memory_format=layout)


def laid_out(x: Tensor) -> Tensor:
    """Return an image, a volume or a weight channels last; a tensor of other dimensions unchanged."""
    layout = CHANNELS_LAST.get(x.dim())
    return x if layout is None else x.to(memory_format=layout)


def lay_out(network: nn.Module) -> None:
    """Store parameters and buffers of a network channels last, as `Module.to(memory_format=...)` does for images only."""
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = laid_out(tensor.data)
