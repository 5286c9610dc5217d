"""Selection of a job's training images, and their labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd.data import labels
from chronograd.errors import FileFormatError, InputError
from chronograd.job import Data

# 400 images: 200 of class a, 120 of b, 80 of c, mixed up.
NAMES = ("a", "b", "c")
PUBLISHED_N = np.random.RandomState(3).permutation(np.repeat([0, 1, 2], [200, 120, 80]))
SHUFFLED = np.random.RandomState(0).permutation(400)


def choose(seed: int = 0, **fields: Any) -> labels.TrainingSet:
    data = Data.model_validate({"name": "some", **fields})
    chosen = labels.choose(data, PUBLISHED_N, NAMES, seed)
    assert labels.num_training(data, 400) == len(chosen.samples_N) == len(chosen.labels)
    return chosen


def test_all_images_keep_the_published_order() -> None:
    chosen = choose()
    assert chosen.samples_N.tolist() == list(range(400))
    assert chosen.labels.tolist() == PUBLISHED_N.tolist()
    assert chosen.labels.dtype == chosen.samples_N.dtype == np.int64


@pytest.mark.parametrize(("skip", "samples"), [(0, 50), (50, 50), (390, 10), (399, None), (7, None)])
def test_samples_and_skip_are_positions_of_a_fixed_shuffle(skip: int, samples: int | None) -> None:
    chosen = choose(skip=skip, samples=samples, seed=5)
    expected = SHUFFLED[skip : 400 if samples is None else skip + samples]
    assert chosen.samples_N.tolist() == expected.tolist()
    assert chosen.labels.tolist() == PUBLISHED_N[expected].tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 401}, "data.samples is 401; some has 400 training images"),
        ({"samples": 51, "skip": 350}, "data.samples is 51 and data.skip is 350; some has 400"),
        ({"skip": 400}, "data.skip is 400; some has 400"),
        ({"long_tail": 1.0}, "data.long_tail is 1 and data.samples is not given"),
        ({"long_tail": 1.0, "samples": 300}, "wants 164 images of class a; there are 1"),
        ({"labels": "x.npz", "samples": 3}, "data.labels is x.npz and data.samples is 3"),
        ({"labels": "x.npz", "skip": 3}, "data.labels is x.npz and data.skip is 3"),
        ({"labels": "x.npz", "label_noise": 0.5}, "data.labels is x.npz and data.label_noise is 0.5"),
        ({"labels": "x.npz", "long_tail": 1.0}, "data.labels is x.npz and data.long_tail is 1.0"),
        ({"labels": "x.npz"}, "there is no such file"),
    ],
)
def test_invalid_options(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        # The long-tail case skips 80 of the 200 images of class a.
        choose(**{"skip": 80, **fields} if fields.get("samples") == 300 else fields)


@pytest.mark.parametrize(
    ("total", "num_classes", "exponent", "expected"),
    [
        (110, 3, 1.0, [60, 30, 20]),  # 1 : 1/2 : 1/3 = 6 : 3 : 2
        (49, 3, 2.0, [36, 9, 4]),  # 1 : 1/4 : 1/9
        (7, 3, 0.0, [3, 2, 2]),
        (3, 4, 9.0, [3, 0, 0, 0]),
    ],
)
def test_zipf_counts_by_hand(total: int, num_classes: int, exponent: float, expected: list[int]) -> None:
    assert labels.zipf_counts(total, num_classes, exponent) == expected


@pytest.mark.parametrize("exponent", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("total", [1, 10, 999])
def test_zipf_counts_sum_to_the_total(total: int, exponent: float) -> None:
    counts = labels.zipf_counts(total, 17, exponent)
    whole = math.fsum(r**-exponent for r in range(1, 18))
    assert sum(counts) == total
    assert all(abs(n - total * r**-exponent / whole) < 1 for r, n in enumerate(counts, 1))


def test_long_tail_has_the_requested_samples() -> None:
    chosen = choose(samples=110, long_tail=1.0, skip=20)
    assert np.bincount(chosen.labels).tolist() == [60, 30, 20]
    # They are the first of each class in the fixed shuffle, in its order, after the skipped ones.
    left = SHUFFLED[20:]
    expected = np.concatenate([left[PUBLISHED_N[left] == c][:n] for c, n in enumerate((60, 30, 20))])
    assert sorted(chosen.samples_N) == sorted(expected)
    position = {sample: i for i, sample in enumerate(SHUFFLED.tolist())}
    assert [position[s] for s in chosen.samples_N.tolist()] == sorted(position[s] for s in expected.tolist())
    assert chosen.notes == ("long tail with exponent 1: 60 images of the first class, 20 of the last",)


def test_label_noise_redraws_a_share_of_the_labels() -> None:
    labels_N = np.repeat([0, 1, 2], [5000, 3000, 2000])
    noisy_N, is_replaced_N = labels.with_noise(labels_N, 0.4, seed=1)
    n = len(labels_N)
    assert abs(is_replaced_N.mean() - 0.4) < 4 * math.sqrt(0.4 * 0.6 / n)
    assert (noisy_N[~is_replaced_N] == labels_N[~is_replaced_N]).all()
    # Draws follow the distribution of all labels, so some draws repeat the old label.
    for c, share in enumerate((0.5, 0.3, 0.2)):
        of_class = noisy_N[is_replaced_N & (labels_N == c)]
        for drawn, expected in enumerate((0.5, 0.3, 0.2)):
            deviation = math.sqrt(expected * (1 - expected) / (0.4 * share * n))
            assert abs((of_class == drawn).mean() - expected) < 4.5 * deviation
    assert (labels.with_noise(labels_N, 0.4, seed=1)[0] == noisy_N).all()
    assert (labels.with_noise(labels_N, 0.4, seed=2)[0] != noisy_N).any()


def test_label_noise_of_one_and_none() -> None:
    labels_N = np.arange(1000) % 10
    assert labels.with_noise(labels_N, 1.0, 0)[1].all()
    assert not labels.with_noise(labels_N, 0.0, 0)[1].any()


def test_noise_moves_labels_and_not_samples() -> None:
    clean, noisy, other = (
        choose(samples=90),
        choose(samples=90, label_noise=0.5),
        choose(1, samples=90, label_noise=0.5),
    )
    assert (clean.samples_N == noisy.samples_N).all()
    changed = int((clean.labels != noisy.labels).sum())
    assert 0 < changed < 90
    assert (noisy.labels != other.labels).any()
    assert f"{changed} of them changed" in noisy.notes[0]


def test_test_samples_are_the_first_of_a_fixed_shuffle() -> None:
    data = Data(name="some", test_samples=30)
    assert labels.choose_test(data, 400).tolist() == SHUFFLED[:30].tolist()
    assert labels.choose_test(Data(name="some"), 5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"data\.test_samples is 30; some has 20 test images"):
        labels.num_test(data, 20)


def test_stratified_split_leaves_images_of_every_class() -> None:
    labels_N = np.repeat([0, 1, 2, 3], [25, 9, 4, 1])
    is_test_N = labels.stratified_fifth(labels_N)
    assert np.bincount(labels_N[is_test_N], minlength=4).tolist() == [5, 1, 0, 0]
    assert (labels.stratified_fifth(labels_N) == is_test_N).all()


# -- files ---------------------------------------------------------------------------------------------


def test_labels_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    labels.write_labels(path, np.array([5, 0, 5]), label=np.array([2, 1, 0], dtype=np.int32))
    chosen = choose(labels=str(path))
    assert chosen.samples_N.tolist() == [5, 0, 5]
    assert chosen.labels.tolist() == [2, 1, 0]
    assert chosen.labels.dtype == np.int64
    assert chosen.notes == (f"3 labels of 2 training images from {path}",)
    assert sorted(tmp_path.iterdir()) == [path]


def test_probabilities_round_trip(tmp_path: Path) -> None:
    probability_NK = np.array([[0.5, 0.25, 0.25], [0, 1, 0]])
    labels.write_labels(tmp_path / "soft.npz", np.array([399, 3]), probability=probability_NK)
    chosen = choose(labels=str(tmp_path / "soft.npz"))
    assert chosen.labels.dtype == np.float32
    assert (chosen.labels == probability_NK).all()


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    labels.write_labels("~/mine.npz", np.array([1]), label=np.array([1]))
    assert (tmp_path / "mine.npz").is_file()
    assert choose(labels="~/mine.npz").samples_N.tolist() == [1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"label": [1]}, "has no `sample`, but label"),
        ({"sample": [1]}, "neither label nor probability"),
        ({"sample": [1], "label": [1], "probability": [[1.0, 0, 0]]}, "has label and probability"),
        ({"sample": [0.5], "label": [1]}, "sample in .* is float64"),
        ({"sample": np.empty(0, np.int64), "label": np.empty(0, np.int64)}, r"shape \(0,\)"),
        ({"sample": [400], "label": [1]}, "sample in .* is 400 … 400; there are 400"),
        ({"sample": [-1], "label": [1]}, "sample in .* is -1"),
        ({"sample": [1, 2], "label": [1]}, "label is int64 of shape .1,. for 2 samples"),
        ({"sample": [1], "label": [3]}, "label is 3 … 3; there are 3 classes"),
        ({"sample": [1], "probability": [[0.5, 0.5]]}, "probability has 2 columns; there are 3 classes"),
        ({"sample": [1], "probability": [[0.5, 0.4, 0.0]]}, "row 0 of probability sums to 0.9"),
        ({"sample": [1], "probability": [[1.5, -0.5, 0.0]]}, "entries below 0"),
        ({"sample": [1], "probability": [[float("nan"), 0.5, 0.5]]}, "row 0 of probability sums to nan"),
        ({"sample": [1], "probability": [[1, 0, 0]]}, "probability is int64"),
    ],
)
def test_other_file_kinds_are_reported(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
    with pytest.raises(FileFormatError, match=message):
        labels.choose(Data(name="some", labels=str(path)), PUBLISHED_N, NAMES, 0)


def test_pickles_text_and_single_arrays_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickle.npz", sample=np.array([{1: 2}], dtype=object), label=np.array([1]))
    (tmp_path / "text.npz").write_text("sample,label\n1,2\n")
    np.save(tmp_path / "one.npy", np.arange(3))
    whole = tmp_path / "cut.npz"
    labels.write_labels(whole, np.arange(100), label=np.zeros(100, np.int64))
    whole.write_bytes(whole.read_bytes()[:500])
    for name in ("pickle.npz", "text.npz", "one.npy", "cut.npz"):
        with pytest.raises(FileFormatError, match=name):
            labels.read_labels(tmp_path / name, 400, 3)


def test_unreadable_labels_are_not_written(tmp_path: Path) -> None:
    path, one = tmp_path / "x.npz", np.array([1])
    with pytest.raises(InputError, match="one of the two"):
        labels.write_labels(path, one)
    with pytest.raises(InputError, match="one of the two"):
        labels.write_labels(path, one, label=one, probability=np.array([[1.0]]))
    with pytest.raises(InputError, match="label is int64 of shape"):
        labels.write_labels(path, one, label=np.array([1, 2]))
    with pytest.raises(InputError, match=r"sums to 0\.5"):
        labels.write_labels(path, one, probability=np.array([[0.5, 0.0]]))
    with pytest.raises(InputError, match="cannot write"):
        labels.write_labels(tmp_path / "nowhere" / "x.npz", one, label=one)
    assert not list(tmp_path.iterdir())
