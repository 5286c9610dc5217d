"""Answer: what is said about work, records or a machine, as plain data. Every verb and study returns one.

`chronograd.report` renders it: for a terminal, as HTML, as a notebook, as Markdown. Renderers know nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd import files
from chronograd.errors import FileFormatError, InputError
from chronograd.figure import Figure
from chronograd.record import Record, write_json

FORMAT = "chronograd-answer"
VERSION = 1


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

    def save(self, path: Path) -> None:
        """Write it as JSON, so that a report can hold it; drawings that are no data are left out. Raises InputError."""
        sections = []
        for section in self.sections:
            fields = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.name != "figure_svg"}
            table = None if section.table is None else {**vars(section.table), "right": sorted(section.table.right)}
            figure = None if section.figure is None else section.figure.to_json()
            sections.append({**fields, "table": table, "figure": figure})
        data = {
            **{
                name: getattr(self, name)
                for name in ("title", "subtitle", "asked", "footer", "data", "notes", "exit_status")
            },
            "highlights": [vars(highlight) for highlight in self.highlights],
            "sections": sections,
            "records": {name: record.model_dump(mode="json") for name, record in self.records.items()},
        }
        try:
            write_json(path, {"format": FORMAT, "version": VERSION, **data})
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}", "name a file in a folder that exists") from None

    @classmethod
    def load(cls, path: Path) -> Answer:
        """An answer that was saved. Raises FileFormatError for a file that is none."""
        try:
            data = files.read_json(path)
            if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            sections = [_section(section) for section in data.pop("sections")]
            highlights = [Highlight(**highlight) for highlight in data.pop("highlights")]
            records = {name: Record.model_validate(record) for name, record in data.pop("records").items()}
            return cls(**{**data, "sections": sections, "highlights": highlights, "records": records})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} is no saved answer: {error}", "`--save FILE` of a verb writes one") from None


def is_answer(path: Path) -> bool:
    """Whether a file is a saved answer, by its first words."""
    try:
        with files.open_plain(path) as stream:
            return FORMAT.encode() in stream.read(200)
    except OSError:
        return False


def _section(data: dict[str, Any]) -> Section:
    table, figure = data.pop("table"), data.pop("figure")
    if table is not None:
        rows = [[str(cell) for cell in row] for row in table["rows"]]
        table = Table(list(table["columns"]), rows, set(table["right"]), list(table["notes"]))
    return Section(**{**data, "table": table, "figure": None if figure is None else Figure.from_json(figure)})


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
