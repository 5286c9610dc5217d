"""MobileNet v1: alternating depthwise 3x3 and pointwise 1x1 convolutions, with all widths scaled by one multiplier.

Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017, arXiv:1704.04861,
table 1. The face detectors of biubug6 start from ImageNet weights of width 0.25 (Pytorch_Retinaface, models/net.py); our
parameters have the names of those. Those detectors have leaky ReLUs of slope 0.1, but the weights were trained with ReLUs. Nine
channels behind an activation have a stored variance of 0, which a leaky ReLU cannot produce.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.models.registry import register
from chronograd.models.resnet import initialise

# Width and stride of each separable convolution of table 1, split where the map has an eighth and a sixteenth of the image's
# side: detectors use the maps there.
STAGES = (
    ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    ((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    ((1024, 2), (1024, 1)),
)
STEM_WIDTH = 32
MIN_WIDTH = 8  # from the authors' code for small multipliers


def conv(in_channels: int, out: int, kernel: int, stride: int, groups: int, slope: float) -> list[nn.Module]:
    """Return a convolution, batch norm and (leaky) ReLU."""
    activation = nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True)
    same = nn.Conv2d(in_channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [same, nn.BatchNorm2d(out), activation]


def separable(in_channels: int, out: int, stride: int, slope: float) -> nn.Sequential:
    """Return a depthwise 3x3 convolution, then a 1x1 convolution over the channels."""
    depthwise = conv(in_channels, in_channels, 3, stride, in_channels, slope)
    return nn.Sequential(*depthwise, *conv(in_channels, out, 1, 1, 1, slope))


class MobileNetV1(nn.Module):
    """MobileNet v1. `width` multiplies every number of channels; `slope` is that of the activation below zero."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3, width: float = 1.0, slope: float = 0.0) -> None:
        super().__init__()
        if width <= 0:
            raise ValueError(f"the width multiplier is {width}, it must be above 0")
        channels = max(int(STEM_WIDTH * width), MIN_WIDTH)
        stages: list[list[nn.Module]] = [[nn.Sequential(*conv(in_channels, channels, 3, 2, 1, slope))], [], []]
        for stage, layers in zip(stages, STAGES, strict=True):
            for full, stride in layers:
                out = max(int(full * width), MIN_WIDTH)
                stage.append(separable(channels, out, stride, slope))
                channels = out
        self.stage1, self.stage2, self.stage3 = (nn.Sequential(*stage) for stage in stages)
        self.fc = nn.Linear(channels, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(x)))
        return cast(Tensor, self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


mobilenet = partial(register, input_shape=(3, 224, 224), paper="Howard et al. 2017, arXiv:1704.04861")
# The paper prints 4.2 and 569 million, and 0.5 and 41 million.
mobilenet("mobilenet-v1", params=4_231_976, macs=568_740_352)(MobileNetV1)
mobilenet("mobilenet-v1-0.25", params=470_072, macs=41_030_272)(partial(MobileNetV1, width=0.25))
