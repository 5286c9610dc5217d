"""The main job on a small scale: every stage for real, real processes, a page and a notebook at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.record import STEP_PARTS, Record
from chronograd.rundir import list_runs


@pytest.mark.slow
@pytest.mark.real_exec
@pytest.mark.usefixtures("local_device")
def test_the_whole_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, runs = tmp_path / "report.html", tmp_path / "runs"
    overrides = ["data.samples=256", "training.epochs=2", "training.batch=16", "training.target_accuracy=0.99"]
    arguments = ["run", "examples/digits.yaml", *overrides, "--out", str(page), "--runs", str(runs), "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert page.read_text().lower().startswith("<!doctype html>")
    assert json.loads(page.with_suffix(".ipynb").read_text())["nbformat"] == 4
    records = {name: Record.model_validate(data) for name, data in printed["records"].items()}
    for world in (1, 2):
        predicted, measured = records[f"predicted-{world}"], records[f"measured-{world}"]
        assert (predicted.kind, measured.kind) == ("predicted", "measured")
        assert set(STEP_PARTS) <= set(predicted.quantities) & set(measured.quantities)
        assert measured.value("step_time_s") > 0
    assert records["trained"].value("epochs") == 2
    assert len([name for name in records if name.startswith("plan-")]) == 20
    assert all(text for text in printed["takeaways"].values())
    assert len(list_runs(runs)) == 5


def test_nothing_is_started_before_the_job_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    assert main(["run", "examples/digits.yaml", "network.name=resnet2", "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert "resnet20" in error
    assert "Traceback" not in error
    assert not runs.exists()


def test_schema_and_resolved_job_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--schema"]) == 0
    assert "ClassificationJob" in json.loads(capsys.readouterr().out)["$defs"]
    assert main(["run", "--print-config"]) == 0
    assert "learning_rate: 0.1" in capsys.readouterr().out
