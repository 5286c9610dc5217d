"""Small folders of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,), "CMYK": (4,)}


def _picture(
    path: Path, size: tuple[int, int] = (12, 10), mode: str = "RGB", seed: int = 0, orientation: int = 1
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(0, 256, (size[1], size[0], *_CHANNELS[mode])).astype(np.uint8)
    exif = Image.Exif()
    if orientation != 1:
        exif[0x0112] = orientation
    Image.frombytes(mode, size, pixels.tobytes()).save(path, exif=exif)
    return path


def _folder(
    root: Path, train: dict[str, int], test: dict[str, int] | None = None, size: tuple[int, int] = (12, 10)
) -> Path:
    parts = {".": train} if test is None else {"train": train, "val": test}
    seed = 0
    for part, classes in parts.items():
        for name, count in classes.items():
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                seed += 1
                _picture(root / part / name / f"{i:03d}.png", size, seed=seed)
    return root


@pytest.fixture
def picture() -> Callable[..., Path]:
    """Return a function that writes a picture of seeded noise, with a size of (width, height)."""
    return _picture


@pytest.fixture
def folder() -> Callable[..., Path]:
    """Return a function that writes PNGs into train/CLASS and val/CLASS, or into CLASS alone without a test split."""
    return _folder
