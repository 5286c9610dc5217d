"""The study of fine-tuning: dollars follow from the curves and the price, and predictions from the sizes of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.forecast.fine_tuning import DEVICE, published_runs
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.fine_tuning_cost.study import STUDY


def test_smoke_size_by_hand(tmp_path: Path) -> None:
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    results.save(tmp_path / "results.json")
    rows = Results.load(tmp_path / "results.json").rows
    (price,) = rows["prices"]
    by_name = {run.name: run for run in published_runs()}
    assert {row["way"] for row in rows["ways"]} == set(by_name)
    for row in rows["ways"]:
        run = by_name[row["way"]]
        assert row["dollars"] == pytest.approx(price["usd_per_hour"] * sum(run.times[-1:]) / 3600)
        assert row["after"] == sorted(row["after"])
    for row in rows["reached"]:
        assert row["low"] <= row["dollars"] <= row["high"]
        assert row["seconds"] == by_name[row["way"]].times[int(row["steps"] / 250) - 1]
    full, lora = (matching(rows["predicted"], way=way, device=DEVICE)[0] for way in ("full", "LoRA on all matrices"))
    assert full["used_bytes"] > 16 * 3.2e9 > lora["used_bytes"]
    assert STUDY.page_or_plain(results).sections
