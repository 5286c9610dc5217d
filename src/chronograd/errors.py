"""The errors that a user can meet, in one tree.

    ChronogradError                    exit status 1
    ├── InputError                     exit status 2: the request cannot be right
    │   ├── JobError                   a job file or an override
    │   ├── NotFoundError              a name that is not in a catalogue
    │   └── FileFormatError            a file of the wrong form
    ├── MissingExtraError              exit status 3: an optional part is not installed
    ├── TraceError                     a network that cannot be traced
    ├── ExportError                    a network that cannot be written in a format, or an invalid file of it
    └── RunError                       a run that failed or a run directory that cannot be used
        └── DiskFullError              a disk, a quota or a limit that is full

A message states what is wrong and the given value; `hint` states the next step.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any


class ChronogradError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return printable(f"{self.message}\n  To fix: {self.hint}" if self.hint else self.message)


class InputError(ChronogradError):
    """The user's input cannot be right. The message stays readable for input of any length."""

    exit_status = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(_readable(message), _readable(hint))


class JobError(InputError):
    """A job file, or an override of one of its fields, is not valid."""


class FileFormatError(InputError):
    """A file does not have the form that its name or place promises."""


class NotFoundError(InputError):
    """A name is not in its catalogue; the message lists similar names."""

    def __init__(self, what: str, name: str, known: Iterable[str], listing: str = "") -> None:
        known = sorted(known)
        near = near_names(name, known)
        shown = near or known[:12]
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(shown)}"
        if not near and len(known) > len(shown):
            hint += f", and {len(known) - len(shown)} more"
        if listing:
            hint += f" ({listing} lists them)"
        super().__init__(f"unknown {what} {name!r}", hint)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the checkout of this code or for the installed package."""
    root = Path(__file__).parents[2]
    return (
        f"pip install -e '{root}[{extra}]'"
        if (root / "pyproject.toml").is_file()
        else f"pip install 'chronograd[{extra}]'"
    )


class MissingExtraError(ChronogradError):
    """An optional part of Chronograd is needed but not installed."""

    exit_status = 3

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {module}, which is not installed",
            install_command(extra),
        )


# The extra of a package, by the name under which the package is imported.
EXTRAS = {
    **dict.fromkeys(("torch", "safetensors", "psutil"), "torch"),
    **dict.fromkeys(("torchvision", "sklearn"), "vision"),
    "timm": "timm",
    "transformers": "transformers",
    "tensorboard": "tensorboard",
    "pandas": "pandas",
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "ray": "ray",
    "gymnasium": "reinforcement",
    "ale_py": "atari",
    **dict.fromkeys(("tensorflow", "keras"), "tensorflow"),
    **dict.fromkeys(("starlette", "uvicorn", "prometheus_client"), "serve"),
    **dict.fromkeys(("matplotlib", "PIL", "jinja2", "nbformat", "nbclient", "ipykernel"), "report"),
}


def require(package: str, extra: str, purpose: str) -> None:
    """Raise MissingExtraError unless a package is installed. Imports nothing."""
    if find_spec(package) is None:
        raise MissingExtraError(package, extra, purpose)


def missing_extra(error: ModuleNotFoundError, purpose: str) -> MissingExtraError | None:
    """Return the error to show for a failed import, if the missing package belongs to an extra."""
    package = (error.name or "").partition(".")[0]
    return MissingExtraError(package, EXTRAS[package], purpose) if package in EXTRAS else None


class TraceError(ChronogradError):
    """A network raised, or did something that cannot be counted, during tracing."""


class ExportError(ChronogradError):
    """A network cannot be expressed in another format, or a file of one is invalid."""


class RunError(ChronogradError):
    """A run failed, or its directory cannot be read or written."""


class DiskFullError(RunError):
    """A file could not be written because there is no space."""


_MAX_LETTERS, _MAX_LINES = 400, 24


def printable(text: str) -> str:
    r"""Replace control characters, which could steer a terminal, by their escapes. Line ends stay.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def _readable(text: str) -> str:
    """Remove control characters, which could steer a terminal, and shorten long lines and long texts."""
    if text.isascii() and text.isprintable() and len(text) <= _MAX_LETTERS:
        return text
    lines = text.split("\n")
    shown = [line if len(line) <= _MAX_LETTERS else f"{line[:_MAX_LETTERS]} …" for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"  … and {len(lines) - _MAX_LINES:,} lines more")
    return printable("\n".join(shown))


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return names in `known` that look like `name`, best first; then those that contain it, the shortest first.

    >>> near_names("resnet2", ["resnet20", "vgg16"]), near_names("gpt2", ["gpt2-small", "vgg16"])
    (['resnet20'], ['gpt2-small'])
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    around = sorted((one for one in known if len(name) > 2 and name in one), key=len)
    return list(dict.fromkeys([*near, *around]))[:3]


MAX_PROBLEMS, MAX_KNOWN = 20, 40
# Parts of pydantic's path of a field that are not names: a key of a mapping, and the types that a field may have.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
_NO_NAMES = ("[key]", *_TYPES)


def problems(error: Exception, form: Any = None) -> list[str]:
    """Return the refusals of pydantic, a line each: the field, what is wrong, the given value, similar names. Other errors give
    one line.

    Args:
        form: the model to read, for names of its fields.
    """
    if not hasattr(error, "errors"):
        return [f"{type(error).__name__} {error}"]
    groups = [[*group] for _, group in groupby(error.errors(include_url=False), _place_in_union)]
    lines = [_problem(group[0], form) if len(group) == 1 else _union_problem(group) for group in groups[:MAX_PROBLEMS]]
    return lines + ([f"and {len(groups) - MAX_PROBLEMS:,} problems more"] if len(groups) > MAX_PROBLEMS else [])


def _place_in_union(error: Any) -> tuple[Any, ...]:
    """Return the field of an error: the same one for all types of a field that may have several."""
    last = error["loc"][-1] if error["loc"] else ""
    place: tuple[Any, ...] = error["loc"]
    return place[:-1] if last in _TYPES or str(last).startswith("literal[") else place


def _union_problem(errors: Sequence[Any]) -> str:
    """Return the one line for the errors of a field that may have several types."""
    choices: list[str] = []
    for error in errors:
        last = str(error["loc"][-1])
        choices += [_TYPES[last]] if last in _TYPES else re.findall(r"'([^']*)'", last) or [last]
    return f"{'.'.join(map(str, errors[0]['loc'][:-1]))}: takes {' or '.join(choices)}, got {shown(errors[0]['input'])}"


def _problem(error: Any, form: Any) -> str:
    path = [str(part) for part in error["loc"] if part not in _NO_NAMES]
    kind, seen = error["type"], error["input"]
    name = ".".join(path)
    if kind == "missing":
        return f"{name}: is required and not there"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        for part in path[:-1]:
            form = form.model_fields[part].annotation if part in getattr(form, "model_fields", {}) else None
        return f"{name}: there is no such field{did_you_mean(path[-1], getattr(form, 'model_fields', ()))}"
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"{name}: {shown(seen)} is not one of its values{did_you_mean(str(seen), known)}"
    message = re.sub(r"^(Value error, |Input )", "", error["msg"])
    return f"{name + ': ' if name else ''}{message}" + ("" if kind == "value_error" else f", got {shown(seen)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return similar names, else all known ones; empty if there are none."""
    known = list(known)
    if near := near_names(name, known):
        return f"; did you mean {' or '.join(near)}?"
    listed = known if len(known) <= MAX_KNOWN else [*known[:12], f"and {len(known) - 12} more"]
    return f"; known: {', '.join(listed)}" if listed else ""


def shown(value: Any) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
