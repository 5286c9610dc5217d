"""Loss curves: forecasts of curves whose end is known, and the smoke size through every step to a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.fit.convergence import converged_at, forecast_convergence
from chronograd.fit.learning_curves import LearningCurve
from chronograd.fit.published_curves import published
from chronograd.fit.schedule import Schedule
from chronograd.report.html import render_html
from chronograd.studies import loss_curves
from chronograd.studies.loss_curves import BEST, FRACTIONS, METHODS, OPTIMUS, OURS, OWN, STUDY, experiments, forecasts
from chronograd.study.published_runs import PublishedCurve, cifar_resnets, dawnbench, measured_folder
from chronograd.study.results import Results
from chronograd.study.runner import StudyRunner


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
    assert [s.title for s in page.sections][:2] == ["When it will have converged", "When it will reach a target"]
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
    assert max(best.values()) < 0.05  # epochs are whole
    assert all(row["error"] == 1 for row in rows if row["method"] == "last")
    assert all(row["error"] > 0.3 for row in rows if row["method"] == OPTIMUS)
    target = [
        row for kind, row in forecasts(PublishedCurve(curve, "s", "g")) if kind == "target" and row["method"] == OURS
    ]
    assert [row["error"] for row in target] == pytest.approx([0, 0, 0], abs=0.02)


@pytest.mark.skipif(measured_folder() is None, reason="published curves are not at hand (CHRONOGRAD_MEASURED)")
def test_published_runs_half_way() -> None:
    """The aim: remaining epochs within 15 % in the median, without runs of the same team or depth."""
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


def test_the_same_names_for_runs_and_sources() -> None:
    assert loss_curves._own("resnet8, constant, nothing/seed-3") == f"{OWN}, nothing"
