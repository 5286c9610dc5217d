"""Training records from steps files, computed from made-up lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.data.datasets import card
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, MemoryLine, StepLine
from chronograd.train.result import training_record


def make_job(*overrides: str) -> Job:
    job = jobs.from_dict(
        {
            "network": {"name": "resnet20"},
            "data": {"name": "digits"},
            "training": {"batch": 4, "epochs": 2, "target_accuracy": 0.9},
            "cluster": {"count": 2},
            "backend": "ddp",
        }
    )
    return jobs.changed(job, list(overrides))


def write_run(folder: Path, job: Job) -> RunDir:
    """Write a run of two ranks with shares of 1 and 3 samples: two epochs of ten steps of 0.1 and 0.2 s."""
    run = RunDir.create(job, {"versions": {"torch": "2"}}, out=folder)
    for rank, (samples, loss) in enumerate([(1, 2.0), (3, 4.0)]):
        with run.step_writer(rank) as lines:
            seconds = 0.0
            for step in range(1, 21):
                step_time_s = 0.1 if step <= 10 else 0.2
                seconds += step_time_s
                lines.write(StepLine(step=step, seconds=seconds, step_time_s=step_time_s, loss=loss, samples=samples))
                if rank == 0 and step % 10 == 0:
                    lines.write(Epoch(step=step, epoch=step // 10, seconds=seconds, epoch_time_s=10 * step_time_s,
                        train_loss=3.5, test_loss=1.0, test_accuracy=0.8 if step == 10 else 0.95))  # fmt: skip
            lines.write(MemoryLine(step=20, memory_peak_bytes=100 * (rank + 1), source="here"))
    return run


def test_clock_set_back_between_starts_is_reported(tmp_path: Path) -> None:
    """Two starts take 60 s each. The second began 20 minutes later, by a clock that is a day late."""
    job = make_job("cluster.count=1", "backend=single", "training.target_accuracy=null")
    run = RunDir.create(job, out=tmp_path / "run")
    epoch = {"event": "epoch", "epoch_time_s": 1.0, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5}
    lines = []
    for attempt, start in ((1, 200_000), (2, 200_000 + 1200 - 86_400)):
        lines.append({"attempt": attempt, "time": start, "event": "attempt", "step": 0})
        for i in range(1, 11):
            step = {"attempt": attempt, "time": start + 6 * i, "step": 10 * attempt - 10 + i}
            lines.append({**step, "samples": 4, "loss": 1.0, "step_time_s": 6.0})
        lines.append({**step, **epoch, "epoch": attempt, "seconds": 60.0 * attempt})
        lines.append({**step, "event": "memory", "memory_peak_bytes": 100, "source": "here"})
    run.steps_path().write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = training_record(run, job, card(job.data), "done")
    assert record.value("wall_time_s") == 60 + 60
    assert record.value("lost_s") == 0
    (note,) = [note for note in record.notes if "clock" in note]
    # The first start ran for 60 s of the 20 minutes; the clock does not show the idle rest.
    assert (
        note
        == "the clock was set back by 23 h 41 min or more between two starts: the pause between them counts as zero"
    )


def test_quantities_follow_from_the_lines(tmp_path: Path) -> None:
    job = make_job()
    record = training_record(write_run(tmp_path / "run", job), job, card(job.data), "done")
    assert record.value("training_time_s") == pytest.approx(3.0)
    assert record.value("epoch_time_s") == pytest.approx(1.5)
    assert record.value("time_to_accuracy_s") == pytest.approx(3.0)
    assert record.value("test_accuracy") == 0.95
    assert record.value("throughput_samples_per_s") == pytest.approx(20 * 4 / 3.0)
    assert record.value("memory_peak_bytes") == 200
    # Without the first five steps: five of 0.1 s and ten of 0.2 s.
    assert record.value("step_time_s") == pytest.approx(2.5 / 15)
    assert record["step_time_s"].n == 15


def test_loss_is_the_mean_over_the_global_batch(tmp_path: Path) -> None:
    job = make_job()
    curve = training_record(write_run(tmp_path / "run", job), job, card(job.data), "done").curves["loss"]
    assert curve.columns["loss"] == pytest.approx([(1 * 2.0 + 3 * 4.0) / 4] * 20)
    assert curve.columns["step"] == list(range(1, 21))


def test_missed_target_reports_the_best(tmp_path: Path) -> None:
    for target, reason in (("0.96", "the best was 0.9500"), ("null", "has no training.target_accuracy")):
        job = make_job(f"training.target_accuracy={target}")
        run = write_run(tmp_path / f"run-{target}", job)
        quantity = training_record(run, job, card(job.data), "done")["time_to_accuracy_s"]
        assert quantity.value is None
        assert reason in quantity.reason
