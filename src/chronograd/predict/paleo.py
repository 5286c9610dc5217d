"""PALEO: a step from FLOPs and bytes over a fixed percent of the peak.

Qi, Sparks, Talwalkar, "PALEO: a performance model for deep neural networks", ICLR 2017, and its released code. A layer takes
FLOPs / peak + bytes / bandwidth, both over one platform percent of peak (PPP). Communication has another PPP. Nothing overlaps;
layers run one after the other. Everything is affine in the batch, so batches may be arrays.

    forward    a convolution or product: 2 FLOPs per MAC; pooling: 2 per kernel element and output; dropout: 1 per input;
               nothing else counts. Bytes: inputs, weights and outputs, 4 each
    backward   gradient of the filters: as forward. Of the data: a convolution at stride 1 of the output's gradient,
               zeros between its elements, padded to the size of the input; none for the first layer
    update     2 FLOPs per parameter and 3 passes over it, at full peak

Left out: convolutions by FFT, which PALEO chooses with cuDNN, and the minimum of one clock period per layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware.catalog import Device
from chronograd.predict.collectives import ALL_REDUCES, Amount, algorithm_named
from chronograd.trace import CONV_KINDS, MATRIX_KINDS, Operator, Trace
from chronograd.units import GIB

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Platform:
    """A device and a link, in the numbers that PALEO divides by.

    Attributes:
        bandwidth_bytes_per_s: with 2^30 bytes per GB/s, as in PALEO.
        ppp, ppp_comm: share of the peak that computation and communication reach, in (0, 1].
        link_bytes_per_s: of one link in one direction, without latency.
    """

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float = 1.25e9
    ppp: float = 1.0
    ppp_comm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ppp", "ppp_comm"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}", "a percent of peak is a fraction in (0, 1]")


def platform_of(device: Device, link_bytes_per_s: float, ppp: float, ppp_comm: float) -> Platform:
    """Return a device of the catalogue in PALEO's numbers: fp32 peak, at base clock if that is known."""
    peak = device.base_peak_flops_per_s.get("fp32", device.peak("fp32"))
    return Platform(peak, device.bandwidth_bytes_per_s / 1e9 * GIB, link_bytes_per_s, ppp, ppp_comm)


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one pass of one layer, or of several: each const and per sample, shape (2,)."""

    flops: np.ndarray = field(default_factory=lambda: np.zeros(2))
    moved_bytes: np.ndarray = field(default_factory=lambda: np.zeros(2))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.moved_bytes + other.moved_bytes)

    def seconds(self, batch: Amount, platform: Platform) -> Amount:
        flops, moved = (amount[0] + amount[1] * batch for amount in (self.flops, self.moved_bytes))
        return (flops / platform.peak_flops_per_s + moved / platform.bandwidth_bytes_per_s) / platform.ppp


@dataclass(frozen=True)
class PaleoLayer:
    """FLOPs and bytes of one layer as PALEO counts them, without biases and in-place operators that follow."""

    module: str
    forward: Cost
    backward: Cost
    input_bytes: np.ndarray
    has_weights: bool = False


def layers(trace: Trace) -> list[PaleoLayer]:
    """Return the layers of a trace that PALEO counts, in order."""
    inputs = {trace.tensors[i].storage for i in trace.inputs}
    return [layer for op in trace.select("forward") for layer in _layer(trace, op, inputs)]


def _layer(trace: Trace, op: Operator, network_inputs: set[int]) -> Iterator[PaleoLayer]:
    def size(tensor: int) -> np.ndarray:
        t = trace.tensors[tensor]
        return np.array([t.numel_at(0), t.numel_at(1) - t.numel_at(0)], dtype=np.float64)

    if op.kind in MATRIX_KINDS and len(op.inputs) > 1:
        # A linear layer with a bias has the bias as its first input.
        x, w = op.inputs[:2] if op.kind in CONV_KINDS else op.inputs[-2:]
        flops, sizes = 2.0 * np.array(op.macs), [size(x), size(w), size(op.outputs[0])]
        forward, data = _convolution(trace, op, flops, *sizes) if op.kind in CONV_KINDS else _product(flops, *sizes)
        is_first = trace.tensors[x].storage in network_inputs
        yield PaleoLayer(op.module, forward, forward if is_first else forward + data, _FLOAT_BYTES * sizes[0], True)
    elif op.kind == "pooling" or (op.name == "mean" and len(trace.tensors[op.inputs[0]].shape) == 4):
        x_size, out_size = size(op.inputs[0]), size(op.outputs[0])
        kernel = math.prod(op.attributes["kernel"]) if "kernel" in op.attributes else x_size[1] / out_size[1]
        cost = Cost(2 * kernel * out_size, _FLOAT_BYTES * (x_size + out_size))
        yield PaleoLayer(op.module, cost, cost, _FLOAT_BYTES * x_size)
    elif op.name in ("bernoulli_", "native_dropout"):
        x_size = size(op.outputs[0])
        cost = Cost(x_size, 2 * _FLOAT_BYTES * x_size)
        yield PaleoLayer(op.module, cost, cost, _FLOAT_BYTES * x_size)


def _product(flops: np.ndarray, x: np.ndarray, w: np.ndarray, out: np.ndarray) -> tuple[Cost, Cost]:
    """Return the costs of x · w: forward, and the gradient of the data."""
    cost = Cost(flops, _FLOAT_BYTES * (x + w + out))
    return cost, cost


def _convolution(
    trace: Trace, op: Operator, flops: np.ndarray, x: np.ndarray, w: np.ndarray, out: np.ndarray
) -> tuple[Cost, Cost]:
    """Return the costs of a convolution: forward on the padded input, and the gradient of the data.

    The gradient is a dense convolution of stride 1 over the output's gradient, dilated by the stride and padded until the
    result has the size of the input. It also multiplies the zeros, once for every element of the input.
    """
    padded, spread, positions, has_holes = 1.0, 1.0, 1.0, False
    a = op.attributes
    in_sides, out_sides = (trace.tensors[i].shape_at(1)[2:] for i in (op.inputs[0], op.outputs[0]))
    for i, o, k, s, p in zip(in_sides, out_sides, a["kernel"], a["stride"], a["padding"], strict=True):
        padded *= (i + 2 * p) / i
        expanded, before = (o - 1) * s + 1, k - 1 - p
        after = i + k - 1 - expanded - before
        # As in TensorFlow's gradient: an odd remainder of padding makes the dilated gradient one larger.
        expanded += abs(before - after) == 1
        has_holes |= expanded > o
        spread *= (expanded + 2 * min(before, after)) / o
        positions *= i / o
    moving = 2 * out if has_holes else 0 * out
    forward = Cost(flops, _FLOAT_BYTES * (x * padded + w + out))
    return forward, Cost(flops * positions + moving, _FLOAT_BYTES * (out * spread + w + x))


@dataclass(frozen=True)
class PaleoNetwork:
    """PALEO's view of a network: sums over layers, and the parameters."""

    forward: Cost
    backward: Cost
    param_bytes: int

    @classmethod
    def of(cls, trace: Trace) -> PaleoNetwork:
        found = layers(trace)
        return cls(
            sum((layer.forward for layer in found), Cost()),
            sum((layer.backward for layer in found), Cost()),
            _FLOAT_BYTES * trace.params,
        )


