"""LeNet-5: two convolutions and three dense layers for handwritten digits.

LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, section II.B. As is usual
today, ReLU replaces tanh, and max pooling replaces trained subsampling. Every map of C3 sees all of S2, and a linear layer
replaces the radial basis functions of the output. It has no batch norm and no dropout, so any number of ranks computes the
same.
"""

from __future__ import annotations

from torch import nn

from chronograd.models.registry import register


@register(
    "lenet5",
    input_shape=(1, 28, 28),
    num_classes=10,
    paper="LeCun et al. 1998, Proc. IEEE 86 (11)",
    params=61_706,  # 156 + 2,416 + 48,120 + 10,164 + 850
    macs=416_520,  # 784 * 6 * 25 + 100 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
)
def lenet5(num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> nn.Module:
    """Return the network. Two pixels of padding turn an image of 28 x 28 into the paper's 32 x 32."""
    side = (image_size // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"images of {image_size} x {image_size} are too small; the minimum is 12 x 12")
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * side * side, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, num_classes),
    )
