"""Sets of pictures with boxes, in their published layouts. Reads names and annotations, never pixels.

    voc               Annotations/NAME.xml, JPEGImages/NAME.jpg, ImageSets/Main/SPLIT.txt: M. Everingham et al., PASCAL
        VOC
    coco              one JSON file of images, annotations and categories, and a folder of pictures: T.-Y. Lin et al.,
        2014
    open_images       class-descriptions-boxable.csv, SPLIT-annotations-bbox.csv and SPLIT/IMAGE.jpg: A. Kuznetsova et
        al., 2020

Boxes are clipped at the picture's edge. A box without an area is then left out, and counted in the notes.
"""

from __future__ import annotations

import csv
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chronograd import files
from chronograd.detect import pictures
from chronograd.detect.boxes import Objects
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.words import how_many, some

MAX_ANNOTATION_BYTES = 2_000_000
MAX_COCO_BYTES = 2_000_000_000
DESCRIPTIONS = "class-descriptions-boxable.csv"
# Endings of pictures, in order of the search.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")

# Name of a class, left, top, right, bottom in units of the image, whether it is difficult.
Row = tuple[str, float, float, float, float, bool]


@dataclass(frozen=True, eq=False)
class AnnotatedImage:
    """A picture and its objects. `size` is (width, height) as annotated, or None."""

    path: Path
    size: tuple[int, int] | None
    objects: Objects

    def read(self) -> torch.Tensor:
        """Read the picture: uint8 of shape (3, H, W). Raises FileFormatError, also if its size differs from the annotated one."""
        picture = pictures.read(self.path, self.size)
        height, width = picture.shape[1:]
        if self.size is not None and (width, height) != self.size:
            raise FileFormatError(
                f"{self.path} is {width} x {height}, and its annotation says {self.size[0]} x {self.size[1]}",
                "the boxes would be wrong: correct the annotation, or remove the picture from the split",
            )
        return picture


@dataclass(frozen=True, eq=False)
class DetectionSet:
    """One split of a set. Class k of an image's labels is `class_names[k - 1]`; 0 is the background."""

    class_names: tuple[str, ...]
    images: tuple[AnnotatedImage, ...]
    notes: tuple[str, ...] = ()


# -- PASCAL VOC -------------------------------------------------------------------------------------


