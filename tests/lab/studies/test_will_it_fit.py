"""The study of fit: verdicts by hand, a page without published runs, and the published rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.large.remedies import ENOUGH
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.will_it_fit import study
from chronograd_lab.studies.will_it_fit.study import STUDY, WAYS

RESULTS = Path(__file__).parents[3] / "docs" / "studies" / STUDY.name / "results.json"


@pytest.fixture(scope="module")
def laptop() -> Results:
    return Results.load(RESULTS)


def test_verdicts() -> None:
    def verdict(fit: float, fits: bool) -> str:
        return study._verdict({"fit": fit, "fits": fits})

    assert (verdict(0.99, True), verdict(0.01, False), verdict(0.5, True)) == ("right", "right", "unsure")
    assert (verdict(0.99, False), verdict(0.01, True)) == ("wrong", "wrong")
    for fit, expected in ((0.95, "right"), (0.94, "unsure")):
        assert verdict(fit, True) == verdict(round(1 - fit, 2), False) == expected


def test_page_without_published_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    page = STUDY.page(results)
    titles = [section.title for section in page.sections]
    assert titles[-2:] == ["What is in the way, and what helps?", "What fell short"]
    assert render_html(page).startswith("<!doctype html>")
    assert len(results.rows["cells"]) == 2 * 2 * len(WAYS)


def test_more_memory_fits_more_and_remedies_help(laptop: Results) -> None:
    for own in grouped(laptop.rows["cells"], "model", "way").values():
        chances = [row["fit"] for row in sorted(own, key=lambda row: row["room"])]
        assert chances == sorted(chances)
    for row in laptop.rows["cells"]:
        assert 0 < row["cause_bytes"] < row["bytes"]
        assert (row["fit"] >= ENOUGH) <= (row["remedy"] == [])
        if row["remedy"]:
            assert row["fit_after"] >= row["fit"]


def test_ways_take_the_memory_of_their_states(laptop: Results) -> None:
    """Full training has 18 bytes a parameter (2 + 4 or 2 of gradients + 12); QLoRA at least half a byte."""
    params = {"llama-3.2-1b": 1_235_814_400, "llama-3-8b": 8_030_261_248}
    for model, number in params.items():
        of = {way: matching(laptop.rows["cells"], model=model, way=way, device="b200")[0]["bytes"] for way in WAYS}
        assert of["AdamW"] > 16 * number
        assert of["AdamW"] > of["LoRA"] > of["QLoRA"] > 0.5 * number
        assert of["FSDP on 8"] > 16 * number / 8


def test_each_measured_peak_is_judged_once_per_device(laptop: Results) -> None:
    devices = laptop.settings["devices"]
    for own in grouped(laptop.rows["peaks"], "run").values():
        assert [row["device"] for row in own] == list(devices)
        assert len({row["reserved"] for row in own}) == 1
    assert matching(laptop.rows["peaks"], device="rtx4090", fits=True) == []
    assert len(matching(laptop.rows["peaks"], device="b200", fits=True)) == len(laptop.rows["peaks"]) / len(devices)


def test_counts_of_the_page(laptop: Results) -> None:
    cells, ran = laptop.rows["cells"], laptop.rows["ran"]
    assert sum(row["fit_after"] is not None and row["fit_after"] >= 0.9 for row in cells) == 43
    assert sum(row["fit"] >= 0.95 for row in ran) == 145
    assert sum(row["fit"] < 0.9 for row in cells) == 81
