"""Data sets: cards without torch, fixed splits, clear errors, and real files if they are available."""

from __future__ import annotations

import hashlib
import math
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chronograd.data import datasets, published
from chronograd.data.datasets import Dataset
from chronograd.data.images import Images, ResidentImages, StreamedImages
from chronograd.data.labels import write_labels
from chronograd.errors import FileFormatError, InputError, NotFoundError, RunError
from chronograd.job import Data

Make = Callable[..., Path]


def load(seed: int = 0, **fields: Any) -> Dataset:
    """Load a data set and check that its card equals the job's."""
    data = Data.model_validate(fields)
    loaded = datasets.load(data, seed)
    assert loaded.card == datasets.card(data)
    assert loaded.card.train_size == len(loaded.train) == len(loaded.train_labels) == len(loaded.train_samples_N)
    assert loaded.card.test_size == len(loaded.test) == len(loaded.test_labels_N)
    assert loaded.card.shape == loaded.train.shape == loaded.test.shape
    return loaded


def pixels(images: Images) -> torch.Tensor:
    whole = images.batch(np.arange(len(images)))
    assert whole.dtype == torch.uint8
    return whole


def training_pixels(loaded: Dataset) -> torch.Tensor:
    """Return the training images as a network receives them."""
    scale, shift = (torch.tensor(v).view(1, -1, 1, 1) for v in (loaded.scale_C, loaded.shift_C))
    return pixels(loaded.train).double() * scale - shift


# -- cards -----------------------------------------------------------------------------------------------


def test_card_needs_neither_torch_nor_the_data(tmp_path: Path) -> None:
    code = (
        "import sys; from chronograd.data.datasets import card; from chronograd.job import Data; "
        "c = card(Data(name='cifar10')); print(c.shape, c.num_classes, c.train_size, c.test_size); "
        "c = card(Data(name='cifar100', image_size=64, samples=10, test_samples=7, label_noise=1)); "
        "print(c.shape, len(set(c.class_names)), c.train_size, c.test_size); "
        "assert not {'torch', 'torchvision', 'sklearn', 'PIL', 'scipy'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:2] == ["(3, 32, 32) 10 50000 10000", "(3, 64, 64) 100 10 7"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "synthetic"}, "data.shape or data.classes"),
        ({"name": "synthetic", "shape": (3, 2), "classes": 2}, "channels, height and width"),
        (
            {"name": "synthetic", "shape": (3, 2, 2), "classes": 2, "skip": 1},
            "data.skip is 1; synthetic images cannot be selected",
        ),
        ({"name": "synthetic", "shape": (3, 2, 2), "classes": 2, "image_size": 4}, "data.image_size is 4"),
        ({"name": "digits", "shape": (3, 8, 8)}, "data.shape"),
        ({"name": "digits", "classes": 3}, "data.classes is 3; digits has 10"),
        ({"name": "digits", "samples": 2000}, "data.samples is 2,000; digits has 1,437"),
        ({"name": "digits", "skip": 1437}, "data.skip is 1,437; digits has 1,437"),
        ({"name": "digits", "test_samples": 361}, "data.test_samples is 361; digits has 360"),
        ({"name": "digits", "long_tail": 1.0}, "data.long_tail is 1 and data.samples is not given"),
        ({"name": "folder:nowhere"}, "there is no folder nowhere"),
        ({"name": "folder:"}, "without a folder"),
    ],
)
def test_conflicting_options_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        datasets.card(Data.model_validate(data))


@pytest.mark.parametrize(("name", "near"), [("digit", "digits"), ("cifar-100", "cifar100"), ("folder", "folder:PATH")])
def test_unknown_data_set_suggests_similar_names(name: str, near: str) -> None:
    for function in (datasets.card, datasets.fetch):
        with pytest.raises(NotFoundError, match=f"did you mean .*{near}"):
            function(Data(name=name))


def test_unknown_data_set_may_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="unknown data set 'photoz', and there is no such folder here"):
        datasets.card(Data(name="photoz"))
    (tmp_path / "photoz").mkdir()
    with pytest.raises(NotFoundError, match="write folder:photoz"):
        datasets.card(Data(name="photoz"))


def test_cifar_cards() -> None:
    names = published.SETS["cifar100"].card.class_names
    assert len(names) == len(set(names)) == 100
    assert list(names) == sorted(names)
    assert (names[0], names[51], names[99]) == ("apple", "mushroom", "worm")


# -- sets in memory --------------------------------------------------------------------------------------


