"""One training step: precision, layout, auxiliary losses, initial weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.errors import FileFormatError, InputError
from chronograd.train.check import check_network
from chronograd.train.loop import evaluate
from chronograd.train.rank_context import RankContext
from chronograd.train.step import AUXILIARY_WEIGHT, TrainingStep

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)


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
    "override",
    [
        *("training.precision=bf16", "training.channels_last=true", "training.recipe=adamw", "training.accumulation=3"),
        *("training.activation_checkpointing=none", "training.ema_decay=0.9", "training.recipe=adadelta"),
        "training.augmentation.copies=2",
    ],
)
def test_variants_have_a_similar_first_loss(override: str) -> None:
    plain, varied = make_step()[0], make_step(override)[0]
    for step in (plain, varied):
        step.run(0)
    assert varied.loss.item() == pytest.approx(plain.loss.item(), rel=2e-2)


def test_sgd_formula() -> None:
    """A step of plain SGD subtracts learning rate times the gradient of the mean cross-entropy."""
    step, _ = make_step("training.recipe=sgd", "training.learning_rate=0.5")
    before = [p.detach().clone() for p in step.network.parameters()]
    for part, call in step.parts(0):
        if part in ("input", "transfer"):
            call()
    loss = functional.cross_entropy(step.network(step._seen), step._targets)
    gradients = torch.autograd.grad(loss, list(step.network.parameters()))
    step.run(0)
    for parameter, old, gradient in zip(step.network.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.5 * gradient)


def test_auxiliary_classifiers_are_weighted() -> None:
    step, _ = make_step("training.label_smoothing=0.1")
    logits, targets_N = torch.randn(16, 10), torch.arange(16) % 10
    expected = functional.cross_entropy(logits, targets_N, label_smoothing=0.1)
    torch.testing.assert_close(
        step._loss_of((logits, logits, logits), targets_N), expected * (1 + 2 * AUXILIARY_WEIGHT)
    )


def test_evaluation_equals_one_pass_over_the_split() -> None:
    step, dataset = make_step("data.samples=1200")
    loss, accuracy = evaluate(step, dataset, PLACE)
    whole = step.test_input.gather(np.arange(len(dataset.test_labels_N)))
    logits = step.network(step.test_input.prepare(whole))
    assert loss == pytest.approx(functional.cross_entropy(logits, dataset.test_labels_N).item(), rel=1e-5)
    assert accuracy == (logits.argmax(1) == dataset.test_labels_N).double().mean().item()
    assert step.network.training
    assert loss == pytest.approx(math.log(10), abs=0.3)


def test_initial_weights_from_a_file(tmp_path: Path) -> None:
    given = {name: torch.zeros_like(t) for name, t in make_step()[0].network.state_dict().items()}
    save_file(given, tmp_path / "zero.safetensors")
    step, _ = make_step(weights=tmp_path / "zero.safetensors")
    assert all(not p.any() for p in step.network.parameters())
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    for name, message in (("other", "do not belong to this network"), ("text", "not a readable safetensors file")):
        with pytest.raises(FileFormatError, match=message):
            make_step(weights=tmp_path / f"{name}.safetensors")


def test_seed_determines_initial_weights() -> None:
    a, b, c = (make_step(f"training.seed={seed}")[0].network for seed in (1, 1, 2))
    weights = [nn.utils.parameters_to_vector(n.parameters()) for n in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_accumulated_parts_give_the_batch_gradient() -> None:
    """Three unequal parts of 16 samples give the update of the whole batch."""
    whole, parts = make_step()[0], make_step("training.accumulation=3")[0]
    for step in (whole, parts):
        for index in range(3):
            step.run(index)
    assert [name for name, _ in parts.parts(0)].count("backward") == 3
    torch.testing.assert_close(parts.loss, whole.loss.detach())
    for a, b in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_running_mean_formula_and_evaluation() -> None:
    """It equals the weights after the first update; then mean · 0.9 + weights · 0.1."""
    step, dataset = make_step("training.ema_decay=0.9")
    assert step.averaged is not None
    expected = None
    for index in range(3):
        step.run(index)
        weights = nn.utils.parameters_to_vector(step.network.parameters()).detach().clone()
        expected = weights if expected is None else 0.9 * expected + 0.1 * weights
    got = nn.utils.parameters_to_vector(step.averaged.module.parameters())
    torch.testing.assert_close(got, expected)
    _, accuracy = evaluate(step, dataset, PLACE)
    logits = step.averaged.module(step.test_input.prepare(step.test_input.gather(np.arange(16))))
    assert accuracy == (logits.argmax(1) == dataset.test_labels_N).double().mean().item()


def test_copies_enlarge_the_batch_with_the_same_samples() -> None:
    step, _ = make_step("training.augmentation={copies: 4, cutout: 4}")
    step.run(0)
    assert step._seen.shape == (64, 1, 8, 8)
    assert torch.equal(step._targets.view(4, 16), step._targets[:16].expand(4, 16))
    assert step.rank_samples == 16


STATISTICS = {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


@pytest.mark.parametrize(
    ("stated", "is_stored"), [("freeze_norm=null", True), ("freeze_norm=false", False), ("freeze_norm=true", True)]
)
def test_frozen_trunk_does_not_change(stated: str, is_stored: bool) -> None:
    step, dataset = make_step("network.name=tiny_networks:random", "training.trainable=head", f"training.{stated}")
    before = {name: t.clone() for name, t in step.network.state_dict().items()}
    for index in range(3):
        step.run(index)
    evaluate(step, dataset, PLACE)
    step.run(3)
    after = step.network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"6.weight", "6.bias"} | (set() if is_stored else STATISTICS)
    assert step.has_features == is_stored


@pytest.mark.parametrize("stated", ["null", "false", "true"])
def test_frozen_norm_keeps_its_statistics_while_weights_train(stated: str) -> None:
    step, dataset = make_step("network.name=tiny_networks:random", f"training.freeze_norm={stated}")
    before = {name: t.clone() for name, t in step.network.state_dict().items()}
    for index in range(2):
        step.run(index)
    evaluate(step, dataset, PLACE)
    step.run(2)
    same = {name for name, t in step.network.state_dict().items() if torch.equal(before[name], t)}
    assert same == (STATISTICS if stated == "true" else set())
    assert step.network[5].training  # type: ignore[index]  # dropout


def test_frozen_norm_is_an_affine_map_of_its_stored_statistics() -> None:
    """y = γ (x - mean) / √(var + ε) + β, and the gradient of γ is the sum over the batch of ∂loss/∂y times the bracket."""
    step, _ = make_step("network.name=tiny_networks:random", "training.freeze_norm=true")
    norm: nn.BatchNorm2d = step.network[2]  # type: ignore[index, assignment]
    norm.running_mean.fill_(0.25)  # type: ignore[union-attr]
    norm.running_var.fill_(4.0)  # type: ignore[union-attr]
    norm.eps = 0.0
    x = torch.randn(3, 8, 2, 2)
    y = norm(x)
    torch.testing.assert_close(y, (x - 0.25) / 2)
    y.sum().backward()
    torch.testing.assert_close(norm.weight.grad, ((x - 0.25) / 2).sum((0, 2, 3)))


def test_network_without_batch_norm_has_nothing_to_freeze() -> None:
    job = jobs.from_dict({"network": {"name": "tiny_networks:plain"}, "data": {"name": "digits"}})
    job = jobs.changed(job, ["training.freeze_norm=true"])
    with pytest.raises(InputError, match="has no batch norm"):
        check_network(job, datasets.card(job.data))


def test_cached_features_give_the_same_losses() -> None:
    """A head without dropout and augmentation learns the same from cached features as after its trunk."""
    kept, dataset = make_step("training.trainable=head")
    behind, _ = make_step("training.trainable=head", "training.augmentation.crop=1")
    behind.train_input.augmentation = None  # type: ignore[union-attr]  # the trunk runs, on plain images
    assert kept.has_features
    assert not behind.has_features
    for index in range(4):
        kept.run(index)
        behind.run(index)
        torch.testing.assert_close(kept.loss, behind.loss)
    assert evaluate(kept, dataset, PLACE) == pytest.approx(evaluate(behind, dataset, PLACE))


def test_compiled_network_trains_like_eager() -> None:
    eager, compiled = make_step()[0], make_step("training.compile=true")[0]
    for index in range(2):
        eager.run(index)
        compiled.run(index)
    torch.testing.assert_close(compiled.loss, eager.loss)
    assert compiled.network.state_dict().keys() == eager.network.state_dict().keys()
