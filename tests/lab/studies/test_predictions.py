"""Stored predictions of the published studies are those of this version within 1 %."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main
from chronograd_lab.common.predictions import outdated
from chronograd_lab.common.published_runs import MEASURED_VARIABLE
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.studies import find

FOLDER = Path(__file__).parents[3] / "docs" / "studies"
REMEDY = "run `chronograd study run NAME --report-only --out docs/studies/NAME`"
# Their predictions are fits to published runs, which are not in git.
FITTED = {"depth-and-device", "loss-curves"}
# A part of the settings of a study that takes long, and the rows that belong to it.
SAMPLES: dict[str, tuple[dict[str, Any], Row]] = {
    "layouts": ({"counts": [32], "front_of": 0}, {"gpus": 32}),
    "scheduling": ({"workloads": ["Optimus"], "seeds": 1}, {"workload": "Optimus", "seed": 0}),
}
PUBLISHED = sorted(path.parent.name for path in FOLDER.glob("*/results.json"))


def stored(name: str) -> Results:
    return Results.load(FOLDER / name / "results.json")


@pytest.fixture(autouse=True)
def _without_published_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict everywhere as in CI, which has no folder of published runs."""
    monkeypatch.delenv(MEASURED_VARIABLE, raising=False)


@cache
def current(name: str) -> Mapping[str, Any]:
    """Return the predictions of this version: of all stored rows, or of the sample of a study that takes long."""
    settings, _ = SAMPLES.get(name, ({}, {}))
    results = stored(name)
    return find(name).predictions(replace(results, settings={**results.settings, **settings}))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in SAMPLES])
def test_stored_predictions_are_those_of_this_version(name: str) -> None:
    assert outdated(stored(name).rows, current(name)) == [], REMEDY


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_all_stored_predictions_of_long_studies(name: str) -> None:
    assert outdated(stored(name).rows, find(name).predictions(stored(name))) == [], REMEDY


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_of_stored_predictions_of_long_studies(name: str) -> None:
    _, wanted = SAMPLES[name]
    tables = {table: rows for table, rows in current(name).items() if rows and wanted.keys() <= rows[0].keys()}
    assert tables
    assert outdated({table: matching(stored(name).rows[table], **wanted) for table in tables}, tables) == [], REMEDY


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - FITTED))
def test_every_table_with_predictions_can_be_predicted_again(name: str) -> None:
    assert {table for table, rows in stored(name).rows.items() if any(map(_is_predicted, rows))} <= current(name).keys()


def _is_predicted(row: Row) -> bool:
    return row.get("kind") == "predicted" or any(column.startswith("predicted") for column in row)


@pytest.mark.parametrize(
    ("factor", "is_outdated"), [(1.0, False), (0.995, False), (1.005, False), (0.98, True), (1.02, True)]
)
def test_a_stored_prediction_may_be_one_percent_off(factor: float, is_outdated: bool) -> None:
    study = replace(find("time-to-accuracy"), predictions=lambda results: current("time-to-accuracy"))
    results = study.predicted_again(stored("time-to-accuracy"))
    rows = {**results.rows, "device": [dict(row) for row in results.rows["device"]]}
    rows["device"][3]["step_time_s"] *= factor
    places = outdated(rows, current("time-to-accuracy"))
    assert [place.split(" is ")[0] for place in places] == ["device[3].step_time_s"] * is_outdated
    planted = replace(results, rows=rows, environment={})
    again = study.predicted_again(planted)
    assert (again is planted) is not is_outdated
    assert outdated(again.rows, results.rows) == []
    assert ("predicted" in again.environment) is is_outdated


def test_other_values_of_a_prediction_are_compared_exactly() -> None:
    before = {"cells": [{"model": "a", "fit": True, "changes": ["lora"], "after": None}]}
    assert outdated(before, {"cells": [{"model": "a", "fit": True, "changes": ("lora",), "after": None}]}) == []
    after = {"cells": [{"model": "b", "fit": False, "changes": [], "after": 0.5}], "peaks": []}
    assert outdated(before, after) == [
        "cells[0].model is a, now b", "cells[0].fit is True, now False", "cells[0].changes is 1 rows, now 0 rows",
        "cells[0].after is None, now 0.5", "peaks is None, now 0 rows",
    ]  # fmt: skip


def test_report_only_replaces_outdated_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "run", "fine-tuning-cost", "--size", "smoke", "--out", str(tmp_path)]
    assert main(words) == 0
    file = tmp_path / "results.json"
    fresh = json.loads(file.read_text())
    old = json.loads(file.read_text())
    old["rows"]["predicted"][0]["step_s"] *= 1.5
    file.write_text(json.dumps(old))
    capsys.readouterr()
    assert main([*words, "--report-only"]) == 0
    assert "predictions of an earlier version are replaced" in "".join(capsys.readouterr())
    again = json.loads(file.read_text())
    assert again["rows"] == fresh["rows"]
    assert f"predicted {again['environment']['predicted']};" in (tmp_path / "README.md").read_text()
    before = file.read_bytes()
    assert main([*words, "--report-only"]) == 0
    assert file.read_bytes() == before
