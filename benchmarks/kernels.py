"""Single kernels as traces of one operator, and a fit to a table of timed kernels.

A kernel here is an ordinary Trace, so the same fit calibrates a device on a table of kernels or of networks. The batch of the
trace is the first dimension of the kernel: rows of a product, products of a batched one, images of a convolution.

The part of a kernel's time that a calibration does not explain depends on the tile, split or algorithm that a library picks.
These choices are smooth enough in the logarithms of the sizes that a Gaussian process over a few dozen timed kernels learns a
good part of them. Far from any timed kernel it adds nothing, and only the calibration counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from chronograd.errors import InputError
from chronograd.fit.device import Sample, fit_calibration
from chronograd.predict.calibration import CLASSES, Calibration
from chronograd.record import Z80
from chronograd.trace import DTYPE_BYTES, MATRIX_KINDS, Affine, Operator, Storage, Tensor, Trace

BATCH = -1  # the dimension in a shape that grows with the batch


def gemm(depth: int, width: int, dtype: str = "float32") -> Trace:
    """Return (rows × depth) · (depth × width); the batch is `rows`, the right factor a weight.

    >>> gemm(64, 10).macs(128) == 128 * 64 * 10
    True
    """
    return _kernel("gemm", "mm", [(BATCH, depth), (depth, width)], [(BATCH, width)], dtype, macs=depth * width)


def batched_gemm(rows: int, depth: int, width: int, dtype: str = "float32") -> Trace:
    """Return a batch of products (rows × depth) · (depth × width), as in attention.

    >>> batched_gemm(8, 64, 8).macs(16) == 16 * 8 * 64 * 8
    True
    """
    shapes = [(BATCH, rows, depth), (BATCH, depth, width)]
    return _kernel("batched_gemm", "bmm", shapes, [(BATCH, rows, width)], dtype, macs=rows * depth * width)


def linear(inputs: int, outputs: int, dtype: str = "float32") -> Trace:
    """Return a linear layer with bias over a batch of rows."""
    shapes = [(outputs,), (BATCH, inputs), (inputs, outputs)]
    return _kernel("gemm", "addmm", shapes, [(BATCH, outputs)], dtype, macs=inputs * outputs)


def elementwise(name: str, width: int, num_inputs: int = 1, operations: int = 1, dtype: str = "float32") -> Trace:
    """Return an elementwise operator over (batch × width); `operations` is its arithmetic per element."""
    return _kernel("elementwise", name, [(BATCH, width)] * num_inputs, [(BATCH, width)], dtype, per_row=operations)


def layer_norm(width: int, dtype: str = "float32") -> Trace:
    """Return a layer norm of rows of `width`; its scale and shift are weights."""
    shapes = [(BATCH, width), (width,), (width,)]
    return _kernel("norm", "native_layer_norm", shapes, [(BATCH, width)], dtype, per_row=5)


def softmax(width: int, dtype: str = "float32") -> Trace:
    """Return a softmax of rows of `width`."""
    return _kernel("softmax", "_softmax", [(BATCH, width)], [(BATCH, width)], dtype, per_row=5)


@dataclass(frozen=True)
class Convolution:
    """A convolution of images (height, width); pairs are (height, width)."""

    in_channels: int
    out_channels: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1

    @property
    def output(self) -> tuple[int, int]:
        """Return the size of the output image: ⌊(image + 2 · padding - kernel) / stride⌋ + 1.

        >>> Convolution(3, 64, (224, 224), (7, 7), (2, 2), (3, 3)).output
        (112, 112)
        """
        h, w = (
            (i + 2 * p - k) // s + 1
            for i, p, k, s in zip(self.image, self.padding, self.kernel, self.stride, strict=True)
        )
        return h, w

    def trace(self, direction: str = "forward", dtype: str = "float32") -> Trace:
        """Return the convolution or one of its gradients: `direction` is `forward`, `data` or `weights`. The batch is images.

        Each gradient has the same number of multiplications as the forward pass.

        Raises: InputError for another direction, or an image smaller than the kernel.
        """
        if min(self.output) < 1:
            raise InputError(f"kernel {self.kernel} on an image of {self.image}", "pad the image")
        image = (BATCH, self.in_channels, *self.image)
        weight = (self.out_channels, self.in_channels // self.groups, *self.kernel)
        out = (BATCH, self.out_channels, *self.output)
        tensors = {"forward": (image, weight, out), "data": (out, weight, image), "weights": (out, image, weight)}
        if direction not in tensors:
            raise InputError(f"direction is {direction!r}", f"choose one of {', '.join(tensors)}")
        first, second, result = tensors[direction]
        # The gradient of the data is a convolution of the output's gradient with swapped channels.
        channels = (self.in_channels, self.out_channels)[:: -1 if direction == "data" else 1]
        return _kernel(
            self._kind(),
            "convolution" if direction == "forward" else "convolution_backward",
            [first, second],
            [result],
            dtype,
            macs=math.prod(self.output) * math.prod(weight),
            phase="forward" if direction == "forward" else "backward",
            attributes={
                "in_channels": channels[0],
                "out_channels": channels[1],
                "kernel": list(self.kernel),
                "stride": list(self.stride),
                "padding": list(self.padding),
                "groups": self.groups,
            },
        )

    def _kind(self) -> str:
        if self.groups > 1:
            return "conv_depthwise" if self.groups == self.in_channels else "conv_grouped"
        return {(1, 1): "conv_1x1", (3, 3): "conv_3x3"}.get(self.kernel, "conv_kxk")


def _kernel(
    kind: str,
    name: str,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
    dtype: str,
    *,
    macs: int = 0,
    per_row: int = 0,
    phase: str = "forward",
    attributes: dict[str, object] | None = None,
) -> Trace:
    """Return one operator. `macs` is per row of the batch; `per_row` the arithmetic per element of the first input."""
    if dtype not in DTYPE_BYTES:
        raise InputError(f"dtype is {dtype!r}", f"choose one of {', '.join(DTYPE_BYTES)}")
    trace = Trace(f"kernel:{name}", "inference", "none", [])
    read, written = Affine(0, 0), Affine(0, 0)
    for shape, is_input in [*((s, True) for s in inputs), *((s, False) for s in outputs)]:
        size = math.prod(d for d in shape if d != BATCH)
        count = Affine(0, size) if BATCH in shape else Affine(size, 0)
        moved = count.times(DTYPE_BYTES[dtype])
        role = "activation" if BATCH in shape else ("parameter" if is_input else "gradient")
        trace.storages.append(Storage(moved, role, -1 if is_input else 0))
        dims = tuple(Affine(0, 1) if d == BATCH else Affine(d, 0) for d in shape)
        trace.tensors.append(Tensor(len(trace.storages) - 1, dims, dtype))
        read, written = (read.plus(moved), written) if is_input else (read, written.plus(moved))
    ids = range(len(trace.tensors))
    first = math.prod(d for d in inputs[0] if d != BATCH)
    trace.operators.append(
        Operator(
            phase,
            kind,
            name,
            "",
            0,
            tuple(ids[: len(inputs)]),
            tuple(ids[len(inputs) :]),
            dict(attributes or {}),
            Affine(0, macs),
            Affine(0, per_row * first),
            read,
            written,
        )
    )
    trace.input_shapes = [trace.tensors[0].shape]
    return trace


# Priors of the process in log units. It forgets within a factor of 4.5 in a size (or one step of a flag), assumes that the
# calibration leaves a quarter unexplained, and trusts a timing to 5 %. Each of these may vary by a factor of two.
_PRIOR_LENGTH, _PRIOR_SPREAD, _PRIOR_NOISE, _PRIOR_SD = 1.5, 0.25, 0.05, 0.7


class Residual:
    """log(measured / predicted) as a Gaussian process over features, by default logarithms of sizes.

    The covariance is exponential, spread² · exp(-‖Δ / length‖): tiles and algorithms change in jumps, not smoothly.
    Lengths, spread and noise are those of largest posterior density.

    Args:
        features: shape (num_kernels, num_features).
        log_error: log(measured / predicted), shape (num_kernels,).
    """

    def __init__(self, features: np.ndarray, log_error: np.ndarray) -> None:
        self.features = features
        size = features.shape[1]
        start = np.log([*[_PRIOR_LENGTH] * size, _PRIOR_SPREAD, _PRIOR_NOISE])

        def density(x: np.ndarray) -> float:
            covariance = self._covariance(features, x) + np.exp(2 * x[-1]) * np.eye(len(log_error))
            factor = cho_factor(covariance, lower=True)
            fit = 0.5 * log_error @ cho_solve(factor, log_error) + np.log(np.diag(factor[0])).sum()
            return float(fit + 0.5 * (((x - start) / _PRIOR_SD) ** 2).sum())

        bounds = [(s - 4 * _PRIOR_SD, s + 4 * _PRIOR_SD) for s in start]
        self.x = minimize(density, start, method="L-BFGS-B", bounds=bounds).x
        self.factor = cho_factor(self._covariance(features, self.x) + np.exp(2 * self.x[-1]) * np.eye(len(log_error)))
        self.weights = cho_solve(self.factor, log_error)

    def _covariance(self, other: np.ndarray, x: np.ndarray) -> np.ndarray:
        apart = (other[:, None] - self.features[None]) / np.exp(x[:-2])
        return np.asarray(np.exp(2 * x[-2]) * np.exp(-np.sqrt((apart**2).sum(axis=-1))))

    def at(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of log(measured / predicted), noise included, for each row of features."""
        across = self._covariance(features, self.x)
        explained = (across * cho_solve(self.factor, across.T).T).sum(axis=1)
        variance = np.exp(2 * self.x[-2]) + np.exp(2 * self.x[-1]) - explained
        return across @ self.weights, np.sqrt(np.maximum(variance, np.exp(2 * self.x[-1])))


