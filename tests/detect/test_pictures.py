"""Detector pictures: upright orientation, positions of labels, and colours of classes."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from chronograd.deploy.detection import DetectorFormat
from chronograd.detect import pictures
from chronograd.detect.annotating import COLOURS, DetectedObject, annotate, colour_of, drawn
from chronograd.detect.pictures import label_places
from chronograd.errors import InputError


def test_labels_do_not_overlap_and_stay_inside() -> None:
    """Forty boxes fill the picture."""
    random = np.random.default_rng(0)
    corners = random.uniform(0, 260, (40, 2))
    boxes = [(x, y, x + 60, y + 50) for x, y in corners.tolist()]
    places = label_places(boxes, [(48.0, 12.0)] * len(boxes), (320, 320))
    labels = [place for place in places if place is not None]
    assert len(labels) > 30
    for one, other in itertools.combinations(labels, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for left, top, right, bottom in labels:
        assert left >= 0
        assert top >= 0
        assert right <= 320
        assert bottom <= 320


def test_label_without_space_is_omitted() -> None:
    box = (0.0, 0.0, 10.0, 10.0)
    assert label_places([box] * 3, [(40.0, 10.0)] * 3, (40, 20)) == [
        (0.0, 0.0, 40.0, 10.0),
        (0.0, 10.0, 40.0, 20.0),
        None,
    ]


def test_class_colour_is_the_same_for_every_network() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == 14
    assert len({colour_of(name) for name in ("RBC", "WBC", "Platelets")}) == 3
    white = torch.full((3, 60, 60), 255, dtype=torch.uint8)
    cell, other = (
        DetectedObject("RBC", 0.9, (10.0, 20.0, 50.0, 50.0)),
        DetectedObject("WBC", 0.8, (30.0, 30.0, 40.0, 40.0)),
    )
    for found in ([cell], [cell, other], [other, cell]):
        assert tuple(drawn(white, found)[35, 10]) == colour_of("RBC")


# EXIF 2.3: the position of row 0 and column 0 in the upright picture, as operations on rows and columns.
UPRIGHT: dict[int, Callable[[Any], Any]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda p: np.rot90(p, 1),
}


def stored(path: Path, orientation: int) -> np.ndarray[Any, Any]:
    """Write a picture of 12 x 8 pixels that EXIF rotates, and return its stored pixels."""
    pixels_HWC = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels_HWC).save(path, exif=exif)
    return pixels_HWC


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_picture_is_read_upright(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "x.png"
    expected_HWC = UPRIGHT[orientation](stored(path, orientation))
    assert np.array_equal(pictures.read(path).permute(1, 2, 0), expected_HWC)
    assert pictures.size_of(path) == expected_HWC.shape[1::-1] == ((8, 12) if orientation > 4 else (12, 8))
    turned, plain = io.BytesIO(path.read_bytes()), io.BytesIO()
    Image.fromarray(np.ascontiguousarray(expected_HWC)).save(plain, "PNG")
    server = DetectorFormat("pixels", 16, 24, None, None, ["a"], 0.5, 10)
    rows, plain_rows = server.read(turned.getvalue()), server.read(plain.getvalue())
    assert np.array_equal(rows[0], plain_rows[0])
    assert rows[1:] == plain_rows[1:] == pictures.size_of(path)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_boxes_are_drawn_on_the_upright_picture(tmp_path: Path, orientation: int) -> None:
    """The stand-in detector returns one box with the size of the upright picture."""
    path = tmp_path / "x.png"
    width, height = UPRIGHT[orientation](stored(path, orientation)).shape[1::-1]

    def find(image: Path) -> list[DetectedObject]:
        across, down = pictures.read(image).shape[:0:-1]
        return [DetectedObject("", 0.9, (0.0, 0.0, across - 1.0, down - 1.0))]

    annotate(tmp_path, find, [path], tmp_path / "out")
    with Image.open(tmp_path / "out" / "x.png") as copy:
        assert copy.size == (width, height)
        assert copy.getpixel((width - 1, height - 1)) == copy.getpixel((0, 0)) == colour_of("")
        assert copy.getexif().get(0x0112, 1) == 1


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_annotation_of_stored_pixels_keeps_their_orientation(tmp_path: Path, orientation: int) -> None:
    """Width and height decide; a picture rotated by 180° counts as upright, as in other tools."""
    path = tmp_path / "x.png"
    stored_HWC = stored(path, orientation)
    upright_HWC = UPRIGHT[orientation](stored_HWC)
    as_stored = pictures.read(path, (12, 8)).permute(1, 2, 0)
    assert np.array_equal(as_stored, stored_HWC if orientation > 4 else upright_HWC)
    assert np.array_equal(pictures.read(path, upright_HWC.shape[1::-1]).permute(1, 2, 0), upright_HWC)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EACCES, "Permission denied.*a folder that you may write to"),
        (errno.EROFS, "Read-only file system.*a folder that you may write to"),
        (errno.ENOENT, "its folder takes no new files.*name another folder"),
    ],
)
def test_unwritable_folder_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    """Root may write to any folder, so the test replaces the system's answer."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "x.png")

    monkeypatch.setattr(Image.Image, "save", refuse)
    with pytest.raises(InputError, match=re.compile(told, re.DOTALL)):
        pictures.write(tmp_path / "x.png", np.zeros((4, 4, 3), np.uint8))


def test_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown file extension(.|\n)*name a file such as NAME\.png"):
        pictures.write(tmp_path / "x.nothing", np.zeros((4, 4, 3), np.uint8))
