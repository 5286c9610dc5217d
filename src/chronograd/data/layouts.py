"""Sets that are folders of pictures: the files of each class. Reads names, never pixels.

    folder:PATH      PATH/train/CLASS/*.jpg with PATH/val/CLASS or PATH/test/CLASS; or PATH/CLASS without a split
    imagenet:PATH    ILSVRC 2012: PATH/train/nXXXXXXXX/*.JPEG, and PATH/val the same or flat with a ground-truth file
    decathlon:SET    Visual Decathlon, in decathlon-1.0/SET/{train,val}/CLASS of the data folder

Classes are numbered in the order of their folders' names, and pictures in the order of class and path, as in
torchvision's ImageFolder.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from chronograd import files
from chronograd.data.labels import stratified_fifth
from chronograd.data.published import FOLDER_VARIABLE, data_folder
from chronograd.errors import FileFormatError, InputError, NotFoundError, RunError
from chronograd.words import how_many, some

Array = np.ndarray[Any, Any]
Classes = dict[str, list[Path]]

# Those of torchvision.datasets.folder.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
DECATHLON = ("aircraft", "cifar100", "daimlerpedcls", "dtd", "gtsrb", "omniglot", "svhn", "ucf101", "vgg-flowers")
DECATHLON_URL = "https://www.robots.ox.ac.uk/~vgg/decathlon/"
# Ground truth of ImageNet's validation images if they are not sorted into class folders; it lies in the folder of train
# and val.
KAGGLE_TRUTH = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12/data"
DEVKIT_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# Default side of the images; `data.image_size` changes it. Pictures of the decathlon have a shorter side of 72.
SIDE = 224
DECATHLON_SIDE = 72
# Maximum number of paths and names in a message.
MAX_SHOWN = 3
MAX_KIT_BYTES = 500_000  # of meta.mat, whose arrays are compressed up to 1,000 times


@dataclass(frozen=True)
class Listing:
    """The files of a set and their classes. `side` is that of its images by default."""

    root: Path
    class_names: tuple[str, ...]
    train_paths: tuple[Path, ...]
    train_labels_N: Array
    test_paths: tuple[Path, ...]
    test_labels_N: Array
    source: str
    side: int = SIDE
    notes: tuple[str, ...] = ()

    def with_test(self, samples_N: Array) -> Listing:
        """Return the same listing with these test pictures only."""
        paths = tuple(self.test_paths[i] for i in samples_N)
        return replace(self, test_paths=paths, test_labels_N=self.test_labels_N[samples_N])


def is_layout(name: str) -> bool:
    """Return whether a name is that of a folder of pictures."""
    return name.partition(":")[0] in _LAYOUTS and ":" in name


def listing(name: str) -> Listing:
    """List the files of `folder:PATH`, `imagenet:PATH` or `decathlon:SET`.

    A relative PATH is searched in the working directory, then in the data folder.

    Raises: InputError if there is no such folder, no class, or a class with test images only; RunError if a set of the
    decathlon is not on disk; NotFoundError for a set that is not of the decathlon.
    """
    layout, _, rest = name.partition(":")
    if not rest:
        raise InputError(f"data.name is {name!r} without a folder", f"such as {layout}:pictures")
    return _LAYOUTS[layout](rest)


def names() -> list[str]:
    """Return the patterns of the names of such sets."""
    return ["folder:PATH", "imagenet:PATH", *(f"decathlon:{name}" for name in DECATHLON)]


# -- the layouts ---------------------------------------------------------------------------------------


def _folder(text: str) -> Listing:
    root = folder_of(text)
    notes: list[str] = []
    parts = [part for part in ("val", "test") if (root / part).is_dir()]
    if (root / "train").is_dir():
        train = _classes(root / "train", notes)
        if parts:
            test = _classes(root / parts[0], notes)
            if len(parts) > 1:
                notes.append(f"{root / 'val'} is the test set; {root / 'test'} is not used")
            return _listed(root, train, test, str(root), notes)
        whole = train
    elif parts:
        raise InputError(f"{root} has {parts[0]} and no train", "put the training images into train/CLASS")
    else:
        whole = _classes(root, notes)
    _check_classes(root, whole)
    train, test = _split(whole)
    if not any(test.values()):
        raise InputError(
            f"{root} has no test images, and no class has 5 images, the minimum to take one for the test",
            "add pictures, or put test images into val/CLASS",
        )
    notes.append("there is no test split: a fixed fifth of each class is the test set")
    return _listed(root, train, test, str(root), notes)


def _imagenet(text: str) -> Listing:
    root = folder_of(text)
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise InputError(
                f"{root} has no folder {part}",
                "ImageNet is train/nXXXXXXXX/*.JPEG, and val with the same folders or with the labels of ILSVRC 2012",
            )
    notes: list[str] = []
    train = _classes(root / "train", notes)
    strange = [name for name in train if not re.fullmatch(r"n\d{8}", name)]
    if strange:
        raise InputError(
            f"{root / 'train'} has classes that are no WordNet ids: {_shown(strange)}",
            f"read it as folder:{text}",
        )
    if any(entry.is_dir() for entry in (root / "val").iterdir()):
        test = _classes(root / "val", notes)
    else:
        test = _with_ground_truth(root, set(train), notes)
    return _listed(root, train, test, f"ImageNet, O. Russakovsky et al., arXiv 1409.0575; from {root}", notes)


def decathlon_folder(name: str) -> Path:
    """Return the folder of a set of the decathlon. Raises InputError for ImageNet, NotFoundError for an unknown set."""
    if name == "imagenet12":
        raise InputError(
            "decathlon:imagenet12 is not offered as a target: networks of the decathlon are pretrained on it",
            "read ImageNet itself as imagenet:PATH",
        )
    if name not in DECATHLON:
        raise NotFoundError("set of the Visual Decathlon", name, DECATHLON)
    return data_folder() / "decathlon-1.0" / name


def _decathlon(name: str) -> Listing:
    root = decathlon_folder(name)
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise RunError(
                f"data set decathlon:{name} is not on disk: no folder {root / part}",
                f"download it: `chronograd data decathlon:{name} --download`; or unpack {name} of {DECATHLON_URL} into "
                f"decathlon-1.0 of the data folder and name that folder in {FOLDER_VARIABLE}",
            )
    notes: list[str] = []
    train, test = (_classes(root / part, notes) for part in ("train", "val"))
    source = f"{name} of the Visual Decathlon, S.-A. Rebuffi et al., arXiv 1705.08045"
    return _listed(root, train, test, source, notes, DECATHLON_SIDE)


_LAYOUTS = {"folder": _folder, "imagenet": _imagenet, "decathlon": _decathlon}


def printable(name: object) -> str:
    """Return the name of a file as text that can be printed, even if it is not UTF-8."""
    return os.fsencode(str(name)).decode(errors="replace")


# -- reading names -------------------------------------------------------------------------------------


def has_folder(text: str) -> bool:
    """Return whether a file or folder exists where `folder_of` looks."""
    path = Path(os.path.expanduser(text))
    return path.exists() or (data_folder() / path).exists()


def folder_of(text: str) -> Path:
    path = Path(os.path.expanduser(text))
    beneath = data_folder() / path  # `/ path` gives the path itself if it is absolute
    for place in (path, beneath):
        if place.is_dir():
            return place
        if place.exists():
            raise InputError(f"{place} is a file", "name a folder of pictures")
    raise InputError(
        f"there is no folder {path}" + ("" if path.is_absolute() else f" here, nor {beneath}"),
        f"name a folder that exists; a relative one may lie in the folder of {FOLDER_VARIABLE}",
    )


def _classes(folder: Path, notes: list[str]) -> Classes:
    """Return the pictures of each class, in order; empty classes included. Add a note on files that are not pictures."""
    classes: Classes = {}
    strangers: list[Path] = []
    try:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        _refuse(error)
    for entry in entries:
        if entry.is_dir():
            classes[entry.name] = _pictures(entry, strangers)
        else:
            strangers.append(entry)
    if strangers:
        shown = _shown(str(p.relative_to(folder)) for p in strangers)
        notes.append(
            f"left out {how_many(len(strangers), 'files')} of {folder} that do not look like pictures of a class: {shown}"
        )
    return classes


def _pictures(folder: Path, strangers: list[Path]) -> list[Path]:
    """Return the pictures below a class folder, ordered by folder and name, without hidden files."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if not name.startswith("."):
                (found if name.lower().endswith(EXTENSIONS) else strangers).append(Path(place, name))
    return sorted(found, key=lambda path: (str(path.parent), path.name))


