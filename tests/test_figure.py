"""Figures as data: they round-trip through JSON, and their rows describe the content."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from chronograd.figure import (
    Bar,
    Bars,
    Figure,
    Lines,
    Mark,
    Picture,
    PictureRow,
    Pictures,
    Range,
    Ranges,
    Series,
    png_base64,
)

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (32, 32, 4), (3, 4), (9, 2, 1)])
@pytest.mark.parametrize("is_smooth", [True, False])
def test_png_has_the_exact_pixels(shape, is_smooth):
    size = int(np.prod(shape))
    pixels = np.arange(size) if is_smooth else np.random.default_rng(0).integers(0, 256, size)
    pixels_HWC = pixels.astype(np.uint8).reshape(shape)
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(png_base64(pixels_HWC)))))
    expected = pixels_HWC[..., 0] if shape[2:] == (1,) else pixels_HWC
    np.testing.assert_array_equal(read, expected)


def test_png_of_a_sliced_array():
    whole = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(png_base64(whole[::2, 1:5])))))
    np.testing.assert_array_equal(read, whole[::2, 1:5])


@pytest.mark.parametrize(
    "pixels",
    [GREY.astype(float), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(4, np.uint8)],
    ids=["float", "two channels", "empty", "one axis"],
)
def test_invalid_picture_is_refused(pixels):
    with pytest.raises(ValueError, match=r"are no picture; give uint8 pixels of shape height × width"):
        png_base64(pixels)


def test_picture_is_png_and_a_grid_needs_one():
    with pytest.raises(ValueError, match="'cat' is not PNG in base64; make it with png_base64"):
        Picture("cat", base64.b64encode(b"GIF89a......").decode())
    with pytest.raises(ValueError, match="none of 2 rows has a picture"):
        Pictures([PictureRow("a", []), PictureRow("b", [])])


def test_every_panel_kind_round_trips_through_json():
    figure = Figure(
        [
            Lines(
                "augmentation",
                "accuracy, %",
                [
                    Series(
                        "ours",
                        "measured",
                        [0, 1],
                        [1.0, None],
                        [0.5, None],
                        [1.5, None],
                        is_joined=True,
                        notes=["a", "b"],
                    )
                ],
                [Mark("y", 2.0, "target")],
                x_ticks=[0, 1],
                x_names=["none", "flip"],
            ),
            Bars("s", "device", [Bar("a", "measured", {"forward": 1.0}, 0.5, 1.5, "note")], {"forward": "blue"}),
            Ranges("ratio", "case", [Range("a", 1.1, 0.9, 1.3)]),
            Pictures([PictureRow("digits", [Picture("3\nsaid 8", png_base64(GREY))])]),
        ]
    )
    assert TypeAdapter(Figure).validate_python(json.loads(json.dumps(asdict(figure)))) == figure


def test_rows_of_pictures_have_titles_without_pixels():
    png = png_base64(GREY)
    grid = Pictures(
        [PictureRow("a", [Picture("3\nsaid 8", png), Picture("4", png)]), PictureRow("b", [Picture("", png)])]
    )
    assert Figure([grid]).rows() == [
        {"row": "a", "picture": "3, said 8"},
        {"row": "a", "picture": "4"},
        {"row": "b", "picture": ""},
    ]


def test_rows_of_a_categorical_axis_have_its_names():
    series = Series("ours", "measured", [0, 1, 0.5], [3.0, 4.0, 5.0])
    lines = Lines("method", "accuracy", [series], x_ticks=[0, 1], x_names=["none", "flip"])
    assert [row["method"] for row in lines.data()] == ["none", "flip", 0.5]
    with pytest.raises(ValueError, match="1 x_names for 2 x_ticks of 'accuracy'"):
        Lines("method", "accuracy", [series], x_ticks=[0, 1], x_names=["none"])
