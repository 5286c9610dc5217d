"""Scheduling: workloads, the smoke size from run to page, and the measures of its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies.scheduling import real_runs, workloads
from chronograd_lab.studies.scheduling.study import STUDY, relative


def test_smoke_size_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    results.save(tmp_path / "results.json")
    page = STUDY.page(Results.load(tmp_path / "results.json"))
    assert [section.title for section in page.sections] == list(STUDY.blocks(results))
    # A second run of the same seeds gives the same rows.
    again = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    assert again.rows == results.rows


def test_a_missing_table_leaves_one_workload_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_MEASURED", str(tmp_path))
    settings = {
        **STUDY.sizes["smoke"],
        "workloads": [workloads.POLLUX, workloads.OWN],
        "seeds": 1,
        "errors": [],
        "loads": [],
    }
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), settings)
    assert {row["workload"] for row in results.rows["runs"]} == {workloads.OWN}
    assert "CHRONOGRAD_MEASURED" in results.notes[0] or "Pollux" in results.notes[0]
    with pytest.raises(InputError, match="measured steps"):
        workloads.pollux(1, None)


def test_our_own_runs_take_their_measured_seconds() -> None:
    jobs, pool = workloads.own(0)
    assert sorted(job.work / job.samples_per_s[1][0] for job in jobs) == pytest.approx(sorted(workloads.OWN_SECONDS))
    assert all(
        job.samples_per_s[2][0] / job.samples_per_s[1][0] == pytest.approx(workloads.OWN_SPEED_UP) for job in jobs
    )
    assert pool.gpus == 4


@pytest.mark.parametrize("app", workloads.POLLUX_STEPS)
def test_published_steps_follow_the_model_of_batches(app: str) -> None:
    model = workloads.batch_model(app)
    errors = [model.steps(batch) / steps - 1 for batch, steps in workloads.POLLUX_STEPS[app].items()]
    assert np.abs(errors).max() < 0.03


def test_steps_are_those_of_the_table_between_its_points(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(
        "app,source,placement,num_nodes,num_replicas,local_bsz,step_time_s,sync_time_s\n"
        "a,placements,1,1,1,8,1.0,0.0\na,placements,1,1,1,16,2.0,0.0\n"
        "a,placements,4,1,4,8,1.5,0.5\na,placements,4,1,4,16,2.5,0.5\n"
        "a,placements,1111,4,4,8,9.0,5.0\n"
    )
    step_s = workloads.step_times(path, "a")
    assert step_s(1, 12) == pytest.approx(1.5)
    assert step_s(4, 32) == pytest.approx(1.5)
    assert step_s(2, 16) == pytest.approx(1.25)  # half way in log(GPUs)
    assert step_s(4, 128) == pytest.approx(2.5 + 2.0)  # two parts of 16; the last one synchronises


def test_relative_is_a_mean_over_seeds_with_its_interval() -> None:
    rows = [
        {"policy": p, "seed": seed, "completion_s": 10.0 * (1 + (p == "a")) * 2**seed}
        for p in "ab"
        for seed in range(5)
    ]
    assert relative(rows, "a", "b") == pytest.approx({"ratio": 2, "low": 2, "high": 2})


def test_real_schedules_are_summed_up_and_drawn() -> None:
    stay = {"index": 0, "start_s": 5.0, "end_s": 25.0, "size": [2, 0], "is_paused": False}
    row = {"place": "two cores", "policy": "fifo", "name": "a", "arrival_s": 5.0, "measured_s": 20.0, "simulated_s": 15.0,
           "error": -0.25, "restarts": 0, "same_weights": True, "measured": [stay], "simulated": [{**stay, "end_s": 20.0}]}  # fmt: skip
    other = {**row, "name": "b", "error": 0.05, "restarts": 1, "same_weights": None}
    other["measured"] = other["simulated"] = [{**stay, "index": 1}]
    found = real_runs.real_values([row, other])["two_cores"]["fifo"]
    assert (found["jobs"], found["restarts"], found["resized"], found["equal"], found["different"]) == (2, 1, 1, 1, 0)
    assert (found["error"], found["bias"], found["largest"]) == pytest.approx((0.15, -0.1, 0.25))
    drawn = real_runs.timetable([row, other], "simulated")
    assert drawn.ended_s.tolist() == [20.0, 20.0]
    assert [(s.index, s.end_s, s.size.workers) for s in drawn.stays] == [(0, 20.0, 2), (1, 25.0, 2)]
