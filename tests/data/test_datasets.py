"""Data sets: cards without torch, fixed splits, normalisation, clear errors. Real files where they are at hand."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chronograd.data import datasets
from chronograd.errors import InputError, NotFoundError, RunError
from chronograd.job import Data


def test_a_card_needs_neither_torch_nor_the_data() -> None:
    code = (
        "import sys; from chronograd.data.datasets import card; from chronograd.job import Data; "
        "c = card(Data(name='cifar10')); print(c.shape, c.num_classes, c.train_size, c.test_size); "
        "assert not {'torch', 'torchvision', 'sklearn'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[0] == "(3, 32, 32) 10 50000 10000"


def test_digits_are_split_once_and_for_all() -> None:
    loaded = datasets.load(Data(name="digits"))
    assert loaded.train_images_NCHW.shape == (1437, 1, 8, 8)
    assert loaded.test_images_NCHW.shape == (360, 1, 8, 8)
    counts = torch.bincount(loaded.test_labels_N)
    assert counts.min() >= 35
    assert counts.max() <= 37
    # No test image is also a training image, and the whole set is there.
    whole = torch.cat([loaded.train_images_NCHW, loaded.test_images_NCHW]).flatten(1)
    assert len(torch.unique(whole, dim=0)) == 1797
    again = datasets.load(Data(name="digits"), seed=7)
    assert torch.equal(again.test_images_NCHW, loaded.test_images_NCHW)


def test_images_are_normalised_by_the_training_images() -> None:
    loaded = datasets.load(Data(name="digits"))
    assert loaded.train_images_NCHW.dtype == torch.float32
    assert loaded.train_labels_N.dtype == torch.int64
    assert loaded.train_images_NCHW.mean().item() == pytest.approx(0, abs=1e-6)
    assert loaded.train_images_NCHW.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    # 0 and 16 are the ends of the scale: (0 - mean) / std and (1 - mean) / std.
    (mean,), (std,) = loaded.mean_C, loaded.std_C
    assert loaded.train_images_NCHW.min().item() == pytest.approx(-mean / std, rel=1e-6)
    assert loaded.train_images_NCHW.max().item() == pytest.approx((1 - mean) / std, rel=1e-6)


def test_samples_are_the_first_of_a_fixed_shuffle() -> None:
    few, more = (datasets.load(Data(name="digits", samples=n)) for n in (50, 100))
    assert few.card.train_size == len(few.train_labels_N) == 50
    assert torch.equal(few.train_labels_N, more.train_labels_N[:50])
    assert len(few.test_labels_N) == 360


def test_synthetic_images_are_those_of_the_seed() -> None:
    data = Data(name="synthetic", shape=(3, 5, 7), classes=4, samples=400)
    a, b, c = (datasets.load(data, seed) for seed in (1, 1, 2))
    assert a.train_images_NCHW.shape == (400, 3, 5, 7)
    assert a.card.test_size == len(a.test_labels_N) == 100
    assert torch.equal(a.train_images_NCHW, b.train_images_NCHW)
    assert not torch.equal(a.train_images_NCHW, c.train_images_NCHW)
    # 42,000 draws: the mean is within four standard errors of 0.
    assert abs(a.train_images_NCHW.mean().item()) < 4 / math.sqrt(42_000)
    assert set(a.train_labels_N.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "synthetic"}, "data.shape or data.classes"),
        ({"name": "synthetic", "shape": (3,), "classes": 2}, "channels, height and width"),
        ({"name": "digits", "shape": (3, 8, 8)}, "data.shape"),
        ({"name": "digits", "classes": 3}, "data.classes is 3; digits has 10"),
        ({"name": "digits", "samples": 2000}, "data.samples is 2,000; digits has 1,437"),
    ],
)
def test_what_contradicts_the_set_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        datasets.card(Data.model_validate(data))


def test_an_unknown_set_names_near_ones() -> None:
    with pytest.raises(NotFoundError, match="did you mean digits"):
        datasets.card(Data(name="digit"))


def test_absent_files_name_the_folder_and_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    with pytest.raises(RunError, match="CHRONOGRAD_DATA") as caught:
        datasets.load(Data(name="cifar10"))
    assert str(tmp_path) in str(caught.value)


def test_damaged_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 files are pickles: torchvision must have checked their md5 sums before it opens them."""
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    harm = tmp_path / "harm"
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(f"cpathlib\nPath\n(V{harm}\ntR.".encode())
    with pytest.raises(RunError, match="cannot be read"):
        datasets.load(Data(name="cifar10"))


def test_fashion_mnist_is_read_from_raw_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the .gz files, whose md5 sums differ where they were compressed anew."""
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images = np.random.RandomState(0).randint(0, 256, (30, 28, 28)).astype(np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    for part in ("train", "t10k"):
        head = struct.pack(">IIII", 0x803, 30, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 30) + labels.tobytes())
    loaded = datasets.load(Data(name="fashion-mnist"))
    scaled = images / 255
    expected = (scaled - scaled.mean()) / scaled.std()
    np.testing.assert_allclose(loaded.train_images_NCHW[:, 0].numpy(), expected, atol=1e-5)
    assert loaded.train_labels_N.tolist() == labels.tolist()


@pytest.mark.parametrize(("name", "mean"), [("fashion-mnist", (0.2860,)), ("cifar10", (0.4914, 0.4822, 0.4465))])
def test_real_files_where_they_are_at_hand(name: str, mean: tuple[float, ...]) -> None:
    """Means of the training images as everybody prints them."""
    published = datasets._published(name)
    if not datasets._is_on_disk(published):
        pytest.skip("not at hand; CHRONOGRAD_DATA names the folder")
    loaded = datasets.load(Data(name=name, samples=published.card.train_size))
    assert loaded.train_images_NCHW.shape == (published.card.train_size, *published.card.shape)
    assert loaded.mean_C == pytest.approx(mean, abs=5e-5)
    counts = torch.bincount(loaded.test_labels_N).tolist()
    assert counts == [1000] * 10
