"""`judge` on `local` says one truth about its calibration, the one that `devices local` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.answer import Answer
from chronograd.api import judge
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def calibrate(*modes: str) -> None:
    """Store a calibration of this machine, in fp32, as `chronograd calibrate` does."""
    device = catalog.device("cpu").model_copy(update={"name": "local", "aliases": ()})
    measured = replace(from_datasheet(device), origin="measured", threads=1, processes=1, channels_last=False)
    settings = [replace(measured, mode=mode).to_table() for mode in modes]
    device.model_copy(update={"calibration": {"settings": settings}}).save(catalog.user_device_path("local"))


def of_local(precision: str) -> Answer:
    return judge("resnet20", "500 images/s", f"training.precision={precision}", on="local", batch=8)


def about_calibration(answer: Answer) -> list[str]:
    return [line for line in answer.sections[0].lines if "calibrat" in line]


def test_a_machine_that_was_never_measured_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="this machine has not been measured"):
        of_local("fp32")
    assert main(["devices", "local"]) == 2
    assert "chronograd calibrate" in capsys.readouterr().err


def test_a_calibrated_machine_is_called_so_in_both_answers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrate("training", "inference")
    assert about_calibration(of_local("fp32")) == []
    assert of_local("fp32").as_data()["calibration"]["origin"] == "measured"
    assert main(["devices", "local", "--full"]) == 0
    assert "none: figures are the datasheet's" not in capsys.readouterr().out


def test_another_mode_names_what_was_calibrated(home: Path) -> None:
    calibrate("inference")
    (line,) = about_calibration(of_local("fp32"))
    assert line.startswith("local is calibrated in fp32 inference, but not in fp32 training: predicted from ")
