"""`annotate IMAGE...`: pictures with the boxes and labels of a trained or a pretrained detector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.verbs.request import FILE, FOLDER, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Annotate(Request):
    """Draw the objects that a trained detector finds in each IMAGE: boxes, classes, scores."""

    verb = "annotate"
    examples = (
        "chronograd annotate BloodImage_00007.jpg --model runs/cells",
        "chronograd annotate photos/*.jpg --model runs/cells --least 0.3 --out boxes",
        "chronograd annotate BloodImage_00007.jpg --model cells.onnx",
        "chronograd annotate cat.jpg --model objectron_solution_packed_assets.data",
    )

    images: Annotated[tuple[Path, ...], FILE, Spelling(metavar="IMAGE...", is_argument=True)]
    model: Annotated[Path, click.Path(path_type=Path), Spelling(metavar="RUN")]
    """A run of task=detection, FILE.onnx, or a detector of `chronograd weights`."""
    least: Annotated[float, click.FloatRange(0, 1)] = 0.5
    """Minimum score of the boxes to draw."""
    out: Annotated[Path, FOLDER] = Path("annotated")
    """Folder for the copies with boxes."""

    def answer(self) -> Answer:
        from chronograd.detect.annotating import annotate
        from chronograd.models import pretrained

        listed = pretrained.known(self.model.name)
        if self.model.suffix == ".onnx":
            from chronograd.deploy.annotating import finder

            find = finder(self.model, self.least)
        elif listed is not None and listed.classes:
            from chronograd.train import annotating

            find = annotating.finder_of(listed, self.model, self.least)
        else:
            from chronograd.rundir import RunDir
            from chronograd.train import annotating

            find = annotating.finder(RunDir.open(self.model), self.least)
        return annotate(self.model, find, self.images, self.out, self.least)


REQUESTS = (Annotate,)
