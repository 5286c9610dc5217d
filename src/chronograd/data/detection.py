"""Data sets of pictures with boxes. `data.class_names` chooses classes.

    voc:PATH            a folder in the layout of PASCAL VOC
    coco:PATH           PATH/annotations/instances_SPLIT.json and PATH/SPLIT, as COCO is published
    open-images:PATH    a folder in the layout of Open Images; `data.class_names` is required

Pictures are resized to one square regardless of their aspect ratio, as in SSD. They are decoded while the job trains,
and only once if memory allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chronograd.data import labels
from chronograd.data.layouts import folder_of
from chronograd.data.published import DatasetCard
from chronograd.errors import InputError, MissingExtraError
from chronograd.job import Data
from chronograd.words import how_many, some

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from chronograd.data.images import Images
    from chronograd.detect.sets import AnnotatedImage, DetectionSet

# Default side of the network's input, that of SSD300; `data.image_size` changes it.
SIDE = 300
# SSD on MobileNet gets (pixel - 127) / 128.
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0
# Memory for decoded training pictures: some 1,000 of 640 x 480.
KEPT_BYTES = 10**9
# Names of the training and test split. A folder uses the first pair that it has completely: VOC 2007 the first, VOC 2012
# the last.
SPLITS = (("trainval", "test"), ("train", "test"), ("train", "val"))
COCO_SPLITS = (("train2017", "val2017"), ("train2014", "val2014"))
OPEN_IMAGES_SPLITS = (("train", "test"), ("train", "validation"))


MAX_SHOWN = 10


class DatasetLayout(NamedTuple):
    """The layout of a published set: the places of the lists of its splits, their names, and the pairs of splits."""

    title: str
    folder: str
    lists: tuple[str, ...]
    splits: tuple[tuple[str, str], ...]


LAYOUTS = {
    "voc": DatasetLayout("PASCAL VOC", "ImageSets/Main", ("{}.txt",), SPLITS),
    "coco": DatasetLayout("COCO", "annotations", ("instances_{}.json",), COCO_SPLITS),
    "open-images": DatasetLayout(
        "Open Images",
        "",
        ("{}-annotations-bbox.csv", "sub-{}-annotations-bbox.csv", "oidv6-{}-annotations-bbox.csv"),
        OPEN_IMAGES_SPLITS,
    ),
}


@dataclass(frozen=True)
class Annotated:
    """The pictures of both splits that a job uses, in its order."""

    train: tuple[AnnotatedImage, ...]
    test: tuple[AnnotatedImage, ...]
    notes: tuple[str, ...]


class KeptPictures:
    """Pictures by their number. Decoded pictures are cached as long as they fit into `most_bytes`."""

    def __init__(self, images: tuple[AnnotatedImage, ...], most_bytes: int = KEPT_BYTES) -> None:
        self.images = images
        self._left = most_bytes
        self._kept: dict[int, Tensor] = {}

    def __call__(self, number: int) -> Tensor:
        picture = self._kept.get(number)
        if picture is None:
            picture = self.images[number].read()
            if picture.nbytes <= self._left:
                self._left -= picture.nbytes
                self._kept[number] = picture
        return picture


def is_detection(name: str) -> bool:
    """Return whether a name is that of a data set of pictures with boxes."""
    return name.partition(":")[0] in LAYOUTS and ":" in name


def names() -> list[str]:
    """Return the patterns of the names of such sets."""
    return [f"{layout}:PATH" for layout in LAYOUTS]


def card(data: Data) -> DatasetCard:
    """Return the card of a set, from its annotations. Raises as `detect.sets.voc`, and InputError where the job contradicts it."""
    refused = {
        "label_noise": data.label_noise,
        "long_tail": data.long_tail,
        "labels": data.labels,
        "resampling": data.resampling != "natural",
        "normalisation": data.normalisation != "own",
        "loading": data.loading == "resident",
    }
    for name, value in refused.items():
        if value:
            raise InputError(
                f"data.{name} is {getattr(data, name)}, which does not exist for sets with boxes such as {data.name}",
                f"leave data.{name} out",
            )
    train, test = _both(data)
    layout, _, path = data.name.partition(":")
    side = data.image_size or SIDE
    described = DatasetCard(
        name=data.name,
        shape=(3, side, side),
        num_classes=len(train.class_names),
        class_names=train.class_names,
        train_size=labels.num_training(data, len(_with_objects(train))),
        test_size=labels.num_test(data, len(test.images)),
        source=f"in the layout of {LAYOUTS[layout].title}, from {path}",
    )
    if data.shape is not None and tuple(data.shape) != described.shape:
        raise InputError(
            f"data.shape is {data.shape}; the network gets {described.shape} of {data.name}", "leave it out"
        )
    if data.classes is not None and data.classes != described.num_classes:
        raise InputError(
            f"data.classes is {data.classes}; {data.name} has {how_many(described.num_classes, 'classes')}",
            "leave it out",
        )
    return described


def check_classes(data: Data) -> None:
    """Raise InputError for a class of `data.class_names` that no training picture shows."""
    train, _ = _both(data)
    present = {int(label) for image in train.images for label in image.objects.labels_G}
    missing = [name for k, name in enumerate(train.class_names, 1) if k not in present]
    if missing:
        others = "; ".join(note for note in train.notes if "other classes" in note)
        raise InputError(
            f"no training picture of {data.name} has a {missing[0]}, which data.class_names lists",
            others or "leave it out of data.class_names",
        )


def annotated(data: Data) -> Annotated:
    """Return the pictures that a job trains and tests on. Training pictures without an object are left out."""
    train, test = _both(data)
    own = _with_objects(train)
    chosen = labels.choose(data, np.zeros(len(own), np.int64), train.class_names, seed=0)
    notes = [*train.notes, *test.notes]
    if len(own) < len(train.images):
        notes.append(f"left out {how_many(len(train.images) - len(own), 'training pictures')} without an object")
    tested = labels.choose_test(data, len(test.images))
    return Annotated(
        tuple(own[i] for i in chosen.samples_N), tuple(test.images[i] for i in tested), tuple(dict.fromkeys(notes))
    )


def pixels(images: tuple[AnnotatedImage, ...], side: int) -> Images:
    """Return the pictures as squares, not augmented; they are decoded when they are read."""
    from chronograd.data.images import Pixels, StreamedImages
    from chronograd.detect.augmentation import plain

    def read(number: int) -> Pixels:
        seen: Pixels = plain(images[number].read(), side).round().clamp(0, 255).byte().numpy()
        return seen

    return StreamedImages(read, len(images), (3, side, side))


def _both(data: Data) -> tuple[DetectionSet, DetectionSet]:
    """Return the training and test split, read once a process."""
    path = data.name.partition(":")[2]
    return _read(data.name, folder_of(path).absolute(), data.class_names)


@cache
def _read(name: str, root: Path, classes: tuple[str, ...] | None) -> tuple[DetectionSet, DetectionSet]:
    """Return the splits by folder as well as by name, because the data folder can change within a process."""
    try:
        from chronograd.detect import sets
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "vision", "detection") from None
    kind = name.partition(":")[0]
    layout = LAYOUTS[kind]
    folder = root / layout.folder
    for pair in layout.splits:
        if not all(any((folder / form.format(split)).is_file() for form in layout.lists) for split in pair):
            continue
        if kind == "coco":
            train, test = (sets.coco(folder / f"instances_{one}.json", root / one, classes) for one in pair)
        elif kind == "open-images":
            if classes is None:
                raise InputError(
                    f"{name} has hundreds of classes, and data.class_names chooses none",
                    "name some, such as data.class_names=[Handgun,Shotgun]",
                )
            train, test = (sets.open_images(root, one, classes) for one in pair)
        else:
            train, test = (sets.voc(root, one, classes) for one in pair)
        if train.class_names != test.class_names:
            raise InputError(
                f"the splits of {name} differ in their classes: {some(train.class_names, MAX_SHOWN)}; {some(test.class_names, MAX_SHOWN)}",
                "choose those that both have, in data.class_names",
            )
        return train, test
    known = some(sorted(found.name for found in folder.glob("*.*")), MAX_SHOWN) or "nothing"
    first = layout.lists[0]
    pairs = ", or ".join(f"{first.format(train)} and {first.format(test)}" for train, test in layout.splits)
    raise InputError(f"{folder} has {known}", f"it needs two lists: {pairs}")


def _with_objects(split: DetectionSet) -> list[AnnotatedImage]:
    return [image for image in split.images if len(image.objects.labels_G)]
