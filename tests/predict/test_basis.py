"""Wide intervals, and a sentence that explains them, for work without measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd import api
from chronograd.answer import Answer
from chronograd.count.tracing import trace
from chronograd.hardware import catalog
from chronograd.predict.basis import RECURRENT_SIGMA
from chronograd.predict.calibration import CLASSES, from_datasheet
from chronograd.predict.compute import Work, operator_seconds, sigma_log, without_basis
from chronograd.predict.relatives import calibration_for
from chronograd.trace import Trace

T, D = 20, 16


class Loop(nn.Module):
    """Recurrent layer written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for t in range(T):
            state = torch.tanh(self.inner(state) + x[:, t])
        return state


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(D, D)

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for t in range(4):
            state = self.cell(x[:, t], state)
        return state


class Mine(nn.GRUCell):
    """Subclass of a recurrent cell, which runs once."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        state = x[:, 0]
        for t in range(4):
            state = super().forward(x[:, t], state)
        return state


def ratio(answer: Answer) -> float:
    (record,) = answer.records.values()
    step = record["step_time_s"]
    assert step.high is not None
    assert step.low is not None
    return step.high / step.low


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Cells(), "GRUCell"),
        (Mine(D, D), "GRUCell"),
        (Loop(), "reuses its weights"),
    ],
)
def test_loops_over_time_are_rough(model: nn.Module, name: str, tmp_path: Path) -> None:
    traced = trace(model, [(T, D)])
    answer = api.predict(traced, on="v100", batch=8)
    first = answer.sections[0].lines[0]
    assert first.startswith("Rough: ")
    assert name in first
    plain = api.predict(trace(nn.Linear(D, D), [(T, D)]), on="v100", batch=8)
    assert not any(line.startswith("Rough") for line in plain.sections[0].lines)
    if not isinstance(model, Loop):  # whose additions between steps cannot be assigned to it
        assert ratio(answer) > 100
    assert ratio(answer) > 4 * ratio(plain)
    traced.save(tmp_path / "saved.json")
    again = api.predict(Trace.load(tmp_path / "saved.json"), on="v100", batch=8)
    assert again.sections[0].lines == answer.sections[0].lines


def test_recurrent_layer_is_as_uncertain_as_a_data_sheet() -> None:
    """It is one operator, of a class that the calibration of this device never measured."""
    traced = trace(nn.LSTM(D, D, batch_first=True), [(T, D)])
    answer = api.predict(traced, on="v100", batch=8)
    assert "never measured on this device (lstm)" in answer.sections[0].lines[0]
    assert 2 < ratio(answer) < 5


def test_interval_grows_with_the_recurrent_share() -> None:
    """A short loop after a large convolution changes little."""

    class Mostly(nn.Module):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.conv, self.cell, self.steps = nn.Conv2d(64, 64, 3, padding=1), nn.RNNCell(64, 64), steps

        def forward(self, x: Tensor) -> Any:
            y = self.conv(x).flatten(2).transpose(1, 2)
            state = y[:, 0]
            for t in range(self.steps):
                state = self.cell(y[:, t], state)
            return state

    device = from_datasheet(catalog.device("v100"))
    sigmas = []
    for steps in (1, 10, 200):
        traced = trace(Mostly(steps), [(64, 28, 28)])
        sigmas.append(sigma_log(traced, operator_seconds(traced, 512, device), device))
    assert sigmas == sorted(sigmas)
    assert device.sigma <= sigmas[0] < 1
    assert sigmas[0] < sigmas[2] <= RECURRENT_SIGMA


def test_shared_block_is_not_recurrent() -> None:
    """ALBERT runs one block twelve times."""
    block = nn.Linear(D, D)
    traced = trace(nn.Sequential(*[block] * 12), [(D,)])
    assert traced.params == D * D + D
    device = from_datasheet(catalog.device("v100"))
    assert without_basis(traced, operator_seconds(traced, 8, device), device) == []


def test_unmeasured_operator_classes_widen_the_interval() -> None:
    traced = trace(nn.Sequential(nn.Embedding(1000, 512), nn.Flatten(), nn.Linear(512 * 16, 4)), [(16,)])
    seen = [name for name in CLASSES if not name.startswith("gather")]
    device = replace(
        from_datasheet(catalog.device("v100")), origin="measured", sigma=0.05, provenance={"classes_seen": seen}
    )
    times = operator_seconds(traced, 64, device)
    (said,) = without_basis(traced, times, device)
    assert "never measured on this device (gather)" in said
    whole = replace(device, provenance={"classes_seen": list(CLASSES)})
    assert without_basis(traced, times, whole) == []
    assert sigma_log(traced, times, whole) < sigma_log(traced, times, device)


class Attends(nn.Module):
    """Attention of three dimensions, for which there is no fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Scatters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        places = torch.zeros(x.shape[1], dtype=torch.int64)
        return torch.zeros_like(x).index_add(1, places, x)