def _refuse(error: OSError) -> NoReturn:
    raise InputError(f"cannot list {error.filename}: {error.strerror}", "make the folder readable") from None


def _listed(root: Path, train: Classes, test: Classes, source: str, notes: list[str], side: int = SIDE) -> Listing:
    """Return classes as numbered paths, after checking that the two splits agree."""
    untrained = sorted(name for name, paths in test.items() if paths and not train.get(name))
    if untrained:
        raise InputError(
            f"test images and no training images of {how_many(len(untrained), 'classes')} in {root}: {_shown(untrained)}",
            "add training images, or remove the test images of these classes",
        )
    _check_classes(root, train)
    names = tuple(name for name in sorted(train) if train[name])
    empty = sorted({*train, *test} - set(names))
    if empty:
        notes.append(f"left out {how_many(len(empty), 'classes')} without pictures: {_shown(empty)}")
    untested = [name for name in names if not test.get(name)]
    if len(untested) == len(names):
        raise InputError(f"{root} has no test images", "put test images into val/CLASS, or leave val and test out")
    if untested:
        notes.append(f"no test images of {how_many(len(untested), 'classes')}: {_shown(untested)}")
    shown_names = tuple(printable(name) for name in names)
    return Listing(root, shown_names, *_numbered(train, names), *_numbered(test, names), source, side, tuple(notes))


