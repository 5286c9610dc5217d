"""`chronograd label`: a trained network writes a file of labels for a student's job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.job import Data
from chronograd.rundir import RunDir
from chronograd.train import checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.labelling import data_of, label
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

NETWORKS = Path(__file__).parent.parent / "train"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned a part of digits; tests only read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NETWORKS))
        return train(tmp_path_factory.mktemp("label") / "teacher")


@pytest.fixture
def teacher(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(NETWORKS))
    return trained


def train(out: Path) -> Path:
    training = {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 20, "epochs": 5}
    data = {"name": "digits", "samples": 300}
    job = jobs.from_dict({"network": {"name": "tiny_networks:plain"}, "data": data, "training": training})
    place = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
    step = TrainingStep(job, datasets.load(job.data), place)
    for index in range(step.num_steps):
        step.run(index)
    run = RunDir.create(job, out=out)
    checkpoint.save(run.checkpoints, step, Progress(step=step.num_steps, epoch=5))
    return run.path


def test_best_images_of_each_class_are_written(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "selected.npz"
    fields = ["data.skip=300", "data.samples=1000"]
    assert (
        main(
            [
                "--trust",
                "tiny_networks",
                "label",
                str(teacher),
                *fields,
                "-P",
                "3",
                "-K",
                "20",
                "--out",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    student = datasets.load(Data(name="digits", labels=str(out)))
    counts = np.bincount(student.train_labels.numpy(), minlength=10).tolist()
    assert printed["per_class"] == counts == [20] * 10
    assert (printed["kept"], printed["of"], printed["trained_on"]) == (200, 1000, 0)
    times = np.unique(student.train_samples_N, return_counts=True)[1]
    assert (printed["images"], printed["for_two_or_more"]) == (len(times), (times > 1).sum())
    truth = datasets.load(Data(name="digits")).train_labels.numpy()
    assert (truth[student.train_samples_N] == student.train_labels.numpy()).mean() > 0.9


def test_python_gets_the_same_answer(teacher: Path, tmp_path: Path) -> None:
    run, out = RunDir.open(teacher), tmp_path / "selected.npz"
    shown = label(run, data_of(run, ["data.skip=200", "data.samples=400"]), out, per_class=20)
    per_class = shown.data["per_class"]
    assert shown.sections[0].takeaway.startswith(f"{sum(per_class)} labels on {sum(per_class)} of 400 images, ")
    assert f"{min(per_class)} to {max(per_class)} per class" in shown.sections[0].takeaway
    assert list(shown.notes) == ["100 of the 400 images are training images of teacher"]
    assert out.exists()


def test_soft_labels_have_each_image_once(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "soft.npz"
    fields = ["data.skip=300", "data.samples=500"]
    assert (
        main(
            [
                "--trust",
                "tiny_networks",
                "label",
                str(teacher),
                *fields,
                "-P",
                "2",
                "-K",
                "400",
                "--soft",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    student = datasets.load(Data(name="digits", labels=str(out)))
    assert student.train_labels.shape == (500, 10)
    assert len(np.unique(student.train_samples_N)) == 500
    torch.testing.assert_close(student.train_labels.sum(1), torch.ones(500))


def test_answer_counts_the_teachers_training_images(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "selected.npz")
    assert (
        main(["--trust", "tiny_networks", "label", str(teacher), "data.skip=200", "data.samples=400", "--out", out])
        == 0
    )
    assert "100 of the 400 images are training images of teacher" in capsys.readouterr().out
    assert main(["--trust", "tiny_networks", "label", str(teacher), "data.samples=null", "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained_on"] == 300


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["training.epochs=3"], "data.skip=1000"),
        (["data.skip=2000"], "1,437"),
        (["-P", "11"], "10 classes"),
        (["-K", "0"], "0"),
        (["data.image_size=5"], "data.image_size=8"),
        (["--out", "nowhere/selected.npz"], "folder nowhere does not exist"),
    ],
)
def test_invalid_options(
    teacher: Path, tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "selected.npz"
    assert main(["--trust", "tiny_networks", "label", str(teacher), "--out", str(out), *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert not out.exists()


def test_run_without_checkpoint_is_reported(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = RunDir.open(teacher).job()
    bare = RunDir.create(job, out=tmp_path / "bare")
    assert main(["--trust", "tiny_networks", "label", str(bare.path), "--out", str(tmp_path / "selected.npz")]) == 2
    assert "checkpoint" in capsys.readouterr().err
