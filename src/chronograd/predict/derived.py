"""What prediction derives from a trace, computed once and kept as long as the trace lives. The trace itself stays pure data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from chronograd.trace import Trace

T = TypeVar("T")
# By the id of a trace, because traces are compared by value and have no hash.
_DERIVED: dict[int, dict[Hashable, Any]] = {}


def derived(trace: Trace, key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make`, which is called once for a trace and a key. Nobody changes a trace after its first prediction."""
    known = _DERIVED.get(id(trace))
    if known is None:
        known = _DERIVED[id(trace)] = {}
        weakref.finalize(trace, _DERIVED.pop, id(trace), None).atexit = False
    if key not in known:
        known[key] = make()
    result: T = known[key]
    return result