def voc(root: Path, split: str, classes: Sequence[str] | None = None) -> DetectionSet:
    """Read one split of a folder in the layout of PASCAL VOC, such as VOCdevkit/VOC2007.

    VOC counts pixels from 1, and the last pixel belongs to the box, so a box from 1 to 500 covers an image that is 500 wide.

    Args:
        split: train, val, trainval or test, or another one of ImageSets/Main.
        classes: only objects of these are read, in this order; by default all names in Annotations in alphabetical order, which
            is the order of the public weights' 20 classes.

    Raises: InputError for a folder with another layout, NotFoundError for a split, FileFormatError for an annotation.
    """
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        if not (root / part).is_dir():
            raise InputError(
                f"{root} has no folder {part}", "name a folder in the layout of PASCAL VOC, such as VOCdevkit/VOC2007"
            )
    listed = root / "ImageSets/Main" / f"{split}.txt"
    if not listed.is_file():
        # VOC also has a list for each class: aeroplane_train.txt.
        raise NotFoundError("split", split, {path.stem for path in listed.parent.glob("*.txt") if "_" not in path.stem})
    try:
        names = [line.split()[0] for line in files.read_text(listed).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {listed}: {error}", _VOC_FORM) from None
    class_names = tuple(classes) if classes is not None else _voc_classes(root)
    collected = _Collected(class_names)
    for name in names:
        annotation = files.inside(root / "Annotations", f"{name}.xml")
        tree = _xml(annotation)
        path = _picture(root / "JPEGImages", name)
        size = _voc_size(tree, annotation) or pictures.size_of(path)
        collected.add(path, size, [_voc_row(one, annotation, size) for one in tree.findall("object")])
    return collected.set(str(listed))


def _voc_classes(root: Path) -> tuple[str, ...]:
    names = {
        one.findtext("name", "").strip()
        for path in (root / "Annotations").glob("*.xml")
        for one in _xml(path).findall("object")
    }
    return tuple(sorted(names - {""}))


def _xml(path: Path) -> ElementTree.Element:
    try:
        data = files.read_bytes(path, MAX_ANNOTATION_BYTES)
        return ElementTree.fromstring(data, ElementTree.XMLParser(target=_Builder()))
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:
        raise FileFormatError(f"{path} is not an annotation: {error}", _VOC_FORM) from None


class _Builder(ElementTree.TreeBuilder):
    """A builder of XML trees in any encoding that refuses document types, because these can declare texts of any length."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it declares a document type, which an annotation must not have")


_VOC_FORM = "an annotation of PASCAL VOC is XML with size, and object with name and bndbox"


def _voc_size(tree: ElementTree.Element, path: Path) -> tuple[int, int] | None:
    """Return width and height; None if the annotation has none, or has 0, as some tools write."""
    if tree.find("size") is None:
        return None
    width, height = (int(_number(tree.find("size"), side, path)) for side in ("width", "height"))
    return (width, height) if width > 0 and height > 0 else None


def _voc_row(one: ElementTree.Element, path: Path, size: tuple[int, int]) -> Row:
    box = one.find("bndbox")
    left, top, right, bottom = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
    if right < left or bottom < top:
        raise FileFormatError(f"{path} has a box from {left:g}, {top:g} to {right:g}, {bottom:g}", _VOC_FORM)
    width, height = size
    is_difficult = one.findtext("difficult", "0").strip() == "1"
    name = one.findtext("name", "").strip()
    if not name:
        raise FileFormatError(f"{path} has an object without a name", _VOC_FORM)
    return name, (left - 1) / width, (top - 1) / height, right / width, bottom / height, is_difficult


def _number(parent: ElementTree.Element | None, name: str, path: Path) -> float:
    text = "" if parent is None else parent.findtext(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FileFormatError(f"{path} has {text!r} for {name}", _VOC_FORM)
    return value


def _picture(folder: Path, name: str) -> Path:
    """Return the picture of this name with any ending; if there is none, the expected path."""
    return next((path for end in EXTENSIONS if (path := folder / f"{name}{end}").is_file()), folder / f"{name}.jpg")


# -- COCO -------------------------------------------------------------------------------------------


def coco(annotations: Path, pictures_folder: Path, classes: Sequence[str] | None = None) -> DetectionSet:
    """Read a split in the JSON of COCO. Boxes are left, top, width, height in pixels; `iscrowd` makes an object difficult.

    COCO's own evaluation lets any number of detections fall into a crowd, and measures how much of each lies in it. Here a
    crowd is an object that does not count.

    Args:
        classes: only objects of these are read, in this order; by default all, in the order of their ids.

    Raises: InputError or FileFormatError.
    """
    try:
        data = files.read_json(annotations, MAX_COCO_BYTES)
        categories = {int(one["id"]): str(one["name"]) for one in data["categories"]}
        class_names = tuple(classes) if classes is not None else tuple(categories[i] for i in sorted(categories))
        rows: dict[int, list[Row]] = {int(one["id"]): [] for one in data["images"]}
        sizes = {int(one["id"]): (int(one["width"]), int(one["height"])) for one in data["images"]}
        for one in data["annotations"]:
            image = int(one["image_id"])
            rows[image].append(_coco_row(one, categories[int(one["category_id"])], sizes[image]))
        collected = _Collected(class_names)
        for one in data["images"]:
            image = int(one["id"])
            collected.add(files.inside(pictures_folder, str(one["file_name"])), sizes[image], rows[image])
    except OSError as error:
        raise InputError(f"cannot read {annotations}: {error.strerror}", "name a file of annotations") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise FileFormatError(
            f"{annotations} is not in the form of COCO: {type(error).__name__} {error}",
            "it has images, annotations with image_id, category_id and bbox, and categories",
        ) from None
    return collected.set(str(annotations))


def _coco_row(one: Any, name: str, size: tuple[int, int]) -> Row:
    left, top, width, height = map(float, one["bbox"])
    across, down = size
    return (
        name,
        left / across,
        top / down,
        (left + width) / across,
        (top + height) / down,
        bool(one.get("iscrowd", 0)),
    )


# -- Open Images ------------------------------------------------------------------------------------


def open_images(root: Path, split: str, classes: Sequence[str]) -> DetectionSet:
    """Read the pictures of a split of Open Images that have objects of some classes, with those objects.

    A box around a group of objects (IsGroupOf) is difficult: it counts neither as detected nor as missed.

    Args:
        split: train, validation or test; also older files with the name sub-SPLIT-annotations-bbox.csv.
        classes: their descriptions, such as Handgun; in this order.

    Raises: InputError, NotFoundError for a class, FileFormatError.
    """
    identifiers = descriptions(root / DESCRIPTIONS)
    for name in classes:
        if name not in identifiers:
            raise NotFoundError("class of Open Images", name, identifiers)
    wanted = {identifiers[name]: name for name in classes}
    candidates = [root / f"{prefix}{split}-annotations-bbox.csv" for prefix in ("", "sub-", "oidv6-")]
    path = next((one for one in candidates if one.is_file()), candidates[0])
    rows: dict[str, list[Row]] = {}
    for number, line in _csv(path):
        try:
            if line["LabelName"] not in wanted:
                continue
            box = [float(line[side]) for side in ("XMin", "YMin", "XMax", "YMax")]
            if not all(map(math.isfinite, box)):
                raise ValueError("a side is not a finite number")
            row = (wanted[line["LabelName"]], box[0], box[1], box[2], box[3], line["IsGroupOf"] == "1")
            rows.setdefault(line["ImageID"], []).append(row)
        except (KeyError, ValueError, TypeError) as error:
            raise FileFormatError(
                f"line {number} of {path}: {type(error).__name__} {error}",
                "columns are ImageID, LabelName, XMin, XMax, YMin, YMax, IsGroupOf and others",
            ) from None
    collected = _Collected(tuple(classes))
    for image, own in rows.items():
        collected.add(files.inside(root / split, f"{image}.jpg"), None, own)
    return collected.set(str(path))


def descriptions(path: Path) -> dict[str, str]:
    """Map descriptions of classes to identifiers, such as Tortoise → /m/011k07. The file has no header."""
    try:
        with files.open_text(path) as stream:
            return {row[1]: row[0] for row in csv.reader(stream) if len(row) == 2}
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}", f"Open Images has its classes in {DESCRIPTIONS}") from None


def _csv(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        with files.open_text(path) as stream:
            yield from enumerate(csv.DictReader(stream), 2)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"cannot read {path}: {error}", "Open Images has its boxes in SPLIT-annotations-bbox.csv"
        ) from None


# -- what they share --------------------------------------------------------------------------------


class _Collected:
    """The images of a set while it is read, and the rows that were left out."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        if not class_names or len(set(class_names)) < len(class_names):
            raise InputError(f"the classes are {', '.join(class_names) or 'none'}", "name one or more, each once")
        self.class_names = class_names
        self._numbers = {name: k for k, name in enumerate(class_names, 1)}
        self._images: list[AnnotatedImage] = []
        self._others: set[str] = set()
        self._without_area: list[str] = []

    def add(self, path: Path, size: tuple[int, int] | None, rows: Iterable[Row]) -> None:
        boxes, labels, difficult = [], [], []
        for name, *box, is_difficult in rows:
            left, top, right, bottom = (min(max(float(side), 0.0), 1.0) for side in box)
            if name not in self._numbers:
                self._others.add(name)
            elif right <= left or bottom <= top:
                self._without_area.append(path.name)
            else:
                boxes.append((left, top, right, bottom))
                labels.append(self._numbers[name])
                difficult.append(bool(is_difficult))
        objects = Objects(
            torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
            torch.tensor(labels, dtype=torch.int64),
            torch.tensor(difficult, dtype=torch.bool),
        )
        self._images.append(AnnotatedImage(path, size, objects))

    def set(self, source: str) -> DetectionSet:
        if not self._images:
            raise InputError(
                f"{source} lists no picture", "name a split that has pictures with objects of these classes"
            )
        notes = []
        if self._without_area:
            notes.append(
                f"left out {how_many(len(self._without_area), 'boxes')} without an area in the picture: {some(self._without_area)}"
            )
        if self._others:
            notes.append(f"objects of {len(self._others):,} other classes are not read: {some(sorted(self._others))}")
        return DetectionSet(self.class_names, tuple(self._images), tuple(notes))
