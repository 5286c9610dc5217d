"""Answer: what is said about work, records or a machine, as plain data. Every verb and study returns one.

`chronograd.report` renders it: for a terminal, as HTML, as a notebook, as Markdown. Renderers know nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, PlainSerializer, TypeAdapter, ValidationError

from chronograd import files
from chronograd.errors import FileFormatError, InputError, MissingExtraError
from chronograd.figure import Figure
from chronograd.record import Record, first_problem
from chronograd.words import first_sentence, named

if TYPE_CHECKING:
    import pandas

FORMAT = "chronograd-answer"
VERSION = 1


@dataclass(frozen=True)
class Table:
    """Rows of finished text. Columns in `right` hold numbers; `notes` say why a cell is "–", or, after `COLUMN:`, what it
    means.

    A cell may hold several lines. Where all of it is shown, as on a page and with --full, the rest does not matter.

    Attributes:
        drop: columns that a terminal does without where it is too narrow, the least important first; after them those at
            the right.
        details: columns of provenance, such as sources, which a terminal shows in full only.
        most: rows that a terminal shows, the first ones; 0 for all.
        is_stacked: columns after the first are alike, such as ranks: where they are too many for the screen, the others stand
            below the first ones and none is left out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Annotated[frozenset[int] | set[int], PlainSerializer(sorted)] = frozenset()
    notes: Sequence[str] = ()
    drop: Sequence[int] = ()
    details: Sequence[int] = ()
    most: int = 0
    is_stacked: bool = False

    def blocks(self, most: int) -> list[Table]:
        """So many columns at a time, each time beside the first one.

        >>> [block.columns for block in Table(("", "rank 0", "rank 1", "rank 2"), []).blocks(2)]
        [['', 'rank 0', 'rank 1'], ['', 'rank 2']]
        """
        return [
            replace(
                self,
                columns=[self.columns[0], *self.columns[at : at + most]],
                rows=[[row[0], *row[at : at + most]] for row in self.rows],
                right={i - at + 1 for i in self.right if at <= i < at + most} | ({0} & self.right),
                drop=(),
                details=(),
                is_stacked=False,
            )
            for at in range(1, len(self.columns), most)
        ]

    def without_empty_columns(self) -> Table:
        """The same table less the columns in which no row says anything."""
        names = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        place = {old: new for new, old in enumerate(names)}
        return Table(
            [self.columns[i] for i in names],
            [[row[i] for i in names] for row in self.rows],
            {place[i] for i in self.right if i in place},
            self.notes,
            [place[i] for i in self.drop if i in place],
            [place[i] for i in self.details if i in place],
            self.most,
            self.is_stacked,
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
        summary: what was learned, in up to three sentences, or one for each question that was asked; where the takeaways of the
            first sections do not say it.
        sections: the answer itself, the most important first.
        records: what it rests on, by name; a page embeds them, so that it can be computed from again.
        data: the same for programs: what `--json` prints. By default the takeaways and the data of the sections.
        notes: what a reader must know before trusting it, such as what was left out.
        exit_status: not 0 where the answer is a verdict that fails, such as that of a gate.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

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
    summary: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<Answer {self.title!r}: {' '.join(self.opening())} chronograd.show(answer) prints it>"

    def opening(self) -> list[str]:
        """What was learned: in up to three sentences, or one for each question."""
        takeaways = [first_sentence(section.takeaway)[0] for section in self.sections[:3]]
        return list(self.summary) or [text if text[-1:] in ".!?" else f"{text}." for text in takeaways]

    def opening_paragraphs(self) -> list[list[str]]:
        """The same as paragraphs: one, or where more than three questions are answered, one for each."""
        sentences = self.opening()
        return [sentences] if len(sentences) <= 3 else [[sentence] for sentence in sentences]

    def as_data(self) -> Any:
        """What a program gets: JSON, once it is written."""
        if self.data is not None:
            return self.data
        return {
            "title": self.title,
            "sections": [{"title": s.title, "takeaway": s.takeaway, "data": list(s.rows())} for s in self.sections],
            "notes": list(self.notes),
        }

    def frames(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the answer by name: the lists of rows in its data, then those of its sections by title."""
        data = self.as_data()
        lists = data.items() if isinstance(data, dict) else [("rows", data)]
        found = {name: rows for name, rows in lists if _is_rows(rows)}
        for section in self.sections:
            rows = [*section.rows()] or [
                dict(zip(t.columns, row, strict=True)) for t in [section.table] if t for row in t.rows
            ]
            if rows:
                found.setdefault(section.title, rows)
        return found

    def to_pandas(self, name: str | None = None) -> pandas.DataFrame:
        """Return rows of the answer as a frame, such as the settings of a plan: by default the first of `frames`.

        Raises: InputError for another name, or for an answer without rows; MissingExtraError without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "pandas", "a frame of an answer") from None
        frames = self.frames()
        chosen = next(iter(frames), None) if name is None else name
        if chosen not in frames:
            raise InputError(
                f"{self.title!r} has no rows {name or ''}".strip(), f"choose {', '.join(frames) or 'another answer'}"
            )
        return pandas.json_normalize(frames[chosen], max_level=0)

    def save(self, path: Path) -> None:
        """Write it as JSON, so that a report can hold it; drawings that are no data are left out. Raises InputError."""
        data = _adapter().dump_python(self, mode="json", exclude={"sections": {"__all__": {"figure_svg"}}})
        last = {name: data.pop(name) for name in ("highlights", "sections", "records")}
        with files.as_asked(path):
            files.write_json(path, {"format": FORMAT, "version": VERSION, **data, **last})

    @classmethod
    def load(cls, path: Path) -> Answer:
        """An answer that was saved. Raises FileFormatError for a file that is none."""
        try:
            data = files.read_json(path)
            if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            return _adapter().validate_python(data)
        except ValidationError as error:
            raise FileFormatError(f"{path} is no saved answer: {first_problem(error)}", _HINT) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} is no saved answer: {error}", _HINT) from None


@cache
def _adapter() -> TypeAdapter[Answer]:
    return TypeAdapter(Answer)


_HINT = "`--save FILE` of a verb writes one"


def under(name: str, sections: Sequence[Section]) -> list[Section]:
    """The sections with a name before their titles, to stand beside those of another."""
    return [replace(s, title=f"{name}: {s.title[0].lower()}{s.title[1:]}") for s in sections]


def join(title: str, answers: Sequence[Answer], subtitle: str = "") -> Answer:
    """Several answers as one, in order: their sections, notes and records, and the worst exit status."""
    return Answer(
        title=title,
        subtitle=subtitle,
        asked=next((answer.asked for answer in answers if answer.asked), ()),
        highlights=[highlight for answer in answers for highlight in answer.highlights],
        sections=[section for answer in answers for section in answer.sections],
        records=named([pair for answer in answers for pair in answer.records.items()]),
        data=[answer.as_data() for answer in answers],
        notes=list(dict.fromkeys(note for answer in answers for note in answer.notes)),
        exit_status=max((answer.exit_status for answer in answers), default=0),
        summary=[sentence for answer in answers for sentence in answer.summary][:3],
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
