"""`hand-in`: an exercise's answers as executed notebooks in an archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from chronograd.verbs.request import FILE, FOLDER, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class HandInExercise(Request):
    """Save a notebook for each problem, executed, with its data.

    Code cells compute the answers, from the results of studies where runs take long. Sections of studies and of concept pages
    explain them; `chronograd study list` shows the studies. The folder of studies has NAME/results.json, or
    NAME-SIZE/results.json as `study run` writes it. The notebook states what is missing. Exercise 3 needs the extra onnx for
    its ONNX file.
    """

    verb = "hand-in"
    examples = (
        "chronograd hand-in --exercise 1 --id ab1234 --out ab1234_hw4.zip",
        "chronograd hand-in --exercise 3 --id ab1234 --studies studies",
    )
    is_verbatim = True

    exercise: Literal["1", "2", "3"]
    """Number of the exercise."""
    author: Annotated[str, Spelling(("--id",), metavar="NAME", aliases=("id",))]
    """Your id, with which the names of the files begin."""
    out: Annotated[Path | None, FILE] = None
    """Archive to write; NAME_hwN.zip by default."""
    studies: Annotated[Path | None, FOLDER] = None
    """Folder of studies; by default docs/studies of a checkout, or studies."""

    def answer(self) -> Answer:
        from chronograd.answer import Answer, Section
        from chronograd.errors import InputError
        from chronograd_lab.exercises.hand_in import archive_name, hand_in
        from chronograd_lab.exercises.pages import STUDIES, Library
        from chronograd_lab.exercises.questions import catalogue

        exercise = catalogue().handed_in()[self.exercise]
        out = self.out or Path(f"{archive_name(exercise, self.author)}.zip")
        folder = self.studies or next((path for path in STUDIES if path.is_dir()), None)
        if folder is None:
            raise InputError(
                f"no folder with results of studies: neither {' nor '.join(map(str, STUDIES))} is here",
                "change into a checkout of Chronograd, name its docs/studies with --studies DIR, or make results with "
                "`chronograd study run`",
            )
        if not folder.is_dir():
            raise InputError(
                f"--studies {folder} is no folder",
                "name a folder of studies, such as docs/studies of a checkout of Chronograd",
            )
        written = hand_in(exercise, self.author, Library(folder), out)
        data = {"archive": str(out), "notebooks": written.notebooks, "notes": written.notes}
        section = Section("Archive", f"saved {out}: {', '.join(written.notebooks)}")
        return Answer("Hand-in", sections=[section], notes=written.notes, data=data)

    def summary(self, answer: Answer) -> list[str]:
        return [*(f"note: {note}" for note in answer.notes), answer.sections[0].takeaway]


REQUESTS = (HandInExercise,)
