"""Whether a calibration that was kept is still to be believed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chronograd.calibrate import machine, pace
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet


def kept(**calibration: float) -> catalog.Device:
    return catalog.device("cpu").model_copy(update={"calibration": calibration})


def test_a_probe_is_of_the_same_size_each_time() -> None:
    probes = [pace.probe_s(0.05) for _ in range(3)]
    assert min(probes) > 1e-5
    assert pace.spread(probes) < 20


def test_what_was_measured_on_a_slower_machine_than_this_is_now_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "probe_s", lambda: 0.010)
    assert machine.taken_while_busy(kept(pace_s=0.0105)) == ""
    assert machine.taken_while_busy(kept(pace_s=0.005)) == ""  # it is busy now: no reason to measure again
    assert "1.50 times as fast" in machine.taken_while_busy(kept(pace_s=0.015))
    assert machine.taken_while_busy(kept()) == ""  # of an older form


def test_a_pace_that_changed_while_it_was_measured_is_busy() -> None:
    assert not machine.is_busy(kept(pace_spread=1.1))
    assert machine.is_busy(kept(pace_spread=1.4))
    assert machine.is_busy(kept(pace_spread=1.1, others_cores=0.5))
    assert not machine.is_busy(kept(pace_spread=1.1, others_cores=0.05))


def test_a_prediction_is_as_uncertain_as_the_pace_of_the_machine_that_was_measured() -> None:
    """Three probes a standard deviation of 0.2 apart, in the mean, of which two rounds have the root; so has what a class lends."""
    steady = replace(from_datasheet(catalog.device("cpu")), sigma=0.15, class_sigma={"gemm.forward": 0.3})
    draws = np.exp(0.2 * np.random.default_rng(0).standard_normal((2000, 3)))
    found = [machine.at_other_paces(steady, pace.spread(three.tolist())) for three in draws]
    assert np.mean([c.sigma**2 - 0.15**2 for c in found]) ** 0.5 == pytest.approx(0.2 / 2**0.5, rel=0.15)
    assert found[0].class_sigma["gemm.forward"] ** 2 - 0.3**2 == pytest.approx(found[0].sigma ** 2 - 0.15**2)
    assert machine.at_other_paces(steady, 1.0) == steady


def test_cores_that_others_use_are_seen_and_own_ones_are_not() -> None:
    """Another process is one that nobody here waits for until the watch has ended."""
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
    assert beside > alone or alone > 0.3  # something else may use this machine while it is tested


def test_a_calibration_beside_others_is_taken_again_when_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "probe_s", lambda: 0.010)
    for now, is_again in ((0.0, True), (1.5, False)):
        monkeypatch.setattr(pace.Watch, "others_cores", lambda self, cores=now: cores)
        why = machine.taken_while_busy(kept(pace_s=0.010, others_cores=0.8))
        assert ("others used 0.8 cores" in why) == is_again


def test_only_ways_of_running_that_were_never_measured_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is measured is seen by what `calibrate_all` is asked for; a real one takes a minute for each way."""
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
