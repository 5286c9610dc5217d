"""Pictures as tensors for a detector: whole, turned upright by their EXIF; and drawing on them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chronograd.detect.formats import FORMATS, turn_of, upright, upright_size
from chronograd.errors import EXTRAS, FileFormatError, InputError, MissingExtraError
from chronograd.files import as_asked, open_plain

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Colour = tuple[int, int, int]
JPEG = (".jpg", ".jpeg")
# Height of a label's text: minimum in pixels, and as share of the picture's shorter side.
MIN_TEXT = 10
TEXT_SHARE = 0.03


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a picture file after it is turned upright. Raises FileFormatError."""
    with _opened(path) as image:
        return upright_size(image)


def read(path: Path, annotated: tuple[int, int] | None = None) -> Tensor:
    """Read an upright picture in RGB: uint8 of shape (3, H, W). Raises FileFormatError that names the file.

    Args:
        annotated: width and height in the picture's annotation. Some tools annotate the pixels as stored. A picture that has
            this size only before it is turned is not turned.
    """
    with _opened(path) as image:
        is_stored = annotated is not None and annotated == image.size != upright_size(image)
        pixels = np.array(upright(image.convert("RGB"), 1 if is_stored else turn_of(image)))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def resized(picture_CHW: Tensor, height: int, width: int) -> Tensor:
    """Resize regardless of aspect ratio: bilinear, antialiased when shrinking; float32 of the same range."""
    return functional.interpolate(
        picture_CHW[None].float(), (height, width), mode="bilinear", antialias=True, align_corners=False
    )[0]


class LabelledBox(NamedTuple):
    """A box to draw, in pixels, with its label."""

    box: Box
    label: str
    colour: Colour


def marked(picture_CHW: Tensor, marks: Sequence[LabelledBox]) -> Pixels:
    """Draw boxes and labels: uint8 of shape (H, W, 3). The first mark lies on top.

    A label lies at its box and covers no other label. A label without such a place is left out.
    """
    image = _pillow().fromarray(picture_CHW.permute(1, 2, 0).contiguous().numpy())
    drawing = importlib.import_module("PIL.ImageDraw").Draw(image)
    size = max(MIN_TEXT, round(min(image.size) * TEXT_SHARE))
    font = importlib.import_module("PIL.ImageFont").load_default(size)
    for box, _, colour in reversed(marks):
        drawing.rectangle(box, outline=colour, width=max(2, size // 7))
    height = 1.2 * size
    sizes = [(drawing.textlength(label, font=font) + 4 if label else 0.0, height) for _, label, _ in marks]
    for (_, label, colour), place in zip(
        marks, label_places([mark.box for mark in marks], sizes, image.size), strict=True
    ):
        if place is not None and label:
            drawing.rectangle(place, fill=colour)
            luma = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
            middle = (place[0] + 2, (place[1] + place[3]) / 2)
            drawing.text(middle, label, font=font, anchor="lm", fill="black" if luma > 128 else "white")
    return np.array(image)


def label_places(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], picture: tuple[int, int]
) -> list[Box | None]:
    """Return places for labels of these widths and heights: each at its box, in the picture, over no earlier label;
    else None.

    >>> label_places([(0, 20, 40, 40), (0, 20, 30, 40)], [(20, 10), (20, 10)], (40, 40))
    [(0, 10, 20, 20), (0, 20, 20, 30)]
    """
    places: list[Box | None] = []
    for (left, top, right, bottom), (width, height) in zip(boxes, sizes, strict=True):
        # Above the box, inside its upper edge, below it, inside its lower edge; from its left, its right, its middle.
        corners = [
            (min(max(x, 0), picture[0] - width), min(max(y, 0), picture[1] - height))
            for y in (top - height, top, bottom, bottom - height)
            for x in (left, right - width, (left + right - width) / 2)
        ]
        # Then next to it, and anywhere on its sides.
        sides = (min(right, picture[0] - width), max(left - width, 0))
        corners += [
            (x, y) for x in sides for y in np.arange(max(top, 0), min(bottom, picture[1]) - height, height / 2).tolist()
        ]
        tried = [(x, y, x + width, y + height) for x, y in corners]
        free = (one for one in tried if not any(other is not None and _overlap(one, other) for other in places))
        places.append(next(free, None))
    return places


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def write(path: Path, pixels_HWC: Pixels) -> None:
    """Write a picture in the format of its file name's ending. Raises InputError if that fails."""
    image = _pillow().fromarray(pixels_HWC)
    try:
        with as_asked(path):
            image.save(path, **({"quality": 90} if path.suffix.lower() in JPEG else {}))
    except ValueError as error:
        raise InputError(f"cannot write {path}: {error}", "name a file such as NAME.png") from None


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingExtraError("Pillow", EXTRAS["torchvision"], "detection") from None
    return Image


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    opener = _pillow()
    try:
        with open_plain(path) as stream, opener.open(stream, formats=FORMATS) as image:
            yield image
    except Exception as error:  # a decoder can raise anything
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> FileFormatError:
    reason = " ".join(str(error).split()) or type(error).__name__
    if "cannot identify image file" in reason:
        reason = "it is not a picture"
    if isinstance(error, FileNotFoundError):
        reason = "the file does not exist"
    return FileFormatError(
        f"{path} cannot be read: {reason}", "put the picture there, or remove its line from the split"
    )
