"""Answer: the result of a verb or a study about work, records or a machine, as plain data.

`chronograd.report` renders it for a terminal, as HTML, as a notebook or as Markdown. Renderers use nothing else.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic

from pydantic import BaseModel, ConfigDict, PlainSerializer, TypeAdapter, ValidationError
from typing_extensions import TypeVar

from chronograd import files, units
from chronograd.errors import FileFormatError, InputError, MissingExtraError
from chronograd.figure import Figure
from chronograd.record import FORMAT as RECORD_FORMAT
from chronograd.record import Record, first_problem
from chronograd.words import first_sentence, how_many, named

if TYPE_CHECKING:
    import pandas

FORMAT = "chronograd-answer"
VERSION = 1
MOST_ROWS = 60  # rows of a table in a notebook, as in pandas
R_co = TypeVar("R_co", default=Any, covariant=True)

# For `field(metadata=...)` of a result: write the field to JSON only if it is not None.
IF_KNOWN = {"json": "if known"}


def as_json(value: Any) -> Any:
    """Return a result as JSON: an object for a dataclass, a record or a mapping, a list for a sequence.

    A class with a method `as_data` decides itself how it looks in JSON.

    >>> as_json([Highlight("cost", "$3.00"), (1, None)])
    [{'label': 'cost', 'value': '$3.00', 'detail': ''}, [1, None]]
    """
    if hasattr(value, "as_data"):
        return as_json(value.as_data())
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        pairs = [(one, getattr(value, one.name)) for one in fields(value)]
        return {one.name: as_json(own) for one, own in pairs if own is not None or one.metadata != IF_KNOWN}
    if isinstance(value, Mapping):
        return {str(key): as_json(own) for key, own in value.items()}
    return [as_json(own) for own in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the value it takes from a row, and the format of the value.

    Numbers have a unit or a format and are right-aligned; text has neither.

    Attributes:
        value: the name of a field, or a function of the row.
        unit: a unit of `units.quantity`, such as "s" or "usd".
        format: instead of a unit: a format specification such as ",.0f", or a function.
        empty: the text for None.

    >>> Column("time", "seconds", "s").cell({"seconds": 0.02}), Column("n", len, format=",").cell([7] * 1200)
    ('20 ms', '1,200')
    """

    name: str
    value: str | Callable[[Any], Any]
    unit: str = ""
    format: str | Callable[[Any], str] = ""
    empty: str = "–"

    def cell(self, row: Any) -> str:
        if callable(self.value):
            value = self.value(row)
        else:
            value = row[self.value] if isinstance(row, Mapping) else getattr(row, self.value)
        if value is None:
            return self.empty
        if self.unit:
            return units.quantity(value, self.unit)
        return self.format(value) if callable(self.format) else format(value, self.format)


