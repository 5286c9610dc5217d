"""Stored predictions of a study, compared with those of this version."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chronograd_lab.common.results import Row

CURRENT = 0.01  # relative difference up to which a stored prediction is that of this version
Tables = Mapping[str, Sequence[Row]]


def outdated(rows: Tables, current: Tables) -> list[str]:
    """Return the places in which the tables of this version, `current`, differ from the stored rows by more than 1 %."""
    return list(differences({name: rows.get(name) for name in current}, current))


def differences(stored: Any, current: Any, place: str = "") -> Iterator[str]:
    """Yield every place where stored tables differ by more than 1 % from those of this version.

    Numbers are compared relatively, all other values exactly.

    >>> list(differences({"points": [{"step_s": 2.0, "gpu": "v100"}]}, {"points": [{"step_s": 2.5, "gpu": "v100"}]}))
    ['points[0].step_s is 2.0, now 2.5']
    """
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        for name in dict.fromkeys([*stored, *current]):
            yield from differences(stored.get(name), current.get(name), f"{place}.{name}" if place else str(name))
    elif _is_list(stored) and _is_list(current) and len(stored) == len(current):
        for number, (old, new) in enumerate(zip(stored, current, strict=True)):
            yield from differences(old, new, f"{place}[{number}]")
    elif not _is_same(stored, current):
        yield f"{place} is {_short(stored)}, now {_short(current)}"


def _is_same(stored: Any, current: Any) -> bool:
    numbers = (int, float)
    if isinstance(stored, numbers) and isinstance(current, numbers):
        return math.isclose(stored, current, rel_tol=CURRENT, abs_tol=1e-12)
    return bool(stored == current)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _short(value: Any) -> str:
    return f"{len(value)} rows" if _is_list(value) else str(value)
