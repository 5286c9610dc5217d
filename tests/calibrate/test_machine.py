"""Calibrating this machine, for real: only what must hold on any machine is asserted, never a time."""

from __future__ import annotations

import json

import pytest

from chronograd.calibrate.blocks import blocks
from chronograd.calibrate.machine import WORKER, Setup, default_setups, machine_key
from chronograd.calibrate.workers import run_workers
from chronograd.cli.main import main
from chronograd.count.tracing import trace
from chronograd.errors import RunError
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, calibrations
from chronograd.predict.relatives import calibration_for
from chronograd.trace import MATRIX_KINDS


def test_blocks_use_every_kind_of_matrix_work_and_count_completely() -> None:
    kinds: set[str] = set()
    for block in blocks():
        counted = trace(block.make(), [block.input_shape], loss="sum", inputs_require_grad=True)
        assert counted.uncounted() == {}
        kinds |= {op.kind for op in counted.operators}
    assert kinds >= {*MATRIX_KINDS, "norm", "softmax", "elementwise", "reduction", "pooling", "copy"}


def test_setups_share_the_cores() -> None:
    assert default_setups(2) == [Setup(1, 2), Setup(2, 1)]
    assert default_setups(1) == [Setup(1, 1), Setup(2, 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_local_is_a_device_like_any_other() -> None:
    device = catalog.device("local")
    assert device.provenance["key"] == machine_key()
    kept = calibrations(device)
    ways = [(c.processes, c.threads, c.channels_last, c.mode) for c in kept]
    assert ways == [
        (p, 1, last, mode) for p, last in ((1, False), (2, False), (1, True)) for mode in ("training", "inference")
    ]
    for is_last in (False, True):
        assert calibration_for(device, threads=1, mode="training", channels_last=is_last).channels_last is is_last
    assert device.calibration is not None
    assert 0 <= device.calibration["step_sigma_log"] < 1
    assert device.calibration["after_wait"] >= 1
    for c in kept:
        assert c.origin == "measured"
        assert set(c.classes) == set(CLASSES)
        assert c.peak_flops_per_s > 1e8
        assert c.provenance["samples"] == len(blocks()) * (2 if c.mode == "training" else 1)


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_predict_for_local(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "examples/digits.yaml", "--on", "2xlocal", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["quantities"]["communication_exposed_s"]["value"] > 0
    assert "measured" in record["quantities"]["step_time_s"]["source"]


def test_a_worker_that_fails_is_reported() -> None:
    with pytest.raises(RunError, match="failed"):
        run_workers(WORKER, [["no-such-device", "1", "fp32", "0.01"]])