def test_digits_have_a_fixed_split() -> None:
    loaded = load(name="digits")
    train, test = pixels(loaded.train), pixels(loaded.test)
    assert train.shape == (1437, 1, 8, 8)
    assert test.shape == (360, 1, 8, 8)
    assert (loaded.top, int(train.max())) == (16, 16)
    counts = torch.bincount(loaded.test_labels_N)
    assert counts.min() >= 35
    assert counts.max() <= 37
    # Training and test images are disjoint and cover the whole set.
    whole = torch.cat([train, test]).flatten(1)
    assert len(torch.unique(whole, dim=0)) == 1797
    assert torch.equal(pixels(load(seed=7, name="digits").test), test)


def test_normalisation_uses_the_chosen_training_images() -> None:
    for samples in (None, 40):
        loaded = load(name="digits", samples=samples)
        assert loaded.train_labels.dtype == torch.int64
        assert training_pixels(loaded).mean().item() == pytest.approx(0, abs=1e-6)
        assert training_pixels(loaded).std(correction=0).item() == pytest.approx(1, abs=1e-6)
        # 0 and 16 are the ends of the scale: (0 - mean) / std and (1 - mean) / std.
        (mean,), (std,) = loaded.mean_C, loaded.std_C
        assert training_pixels(loaded).min().item() == pytest.approx(-mean / std, rel=1e-6)
        assert training_pixels(loaded).max().item() == pytest.approx((1 - mean) / std, rel=1e-6)


def test_other_normalisations() -> None:
    unit, raw, imagenet = (training_pixels(load(name="digits", normalisation=n)) for n in ("unit", "raw", "imagenet"))
    assert (unit.min().item(), unit.max().item()) == (0, pytest.approx(1))
    assert raw.max().item() == pytest.approx(255)
    assert imagenet.max().item() == pytest.approx((1 - 0.449) / 0.226)
    grey = load(name="digits", normalisation="imagenet")
    assert grey.notes == ("grey images are normalised by 0.449 and 0.226, the means of ImageNet's three channels",)
    # Mean and deviation belong to the images.
    assert grey.mean_C == load(name="digits").mean_C


def test_samples_are_the_first_of_a_fixed_shuffle() -> None:
    few, more, rest = (
        load(name="digits", **f) for f in ({"samples": 50}, {"samples": 100}, {"skip": 50, "samples": 50})
    )
    shuffled = np.random.RandomState(0).permutation(1437)
    assert few.train_samples_N.tolist() == shuffled[:50].tolist()
    assert torch.equal(few.train_labels, more.train_labels[:50])
    assert torch.equal(rest.train_labels, more.train_labels[50:])
    assert torch.equal(pixels(rest.train), pixels(more.train)[50:])
    assert len(few.test_labels_N) == 360
    whole = load(name="digits")
    assert torch.equal(pixels(few.train), pixels(whole.train)[few.train_samples_N])
    assert (datasets.samples_of(Data(name="digits", skip=50, samples=50)) == rest.train_samples_N).all()


def test_test_samples_are_the_first_of_a_fixed_shuffle() -> None:
    whole, few = load(name="digits"), load(name="digits", test_samples=20)
    first = np.random.RandomState(0).permutation(360)[:20]
    assert torch.equal(few.test_labels_N, whole.test_labels_N[first])
    assert torch.equal(pixels(few.test), pixels(whole.test)[first])


def test_long_tail_and_label_noise_of_real_images() -> None:
    clean = load(name="digits", samples=300, long_tail=1.0)
    # 300 / (1 + 1/2 + … + 1/10) = 102.4 images of the first class.
    assert torch.bincount(clean.train_labels)[0] == 102
    assert torch.bincount(clean.train_labels).sum() == 300
    noisy, other = (load(seed=s, name="digits", samples=300, long_tail=1.0, label_noise=0.5) for s in (0, 1))
    assert torch.equal(pixels(noisy.train), pixels(clean.train))
    changed = int((noisy.train_labels != clean.train_labels).sum())
    assert f"{changed} of them changed" in noisy.notes[1]
    assert not torch.equal(noisy.train_labels, other.train_labels)


