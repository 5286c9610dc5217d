"""A Keras model built by a port, with the weights of the torch network. Needs TensorFlow.

Torch stores images as NCHW, kernels as OIHW and OI; Keras as NHWC, HWIO and IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]

# Defaults of torch.nn.BatchNorm2d: the share of the newest batch in the running statistics, and epsilon.
BATCH_NORM_SHARE = 0.1
BATCH_NORM_EPSILON = 1e-5
KERNEL_AXES = (2, 3, 1, 0)  # OIHW to HWIO
COUNTED = "num_batches_tracked"


@dataclass(frozen=True)
class PortedTensor:
    """One tensor of the network: its name in the torch network, its variable, and the order of torch's axes in Keras."""

    name: str
    variable: Any
    axes: tuple[int, ...]

    def assign(self, value: Array, variable: Any = None) -> None:
        """Assign a value in torch's layout; to another variable of the same shape if given."""
        (self.variable if variable is None else variable).assign(np.transpose(value, self.axes))

    def value(self, variable: Any = None) -> Array:
        """Return the value in torch's layout; that of another variable of the same shape if given."""
        array = (self.variable if variable is None else variable).numpy()
        return np.ascontiguousarray(np.transpose(array, np.argsort(self.axes)))


@dataclass
class PortedNetwork:
    """A port with weights.

    Attributes:
        model: from images (float32, NHWC) to logits, then mean and variance of the batch of every batch norm.
        trained: parameters; `running`: mean and variance of every batch norm, in the order of the model's outputs.
        counted: number of batches of each batch norm, by name; only torch stores it.
    """

    model: Any
    trained: list[PortedTensor]
    running: list[PortedTensor]
    counted: dict[str, Array] = field(default_factory=dict)

    def run(self, images: Any, training: bool) -> tuple[Any, list[Any]]:
        """Return logits, and mean and variance of the batch of every batch norm."""
        import tensorflow as tf

        logits, *statistics = tf.nest.flatten(self.model(images, training=training))
        return logits, statistics

    def load(self, weights: Weights) -> None:
        for tensor in (*self.trained, *self.running):
            tensor.assign(weights[tensor.name])
        self.counted = {name: np.array(weights[name]) for name in weights if name.endswith(COUNTED)}

    def weights(self) -> dict[str, Array]:
        """Return the weights under torch's names, in its layout and order of axes."""
        return {**{t.name: t.value() for t in (*self.trained, *self.running)}, **self.counted}


def build(port: Callable[..., Any], shape: Sequence[int], weights: Weights) -> PortedNetwork:
    """Build a port for images of `shape` (channels, height, width). Call it within the strategy's scope.

    Unused weights, and layers without weights, are errors of the port.
    """
    import keras

    channels, height, width = shape
    layers = KerasLayers(weights)
    images = keras.Input((height, width, channels), dtype="float32")
    logits = port(layers, images)
    network = PortedNetwork(keras.Model(images, [logits, *layers.statistics]), layers.trained, layers.running)
    known = {t.name for t in (*network.trained, *network.running)}
    left = {name for name in weights if name not in known and not name.endswith(COUNTED)}
    assert not left, f"the port leaves out {sorted(left)}"
    network.load(weights)
    return network


@cache
def _batch_norm() -> Any:
    """Return a layer that gives its output, and mean and unbiased variance of the batch, which update `running` elsewhere.

    Keras's own layer averages its running statistics with the biased variance, and separately on each replica.
    """
    import keras
    import tensorflow as tf

    class BatchNorm(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Sequence[int]) -> None:
            size = (shape[-1],)
            self.scale = self.add_weight(shape=size, initializer="ones", name="weight")
            self.shift = self.add_weight(shape=size, initializer="zeros", name="bias")
            self.mean = self.add_weight(shape=size, initializer="zeros", trainable=False, name="running_mean")
            self.variance = self.add_weight(shape=size, initializer="ones", trainable=False, name="running_var")

        def compute_output_shape(self, shape: Sequence[int]) -> list[tuple[Any, ...]]:
            return [tuple(shape), (shape[-1],), (shape[-1],)]

        def call(self, x: Any, training: bool = False) -> list[Any]:
            nothing = tf.zeros(0)
            y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=tf.convert_to_tensor(self.scale),
                offset=tf.convert_to_tensor(self.shift),
                mean=nothing if training else tf.convert_to_tensor(self.mean),
                variance=nothing if training else tf.convert_to_tensor(self.variance),
                epsilon=BATCH_NORM_EPSILON,
                is_training=training,
            )
            return [y, mean, variance]

    return BatchNorm


