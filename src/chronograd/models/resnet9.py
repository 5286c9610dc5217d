"""ResNet-9, a small residual network known for the fastest training of CIFAR-10 to 94 %.

D. Page, "How to train your ResNet", 2018, and its code, cifar10-fast. Eight 3x3 convolutions and a linear layer; poolings
instead of strides.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.models.registry import register

OUTPUT_SCALE = 0.125  # of the logits, as published


def conv(in_channels: int, out: int) -> nn.Sequential:
    """Return a 3x3 convolution, batch norm and ReLU."""
    same = nn.Conv2d(in_channels, out, 3, padding=1, bias=False)
    return nn.Sequential(same, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions, ReLU included, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.res1 = conv(channels, channels)
        self.res2 = conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.res2(self.res1(x)))


@register(
    "resnet9",
    input_shape=(3, 32, 32),
    num_classes=10,
    paper="D. Page, How to train your ResNet, 2018",
    params=6_573_120,  # 9 * (3*64 + 64*128 + 2*128² + 128*256 + 256*512 + 2*512²) + 2 * (64 + 3*128 + 256 + 3*512) + 5,120
    macs=379_261_952,
)
class ResNet9(nn.Module):
    """ResNet-9. The last pooling covers the remaining map, 4x4 for images of 32x32."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.prep = conv(in_channels, 64)
        self.layer1 = nn.Sequential(conv(64, 128), nn.MaxPool2d(2), Residual(128))
        self.layer2 = nn.Sequential(conv(128, 256), nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(conv(256, 512), nn.MaxPool2d(2), Residual(512))
        self.linear = nn.Linear(512, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.prep(x))))
        return cast(Tensor, self.linear(torch.flatten(F.adaptive_max_pool2d(x, 1), 1)) * OUTPUT_SCALE)
