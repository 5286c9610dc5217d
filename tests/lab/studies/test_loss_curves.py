"""Loss curves: forecasts of curves with a known end, and the smoke size from run to page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.forecast.convergence import converged_at, forecast_convergence
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.published_curves import published
from chronograd.forecast.schedule import Schedule
from chronograd.report.html import render_html
from chronograd_lab.common.published_runs import PublishedCurve, cifar_resnets, dawnbench, measured_folder
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.loss_curves import study
from chronograd_lab.studies.loss_curves.study import (
    BEST,
    FRACTIONS,
    HELD,
    METHODS,
    OPTIMUS,
    OURS,
    OWN,
    STUDY,
    experiments,
    forecasts,
)

PAGE = Path(__file__).parents[3] / "docs" / "studies" / "loss-curves" / "results.json"


@pytest.mark.slow
def test_smoke_size_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, "loss-curves", "smoke", lambda _: None), settings)
    assert len(experiments(settings)) == 2
    assert {row["source"] for row in results.rows["convergence"]} == {f"{OWN}, nothing"}
    assert "CHRONOGRAD_MEASURED" in results.notes[0]
    results.save(tmp_path / "results.json")
    page = STUDY.page(Results.load(tmp_path / "results.json"))
    titles = ["When it will have converged", "When it will reach a target"]
    assert [s.title for s in page.sections][:2] == titles
    assert render_html(page).startswith("<!doctype html>")


def test_forecasts_of_a_known_curve() -> None:
    """0.5 exp(-0.05 (k - 1)) + 0.1 is within 2 % of its fall at 1 + ln(50) / 0.05 = 79.2, so at epoch 80."""
    k = np.arange(1.0, 201)
    curve = LearningCurve(
        "c", k, 0.5 * np.exp(-0.05 * (k - 1)) + 0.1, "accuracy", "epoch", Schedule("constant", (), 200.0)
    )
    rows = [row for kind, row in forecasts(PublishedCurve(curve, "s", "g")) if kind == "convergence"]
    assert [(row["fraction"], row["method"]) for row in rows] == [(f, m) for f in FRACTIONS for m in METHODS]
    assert {row["true"] for row in rows} == {80}
    best = {row["fraction"]: row["error"] for row in rows if row["method"] == BEST}
    assert max(best.values()) < 0.05  # epochs are integers
    assert all(row["error"] == 1 for row in rows if row["method"] == "last")
    assert all(row["error"] > 0.3 for row in rows if row["method"] == OPTIMUS)
    target = [
        row for kind, row in forecasts(PublishedCurve(curve, "s", "g")) if kind == "target" and row["method"] == OURS
    ]
    assert [row["error"] for row in target] == pytest.approx([0, 0, 0], abs=0.02)


def test_unseen_interval_uses_other_sources() -> None:
    """Forecasts of `a` are off by a factor of 2, those of `b` by 1.1; each source gets the other's factor."""
    rows = [unseen("a", 100, 200) for _ in range(5)] + [unseen("b", 110, 100) for _ in range(20)]
    assert study._factor([row for row in rows if row["source"] == "a"]) == pytest.approx(2)
    assert study._factor([row for row in rows if row["source"] == "b"]) == pytest.approx(1.1)
    assert study._factor(rows) == pytest.approx(2)  # equal weights per source, so the worse half exceeds 80 %
    assert not study._is_within(rows[0], 1.1)
    assert study._is_within(rows[-1], 2)
    assert [row[4:] for row in study._unseen_table(rows).rows] == [["1.10", "0 %"], ["2.00", "100 %"]]


def unseen(source: str, said: float, true: float) -> Row:
    row = {"source": source, "curve": "c", "fraction": 0.5, "method": OURS, "now": 40.0, "said": said, "true": true}
    return {**row, "error": abs(said - true) / (true - 40), "is_covered": False}


def test_values_of_unseen_kinds() -> None:
    results = Results.load(PAGE)
    values = study.values(results)
    ours = [row for row in results.rows["convergence"] if row["method"] == OURS]
    rows = [*(row for row in ours if row["source"].startswith(OWN)), *results.rows["unseen"]]
    held_back = {HELD, "ResNets at a constant rate", "DAWNBench, CIFAR10"}
    assert {row["source"] for row in results.rows["unseen"]} >= held_back
    half = [row["error"] for row in rows if row["fraction"] == 0.5]
    assert values["unseen"]["with_the_schedule"] == pytest.approx(np.median(half))
    assert values["unseen"]["covered"] == pytest.approx(np.mean([row["is_covered"] for row in rows]))
    seen = [row for row in ours if not row["source"].startswith(OWN) and row["source"] != HELD]
    half = [row["error"] for row in seen if row["fraction"] == 0.5]
    assert values["seen"]["with_the_schedule"] == pytest.approx(np.median(half))
    assert values["seen"]["covered"] == pytest.approx(np.mean([row["is_covered"] for row in seen]))
    within: dict[str, list[bool]] = {}
    for source in {row["source"] for row in rows}:
        factor = study._factor([row for row in rows if row["source"] != source])
        within[source] = [study._is_within(row, factor) for row in rows if row["source"] == source]
    shares = [np.mean(own) for own in within.values()]
    assert values["unseen"]["held"] == pytest.approx(np.mean([one for own in within.values() for one in own]))
    assert (values["unseen"]["least_held"], values["unseen"]["most_held"]) == (min(shares), max(shares))


def test_better_optimus_forecasts_contradict_the_page() -> None:
    results = Results.load(PAGE)
    for row in results.rows["convergence"]:
        if row["method"] == OPTIMUS and row["source"] == HELD:
            row["error"] = 0.0
    assert study.values(results)["worse"]["convergence"] == HELD
    with pytest.raises(ClaimError, match="In no row of the table is the median error"):
        STUDY.page(results)


@pytest.mark.skipif(measured_folder() is None, reason="published curves are not at hand (CHRONOGRAD_MEASURED)")
def test_published_runs_half_way() -> None:
    """Predict the remaining epochs within 15 % (median) without runs of the same team or depth."""
    folder = measured_folder()
    assert folder is not None
    curves = [*dawnbench(folder), *cifar_resnets(folder)]
    assert len(curves) == 56
    errors = []
    for one in curves:
        true = converged_at(one.curve.steps, one.curve.values)
        early = one.curve.first(int((one.curve.steps <= true / 2).sum()))
        now = float(early.steps[-1])
        errors.append(abs(forecast_convergence(early, published().without(one.group)).step - true) / (true - now))
    assert np.median(errors) <= 0.15


def test_run_and_source_names_match() -> None:
    assert study._own("resnet8, constant, nothing/seed-3") == f"{OWN}, nothing"
