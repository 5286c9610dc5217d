"""Answer: what is said about work, records or a machine, as plain data. Every verb and study returns one.

`chronograd.report` renders it: for a terminal, as HTML, as a notebook, as Markdown. Renderers know nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chronograd.figure import Figure
from chronograd.record import Record


@dataclass(frozen=True)
class Table:
    """Rows of finished text. Columns in `right` hold numbers; `notes` say why a cell is "–".

    A cell may hold several lines.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] | set[int] = frozenset()
    notes: Sequence[str] = ()

    def without_empty_columns(self) -> Table:
        """The same table less the columns in which no row says anything."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        return Table(
            [self.columns[i] for i in kept],
            [[row[i] for i in kept] for row in self.rows],
            {new for new, old in enumerate(kept) if old in self.right},
            self.notes,
        )


@dataclass(frozen=True)
class Section:
    """One heading, a figure or a table, and one sentence that follows from the numbers.

    Attributes:
        takeaway: the sentence; every section has one.
        lines: further sentences that follow from the numbers, such as what would change a choice.
        figure: the plot as data. A drawing of one's own goes into `figure_svg` instead, which is trusted markup.
        data: what the figure shows, one row per point; that of `figure` by default.
    """

    title: str
    takeaway: str
    intro: str = ""
    figure: Figure | None = None
    figure_svg: str | None = None
    caption: str = ""
    table: Table | None = None
    data: Sequence[dict[str, Any]] = ()
    lines: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.takeaway.strip():
            raise ValueError(f"section {self.title!r} has no takeaway")

    def rows(self) -> Sequence[dict[str, Any]]:
        return self.data or (self.figure.rows() if self.figure else ())


@dataclass(frozen=True)
class Highlight:
    """One big figure: what it is, its value, and what travels with it (interval, n, device)."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """Everything that one question got for an answer.

    Attributes:
        asked: what was asked for, as name and value: settings and provenance, which a page shows last.
        sections: the answer itself, the most important first.
        records: what it rests on, by name; a page embeds them, so that it can be computed from again.
        data: the same for programs: what `--json` prints. By default the takeaways and the data of the sections.
        notes: what a reader must know before trusting it, such as what was left out.
        exit_status: not 0 where the answer is a verdict that fails, such as that of a gate.
    """

    title: str
    subtitle: str = ""
    asked: Sequence[tuple[str, str]] = ()
    highlights: Sequence[Highlight] = ()
    sections: Sequence[Section] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    footer: str = ""
    data: Any = None
    notes: Sequence[str] = ()
    exit_status: int = 0

    def as_data(self) -> Any:
        """What a program gets: JSON, once it is written."""
        if self.data is not None:
            return self.data
        return {
            "title": self.title,
            "sections": [{"title": s.title, "takeaway": s.takeaway, "data": list(s.rows())} for s in self.sections],
            "notes": list(self.notes),
        }


def join(title: str, answers: Sequence[Answer], subtitle: str = "") -> Answer:
    """Several answers as one, in order: their sections, notes and records, and the worst exit status."""
    return Answer(
        title=title,
        subtitle=subtitle,
        asked=next((answer.asked for answer in answers if answer.asked), ()),
        highlights=[highlight for answer in answers for highlight in answer.highlights],
        sections=[section for answer in answers for section in answer.sections],
        records={name: record for answer in answers for name, record in answer.records.items()},
        data=[answer.as_data() for answer in answers],
        notes=list(dict.fromkeys(note for answer in answers for note in answer.notes)),
        exit_status=max((answer.exit_status for answer in answers), default=0),
    )
