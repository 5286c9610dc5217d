"""Published sets of small images: those inside scikit-learn, and those that torchvision downloads and unpacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.data.cards import FOLDER_VARIABLE, DatasetCard, data_folder
from chronograd.data.labels import SHUFFLE_SEED
from chronograd.errors import ChronogradError, MissingExtraError, RunError

Integers = np.ndarray[Any, Any]

DOWNLOAD_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Arrays:
    """Images in memory as whole numbers 0 … `top` (uint8) of shape (N, C, H, W), and labels."""

    train_images: Integers
    train_labels: Integers
    test_images: Integers
    test_labels: Integers
    top: int

    def with_test(self, samples_N: Integers) -> Arrays:
        """The same with these test images only."""
        return replace(self, test_images=self.test_images[samples_N], test_labels=self.test_labels[samples_N])


@dataclass(frozen=True)
class Published:
    """A set with a card of its own. `folder` and `files` are where torchvision keeps it; None if it is not on disk."""

    card: DatasetCard
    read: Callable[[], Arrays]
    folder: str | None = None
    files: tuple[str, ...] = ()

    def is_on_disk(self) -> bool:
        """Whether its files are there, or it needs none."""
        return self.folder is None or all((data_folder() / self.folder / name).is_file() for name in self.files)


def read(name: str) -> Arrays:
    """The whole set as published. Raises RunError if it is not on disk, MissingExtraError if a library is missing."""
    if not SETS[name].is_on_disk():
        raise _not_there(name, "some of its files are not there")
    return SETS[name].read()


def fetch(name: str) -> None:
    """Download the set unless it is on disk. Raises RunError that names the folder and the variable."""
    if SETS[name].is_on_disk():
        return
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(name, folder)
    except ChronogradError:
        raise
    except Exception as error:
        raise _not_there(name, f"downloading it failed: {error}") from error


# -- the sets ----------------------------------------------------------------------------------------


def _read_digits() -> Arrays:
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
    return Arrays(images[~is_test], labels[~is_test], images[is_test], labels[is_test], top=16)


def _read_fashion_mnist() -> Arrays:
    train, test = (_torchvision_set("fashion-mnist", train=part) for part in (True, False))
    return Arrays(
        train.data.numpy()[:, None], train.targets.numpy(), test.data.numpy()[:, None], test.targets.numpy(), top=255
    )


def _cifar(name: str) -> Callable[[], Arrays]:
    """Reader of a CIFAR set. torchvision checks the md5 sum of each file before it reads it."""

    def read_cifar() -> Arrays:
        train, test = (_torchvision_set(name, train=part) for part in (True, False))
        train_images, test_images = (np.ascontiguousarray(s.data.transpose(0, 3, 1, 2)) for s in (train, test))
        return Arrays(train_images, np.array(train.targets), test_images, np.array(test.targets), top=255)

    return read_cifar


_TINY_IMAGES = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
# The fine labels, in the order of their numbers.
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

SETS = {
    "digits": Published(
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
    "fashion-mnist": Published(
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
    "cifar10": Published(
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
            source=_TINY_IMAGES,
        ),
        _cifar("cifar10"),
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    ),
    "cifar100": Published(
        DatasetCard(
            name="cifar100",
            shape=(3, 32, 32),
            num_classes=100,
            class_names=tuple(_CIFAR100_CLASSES.split()),
            train_size=50_000,
            test_size=10_000,
            source=_TINY_IMAGES,
        ),
        _cifar("cifar100"),
        "cifar-100-python",
        ("train", "test", "meta"),
    ),
}


# -- torchvision -------------------------------------------------------------------------------------


def _not_there(name: str, why: str) -> RunError:
    published = SETS[name]
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
    return {"fashion-mnist": datasets.FashionMNIST, "cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]


def _torchvision_set(name: str, train: bool) -> Any:
    cls = _torchvision_class(name)
    try:
        return cls(data_folder(), train=train, download=False)
    except (OSError, RuntimeError, ValueError, AssertionError, EOFError) as error:
        raise _not_there(name, f"it cannot be read: {error}") from error


def _download(name: str, folder: Path) -> None:
    import socket

    cls = _torchvision_class(name)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)  # a network that swallows packets must not hang the job
    try:
        cls(folder, train=True, download=True)
    finally:
        socket.setdefaulttimeout(before)