@dataclass(frozen=True)
class Table:
    """Rows of formatted text. Columns in `right` hold numbers. `notes` explain why a cell is "–", or, after `COLUMN:`, the
    meaning of a column.

    A cell may hold several lines. The other fields have no effect if the whole table is shown, as on a page and with --full.

    Attributes:
        drop: columns that a terminal leaves out if it is too narrow, the least important first; then it leaves out those at the
            right.
        details: columns on provenance, such as sources, which a terminal shows only with --full.
        most: maximum number of rows in a terminal; 0 for all.
        is_stacked: columns after the first are alike, such as ranks. If they do not fit side by side, a terminal shows them in
            several blocks, and leaves none out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Annotated[frozenset[int] | set[int], PlainSerializer(sorted)] = frozenset()
    notes: Sequence[str] = ()
    drop: Sequence[int] = ()
    details: Sequence[int] = ()
    most: int = 0
    is_stacked: bool = False

    @classmethod
    def of(
        cls,
        rows: Iterable[Any],
        columns: Sequence[Column],
        notes: Sequence[str] = (),
        *,
        drop: Sequence[str] = (),
        details: Sequence[str] = (),
        most: int = 0,
    ) -> Table:
        """Return the table of some rows, such as those of a result.

        Args:
            drop, details: names of columns; see the fields of a table.
        """
        names = [column.name for column in columns]
        return cls(
            names,
            [[column.cell(row) for column in columns] for row in rows],
            {i for i, column in enumerate(columns) if column.unit or column.format},
            notes,
            [names.index(name) for name in drop],
            [names.index(name) for name in details],
            most,
        )

    def blocks(self, most: int) -> list[Table]:
        """Return tables with at most `most` columns each; all start with the first column.

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

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            sides = ["right" if i in self.right else "left" for i in range(len(cells))]
            parts = (
                f'<{tag} style="text-align: {side}">{_html(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(parts)}</tr>"

        most = self.most or MOST_ROWS
        left_out = [how_many(len(self.rows) - most, "more rows")] if len(self.rows) > most else []
        lines = [row("th", self.columns), *(row("td", cells) for cells in self.rows[:most])]
        return "\n".join(
            ["<table>", *lines, "</table>", *(f"<p><em>{_html(t)}</em></p>" for t in (*left_out, *self.notes))]
        )

    def without_empty_columns(self) -> Table:
        """Return the table without the columns that are empty in all rows."""
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
    """One heading, a figure or a table, and one sentence that states the result.

    Attributes:
        takeaway: the sentence; every section has one.
        lines: further sentences about the numbers, such as limits that would change a choice.
        figure: the plot as data, never as markup: a saved answer may come from anyone.
        data: the data of the figure, one row per point; that of `figure` by default.
    """

    title: str
    takeaway: str
    intro: str = ""
    figure: Figure | None = None
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
    """One big figure: its name, its value, and the details with it (interval, n, device)."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Answer(Generic[R_co]):
    """The answer to one question.

    Attributes:
        asked: settings and provenance, as name and value; a page shows them last.
        result: the answer with types, as the class that the verb names; None if loaded from a file.
        summary: up to three sentences, or one for each question; empty if the takeaways of the first sections are enough.
        sections: the text and tables, the most important first.
        records: the records behind the answer, by name; a page embeds them, so that others can compute from them.
        data: the output of `--json`. By default the result as JSON; without a result the takeaways and the data of the sections.
        notes: caveats, such as costs that are not included.
        exit_status: not 0 if the answer is a failed verdict, such as that of a gate.
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
    result: R_co = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.data is None and self.result is not None:
            object.__setattr__(self, "data", as_json(self.result))

    def __repr__(self) -> str:
        return f"<Answer {self.title!r}: {' '.join(self.opening())} chronograd.show(answer) prints it>"

    def _repr_html_(self) -> str:
        """Return the text and tables for a notebook, which shows them in its own style; a report also has the figures."""
        # Without its own summary, an answer opens with the sentences that its sections begin with.
        opening = self.opening_paragraphs() if self.summary else []
        blocks = [f"<h3>{_html(self.title)}</h3>", *(f"<p>{_html(' '.join(sentences))}</p>" for sentences in opening)]
        for section in self.sections:
            blocks.append(f"<h4>{_html(section.title)}</h4>")
            blocks += [f"<p>{_html(line)}</p>" for line in (section.takeaway, *section.lines)]
            blocks += [section.table._repr_html_()] if section.table is not None and section.table.rows else []
        return "\n".join([*blocks, *(f"<p><em>{_html(note)}</em></p>" for note in self.notes)])

    def opening(self) -> list[str]:
        """Return the summary in up to three sentences, or one sentence for each question."""
        takeaways = [first_sentence(section.takeaway)[0] for section in self.sections[:3]]
        return list(self.summary) or [text if text[-1:] in ".!?" else f"{text}." for text in takeaways]

    def opening_paragraphs(self) -> list[list[str]]:
        """Return the summary as paragraphs: one paragraph, or one for each question if there are more than three."""
        sentences = self.opening()
        return [sentences] if len(sentences) <= 3 else [[sentence] for sentence in sentences]

    def as_data(self) -> Any:
        """Return the data for programs, which becomes JSON."""
        if self.data is not None:
            return self.data
        return {
            "title": self.title,
            "sections": [{"title": s.title, "takeaway": s.takeaway, "data": list(s.rows())} for s in self.sections],
            "notes": list(self.notes),
        }

    def frames(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the answer by name: the lists of rows in its data, then those of its sections by title.

        The row of a record has its device, its job and the value of each quantity, then the ends of their intervals.
        """
        data = self.as_data()
        lists = data.items() if isinstance(data, dict) else [("rows", data)]
        found = {name: [_flat(row) for row in rows] for name, rows in lists if _is_rows(rows)}
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the answer as JSON, so that a report can include it. Raises InputError."""
        data = _adapter().dump_python(self, mode="json", exclude={"result": True})
        last = {name: data.pop(name) for name in ("highlights", "sections", "records")}
        path = Path(path)
        with files.as_asked(path):
            files.write_json(path, {"format": FORMAT, "version": VERSION, **data, **last})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Answer:
        """Return an answer that was saved. Raises FileFormatError for another file."""
        try:
            data = files.read_json(Path(path))
            if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            return _adapter().validate_python(data)
        except ValidationError as error:
            raise FileFormatError(f"{path} is not a saved answer: {first_problem(error)}", _HINT) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} is not a saved answer: {error}", _HINT) from None


@cache
def _adapter() -> TypeAdapter[Answer]:
    return TypeAdapter(Answer)


_HINT = "`--save FILE` of a verb writes one"


def under(name: str, sections: Sequence[Section]) -> list[Section]:
    """Return the sections with a name before their titles, to show next to those of another answer."""
    return [replace(s, title=f"{name}: {s.title[0].lower()}{s.title[1:]}") for s in sections]


def join(title: str, answers: Sequence[Answer], subtitle: str = "") -> Answer:
    """Return several answers as one, in order: their sections, notes and records, and the worst exit status."""
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


def _html(text: str) -> str:
    """Return the text escaped, so that it is read neither as HTML nor as a MathJax formula."""
    return html.escape(text).replace("$", "<span>$</span>").replace("\n", "<br>")


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a record as one flat row, and any other row unchanged.

    >>> step = {"value": 0.2, "low": 0.1, "high": 0.3, "unit": "s"}
    >>> _flat({"format": "chronograd-record", "cluster": {"device": "t4", "count": 2}, "quantities": {"step_time_s": step}})
    {'device': 't4', 'count': 2, 'step_time_s': 0.2, 'step_time_s_low': 0.1, 'step_time_s_high': 0.3}
    """
    if row.get("format") != RECORD_FORMAT:
        return dict(row)
    cluster, job, quantities = (row.get(key) or {} for key in ("cluster", "job", "quantities"))
    training = job.get("training") or {}
    header = {
        "title": row.get("title"),
        "kind": row.get("kind"),
        "network": (job.get("network") or {}).get("name"),
        "device": cluster.get("device"),
        "count": cluster.get("count"),
        "backend": row.get("backend"),
        "batch": training.get("batch"),
        "precision": training.get("precision"),
    }
    values = {name: quantity.get("value") for name, quantity in quantities.items()}
    ends = {f"{name}_{end}": quantity.get(end) for name, quantity in quantities.items() for end in ("low", "high")}
    return {key: value for key, value in (header | values | ends).items() if value is not None}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
