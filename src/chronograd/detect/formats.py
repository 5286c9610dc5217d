"""The picture formats that data sets and the server read, and the rotation of a picture to upright.

Pillow knows other formats. Some of them start programs (EPS) or fail in many ways.
"""

from __future__ import annotations

from typing import Any

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ORIENTATION = 0x0112  # EXIF 2.3, table 4
# EXIF orientation → Pillow's Image.Transpose that turns the picture upright.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_SWAPPING = (5, 6, 7, 8)


def turn_of(image: Any) -> int:
    """Return the EXIF orientation of an opened picture; 1 if it is upright, or its EXIF is damaged, as in ImageNet."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a decoder can raise anything
        return 1
    return value if isinstance(value, int) and value in _TURNS else 1


def upright(picture: Any, turn: int) -> Any:
    """Return the pixels of a picture turned upright: a Pillow image, which may have lost its EXIF, and the `turn_of` its file."""
    return picture.transpose(_TURNS[turn]) if turn in _TURNS else picture


def upright_size(image: Any) -> tuple[int, int]:
    """Return the width and height of an opened picture after it is turned upright."""
    width, height = image.size
    return (height, width) if turn_of(image) in _SWAPPING else (width, height)
