"""Keras ports: the architectures of some of our networks, written again layer by layer.

A port calls the methods of `KerasLayers` with the names of the torch network's state dict; channels, kernels and biases
follow from the weights. Imports neither TensorFlow nor torch: a job is checked against the names in `PORTS`.

LeNet-5 and small-cnn: see chronograd.models. CIFAR ResNets with parameter-free shortcuts, and ResNet-50: He et al.
2015, arXiv:1512.03385; torchvision's ResNet-50 has the stride in the 3x3 convolution ("version 1.5").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronograd.backends.tensorflow.layers import KerasLayers

X = Any  # a symbolic tensor of images or features, channels last
Port = Callable[["KerasLayers", X], X]


def lenet5(net: KerasLayers, x: X) -> X:
    x = net.max_pool(net.relu(net.conv("0", x, padding=2)), 2, 2)
    x = net.flatten(net.max_pool(net.relu(net.conv("3", x)), 2, 2))
    return net.linear("11", net.relu(net.linear("9", net.relu(net.linear("7", x)))))


def small_cnn(net: KerasLayers, x: X) -> X:
    x = net.relu(net.conv("2", net.relu(net.conv("0", x))))
    x = net.flatten(net.max_pool(x, 2, 2))
    return net.linear("8", net.relu(net.linear("6", x)))


def cifar_resnet(depth: int) -> Port:
    """Return a ResNet of 6n + 2 layers, widths 16, 32, 64."""

    def port(net: KerasLayers, x: X) -> X:
        x = net.relu(net.batch_norm("bn1", net.conv("conv1", x, padding=1)))
        for stage, width in enumerate((16, 32, 64), start=1):
            for block in range((depth - 2) // 6):
                is_narrower = stage > 1 and block == 0
                shortcut = net.subsample(x, width, 2) if is_narrower else x
                x = net.relu(net.add(_two_convs(net, f"layer{stage}.{block}", x, 2 if is_narrower else 1), shortcut))
        return net.linear("linear", net.mean_pool(x))

    return port


def resnet18_cifar(net: KerasLayers, x: X) -> X:
    x = net.relu(net.batch_norm("bn1", net.conv("conv1", x, padding=1)))
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            shortcut = _projection(net, f"{name}.shortcut", x, stride) if stride > 1 else x
            x = net.relu(net.add(_two_convs(net, name, x, stride), shortcut))
    return net.linear("linear", net.mean_pool(x))


def resnet50(shortcut_name: str, is_stride_in_3x3: bool) -> Port:
    def port(net: KerasLayers, x: X) -> X:
        x = net.relu(net.batch_norm("bn1", net.conv("conv1", x, stride=2, padding=3)))
        x = net.max_pool(x, 3, 2, padding=1)
        for stage, depth in enumerate((3, 4, 6, 3), start=1):
            for block in range(depth):
                name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                shortcut = _projection(net, f"{name}.{shortcut_name}", x, stride) if block == 0 else x
                strides = (1, stride) if is_stride_in_3x3 else (stride, 1)
                y = net.relu(net.batch_norm(f"{name}.bn1", net.conv(f"{name}.conv1", x, strides[0])))
                y = net.relu(net.batch_norm(f"{name}.bn2", net.conv(f"{name}.conv2", y, strides[1], padding=1)))
                y = net.batch_norm(f"{name}.bn3", net.conv(f"{name}.conv3", y))
                x = net.relu(net.add(y, shortcut))
        return net.linear("fc", net.mean_pool(x))

    return port


def _two_convs(net: KerasLayers, name: str, x: X, stride: int) -> X:
    x = net.relu(net.batch_norm(f"{name}.bn1", net.conv(f"{name}.conv1", x, stride, padding=1)))
    return net.batch_norm(f"{name}.bn2", net.conv(f"{name}.conv2", x, padding=1))


def _projection(net: KerasLayers, name: str, x: X, stride: int) -> X:
    return net.batch_norm(f"{name}.1", net.conv(f"{name}.0", x, stride))


PORTS: dict[str, Port] = {
    "lenet5": lenet5,
    "small-cnn": small_cnn,
    **{f"resnet{depth}": cifar_resnet(depth) for depth in (8, 14, 20, 32, 44, 56, 110)},
    "resnet18-cifar": resnet18_cifar,
    "resnet50": resnet50("shortcut", is_stride_in_3x3=True),
    "resnet50-v1": resnet50("shortcut", is_stride_in_3x3=False),
    "torchvision:resnet50": resnet50("downsample", is_stride_in_3x3=True),
}
