"""A set of drawn discs in the layout of PASCAL VOC, to try a detector without photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chronograd.detect import pictures

WIDTH, HEIGHT = 96, 72
# Grey levels of the three classes on a background of 120, and diameters in pixels.
LEVELS = {"dark": 30, "light": 240, "middle": 175}
DIAMETERS = (24, 40)
BACKGROUND, NOISE = 120, 12
_SPLITS = ("trainval", "test")


def write_discs(root: Path, train: int, test: int, seed: int = 0) -> None:
    """Write `train` and `test` pictures, each of one or two discs side by side. Existing files stay."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    for split, count in zip(_SPLITS, (train, test), strict=True):
        names = [f"{split}{number:04d}" for number in range(count)]
        for name in names:
            _write_picture(root, name, random)
        (root / "ImageSets/Main" / f"{split}.txt").write_text("\n".join(names))


def _write_picture(root: Path, name: str, random: np.random.RandomState) -> None:
    grey = BACKGROUND + random.randint(-NOISE, NOISE + 1, (HEIGHT, WIDTH))
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    objects = ""
    for half in range(random.randint(1, 3)):
        kind = list(LEVELS)[random.randint(len(LEVELS))]
        side = random.randint(*DIAMETERS)
        left, top = half * WIDTH // 2 + random.randint(0, WIDTH // 2 - side + 1), random.randint(0, HEIGHT - side + 1)
        middle = (side - 1) / 2
        grey[(rows - top - middle) ** 2 + (columns - left - middle) ** 2 <= (side / 2) ** 2] = LEVELS[kind]
        # VOC counts pixels from 1, and the last pixel belongs to the box.
        box = {"xmin": left + 1, "ymin": top + 1, "xmax": left + side, "ymax": top + side}
        sides = "".join(f"<{key}>{value}</{key}>" for key, value in box.items())
        objects += f"<object><name>{kind}</name><bndbox>{sides}</bndbox></object>"
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    (root / f"Annotations/{name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    pictures.write(root / f"JPEGImages/{name}.jpg", np.repeat(grey[:, :, None], 3, axis=2).astype(np.uint8))
