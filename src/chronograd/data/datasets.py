"""Data sets by name: a card that says what a set is, and the tensors themselves.

    digits           8x8 grey handwritten digits, inside scikit-learn: no download
    fashion-mnist    28x28 grey clothes
    cifar10          32x32 colour photographs
    synthetic        seeded normal images of any shape; labels are drawn, so nothing can be learned beyond chance

A card needs neither torch nor the data. Images are normalised by the mean and standard deviation of the
training images, per channel. There is no augmentation here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chronograd.errors import ChronogradError, InputError, MissingExtraError, NotFoundError, RunError
from chronograd.job import Data

if TYPE_CHECKING:
    import torch

Integers = np.ndarray[Any, Any]

FOLDER_VARIABLE = "CHRONOGRAD_DATA"
SYNTHETIC_SAMPLES = 1024
DOWNLOAD_TIMEOUT_S = 20.0
SHUFFLE_SEED = 0


@dataclass(frozen=True)
class DatasetCard:
    """What a data set is.

    Attributes:
        shape: of one image: channels, height, width.
        train_size: training images used, after `data.samples`.
        source: who published it.
    """

    name: str
    shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...]
    train_size: int
    test_size: int
    source: str


@dataclass(frozen=True)
class Dataset:
    """Normalised images and labels on the CPU. N images, C channels, H rows, W columns.

    `mean` and `std` are those of the training images before normalisation, per channel, with the images'
    own range mapped to 0 … 1.
    """

    card: DatasetCard
    train_images_NCHW: torch.Tensor
    train_labels_N: torch.Tensor
    test_images_NCHW: torch.Tensor
    test_labels_N: torch.Tensor
    mean_C: tuple[float, ...]
    std_C: tuple[float, ...]


@dataclass(frozen=True)
class _RawImages:
    """Whole numbers 0 … `top` of shape (N, C, H, W), and labels."""

    train_images: Integers
    train_labels: Integers
    test_images: Integers
    test_labels: Integers
    top: int


@dataclass(frozen=True)
class _Published:
    """A set with a card of its own. `folder` and `files` are where torchvision keeps it; None if it is not on disk."""

    card: DatasetCard
    read: Callable[[], _RawImages]
    folder: str | None = None
    files: tuple[str, ...] = ()


def card(data: Data) -> DatasetCard:
    """What a job's data set is, without torch and without the data.

    Raises NotFoundError for an unknown name, InputError where the job contradicts the set.
    """
    if data.name == "synthetic":
        return _synthetic_card(data)
    own = _published(data.name).card
    if data.shape is not None and tuple(data.shape) != own.shape:
        raise InputError(f"data.shape is {data.shape}; images of {data.name} are {own.shape}", "leave data.shape out")
    if data.classes is not None and data.classes != own.num_classes:
        raise InputError(
            f"data.classes is {data.classes}; {data.name} has {own.num_classes} classes", "leave data.classes out"
        )
    if data.samples is not None and data.samples > own.train_size:
        raise InputError(
            f"data.samples is {data.samples:,}; {data.name} has {own.train_size:,} training images", "ask for fewer"
        )
    return replace(own, train_size=data.samples or own.train_size)


def names() -> list[str]:
    """Names of the data sets."""
    return sorted([*_SETS, "synthetic"])


def data_folder() -> Path:
    """Where data sets lie on disk: $CHRONOGRAD_DATA, else the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("chronograd")) / "data"


def fetch(data: Data) -> None:
    """Make sure that the data is on disk, downloading it where there is a network. One process per machine calls it.

    Raises RunError that names the folder and the variable.
    """
    if data.name == "synthetic":
        return
    published = _published(data.name)
    if published.folder is None or _is_on_disk(published):
        return
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(data.name, folder)
    except ChronogradError:
        raise
    except Exception as error:
        raise _not_there(data.name, published, f"downloading it failed: {error}") from error


def load(data: Data, seed: int = 0) -> Dataset:
    """The tensors of a data set that is on disk. `seed` draws the synthetic images; it moves nothing else.

    With `data.samples`, the first of a fixed shuffle of the training images are used. Raises as `card`, and
    RunError if the data is not on disk (see `fetch`), MissingExtraError if a library is not installed.
    """
    described = card(data)
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "vision", f"data set {data.name}") from None
    if data.name == "synthetic":
        return _synthetic(described, seed)
    published = _published(data.name)
    if published.folder is not None and not _is_on_disk(published):
        raise _not_there(data.name, published, "some of its files are not there")
    raw = published.read()
    keep: Any = slice(None)
    if data.samples is not None:
        keep = np.random.RandomState(SHUFFLE_SEED).permutation(len(raw.train_labels))[: data.samples]
    train_images, train_labels = raw.train_images[keep], raw.train_labels[keep]
    mean, std = _channel_mean_std(train_images, raw.top)

    def normalised(images: Integers) -> torch.Tensor:
        shift, scale = (torch.tensor(v, dtype=torch.float32).view(1, -1, 1, 1) for v in (mean, std))
        return torch.from_numpy(images.astype(np.float32)).div_(raw.top).sub_(shift).div_(scale)

    return Dataset(
        card=described,
        train_images_NCHW=normalised(train_images),
        train_labels_N=torch.from_numpy(train_labels.astype(np.int64)),
        test_images_NCHW=normalised(raw.test_images),
        test_labels_N=torch.from_numpy(raw.test_labels.astype(np.int64)),
        mean_C=tuple(mean),
        std_C=tuple(std),
    )


# -- the sets ----------------------------------------------------------------------------------------