def update_s(param_bytes: float, platform: Platform) -> float:
    """Return the seconds of w ← w - ε·dw. PALEO applies no PPP to it."""
    flops = 2 * param_bytes / _FLOAT_BYTES
    return flops / platform.peak_flops_per_s + 3 * param_bytes / platform.bandwidth_bytes_per_s


def step_parts_s(
    network: PaleoNetwork, batch_per_worker: Amount, num_workers: Amount, platform: Platform, scheme: str = "tree"
) -> dict[str, Amount]:
    """Return the seconds of a step by part, `forward`, `backward`, `update` and `communication`, whose sum is the step.

    Args:
        batch_per_worker: ⌈B/n⌉ for strong scaling, the batch itself for weak scaling.
        scheme: PALEO's `one_to_all`, `tree` or `butterfly`, or any all-reduce of one tier.
    Raises: NotFoundError for an unknown scheme.

    >>> net = PaleoNetwork(Cost(np.array([0, 1e9])), Cost(np.array([0, 2e9])), 4_000_000)
    >>> parts = step_parts_s(net, 10, 4, Platform(1e12, 1e12, 1e9, ppp=0.5))
    >>> float(parts["forward"]), parts["communication"]
    (0.02, 0.016)
    """
    all_reduce = ALL_REDUCES[algorithm_named(scheme)]
    return {
        "forward": network.forward.seconds(batch_per_worker, platform),
        "backward": network.backward.seconds(batch_per_worker, platform),
        "update": update_s(network.param_bytes, platform),
        "communication": all_reduce(
            network.param_bytes, num_workers, 0.0, platform.link_bytes_per_s * platform.ppp_comm
        ),
    }
