"""AlexNet as published, with two groups in three of its convolutions and local response norm.

Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", NIPS 2012. torchvision's
`alexnet` is the one-tower variant of 2014, which has other widths and no norm.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from chronograd.models.registry import register


def response_norm() -> nn.Module:
    """Return the norm of section 3.3. The paper sums alpha = 1e-4 over 5 channels; torch takes the mean."""
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


@register(
    "alexnet", input_shape=(3, 227, 227), paper="Krizhevsky et al., NIPS 2012", params=60_965_224, macs=724_406_816
)
class AlexNet(nn.Module):
    """AlexNet. With `groups` 1 every filter sees every channel, as in the paper's network on one GPU with enough memory."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3, image_size: int = 227, groups: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(in_channels, 96, 11, stride=4), nn.ReLU(inplace=True), response_norm(), nn.MaxPool2d(3, 2)),
            *(
                nn.Conv2d(96, 256, 5, padding=2, groups=groups),
                nn.ReLU(inplace=True),
                response_norm(),
                nn.MaxPool2d(3, 2),
            ),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 384, 3, padding=1, groups=groups), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 256, 3, padding=1, groups=groups), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        )
        side = (image_size - 11) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        if side < 1:
            raise ValueError(f"images of {image_size} x {image_size} are too small; the minimum is 67 x 67")
        self.classifier = nn.Sequential(
            *(nn.Linear(256 * side * side, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(torch.flatten(self.features(x), 1)))
