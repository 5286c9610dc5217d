"""The notebook of a problem: each question with its answer, the code that computes it, and the text and figures of its sections."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd.errors import InputError
from chronograd.report.markdown import heading, markdown
from chronograd.report.notebook import code_cell, execute, text_cell
from chronograd.words import listed
from chronograd_lab.exercises.cells import DATA, CodeCell
from chronograd_lab.exercises.pages import SOURCES, Concept, Library, rests_on, without_links
from chronograd_lab.exercises.questions import AnsweringSection, Question, label

TRAINING_TIMEOUT_S = 900  # of a cell: training for a minute, on a busy machine
_SETUP = """\
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
from IPython.display import SVG

from chronograd_lab.exercises.problems import evidence"""
_HEAD = "README.md names the files of this archive and the command that installs what the cells import."
_MAY_FAIL = {"tags": ["raises-exception"]}  # on results of a size that lacks something
_LEFT_OUT = "The computation of this part is left out: {}."
MIN_SENTENCE_WORDS = 7
_SENTENCE = re.compile(r"((?<=[.?!])\s+|\n{2,})")
_ITEM = re.compile(r"^- ", re.MULTILINE)
NOT_YET = "This part is not answered yet: no study here asks it."


@dataclass
class ProblemNotebook:
    """A notebook in progress.

    Attributes:
        cells: code cells. The others need the first.
        incomplete: studies that lack a section. No cell runs for these.
        shown: by study and title of a section the part that shows it.
        read: concept pages that are already quoted, and their figures shown.
        used: studies whose results are among the data.
        stated: sentences of the notebook; none stands there twice.
    """

    path: Path
    library: Library
    cells: Sequence[CodeCell]
    incomplete: set[str] = field(default_factory=set)
    shown: dict[tuple[str, str], str] = field(default_factory=dict)
    read: dict[str, Concept] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    stated: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def write(self, title: str, author: str, questions: Sequence[Question]) -> None:
        """Run the notebook and write it. Raises RunError if its kernel fails."""
        notebook_cells = self.build(title, author, questions)
        execute(notebook_cells, self.path, title, TRAINING_TIMEOUT_S)
        outputs = [output for cell in notebook_cells for output in cell.get("outputs", [])]
        errors = [output for output in outputs if output.output_type == "error"]
        self.notes += [f"A computation of {title} failed: {error.ename}: {error.evalue}." for error in errors]

    def build(self, title: str, author: str, questions: Sequence[Question]) -> list[Any]:
        """Return the cells of the notebook, not executed, and write the files that they read."""
        sources = [(question, source) for question in questions for source in question.answers]
        self.incomplete = {source.study for question, source in sources if not self._is_there(question, source)}
        parts = [cell for question in questions for cell in self._part(question)]
        head = [text_cell(f"# {title}\n\n{markdown(author)}\n\n{_HEAD}"), code_cell(_SETUP)]
        head += [] if self._lacks(self.cells[0]) else [code_cell(self.cells[0].source, metadata=_MAY_FAIL)]
        return [*head, *parts, *self._how(), *self._sources()]

    def _part(self, question: Question) -> list[Any]:
        name = label(question)
        title = f"## {name}. {markdown(question.asks)}"
        answerable = [source for source in question.answers if self._is_there(question, source)]
        if not answerable:
            reason = self.notes[-1] if question.answers else NOT_YET
            return [text_cell(f"{title}\n\n{reason}"), *self._computed(question)]
        answer = self._once(self.library.answer(Question(question.id, question.asks, tuple(answerable))))
        basis = f"**Answer.** {answer or 'It stands in the parts before.'}\n\n*Rests on: {rests_on(answerable, self.library)}.*"
        parts = [text_cell(f"{title}\n\n{basis}"), *self._computed(question)]
        for number, source in enumerate(answerable):
            if source.is_linked_only:
                continue
            count = max(source.sentences, number == 0)
            parts += self._study(source, count, name) if source.study else self._concept(source, count)
        return parts

    def _computed(self, question: Question) -> list[Any]:
        """Return the cells of a question and of its parts, or the reason why one is left out."""
        first, *others = self.cells
        selected = [cell for cell in others if f"{cell.question}.".startswith(f"{question.id}.")]
        reasons = [self._lacks(first) or self._lacks(cell) for cell in selected]
        return [
            text_cell(_LEFT_OUT.format(reason)) if reason else code_cell(self._complete(cell), metadata=_MAY_FAIL)
            for cell, reason in zip(selected, reasons, strict=True)
        ]

    def _complete(self, cell: CodeCell) -> str:
        """Return the source of a cell, with the command of the full size if it trains."""
        sizes = {name: self.library.study(name).results.size for name in cell.trained_studies}
        return cell.with_commands(sizes).source

    def _lacks(self, cell: CodeCell) -> str:
        """Return what a cell lacks here; empty if nothing. Its studies are then among the data."""
        studies = list(dict.fromkeys([*cell.studies, *cell.trained_studies]))
        try:
            for name in studies:
                self._data(name)
        except InputError as error:
            return error.message
        if lacking := self.incomplete.intersection(studies):
            return f"the results of {listed(sorted(lacking))} lack a section"
        return f"it needs {listed(cell.missing_packages)}, not installed here" if cell.missing_packages else ""

    def _is_there(self, question: Question, source: AnsweringSection) -> bool:
        try:
            self.library.answer(Question("", "", (source,)))
        except InputError as error:
            self.notes.append(f"Part {question.id} lacks something: {error.message}.")
            return False
        return True

    def _study(self, source: AnsweringSection, count: int, name: str) -> list[Any]:
        """Return the text of a section that the answer does not state, and its figure or table."""
        section = self.library.study(source.study).section(source.section)
        title = heading(section.title)
        before = self.shown.get((source.study, section.title))
        if before is not None:
            return [text_cell(f"*{title}* is shown under {before[0].lower()}{before[1:]}.")]
        self.shown[source.study, section.title] = name
        self._data(source.study)
        text = self._once("\n\n".join(filter(None, (self.library.support(source, count), markdown(section.caption)))))
        cells = [text_cell(f"### {title}\n\n{text}".strip())]
        if section.figure is not None or (section.table is not None and section.table.rows):
            cells.append(code_cell(f"evidence({source.study!r}, {section.title!r})"))
        return cells

    def _concept(self, source: AnsweringSection, count: int) -> list[Any]:
        page = self.library.concept(source.concept)
        text = self._once(self.library.support(source, count))
        cells = [text_cell(f"### {source.section}\n\n{text}")] if text else []
        if page.figure is not None and page.name not in self.read:
            cells += self._drawing(page, page.figure)
        self.read[page.name] = page
        return cells

    def _once(self, text: str) -> str:
        """Return a text without the sentences that the notebook has already. Very short ones stay, such as items of a list."""
        sentences = _SENTENCE.split(text)
        kept = []
        for sentence, space in zip(sentences[::2], [*sentences[1::2], ""], strict=True):
            is_short = len(sentence.split()) < MIN_SENTENCE_WORDS
            if is_short or sentence not in self.stated:
                kept += [sentence, space]
            self.stated.add(sentence)
        return "".join(kept).strip()

    def _drawing(self, page: Concept, figure: Path) -> list[Any]:
        beside = self.path.parent / "figures" / figure.name
        beside.parent.mkdir(exist_ok=True)
        shutil.copyfile(figure, beside)
        text = self._once(without_links(page.caption))
        caption = [text_cell(text)] if text else []
        return [code_cell(f'SVG(filename="figures/{beside.name}")'), *caption]

    def _how(self) -> list[Any]:
        """Return how the results of each study were made, in a line."""
        lines = []
        for name in dict.fromkeys(study for study, _ in self.shown):
            page = self.library.study(name)
            lines.append(
                f"- {name}, size {page.results.size}: {markdown(page.page.footer.partition('. Versions')[0])}."
            )
        return [text_cell("\n".join(["## How the results were made\n", *lines]))] if lines else []

    def _data(self, study: str) -> None:
        """Copy the results of a study into the folder `data`. Raises InputError."""
        target = self.path.parent / DATA / f"{study}.json"
        source = self.library.study(study).file
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        self.used[study] = None

    def _sources(self) -> list[Any]:
        """Return the papers of all concept pages, each once."""
        items = [item for page in self.read.values() for item in _ITEM.split(page.sources) if item.strip()]
        papers = "\n".join(f"- {' '.join(item.split())}" for item in dict.fromkeys(items))
        return [text_cell(f"## {SOURCES}\n\n{papers}")] if papers else []
