"""The verbs. Each is declared once, as a request whose fields are its options; the command line and Python use that
declaration.
"""

from __future__ import annotations

import functools
from types import ModuleType

from chronograd import trust


@functools.cache
def added() -> dict[str, ModuleType]:
    """Return the packages of verbs that other wheels add, by the name of their entry point.

    Each is like this package, and its VERBS has a line of help for each verb.
    """
    return {name: trust.loaded(point) for name, point in trust.plugins("verbs").items()}


def module_in(package: ModuleType, verb: str) -> str:
    """Return the name of the module of a verb in a package of verbs."""
    return f"{package.__name__}.{verb.replace('-', '_')}"
