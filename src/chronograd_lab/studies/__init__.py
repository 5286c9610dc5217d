"""The studies: one folder each, with a `STUDY` in study.py and its text in page.md, or one file. What they share is in `chronograd_lab.common`."""

from __future__ import annotations

import importlib
import pkgutil

from chronograd.errors import NotFoundError
from chronograd_lab.common.study import Study


def studies() -> dict[str, Study]:
    """All studies, by name. Importing them needs no torch."""
    names = [f"{one.name}.study" if one.ispkg else one.name for one in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {study.name: study for study in sorted((m.STUDY for m in modules), key=lambda study: study.name)}


def find(name: str) -> Study:
    """Raises NotFoundError with near names."""
    known = studies()
    if name not in known:
        raise NotFoundError("study", name, known)
    return known[name]
