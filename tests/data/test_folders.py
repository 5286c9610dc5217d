"""Pictures: decoded like in torchvision, turned upright, in every mode; damaged ones reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from chronograd.data import folders
from chronograd.errors import FileFormatError

Make = Callable[..., Path]


@pytest.mark.parametrize("size", [(40, 30), (30, 47), (16, 16), (8, 9), (33, 16)])
def test_pixels_match_torchvision(tmp_path: Path, picture: Make, size: tuple[int, int]) -> None:
    path = picture(tmp_path / "x.png", size)
    pixels_CHW, header = folders.decode(path, 16)
    theirs = v2.Compose([v2.Resize(16), v2.CenterCrop(16)])(Image.open(path))
    assert np.array_equal(pixels_CHW, np.asarray(theirs).transpose(2, 0, 1))
    assert header == folders.Header(size, "RGB", False) == folders.header(path)
    assert pixels_CHW.dtype == np.uint8


def test_resized_arrays_match_torchvision(tmp_path: Path, picture: Make) -> None:
    path = picture(tmp_path / "x.png", (30, 20))
    whole_CHW = np.asarray(Image.open(path)).transpose(2, 0, 1)
    expected, _ = folders.decode(path, 12)
    assert np.array_equal(folders.resized(whole_CHW, 12), expected)
    # Channels are independent, for any number of them.
    assert np.array_equal(folders.resized(whole_CHW[:2], 12), expected[:2])
    assert np.array_equal(folders.resized(whole_CHW[1:2], 12), expected[1:2])


def test_uniform_picture_stays_uniform() -> None:
    assert (folders.resized(np.full((3, 5, 9), 77, np.uint8), 20) == 77).all()


# EXIF 2.3: the position of row 0 and column 0 in the upright picture, as operations on rows and columns.
UPRIGHT = {
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda p: np.rot90(p, 1),
}


@pytest.mark.parametrize("orientation", [1, *UPRIGHT, 9])
def test_pictures_are_turned_upright(tmp_path: Path, picture: Make, orientation: int) -> None:
    path = picture(tmp_path / "x.png", (10, 10), orientation=orientation)
    stored_HWC = np.asarray(Image.open(path))
    expected = UPRIGHT.get(orientation, lambda p: p)(stored_HWC)
    pixels_CHW, header = folders.decode(path, 10)
    assert np.array_equal(pixels_CHW, expected.transpose(2, 0, 1))
    assert header.is_turned == (orientation in UPRIGHT)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA"])
def test_modes_are_converted_to_rgb(tmp_path: Path, picture: Make, mode: str) -> None:
    path = picture(tmp_path / "x.png", (10, 10), mode)
    stored = np.asarray(Image.open(path)).reshape(10, 10, -1)
    pixels_CHW, header = folders.decode(path, 10)
    expected = stored[:, :, :3] if mode == "RGBA" else np.repeat(stored[:, :, :1], 3, axis=2)  # transparency is dropped
    assert np.array_equal(pixels_CHW, expected.transpose(2, 0, 1))
    assert header.mode == mode


def test_sixteen_bit_grey_keeps_its_upper_bits(tmp_path: Path) -> None:
    values = np.arange(0, 65536, 656, dtype=np.uint16)[:100].reshape(10, 10)
    Image.fromarray(values).save(tmp_path / "x.png")
    pixels_CHW, header = folders.decode(tmp_path / "x.png", 10)
    assert np.array_equal(pixels_CHW, np.repeat((values >> 8)[None], 3, axis=0))
    assert header.mode == "I;16"


def test_palettes_bits_and_cmyk_are_read(tmp_path: Path, picture: Make) -> None:
    """Warnings are errors here."""
    colours = Image.open(picture(tmp_path / "x.png", (10, 10))).quantize(256)
    colours.save(tmp_path / "palette.png", transparency=b"\x00" * 16)
    colours.save(tmp_path / "palette.gif")
    Image.fromarray(np.eye(10, dtype=bool)).save(tmp_path / "bits.png")
    picture(tmp_path / "cmyk.jpg", (10, 10), "CMYK")
    expected = np.asarray(colours.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(folders.decode(tmp_path / "palette.png", 10)[0], expected)
    assert folders.decode(tmp_path / "bits.png", 10)[0][0].tolist() == (255 * np.eye(10, dtype=int)).tolist()
    assert folders.decode(tmp_path / "cmyk.jpg", 10)[1].mode == "CMYK"


def test_truncated_or_foreign_files_are_reported(tmp_path: Path, picture: Make) -> None:
    whole = picture(tmp_path / "whole.jpg", (64, 64)).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "head.jpg").write_bytes(whole[:100])
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "empty.jpg").touch()
    broken = bytearray(picture(tmp_path / "whole.png", (64, 64)).read_bytes())
    broken[200] ^= 255
    (tmp_path / "broken.png").write_bytes(broken)
    for name in ("cut.jpg", "head.jpg", "text.jpg", "empty.jpg", "broken.png", "none.jpg"):
        with pytest.raises(FileFormatError, match=rf"{name} cannot be read: "):
            folders.decode(tmp_path / name, 16)
    for name in ("text.jpg", "empty.jpg", "none.jpg"):
        with pytest.raises(FileFormatError, match=name):
            folders.header(tmp_path / name)
    assert folders.header(tmp_path / "cut.jpg").size == (64, 64)  # the header does not show that the file is truncated


def test_other_formats_are_refused(tmp_path: Path, picture: Make) -> None:
    """The file name does not matter. Pillow would start a program for EPS. PPM is allowed, as old sets use it."""
    whole = Image.open(picture(tmp_path / "x.png", (10, 10)))
    for kind in ("EPS", "ICO", "PCX"):
        whole.save(tmp_path / "x.jpg", kind)
        for read in (folders.header, lambda path: folders.decode(path, 10)):
            with pytest.raises(
                FileFormatError, match=r"x\.jpg cannot be read: it is not a picture in JPEG, PNG, .*PPM"
            ):
                read(tmp_path / "x.jpg")
    for name in ("x.ppm", "x.pgm", "x.bmp", "x.tif", "x.webp"):
        whole.save(tmp_path / name)
        assert folders.header(tmp_path / name).size == folders.decode(tmp_path / name, 10)[1].size == (10, 10)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_picture_with_damaged_exif_is_read(tmp_path: Path, picture: Make) -> None:
    plain = picture(tmp_path / "x.jpg", (10, 10)).read_bytes()
    exif = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\x00\x12\x01"
    damaged = plain[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + plain[2:]
    (tmp_path / "y.jpg").write_bytes(damaged)
    assert np.array_equal(folders.decode(tmp_path / "y.jpg", 10)[0], folders.decode(tmp_path / "x.jpg", 10)[0])


def test_notes_count_conversions() -> None:
    headers = [folders.Header((20, 10), "RGB", False)] * 3 + [
        folders.Header((10, 30), "L", True),
        folders.Header((16, 16), "RGBA", False),
    ]
    errors = [FileFormatError(f"{i}.jpg cannot be read: broken") for i in range(5)]
    left, sizes, modes, turned = folders.notes(Path("some"), headers, errors, 16)
    assert left == (
        "left out 5 files of some: 0.jpg cannot be read: broken; 1.jpg cannot be read: broken; "
        "2.jpg cannot be read: broken, …"
    )
    assert sizes == "5 pictures of 3 sizes (10 to 20 wide, 10 to 30 high) were brought to 16x16"
    assert modes == "2 pictures were not RGB and were brought to it: 1 L, 1 RGBA"
    assert turned == "1 picture was turned upright by its EXIF orientation"
    assert folders.notes(Path("some"), [folders.Header((16, 16), "RGB", False)] * 9, [], 16) == []


def test_notes_use_the_singular() -> None:
    (note,) = folders.notes(Path("x"), [folders.Header((20, 30), "RGB", False)] * 300, [], 16)
    assert note == "300 pictures of one size (20 wide, 30 high) were brought to 16x16"
    (note,) = folders.notes(Path("x"), [folders.Header((20, 30), "RGB", False)], [], 16)
    assert note == "1 picture of one size (20 wide, 30 high) was brought to 16x16"
