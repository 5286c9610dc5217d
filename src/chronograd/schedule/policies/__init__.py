"""Policies: one file each. Its function `allocate` returns the size of each job; its docstring names the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

from chronograd.errors import NotFoundError
from chronograd.schedule.jobs import Moment, Sizes

Timing = Literal["events", "interval", "both"]


@dataclass(frozen=True)
class Policy:
    """A rule of allocation.

    Attributes:
        decides: at arrivals, ends and failures (`events`), at regular intervals, or at both.
        adapts_batch: jobs train at the batch that is best for their size.
    """

    name: str
    title: str
    allocate: Callable[[Moment], Sizes]
    decides: Timing
    adapts_batch: bool = False


def names() -> list[str]:
    """Return the names of all policies."""
    return sorted(module.name for module in iter_modules(__path__))


def policy(name: str) -> Policy:
    """Return a policy. Raises NotFoundError."""
    if name not in names():
        raise NotFoundError("policy", name, names())
    module = import_module(f"{__name__}.{name}")
    return Policy(name, module.TITLE, module.allocate, module.DECIDES, getattr(module, "ADAPTS_BATCH", False))