class KerasLayers:
    """Keras layers under the names of the torch network's modules, with their weights."""

    def __init__(self, weights: Weights) -> None:
        import keras

        self._keras: Any = keras
        self.trained: list[PortedTensor] = []
        self.running: list[PortedTensor] = []
        self.statistics: list[Any] = []
        self._weights = weights

    def conv(self, name: str, x: Any, stride: int = 1, padding: int = 0) -> Any:
        channels, _, height, width = self._weights[f"{name}.weight"].shape
        bias = f"{name}.bias" in self._weights
        # TensorFlow's own padding differs from torch's if there is a stride.
        y = self._keras.layers.ZeroPadding2D(padding)(x) if padding else x
        layer = self._keras.layers.Conv2D(channels, (height, width), stride, use_bias=bias, name=_layer_name(name))
        y = layer(y)
        self._keep(name, layer, KERNEL_AXES)
        return y

    def batch_norm(self, name: str, x: Any) -> Any:
        layer = _batch_norm()(name=_layer_name(name))
        y, mean, variance = layer(x)
        self.statistics += [mean, variance]
        self.trained += [
            PortedTensor(f"{name}.weight", layer.scale.value, (0,)),
            PortedTensor(f"{name}.bias", layer.shift.value, (0,)),
        ]
        self.running += [
            PortedTensor(f"{name}.running_mean", layer.mean.value, (0,)),
            PortedTensor(f"{name}.running_var", layer.variance.value, (0,)),
        ]
        return y

    def linear(self, name: str, x: Any) -> Any:
        layer = self._keras.layers.Dense(len(self._weights[f"{name}.weight"]), name=_layer_name(name))
        y = layer(x)
        self._keep(name, layer, (1, 0))
        return y

    def relu(self, x: Any) -> Any:
        return self._keras.ops.relu(x)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def max_pool(self, x: Any, size: int, stride: int, padding: int = 0) -> Any:
        """Pool with zero padding, so only for the output of a ReLU."""
        x = self._keras.layers.ZeroPadding2D(padding)(x) if padding else x
        return self._keras.layers.MaxPooling2D(size, stride)(x)

    def mean_pool(self, x: Any) -> Any:
        """Average over all pixels, to one row of channels per image."""
        return self._keras.layers.GlobalAveragePooling2D()(x)

    def flatten(self, x: Any) -> Any:
        """Flatten in torch's order: channels, rows, columns."""
        return self._keras.layers.Flatten()(self._keras.layers.Permute((3, 1, 2))(x))

    def subsample(self, x: Any, channels: int, stride: int) -> Any:
        """Take every `stride`-th pixel, with channels of zeros on both sides up to `channels`."""
        more = channels - x.shape[-1]
        sides = (more // 2, more - more // 2)
        return self._keras.ops.pad(x[:, ::stride, ::stride, :], [(0, 0), (0, 0), (0, 0), sides])

    def _keep(self, name: str, layer: Any, axes: tuple[int, ...]) -> None:
        self.trained.append(PortedTensor(f"{name}.weight", layer.kernel.value, axes))
        if layer.use_bias:
            self.trained.append(PortedTensor(f"{name}.bias", layer.bias.value, (0,)))


def _layer_name(name: str) -> str:
    """Return a name for a graph of TensorFlow, where names begin with a letter."""
    return f"module_{name}".replace(".", "_")
