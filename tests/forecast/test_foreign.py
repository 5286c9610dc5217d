"""Logs of other tools: `foreign/expectations.toml` lists their values or the expected error."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from chronograd.errors import InputError
from chronograd.forecast import forecast_answer
from chronograd.forecast.pace import pace_of

FOLDER = Path(__file__).parent / "foreign"
LOGS: list[dict[str, Any]] = tomllib.loads((FOLDER / "expectations.toml").read_text())["log"]


@pytest.mark.parametrize(
    "expected", LOGS, ids=lambda expected: expected["file"] + ":" * ("run" in expected) + expected.get("run", "")
)
def test_logs_of_other_tools(expected: dict[str, Any]) -> None:
    options = {"run": expected["run"]} if "run" in expected else {}
    path = FOLDER / expected["file"]
    if "error" in expected:
        with pytest.raises(InputError) as caught:
            forecast_answer.read(path, expected.get("metric"), None, **options)
        assert expected["error"] in caught.value.message
        return
    curve = forecast_answer.read(path, expected.get("metric"), None, **options)
    assert (curve.column, curve.unit, len(curve.steps)) == (expected["column"], expected["unit"], expected["points"])
    assert curve.steps[-1] == pytest.approx(expected["last_step"])
    last = 1 - curve.values[-1] if curve.metric == "accuracy" else curve.values[-1]
    assert last == pytest.approx(expected["last"], abs=6e-4)
    assert expected.get("rate", "") in curve.schedule_told
    assert expected.get("note", "") in " ".join(curve.notes)
    if "seconds" in expected:
        pace = pace_of(curve.steps, curve.times, curve.steps[-1])
        assert pace is not None
        assert pace.seconds == pytest.approx(expected["seconds"], rel=0.02)
