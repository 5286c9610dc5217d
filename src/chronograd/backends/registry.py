"""Backends by the name in a job's `backend` field: files of this folder, and those that other installed packages add."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from chronograd import backends, trust
from chronograd.backends.plan import Backend
from chronograd.errors import EXTRAS, NotFoundError, RunError, require
from chronograd.job import BACKENDS


def names() -> list[str]:
    """Return the names of all backends that a job can name."""
    files = {module.name for module in pkgutil.iter_modules(backends.__path__)}
    return [*(name for name in BACKENDS if name in files), *sorted(trust.plugins("backends").keys() - {*BACKENDS})]


def find(name: str) -> Backend:
    """Return the backend, ready to run here.

    Raises NotFoundError for an unknown one; MissingExtraError for one whose packages are not installed; RunError for
    one that cannot run here, with the reason.
    """
    backend = load(name)
    is_available, reason = backend.available()
    if not is_available:
        for package in backend.NEEDED:
            if package in EXTRAS:
                require(package, EXTRAS[backend.NEEDED[0]], f"backend {name}")
        raise RunError(f"backend {name} cannot run here: {reason}", "`chronograd doctor` lists the backends that can")
    return backend


def load(name: str) -> Backend:
    """Return the backend, even if it cannot run here. Raises NotFoundError; RunError for a plug-in that fails."""
    if name not in names():
        raise NotFoundError("backend", name, names())
    if name in BACKENDS:
        return cast(Backend, importlib.import_module(f"chronograd.backends.{name}"))
    return cast(Backend, trust.loaded(trust.plugins("backends")[name]))
