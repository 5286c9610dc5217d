"""Python answers of `calibrate` for a machine and its links: sentences and tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.calibrate.answer import calibrate_links, calibrated
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.units import seconds


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_answer_has_a_row_for_each_execution_mode() -> None:
    device = catalog.device("local")
    assert device.calibration is not None
    shown = calibrated(device)
    (section,) = shown.sections
    assert section.table is not None
    settings = device.calibration["settings"]
    layouts = ["nhwc" if s["channels_last"] else "nchw" for s in settings]
    assert [row[1] for row in section.table.rows] == layouts
    assert [row[2] for row in section.table.rows] == [s["mode"] for s in settings]
    assert "FLOP/s measured in fp32" in section.takeaway
    assert shown.data == device.model_dump(mode="json")


@pytest.mark.slow
def test_links_are_timed_fitted_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    shown = calibrate_links((2,), ("all_reduce",), seconds_each=0.02)
    fitted, timed = shown.sections
    latency_s = shown.data["link"]["latency_s"]
    assert catalog.link("loopback").latency_s == latency_s
    assert fitted.takeaway.startswith(f"all_reduce: {seconds(latency_s)} per message")
    assert timed.figure is not None
    assert [row["bytes"] for row in timed.figure.rows()] == [row["bytes"] for row in shown.data["rows"]]
    with pytest.raises(InputError, match="not a valid link name"):
        calibrate_links(hosts="a,b", name="Not A Name")
