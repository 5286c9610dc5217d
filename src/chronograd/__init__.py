"""Chronograd: a performance lab for deep learning.

The verbs of the command line are functions of this package; `chronograd.api` documents them. A verb that shares its name with a
room, such as `chronograd.predict`, is that room, made callable. Verbs of other packages are functions, too: the lab's
`chronograd.study_run`. Importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronograd.api import keep_freed_memory as keep_freed_memory
    from chronograd.api import record as record
    from chronograd.api import show as show

__version__ = "0.1.0"  # the build reads it from here

# The verbs, as declared in `chronograd.verbs`: `plan inference` is the function plan_inference; fit has several.
_WORDS = re.compile(r'^    verb = "(.+)"$', re.MULTILINE)
_FOLDER = Path(__file__).parent
_FILES = (_FOLDER / "verbs").glob("*.py")
_VERBS = {verb for file in _FILES for verb in _WORDS.findall(file.read_text(encoding="utf-8"))}
__all__ = sorted(
    {
        "keep_freed_memory",
        "record",
        "show",
        *(name for verb in _VERBS for name in (verb.replace(" ", "_"), verb.split()[0])),
    }
)


class _Room(ModuleType):
    """A room that is also the function of its verb."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._verb()(*args, **kwargs)

    def _verb(self) -> Any:
        return getattr(_api(), self.__name__.rpartition(".")[2])

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The text that `help(chronograd.count)` prints first."""
        return str(self._verb().__doc__)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature that an editor or `chronograd.count?` in a notebook shows."""
        return inspect.signature(self._verb())


class _Package(ModuleType):
    """This package: a room with the name of a verb becomes callable when it is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and type(value) is ModuleType:
            value.__class__ = _Room
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    is_room = (_FOLDER / name).is_dir() or (_FOLDER / f"{name}.py").is_file()
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}") if is_room else getattr(_api(), name)
    added = {} if is_room or name.startswith("_") else _api().added()  # `from chronograd import units` asks here first
    if name not in added:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return added[name]


def _api() -> Any:
    return importlib.import_module("chronograd.api")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_api().added()})


sys.modules[__name__].__class__ = _Package
