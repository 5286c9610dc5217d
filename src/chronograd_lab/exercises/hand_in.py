"""The hand-in: an executed notebook for each problem of an exercise, with its data, in one archive.

Cells compute the answers. The sections of studies and concept pages with the answers follow them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd import __version__
from chronograd.errors import InputError
from chronograd.files import as_asked, replacing
from chronograd.report.markdown import heading, markdown, settings
from chronograd.report.notebook import code_cell, execute, section_cells, text_cell
from chronograd.words import listed
from chronograd_lab.exercises.cells import DATA, CodeCell, cells
from chronograd_lab.exercises.pages import SOURCES, Concept, Library, rests_on, without_links
from chronograd_lab.exercises.questions import AnsweringSection, Exercise, Question, catalogue, label

_SETUP = '%matplotlib inline\n%config InlineBackend.figure_formats = ["svg"]'
_READ = """\
from IPython.display import SVG

from chronograd.report import plots
from chronograd_lab.exercises.problems import results
from chronograd_lab.studies import find

# The page of each study, made from its runs in the folder `data`.
pages = {{name: find(name).page_or_plain(results(name)) for name in {names}}}
"""
_FILES = "The cells read only files of this archive. They need chronograd {} with the extras for their imports."
_MAY_FAIL = {"tags": ["raises-exception"]}  # on results of a size that lacks something
_LEFT_OUT = "The computation of this part is left out: {}."
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
            problem = _Problem(folder / f"{stem}_p{number}.ipynb", library, cells(exercise.number, number))
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
        cells: of code. The others need the first one.
        incomplete: studies that lack a section, for which no cell runs.
        shown: by study and title of a section the part that shows it.
        read: concept pages that are already quoted, and their figures shown.
    """

    path: Path
    library: Library
    cells: Sequence[CodeCell]
    incomplete: set[str] = field(default_factory=set)
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    read: dict[str, Concept] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, title: str, author: str, questions: Sequence[Question]) -> None:
        asked = [(question, source) for question in questions for source in question.answers]
        self.incomplete = {source.study for question, source in asked if not self._is_there(question, source)}
        parts = [cell for question in questions for cell in self._part(question)]
        head = [text_cell(f"# {title}\n\n{markdown(author)}\n\n{_FILES.format(__version__)}"), code_cell(_SETUP)]
        head += [] if self._lacks(self.cells[0]) else [code_cell(self.cells[0].source, metadata=_MAY_FAIL)]
        head.append(code_cell(_READ.format(names=list(self._studies())).strip()))
        execute([*head, *parts, *self._how(), *self._sources()], self.path, title)
        outputs = [
            output for cell in head + parts for output in cell.get("outputs", []) if output.output_type == "error"
        ]
        self.notes += [f"A computation of {title} failed: {output.ename}: {output.evalue}." for output in outputs]

    def _studies(self) -> dict[str, None]:
        return dict.fromkeys(name for name, _ in self.shown)

    def _part(self, question: Question) -> list[Any]:
        name = label(question)
        title = f"## {name}. {markdown(question.asks)}"
        answerable = [source for source in question.answers if self._is_there(question, source)]
        if not answerable:
            reason = self.notes[-1] if question.answers else _NOT_YET
            return [text_cell(f"{title}\n\n{reason}"), *self._computed(question)]
        answer = self.library.answer(Question(question.id, question.asks, tuple(answerable)))
        told = f"**Answer.** {answer}\n\n*Rests on: {rests_on(answerable, self.library)}.*"
        parts = [text_cell(f"{title}\n\n{told}"), *self._computed(question)]
        for source in answerable:
            parts += self._study(source, name) if source.study else self._concept(source)
        return parts

    def _computed(self, question: Question) -> list[Any]:
        """Return the cells of a question and of its parts, or the reason why one is left out."""
        first, *others = self.cells
        own = [cell for cell in others if f"{cell.question}.".startswith(f"{question.id}.")]
        reasons = [self._lacks(first) or self._lacks(cell) for cell in own]
        return [text_cell(_LEFT_OUT.format(reason)) if reason else code_cell(cell.source, metadata=_MAY_FAIL)
                for cell, reason in zip(own, reasons, strict=True)]  # fmt: skip

    def _lacks(self, cell: CodeCell) -> str:
        """Return what a cell lacks here; empty if nothing. Its studies are then among the data."""
        try:
            for name in cell.studies:
                self._data(name)
        except InputError as error:
            return error.message
        if lacking := self.incomplete.intersection(cell.studies):
            return f"the results of {listed(sorted(lacking))} lack a section"
        return f"it needs {listed(cell.missing_packages)}, not installed here" if cell.missing_packages else ""

    def _is_there(self, question: Question, source: AnsweringSection) -> bool:
        try:
            self.library.answer(Question("", "", (source,)))
        except InputError as error:
            self.notes.append(f"Part {question.id} lacks something: {error.message}.")
            return False
        return True

    def _study(self, source: AnsweringSection, name: str) -> list[Any]:
        page = self.library.study(source.study)
        section, place = page.section(source.section), page.place(source.section)
        before = self.shown.get((source.study, section.title))
        if before is not None:
            return [text_cell(f"### {heading(section.title)}\n\nIt stands under {before[0].lower()}{before[1:]}.")]
        self.shown[source.study, section.title] = name
        return section_cells(f"pages[{source.study!r}].sections[{place}]", section, level=3)

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
        told = []
        for name in self._studies():
            study, data = self.library.study(name), self._data(name)
            setting = "\n\n".join(settings(study.page)[1:])
            where = f"All runs and curves: `{data}`."
            told.append(text_cell(f"## How {name} was run\n\n{setting}\n\n{markdown(study.page.footer)}\n\n{where}"))
        return told

    def _data(self, study: str) -> Path:
        """Copy the results of a study next to the notebook, and return their path from there. Raises InputError."""
        path = DATA / f"{study}.json"
        source, target = self.library.study(study).file, self.path.parent / path
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        return path

    def _sources(self) -> list[Any]:
        lists = [f"{page.title}\n\n{page.sources}" for page in self.read.values()]
        return [text_cell("\n\n".join([f"## {SOURCES}", *lists]))] if lists else []