@dataclass(frozen=True)
class KernelFit:
    """A calibration and the process that predicts its residuals."""

    calibration: Calibration
    residual: Residual

    def seconds(self, samples: Sequence[Sample], features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of each sample, and the half width of the 80 % interval of their logarithm."""
        plain = np.array([s.work.total_seconds(self.calibration) for s in samples])
        mean, deviation = self.residual.at(features)
        return plain * np.exp(mean), Z80 * deviation


def fit_kernels(samples: Sequence[Sample], features: np.ndarray, prior: Calibration) -> KernelFit:
    """Calibrate on timed kernels, then learn the residuals of the calibration.

    Args:
        samples: one kernel each; their `seconds` are measured. `features`: one row per sample.
    Raises: InputError as `fit_calibration`.
    """
    calibration = fit_calibration(samples, prior)
    left = [np.log(s.seconds / s.work.total_seconds(calibration)) for s in samples]
    return KernelFit(calibration, Residual(features, np.array(left)))


def spread_rates(calibration: Calibration) -> Calibration:
    """Return a calibration fitted on forward kernels, extended to whole networks and to training.

    A class without a kernel takes the rates of its family's other direction. Batched products and plain products also share
    rates. Operators limited by memory bandwidth take elementwise rates. Others keep their prior. The other direction of a
    product counts as measured.
    """
    seen = set(calibration.provenance["classes_seen"])
    classes, known = dict(calibration.classes), set(seen)
    for name in CLASSES:
        family = name.partition(".")[0]
        stand_in = {"gemm": "batched_gemm", "batched_gemm": "gemm"}.get(family, "elementwise")
        if family in MATRIX_KINDS and stand_in == "elementwise":
            stand_in = family
        for other in (name, f"{family}.forward", f"{family}.backward", f"{stand_in}.forward"):
            if other in seen:
                classes[name] = calibration.classes[other]
                known |= {name} if family in other or family in ("gemm", "batched_gemm") else set()
                break
    return replace(calibration, classes=classes, provenance={**calibration.provenance, "classes_seen": sorted(known)})
