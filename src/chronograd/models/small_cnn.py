"""A small network for small images, often used to compare training frameworks.

Two valid 3x3 convolutions, a pooling, two dense layers: the first network of the Keras examples for MNIST and CIFAR-10 (F.
Chollet, 2015), without dropout and batch norm.
"""

from __future__ import annotations

from torch import nn

from chronograd.models.registry import register


@register(
    "small-cnn",
    input_shape=(3, 32, 32),
    num_classes=10,
    paper="Chollet, Keras examples, 2015",
    params=1_626_442,  # 896 + 18,496 + 1,605,760 + 1,290
    macs=16_835_200,  # 900 * 32 * 27 + 784 * 64 * 288 + 12,544 * 128 + 1,280
)
def small_cnn(num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> nn.Module:
    side = (image_size - 4) // 2
    if side < 1:
        raise ValueError(f"images of {image_size} x {image_size} are too small; the minimum is 6 x 6")
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * side * side, 128), nn.ReLU()),
        nn.Linear(128, num_classes),
    )
