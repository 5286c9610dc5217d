"""A head trained on other classes is replaced, even if their number is the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.errors import InputError, JobError
from chronograd.job import Job
from chronograd.launch import jobs as runs
from chronograd.models.registry import build
from chronograd.models.weights import load_pretrained
from chronograd.train import checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.heads import load_start
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
# Ten classes each, none of the same name.
OTHERS = "data={name: synthetic, shape: [1, 8, 8], classes: 10, samples: 64}"
CHANCE = math.log(10)


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def digits_job(*overrides: str) -> Job:
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "digits", "samples": 500, "test_samples": 100},
            "training": {"batch": 50, "epochs": 6, "learning_rate": 0.1},
        }
    )
    return jobs.changed(job, list(overrides))


def start(job: Job) -> tuple[float, str]:
    """Return the loss of the first step and the loaded weights' description."""
    step = TrainingStep(job, datasets.load(job.data), PLACE)
    step.run(0)
    return step.loss.item(), step.loaded


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Save weights trained on digits, with a confident head."""
    job = digits_job()
    step = TrainingStep(job, datasets.load(job.data), PLACE)
    for index in range(step.num_steps):
        step.run(index)
    state = step.network.state_dict()
    state["4.weight"] = 3 * state["4.weight"]
    path = tmp_path / "digits.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return str(path)


def test_head_of_other_classes_is_replaced(trained: str) -> None:
    job = digits_job(f"network.weights={trained}", "data.labels=null", OTHERS)
    kept, source = start(jobs.changed(job, ["network.head=kept"]))
    assert kept > 1.5 * CHANCE
    assert source.endswith("; head kept (network.head=kept)")
    loss, said = start(job)
    assert loss == pytest.approx(CHANCE, abs=0.3)
    assert "; new: 4.weight, 4.bias (the head of these weights has a loss of " in said
    assert said.startswith("2 tensors of weights from ")


def test_head_of_the_same_classes_is_reused(trained: str) -> None:
    job = digits_job(f"network.weights={trained}")
    loss, source = start(job)
    assert loss < 0.5 * CHANCE
    assert "; head kept (the head of these weights has a loss of " in source
    loss, source = start(jobs.changed(job, ["network.head=new"]))
    assert loss == pytest.approx(CHANCE, abs=0.3)
    assert source.endswith("; new: 4.weight, 4.bias (network.head=new)")


def image_folder(folder: Path, names: tuple[str, ...]) -> str:
    """Write a folder of grey images, three per class and split."""
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for k, name in enumerate(names):
            (folder / split / name).mkdir(parents=True)
            for i in range(3):
                image.new("RGB", (8, 8), (20 * k, 30 * i, 90)).save(folder / split / name / f"{i}.png")
    return f"folder:{folder}"


def test_run_states_its_classes(tmp_path: Path) -> None:
    data = {
        name: image_folder(tmp_path / name, names)
        for name, names in {"a": ("ant", "bee"), "same": ("ant", "bee"), "other": ("cat", "dog")}.items()
    }
    size = "data.image_size=8"
    job = digits_job("network.options={in_channels: 3}", f"data={{name: '{data['a']}', image_size: 8}}")
    job = jobs.changed(job, ["training.batch=2", "training.epochs=1", size])
    run = runs.create(job, out=tmp_path / "run")
    step = TrainingStep(job, datasets.load(job.data), PLACE)
    run.checkpoints.mkdir(exist_ok=True)
    checkpoint.save(run.checkpoints, step, Progress(step=1))
    again = jobs.changed(job, [f"network.weights={run.path}"])
    for name, wanted in {
        "same": "; head kept (trained on the same 2 classes)",
        "other": "; new: 4.weight, 4.bias (trained on other classes: ant, bee; now cat, dog)",
    }.items():
        on = jobs.changed(again, [f"data.name={data[name]}"])
        dataset = datasets.load(on.data)
        network = build(on.network.name, on.network.options, input_shape=(3, 8, 8), num_classes=2)
        assert load_start(network, on, dataset).endswith(wanted)


def test_head_option(tmp_path: Path) -> None:
    path = str(tmp_path / "ten.safetensors")
    save_file(build("resnet20").state_dict(), path)
    assert load_pretrained(build("resnet20"), path, "resnet20", "new").fresh == ("linear.weight", "linear.bias")
    assert load_pretrained(build("resnet20"), path, "resnet20", "kept").fresh == ()
    with pytest.raises(InputError, match=r"the head of .* does not fit: linear.weight"):
        load_pretrained(build("resnet20", num_classes=7), path, "resnet20", "kept")
    with pytest.raises(JobError, match="head is new without weights"):
        digits_job("network.head=new")
