"""PALEO: its layers in closed form, and every figure of its released code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.predict.paleo import PaleoNetwork, Platform, layers, platform_of, step_parts_s, update_s
from chronograd.trace import ZERO, Affine, Operator, Storage, Tensor, Trace

ROOT = Path(__file__).parent.parent.parent


@functools.cache
def published() -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.sources import paleo
    finally:
        sys.path.remove(str(ROOT))
    return paleo


def test_figures_of_the_released_code() -> None:
    """Networks, platforms and figures are in benchmarks/sources/paleo.py."""
    found = list(published().cases())
    assert len(found) == 52
    for what, ours, code in found:
        digits = len(repr(code).partition(".")[2])
        assert abs(ours - code) <= 0.5000001 * 10.0**-digits, what


def test_benchmark_reports_the_agreement() -> None:
    of_code, of_measured = published().rows(Path())
    assert of_code.mape < of_code.aim / 5
    assert of_measured.n == 7
    assert of_measured.median_ape < 0.1


def convolution(stride: int, padding: int, is_first: bool = False) -> Trace:
    """Return a 3 × 3 convolution from 8 to 16 channels on 9 × 9 images."""
    side = (9 + 2 * padding - 3) // stride + 1
    shapes = [(0, 8, 9, 9), (16, 8, 3, 3), (0, 16, side, side)]
    trace = Trace("net", "training", "sum", [])
    for shape, role in zip(shapes, ("input" if is_first else "activation", "parameter", "activation"), strict=True):
        dims = tuple(Affine(0, 1) if d == 0 else Affine(d, 0) for d in shape)
        name = "weight" if role == "parameter" else ""
        trace.tensors.append(Tensor(len(trace.storages), dims, "float32", name))
        trace.storages.append(Storage(ZERO, role, -1))
    trace.inputs = [0] if is_first else []
    attributes = {"kernel": [3, 3], "stride": [stride] * 2, "padding": [padding] * 2, "transposed": False}
    macs = Affine(0, side * side * 9 * 8 * 16)
    trace.operators = [
        Operator("forward", "conv_3x3", "convolution", "", 0, (0, 1), (2,), attributes, macs, ZERO, ZERO, ZERO)
    ]
    return trace


def test_convolution_with_stride_one() -> None:
    (layer,) = layers(convolution(stride=1, padding=1))
    flops = 2 * 9 * 9 * 9 * 8 * 16
    weights, x, padded_x, out, padded_out = 4 * 9 * 8 * 16, 4 * 8 * 81, 4 * 8 * 121, 4 * 16 * 81, 4 * 16 * 121
    assert layer.forward.flops.tolist() == [0, flops]
    assert layer.forward.moved_bytes.tolist() == [weights, padded_x + out]
    assert layer.backward.flops.tolist() == [0, 2 * flops]
    assert layer.backward.moved_bytes.tolist() == [2 * weights, padded_x + out + padded_out + x]


def test_strided_data_gradient_multiplies_zeros() -> None:
    """Stride 2 from 9 × 9 to 4 × 4: the gradient is spread to 7 × 7, padded by 2, and convolved to 9 × 9."""
    (layer,) = layers(convolution(stride=2, padding=0))
    forward, dense = 2 * 16 * 9 * 8 * 16, 2 * 81 * 9 * 8 * 16
    moving = 2 * 16 * 16
    assert layer.backward.flops[1] == pytest.approx(forward + dense + moving)
    gradient = 4 * 16 * 11 * 11
    assert layer.backward.moved_bytes[1] == pytest.approx(2 * 4 * 8 * 81 + 4 * 16 * 16 + gradient)


def test_first_layer_has_no_data_gradient() -> None:
    (layer,) = layers(convolution(stride=1, padding=1, is_first=True))
    assert layer.backward == layer.forward


def test_split_outputs_read_the_whole_input() -> None:
    (layer,) = layers(convolution(stride=1, padding=0))
    quarter = published().split(layer, 4)
    assert quarter.forward.flops[1] == layer.forward.flops[1] / 4
    assert quarter.forward.moved_bytes[1] == pytest.approx(4 * 8 * 81 + 4 * 16 * 49 / 4)


def test_step_is_the_sum_of_parts_over_percent_of_peak() -> None:
    network = PaleoNetwork.of(convolution(stride=1, padding=1))
    platform = Platform(1e12, 1e9, 1e9, ppp=0.5, ppp_comm=0.25)
    parts = step_parts_s(network, 10, 8, platform, "tree")
    flops, moved = 10 * network.forward.flops[1], network.forward.moved_bytes @ [1, 10]
    assert parts["forward"] == pytest.approx((flops / 1e12 + moved / 1e9) / 0.5)
    assert parts["communication"] == pytest.approx(2 * 3 * network.param_bytes / 1e9 / 0.25)
    # Two FLOPs per parameter and three passes, at full peak.
    assert update_s(4e6, platform) == pytest.approx(2e6 / 1e12 + 12e6 / 1e9)


def test_communication_schemes() -> None:
    network = PaleoNetwork.of(convolution(stride=1, padding=1))
    platform = Platform(1e12, 1e9, 1e9)

    def seconds(scheme: str, workers: int = 16) -> float:
        return float(step_parts_s(network, 1, workers, platform, scheme)["communication"])

    one_link = network.param_bytes / 1e9
    assert [seconds(s) / one_link for s in ("one_to_all", "tree", "butterfly")] == pytest.approx([30, 8, 4])
    assert seconds("tree", 1) == 0.0
    with pytest.raises(NotFoundError, match="butterfly"):
        seconds("buterfly")


def test_batches_and_workers_may_be_arrays() -> None:
    network = PaleoNetwork.of(convolution(stride=1, padding=1))
    platform = Platform(1e12, 1e9, 1e9)
    workers = np.array([1, 2, 5, 64])
    together = step_parts_s(network, -(-256 // workers), workers, platform)
    for i, n in enumerate(workers):
        apart = step_parts_s(network, -(-256 // int(n)), int(n), platform)
        assert {k: np.broadcast_to(v, 4)[i] for k, v in together.items()} == pytest.approx(apart)


@pytest.mark.parametrize("name", ["titan-x", "k80"])
def test_catalogue_devices_match_paleo(name: str) -> None:
    assert platform_of(catalog.device(name), 1.25e9, 1.0, 1.0) == published().datasheet(name)


@pytest.mark.parametrize("make", [lambda: Platform(1, 1, ppp=0.0), lambda: Platform(1, 1, ppp_comm=1.5)])
def test_percent_of_peak_is_a_fraction(make: Callable[[], Platform]) -> None:
    with pytest.raises(InputError, match="fraction"):
        make()