@pytest.mark.parametrize(
    ("model", "shape", "family"),
    [
        (nn.GRU(D, D, batch_first=True), (T, D), "gru"),
        (nn.Conv2d(64, 64, 7, groups=64), (64, 28, 28), "conv_depthwise_kxk"),
        (nn.ConvTranspose2d(64, 32, 3, 2), (64, 28, 28), "conv_transposed"),
        (nn.Conv3d(16, 16, 3), (16, 8, 28, 28), "conv_3d"),
        (Attends(), (512, 64), "attention_unfused"),
        (Scatters(), (512, 512), "gather"),
    ],
)
def test_classes_without_measurements_widen_the_interval(model: nn.Module, shape: tuple[int, ...], family: str) -> None:
    traced = trace(model, [shape], loss="sum", inputs_require_grad=True)
    device = replace(from_datasheet(catalog.device("v100")), origin="measured", sigma=0.05, host_launch_s=0.0)
    whole = replace(device, provenance={"classes_seen": list(CLASSES)})
    lacking = replace(device, provenance={"classes_seen": [name for name in CLASSES if not name.startswith(family)]})
    times = operator_seconds(traced, 256, whole)
    (said,) = without_basis(traced, times, lacking)
    assert f"({family.replace('_', ' ')})" in said
    assert without_basis(traced, times, whole) == []
    assert sigma_log(traced, times, lacking) > 2 * sigma_log(traced, times, whole)
    assert Work.on(traced, 256, lacking).sigma_log(lacking) == pytest.approx(sigma_log(traced, times, lacking))


def test_calibrated_device_reports_unmeasured_classes() -> None:
    traced = trace(nn.GRU(64, 256, batch_first=True), [(T, 64)], mode="inference")
    of = calibration_for(catalog.device("rtx3090"), "fp16", mode="inference")
    assert of.origin == "fitted"
    (said,) = without_basis(traced, operator_seconds(traced, 64, of), of)
    assert "never measured on this device (gru)" in said


def test_unknown_work_widens_the_interval() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.qr(x)[0]

    traced = trace(Odd(), [(8, 8)], mode="inference")
    device = replace(from_datasheet(catalog.device("v100")), sigma=0.05, provenance={"classes_seen": list(CLASSES)})
    times = operator_seconds(traced, 8, device)
    (said,) = without_basis(traced, times, device)
    assert "linalg_qr is not known" in said
    assert sigma_log(traced, times, device) >= 0.45


def test_zero_time_gives_a_finite_interval() -> None:
    traced = trace(nn.LSTM(D, D, batch_first=True), [(T, D)])
    device = from_datasheet(catalog.device("v100"))
    zero = np.zeros(len(traced.operators))
    assert math.isfinite(sigma_log(traced, zero, device))
    assert Work.on(traced, 8, device).total_seconds(device) > 0
