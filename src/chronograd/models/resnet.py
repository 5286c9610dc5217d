"""Residual networks: those for CIFAR-10, the original ResNet-50, and today's ResNet-50.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015, arXiv:1512.03385.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.models.registry import register

PAPER = "He et al. 2015, arXiv:1512.03385"
conv = partial(nn.Conv2d, bias=False)


class Subsample(nn.Module):
    """Shortcut without parameters (option A): every `stride`-th row and column, new channels are zero."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (channels - in_channels) // 2
        self.after = channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def projection(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Return a shortcut with a 1x1 convolution (option B)."""
    return nn.Sequential(conv(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, channels, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """A block of 1x1, 3x3, 1x1 convolutions; as published, the first one has the stride."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, shortcut: nn.Module | None, is_stride_in_3x3: bool = False
    ) -> None:
        super().__init__()
        width, strides = channels // 4, (1, stride) if is_stride_in_3x3 else (stride, 1)
        self.conv1 = conv(in_channels, width, 1, strides[0])
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, strides[1], padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, channels, 1)
        self.bn3 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.shortcut(x))


def stage(
    block: Callable[[int, int, int, nn.Module | None], nn.Module],
    depth: int,
    in_channels: int,
    channels: int,
    stride: int,
    option: str = "B",
) -> nn.Sequential:
    """Return `depth` blocks; the first has the stride and, if the shape changes, a shortcut with layers."""
    shortcut = None
    if stride != 1 or in_channels != channels:
        shortcut = (Subsample if option == "A" else projection)(in_channels, channels, stride)
    first = block(in_channels, channels, stride, shortcut)
    return nn.Sequential(first, *(block(channels, channels, 1, None) for _ in range(depth - 1)))


def initialise(network: nn.Module) -> None:
    """Draw normal weights that preserve the variance through ReLU; He et al. 2015, arXiv:1502.01852."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class CifarResNet(nn.Module):
    """The network of section 4.2 of the paper: 6n + 2 layers, widths 16, 32, 64. Takes images of any size."""

    def __init__(self, depth: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        n, rest = divmod(depth - 2, 6)
        assert rest == 0, "depth is 6n + 2"
        self.conv1 = conv(in_channels, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(BasicBlock, n, 16, 16, 1, option="A")
        self.layer2 = stage(BasicBlock, n, 16, 32, 2, option="A")
        self.layer3 = stage(BasicBlock, n, 32, 64, 2, option="A")
        self.linear = nn.Linear(64, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return cast(Tensor, self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


cifar = partial(register, input_shape=(3, 32, 32), num_classes=10, paper=PAPER + ", section 4.2")
for name, depth, params, macs in (
    ("resnet8", 8, 75_290, 12_239_488),
    ("resnet14", 14, 172_506, 26_395_264),
    ("resnet20", 20, 269_722, 40_551_040),
    ("resnet32", 32, 464_154, 68_862_592),
    ("resnet44", 44, 658_586, 97_174_144),
    ("resnet50-cifar", 50, 755_802, 111_329_920),  # not torchvision's, timm's or the original ResNet-50
    ("resnet56", 56, 853_018, 125_485_696),
    ("resnet110", 110, 1_727_962, 252_887_680),
):
    cifar(name, params=params, macs=macs)(partial(CifarResNet, depth))


@cifar("resnet18-cifar", params=11_173_962)
class ResNet18Cifar(nn.Module):
    """The ImageNet ResNet-18 with a 3x3 stem and no pooling before the stages, as is usual for 32x32 images."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, 64, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(BasicBlock, 2, 64, 64, 1)
        self.layer2 = stage(BasicBlock, 2, 64, 128, 2)
        self.layer3 = stage(BasicBlock, 2, 128, 256, 2)
        self.layer4 = stage(BasicBlock, 2, 256, 512, 2)
        self.linear = nn.Linear(512, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


class ResNet50(nn.Module):
    """ResNet-50 with a stage's stride in the first 1x1 convolution, or in the 3x3 after it."""

    head_name = "fc"  # the whole head, even if another network puts two layers there

    def __init__(self, num_classes: int = 1000, in_channels: int = 3, *, is_stride_in_3x3: bool = False) -> None:
        super().__init__()
        block = partial(Bottleneck, is_stride_in_3x3=is_stride_in_3x3)
        self.conv1 = conv(in_channels, 64, 7, 2, padding=3)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(block, 3, 64, 256, 1)
        self.layer2 = stage(block, 4, 256, 512, 2)
        self.layer3 = stage(block, 6, 512, 1024, 2)
        self.layer4 = stage(block, 3, 1024, 2048, 2)
        self.fc = nn.Linear(2048, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


of_50_layers = partial(register, input_shape=(3, 224, 224), params=25_557_032)


@of_50_layers("resnet50", paper=f"v1.5, Goyal et al. 2017; {PAPER}", macs=4_089_184_256)
def resnet50(num_classes: int = 1000, in_channels: int = 3) -> nn.Module:
    """Return today's ResNet-50, as in published results and in torchvision: the stride in the 3x3."""
    return ResNet50(num_classes, in_channels, is_stride_in_3x3=True)


@of_50_layers("resnet50-v1", paper=PAPER, macs=3_857_973_248)
def resnet50_v1(num_classes: int = 1000, in_channels: int = 3) -> nn.Module:
    """Return ResNet-50 as first published, and in Keras: the stride in the 1x1 before."""
    return ResNet50(num_classes, in_channels)
