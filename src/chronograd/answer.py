"""Page: what a report says, as plain data. `html` and `notebook` render it; any verb or study adds sections."""

from __future__ import annotations

from collections.abc import Sequence
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
class Page:
    """A whole report. `records` are embedded, by name, so that the page can be computed from again."""

    title: str
    subtitle: str = ""
    asked: Sequence[tuple[str, str]] = ()
    highlights: Sequence[Highlight] = ()
    sections: Sequence[Section] = ()
    records: dict[str, Record] = field(default_factory=dict)
    footer: str = ""
