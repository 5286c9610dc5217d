"""`label RUN DATA`: images labelled by a trained network, the best of each class stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.verbs.request import FILE, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Label(Request):
    """Label the training images of a data set with the network of a RUN, and store the best of each class.

    FIELDs are those of a job's data and change the RUN's own. A student learns from the file through data.labels.
    """

    verb = "label"
    examples = (
        "chronograd label runs/teacher data.skip=1000 data.samples=20000 -P 5 -K 1000 --out selected.npz",
        "chronograd train student.yaml data.labels=selected.npz",
    )

    run: Annotated[Path, click.Path(path_type=Path), Spelling(metavar="RUN", is_argument=True)]
    fields: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    top_classes: Annotated[int, click.IntRange(1), Spelling(("--top-classes", "-P"))] = 1
    """Maximum number of classes that one image may represent."""
    per_class: Annotated[int | None, click.IntRange(1), Spelling(("--per-class", "-K"))] = None
    """Images stored per class; all by default."""
    soft: bool = False
    """Store each image once, with the probabilities of all classes."""
    out: Annotated[Path, FILE]
    """File to write, for data.labels."""

    def answer(self) -> Answer:
        from chronograd.rundir import RunDir
        from chronograd.train.labelling import data_of, label

        run = RunDir.open(self.run)
        return label(run, data_of(run, self.fields), self.out, top_classes=self.top_classes, per_class=self.per_class,
                     is_soft=self.soft)  # fmt: skip


REQUESTS = (Label,)
