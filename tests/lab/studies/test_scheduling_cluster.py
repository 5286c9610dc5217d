"""The published cluster: its tables as jobs, and its runs compared with our simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd_lab.common.published_runs import measured_folder
from chronograd_lab.studies.scheduling import cluster

needs_tables = pytest.mark.skipif(
    not (measured_folder() and (measured_folder() / cluster.FOLDER).is_dir()),  # type: ignore[operator]
    reason="CHRONOGRAD_MEASURED names no folder with the published cluster",
)

JOBS = "job,kind,batch,gpus,epochs,samples_per_epoch,arrival_s\n0,LM,10,2,4,95,60\n"
RATES = "kind,batch,gpus,gpu,steps_per_second_tacc_file\nLM,10,2,V100,5\nLM,20,2,V100,4\nLM,10,2,K80,1\n"
BATCHES = "job,first_epoch,last_epoch,batch\n0,0,2,10\n0,3,3,20\n"
SUMMARY = "policy,run,makespan_corrected_s,rounds,lease_extension_percent\nallox,physical,1230,10,80\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / cluster.FOLDER).mkdir()
    for name, text in (("jobs", JOBS), ("throughputs", RATES), ("batch_by_epoch", BATCHES), ("summary", SUMMARY)):
        (tmp_path / cluster.FOLDER / f"{name}.csv").write_text(text)
    return tmp_path


def test_steps_of_an_epoch_are_rounded_up(tables: Path) -> None:
    # 95 samples are 10 steps of 10 at 5 steps a second, or 5 of 20 at 4. Three epochs of 2 s, and one of 1.25 s.
    (job,) = cluster.jobs(tables)
    assert job.requested.workers == 2
    assert job.requested_s == pytest.approx(3 * 2 + 1.25)
    schedule = cluster.simulated("themis", [job], pause=19)
    assert schedule.ended_s.tolist() == pytest.approx([60 + 19 + 7.25])


def test_the_pause_is_the_time_that_a_round_loses_per_start(tables: Path) -> None:
    # Ten rounds take 1,230 s instead of 1,200 s, and a fifth of the jobs of a round start.
    assert cluster.pause_s(tables) == pytest.approx(3 / 0.2)


def test_missing_tables_are_reported(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(InputError, match="the published cluster needs its tables"):
            cluster.jobs(folder)


@needs_tables
def test_jobs_alone_take_the_published_time() -> None:
    # The published time has no change of batch and no rounding to whole epochs.
    measured = measured_folder()
    published = {row["job"]: float(row["alone_without_adaptation_s"]) for row in cluster.read(measured, "jobs")}
    static = [row["job"] for row in cluster.read(measured, "jobs") if row["adaptation"] == "static"]
    jobs = {job.name: job for job in cluster.jobs(measured)}
    assert len(jobs) == 120
    assert sum(bool(job.phases) for job in jobs.values()) > 60
    for name in static:
        assert 1 - 1e-3 <= jobs[name].requested_s / published[name] < 1.2


@needs_tables
def test_simulated_times_are_near_those_of_the_cluster() -> None:
    rows = {row["policy"]: row for row in cluster.rows(measured_folder())}
    assert abs(rows["allox"]["completion_error"]) < 0.08
    assert abs(rows["themis"]["completion_error"]) < 0.08
    # The jobs of this run took 9 % more GPU time than their table says.
    assert abs(rows["gavel"]["completion_error"]) < 0.10
    assert rows["gavel"]["gpu_time"] == pytest.approx(1.09, abs=0.01)
    for row in rows.values():
        assert abs(row["makespan_error"]) < 0.08
        assert row["pause_s"] == pytest.approx(18.8, abs=0.1)


@needs_tables
def test_every_job_runs_at_its_size_and_once() -> None:
    jobs = cluster.jobs(measured_folder())
    schedule = cluster.simulated("gavel", jobs, 19.0)
    for at in np.linspace(0, schedule.ended_s.max(), 200):
        assert sum(stay.size.workers for stay in schedule.stays if stay.start_s <= at < stay.end_s) <= 32
    assert {(stay.index, stay.size.workers) for stay in schedule.stays} == {
        (i, job.requested.workers) for i, job in enumerate(jobs)
    }
