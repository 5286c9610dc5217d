"""`judge` on `local` reports the same calibration as `devices local`."""

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
    """Save an fp32 calibration of this machine as `chronograd calibrate` does."""
    device = catalog.device("cpu").model_copy(update={"name": "local", "aliases": ()})
    measured = replace(from_datasheet(device), origin="measured", threads=1, processes=1, channels_last=False)
    settings = [replace(measured, mode=mode).to_table() for mode in modes]
    device.model_copy(update={"calibration": {"settings": settings}}).save(catalog.user_device_path("local"))


def judge_local(precision: str) -> Answer:
    return judge("resnet20", "500 images/s", f"training.precision={precision}", on="local", batch=8)


def calibration_lines(answer: Answer) -> list[str]:
    return [line for line in answer.sections[0].lines if "calibrat" in line]


def test_unmeasured_machine_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="this machine has not been measured"):
        judge_local("fp32")
    assert main(["devices", "local"]) == 2
    assert "chronograd calibrate" in capsys.readouterr().err


def test_calibrated_machine_is_reported_by_both_verbs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrate("training", "inference")
    assert calibration_lines(judge_local("fp32")) == []
    assert judge_local("fp32").as_data()["calibration"]["origin"] == "measured"
    assert main(["devices", "local", "--full"]) == 0
    assert "none: figures are the datasheet's" not in capsys.readouterr().out


def test_other_mode_names_the_calibrated_one(home: Path) -> None:
    calibrate("inference")
    (line,) = calibration_lines(judge_local("fp32"))
    assert line.startswith("local is calibrated in fp32 inference, but not in fp32 training: predicted from ")
