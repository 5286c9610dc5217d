"""Pictures on disk: decode, turn upright, convert to RGB and resize."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.data.layouts import MAX_SHOWN, printable
from chronograd.detect.formats import FORMATS, turn_of, upright
from chronograd.errors import FileFormatError, MissingExtraError
from chronograd.files import open_plain
from chronograd.words import how_many

try:
    from PIL import Image
except ImportError:
    raise MissingExtraError("Pillow", "vision", "a folder of pictures") from None

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# Old sets have .ppm and .pgm. A server refuses them, because their text form is slow to decode.
READ = (*FORMATS, "PPM")


@dataclass(frozen=True)
class Header:
    """The header of a picture: width and height as stored, Pillow's mode, and whether EXIF rotates it."""

    size: tuple[int, int]
    mode: str
    is_turned: bool


def header(path: Path) -> Header:
    """Read the header of a file without its pixels, so a truncated file passes. Raises FileFormatError."""
    with _opened(path) as image:
        return _header(image)


def decode(path: Path, side: int) -> tuple[Pixels, Header]:
    """Decode a picture as uint8 of shape (3, side, side): upright, RGB, the shorter side resized, centre-cropped.

    Transparency is dropped, not blended. Raises FileFormatError that names the file for anything that is not a whole picture.
    """
    with _opened(path) as image:
        if image.format == "PNG":
            with _opened(path) as again:
                again.verify()  # the checksums of chunks, which decoding ignores; JPEG has none
        return pixels_of(image, side), _header(image)


def pixels_of(image: Image.Image, side: int, channels: int = 3) -> Pixels:
    """Convert an opened picture to uint8 of shape (channels, side, side), as `decode` describes; grey with one channel.

    Raises Pillow's errors for a damaged picture.
    """
    picture = upright(_rgb(image), turn_of(image))
    if channels == 1:
        picture = picture.convert("L")
    pixels = np.asarray(_fitted(picture, side))
    return np.ascontiguousarray(np.atleast_3d(pixels).transpose(2, 0, 1))


def resized(pixels_CHW: Pixels, side: int) -> Pixels:
    """Resize an image in memory to shape (C, side, side): the shorter side resized, centre-cropped."""
    if len(pixels_CHW) == 3:
        picture = Image.fromarray(np.ascontiguousarray(pixels_CHW.transpose(1, 2, 0)))
        return np.ascontiguousarray(np.asarray(_fitted(picture, side)).transpose(2, 0, 1))
    return np.stack([np.asarray(_fitted(Image.fromarray(channel), side)) for channel in pixels_CHW])


def notes(root: Path, headers: Iterable[Header], unreadable: Sequence[FileFormatError], side: int) -> list[str]:
    """Describe the pictures that were converted or resized, and those that were left out."""
    headers = list(headers)
    said = []
    if unreadable:
        more = ", …" if len(unreadable) > MAX_SHOWN else ""
        shown = "; ".join(error.message for error in unreadable[:MAX_SHOWN]) + more
        said.append(f"left out {how_many(len(unreadable), 'files')} of {root}: {shown}")
    sizes = Counter(h.size for h in headers)
    if len(sizes) > 1 or (sizes and set(sizes) != {(side, side)}):
        width, height = (sorted(size[i] for size in sizes) for i in (0, 1))
        span = f"{_span(width)} wide, {_span(height)} high"
        kinds = "one size" if len(sizes) == 1 else how_many(len(sizes), "sizes")
        said.append(
            f"{how_many(len(headers), 'pictures')} of {kinds} ({span}) {_were(len(headers))} brought to {side}x{side}"
        )
    modes = Counter(h.mode for h in headers if h.mode != "RGB")
    if modes:
        kinds = ", ".join(f"{count:,} {mode}" for mode, count in sorted(modes.items()))
        count = sum(modes.values())
        said.append(f"{how_many(count, 'pictures')} {_were(count)} not RGB and {_were(count)} brought to it: {kinds}")
    turned = sum(h.is_turned for h in headers)
    if turned:
        said.append(
            f"{how_many(turned, 'pictures')} {_were(turned)} turned upright by {'its' if turned == 1 else 'their'} EXIF orientation"
        )
    return said


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _span(lengths: Sequence[int]) -> str:
    """Return a range of lengths as text.

    >>> _span([20, 30]), _span([20, 20])
    ('20 to 30', '20')
    """
    return f"{lengths[0]}" if lengths[0] == lengths[-1] else f"{lengths[0]} to {lengths[-1]}"


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with open_plain(path) as stream, Image.open(stream, formats=READ) as image:
            yield image
    except (MemoryError, FileFormatError):
        raise
    except Exception as error:  # a decoder can raise anything
        raise _unreadable(path, error) from None


def _header(image: Image.Image) -> Header:
    return Header(image.size, image.mode, turn_of(image) != 1)


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB. Sixteen-bit grey keeps its upper eight bits; a palette first loses its transparency."""
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _fitted(image: Image.Image, side: int) -> Image.Image:
    """Resize the shorter side to `side`, bilinear with antialiasing, and crop the centre: torchvision's Resize and CenterCrop."""
    width, height = image.size
    shorter = min(width, height)
    if shorter != side:
        width, height = int(side * width / shorter), int(side * height / shorter)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image if image.size == (side, side) else image.crop((left, top, left + side, top + side))


def _unreadable(path: Path, error: Exception) -> FileFormatError:
    reason = " ".join(str(error).split()) or type(error).__name__
    if "cannot identify image file" in reason:
        reason = f"it is not a picture in {', '.join(READ)}"
    return FileFormatError(
        f"{printable(path)} cannot be read: {printable(reason)}",
        "remove or replace the file; data.loading=resident leaves such files out and says so",
    )
