"""Published sets of small images, inside scikit-learn or from torchvision; the card of any set; the data folder."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from chronograd import files
from chronograd.data.labels import SHUFFLE_SEED
from chronograd.errors import ChronogradError, MissingExtraError, RunError

Integers = np.ndarray[Any, Any]

FOLDER_VARIABLE = "CHRONOGRAD_DATA"


@dataclass(frozen=True)
class DatasetCard:
    """Facts about a data set, without its data.

    Attributes:
        shape: of one image as a network gets it: channels, height, width; of text the number of tokens.
        train_size: training images used, after `data.samples`, `data.skip` and `data.labels`.
        source: the publisher, or the folder.
        bytes_per_token: of the test split, for real text. digest: of its whole text.
    """

    name: str
    shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...]
    train_size: int
    test_size: int
    source: str
    bytes_per_token: float | None = None
    digest: str = ""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return the shape of an image, for sets of images."""
        channels, height, width = self.shape
        return channels, height, width


def data_folder() -> Path:
    """Return the folder of all data sets: $CHRONOGRAD_DATA, else the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("chronograd")) / "data"


@dataclass(frozen=True)
class Arrays:
    """Images in memory as whole numbers 0 … `top` (uint8) of shape (N, C, H, W), and labels."""

    train_images: Integers
    train_labels: Integers
    test_images: Integers
    test_labels: Integers
    top: int

    def with_test(self, samples_N: Integers) -> Arrays:
        """Return the same arrays with these test images only."""
        return replace(self, test_images=self.test_images[samples_N], test_labels=self.test_labels[samples_N])


@dataclass(frozen=True)
class PublishedSet:
    """A published set and its card. torchvision stores it under `folder` and `files`; digits needs neither."""

    card: DatasetCard
    torchvision: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()

    def is_on_disk(self) -> bool:
        """Return whether its files exist, or it needs none."""
        return all((data_folder() / self.folder / name).is_file() for name in self.files)


def _published(name: str, table: dict[str, Any]) -> PublishedSet:
    values: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value for field, value in table.items()
    }
    where: dict[str, Any] = {
        field: values.pop(field) for field in ("torchvision", "folder", "files") if field in values
    }
    return PublishedSet(DatasetCard(name=name, num_classes=len(values["class_names"]), **values), **where)


_TABLE = (resources.files("chronograd.data") / "published.toml").read_text(encoding="utf-8")
SETS = {name: _published(name, table) for name, table in tomllib.loads(_TABLE).items()}


def read(name: str) -> Arrays:
    """Read the whole set as published. Raises RunError if it is not on disk, MissingExtraError if a library is missing."""
    if not SETS[name].is_on_disk():
        raise _not_there(name, "some of its files are missing")
    return _read_torchvision(name) if SETS[name].torchvision else _read_digits()


def fetch(name: str) -> None:
    """Download the set unless it is on disk. Raises RunError that names the folder and the variable."""
    if SETS[name].is_on_disk():
        return
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.impatient():
            _torchvision_class(name)(folder, train=True, download=True)
    except ChronogradError:
        raise
    except Exception as error:
        raise _not_there(name, f"downloading it failed: {error}") from error


# -- the sets ----------------------------------------------------------------------------------------


def _read_digits() -> Arrays:
    """Return digits in a fixed stratified split: every fifth image, in order of class after a fixed shuffle, is for the test.

    The set has no official split. It does not identify writers, so one may be on both sides.
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


def _read_torchvision(name: str) -> Arrays:
    train, test = (_torchvision_set(name, train=part) for part in (True, False))
    return Arrays(_channels_first(train.data), np.asarray(train.targets), _channels_first(test.data),
                  np.asarray(test.targets), top=255)  # fmt: skip


def _channels_first(images: Any) -> Integers:
    """Put channels first. torchvision's grey images have no channel axis; its colour images have it last."""
    pixels = np.asarray(images)
    return pixels[:, None] if pixels.ndim == 3 else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


# -- torchvision -------------------------------------------------------------------------------------


def _not_there(name: str, why: str) -> RunError:
    published = SETS[name]
    return RunError(
        f"data set {name} is not usable at {data_folder() / published.folder}: {why}",
        f"put {published.files[0]} and the files that torchvision unpacks with it into {published.folder} of a folder "
        f"and name that folder in {FOLDER_VARIABLE}; where there is a network, `chronograd train` downloads them",
    )


def _torchvision_class(name: str) -> Any:
    try:
        from torchvision import datasets
    except ImportError:
        raise MissingExtraError("torchvision", "vision", f"data set {name}") from None
    return getattr(datasets, SETS[name].torchvision)


def _torchvision_set(name: str, train: bool) -> Any:
    cls = _torchvision_class(name)
    try:
        return cls(data_folder(), train=train, download=False)
    except (OSError, RuntimeError, ValueError, AssertionError, EOFError) as error:
        raise _not_there(name, f"it cannot be read: {error}") from error
