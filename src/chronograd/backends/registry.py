"""Backends by the name in a job's `backend` field."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from chronograd import backends
from chronograd.backends.plan import Backend
from chronograd.errors import EXTRAS, NotFoundError, RunError, require
from chronograd.job import BACKENDS


def names() -> list[str]:
    """Return the names of backends: the files of this folder that a job can name."""
    files = {module.name for module in pkgutil.iter_modules(backends.__path__)}
    return [name for name in BACKENDS if name in files]


def find(name: str) -> Backend:
    """Return the backend, ready to run here.

    Raises NotFoundError for an unknown one; MissingExtraError for one whose packages are not installed; RunError for
    one that cannot run here, with the reason.
    """
    backend = load(name)
    is_available, reason = backend.available()
    if not is_available:
        for package in backend.NEEDED:
            require(package, EXTRAS[backend.NEEDED[0]], f"backend {name}")
        raise RunError(f"backend {name} cannot run here: {reason}", "`chronograd doctor` lists the backends that can")
    return backend


def load(name: str) -> Backend:
    """Return the backend, even if it cannot run here. Raises NotFoundError."""
    if name not in names():
        raise NotFoundError("backend", name, names())
    return cast(Backend, importlib.import_module(f"chronograd.backends.{name}"))
