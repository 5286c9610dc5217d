"""Kernels as traces, the learned residual of timed kernels, and rates learned from related kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.kernels import (
    Convolution,
    Residual,
    batched_gemm,
    elementwise,
    fit_kernels,
    gemm,
    layer_norm,
    linear,
    softmax,
    spread_rates,
)

from chronograd.errors import InputError
from chronograd.fit.device import Sample
from chronograd.hardware.catalog import device
from chronograd.predict.calibration import Calibration, ClassRate, from_datasheet
from chronograd.predict.compute import Work
from chronograd.trace import Trace


def share(calibration: Calibration, name: str, compute: float) -> Calibration:
    rate = replace(calibration.classes[name], compute=compute)
    return replace(calibration, classes={**calibration.classes, name: rate})


class TestKernels:
    def test_gemm_in_closed_form(self) -> None:
        work = Work.of(gemm(64, 10), 128)
        assert work.flops.tolist() == [2 * 128 * 64 * 10]
        assert work.sample_bytes.tolist() == [4 * 128 * (64 + 10)]
        assert work.weight_bytes.tolist() == [4 * 64 * 10]
        assert (work.rows.item(), work.depth.item(), work.width.item()) == (128, 64, 10)

    def test_half_and_int8_inputs_move_fewer_bytes(self) -> None:
        per_byte = [Work.of(gemm(64, 10, dtype), 128).sample_bytes.item() for dtype in ("int8", "float16", "float32")]
        assert per_byte == [128 * 74, 2 * 128 * 74, 4 * 128 * 74]

    def test_linear_layer_is_a_product_with_bias(self) -> None:
        work = Work.of(linear(64, 10), 128)
        assert work.weight_bytes.item() == 4 * (64 * 10 + 10)
        assert (work.depth.item(), work.width.item()) == (64, 10)

    def test_batched_products_have_no_weights(self) -> None:
        work = Work.of(batched_gemm(8, 64, 8), 16)
        assert work.weight_bytes.item() == 0
        assert work.sample_bytes.item() == 4 * 16 * (8 * 64 + 64 * 8 + 8 * 8)
        assert work.rows.item() == 16 * 8

    @pytest.mark.parametrize(
        ("trace", "tensors"), [(elementwise("add", 32, 2), 3), (elementwise("tanh", 32), 2), (softmax(32), 2)]
    )
    def test_vector_kernels_move_each_tensor_once(self, trace: Trace, tensors: int) -> None:
        work = Work.of(trace, 100)
        assert work.sample_bytes.item() == 4 * 100 * 32 * tensors

    def test_layer_norm_reads_scale_and_shift(self) -> None:
        assert Work.of(layer_norm(32), 100).weight_bytes.item() == 4 * 2 * 32

    def test_convolution_gradients_have_the_forward_macs(self) -> None:
        # VGG's second layer: 64 x 224 x 224 outputs, each of 64 x 3 x 3 products.
        layer = Convolution(64, 64, (224, 224), (3, 3), (1, 1), (1, 1))
        flops = {d: Work.of(layer.trace(d), 4).flops.item() for d in ("forward", "data", "weights")}
        assert set(flops.values()) == {2 * 4 * 64 * 224 * 224 * 64 * 9}

    def test_gradients_of_a_convolution(self) -> None:
        layer = Convolution(3, 64, (32, 32), (5, 5), (2, 2), (2, 2))
        data, weights = Work.of(layer.trace("data"), 2), Work.of(layer.trace("weights"), 2)
        assert (data.depth.item(), data.width.item()) == (64 * 25, 3)
        assert weights.weight_bytes.item() == 4 * 64 * 3 * 25
        assert weights.sample_bytes.item() == 4 * 2 * (3 * 32 * 32 + 64 * 16 * 16)

    def test_wrong_input_is_refused(self) -> None:
        with pytest.raises(InputError, match="direction is 'sideways'"):
            Convolution(3, 8, (8, 8), (3, 3)).trace("sideways")
        with pytest.raises(InputError, match=r"kernel \(9, 9\)"):
            Convolution(3, 8, (8, 8), (9, 9)).trace()
        with pytest.raises(InputError, match="dtype is 'int5'"):
            gemm(8, 8, "int5")

    def test_kernel_round_trips_through_a_file(self) -> None:
        trace = Convolution(3, 8, (8, 8), (3, 3)).trace("data")
        again = Trace.from_json(trace.to_json())
        assert Work.of(again, 3).flops.tolist() == Work.of(trace, 3).flops.tolist()


class TestResidual:
    def test_residual_fits_near_points_and_vanishes_far_away(self) -> None:
        x = np.linspace(0, 6, 25)[:, None]
        y = 0.4 * np.sin(x[:, 0])
        residual = Residual(x, y)
        mean, deviation = residual.at(np.array([[1.6], [4.7], [60.0]]))
        assert mean[:2] == pytest.approx([0.4, -0.4], abs=0.06)
        assert abs(mean[2]) < 0.02
        assert deviation[2] > 3 * deviation[0]

    def test_residual_does_not_fit_noise(self) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.uniform(0, 3, (60, 2)), rng.normal(0, 0.3, 60)
        mean, deviation = Residual(x, y).at(rng.uniform(0, 3, (200, 2)))
        assert np.abs(mean).mean() < 0.15
        assert 0.2 < deviation.mean() < 0.45


def _timed(times_of: Calibration, sizes: list[tuple[int, int, int]], tile: int) -> list[Sample]:
    """Return products whose width is padded to a tile, which a calibration without tiles cannot express."""
    found = []
    for rows, depth, width in sizes:
        padded = -(-width // tile) * tile
        seconds = Work.of(gemm(depth, padded), rows).total_seconds(times_of)
        found.append(Sample(Work.of(gemm(depth, width), rows), seconds, f"{rows}"))
    return found


def test_residual_learns_tile_padding() -> None:
    rng = np.random.default_rng(0)
    widths = [16, 32, 64, 128, 256]
    sizes = [(int(2 ** rng.integers(6, 13)), int(2 ** rng.integers(6, 13)), int(rng.choice(widths))) for _ in range(90)]
    prior = replace(from_datasheet(device("v100")), host_launch_s=0.0)  # issued from C
    samples = _timed(prior, sizes, tile=64)
    features = np.log(np.array(sizes))
    model = fit_kernels(samples[:60], features[:60], prior)
    seconds, half_width = model.seconds(samples[60:], features[60:])
    measured = np.array([s.seconds for s in samples[60:]])
    plain = np.array([s.work.total_seconds(model.calibration) for s in samples[60:]])
    error = np.abs(seconds / measured - 1).mean()
    assert error < 0.1
    assert error < 0.7 * np.abs(plain / measured - 1).mean()
    assert np.mean(np.abs(np.log(seconds / measured)) < half_width) > 0.7


class TestRelatives:
    def test_unseen_classes_use_rates_of_similar_classes(self) -> None:
        prior = from_datasheet(device("v100"))
        fitted = replace(
            share(prior, "gemm.forward", 0.33),
            provenance={"classes_seen": ["gemm.forward", "elementwise.forward"]},
        )
        fitted = replace(fitted, classes={**fitted.classes, "elementwise.forward": ClassRate(bandwidth=0.77)})
        spread = spread_rates(fitted)
        assert spread.classes["gemm.backward"].compute == 0.33
        assert spread.classes["batched_gemm.forward"].compute == 0.33
        assert spread.classes["copy.forward"].bandwidth == 0.77
        assert spread.classes["conv_3x3.forward"] == prior.classes["conv_3x3.forward"]
