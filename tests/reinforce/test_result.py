"""The record of an agent from its steps file, computed from made-up lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.reinforce.environments import Space
from chronograd.reinforce.result import training_record
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch, MemoryLine, StepLine

EXAMPLE = Path(__file__).parents[2] / "examples" / "cartpole.yaml"


def test_interrupted_epoch_counts_completely(tmp_path: Path) -> None:
    """Run two epochs of 10 s; the second stops after 7 s and takes 3 s after the restart."""
    job = jobs.load(EXAMPLE, ["training.epochs=2", "reinforcement.target_return=null"])
    run = RunDir.create(job, out=tmp_path / "run")
    for starts in ([(10, 1, 10.0, 10.0), (17, None, 17.0, None)], [(20, 2, 20.0, 3.0)]):
        with run.step_writer(0) as lines:
            for step, epoch, seconds, epoch_s in starts:
                lines.write(StepLine(step=step, seconds=seconds, step_time_s=1.0, samples=1, num_steps=1))
                if epoch is not None and epoch_s is not None:
                    lines.write(Epoch(step=step, epoch=epoch, seconds=seconds, epoch_time_s=epoch_s, train_loss=None,
                                      test_loss=None, test_accuracy=None, mean_return=1.0, episodes=1))  # fmt: skip
            lines.write(MemoryLine(step=step, memory_peak_bytes=1, source="here"))
    record = training_record(run, job, Space((4,), np.dtype("float32"), 2), "done")
    assert record.provenance.attempts == 2
    assert record.value("training_time_s") == 20.0
    assert (record.value("epoch_time_s"), record["epoch_time_s"].std) == (pytest.approx(10.0), pytest.approx(0.0))
