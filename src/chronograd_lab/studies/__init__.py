"""The studies: one folder each, with a `STUDY` in study.py and its text in page.md. Their shared code is in `chronograd_lab.common`.

Other packages add studies: an entry point of the group `chronograd.studies` names a `Study`, such as `my_lab.warmup:STUDY`.
"""

from __future__ import annotations

import importlib
import pkgutil

from chronograd import trust
from chronograd.errors import NotFoundError
from chronograd_lab.common.study import Study


def studies() -> dict[str, Study]:
    """Return all studies by name, with those of other installed packages. Importing them needs no torch."""
    modules = [importlib.import_module(f"{__name__}.{one.name}.study") for one in pkgutil.iter_modules(__path__)]
    added = [trust.loaded(point) for point in trust.plugins("studies").values()]
    known = {study.name: study for study in (*added, *(module.STUDY for module in modules))}
    return dict(sorted(known.items()))


def find(name: str) -> Study:
    """Return a study. Raises NotFoundError with near names."""
    known = studies()
    if name not in known:
        raise NotFoundError("study", name, known)
    return known[name]
