"""One training step: precision, layout, auxiliary losses, initial weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.errors import FileFormatError
from chronograd.train.evaluation import evaluate
from chronograd.train.place import Place
from chronograd.train.step import AUXILIARY_WEIGHT, TrainingStep

PLACE = Place(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"), threads=1)


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def make_step(*overrides: str, weights: Path | None = None) -> tuple[TrainingStep, datasets.Dataset]:
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:plain"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
            "training": {"batch": 16, "learning_rate": 0.01},
        }
    )
    job = jobs.changed(job, list(overrides))
    dataset = datasets.load(job.data)
    return TrainingStep(job, dataset, PLACE, weights), dataset


@pytest.mark.parametrize(
    "override", ["training.precision=bf16", "training.channels_last=true", "training.recipe=adamw"]
)
def test_variants_stay_near_the_plain_first_loss(override: str) -> None:
    plain, varied = make_step()[0], make_step(override)[0]
    for step in (plain, varied):
        step.run(0)
    assert varied.loss.item() == pytest.approx(plain.loss.item(), rel=2e-2)


def test_sgd_does_what_its_formula_says() -> None:
    """One step of plain SGD: weights fall by learning rate times the gradient of the mean cross-entropy."""
    step, _ = make_step("training.recipe=sgd", "training.learning_rate=0.5")
    before = [p.detach().clone() for p in step.network.parameters()]
    step.input(0)
    step.transfer()
    loss = functional.cross_entropy(step.network(step._images_NCHW), step._targets_N)
    gradients = torch.autograd.grad(loss, list(step.network.parameters()))
    step.run(0)
    for parameter, old, gradient in zip(step.network.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.5 * gradient)


def test_auxiliary_classifiers_count_by_their_weight() -> None:
    step, _ = make_step("training.label_smoothing=0.1")
    step.input(0)
    logits = torch.randn(16, 10)
    expected = functional.cross_entropy(logits, step._targets_N, label_smoothing=0.1)
    torch.testing.assert_close(step._loss_of((logits, logits, logits)), expected * (1 + 2 * AUXILIARY_WEIGHT))


def test_evaluation_is_that_of_the_whole_split_at_once() -> None:
    step, dataset = make_step("data.samples=1200")
    loss, accuracy = evaluate(step, dataset, PLACE)
    logits = step.network(dataset.test_images_NCHW)
    assert loss == pytest.approx(functional.cross_entropy(logits, dataset.test_labels_N).item(), rel=1e-5)
    assert accuracy == (logits.argmax(1) == dataset.test_labels_N).double().mean().item()
    assert step.network.training
    assert loss == pytest.approx(math.log(10), abs=0.3)


def test_initial_weights_come_from_a_file(tmp_path: Path) -> None:
    given = {name: torch.zeros_like(t) for name, t in make_step()[0].network.state_dict().items()}
    save_file(given, tmp_path / "zero.safetensors")
    step, _ = make_step(weights=tmp_path / "zero.safetensors")
    assert all(not p.any() for p in step.network.parameters())
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    for name, message in (("other", "not those of this network"), ("text", "not a readable safetensors file")):
        with pytest.raises(FileFormatError, match=message):
            make_step(weights=tmp_path / f"{name}.safetensors")


def test_the_seed_decides_the_initial_weights() -> None:
    a, b, c = (make_step(f"training.seed={seed}")[0].network for seed in (1, 1, 2))
    weights = [nn.utils.parameters_to_vector(n.parameters()) for n in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
