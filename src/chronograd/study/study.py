"""A study: an experiment as data. One file of this folder each, with a `STUDY`; discovery does the rest.

`conduct` runs jobs and returns `Results`, plain data that is kept as JSON; `page` makes the report from results alone,
so that a report can be made again without running anything.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd.errors import FileFormatError, NotFoundError
from chronograd.record import write_json

if TYPE_CHECKING:
    from chronograd.answer import Page
    from chronograd.study.lab import Lab

FORMAT = "chronograd-study"
VERSION = 1
SIZES = ("smoke", "laptop", "paper")
Settings = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What a study found.

    Attributes:
        settings: of the size that was run.
        rows: by table name, one row per experiment and seed: what was varied, and what came out.
        curves: by experiment, columns of equal length such as epoch, step, seconds, test_accuracy.
        pictures: by name, PNG as base64.
        notes: what fell short, and why.
        environment: processor, threads and versions.
    """

    study: str
    size: str
    settings: Settings
    rows: dict[str, list[Row]] = field(default_factory=dict)
    curves: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def save(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises FileFormatError for a file that is not there or is no results."""
        try:
            data = json.loads(path.read_bytes())
            if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} holds no results of a study: {error}") from None


@dataclass(frozen=True)
class Study:
    """One question, answered from numbers.

    Attributes:
        hypothesis: what the sources let one expect.
        sizes: settings by size: `smoke` takes seconds and runs in the tests, `laptop` minutes on two cores with real
            data, `paper` has the published setting.
        conduct: runs a size in a lab. `page`: the report of results.
        truth: what files the lab's `truth` may name, which predictions are then scored on; empty: none.
    """

    name: str
    question: str
    hypothesis: str
    sizes: Mapping[str, Settings]
    conduct: Callable[[Lab, Settings], Results]
    page: Callable[[Results], Page]
    truth: str = ""


# Files of this folder that are no study.
_OTHERS = {
    "across_page",
    "across_runs",
    "lab",
    "ladders",
    "loop",
    "parameter_servers",
    "published_runs",
    "sources",
    "study",
    "tables",
    "time_forecasts",
}


def studies() -> dict[str, Study]:
    """All studies, by name. Importing them needs no torch."""
    folder = importlib.import_module("chronograd.studies")
    names = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.name not in _OTHERS]
    found = [importlib.import_module(f"{folder.__name__}.{name}").STUDY for name in names]
    return {study.name: study for study in sorted(found, key=lambda s: s.name)}


def find(name: str) -> Study:
    """Raises NotFoundError with near names."""
    known = studies()
    if name not in known:
        raise NotFoundError("study", name, known)
    return known[name]


def settings_of(study: Study, size: str) -> Settings:
    """Raises NotFoundError for a size that the study does not have."""
    if size not in study.sizes:
        raise NotFoundError(f"size of study {study.name}", size, study.sizes)
    return study.sizes[size]
