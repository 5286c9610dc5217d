"""Validity of saved calibrations on a machine that changes its speed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chronograd.calibrate import machine, pace, worker
from chronograd.calibrate.blocks import TimedBlock
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet


def saved(**calibration: float) -> catalog.Device:
    return catalog.device("cpu").model_copy(update={"calibration": calibration})


def test_probe_has_a_constant_size() -> None:
    probes = [pace.probe_s(0.05) for _ in range(3)]
    assert min(probes) > 1e-5
    assert pace.spread(probes) < 20


def test_calibration_of_a_slower_machine_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "probe_s", lambda: 0.010)
    assert machine.taken_while_busy(saved(pace_s=0.0105)) == ""
    assert machine.taken_while_busy(saved(pace_s=0.005)) == ""  # it is busy now: no reason to measure again
    assert "1.50 times as fast" in machine.taken_while_busy(saved(pace_s=0.015))
    assert machine.taken_while_busy(saved()) == ""  # an older format without the speed


def test_speed_change_during_measurement_means_busy() -> None:
    assert not machine.is_busy(saved(pace_spread=1.1))
    assert machine.is_busy(saved(pace_spread=1.4))
    assert machine.is_busy(saved(pace_spread=1.1, others_cores=0.5))
    assert not machine.is_busy(saved(pace_spread=1.1, others_cores=0.05))


def test_speed_variation_widens_predictions() -> None:
    """Variances add up, also those of operator classes."""
    steady = replace(from_datasheet(catalog.device("cpu")), sigma=0.15, class_sigma={"gemm.forward": 0.3})
    found = machine.at_other_paces(steady, 0.2)
    assert found.sigma == pytest.approx((0.15**2 + 0.2**2) ** 0.5)
    assert found.class_sigma["gemm.forward"] == pytest.approx((0.3**2 + 0.2**2) ** 0.5)
    assert machine.at_other_paces(steady, 0.0) == steady


def laps_at(monkeypatch: pytest.MonkeyPatch, paces: Sequence[float]) -> pace.Laps:
    """Return laps whose probes take these seconds, one pass each; the first one warms up."""
    seconds = iter([9.0, *paces])
    monkeypatch.setattr(pace.Piece, "run_s", lambda self: next(seconds))
    return pace.Laps(passes=1)


def test_speed_around_work_uses_probes_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    laps = laps_at(monkeypatch, [0.01, 0.04, 0.01, 0.01])
    assert [laps.lap() for _ in range(3)] == pytest.approx([0.02, 0.02, 0.01])
    assert laps.median_s == pytest.approx(0.02)


def test_speed_variation_is_a_log_standard_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds last one lap: 2,000 draws recover 0.3, also when 2 % of them are outliers."""
    draw = np.random.default_rng(0)
    paces = np.exp(0.3 * draw.standard_normal(2000))
    paces[::50] *= 10
    laps = laps_at(monkeypatch, [1.0])
    laps.all_s = paces.tolist()
    assert laps.sigma_log == pytest.approx(0.3, rel=0.1)


def test_blocks_are_normalised_to_one_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is twice as slow in the second round; each block takes ten or twenty units of work."""
    names = ("ten", "twenty")
    laps = laps_at(monkeypatch, [1.0, 1.0, 1.0, 2.0, 2.0])
    seconds = iter([1.0, 1.0, 2**0.5, 2.0])

    def time_block(block: TimedBlock, *_: object) -> dict[str, Any]:
        own_s = next(seconds) * {"ten": 10, "twenty": 20}[block.name]
        return {"block": block.name, **dict.fromkeys(worker.TIMES, own_s)}

    monkeypatch.setattr(worker, "blocks", lambda: [TimedBlock(name, torch.nn.Identity, (1,), 1) for name in names])
    monkeypatch.setattr(worker, "time_block", time_block)
    monkeypatch.setattr(worker, "say", lambda *_: None)
    rows = worker.time_blocks(torch.device("cpu"), "fp32", 1.0, "nchw", laps)
    median = (1.0 + 2**0.5) / 2  # of the laps 1, 1, √2 and 2
    assert [row["forward_s"] for row in rows] == pytest.approx([10 * median, 20 * median])


def test_busy_cores_exclude_own_processes() -> None:
    """The test waits for the other process only after the watch has ended."""
    watch = pace.Watch()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    alone = watch.others_cores()
    watch = pace.Watch()
    with subprocess.Popen(
        [sys.executable, "-c", "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"]
    ):
        time.sleep(0.8)
        beside = watch.others_cores()
    assert beside > 0.3
    assert beside > alone or alone > 0.3  # other processes may use this machine during the test


def test_busy_calibration_is_repeated_on_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "probe_s", lambda: 0.010)
    for now, is_again in ((0.0, True), (1.5, False)):
        monkeypatch.setattr(pace.Watch, "others_cores", lambda self, cores=now: cores)
        why = machine.taken_while_busy(saved(pace_s=0.010, others_cores=0.8))
        assert ("other programs used 0.8 cores" in why) == is_again


def test_only_unmeasured_execution_modes_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test records the requests to `calibrate_all`; a real calibration takes a minute per mode."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    asked: list[list[machine.Setup]] = []

    def measured(setups: Sequence[machine.Setup], **_: object) -> catalog.Device:
        asked.append(list(setups))
        cpu = catalog.device("cpu")
        settings = [replace(from_datasheet(cpu), processes=s.processes, threads=s.threads).to_table() for s in setups]
        return machine.save_local(
            cpu.model_copy(update={"name": "local", "aliases": (), "calibration": {"settings": settings}})
        )

    monkeypatch.setattr(machine, "calibrate_all", measured)
    two, one = machine.Setup(2, 1), machine.Setup(1, 2)
    for wanted in ([two], [two], [one], [two, one]):
        device, _ = machine.calibrate_once(setups=wanted)
        assert machine.setups_of(device).keys() >= set(wanted)
    assert asked == [[two], [two, one]]
