"""The hand-in: an executed notebook for each problem of an exercise, with everything that its cells read, in one archive."""

from __future__ import annotations

import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from chronograd.errors import InputError
from chronograd.files import as_asked, replacing
from chronograd_lab.exercises import enclosed
from chronograd_lab.exercises.cells import cells
from chronograd_lab.exercises.notebooks import ProblemNotebook
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import Exercise, catalogue


@dataclass(frozen=True)
class HandIn:
    """The written files. `notes`: questions without an answer, with the reason; missing files, with the command that makes them."""

    archive: Path
    notebooks: list[str]
    notes: list[str]


def archive_name(exercise: Exercise, author: str) -> str:
    """Return the name of the archive without its ending, which also begins the names of notebooks. Raises InputError for an id
    that is not safe in a file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", author):
        raise InputError(
            f"id {author!r} stands in names of files", "give letters, digits, dots, hyphens and underscores"
        )
    return f"{author}_{exercise.assignment}"


def hand_in(exercise: Exercise, author: str, library: Library, out: Path) -> HandIn:
    """Write the archive. The notebooks and the notes state what a library does not have.

    Raises: InputError where it cannot be written, RunError if a notebook fails.
    """
    stem = archive_name(exercise, author)
    notebooks, notes, studies = [], [], dict[str, None]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        notes += enclosed.before(folder, exercise, library)
        for number, title in enumerate(exercise.problems, 1):
            code = cells(exercise.number, number)
            problem = ProblemNotebook(folder / f"{stem}_p{number}.ipynb", library, code)
            problem.write(f"Problem {number}: {title}", f"{author}, {stem}", catalogue().of(exercise, number))
            notebooks.append(problem.path.name)
            notes += problem.notes
            studies |= problem.used
        notes = list(dict.fromkeys(notes))
        enclosed.after(folder, exercise, notebooks, list(studies), notes)
        with as_asked(out), replacing(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(folder).as_posix())
    return HandIn(out, notebooks, notes)
