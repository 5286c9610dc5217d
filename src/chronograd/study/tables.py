"""The page of a study, and tables of which each column says what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.study.results import Results
from chronograd.study.rows import plural
from chronograd.study.study import Study


def table(
    items: Iterable[Any], columns: Mapping[str, str | Callable[[Any], str]], text: int = 1, notes: Sequence[str] = ()
) -> Table:
    """One row per item. A column has the name of a field, or a function that makes its cell.

    The first `text` columns hold text, the others numbers.
    """
    cells = [[str(item[of]) if isinstance(of, str) else of(item) for of in columns.values()] for item in items]
    return listed(list(columns), cells, text, notes)


def listed(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1, notes: Sequence[str] = ()) -> Table:
    """Finished rows; the first `text` columns hold text, the others numbers."""
    return Table(columns, rows, set(range(text, len(columns))), notes)


def study_page(
    study: Study, results: Results, sections: Sequence[Section], highlights: Sequence[Highlight] = ()
) -> Answer:
    """The page of a study: its question, its setting, and the sections."""
    asked = [("hypothesis", study.hypothesis), ("size", results.size)]
    asked += [(key.replace("_", " "), _shown(value)) for key, value in results.settings.items()]
    environment = results.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    footer = (
        f"{results.created[:10]}; {environment.get('processor', 'unknown processor')}; "
        f"{environment.get('runs_at_a_time', 1)} runs at a time with {environment.get('threads_per_run', 1)} threads each; "
        f"{versions}"
    )
    if results.notes:
        count = "One note." if len(results.notes) == 1 else f"{plural(len(results.notes), 'note')}."
        sections = [*sections, Section("What fell short", count, table=listed(["note"], [[n] for n in results.notes]))]
    title = study.name.replace("-", " ").capitalize()
    return Answer(title, study.question, asked, highlights, sections, footer=footer)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    return str(value)
