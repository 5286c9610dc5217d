"""What prediction derives from a trace or a device, computed once and kept as long as that lives. Both stay pure data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
# By the id of the owner, because traces and devices are compared by value and have no hash.
_DERIVED: dict[int, dict[Hashable, Any]] = {}


def derived(owner: object, key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make`, which is called once for an owner and a key. Nobody changes an owner after its first prediction."""
    known = _DERIVED.get(id(owner))
    if known is None:
        known = _DERIVED[id(owner)] = {}
        weakref.finalize(owner, _DERIVED.pop, id(owner), None).atexit = False
    if key not in known:
        known[key] = make()
    result: T = known[key]
    return result
