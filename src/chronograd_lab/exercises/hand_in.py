"""The hand-in: an executed notebook for each problem of an exercise, with its data, in one archive."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section
from chronograd.errors import InputError
from chronograd.files import as_asked, replacing
from chronograd.report.markdown import heading, markdown, settings
from chronograd.report.notebook import code_cell, execute, save_beside, section_cells, text_cell
from chronograd_lab.exercises.pages import SOURCES, Concept, Library, rests_on, without_links
from chronograd_lab.exercises.questions import AnsweringSection, Exercise, Question, catalogue, label

_READ = """\
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
from pathlib import Path

from IPython.display import SVG

from chronograd.answer import Answer
from chronograd.report import plots

page = Answer.load(Path({file!r}))  # beside this notebook: figures and tables
"""
_NOT_YET = "This part is not answered yet: no study here asks it."


@dataclass(frozen=True)
class HandIn:
    """The written files. `notes`: questions without an answer, with the reason."""

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
    """Write the archive. The notebook and the notes state what a library does not have.

    Raises: InputError where it cannot be written, RunError if a notebook fails.
    """
    stem = archive_name(exercise, author)
    notebooks, notes = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number, title in enumerate(exercise.problems, 1):
            problem = _Problem(folder / f"{stem}_p{number}.ipynb", library)
            problem.write(f"Problem {number}: {title}", f"{author}, {stem}", catalogue().of(exercise, number))
            notebooks.append(problem.path.name)
            notes += problem.notes
        with as_asked(out), replacing(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(folder).as_posix())
    return HandIn(out, notebooks, list(dict.fromkeys(notes)))


@dataclass
class _Problem:
    """A notebook in progress.

    Attributes:
        sections: of studies, in drawing order, which the notebook reads from its data file; by study and title the part that
            shows one.
        read: concept pages that are already quoted, and their figures shown.
    """

    path: Path
    library: Library
    sections: list[Section] = field(default_factory=list)
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    read: dict[str, Concept] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, title: str, author: str, questions: Iterable[Question]) -> None:
        parts = [cell for question in questions for cell in self._part(question)]
        head = [text_cell(f"# {title}\n\n{markdown(author)}")]
        if self.sections or self.read:
            data = save_beside(Answer(title, sections=self.sections), self.path)
            head.append(code_cell(_READ.format(file=data.name).strip()))
        execute([*head, *parts, *self._how(), *self._sources()], self.path, title)

    def _part(self, question: Question) -> list[Any]:
        name = label(question)
        title = f"## {name}. {markdown(question.asks)}"
        answerable = [source for source in question.answers if self._is_there(question, source)]
        if not answerable:
            return [text_cell(f"{title}\n\n{_NOT_YET if not question.answers else self.notes[-1]}")]
        answer = self.library.answer(Question(question.id, question.asks, tuple(answerable)))
        told = f"**Answer.** {answer}\n\n*Rests on: {rests_on(answerable, self.library)}.*"
        cells = [text_cell(f"{title}\n\n{told}")]
        for source in answerable:
            cells += self._study(source, name) if source.study else self._concept(source)
        return cells

    def _is_there(self, question: Question, source: AnsweringSection) -> bool:
        try:
            self.library.answer(Question("", "", (source,)))
        except InputError as error:
            self.notes.append(f"Part {question.id} lacks something: {error.message}.")
            return False
        return True

    def _study(self, source: AnsweringSection, name: str) -> list[Any]:
        section = self.library.study(source.study).section(source.section)
        before = self.shown.get((source.study, section.title))
        if before is not None:
            return [text_cell(f"### {heading(section.title)}\n\nIt stands under {before[0].lower()}{before[1:]}.")]
        self.shown[source.study, section.title] = name
        self.sections.append(section)
        return section_cells(len(self.sections) - 1, section, self.path.with_suffix(".json"), level=3)

    def _concept(self, source: AnsweringSection) -> list[Any]:
        page = self.library.concept(source.concept)
        cells = [text_cell(f"### {source.section}\n\n{without_links(page.section(source.section))}")]
        if page.figure is not None and page.name not in self.read:
            cells += self._drawing(page, page.figure)
        self.read[page.name] = page
        return cells

    def _drawing(self, page: Concept, figure: Path) -> list[Any]:
        beside = self.path.with_name(f"{self.path.stem}-{figure.name}")
        shutil.copyfile(figure, beside)
        caption = [text_cell(without_links(page.caption))] if page.caption else []
        return [code_cell(f"SVG(filename={beside.name!r})"), *caption]

    def _how(self) -> list[Any]:
        """Return how each study was run, and its results in the folder `data`."""
        names = list(dict.fromkeys(name for name, _ in self.shown))
        cells = []
        for name in names:
            study = self.library.study(name)
            data = self.path.parent / "data" / f"{name}.json"
            data.parent.mkdir(exist_ok=True)
            shutil.copyfile(study.file, data)
            setting = "\n\n".join(settings(study.page)[1:])
            where = f"All runs and curves: `data/{data.name}`."
            cells.append(text_cell(f"## How {name} was run\n\n{setting}\n\n{markdown(study.page.footer)}\n\n{where}"))
        return cells

    def _sources(self) -> list[Any]:
        lists = [f"{page.title}\n\n{page.sources}" for page in self.read.values()]
        return [text_cell("\n\n".join([f"## {SOURCES}", *lists]))] if lists else []
