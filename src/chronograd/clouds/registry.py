"""Platforms by name: the files of `platforms/`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from chronograd import door
from chronograd.clouds import platforms
from chronograd.clouds.fields import MISSING, CloudPlatform, Document, get, load
from chronograd.clouds.submission import ENTRY
from chronograd.errors import FileFormatError, NotFoundError
from chronograd.words import listed

MAX_BYTES = 1_000_000
MAX_KEYS = 8  # named in an error
# Prefixes of the option lines in batch scripts of other schedulers.
SCHEDULERS = {"#SBATCH": "SLURM", "#PBS": "PBS", "#BSUB": "LSF"}


@functools.cache
def names() -> tuple[str, ...]:
    """Return every platform that a job can be rendered for."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(platforms.__path__)))


def platform(name: str) -> CloudPlatform:
    """Return a platform. Raises NotFoundError."""
    if name not in names():
        raise NotFoundError("platform", name, names(), "`chronograd platforms`")
    found: CloudPlatform = importlib.import_module(f"chronograd.clouds.platforms.{name}").PLATFORM
    return found


def platform_of(document: Document) -> CloudPlatform | None:
    """Return the platform of a document; None if it matches none."""
    items = document.get("items")
    known = [platform(name) for name in names()]
    for given in (*(items if isinstance(items, list) else ()), document):
        for one in known:
            path, value = one.mark
            seen = get(given, path)
            if seen is not MISSING and value in (None, seen):
                return one
    return next((one for one in known if one.resembles(document)), None)


def open_file(path: Path) -> tuple[CloudPlatform, Document]:
    """Open a platform's file. Raises FileFormatError, which names other kinds of job files."""
    what = "a platform's job file"
    text = door.decoded(door.read_bytes(path, what, most_bytes=MAX_BYTES))
    if text is None:
        raise FileFormatError(f"{path} is a binary file, not {what}", "name a JSON or YAML file")
    if (script := _script(text)) is not None:
        raise FileFormatError(
            f"{path} is {script}: it runs another program, which is not read",
            "if `chronograd launch` wrote it, take job.yaml of its run directory; else write a job file",
        )
    if len(parts := _parts(text)) > 1:
        raise _several(path, parts)
    try:
        document = _loaded(text)
    except FileFormatError as error:
        if _is_toml(text):
            raise FileFormatError(
                f"{path} is TOML, and no platform has job files in TOML", "name a JSON or YAML file"
            ) from None
        raise FileFormatError(f"{path}: {error.message}", error.hint) from None
    found = platform_of(document)
    if found is None and "network" in document and "data" in document:
        raise FileFormatError(
            f"{path} is a job file already, not a platform's file",
            f"`chronograd launch PLATFORM {path}` makes a platform's file of it",
        )
    if found is None:
        raise FileFormatError(
            f"{path} is of no known platform: its keys are {listed([*document][:MAX_KEYS])}",
            f"known: {', '.join(names())}; `chronograd launch` renders for them",
        )
    return found, found.normal(document)


def _loaded(text: str) -> Document:
    # YAML does not join pairs of \u as JSON does.
    return load(platform("sagemaker" if text.lstrip().startswith("{") else "skypilot"), text)


def _parts(text: str) -> list[str]:
    """Return the documents of a YAML text; JSON is one."""
    return [part for part in re.split(r"(?m)^---(?=\s|$)", text) if part.strip()]


def _several(path: Path, parts: Sequence[str]) -> FileFormatError:
    """Return the error for a file of several documents."""
    titles: dict[str, None] = {}
    for part in parts:
        with contextlib.suppress(FileFormatError):
            titles |= {one.title: None for one in [platform_of(_loaded(part))] if one is not None}
    of = f" of {listed(list(titles))}" if titles else ""
    is_ours = any(ENTRY[-1] in part for part in parts)
    return FileFormatError(
        f"{path} has {len(parts)} YAML documents{of}" + ("" if is_ours else ", which run other programs"),
        f"name a file with one document, which runs `{' '.join(ENTRY)}`",
    )


def _is_toml(text: str) -> bool:
    try:
        return bool(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return False


def _script(text: str) -> str | None:
    """Return the kind of script of a text; None if it is not a script."""
    scheduler = next((title for mark, title in SCHEDULERS.items() if re.search(rf"(?m)^{mark} ?-", text)), None)
    if scheduler is not None:
        return f"a {scheduler} script"
    return "a script" if text.startswith("#!") else None
