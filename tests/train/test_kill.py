"""50 random kills: a killed run ends with the same weights as an uninterrupted one."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from tests.fork_server import Server

from chronograd import job as jobs
from chronograd.backends.plan import torch_worker
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.train.checkpoint_folder import list_checkpoints

NETWORKS = Path(__file__).parent
EPOCHS, STEPS_PER_EPOCH = 4, 8
KILLS_PER_JOB = 10
# Batch norm and dropout in the network, and one of each other component with a state.
VARIANTS = {
    "momentum, augmentation": [
        "training.recipe=sgd-one-cycle",
        "training.augmentation={crop: 1, flip: true, cutout: 4}",
    ],
    "adamw, running mean, parts": ["training.recipe=adamw", "training.ema_decay=0.9", "training.accumulation=2"],
    "adadelta, copies, dropped pixels": [
        "training.recipe=adadelta",
        "training.augmentation={copies: 2, pixel_dropout: 0.1}",
    ],
    "bf16, resampled classes": [
        *("training.precision=bf16", "training.recipe=cifar-resnet"),
        *("data.resampling=uniform", "data.label_noise=0.3"),
    ],
    "groups, rare checkpoints": [
        "training.parameter_groups=[{match: '1.*', learning_rate_factor: 0}, {match: '*.bias', weight_decay: 0}]",
        *("training.checkpoint_every=2", "training.evaluate_every=3"),
    ],
}


def make_job(overrides: list[str], hold: Path) -> Job:
    """Return a job that waits at its last step while the file `hold` exists, so that it can be killed."""
    parts = 2 if "training.accumulation=2" in overrides else 1
    options = {"sleep_s": 0.004, "hold": str(hold), "hold_at": EPOCHS * STEPS_PER_EPOCH * parts}
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:random", "options": options},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 131},
            "training": {"batch": 16, "epochs": EPOCHS},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    return jobs.changed(job, overrides)


def start(run: RunDir, server: Server) -> subprocess.Popen[bytes]:
    """Start the worker in a new process, like a launcher."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    output = run.output_path(0)
    with output.open("ab") as stream:
        return server.popen(
            torch_worker(run.path, ["train"]),
            env={**os.environ, **place},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def trained(path: Path, job: Job, server: Server) -> RunDir:
    run = RunDir.create(job, out=path)
    assert start(run, server).wait() == 0, run.first_error()
    return run


def final_bytes(run: RunDir) -> dict[str, bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    assert newest.name == f"step-{EPOCHS * STEPS_PER_EPOCH:08d}"
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_kill_and_resume(tmp_path: Path, variant: str, fork_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a run ten times per job, at random moments in steps, evaluations and checkpoints. Weights, running means and
    optimizer states equal those of the uninterrupted run.
    """
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    hold = tmp_path / "hold"
    job = make_job(VARIANTS[variant], hold)
    whole = trained(tmp_path / "whole", job, fork_server)
    expected = final_bytes(whole)
    epoch_s = whole.record().value("epoch_time_s")
    chance = random.Random(variant)
    resumed_at = []
    for number in range(KILLS_PER_JOB):
        run = RunDir.create(job, out=tmp_path / f"killed-{number}")
        hold.touch()
        process = start(run, fork_server)
        last = chance.randrange(EPOCHS * STEPS_PER_EPOCH - STEPS_PER_EPOCH)
        deadline = time.monotonic() + 600
        while last and not any(line.step >= last for line in run.read_steps().steps):
            assert time.monotonic() < deadline, "waited too long"
        time.sleep(chance.uniform(0, epoch_s))
        process.kill()
        assert process.wait() == -9
        hold.unlink()
        assert not run.is_finished
        done = [int(path.name.removeprefix("step-")) for path in list_checkpoints(run.checkpoints)]
        resumed_at.append(max(done, default=0))
        assert start(run, fork_server).wait() == 0, run.first_error()
        assert final_bytes(run) == expected
        curves = run.record().curves
        assert curves["loss"].columns == whole.record().curves["loss"].columns
        accuracies = (c["training"].columns["test_accuracy"] for c in (curves, whole.record().curves))
        assert next(accuracies) == next(accuracies)
    assert len(set(resumed_at)) > 1, "every kill came before the first checkpoint"