def test_labels_file_replaces_samples_and_labels(tmp_path: Path) -> None:
    whole = load(name="digits")
    samples = np.array([9, 700, 9])
    write_labels(tmp_path / "hard.npz", samples, label=np.array([1, 2, 3]))
    hard = load(name="digits", labels=str(tmp_path / "hard.npz"))
    assert hard.train_labels.tolist() == [1, 2, 3]
    assert hard.train_samples_N.tolist() == samples.tolist()
    assert torch.equal(pixels(hard.train), pixels(whole.train)[samples])
    write_labels(tmp_path / "soft.npz", samples, probability=np.eye(10)[[4, 5, 6]])
    soft = load(name="digits", labels=str(tmp_path / "soft.npz"))
    assert soft.train_labels.dtype == torch.float32
    assert torch.equal(soft.train_labels, torch.eye(10)[[4, 5, 6]])
    with pytest.raises(FileFormatError, match="probability has 10 columns; there are 4 classes"):
        load(name="synthetic", shape=(1, 2, 2), classes=4, labels=str(tmp_path / "soft.npz"))


def test_images_in_memory_are_resized() -> None:
    loaded = load(name="digits", image_size=20)
    assert loaded.top == 255
    assert loaded.notes == ("images of 8x8 were resized to 20x20",)
    # 0 … 16 is scaled to 0 … 255; the mean barely changes.
    assert loaded.mean_C == pytest.approx(load(name="digits").mean_C, abs=0.01)
    streamed = load(name="digits", image_size=20, loading="streaming")
    assert isinstance(loaded.train, ResidentImages)
    assert isinstance(streamed.train, StreamedImages)
    assert torch.equal(pixels(streamed.test), pixels(loaded.test))
    assert streamed.mean_C == pytest.approx(loaded.mean_C, abs=0.02)
    assert "a fixed sample of 1,000 training images" in streamed.notes[1]


def test_images_of_original_size_are_streamed_on_request() -> None:
    resident, streamed = (load(name="digits", samples=30, loading=how) for how in ("resident", "streaming"))
    assert isinstance(streamed.train, StreamedImages)
    assert torch.equal(pixels(streamed.train), pixels(resident.train))
    assert (streamed.mean_C, streamed.std_C) == (resident.mean_C, resident.std_C)


def test_synthetic_images_depend_on_the_seed() -> None:
    fields = {"name": "synthetic", "shape": (3, 5, 7), "classes": 4, "samples": 400}
    a, b, c = (load(seed=seed, **fields) for seed in (1, 1, 2))
    images = pixels(a.train)
    assert images.shape == (400, 3, 5, 7)
    assert a.card.test_size == 100
    assert a.train_samples_N.tolist() == list(range(400))
    assert torch.equal(images, pixels(b.train))
    assert not torch.equal(images, pixels(c.train))
    # 42,000 draws: mean and deviation are within four standard errors of 128 and 32 (rounding adds a twelfth).
    assert abs(images.double().mean().item() - 128) < 4 * 32 / math.sqrt(42_000)
    assert abs(images.double().std().item() - math.sqrt(32**2 + 1 / 12)) < 4 * 32 / math.sqrt(2 * 42_000)
    assert set(a.train_labels.tolist()) == {0, 1, 2, 3}
    assert load(seed=1, test_samples=300, **fields).card.test_size == 300


# -- torchvision's layout ----------------------------------------------------------------------------------


def test_missing_files_error_names_folder_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    for name in ("cifar10", "cifar100", "fashion-mnist", "decathlon:svhn"):
        with pytest.raises(RunError, match="CHRONOGRAD_DATA") as caught:
            datasets.load(Data(name=name))
        assert str(tmp_path) in str(caught.value)


def test_damaged_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR files are pickles: torchvision must check their md5 sums before opening them."""
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    harm = tmp_path / "harm"
    for name in ("cifar10", "cifar100"):
        kept = published.SETS[name]
        folder = tmp_path / str(kept.folder)
        folder.mkdir()
        for file in kept.files:
            (folder / file).write_bytes(f"cpathlib\nPath\n(V{harm}\ntR.".encode())
        with pytest.raises(RunError, match="cannot be read"):
            datasets.load(Data(name=name))


def test_cifar100_uses_its_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout has five images; the md5 sums replace those of the real files."""
    from torchvision.datasets import CIFAR100

    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rows = np.random.RandomState(0).randint(0, 256, (5, 3072)).astype(np.uint8)
    sums = {}
    for part, content in (
        ("train", {"data": rows, "fine_labels": [0, 99, 5, 7, 7], "coarse_labels": [0, 1, 2, 3, 4]}),
        ("test", {"data": rows[:2], "fine_labels": [3, 4], "coarse_labels": [0, 0]}),
        ("meta", {"fine_label_names": list(published.SETS["cifar100"].card.class_names)}),
    ):
        data = pickle.dumps(content)
        (folder / part).write_bytes(data)
        sums[part] = hashlib.md5(data).hexdigest()
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
    loaded = datasets.load(Data(name="cifar100"))
    assert loaded.train_labels.tolist() == [0, 99, 5, 7, 7]
    assert loaded.test_labels_N.tolist() == [3, 4]
    assert np.array_equal(pixels(loaded.train).numpy(), rows.reshape(5, 3, 32, 32))


