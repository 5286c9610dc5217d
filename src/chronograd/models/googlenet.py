"""GoogLeNet with the shapes of its paper (5x5 convolutions, no batch norm), and one of its modules on 256 channels.

Szegedy et al., "Going deeper with convolutions", 2014, arXiv:1409.4842, table 1 and figure 3. torchvision's `googlenet` has 3x3
instead of 5x5 and batch norm. The module, with and without 1x1 reductions, shows the arithmetic behind it; its widths are those
of a lecture exercise on figure 2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from chronograd.models.alexnet import response_norm
from chronograd.models.registry import register

PAPER = "Szegedy et al. 2014, arXiv:1409.4842"


def conv_relu(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that preserves the size of the image, up to its stride."""
    return nn.Sequential(nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2), nn.ReLU(inplace=True))


def halve() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


class Inception(nn.Module):
    """Four branches side by side. A pair holds the channels of a 1x1 reduction and of the filters after it."""

    def __init__(self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.one = conv_relu(inputs, one, 1)
        self.three = nn.Sequential(conv_relu(inputs, three[0], 1), conv_relu(three[0], three[1], 3))
        self.five = nn.Sequential(conv_relu(inputs, five[0], 1), conv_relu(five[0], five[1], 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_relu(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class GoogLeNetOutput(NamedTuple):
    """Scores of the network and of its two auxiliary classifiers, which count 0.3 in the loss."""

    logits: Tensor
    aux_4a: Tensor
    aux_4d: Tensor


def classifier_4(inputs: int, num_classes: int) -> nn.Sequential:
    """Return an auxiliary classifier on a 14x14 image."""
    return nn.Sequential(
        *(nn.AvgPool2d(5, 3), conv_relu(inputs, 128, 1), nn.Flatten()),
        *(nn.Linear(128 * 4 * 4, 1024), nn.ReLU(inplace=True), nn.Dropout(0.7), nn.Linear(1024, num_classes)),
    )


@register(
    "googlenet",
    input_shape=(3, 224, 224),
    paper=PAPER,
    params=6_998_552,
    macs=1_582_671_872,
)
class GoogLeNet(nn.Module):
    """GoogLeNet. `aux` adds the two auxiliary classifiers of training, which need 224x224 images."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3, aux: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(conv_relu(in_channels, 64, 7, stride=2), halve(), response_norm()),
            *(conv_relu(64, 64, 1), conv_relu(64, 192, 3), response_norm(), halve()),
        )
        self.inception_3 = nn.Sequential(
            Inception(192, 64, (96, 128), (16, 32), 32),
            Inception(256, 128, (128, 192), (32, 96), 64),
            halve(),
        )
        self.inception_4a = Inception(480, 192, (96, 208), (16, 48), 64)
        self.inception_4bcd = nn.Sequential(
            Inception(512, 160, (112, 224), (24, 64), 64),
            Inception(512, 128, (128, 256), (24, 64), 64),
            Inception(512, 112, (144, 288), (32, 64), 64),
        )
        self.inception_4e5 = nn.Sequential(
            Inception(528, 256, (160, 320), (32, 128), 128),
            halve(),
            Inception(832, 256, (160, 320), (32, 128), 128),
            Inception(832, 384, (192, 384), (48, 128), 128),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, num_classes))
        self.aux_4a = classifier_4(512, num_classes) if aux else None
        self.aux_4d = classifier_4(528, num_classes) if aux else None

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutput:
        x_4a = self.inception_4a(self.inception_3(self.stem(x)))
        x_4d = self.inception_4bcd(x_4a)
        logits = cast(Tensor, self.head(self.inception_4e5(x_4d)))
        if self.training and self.aux_4a is not None and self.aux_4d is not None:
            return GoogLeNetOutput(logits, self.aux_4a(x_4a), self.aux_4d(x_4d))
        return logits


module = partial(register, input_shape=(256, 32, 32), num_classes=None, paper=PAPER)


@module("inception-naive", macs=1_115_684_864)
class NaiveInception(nn.Module):
    """Figure 2a: every filter sees every input channel, and pooling passes them all on."""

    def __init__(self, in_channels: int = 256) -> None:
        super().__init__()
        self.one = conv_relu(in_channels, 128, 1)
        self.three = conv_relu(in_channels, 192, 3)
        self.five = conv_relu(in_channels, 96, 5)
        self.pool = nn.MaxPool2d(3, 1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


@module("inception-reduced", macs=354_418_688)
def inception_reduced(in_channels: int = 256) -> nn.Module:
    return Inception(in_channels, 128, (64, 192), (64, 96), 64)
