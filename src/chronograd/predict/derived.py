"""A cache for results that prediction derives from a trace or a device, with the lifetime of that owner. Owners stay pure data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
# Keys are ids of owners, because traces and devices compare by value and have no hash.
_DERIVED: dict[int, dict[Hashable, Any]] = {}


def derived(owner: object, key: Hashable, make: Callable[[], T]) -> T:
    """Return the cached result of `make`, called once per owner and key. Owners must not change after the first call."""
    known = _DERIVED.get(id(owner))
    if known is None:
        known = _DERIVED[id(owner)] = {}
        weakref.finalize(owner, _DERIVED.pop, id(owner), None).atexit = False
    if key not in known:
        known[key] = make()
    result: T = known[key]
    return result
