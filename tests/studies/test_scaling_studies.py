"""The studies of many ranks, at their smallest size and for real: what ran, what is predicted, what is said to be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.report.html import render_html
from chronograd.studies import all_reduce_algorithms, data_parallel, horovod_scaling, strong_and_weak
from chronograd.study.results import Results
from chronograd.study.rows import matching
from chronograd.study.runner import StudyRunner
from chronograd.study.study import Study

STUDIES = [horovod_scaling.STUDY, strong_and_weak.STUDY, all_reduce_algorithms.STUDY, data_parallel.STUDY]


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_smoke_size_end_to_end(study: Study, tmp_path: Path) -> None:
    lab = StudyRunner(tmp_path, study.name, "smoke", lambda text: None)
    results = study.conduct(lab, study.sizes["smoke"])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").rows == results.rows
    rows = results.rows["points"]
    kinds = {row["kind"] for row in rows}
    assert kinds >= {"measured", "predicted"} if study is not all_reduce_algorithms.STUDY else "predicted" in kinds
    for row in rows:
        if row["kind"] == "missing":
            assert row["reason"]
            assert row["step_time_s"] is None
        else:
            assert row["step_time_s"] > 0
            assert row["throughput_samples_per_s"] == pytest.approx(row["batch"] / row["step_time_s"], rel=0.05)
    assert bool(results.notes) == ("missing" in kinds)
    page = study.page(results)
    assert len(page.sections) >= 3
    assert study.question in render_html(page)


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_predicted_rows_follow_from_their_own_figures(study: Study, tmp_path: Path) -> None:
    """Efficiency is speed-up over ranks, speed-up a ratio of throughputs, effective batch n times a rank's."""
    settings = {**study.sizes["smoke"], "worlds": [], "rounds": 0}
    rows = study.conduct(StudyRunner(tmp_path, study.name, "smoke", lambda text: None), settings).rows["points"]
    assert {row["kind"] for row in rows} == {"predicted"}
    for name in dict.fromkeys((row["series"], row["scaling"]) for row in rows):
        own = matching(rows, series=name[0], scaling=name[1])
        first = matching(own, world=1)[0]
        for row in own:
            assert row["speed_up"] == pytest.approx(row["throughput_samples_per_s"] / first["throughput_samples_per_s"])
            assert row["efficiency"] == pytest.approx(row["speed_up"] / row["world"])
            assert row["iteration_growth"] == pytest.approx(row["step_time_s"] / first["step_time_s"])
            assert row["batch"] == (first["batch"] if row["scaling"] == "strong" else row["world"] * first["batch"])
            assert row["communication_by_difference_s"] == pytest.approx(row["step_time_s"] - row["compute_s"])


def test_data_parallel_is_predicted_slower_than_ddp(tmp_path: Path) -> None:
    """It hides nothing and sends everything through one GPU."""
    study = data_parallel.STUDY
    settings = {**study.sizes["smoke"], "batches": []}
    rows = study.conduct(StudyRunner(tmp_path, study.name, "smoke", lambda text: None), settings).rows["points"]
    many = [row for row in rows if row["world"] > 1]
    by = {(row["backend"], row["batch_per_gpu"]): row["step_time_s"] for row in many}
    for batch in settings["predicted_batches"]:
        assert by["data_parallel", batch] > by["ddp", batch]
