"""Jobs from the check to the record, with real processes: failures, and resuming after kill -9."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from chronograd import job as jobs
from chronograd.errors import InputError, JobError, RunError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.launch.repeats import record_of_rounds
from chronograd.rundir import Line, RunDir
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, list_checkpoints
from chronograd.train.watchdog import note_path, read_note

NETWORKS = Path(__file__).parent.parent / "train"
PATIENCE_S = 600.0  # only for events that never happen; tests end as soon as the event occurs


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))


def make_job(*overrides: str) -> Job:
    """Return a job of three epochs with 8 steps, batch norm and dropout."""
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:random"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 131},
            "training": {"recipe": "sgd-one-cycle", "batch": 16, "epochs": 3},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    return jobs.changed(job, list(overrides))


def final_bytes(run: RunDir) -> list[bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    assert newest.name == "step-00000024"
    return [(newest / name).read_bytes() for name in (MODEL, OPTIMIZER)]


def wait_for_step(process: subprocess.Popen[bytes], run_path: Path, step: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not any(line.step >= step for line in RunDir(run_path).read_steps().steps):
        assert process.poll() is None, f"it ended, with exit status {process.returncode}"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def wait_for_end(processes: Sequence[psutil.Process]) -> None:
    """Wait for processes without a parent, which may remain as zombies."""
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, "waited too long"
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.real_exec
def test_resume_after_kill_9_is_bit_identical(tmp_path: Path) -> None:
    """Kill the command line and its rank, held in the middle of the second epoch, and resume."""
    hold = tmp_path / "hold"
    job = make_job(f"network.options.hold={hold}")
    whole = launch.train(job, out=tmp_path / "whole")
    (tmp_path / "job.yaml").write_text(jobs.to_yaml(job))
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "chronograd", "train", str(tmp_path / "job.yaml"), "--out", str(out)]
    hold.touch()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(process, out, 11)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    wait_for_end(ranks)
    hold.unlink()
    killed = RunDir.open(out)
    assert not killed.is_finished
    with pytest.raises(JobError, match=r"these fields differ: training\.learning_rate\n"):
        launch.resume(killed, jobs.changed(job, ["training.learning_rate=0.5"]))
    resumed = launch.resume(killed, job)
    assert final_bytes(resumed) == final_bytes(whole)
    record = resumed.record()
    assert record.curves["loss"].columns == whole.record().curves["loss"].columns
    log = resumed.read_steps()
    assert (log.attempts, [line.step for line in log.steps]) == (2, list(range(1, 25)))
    assert log.redone == 3
    assert any(f"{log.redone} steps were repeated" in note for note in record.notes)
    before = (out / "record.json").read_bytes()
    assert launch.resume(resumed).path == out  # a finished run is left unchanged
    assert (out / "record.json").read_bytes() == before


def test_resume_after_a_killed_rank_is_bit_identical(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    job = make_job("backend=ddp", "cluster.count=2", f"network.options.hold={hold}")
    whole = launch.train(job, out=tmp_path / "whole", launcher="local")
    out = tmp_path / "killed"
    hold.touch()

    def kill_rank_1(line: Line) -> None:
        if line.step == 11:
            note = read_note(note_path(RunDir(out), 1))
            assert note is not None
            os.kill(note.process, signal.SIGKILL)

    with pytest.raises(RunError, match=r"SIGKILL|Connection|reset"):
        launch.train(job, out=out, launcher="local", on_line=kill_rank_1)
    hold.unlink()
    resumed = launch.resume(RunDir.open(out), launcher="local")
    assert final_bytes(resumed) == final_bytes(whole)


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_local_ranks_listen_on_loopback_only(tmp_path: Path, launcher: str) -> None:
    """Check the store, gloo's pairs and torchrun's rendezvous while both ranks are held in their third step."""
    hold = tmp_path / "hold"
    options = f"network.options={{hold: {hold}, hold_at: 3}}"
    hold.touch()
    addresses: list[str] = []

    def look(line: Line) -> None:
        if line.step == 2:
            for process in psutil.Process().children(recursive=True):
                listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
                addresses.extend(c.laddr.ip for c in listening)
            hold.unlink()

    job = make_job("backend=ddp", "cluster.count=2", "training.epochs=1", options)
    launch.train(job, out=tmp_path / "run", launcher=launcher, on_line=look)
    assert len(addresses) >= 2
    assert set(addresses) == {"127.0.0.1"}


def _kill_child_with(variable: str) -> None:
    """Send SIGKILL to the child of this process that has an environment variable."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if variable in (f"{k}={v}" for k, v in child.environ().items()):
                child.kill()


def test_target_accuracy_ends_a_run(tmp_path: Path) -> None:
    job = make_job("network.options={}", "training.target_accuracy=0.01", "training.epochs=9")
    events: list[dict[str, object]] = []
    record = launch.train(job, parent=tmp_path, on_line=events.append).record()
    assert record.value("epochs") == 1
    assert record.value("time_to_accuracy_s") == record.value("training_time_s")
    assert [e.step for e in events if e.event == "epoch"] == [8]


def test_first_failed_rank_is_reported(tmp_path: Path) -> None:
    job = make_job("network.name=tiny_networks:raising", "network.options={}", "backend=ddp", "cluster.count=2")
    with pytest.raises(RunError, match="rank 1 failed with ValueError: no good on rank 1") as caught:
        launch.train(job, parent=tmp_path, launcher="local")
    assert re.fullmatch(r"remove the cause, then go on with `chronograd train --resume \S+`", caught.value.hint)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["network.name=nosuch"], "unknown network"),
        (["network.options={}", "data.shape=[1,3,3]"], "cannot run on the 1x3x3 images"),
        (["network.options={num_classes: 3}"], "has 10 classes"),
        (["training.batch=200"], "so no batch is full"),
        (["cluster.count=2"], "which has one rank"),
        (["cluster.device=k80"], "cluster.device is k80"),
        (["training.precision=fp16"], "which needs an NVIDIA GPU"),
        (["data.name=nosuch"], "unknown data set"),
        (["network.weights=none"], "write null to train from random values"),
        (["network.weights=nowhere.pth"], "there are no weights at nowhere.pth"),
        (["network.weights=/"], "/ has no checkpoint"),
    ],
)
def test_invalid_job_leaves_no_files(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch.train(make_job(*overrides), parent=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_rounds_form_one_consistent_record() -> None:
    inputs = Path(__file__).parent.parent / "golden" / "inputs"
    first = RunDir.open(inputs / "measured-1").record()
    step = first["step_time_s"]
    assert step.value is not None
    rounds = [
        first.model_copy(
            update={"quantities": first.quantities | {"step_time_s": step.model_copy(update={"value": v})}}
        )
        for v in (3 * step.value, step.value, 2 * step.value)
    ]
    whole = record_of_rounds(rounds)
    assert whole.value("step_time_s") == 2 * step.value
    assert whole["step_time_s"].n == 3 * (step.n or 0)
    assert whole["step_time_s"].high == max(3 * step.value, step.high or 0)
    assert whole["forward_s"].value == first["forward_s"].value
    assert whole["mfu"].value == first["mfu"].value
