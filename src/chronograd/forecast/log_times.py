"""Times of the rows of a log: time stamps, seconds, minutes or hours since the start, or the duration of each row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from chronograd.forecast.curves import Array

MILLISECONDS_FROM = 1e11  # numbers from here on are milliseconds since 1970; as seconds this is the year 5138
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0), "ms": 1e-3,
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0), **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}  # fmt: skip
# Since 1970 or since the start; per epoch or row; per iteration.
CLOCKS = ("timestamp", "wall time", "walltime", "wall clock", "datetime", "date", "time", "runtime", "elapsed", "elapsed time",
          "time elapsed", "", "relative time process", "relative time wall", "total time", "train time", "training time",
          "created", "created at")  # fmt: skip
DURATIONS = ("epoch time", "time per epoch", "epoch duration", "duration", "epoch", "time epoch")
PER_ITERATION = (
    "iter time",
    "iteration time",
    "time per iteration",
    "elapsed time per iteration",
    "time per step",
    "time per iter",
)
# Counters to multiply with `PER_ITERATION`; those that never mean an epoch come first.
COUNTERS = ("iter", "iteration", "global step", "trainer global step", "train global step", "step", "steps")
Rows = Sequence[Mapping[str, Any]]


def words(name: str) -> str:
    """Return a column's name in lower case with blanks between its words; for W&B charts without the run's name.

    >>> words("Accuracy/val"), words("worldly-sun-3 - val_acc"), words("_step")
    ('accuracy val', 'val acc', 'step')
    """
    return re.sub(r"[^a-z0-9]+", " ", name.rpartition(" - ")[2].lower()).strip()


def named(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the names whose words are in `wanted`, in that order."""
    by_words = {words(name): name for name in reversed(names)}
    return [by_words[one] for one in wanted if one in by_words]


def times_of(rows: Rows, names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return the seconds at rows `own`, since 1970 or since some start; None if the log has no times."""
    for name, factor in _of_kind(names, CLOCKS):
        times = [_seconds(value, factor) for value in carried(rows, name, own)]
        if times and None not in times:
            found = np.array(times, dtype=float)
            if (np.diff(found) >= 0).all() and np.ptp(found) > 0:
                return found
    in_minutes = [(n, f) for n, f in _of_kind(names, CLOCKS) if any(_is_short(row.get(n)) for row in rows)]
    for name, factor in [*_of_kind(names, DURATIONS), *in_minutes]:
        took = [_seconds(row.get(name), factor) for row in rows]
        if any(took):
            return np.cumsum([one or 0.0 for one in took])[list(own)]
    return _of_iterations(rows, names, own)


def carried(rows: Rows, name: str, own: Sequence[int], *, skips_own: bool = False) -> list[Any]:
    """Return the value of each row, or of the last row before it with a value; None if there is none.

    Args:
        skips_own: use only earlier rows that are not in `own`.
    """
    skipped = set(own) if skips_own else set()
    last, found, wanted = None, {}, set(own)
    for number, row in enumerate(rows):
        value = row.get(name)
        if value not in (None, "") and number not in skipped:
            last = value
        if number in wanted:
            found[number] = last
    return [found[number] for number in own]


def _of_kind(names: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the columns of a kind with their unit in seconds, in the order of the kinds: `elapsed_min`, `time (ms)`."""
    split = {name: _unit(words(name), kinds) for name in names}
    for kind in kinds:
        yield from ((name, unit[1]) for name, unit in split.items() if unit is not None and unit[0] == kind)


def _unit(text: str, kinds: Sequence[str]) -> tuple[str, float] | None:
    """Return the kind of a column and its unit in seconds; None for another kind.

    >>> _unit("elapsed min", CLOCKS), _unit("hours", CLOCKS), _unit("time", CLOCKS), _unit("loss s", CLOCKS)
    (('elapsed', 60.0), ('', 3600.0), ('time', 1.0), None)
    """
    base, _, last = text.rpartition(" ")
    if last in UNITS and base in kinds and (base or len(last) > 2):
        return base, UNITS[last]
    return (text, 1.0) if text not in ("", "epoch") and text in kinds else None


def _of_iterations(rows: Rows, names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return the time until each row: its iterations times the median duration of one; None if the counter restarts in each
    epoch.
    """
    has_data_time = any(words(name) == "data time" for name in names)
    lengths = [*_of_kind(names, PER_ITERATION), *((n, 1e-3) for n in names if words(n) == "time ms")]
    lengths += [(name, 1.0) for name in named(names, ("time",)) if has_data_time]
    for name, factor in lengths:
        for counter in named(names, COUNTERS):
            counted = [row for row in rows if row.get(counter) not in (None, "")]
            took = [one for row in counted if (one := _seconds(row.get(name), factor)) is not None and one > 0]
            counts = [_seconds(value, 1.0) for value in carried(rows, counter, own)]
            if not took or None in counts:
                continue
            found = np.array(counts, dtype=float)
            if (np.diff(found) > 0).all():
                return found * float(np.median(took))
    return None


def _seconds(value: Any, factor: float) -> float | None:
    """Return seconds; None for a value that is not a time.

    >>> _seconds("01:12", 1.0), _seconds("2.5", 60.0), _seconds("1:00:00.5", 1.0), _seconds("soon", 1.0)
    (72.0, 150.0, 3600.5, None)
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _of_text(str(value).strip())
    if not np.isfinite(number):
        return None
    return number / 1000 if number > MILLISECONDS_FROM and factor == 1.0 else factor * number


def _is_short(value: Any) -> bool:
    """Return whether a value is minutes and seconds, such as 01:12. If such times do not rise, each is the duration of its row."""
    return isinstance(value, str) and re.fullmatch(r"(\d+:)?\d{1,2}:\d\d([.,]\d+)?", value.strip()) is not None


def _of_text(text: str) -> float | None:
    if _is_short(text):
        parts = [float(part) for part in text.replace(",", ".").split(":")]
        return sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
    if match := re.fullmatch(r"([\d.]+) ?(ms|s|min|h)", text):
        return float(match[1]) * UNITS[match[2]] if match[1].count(".") < 2 else None
    try:
        return datetime.fromisoformat(text.replace("/", "-")).timestamp()
    except ValueError:
        return None
