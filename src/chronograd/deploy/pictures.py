"""Pictures in the bodies of requests: decoded with Pillow, of a bounded size."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeVar

from chronograd.deploy.protocol import ProtocolError
from chronograd.detect.formats import FORMATS

MAX_PIXELS = 50_000_000  # a file of a few bytes may claim any number
T = TypeVar("T")


def read(content: bytes, make: Callable[[Any], T], hold: Callable[[int], None] = lambda count: None) -> T:
    """Return the result of `make` on the opened picture.

    Args:
        hold: called with the bytes of the decoded pixels before they are decoded, and with minus these afterwards.

    Raises: ProtocolError for a body that is not a picture, or a picture that is too large.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise ProtocolError("this server cannot read pictures: Pillow is not installed", 501) from None
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise ProtocolError(
                    f"the picture has {width} x {height} pixels; at most {MAX_PIXELS:,} are allowed", 413
                )
            hold(4 * width * height)
            try:
                return make(picture)
            finally:
                hold(-4 * width * height)
    except ProtocolError:
        raise
    except UnidentifiedImageError:
        raise ProtocolError(f"the body is not a readable picture: it is not {', '.join(FORMATS)}") from None
    except Exception as error:  # a decoder can raise anything
        reason = " ".join(str(error).split())[:80]
        raise ProtocolError(f"the body is not a readable picture: {reason}") from None