def test_fashion_mnist_is_read_from_raw_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The .gz files are absent, as their md5 sums change with every compression."""
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
    np.testing.assert_allclose(training_pixels(loaded)[:, 0].numpy(), expected, atol=1e-6)
    assert loaded.train_labels.tolist() == labels.tolist()


@pytest.mark.data
@pytest.mark.parametrize(("name", "mean"), [("fashion-mnist", (0.2860,)), ("cifar10", (0.4914, 0.4822, 0.4465))])
def test_real_files(name: str, mean: tuple[float, ...]) -> None:
    """The means of the training images equal the widely published ones."""
    card = published.SETS[name].card
    loaded = load(name=name)
    assert pixels(loaded.train).shape == (card.train_size, *card.shape)
    assert loaded.mean_C == pytest.approx(mean, abs=5e-5)
    assert torch.bincount(loaded.test_labels_N).tolist() == [1000] * 10


@pytest.mark.data
def test_real_images_are_resized_like_in_torchvision() -> None:
    from PIL import Image
    from torchvision.transforms import v2

    small, large = (load(name="cifar10", samples=5, test_samples=2, image_size=n) for n in (None, 64))
    for before, after in zip(pixels(small.train), pixels(large.train), strict=True):
        theirs = v2.Resize(64)(Image.fromarray(before.permute(1, 2, 0).numpy()))
        assert np.array_equal(after.permute(1, 2, 0).numpy(), np.asarray(theirs))


# -- folders ---------------------------------------------------------------------------------------------


@pytest.mark.data
def test_real_pictures() -> None:
    """Ants and bees: two classes of photographs of many sizes. Streamed and resident pixels are equal."""
    resident, streamed = (
        load(name="folder:hymenoptera-160", image_size=48, loading=how) for how in ("resident", "streaming")
    )
    assert resident.card.class_names == ("ants", "bees")
    assert torch.bincount(resident.train_labels).tolist() == [123, 121]
    assert torch.bincount(resident.test_labels_N).tolist() == [70, 83]
    assert isinstance(streamed.train, StreamedImages)
    for one, other in ((resident.train, streamed.train), (resident.test, streamed.test)):
        assert torch.equal(pixels(one), pixels(other))
    assert (resident.mean_C, resident.std_C) == (streamed.mean_C, streamed.std_C)
    assert resident.notes[0].startswith("397 pictures of 124 sizes")
    assert streamed.notes == (
        resident.notes[0],
        "pictures are decoded while the job trains; before it, the headers of all were read",
    )


def test_folder_as_a_data_set(tmp_path: Path, folder: Make) -> None:
    name = f"folder:{folder(tmp_path, {'a': 6, 'b': 4}, {'a': 2, 'b': 3}, size=(16, 16))}"
    whole = load(name=name, image_size=16)
    assert isinstance(whole.train, ResidentImages)
    assert whole.train_labels.tolist() == [0] * 6 + [1] * 4
    assert whole.notes == ()
    assert training_pixels(whole).mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    some = load(name=name, image_size=16, samples=3, skip=2, test_samples=2)
    expected = np.random.RandomState(0).permutation(10)[2:5]
    assert torch.equal(pixels(some.train), pixels(whole.train)[expected])
    assert some.train_labels.tolist() == whole.train_labels[expected].tolist()
    assert datasets.card(Data(name=name)).shape == (3, 224, 224)
    datasets.fetch(Data(name=name))


@pytest.mark.parametrize("loading", ["resident", "streaming"])
def test_labels_file_of_a_folder_may_repeat_samples(tmp_path: Path, folder: Make, loading: str) -> None:
    name = f"folder:{folder(tmp_path, {'a': 3, 'b': 3}, {'a': 1, 'b': 1})}"
    write_labels(tmp_path / "labels.npz", np.array([4, 0, 4]), label=np.array([0, 1, 1]))
    whole = load(name=name, image_size=8)
    loaded = load(name=name, image_size=8, labels=str(tmp_path / "labels.npz"), loading=loading)
    assert torch.equal(pixels(loaded.train), pixels(whole.train)[[4, 0, 4]])
    assert loaded.train_labels.tolist() == [0, 1, 1]


def test_pictures_larger_than_memory_are_streamed(
    tmp_path: Path, folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test pretends that 10¹² ranks share this machine's memory."""
    name = f"folder:{folder(tmp_path, {'a': 3, 'b': 3}, {'a': 1, 'b': 1})}"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10**12))
    assert isinstance(load(name=name).train, StreamedImages)
    assert isinstance(load(name=name, loading="resident").train, ResidentImages)
    assert isinstance(load(name="digits", samples=10, image_size=9).train, StreamedImages)


