"""Asynchronous SGD: the smoke size from run to page, and the claims of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.asynchronous_sgd import study
from chronograd_lab.studies.asynchronous_sgd.study import (
    ASYNCHRONOUS,
    AWARE,
    SINGLE,
    STUDY,
    SYNCHRONOUS,
    experiments,
    job,
    staleness_shares,
)

PUBLISHED = Path(__file__).parents[3] / "docs" / "studies" / "asynchronous-sgd" / "results.json"
TITLES = [
    "Accuracy after the same samples",
    "Staleness",
    "Throughput",
    "Where a learner's time goes",
    "Accuracy against time",
]


@pytest.mark.ray
def test_smoke_size_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    said: list[str] = []
    settings = STUDY.sizes["smoke"]
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", said.append), settings)
    rows = {row["experiment"]: row for row in results.rows["runs"]}
    assert set(rows) == set(experiments(settings))
    assert len(said) == len(rows) == 5
    assert {row["images"] for row in rows.values()} == {2 * 200}
    # An epoch has 10 minibatches; synchronous ranks use two of them in each update.
    assert rows["asynchronous, 2 at 0.05"]["updates"] == rows["single, 1 at 0.05"]["updates"] == 20
    assert rows["synchronous, 2 at 0.05"]["updates"] == 10
    assert rows["asynchronous, 1 at 0.05"]["staleness"] == 0
    assert rows["asynchronous, 1 at 0.05"]["accuracy"] == pytest.approx(rows["single, 1 at 0.05"]["accuracy"], abs=0.01)
    assert sum(row["updates"] for row in results.rows["staleness"]) == 3 * 20
    results.save(tmp_path / "results.json")
    page = STUDY.page(Results.load(tmp_path / "results.json"))
    assert [s.title for s in page.sections] == TITLES
    assert render_html(page).startswith("<!doctype html>")


def made_up(seeds: int = 2) -> Results:
    """Return results where asynchrony costs 1 percentage point per learner unless the rate follows staleness."""
    settings: dict[str, Any] = {**STUDY.sizes["smoke"], "learners": [1, 2, 4], "seeds": seeds}
    rows, stale, curves = [], [], {}
    for name, one in experiments(settings).items():
        method, ranks = name.split(", ")[0], one.job.cluster.count
        lost = 0.01 * (ranks - 1) if method == ASYNCHRONOUS else 0.0
        speed = {SINGLE: 100.0, SYNCHRONOUS: 90.0 * ranks}.get(method, 80.0 * ranks)
        for seed in range(seeds):
            own = {"experiment": name, "method": method, "ranks": ranks, "rate": 0.05, "seed": seed}
            accuracy = 0.8 - lost + 0.001 * seed
            times = {"pull_s": 0.001 * ranks, "compute_s": 0.004, "push_s": 0.001 * ranks}
            asynchronous = method in (ASYNCHRONOUS, AWARE)
            measured: dict[str, Any] = times if asynchronous else dict.fromkeys(times)
            rows.append({**own, "accuracy": accuracy, "seconds": 400 / speed, "samples_per_s": speed, **measured})
            curves[f"{name}/seed-{seed}"] = {"seconds": [200 / speed, 400 / speed], "test_accuracy": [0.5, accuracy]}
            if asynchronous:
                stale += [{**own, "staleness": ranks - 1, "updates": 18}, {**own, "staleness": 0, "updates": 2}]
    return Results(STUDY.name, "smoke", settings, {"runs": rows, "staleness": stale}, curves)


def test_values_of_made_up_results() -> None:
    results = made_up(3)
    assert staleness_shares(results.rows["staleness"], 4) == {0: 0.1, 3: 0.9}
    values = study.values(results)
    accuracy = values["rate_0_05"]
    assert (
        f"{accuracy['asynchronous_4'] - accuracy['single_1']:%}" == "−3.0 percentage points (−3.2 … −2.8, p = 3.3e-06)"
    )
    assert not (accuracy["staleness_aware_4"] - accuracy["single_1"]).is_seen
    assert values["staleness"] == {"with_1": 0, "with_2": pytest.approx(0.9), "with_4": pytest.approx(2.7)}
    assert values["gains"] == {"asynchronous": 3.2, "staleness_aware": 3.2, "synchronous": 3.6}
    assert values["exchanging"]["with_1"] == pytest.approx(1 / 3)
    assert values["exchanging"]["with_4"] == pytest.approx(2 / 3)
    assert values["seconds"]["synchronous_4_at_0_05"] == pytest.approx(400 / 360)


def test_faster_learners_contradict_the_page() -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["runs"]:
        if row["method"] == ASYNCHRONOUS:
            row["samples_per_s"] *= 2
    with pytest.raises(ClaimError, match="Asynchronous learners do not wait"):
        STUDY.page(results)


def test_synchronous_ranks_add_up_minibatches() -> None:
    settings = STUDY.sizes["smoke"]
    synchronous, asynchronous = (job(settings, method, 4, 0.1).training for method in (SYNCHRONOUS, AWARE))
    assert (synchronous.batch, synchronous.learning_rate) == (80, pytest.approx(0.4))
    assert (asynchronous.batch, asynchronous.learning_rate) == (20, 0.1)
    assert job(settings, AWARE, 4, 0.1).communication.staleness_aware
