"""Public training logs: their sources, and the stored scores of their forecasts."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from benchmarks.forecasts import CUTS, LOGS, Case, case, groups, scores

RESULTS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "forecasts.json").read_text())
CASES = [Case(**one) for one in RESULTS["cases"]]
SOURCES = list(csv.DictReader((LOGS / "sources.csv").read_text().splitlines()))


def test_every_log_has_a_source() -> None:
    assert {f"{one['name']}.csv" for one in SOURCES} | {"sources.csv"} == {path.name for path in LOGS.iterdir()}
    assert len({one["repository"] for one in SOURCES}) == len(SOURCES) >= 20
    assert all(re.fullmatch("[0-9a-f]{40}", one["commit"]) and one["path"] for one in SOURCES)
    fields = {one["field"] for one in SOURCES}
    assert {"images", "detection", "language", "tables"} <= fields
    for field in fields:  # halves alternate in the order of the repositories' names
        names = sorted((one["repository"].lower(), one["half"]) for one in SOURCES if one["field"] == field)
        assert [half for _, half in names] == [("A", "B")[at % 2] for at in range(len(names))]


def test_stored_scores_follow_from_the_stored_cases() -> None:
    assert {(one.log, one.cut) for one in CASES} == {(one["name"], cut) for one in SOURCES for cut in CUTS}
    assert {name: scores(part) for name, part in groups(CASES).items()} == RESULTS["scores"]


@pytest.mark.parametrize("cut", [f"{cut:.0%}" for cut in CUTS])
def test_final_values_are_nearer_than_the_baselines(cut: str) -> None:
    for part in (cut, f"half A, {cut}", f"half B, {cut}"):
        found = RESULTS["scores"][part]
        assert found["ours_mean"] < min(found["last_mean"], found["power_mean"]), part


@pytest.mark.parametrize("name", ["lightnet", "teeth", "ppo"])
def test_a_case_gives_its_stored_forecast(name: str) -> None:
    (source,) = (one for one in SOURCES if one["name"] == name)
    (stored,) = (one for one in CASES if (one.log, one.cut) == (name, 0.3))
    found = case(source, 0.3)
    assert (found.ours, found.low, found.high) == pytest.approx((stored.ours, stored.low, stored.high), rel=1e-3)
    assert (found.until, found.final, found.reached) == (stored.until, stored.final, stored.reached)
