"""Detection sets, in small folders with the real layout."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from chronograd.data.published import data_folder
from chronograd.detect.sets import coco, open_images, voc
from chronograd.errors import FileFormatError, InputError, NotFoundError

OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
<xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox>{more}</object>"""
PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"


def picture(path: Path, width: int = 40, height: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3) % 256
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def annotation(*objects: str, size: tuple[int, int] | None = (40, 20)) -> str:
    told = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>" if size else ""
    return f"<annotation>{told}{''.join(objects)}</annotation>"


def voc_object(name: str, *box: float, difficult: int = 0, more: str = "") -> str:
    return OBJECT.format(*box, name=name, difficult=difficult, more=more)


def voc_folder(root: Path, annotations: dict[str, str], splits: dict[str, str]) -> Path:
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for name, text in annotations.items():
        (root / "Annotations" / f"{name}.xml").write_text(text)
        picture(root / "JPEGImages" / f"{name}.jpg")
    for split, text in splits.items():
        (root / "ImageSets/Main" / f"{split}.txt").write_text(text)
    return root


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    annotations = {
        "000001": annotation(
            voc_object("person", 1, 1, 20, 10, more=PART), voc_object("dog", 11, 6, 40, 20, difficult=1)
        ),
        "000002": annotation(voc_object("cat", 5, 5, 5, 5), size=None),
        "000003": annotation(),
    }
    splits = {"train": "000001\n000003 -1\n", "test": "000002\n", "trainval": "000001\n\n", "dog_train": "000001  1\n"}
    return voc_folder(tmp_path / "VOC2007", annotations, splits)


def test_voc(devkit: Path) -> None:
    train = voc(devkit, "train")
    assert train.class_names == ("cat", "dog", "person")
    first, empty = train.images
    # A pixel is counted from 1 and is in the box: 1 … 20 of 40 is the left half. The part of the person is no object.
    assert torch.equal(first.objects.boxes_G4, torch.tensor([[0, 0, 0.5, 0.5], [0.25, 0.25, 1, 1]]))
    assert first.objects.labels_G.tolist() == [3, 2]
    assert first.objects.is_difficult_G.tolist() == [False, True]
    assert first.size == (40, 20)
    assert first.read().shape == (3, 20, 40)
    assert empty.objects.boxes_G4.shape == (0, 4)
    # the same numbers in another split; without a size that of the picture
    (other,) = voc(devkit, "test").images
    assert other.objects.labels_G.tolist() == [1]
    torch.testing.assert_close(other.objects.boxes_G4, torch.tensor([[4 / 40, 4 / 20, 5 / 40, 5 / 20]]))


def test_voc_of_chosen_classes(devkit: Path) -> None:
    train = voc(devkit, "train", ["person"])
    assert [image.objects.labels_G.tolist() for image in train.images] == [[1], []]
    assert train.notes == ("objects of 1 other classes are not read: dog",)
    with pytest.raises(InputError, match="the classes are dog, dog"):
        voc(devkit, "train", ["dog", "dog"])


