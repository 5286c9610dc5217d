"""The roofline in closed form: one operator, then layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chronograd.predict.calibration import CLASSES, Calibration, ClassRate
from chronograd.predict.compute import operator_seconds, phase_seconds
from chronograd.predict.roofline import roofline
from chronograd.trace import ZERO, Affine, Operator, Storage, Tensor, Trace

PEAK, BANDWIDTH = 1e12, 1e11


def calibration(
    compute: float = 0.5, bandwidth: float = 0.5, launch_s: float = 0.0, host_s: float = 0.0
) -> Calibration:
    """Return a calibration at a share of 1 TFLOP/s and 100 GB/s; the ridge is at 10 FLOPs per byte."""
    rate = ClassRate(compute=compute, bandwidth=bandwidth, weights=bandwidth, launch_s=launch_s)
    return Calibration(
        "measured", "fp32", PEAK, PEAK, BANDWIDTH, dict.fromkeys(CLASSES, rate), host_launch_s=host_s, sigma=0.1
    )


def products(*paths: str, rows: int = 1000, depth: int = 1000, width: int = 1000) -> Trace:
    """Return one matrix product per module path, with `rows` rows per sample."""
    trace = Trace("net", "inference", "none", [])
    trace.storages = [Storage(Affine(4 * depth * width, 0), "parameter", -1), Storage(Affine(0, 4 * rows), "input", -1)]
    trace.tensors = [
        Tensor(0, (Affine(depth, 0), Affine(width, 0)), "float32", "weight"),
        Tensor(1, (Affine(0, rows), Affine(depth, 0)), "float32"),
        Tensor(1, (Affine(0, rows), Affine(width, 0)), "float32"),
    ]
    macs, read = Affine(0, rows * depth * width), Affine(4 * depth * width, 4 * rows * depth)
    trace.operators = [
        Operator("forward", "gemm", "mm", path, 0, (1, 0), (2,), {}, macs, ZERO, read, Affine(0, 4 * rows * width))
        for path in paths
    ]
    trace.modules = {"": "Net", **{".".join(p.split(".")[: i + 1]): "Linear" for p in paths for i in range(9)}}
    return trace


def test_product_below_the_roof() -> None:
    """2 GFLOP over 12 MB are compute-bound at half the peak, within the smooth maximum's accuracy."""
    (layer,) = roofline(products("a"), 1, calibration()).layers
    assert (layer.name, layer.operators, layer.bound) == ("a", 1, "compute")
    assert layer.flops == 2e9
    assert layer.bytes == 12e6
    assert layer.intensity_flops_per_byte == pytest.approx(2e9 / 12e6)
    assert layer.ceiling_s == pytest.approx(2e9 / PEAK)
    assert layer.time_s == pytest.approx(operator_seconds(products("a"), 1, calibration())[0])
    assert layer.share_of_ceiling == pytest.approx(0.5, rel=0.05)
    assert layer.time_to_win_s == layer.time_s - layer.ceiling_s
    assert layer.achieved_flops_per_s == pytest.approx(2e9 / layer.time_s)


def test_thin_product_is_memory_bound_and_tiny_launch_bound() -> None:
    thin = products("a", rows=1)
    assert roofline(thin, 1, calibration()).layers[0].bound == "memory"
    assert roofline(thin, 1, calibration()).layers[0].ceiling_s == pytest.approx(4_008_000 / BANDWIDTH)
    tiny = products("a", rows=1, depth=8, width=8)
    assert roofline(tiny, 1, calibration(launch_s=1e-5)).layers[0].bound == "launch"


def test_paleo_percent_of_peak() -> None:
    """Sequential arithmetic and memory at share u of both rates give PPP = u; overlap gives more."""
    trace = products("a", "b", rows=1)
    thin = roofline(trace, 1, calibration(compute=1e9, bandwidth=0.25))
    ideal = 2 * (2 * 1e6 / PEAK + 4_008_000 / BANDWIDTH)
    assert thin.ppp == pytest.approx(ideal / (2 * 4_008_000 / (0.25 * BANDWIDTH)), rel=1e-6)


def test_layers_are_modules_and_add_up_to_the_passes() -> None:
    trace = products("a.0.x", "a.0.y", "a.1.x", "b", "b")
    slow_host = calibration(host_s=1.0)
    for depth, names in {
        1: ["a", "b"],
        2: ["a.0", "a.1", "b"],
        3: ["a.0.x", "a.0.y", "a.1.x", "b"],
        None: ["a.0.x", "a.0.y", "a.1.x", "b"],
    }.items():
        for c in (calibration(), slow_host):
            found = roofline(trace, 4, c, depth)
            assert [layer.name for layer in found.layers] == names
            total = sum(phase_seconds(trace, operator_seconds(trace, 4, c), c).values())
            assert sum(layer.time_s for layer in found.layers) == pytest.approx(total)
    by_operator = roofline(trace, 4, calibration(), 0)
    assert by_operator.layers[0].name == "a.0.x: mm, forward"
    assert len(by_operator.layers) == 5


def test_most_to_win_is_sorted_by_seconds() -> None:
    trace = products("small", "large")
    large = trace.operators[1]
    trace.operators[1] = replace(large, macs=large.macs.times(10))
    found = roofline(trace, 1, calibration())
    assert [layer.name for layer in found.most_to_win()][:1] == ["large"]
    assert roofline(trace, 1, calibration(compute=1.0, bandwidth=1e9)).most_to_win()[0].time_to_win_s < 1e-9


def test_cached_operator_cannot_beat_its_ceiling() -> None:
    cached = replace(calibration(compute=1e9, bandwidth=1.0), cache_bytes=1e12, cache_speedup=4.0)
    (layer,) = roofline(products("a", rows=1, depth=1, width=1000), 10_000, cached).layers
    assert layer.share_of_ceiling <= 1.0
    assert layer.time_to_win_s >= 0.0
