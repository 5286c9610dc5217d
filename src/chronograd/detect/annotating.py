"""The work and the answer of `annotate`: the objects that a detector detects in pictures, drawn with their labels.

A detector is a run of training, or an ONNX file.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from chronograd.answer import Answer, Section, Table
from chronograd.detect import pictures
from chronograd.detect.pictures import Box, Colour, LabelledBox, Pixels
from chronograd.errors import InputError
from chronograd.words import how_many, listed

# Minimum score of objects that are drawn and listed by default: scores of SSD are probabilities.
MIN_DRAWN_SCORE = 0.5
# Distinguishable with a colour-vision deficiency, too (Okabe and Ito, 2008), each also at half its brightness.
_HUES = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (230, 159, 0), (204, 121, 167), (86, 180, 233), (240, 228, 66))
COLOURS: Sequence[Colour] = (*_HUES, *((r // 2, g // 2, b // 2) for r, g, b in _HUES))


class DetectedObject(NamedTuple):
    """A detected object: its class, its score, and left, top, right, bottom in pixels of the picture."""

    name: str
    score: float
    box: Box


Find = Callable[[Path], Sequence[DetectedObject]]


def colour_of(name: str) -> Colour:
    """Return the colour of a class. It depends on the name alone, so it is the same in every picture and for every network."""
    return COLOURS[zlib.crc32(name.encode()) % len(COLOURS)]


def annotate(
    model: Path, find: Find, images: Sequence[Path], out: Path, least_score: float = MIN_DRAWN_SCORE
) -> Answer:
    """Draw the detections in each picture. The copies have the names of the pictures, in the folder `out`.

    Args:
        model: the file or run of the detector. least_score: minimum score of the objects that `find` returns.

    Raises: InputError for two pictures of one name, a copy that would replace its picture, and a folder that cannot be
    written; FileFormatError for a file that is not a picture.
    """
    repeated = [name for name, count in Counter(path.name for path in images).items() if count > 1]
    if repeated:
        raise InputError(
            f"two pictures are called {repeated[0]}", "annotate them one after the other, in two folders --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}", "name another in --out") from None
    rows = []
    for path in images:
        copy = out / path.name
        if copy.exists() and copy.samefile(path):
            raise InputError(f"{copy} is the picture itself", "name another folder in --out")
        picture = pictures.read(path)
        found = find(path)
        pictures.write(copy, drawn(picture, found))
        objects = [{"class": one.name, "score": round(one.score, 4), "box": list(one.box)} for one in found]
        rows.append({"image": str(path), "file": str(copy), "objects": objects})
    return _answer(model, rows, out, least_score)


def drawn(picture_CHW: Tensor, found: Sequence[DetectedObject], with_scores: bool = True) -> Pixels:
    """Draw boxes, and labels with class and score; those with higher scores lie on top."""
    marks = [
        LabelledBox(one.box, one.name + (f" {one.score:.2f}" if with_scores else ""), colour_of(one.name))
        for one in found
    ]
    return pictures.marked(picture_CHW, marks)


def _answer(model: Path, rows: Sequence[dict[str, Any]], out: Path, least_score: float) -> Answer:
    counts = Counter(one["class"] for row in rows for one in row["objects"])
    total = sum(counts.values())
    of = listed([f"{count:,} {name}" for name, count in counts.most_common()])
    section = Section(
        title="Objects",
        takeaway=f"{how_many(total, 'objects')} in {how_many(len(rows), 'pictures')}{f': {of}' if of else ''}; drawn in {out}.",
        table=Table(
            ("picture", "class", "score", "left", "top", "right", "bottom"),
            [
                [Path(row["image"]).name, one["class"], f"{one['score']:.2f}", *(f"{side:.0f}" for side in one["box"])]
                for row in rows
                for one in row["objects"]
            ],
            {2, 3, 4, 5, 6},
            most=40,
        ),
        caption=f"Scores of {least_score:g} or more; boxes in pixels of the picture.",
    )
    data = {"model": str(model), "least_score": least_score, "images": list(rows)}
    return Answer(title=f"Objects detected by {model.name}", sections=[section], data=data)