def _read_digits() -> _RawImages:
    """A fixed stratified split: every fifth image, in order of class after a fixed shuffle, is for the test.

    The set has no split of its own. Writers are not told apart, so one may be on both sides.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("scikit-learn", "vision", "data set digits") from None
    whole = load_digits()
    images = whole.images.astype(np.uint8)[:, None]
    labels = whole.target
    shuffled = np.random.RandomState(SHUFFLE_SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[::5]] = True
    return _RawImages(images[~is_test], labels[~is_test], images[is_test], labels[is_test], top=16)


def _read_fashion_mnist() -> _RawImages:
    train, test = (_torchvision_set("fashion-mnist", train=part) for part in (True, False))
    return _RawImages(
        train.data.numpy()[:, None], train.targets.numpy(), test.data.numpy()[:, None], test.targets.numpy(), top=255
    )


def _read_cifar10() -> _RawImages:
    """torchvision checks the md5 sum of each file before it reads it."""
    train, test = (_torchvision_set("cifar10", train=part) for part in (True, False))
    train_images, test_images = (np.ascontiguousarray(s.data.transpose(0, 3, 1, 2)) for s in (train, test))
    return _RawImages(train_images, np.array(train.targets), test_images, np.array(test.targets), top=255)


_SETS = {
    "digits": _Published(
        DatasetCard(
            name="digits",
            shape=(1, 8, 8),
            num_classes=10,
            class_names=tuple("0123456789"),
            train_size=1437,
            test_size=360,
            source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998; in scikit-learn",
        ),
        _read_digits,
    ),
    "fashion-mnist": _Published(
        DatasetCard(
            name="fashion-mnist",
            shape=(1, 28, 28),
            num_classes=10,
            class_names=(
                *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
                *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
            ),
            train_size=60_000,
            test_size=10_000,
            source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv 1708.07747",
        ),
        _read_fashion_mnist,
        "FashionMNIST/raw",
        tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")),
    ),
    "cifar10": _Published(
        DatasetCard(
            name="cifar10",
            shape=(3, 32, 32),
            num_classes=10,
            class_names=(
                *("airplane", "automobile", "bird", "cat", "deer"),
                *("dog", "frog", "horse", "ship", "truck"),
            ),
            train_size=50_000,
            test_size=10_000,
            source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        ),
        _read_cifar10,
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    ),
}


def _synthetic_card(data: Data) -> DatasetCard:
    if data.shape is None or data.classes is None:
        raise InputError(
            "data.name is synthetic and data.shape or data.classes is not given",
            "write data.shape=[3,32,32] data.classes=10",
        )
    if len(data.shape) != 3:
        raise InputError(f"data.shape is {data.shape}; an image has channels, height and width", "such as [3,32,32]")
    channels, height, width = data.shape
    samples = data.samples or SYNTHETIC_SAMPLES
    return DatasetCard(
        name="synthetic",
        shape=(channels, height, width),
        num_classes=data.classes,
        class_names=tuple(str(c) for c in range(data.classes)),
        train_size=samples,
        test_size=max(1, samples // 4),
        source="drawn from a normal distribution",
    )


def _synthetic(described: DatasetCard, seed: int) -> Dataset:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(described.num_classes, (count,), generator=generator)
        return torch.randn(count, *described.shape, generator=generator), labels

    channels = described.shape[0]
    train, test = draw(described.train_size), draw(described.test_size)
    return Dataset(described, *train, *test, mean_C=(0.0,) * channels, std_C=(1.0,) * channels)


# -- helpers -------------------------------------------------------------------------------------------


def _published(name: str) -> _Published:
    if name not in _SETS:
        raise NotFoundError("data set", name, names())
    return _SETS[name]


def _is_on_disk(published: _Published) -> bool:
    assert published.folder is not None
    return all((data_folder() / published.folder / name).is_file() for name in published.files)


def _not_there(name: str, published: _Published, why: str) -> RunError:
    assert published.folder is not None
    return RunError(
        f"data set {name} is not usable at {data_folder() / published.folder}: {why}",
        f"put {published.files[0]} and its fellows, as torchvision unpacks them, into {published.folder} of a folder "
        f"and name that folder in {FOLDER_VARIABLE}; where there is a network, `chronograd train` downloads them",
    )


def _torchvision_class(name: str) -> Any:
    try:
        from torchvision import datasets
    except ImportError:
        raise MissingExtraError("torchvision", "vision", f"data set {name}") from None
    return {"fashion-mnist": datasets.FashionMNIST, "cifar10": datasets.CIFAR10}[name]


def _torchvision_set(name: str, train: bool) -> Any:
    cls = _torchvision_class(name)
    try:
        return cls(data_folder(), train=train, download=False)
    except (OSError, RuntimeError, ValueError, AssertionError, EOFError) as error:
        raise _not_there(name, _published(name), f"it cannot be read: {error}") from error


def _download(name: str, folder: Path) -> None:
    import socket

    cls = _torchvision_class(name)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)  # a network that swallows packets must not hang the job
    try:
        cls(folder, train=True, download=True)
    finally:
        socket.setdefaulttimeout(before)


def _channel_mean_std(images_NCHW: Integers, top: int) -> tuple[list[float], list[float]]:
    """Exact, from a histogram of the whole numbers; in units of `top`. A constant channel has std 1."""
    means, stds = [], []
    values = np.arange(top + 1) / top
    for channel in range(images_NCHW.shape[1]):
        counts = np.bincount(images_NCHW[:, channel].ravel(), minlength=top + 1)
        mean = float(counts @ values / counts.sum())
        variance = float(counts @ (values - mean) ** 2 / counts.sum())
        means.append(mean)
        stds.append(math.sqrt(variance) or 1.0)
    return means, stds
