"""Logs of other tools, read as `foreign/expectations.toml` says, or refused for the true reason."""

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


@pytest.mark.parametrize("told", LOGS, ids=lambda told: told["file"] + ":" * ("run" in told) + told.get("run", ""))
def test_reads_logs_of_other_tools(told: dict[str, Any]) -> None:
    options = {"run": told["run"]} if "run" in told else {}
    path = FOLDER / told["file"]
    if "error" in told:
        with pytest.raises(InputError) as caught:
            forecast_answer.read(path, told.get("metric"), None, **options)
        assert told["error"] in caught.value.message
        return
    curve = forecast_answer.read(path, told.get("metric"), None, **options)
    assert (curve.column, curve.unit, len(curve.steps)) == (told["column"], told["unit"], told["points"])
    assert curve.steps[-1] == pytest.approx(told["last_step"])
    last = 1 - curve.values[-1] if curve.metric == "accuracy" else curve.values[-1]
    assert last == pytest.approx(told["last"], abs=6e-4)
    assert told.get("rate", "") in curve.schedule_told
    assert told.get("note", "") in " ".join(curve.notes)
    if "seconds" in told:
        pace = pace_of(curve.steps, curve.times, curve.steps[-1])
        assert pace is not None
        assert pace.seconds == pytest.approx(told["seconds"], rel=0.02)
