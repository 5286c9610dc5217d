"""A study: an experiment as data. One file of `chronograd.studies` each, with a `STUDY`.

`conduct` runs jobs and returns `Results`; `page` makes the report from results alone, so that a report can be made again
without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.errors import NotFoundError
from chronograd.study.results import Results, Settings
from chronograd.study.rows import plural
from chronograd.study.runner import StudyRunner

SIZES = ("smoke", "laptop", "paper")
# Of a table, what a cell is made of: a field of the item, a field and how it is printed, or a function of the item.
Column = str | tuple[str, Callable[[Any], str]] | Callable[[Any], str]


@dataclass(frozen=True)
class Study:
    """One question, answered from numbers.

    Attributes:
        hypothesis: what the sources let one expect.
        sizes: settings by size: `smoke` takes seconds and runs in the tests, `laptop` minutes on two cores with real
            data, `paper` has the published setting.
        conduct: runs a size in a runner. `page`: the report of results.
        truth: what files the runner's `truth` may name, which predictions are then scored on; empty: none.
    """

    name: str
    question: str
    hypothesis: str
    sizes: Mapping[str, Settings]
    conduct: Callable[[StudyRunner, Settings], Results]
    page: Callable[[Results], Answer]
    truth: str = ""

    def answer(self, results: Results, sections: Sequence[Section], highlights: Sequence[Highlight] = ()) -> Answer:
        """A page: the study's question, the setting of the results, and the sections."""
        asked = [("hypothesis", self.hypothesis), ("size", results.size)]
        asked += [(_words(key), _shown(value)) for key, value in results.settings.items() if value is not None]
        environment = results.environment
        versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
        footer = (
            f"{results.created[:10]}; {environment.get('processor', 'unknown processor')}; "
            f"{environment.get('runs_at_a_time', 1)} runs at a time with {environment.get('threads_per_run', 1)} threads each; "
            f"{versions}"
        )
        if results.notes:
            count = "One note." if len(results.notes) == 1 else f"{plural(len(results.notes), 'note')}."
            sections = [*sections, Section("What fell short", count, table=table(results.notes, {"note": str}))]
        title = self.name.replace("-", " ").capitalize()
        return Answer(title, self.question, asked, highlights, sections, footer=footer)


def settings_of(study: Study, size: str) -> Settings:
    """Raises NotFoundError for a size that the study does not have."""
    if size not in study.sizes:
        raise NotFoundError(f"size of study {study.name}", size, study.sizes)
    return study.sizes[size]


def table(items: Iterable[Any], columns: Mapping[str, Column], text: int = 1) -> Table:
    """One row per item; the first `text` columns hold text, the others numbers.

    >>> table([{"n": 3, "s": 0.5}], {"n": "n", "time": ("s", "{:.2f} s".format), "twice": lambda row: str(2 * row["n"])}).rows
    [['3', '0.50 s', '6']]
    """
    return listed(list(columns), [[_cell(item, of) for of in columns.values()] for item in items], text)


def _cell(item: Any, of: Column) -> str:
    if callable(of):
        return of(item)
    field, form = (of, str) if isinstance(of, str) else of
    return form(item[field])


def listed(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1, notes: Sequence[str] = ()) -> Table:
    """Finished rows; the first `text` columns hold text, the others numbers."""
    return Table(columns, rows, set(range(text, len(columns))), notes)


def _shown(value: object) -> str:
    """A setting in words: what is on by its name alone, what is off or not set not at all.

    >>> _shown({"cosine": {}, "one_cycle": {}, "crop and flip": {"crop": 2, "flip": True, "cutout": None}})
    'cosine, one-cycle, crop and flip (crop 2, flip)'
    >>> _shown([[1, 1], [2, 1]]), _shown(True), _shown([8, 16])
    ('1 × 1, 2 × 1', 'yes', '8, 16')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(" × ".join(map(_shown, v)) if isinstance(v, list | tuple) else _shown(v) for v in value)
    if isinstance(value, Mapping):
        return ", ".join(filter(None, (_setting(str(name), v) for name, v in value.items())))
    return str(value)


def _setting(name: str, value: object) -> str:
    """One entry of a setting; empty for what is off or not set."""
    if isinstance(value, Mapping):  # what stands before it is a name, such as one_cycle
        inside = _shown(value)
        return f"{name.replace('_', '-')} ({inside})" if inside else name.replace("_", "-")
    if value is None or value is False:
        return ""
    return _words(name) if value is True else f"{_words(name)} {_shown(value)}"


def _words(key: str) -> str:
    """
    >>> _words("is_balance_ablated"), _words("image_size")
    ('balance ablated', 'image size')
    """
    return key.removeprefix("is_").replace("_", " ")
