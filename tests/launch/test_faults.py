"""Killed or hung ranks: they are reported, restarted, and counted. Uses real processes."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.backends import ddp
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.launch import local
from chronograd.launch.processes import run_together
from chronograd.predict.timeline import timeline_of_run
from chronograd.rundir import RunDir
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, list_checkpoints

NETWORKS = Path(__file__).parent.parent / "train"
STEPS = 24
TIMEOUT = "cluster.timeout_s=2"  # for tests that wait for it


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))


def make_job(folder: Path, *overrides: str, **options: Any) -> Job:
    """Return a job of three epochs with 8 steps on two ranks."""
    marks = folder / "marks"
    marks.mkdir()
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:failing", "options": {"marks": str(marks), **options}},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 131},
            "training": {"recipe": "sgd-one-cycle", "batch": 16, "epochs": 3},
            "cluster": {"device": "cpu", "count": 2, "threads": 1, "timeout_s": 6},
            "backend": "ddp",
        }
    )
    return jobs.changed(job, list(overrides))


def final_bytes(run: RunDir) -> list[bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    assert newest.name == f"step-{STEPS:08d}"
    return [(newest / name).read_bytes() for name in (MODEL, OPTIMIZER)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
        patch.syspath_prepend(str(NETWORKS))
        return launch.train(make_job(folder, times=0), out=folder / "run", launcher="local")


def test_two_kills_do_not_affect_the_results(tmp_path: Path, undisturbed: RunDir) -> None:
    """Kill rank 1 in its tenth step of two starts. The third, from step 16, has fewer than ten left."""
    began = time.time()
    job = make_job(tmp_path, "cluster.max_restarts=2", times=2)
    run = launch.train(job, out=tmp_path / "run", launcher="local")
    took_s = time.time() - began
    assert final_bytes(run) == final_bytes(undisturbed)
    record, whole = run.record(), undisturbed.record()
    for rank in (0, 1):
        log = run.read_steps(rank)
        assert [line.step for line in log.steps] == list(range(1, STEPS + 1))
        assert log.attempts == 3
    # Step 9 in the first start, 17 in the second; rank 0 may have written one step more than rank 1.
    assert record.value("redone_steps") in (2, 3, 4)
    assert record.value("redone_s") == pytest.approx(sum(line.step_time_s for line in run.read_steps(0).discarded))
    assert record.value("lost_s") > record.value("redone_s")
    assert record.value("training_time_s") + record.value("lost_s") < record.value("wall_time_s") < took_s
    assert any(note.startswith("started 3 times") for note in record.notes)
    kept_s = sum(line.step_time_s for line in run.read_steps(0).steps)
    assert record.value("training_time_s") == pytest.approx(kept_s, rel=0.05)
    assert record.value("throughput_samples_per_s") == pytest.approx(STEPS * 16 / record.value("training_time_s"))
    assert record.curves["loss"].columns == whole.curves["loss"].columns
    for name in ("epoch", "step", "train_loss", "test_accuracy"):
        assert record.curves["training"].columns[name] == whole.curves["training"].columns[name]
    slices = [event["name"] for event in timeline_of_run(run)["traceEvents"] if event.get("cat") == "step"]
    assert slices == [f"step {step}" for _ in (0, 1) for step in range(1, STEPS + 1)]
    assert record["step_time_s"].n == (8 - 5) + (8 - 5) + (8 - 5)
    assert "redone_steps" not in whole.quantities
    assert not list(run.path.glob("where.*"))


def test_killed_rank_is_reported_without_restarts_left(tmp_path: Path) -> None:
    job = make_job(tmp_path, "cluster.max_restarts=1", times=2)
    with pytest.raises(RunError, match=r"after 1 restart from the newest checkpoint: rank 1 was killed by SIGKILL"):
        launch.train(job, out=tmp_path / "run", launcher="local")


@pytest.mark.parametrize(
    ("how", "rank", "message"),
    [
        ("stop", 1, r"the all-reduce of gradients of step 10 within 2 s; .*process \d+ on [^,]*, which is stopped$"),
        ("input", 1, r"of step 10 within 2 s; it has been in input of step 10 for \d+ s, process \d+ on [^,]*$"),
        ("evaluation", 1, r"the broadcast \(evaluation\) of step 16 within 2 s; it has been in evaluation of step 16"),
        ("checkpoint", 0, r"of step 17 within 2 s; it has been in checkpoint of step 16"),
    ],
)
def test_hung_rank_is_reported_with_the_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, rank: int, message: str
) -> None:
    monkeypatch.setattr("chronograd.launch.processes.GRACE_S", 1.0)  # a stopped process does not react to SIGTERM
    with pytest.raises(RunError) as raised:
        launch.train(make_job(tmp_path, TIMEOUT, how=how, rank=rank), out=tmp_path / "run", launcher="local")
    first = raised.value.message.splitlines()[0].removesuffix("; the end of its output:")
    assert first.startswith(f"rank {rank} failed with a time-out: it did not come to the ")
    assert re.search(message, first), first
    assert "--resume" in raised.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_hung_rank_is_restarted(tmp_path: Path, launcher: str, undisturbed: RunDir) -> None:
    job = make_job(tmp_path, TIMEOUT, "cluster.max_restarts=1", how="input")
    run = launch.train(job, out=tmp_path / "run", launcher=launcher)
    assert final_bytes(run) == final_bytes(undisturbed)
    record = run.record()
    assert record.provenance.attempts == 2
    assert record.value("lost_s") > 2
    assert record.value("training_time_s") < 2


def test_rank_missing_at_rendezvous_is_reported(tmp_path: Path) -> None:
    run = launch.create(make_job(tmp_path, TIMEOUT), tmp_path / "run")
    sleeping = (sys.executable, "-c", "import time; time.sleep(100)")
    processes = local.processes(ddp.plan(run.job(), run.path, ["train"]), run)
    with pytest.raises(RunError, match="rank 0 ended with exit status 1"):
        run_together([processes[0], dataclasses.replace(processes[1], command=sleeping)])
    rank, text = run.first_error() or (0, "")
    assert rank == 1
    assert text.startswith("a time-out: it did not come to the rendezvous within 2 s; it has not started")