def _check_classes(root: Path, classes: Classes) -> None:
    filled = [name for name, paths in classes.items() if paths]
    if len(filled) < 2:
        seen = f"one class, {filled[0]}" if filled else "no folder with pictures of a class"
        raise InputError(
            f"{root} has {seen}; classification needs two", f"one folder per class, with files {' '.join(EXTENSIONS)}"
        )


def _numbered(classes: Classes, names: Sequence[str]) -> tuple[tuple[Path, ...], Array]:
    paths = tuple(path for name in names for path in classes.get(name, ()))
    return paths, np.repeat(np.arange(len(names)), [len(classes.get(name, ())) for name in names])


def _split(whole: Classes) -> tuple[Classes, Classes]:
    """Split the pictures of a set without a split: a fixed fifth of each class, rounded down, is for the test."""
    names = tuple(whole)
    paths, labels_N = _numbered(whole, names)
    train: Classes = {name: [] for name in names}
    test: Classes = {name: [] for name in names}
    for path, label, is_test in zip(paths, labels_N, stratified_fifth(labels_N), strict=True):
        (test if is_test else train)[names[label]].append(path)
    return train, test


def _shown(names: Iterable[str]) -> str:
    return some([printable(name) for name in names], MAX_SHOWN)


def _with_ground_truth(root: Path, trained: set[str], notes: list[str]) -> Classes:
    """Return the pictures of a flat val by class. Pictures of an unknown class, or of one that is not trained, are left out."""
    truth = _ground_truth(root)
    classes: Classes = {}
    unknown: list[str] = []
    other: list[str] = []
    for path in sorted(root.glob("val/*")):
        if path.name.startswith(".") or not path.name.lower().endswith(EXTENSIONS):
            continue
        name = truth.get(path.stem)
        if name in trained:
            classes.setdefault(name, []).append(path)
        else:
            (unknown if name is None else other).append(path.name)
    if unknown:
        notes.append(
            f"left out {how_many(len(unknown), 'test images')} that the ground truth does not list: {_shown(unknown)}"
        )
    if other:
        notes.append(f"left out {how_many(len(other), 'test images')} of classes that are not trained: {_shown(other)}")
    return classes


def _ground_truth(root: Path) -> dict[str, str]:
    """Map file names without their ending to WordNet ids, from Kaggle's table or the development kit."""
    if (root / KAGGLE_TRUTH).is_file():
        return _kaggle_truth(root / KAGGLE_TRUTH)
    if (root / DEVKIT / DEVKIT_TRUTH).is_file():
        return _devkit_truth(root / DEVKIT)
    raise InputError(
        f"{root / 'val'} is flat, and there is no ground truth for it",
        f"put {KAGGLE_TRUTH} or {DEVKIT}/ (with meta.mat and {DEVKIT_TRUTH}) into {root}, or sort val into class folders",
    )


def _kaggle_truth(path: Path) -> dict[str, str]:
    """Read rows `ILSVRC2012_val_00000001,n01751748 111 108 230 230 ...`: the class, then a box."""
    truth = {}
    with files.open_text(path, "replace") as stream:
        for number, row in enumerate(csv.reader(stream), 1):
            if number == 1 and row[:1] == ["ImageId"]:
                continue
            if len(row) != 2 or not re.match(r"n\d{8}\b", row[1]):
                raise FileFormatError(
                    f"line {number} of {path} is {','.join(row)[:80]!r}",
                    "lines are like ILSVRC2012_val_00000001,n01751748 1 2 3 4",
                )
            truth[row[0]] = row[1].split()[0]
    return truth


def _devkit_truth(folder: Path) -> dict[str, str]:
    """Read the development kit: a line of the ground truth is a class number; meta.mat has its WordNet id."""
    from scipy.io import loadmat

    try:
        kit = io.BytesIO(files.read_bytes(folder / "meta.mat", MAX_KIT_BYTES))
        synsets = loadmat(kit, squeeze_me=True)["synsets"]
        wordnet = {int(i): str(w) for i, w in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        lines = files.read_text(folder / DEVKIT_TRUTH).split()
        return {f"ILSVRC2012_val_{i:08d}": wordnet[int(line)] for i, line in enumerate(lines, 1)}
    except Exception as error:
        raise FileFormatError(
            f"{folder} is not the data folder of the ILSVRC2012 kit: {error!r}", "unpack the kit again"
        ) from None
