"""Two networks with new heads, as a Keras user builds them from `keras.applications` for ten classes.

Keras counts the running statistics of batch norm and the input normalisation as parameters. Its ResNet-50 has biases, which the
following batch norm cancels. `keras_extra` lists the parameters that it counts in addition to ours.

EfficientNet: Tan & Le 2019, arXiv:1905.11946. ResNet-50: He et al. 2015, arXiv:1512.03385.
"""

from __future__ import annotations

from torch import nn

from chronograd.models.registry import optional_library, register
from chronograd.models.resnet import ResNet50


def normalised_input(network: nn.Module) -> dict[str, int]:
    """Return the extra parameters of the layer with which Keras' EfficientNet normalises its input."""
    return {"input normalisation (mean 3, variance 3, count 1)": 7}


def convolution_biases(network: nn.Module) -> dict[str, int]:
    """Return the extra parameters of Keras' ResNet50: a bias in every convolution."""
    return {"convolution biases": sum(m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d))}


@register(
    "efficientnet-b0-keras",
    input_shape=(3, 224, 224),
    num_classes=10,
    paper="Tan & Le 2019, arXiv:1905.11946",
    # Keras prints 4,062,381 with 42,016 running statistics and 7 of the input normalisation: 4,007,548 of
    # the body + 1280 * 10 + 10.
    params=4_020_358,
    keras_extra=normalised_input,
)
def efficientnet_b0_keras(num_classes: int = 10) -> nn.Module:
    models = optional_library("torchvision.models", "network efficientnet-b0-keras")
    network: nn.Module = models.efficientnet_b0(weights=None, num_classes=num_classes)
    return network


@register(
    "resnet50-keras",
    input_shape=(3, 224, 224),
    num_classes=10,
    paper="He et al. 2015, arXiv:1512.03385",
    # Keras prints 23,628,902 with 53,120 running statistics and 26,560 convolution biases: 23,508,032 of the
    # body + 2048 * 20 + 20 + 20 * 10 + 10.
    params=23_549_222,
    keras_extra=convolution_biases,
)
def resnet50_keras(num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Return ResNet-50 with two dense layers, from pooled features to 20 to the classes; the activation between them is our
    choice.
    """
    network = ResNet50(num_classes, in_channels)
    head = nn.Sequential(nn.Linear(2048, 20), nn.ReLU(), nn.Linear(20, num_classes))
    network.fc = head  # type: ignore[assignment]
    return network
