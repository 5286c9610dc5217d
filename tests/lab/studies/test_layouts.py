"""The study of layouts: worths and regrets by hand, a page without published runs, and the published page against its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.large_runs import TimedRun
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.layouts import study
from chronograd_lab.studies.layouts.study import FREE, RULE, STUDY, regret

RESULTS = Path(__file__).parents[3] / "docs" / "studies" / STUDY.name / "results.json"


@pytest.fixture(scope="module")
def laptop() -> Results:
    return Results.load(RESULTS)


def test_regret_averages_equal_layouts() -> None:
    unused: Any = None
    group = [
        TimedRun("file", "device", name, seconds, unused, unused) for name, seconds in (("a", 2), ("b", 3), ("c", 5))
    ]
    assert regret(group, lambda run: run.name) == 0
    assert regret(group, lambda run: run.name == "a") == pytest.approx((3 + 5) / 2 / 2 - 1)


def test_page_without_published_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    page = STUDY.page(results)
    assert [section.title for section in page.sections][-2:] == ["Time against memory", "What fell short"]
    assert render_html(page).startswith("<!doctype html>")
    for row in results.rows["ladder"]:
        assert row["rule_s"] >= row["step_s"] > 0
        assert row["data"] * row["tensor"] * row["pipeline"] * row["context"] == row["gpus"]
    assert all(row["worth"] is None or row["worth"] >= 0 for row in results.rows["choices"])


def test_choices_of_the_fastest_layouts_have_a_worth(laptop: Results) -> None:
    for row in laptop.rows["ladder"]:
        worth = {one["without"]: one["worth"] for one in matching(laptop.rows["choices"], gpus=row["gpus"])}
        used = {"tensor parallelism": row["tensor"] > 1, "pipeline stages": row["pipeline"] > 1,
                "context parallelism": row["context"] > 1, "recomputation": row["recompute"] != "none",
                "sharding": row["zero_stage"] > 0, "sharded parameters": row["zero_stage"] == 3}  # fmt: skip
        assert {name: worth[name] > 0 for name in used} == used


def test_rule_of_thumb_recomputes_as_the_page_says(laptop: Results) -> None:
    rules = [row["rule"] for row in laptop.rows["ladder"]]
    assert all("full recomputation" in words and "tensor" not in words for words in rules)


def test_front_is_one(laptop: Results) -> None:
    front = laptop.rows["front"]
    assert [row["step_s"] for row in front] == sorted(row["step_s"] for row in front)
    assert [row["bytes"] for row in front] == sorted((row["bytes"] for row in front), reverse=True)


def test_search_loses_in_no_group_more_than_the_rule(laptop: Results) -> None:
    groups = laptop.rows["groups"]
    assert sum(row["layouts"] for row in groups) > 4 * len(groups)
    assert study.values(laptop)["regret"]["search"]["mean"] == pytest.approx(
        sum(row[FREE] for row in groups) / len(groups)
    )
    assert all(row[FREE] <= row[RULE] for row in groups)