@pytest.fixture
def faulty(tmp_path: Path, folder: Make, picture: Make) -> str:
    """A folder with three non-pictures, one truncated picture, and various sizes and modes."""
    folder(tmp_path, {"a": 6, "b": 4, "c": 1}, {"a": 2, "b": 3})
    (tmp_path / "train/a/001.png").write_text("no picture")
    (tmp_path / "train/c/000.png").write_text("no picture")
    (tmp_path / "val/b/002.png").write_bytes(b"")
    whole = picture(tmp_path / "train/b/004.jpg", (64, 64)).read_bytes()
    (tmp_path / "train/b/004.jpg").write_bytes(whole[: len(whole) // 2])
    picture(tmp_path / "train/b/005.png", (30, 20), "L")
    return f"folder:{tmp_path}"


def test_damaged_pictures_are_skipped_and_reported(faulty: str) -> None:
    loaded = datasets.load(Data(name=faulty, image_size=8))
    card = datasets.card(Data(name=faulty, image_size=8))
    assert (card.train_size, card.test_size) == (13, 5)  # decided by the file names
    assert (loaded.card.train_size, loaded.card.test_size) == (10, 4)
    assert loaded.train_labels.tolist() == [0] * 5 + [1] * 5
    assert loaded.train_samples_N.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert loaded.test_labels_N.tolist() == [0, 0, 1, 1]
    assert (datasets.samples_of(Data(name=faulty, image_size=8)) == loaded.train_samples_N).all()
    untested, left, sizes, modes, lost = loaded.notes
    assert untested == "no test images of 1 class: c"
    assert left.startswith("left out 4 files of")
    for name in ("train/a/001.png cannot be read: it is not a picture", "train/b/004.jpg cannot be read: ", ", …"):
        assert name in left
    assert sizes == "14 pictures of 2 sizes (12 to 30 wide, 10 to 20 high) were brought to 8x8"
    assert modes == "1 picture was not RGB and was brought to it: 1 L"
    assert lost == "no training image can be read in 1 class: c"


def test_damaged_streamed_pictures(faulty: str) -> None:
    """Headers reveal some damage early; a truncated picture is reported when its batch is read."""
    data = Data(name=faulty, image_size=8, loading="streaming", samples=2)
    resident = datasets.load(data.model_copy(update={"loading": "resident", "samples": None}))
    whole = data.model_copy(update={"samples": None})
    with pytest.raises(FileFormatError, match=r"004\.jpg cannot be read: .*(.|\n)*data.loading=resident"):
        datasets.load(whole)  # mean and deviation of few images need all of them
    write_labels(Path(faulty.removeprefix("folder:")) / "l.npz", np.array([1, 0, 2, 11]), label=np.array([0, 1, 0, 1]))
    loaded = datasets.load(whole.model_copy(update={"labels": faulty.removeprefix("folder:") + "/l.npz"}))
    assert loaded.train_samples_N.tolist() == [0, 2, 11]
    assert loaded.train_labels.tolist() == [1, 0, 1]
    assert torch.equal(pixels(loaded.train), pixels(resident.train)[[0, 1, 9]])
    assert any(note.startswith("left out 2 files") for note in loaded.notes)


def test_unreadable_split_is_refused(tmp_path: Path, folder: Make) -> None:
    folder(tmp_path, {"a": 2, "b": 2}, {"a": 1})
    (tmp_path / "val/a/000.png").write_text("no picture")
    for loading in ("resident", "streaming"):
        with pytest.raises(InputError, match=r"no test image of .* can be read: .*000\.png"):
            datasets.load(Data(name=f"folder:{tmp_path}", loading=loading))


def test_decathlon_set_is_loaded(tmp_path: Path, folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    folder(tmp_path / "decathlon-1.0" / "svhn", {"0001": 3, "0002": 2}, {"0001": 1, "0002": 1}, size=(96, 72))
    loaded = load(name="decathlon:svhn")
    assert loaded.card.shape == (3, 72, 72)
    assert loaded.card.class_names == ("0001", "0002")
    assert load(name="decathlon:svhn", image_size=64).card.shape == (3, 64, 64)
