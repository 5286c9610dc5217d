"""The results of a study, as plain data stored in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chronograd.errors import FileFormatError
from chronograd.files import write_json

FORMAT = "chronograd-study"
VERSION = 1
Settings = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of a study.

    Attributes:
        settings: of the executed size.
        rows: by table name, one row per experiment and seed: the varied settings, and the results.
        curves: by experiment, columns of equal length such as epoch, step, seconds, test_accuracy.
        pictures: by name, PNG as base64.
        notes: shortfalls, and their reasons.
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
        """Read results. Raises FileFormatError for a missing file or one that holds no results."""
        try:
            data = json.loads(path.read_bytes())
            if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} holds no results of a study: {error}") from None
