"""VGG-16 and VGG-19: 3x3 convolutions in five blocks, three dense layers.

Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014,
arXiv:1409.1556, configurations D and E.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from chronograd.models.registry import register

WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """A VGG network. `depths` holds the number of convolutions of each block; a pooling ends a block."""

    def __init__(
        self, depths: tuple[int, ...], num_classes: int = 1000, in_channels: int = 3, image_size: int = 224
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for depth, width in zip(depths, WIDTHS, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(in_channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                in_channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        side = image_size // 32
        if side < 1:
            raise ValueError(f"images of {image_size} x {image_size} are too small; the minimum is 32 x 32")
        self.classifier = nn.Sequential(
            *(nn.Linear(512 * side * side, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(torch.flatten(self.features(x), 1)))


vgg = partial(register, input_shape=(3, 224, 224), paper="Simonyan & Zisserman 2014, arXiv:1409.1556")
vgg("vgg16", params=138_357_544, macs=15_470_264_320)(partial(VGG, (2, 2, 3, 3, 3)))
vgg("vgg19", params=143_667_240, macs=19_632_062_464)(partial(VGG, (2, 2, 4, 4, 4)))
