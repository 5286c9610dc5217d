"""The networks of PALEO, after TensorFlow-Slim: dense layers written as convolutions, biases everywhere, no batch norm.

Qi, Sparks, Talwalkar, "PALEO: a performance model for deep neural networks", ICLR 2017. Its published scaling holds for these
and not for the networks of the same name in torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from chronograd.models.registry import register
from chronograd.models.vgg import WIDTHS


def conv(in_channels: int, out: int, kernel: int | tuple[int, int], stride: int = 1, same: bool = True) -> nn.Module:
    """Return a convolution and its ReLU; `same` preserves the image size at stride 1."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sides[0] // 2, sides[1] // 2) if same else (0, 0)
    return nn.Sequential(nn.Conv2d(in_channels, out, sides, stride, padding), nn.ReLU(inplace=True))


def dense_head(in_channels: int, kernel: int, num_classes: int) -> nn.Module:
    """Return fc6, fc7 and fc8 as convolutions; fc6 covers the remaining map."""
    return nn.Sequential(
        *(conv(in_channels, 4096, kernel, same=False), nn.Dropout(0.5)),
        *(conv(4096, 4096, 1), nn.Dropout(0.5)),
        *(nn.Conv2d(4096, num_classes, 1), nn.Flatten()),
    )


@register(
    "alexnet-v2",
    input_shape=(3, 224, 224),
    paper="Krizhevsky 2014, arXiv:1404.5997",
    params=50_303_912,  # of PALEO's released network
)
def alexnet_v2(num_classes: int = 1000, in_channels: int = 3, fourth_width: int = 384) -> nn.Module:
    """Return the network. `fourth_width` is 256 if PALEO splits the network over devices, as the paper of 2014 does."""
    return nn.Sequential(
        *(conv(in_channels, 64, 11, 4, same=False), nn.MaxPool2d(3, 2)),
        *(conv(64, 192, 5), nn.MaxPool2d(3, 2)),
        *(conv(192, 384, 3), conv(384, fourth_width, 3), conv(fourth_width, 256, 3), nn.MaxPool2d(3, 2)),
        dense_head(256, 5, num_classes),
    )


@register(
    "vgg16-slim", input_shape=(3, 224, 224), paper="Simonyan & Zisserman 2014, arXiv:1409.1556", params=138_357_544
)
def vgg16_slim(num_classes: int = 1000, in_channels: int = 3) -> nn.Module:
    layers: list[nn.Module] = []
    for depth, width in zip((2, 2, 3, 3, 3), WIDTHS, strict=True):
        for _ in range(depth):
            layers.append(conv(in_channels, width, 3))
            in_channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, dense_head(512, 7, num_classes))


class Branches(nn.Module):
    """Sequences of layers on the same input, their outputs concatenated along the channels."""

    def __init__(self, *branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def pooled(in_channels: int, out: int) -> list[nn.Module]:
    return [nn.AvgPool2d(3, 1, 1), conv(in_channels, out, 1)]


def mixed_35(i: int, pool: int) -> nn.Module:
    """Return the module for 35 × 35: 1×1; 5×5; two 3×3; pooling."""
    return Branches(
        [conv(i, 64, 1)],
        [conv(i, 48, 1), conv(48, 64, 5)],
        [conv(i, 64, 1), conv(64, 96, 3), conv(96, 96, 3)],
        pooled(i, pool),
    )


def mixed_17(w: int) -> nn.Module:
    """Return the module for 17 × 17 with 768 channels: 7×7 in two strips, once and twice."""
    return Branches(
        [conv(768, 192, 1)],
        [conv(768, w, 1), conv(w, w, (1, 7)), conv(w, 192, (7, 1))],
        [conv(768, w, 1), conv(w, w, (7, 1)), conv(w, w, (1, 7)), conv(w, w, (7, 1)), conv(w, 192, (1, 7))],
        pooled(768, 192),
    )


def mixed_8(i: int) -> nn.Module:
    """Return the module for 8 × 8: 3×3 as two strips side by side."""

    def strips(width: int) -> nn.Module:
        return Branches([conv(width, 384, (1, 3))], [conv(width, 384, (3, 1))])

    return Branches(
        [conv(i, 320, 1)],
        [conv(i, 384, 1), strips(384)],
        [conv(i, 448, 1), conv(448, 384, 3), strips(384)],
        pooled(i, 192),
    )


@register(
    "inception-v3-slim",
    input_shape=(3, 299, 299),
    paper="Szegedy et al. 2015, arXiv:1512.00567",
    params=23_734_312,  # of PALEO's released network
)
class InceptionV3(nn.Module):
    """Inception v3. Between 35 × 35 and 17 × 17, PALEO has one 3×3 convolution fewer than the paper."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(conv(in_channels, 32, 3, 2, same=False), conv(32, 32, 3, same=False), conv(32, 64, 3)),
            *(nn.MaxPool2d(3, 2), conv(64, 80, 1), conv(80, 192, 3, same=False), nn.MaxPool2d(3, 2)),
            *(mixed_35(192, 32), mixed_35(256, 64), mixed_35(288, 64)),
            Branches(
                [conv(288, 384, 3, 2, same=False)],
                [conv(288, 64, 1), conv(64, 96, 3, 2, same=False)],
                [nn.MaxPool2d(3, 2)],
            ),
            *(mixed_17(128), mixed_17(160), mixed_17(160), mixed_17(192)),
            Branches(
                [conv(768, 192, 1), conv(192, 320, 3, 2, same=False)],
                [conv(768, 192, 1), conv(192, 192, (1, 7)), conv(192, 192, (7, 1)), conv(192, 192, 3, 2, same=False)],
                [nn.MaxPool2d(3, 2)],
            ),
            *(mixed_8(1280), mixed_8(2048)),
        )
        self.classifier = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5), nn.Conv2d(2048, num_classes, 1), nn.Flatten())
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.features(x)))
