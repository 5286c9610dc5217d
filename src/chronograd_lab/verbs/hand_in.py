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
    """Save a notebook for each problem, executed, in an archive that runs without anything else.

    Code cells compute the answers. A cell of a part that trains does so for about half a minute at a small size, then shows the
    published results. The archive brings these results, the code of the studies, logs and the package itself. It states what is
    missing. Results of your `study run` in the folder of studies, NAME/results.json or NAME-SIZE/results.json, replace
    published ones. Exercise 3 needs the extras serve, reinforcement and ray.
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
    """Folder of studies, such as studies; published results by default, and for studies that it lacks."""

    def answer(self) -> Answer:
        from chronograd.answer import Answer, Section
        from chronograd.errors import InputError
        from chronograd_lab.exercises.hand_in import archive_name, hand_in
        from chronograd_lab.exercises.pages import Library, shipped
        from chronograd_lab.exercises.questions import catalogue

        exercise = catalogue().handed_in()[self.exercise]
        out = self.out or Path(f"{archive_name(exercise, self.author)}.zip")
        published = shipped("studies")
        folder = self.studies or published
        if not folder.is_dir():
            raise InputError(
                f"--studies {folder} is no folder", "name a folder that `chronograd study run` wrote, or leave it out"
            )
        written = hand_in(exercise, self.author, Library(folder, otherwise=published), out)
        data = {"archive": str(out), "notebooks": written.notebooks, "notes": written.notes}
        section = Section("Archive", f"saved {out}: {', '.join(written.notebooks)}")
        return Answer("Hand-in", sections=[section], notes=written.notes, data=data)

    def summary(self, answer: Answer) -> list[str]:
        return [*(f"note: {note}" for note in answer.notes), answer.sections[0].takeaway]


REQUESTS = (HandInExercise,)
