"""One Inception module on 256 channels, with and without 1x1 reductions: the arithmetic behind GoogLeNet.

Szegedy et al. 2014, arXiv:1409.4842, figure 2; widths of the exercise that lecture notes make of it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from chronograd.models.googlenet import Inception, conv_relu
from chronograd.models.registry import register


class NaiveInception(nn.Module):
    """Figure 2a: every filter sees every input channel, and pooling passes them all on."""

    def __init__(self, inputs: int, one: int, three: int, five: int) -> None:
        super().__init__()
        self.one = conv_relu(inputs, one, 1)
        self.three = conv_relu(inputs, three, 3)
        self.five = conv_relu(inputs, five, 5)
        self.pool = nn.MaxPool2d(3, 1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


module = partial(register, input_shape=(256, 32, 32), num_classes=None, paper="Szegedy et al. 2014, arXiv:1409.4842")


@module("inception-naive", macs=1_115_684_864)
def inception_naive(in_channels: int = 256) -> nn.Module:
    return NaiveInception(in_channels, 128, 192, 96)


@module("inception-reduced", macs=354_418_688)
def inception_reduced(in_channels: int = 256) -> nn.Module:
    return Inception(in_channels, 128, (64, 192), (64, 96), 64)
