"""Network in Network for ImageNet.

Lin, Chen, Yan, "Network in network", 2013, arXiv:1312.4400; the ImageNet widths are those of the authors' published model.
"""

from __future__ import annotations

from torch import nn

from chronograd.models.registry import register


def mlpconv(in_channels: int, channels: int, out: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
    """Return a convolution and two 1x1 convolutions, which act as a small perceptron at every pixel."""
    return nn.Sequential(
        *(nn.Conv2d(in_channels, channels, kernel, stride, padding), nn.ReLU(inplace=True)),
        *(nn.Conv2d(channels, channels, 1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(channels, out, 1), nn.ReLU(inplace=True)),
    )


@register(
    "nin",
    input_shape=(3, 224, 224),
    paper="Lin et al. 2013, arXiv:1312.4400",
    params=7_595_176,  # of the NiN of PALEO: Qi, Sparks, Talwalkar, ICLR 2017
)
def nin(num_classes: int = 1000, in_channels: int = 3, ceil_mode: bool = True) -> nn.Module:
    """Return the network. `ceil_mode` also pools the remaining border, as the authors' Caffe does; PALEO drops the border."""
    return nn.Sequential(
        *(mlpconv(in_channels, 96, 96, 11, 4, 0), nn.MaxPool2d(3, 2, ceil_mode=ceil_mode)),
        *(mlpconv(96, 256, 256, 5, 1, 2), nn.MaxPool2d(3, 2, ceil_mode=ceil_mode)),
        *(mlpconv(256, 384, 384, 3, 1, 1), nn.MaxPool2d(3, 2, ceil_mode=ceil_mode), nn.Dropout(0.5)),
        mlpconv(384, 1024, num_classes, 3, 1, 1),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