def test_invalid_voc_folders(devkit: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no folder Annotations"):
        voc(tmp_path, "train")
    with pytest.raises(NotFoundError, match="did you mean train") as raised:
        voc(devkit, "trian")
    assert "dog_train" not in str(raised.value)
    (devkit / "ImageSets/Main/val.txt").write_text("\n")
    with pytest.raises(InputError, match="lists no picture"):
        voc(devkit, "val")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an annotation"),
        ("<annotation>", "is not an annotation"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "declares a document type"),
        (annotation(voc_object("dog", 10, 1, 5, 5)), "has a box from 10, 1 to 5, 5"),
        (annotation(voc_object("", 1, 1, 5, 5)), "an object without a name"),
        (annotation("<object><name>dog</name></object>"), "has '' for xmin"),
        (annotation("<object><name>dog</name><bndbox><xmin>nan</xmin></bndbox></object>"), "has 'nan' for xmin"),
        ('<?xml version="1.0" encoding="nothing"?><annotation/>', "is not an annotation"),
    ],
)
def test_damaged_annotations_are_reported(devkit: Path, text: str, message: str) -> None:
    (devkit / "Annotations/000001.xml").write_text(text)
    with pytest.raises(FileFormatError, match=f"(?s)000001.xml.*{message}"):
        voc(devkit, "train", ["dog"])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_xml_document_type_is_refused_in_any_encoding(devkit: Path, encoding: str) -> None:
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>'
    (devkit / "Annotations/000001.xml").write_bytes(text.encode(encoding))
    with pytest.raises(FileFormatError, match="declares a document type"):
        voc(devkit, "train", ["dog"])


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n"  # a decompression bomb
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
        + png_chunk(b"IDAT", b""),
        b"DDS " + struct.pack("<31I", 124, *[0] * 30),  # Pillow raises NotImplementedError for this format
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 20\n",  # Pillow starts another program for this one
    ],
)
def test_picture_of_unreadable_size_is_reported(devkit: Path, content: bytes) -> None:
    (devkit / "JPEGImages/000002.jpg").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"000002.jpg cannot be read"):
        voc(devkit, "test")


def test_box_outside_the_picture_is_skipped_and_counted(devkit: Path) -> None:
    text = annotation(voc_object("dog", 41, 1, 50, 5), voc_object("dog", 31, 11, 60, 60))
    (devkit / "Annotations/000001.xml").write_text(text)
    train = voc(devkit, "train", ["dog"])
    assert torch.equal(train.images[0].objects.boxes_G4, torch.tensor([[0.75, 0.5, 1, 1]]))
    assert train.notes == ("left out 1 box without an area in the picture: 000001.jpg",)


def test_size_different_from_the_annotation_is_refused(devkit: Path) -> None:
    (devkit / "Annotations/000001.xml").write_text(annotation(size=(20, 40)))
    with pytest.raises(FileFormatError, match="is 40 x 20, and its annotation says 20 x 40"):
        voc(devkit, "train", ["dog"]).images[0].read()
    (devkit / "JPEGImages/000001.jpg").write_bytes(b"no picture")
    with pytest.raises(FileFormatError, match="it is not a picture"):
        voc(devkit, "train", ["dog"]).images[0].read()
    (devkit / "JPEGImages/000001.jpg").unlink()
    with pytest.raises(FileFormatError, match="the file does not exist"):
        voc(devkit, "train", ["dog"]).images[0].read()


# -- COCO -------------------------------------------------------------------------------------------


def coco_data() -> dict[str, Any]:
    return {
        "images": [
            {"id": 7, "file_name": "b.jpg", "width": 40, "height": 20},
            {"id": 3, "file_name": "a.jpg", "width": 100, "height": 50},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 18, "bbox": [10, 5, 20, 10], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 1, "bbox": [0, 0, 40, 20], "iscrowd": 1},
            {"id": 3, "image_id": 3, "category_id": 1, "bbox": [0, 0, 0, 20], "iscrowd": 0},
        ],
    }


def test_coco(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(coco_data()))
    picture(tmp_path / "b.jpg")
    whole = coco(path, tmp_path)
    # classes by their ids, which have gaps
    assert whole.class_names == ("person", "dog")
    first, second = whole.images
    assert torch.equal(first.objects.boxes_G4, torch.tensor([[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]))
    assert first.objects.labels_G.tolist() == [2, 1]
    assert first.objects.is_difficult_G.tolist() == [False, True]
    assert first.read().shape == (3, 20, 40)
    assert len(second.objects.labels_G) == 0
    assert whole.notes == ("left out 1 box without an area in the picture: a.jpg",)
    assert coco(path, tmp_path, ["dog"]).images[0].objects.labels_G.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1]}]}, "KeyError 9"),
        ({"annotations": [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 1]}]}, "ValueError"),
        ({"annotations": None}, "TypeError"),
        ({"images": [{"id": 7, "file_name": "a", "width": 0, "height": 1}]}, "ZeroDivisionError"),
        ({"categories": []}, "KeyError 18"),
    ],
)
def test_damaged_coco_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "instances.json"
    data = coco_data() | change
    if "images" in change:
        data["annotations"] = data["annotations"][:1]
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match=f"(?s)instances.json is not in the form of COCO.*{message}"):
        coco(path, tmp_path, ["dog"])
    with pytest.raises(InputError, match="cannot read"):
        coco(tmp_path / "none.json", tmp_path)
    path.write_text("{")
    with pytest.raises(FileFormatError, match="is not in the form of COCO"):
        coco(path, tmp_path)


