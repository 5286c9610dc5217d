"""A trained run for tests of export and serving."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.rundir import RunDir
from chronograd.train import checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

NETWORK = f"{Path(__file__).parent / 'exported_networks.py'}:Small"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a small network with batch norm that has learned digits; tests only read it."""
    training = {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 32, "epochs": 4}
    job = jobs.from_dict({"network": {"name": NETWORK}, "data": {"name": "digits"}, "training": training})
    place = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
    step = TrainingStep(job, datasets.load(job.data), place)
    for index in range(step.num_steps):
        step.run(index)
    run = RunDir.create(job, out=tmp_path_factory.mktemp("export") / "runs" / "mine")
    checkpoint.save(run.checkpoints, step, Progress(step=step.num_steps, epoch=4))
    return run.path


@pytest.fixture
def here(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the run as `mine`; the user trusts the code of its network."""
    shutil.copytree(trained.parent, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path
