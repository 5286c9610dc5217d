"""Platforms by name: the files of `platforms/`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from chronograd import files
from chronograd.errors import FileFormatError, NotFoundError
from chronograd.launch import platforms
from chronograd.launch.fields import MISSING, Document, Platform, get, load

MOST_BYTES = 1_000_000


@functools.cache
def names() -> tuple[str, ...]:
    """Every platform that a job can be rendered for."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(platforms.__path__)))


def platform(name: str) -> Platform:
    """A platform. Raises NotFoundError."""
    if name not in names():
        raise NotFoundError("platform", name, names(), "`chronograd platforms`")
    found: Platform = importlib.import_module(f"chronograd.launch.platforms.{name}").PLATFORM
    return found


def platform_of(document: Document) -> Platform | None:
    """The platform that a document is for; None if it looks like none of them."""
    items = document.get("items")
    for given in (*(items if isinstance(items, list) else ()), document):
        for name in names():
            path, value = platform(name).mark
            seen = get(given, path)
            if seen is not MISSING and value in (None, seen):
                return platform(name)
    return None


def open_file(path: Path) -> tuple[Platform, Document]:
    """A platform's file, and which one's it is. Raises FileFormatError."""
    try:
        text = files.read_bytes(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    any_yaml = platform("skypilot")  # JSON is read as JSON first: YAML has no pairs of \u
    try:
        document = load(platform("sagemaker") if text.lstrip().startswith("{") else any_yaml, text)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error.message}", error.hint) from None
    found = platform_of(document)
    if found is None:
        raise FileFormatError(
            f"{path} is of no platform that is known",
            f"known: {', '.join(names())}; `chronograd launch` renders for them",
        )
    return found, document
