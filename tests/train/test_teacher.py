"""Teachers: their selection compared with a simple search, and their probabilities with the network's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.data.labels import write_labels
from chronograd.errors import InputError
from chronograd.job import Data
from chronograd.rundir import RunDir
from chronograd.train import checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.loop import evaluate
from chronograd.train.methods.teacher import network_of, probabilities, select
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

Array = np.ndarray[Any, Any]
PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
NUM_TRAINED = 300


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def trained(path: Path, *overrides: str) -> tuple[RunDir, TrainingStep, datasets.Dataset]:
    """Return a network trained on part of digits, with its run directory and data."""
    data = {"name": "digits", "samples": NUM_TRAINED}
    training = {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 20, "epochs": 5}
    job = jobs.from_dict({"network": {"name": "tiny_networks:plain"}, "data": data, "training": training})
    job = jobs.changed(job, overrides)
    dataset = datasets.load(job.data)
    step = TrainingStep(job, dataset, PLACE)
    for index in range(step.num_steps):
        step.run(index)
    run = RunDir.create(job, out=path)
    checkpoint.save(run.checkpoints, step, Progress(step=step.num_steps, epoch=5))
    return run, step, dataset


# -- selection ---------------------------------------------------------------------------------------------


def select_by_search(scores: list[list[int]], top_classes: int, per_class: int) -> list[tuple[int, int]]:
    """Return pairs of image and class, by class, by counting for each image the classes with a lower score."""
    kept = []
    for c in range(len(scores[0])):
        candidates = []
        for i, row in enumerate(scores):
            ahead = sum(other > row[c] or (other == row[c] and d < c) for d, other in enumerate(row))
            if ahead < top_classes:
                candidates.append((-row[c], i))
        kept += [(i, c) for _, i in sorted(candidates)[:per_class]]
    return kept


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], int, int]:
    """Draw integer scores 0 … 5 with many ties, P and K."""
    num_classes = draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 5), min_size=num_classes, max_size=num_classes)
    return draw(st.lists(row, min_size=1, max_size=12)), draw(st.integers(1, num_classes)), draw(st.integers(1, 14))


@given(cases())
def test_selection_matches_a_simple_search(case: tuple[list[list[int]], int, int]) -> None:
    scores, top_classes, per_class = case
    numbers = np.arange(len(scores)) * 7 + 3
    kept = select(numbers, np.array(scores) / 10, top_classes, per_class)
    expected = select_by_search(scores, top_classes, per_class)
    assert kept.sample.tolist() == [7 * i + 3 for i, _ in expected]
    assert kept.label.tolist() == [c for _, c in expected]
    assert kept.score.tolist() == [scores[i][c] / 10 for i, c in expected]
    times = np.unique(kept.sample, return_counts=True)[1]
    assert times.max() <= top_classes


@given(cases())
def test_unbalanced_selection_uses_the_best_scores(
    case: tuple[list[list[int]], int, int],
) -> None:
    scores, top_classes, per_class = case
    kept = select(np.arange(len(scores)), np.array(scores) / 10, top_classes, per_class, is_balanced=False)
    candidates = select_by_search(scores, top_classes, len(scores))
    total = per_class * len(scores[0])
    best = sorted((scores[i][c] / 10 for i, c in candidates), reverse=True)[:total]
    assert sorted(kept.score.tolist(), reverse=True) == best
    assert set(zip(kept.sample.tolist(), kept.label.tolist(), strict=True)) <= set(candidates)
    assert kept.label.tolist() == sorted(kept.label.tolist())


def test_image_has_two_classes_only_if_p_allows() -> None:
    torn = np.array([[0.5, 0.45, 0.05], [0.4, 0.5, 0.1]])
    one, two = (select(np.array([10, 11]), torn, p, 2) for p in (1, 2))
    assert list(zip(one.sample.tolist(), one.label.tolist(), strict=True)) == [(10, 0), (11, 1)]
    assert list(zip(two.sample.tolist(), two.label.tolist(), strict=True)) == [(10, 0), (11, 0), (11, 1), (10, 1)]


@pytest.mark.parametrize(("top_classes", "per_class"), [(0, 1), (4, 1), (1, 0)])
def test_invalid_selection_sizes(top_classes: int, per_class: int) -> None:
    with pytest.raises(InputError, match=rf"{per_class} images? per class of the {top_classes} best"):
        select(np.arange(2), np.full((2, 3), 1 / 3), top_classes, per_class)


# -- probabilities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", ["own", "imagenet", "unit"])
def test_probabilities_match_the_trained_network(tmp_path: Path, normalisation: str) -> None:
    run, step, dataset = trained(tmp_path / "run", f"data.normalisation={normalisation}")
    others = Data(name="digits", skip=NUM_TRAINED, samples=400, label_noise=0.9)
    samples, probability_NK = probabilities(run, others)
    unseen = datasets.load(others)
    assert samples.tolist() == unseen.train_samples_N.tolist()
    assert not set(samples.tolist()) & set(dataset.train_samples_N.tolist())
    pixels = unseen.train.batch(np.arange(400)).double()
    seen = (pixels * dataset.scale_C[0] - dataset.shift_C[0]).float()
    with torch.no_grad():
        expected = torch.softmax(step.network.eval()(seen), dim=1).numpy()
    np.testing.assert_allclose(probability_NK, expected, atol=1e-5)
    truth = datasets.load(Data(name="digits")).train_labels.numpy()[samples]
    assert (probability_NK.argmax(1) == truth).mean() > 0.8
    assert (unseen.train_labels.numpy() == truth).mean() < 0.3


def test_probabilities_give_the_test_accuracy(tmp_path: Path) -> None:
    run, step, dataset = trained(tmp_path / "run")
    samples, probability_NK = probabilities(run, run.job().data, split="test")
    correct = probability_NK.argmax(1) == dataset.test_labels_N.numpy()[samples]
    assert correct.mean() == pytest.approx(evaluate(step, dataset, PLACE)[1])


def test_pixel_range_is_converted_for_the_network(tmp_path: Path) -> None:
    """Digits have 17 levels and synthetic images 256; the share of the maximum counts."""
    run, step, dataset = trained(tmp_path / "run")
    drawn = Data(name="synthetic", shape=(1, 8, 8), classes=10, samples=30)
    _, probability_NK = probabilities(run, drawn, seed=4)
    pixels = datasets.load(drawn, 4).train.batch(np.arange(30)).double()
    seen = (pixels / 255 - dataset.mean_C[0]) / dataset.std_C[0]
    with torch.no_grad():
        expected = torch.softmax(step.network.eval()(seen.float()), dim=1).numpy()
    np.testing.assert_allclose(probability_NK, expected, atol=1e-5)


def test_repeated_image_is_labelled_once(tmp_path: Path) -> None:
    run, *_ = trained(tmp_path / "run")
    path = tmp_path / "twice.npz"
    write_labels(path, np.array([30, 12, 30, 5]), label=np.array([0, 1, 2, 3]))
    samples, probability_NK = probabilities(run, Data(name="digits", labels=str(path)))
    assert samples.tolist() == [30, 12, 5]
    alone = probabilities(run, Data(name="digits"))[1]
    np.testing.assert_allclose(probability_NK, alone[samples], atol=1e-6)


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    run, *_ = trained(tmp_path / "run")
    with pytest.raises(InputError, match="on images of 1x8x8; these are 1x6x6") as error:
        probabilities(run, Data(name="digits", image_size=6))
    assert "data.image_size=8" in error.value.hint


def test_diverged_network_is_refused(tmp_path: Path) -> None:
    run, *_ = trained(tmp_path / "run", "training.learning_rate=1e30", "training.recipe=sgd")
    with pytest.raises(InputError, match="not finite"):
        probabilities(run, run.job().data)


def test_network_is_in_evaluation_mode(tmp_path: Path) -> None:
    run, *_ = trained(tmp_path / "run")
    assert not network_of(run).training