# -- Open Images ------------------------------------------------------------------------------------

HEAD = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
ROWS = [
    "000026e7ee790996,xclick,/m/0gxl3,1,0.25,0.5,0.125,0.75,0,1,0,0,0",
    "000026e7ee790996,xclick,/m/06c54,1,0,1,0,1,0,1,1,0,0",
    "000062a39995e348,xclick,/m/015p6,1,0.2,0.8,0.1,1,0,0,0,0,0",
]


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    (tmp_path / "class-descriptions-boxable.csv").write_text(
        '/m/0gxl3,Handgun\n/m/06c54,Shotgun\n/m/015p6,"Bird, big"\n'
    )
    (tmp_path / "sub-test-annotations-bbox.csv").write_text("\n".join([HEAD, *ROWS]) + "\n")
    (tmp_path / "validation-annotations-bbox.csv").write_text("\n".join([HEAD, *ROWS]) + "\n")
    picture(tmp_path / "validation/000026e7ee790996.jpg")
    return tmp_path


@pytest.mark.parametrize("split", ["validation", "test"])
def test_open_images_of_two_classes(open_folder: Path, split: str) -> None:
    chosen = open_images(open_folder, split, ["Shotgun", "Handgun"])
    assert chosen.class_names == ("Shotgun", "Handgun")
    (image,) = chosen.images
    assert image.path == open_folder / split / "000026e7ee790996.jpg"
    # the columns are XMin, XMax, YMin, YMax; a box around a group is difficult
    assert torch.equal(image.objects.boxes_G4, torch.tensor([[0.25, 0.125, 0.5, 0.75], [0, 0, 1, 1]]))
    assert image.objects.labels_G.tolist() == [2, 1]
    assert image.objects.is_difficult_G.tolist() == [False, True]
    if split == "validation":
        assert image.read().shape == (3, 20, 40)


def test_invalid_open_images_folders(open_folder: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean Handgun"):
        open_images(open_folder, "test", ["Handguns"])
    with pytest.raises(InputError, match=r"train-annotations-bbox\.csv"):
        open_images(open_folder, "train", ["Handgun"])
    path = open_folder / "validation-annotations-bbox.csv"
    path.write_text(HEAD + "\n" + ROWS[0].replace("0.25", "nan") + "\n")
    with pytest.raises(FileFormatError, match=r"line 2 of .*a side is not a finite number"):
        open_images(open_folder, "validation", ["Handgun"])
    path.write_text("ImageID,LabelName\nx,/m/0gxl3\n")
    with pytest.raises(FileFormatError, match="KeyError 'XMin'"):
        open_images(open_folder, "validation", ["Handgun"])
    (open_folder / "class-descriptions-boxable.csv").unlink()
    with pytest.raises(InputError, match="Open Images has its classes in"):
        open_images(open_folder, "validation", ["Handgun"])


@pytest.mark.data
def test_blood_cells() -> None:
    """BCCD has 364 pictures of three cell types in two splits."""
    root = data_folder() / "bccd"
    splits = [voc(root, name) for name in ("trainval", "test")]
    assert {s.class_names for s in splits} == {("Platelets", "RBC", "WBC")}
    assert sum(len(s.images) for s in splits) == 364
    labels = torch.cat([image.objects.labels_G for s in splits for image in s.images])
    without_area = sum(int(note.split()[2]) for s in splits for note in s.notes)
    # The annotations name 361 platelets, 4,155 red and 372 white cells.
    assert len(labels) + without_area == 361 + 4155 + 372
    assert splits[0].images[0].read().shape == (3, 480, 640)
