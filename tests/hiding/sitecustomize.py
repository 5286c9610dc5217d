"""Hide installed packages: an import finds nothing, as on a machine without them.

`tests/conftest.py` hides the packages of extras from tests that lack the mark of their extra. This folder is on PYTHONPATH
during the tests, so that interpreters that a test starts read this file and hide the same packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from typing import Any

VARIABLE = "CHRONOGRAD_TESTS_HIDE"


class Finder:
    """Python's finder of installed packages, which does not find the hidden ones."""

    def __init__(self) -> None:
        self.hidden: frozenset[str] = frozenset()
        self._set_aside: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in self.hidden else PathFinder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(PathFinder, name)

    def hide(self, packages: Iterable[str]) -> None:
        """Hide exactly these packages: set their imported modules aside, and bring back those of the others."""
        if (hidden := frozenset(packages)) == self.hidden:
            return
        self.hidden = hidden
        os.environ[VARIABLE] = ",".join(sorted(hidden))
        here, aside = dict.fromkeys(sys.modules), dict.fromkeys(self._set_aside)
        for name in here:
            if name.partition(".")[0] in hidden:
                self._set_aside[name] = sys.modules.pop(name)
        for name in aside:
            if name.partition(".")[0] not in hidden:
                sys.modules[name] = self._set_aside.pop(name)


def installed() -> Finder:
    """Return this interpreter's finder, put in the place of Python's at the first call."""
    for finder in sys.meta_path:
        if type(finder).__name__ == Finder.__name__ and hasattr(finder, "hide"):
            return finder
    finder = Finder()
    sys.meta_path[sys.meta_path.index(PathFinder)] = finder  # type: ignore[call-overload]
    return finder


if os.environ.get(VARIABLE):
    installed().hide(os.environ[VARIABLE].split(","))
