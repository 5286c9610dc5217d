"""Training in pure bf16, on one process and on two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from chronograd import job as jobs
from chronograd.launch import jobs as launch
from chronograd.rundir.steps import Epoch
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, list_checkpoints


@pytest.mark.parametrize("cluster", [(), ("backend=ddp", "cluster.count=2")])
def test_half_precision_training_learns(tmp_path: Path, cluster: tuple[str, ...]) -> None:
    """Compare with fp32: the loss before the first update agrees within bf16's 8 bits and falls in every epoch."""
    plain = jobs.from_dict(
        {
            "network": {"name": "resnet8"},
            "data": {"name": "synthetic", "shape": [3, 8, 8], "classes": 4, "samples": 64},
            "training": {"recipe": "sgd-momentum", "batch": 16, "epochs": 4, "learning_rate": 0.05},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    pure = jobs.changed(plain, ["training.precision=bf16", "training.param_dtype=bf16", *cluster])
    losses = []
    for name, job in (("fp32", plain), ("pure", pure)):
        run = launch.train(job, out=tmp_path / name)
        losses.append([line.train_loss or 0.0 for line in run.read_steps().of(Epoch)])
    newest = list_checkpoints(run.checkpoints)[-1]
    for file in (MODEL, OPTIMIZER):
        tensors = load_file(newest / file).values()
        assert {t.dtype for t in tensors if t.is_floating_point()} == {torch.bfloat16}
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.1)
    assert losses[1][-1] < losses[1][0]
