"""The first paragraph of a report: what was trained, accuracy, time, cost, and possible speed-ups."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chronograd.explain import explanation
from chronograd.files import read_json, write_json
from chronograd.record import Record
from chronograd.report.html import render_html
from chronograd.report.runs import report
from chronograd.units import percent, seconds
from chronograd.words import tight

INPUTS = Path(__file__).parent.parent / "golden" / "inputs"


def with_quantities(name: str, folder: Path, **values: dict[str, object]) -> Path:
    run = folder / name
    shutil.copytree(INPUTS / name, run)
    record = read_json(run / "record.json")
    record["quantities"] |= values
    write_json(run / "record.json", record)
    return run


def test_trained_run_states_result_and_speedup(tmp_path: Path) -> None:
    run = with_quantities("trained", tmp_path, cost_usd={"value": 1.5, "unit": "usd"})
    page, record = report([("trained", run)]), Record.load(run / "record.json")
    first, faster = page.opening()
    assert first.startswith("small-cnn on digits, 2×cpu: training ended at ")
    for text in (percent(record.value("test_accuracy")), "5 epochs", seconds(record.value("training_time_s")), "$1.50"):
        assert text in first
    cause = explanation.explain([run]).causes[0]
    assert faster.startswith(f"Most time is lost here: {cause.title} (")
    assert cause.remedies[0].text() in faster
    assert "prediction" not in " ".join(page.opening())
    assert tight(first) in render_html(page)


def test_measured_run_states_its_step() -> None:
    page = report([("measured-1", INPUTS / "measured-1")])
    step = Record.load(INPUTS / "measured-1" / "record.json")["step_time_s"]
    assert f"a step takes {seconds(step.value or 0)} (80 % interval " in page.opening()[0]


@pytest.mark.parametrize("target", [0.5, 0.999])
def test_target_is_stated(tmp_path: Path, target: float) -> None:
    run = with_quantities("trained", tmp_path)
    record = read_json(run / "record.json")
    record["job"]["training"]["target_accuracy"] = target
    write_json(run / "record.json", record)
    first = report([("trained", run)]).opening()[0]
    assert (f"missed its target of {percent(target)}" if target > 0.9 else f"the target of {percent(target)}") in first


def test_single_prediction_has_its_own_paragraph() -> None:
    page = report([("predicted", INPUTS / "predicted.json")])
    assert not page.summary
    assert page.opening()
