"""Times of the rows of a log: time stamps, seconds, minutes or hours since the start, or the duration of each row.

A value may end in its unit: `0.25h`, `989ms`, `1h30m`. Otherwise the name of its column has the unit, or it is in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from chronograd.forecast.curves import Array
from chronograd.forecast.log_words import STEPS, named, words

MILLISECONDS_FROM = 1e11  # numbers from here on are milliseconds since 1970; as seconds this is the year 5138
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0), "ms": 1e-3, "us": 1e-6, "µs": 1e-6,
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0), **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}  # fmt: skip
# Since 1970 or since the start; per epoch or row; per iteration.
SINCE_1970 = {"timestamp", "wall time", "walltime", "wall clock", "datetime", "date", "created", "created at"}
COARSE = 60.0  # seconds: a clock in minutes or hours is rounded, so durations come before it
BAR = "bar time"  # of a progress bar: since its start, and most bars start again in each epoch
WITHOUT_YEAR = "time of the year"  # seconds, of a stamp without a full date
CLOCKS = ("timestamp", "wall time", "walltime", "wall clock", "datetime", "date", "time", "runtime", "elapsed", "elapsed time",
          "time elapsed", "", "relative time process", "relative time wall", "total time", "train time", "training time",
          "created", "created at", "elapsedtime", "time time elapsed", WITHOUT_YEAR)  # fmt: skip
DURATIONS = ("epoch time", "time per epoch", "epoch duration", "duration", "training duration", "epoch", "time epoch")
# The duration of a row if it has the next epoch or step; a row that comes every 10 steps may have that of one step.
OF_NEXT = ("time cost", "time taken", "time consumed", "time used", "time spent", "took", "time", "")
PER_ITERATION = (
    "iter time",
    "iteration time",
    "time per iteration",
    "elapsed time per iteration",
    "time per step",
    "per step time",
    "time per iter",
    "step time",
    "batch time",
    "batch cost",
    "dt",
)
# Counters to multiply with `PER_ITERATION`; those that never mean an epoch come first.
COUNTERS = ("iter", "iteration", "global step", "trainer global step", "train global step", "step", "steps")
_UNIT = "|".join(sorted(UNITS, key=len, reverse=True))
_WITH_UNIT = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,15}})?)\s?({_UNIT})")
_WITH_UNITS = re.compile(rf"(?:{_WITH_UNIT.pattern}(?: and |[ ,]{{0,2}})){{1,4}}")
Rows = Sequence[Mapping[str, Any]]


def times_of(rows: Rows, names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return the seconds at rows `own`, since 1970 or since some start; None if the log has no times."""
    clocks = list(_of_kind(names, CLOCKS))
    clocks += [(name, 1.0) for name in named(names, ("total",)) if any(unit_of_value(row.get(name)) for row in rows)]
    coarse = [(name, factor) for name, factor in clocks if factor * _unit_of_column(rows, name) >= COARSE]
    fine = [clock for clock in clocks if clock not in coarse]
    if _have(rows, own, (BAR,)) and not _have(rows, own, [name for name, _ in fine]):
        fine = []  # the stamps of a few other lines do not show when the bars were drawn
    if (seconds := _of_clocks(rows, names, own, fine)) is not None:
        return seconds
    if (seconds := _of_bars(rows, names, own)) is not None:
        return seconds
    in_minutes = [(n, f) for n, f in _of_kind(names, CLOCKS) if any(_is_short(row.get(n)) for row in rows)]
    if (seconds := _of_durations(rows, own, [*_of_kind(names, DURATIONS), *in_minutes])) is not None:
        return seconds
    clock = _of_clocks(rows, names, own, coarse)
    seconds = None if clock is None else _of_iterations(rows, names, own)
    if seconds is not None or clock is not None:
        return clock if seconds is None else seconds
    seconds = _of_durations(rows, own, _of_next(rows, names))
    return _of_iterations(rows, names, own) if seconds is None else seconds


def _have(rows: Rows, own: Sequence[int], names: Iterable[str]) -> bool:
    """Return whether most of the rows `own` have one of the columns."""
    return 2 * sum(any(rows[number].get(name) not in (None, "") for name in names) for number in own) > len(own)


def _of_durations(rows: Rows, own: Sequence[int], columns: Iterable[tuple[str, float]]) -> Array | None:
    """Return the sum of the durations of all rows until each row; None if no row has one."""
    for name, factor in columns:
        took = [seconds_of(row.get(name), factor) for row in rows]
        if any(took):
            ends = np.cumsum(_each([duration or 0.0 for duration in took]))
            at = np.flatnonzero(np.diff(ends, prepend=0.0) > 0)  # the rows with a duration
            if len(own) > 2 * len(at):
                return _spread(own, at.tolist(), ends)
            return np.asarray(ends[list(own)])
    return None


def _each(took: Sequence[float]) -> Sequence[float]:
    """Return the duration of each row. Durations that rise from row to row in proportion to the rows are all since the start.

    >>> _each([60.0, 121.0, 0.0, 180.0, 241.0]), _each([60.0, 61.0, 60.0, 62.0])
    ([60.0, 61.0, 0.0, 59.0, 61.0], [60.0, 61.0, 60.0, 62.0])
    """
    known = np.array([duration for duration in took if duration > 0])
    apart = np.diff(known)
    if (
        len(known) < 3
        or not (apart > 0).all()
        or known[-1] - known[0] < 0.5 * (len(known) - 1) * max(known[0], apart.min())
    ):
        return took
    last, each = 0.0, []
    for duration in took:
        each.append(duration - last if duration > 0 else 0.0)
        last = max(last, duration)
    return each


def _spread(rows: Sequence[int], ends_at: Sequence[int], ends: Array) -> Array:
    """Return times of rows at equal distances within each duration, if a duration has several rows.

    >>> _spread([0, 1, 3, 4], [2, 5], np.array([0, 0, 60, 60, 60, 120.0]))
    array([ 30.,  60.,  90., 120.])
    """
    times = np.array([0.0, *ends[ends_at], ends[-1]])
    parts, counts = np.unique(np.searchsorted(ends_at, rows), return_counts=True)
    steps = zip(parts, counts, strict=True)
    return np.concatenate([np.linspace(times[part], times[part + 1], count + 1)[1:] for part, count in steps])


def _of_clocks(
    rows: Rows, names: Sequence[str], own: Sequence[int], clocks: Sequence[tuple[str, float]]
) -> Array | None:
    """Return the times of the first clock that rises and is not a counter: some writers give their step as the time stamp."""
    counts = [[number_of(row.get(name)) for row in rows] for name in named(names, STEPS)]
    for name, factor in clocks:
        times = [seconds_of(value, factor) for value in carried(rows, name, own)]
        if times and None not in times:
            seconds = np.array(times, dtype=float)
            is_count = words(name) in SINCE_1970 and [number_of(row.get(name)) for row in rows] in counts
            if (np.diff(seconds) >= 0).all() and np.ptp(seconds) > 0 and not is_count:
                return seconds
    return None


def _unit_of_column(rows: Rows, name: str) -> float:
    """Return the unit of a column's first value in seconds; 1 without a unit."""
    value = next((row[name] for row in rows if row.get(name) not in (None, "")), None)
    return UNITS.get(unit_of_value(value), 1.0)


def _of_next(rows: Rows, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the columns of `OF_NEXT` whose rows count every epoch or step."""
    is_of_iteration = any(words(name) in ("data time", "batch time") for name in names)
    for name, factor in _of_kind(names, OF_NEXT):
        if words(name) == "time" and is_of_iteration:
            continue
        with_time = [row for row in rows if row.get(name) not in (None, "")]
        counts = ([number_of(row.get(counter)) for row in with_time] for counter in named(names, STEPS))
        if any(len(of) > 1 and None not in of and (np.diff(np.array(of, dtype=float)) == 1).all() for of in counts):
            yield name, factor


def _of_bars(rows: Rows, names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return the seconds that progress bars show, added up; None without bars.

    The bar with the longest time is used, because bars of evaluations run within the time of another. It starts again if its
    count falls, or if a full bar follows a full one in another epoch.
    """
    if BAR not in names or not len(own):
        return None
    every = range(len(rows))
    epochs = next((carried(rows, name, every) for name in named(names, ("epoch",))), [None] * len(rows))
    clocks: dict[Any, list[tuple[int, float]]] = {}  # by the total of a bar: rows and the time so far
    last: dict[Any, tuple[float, float, Any]] = {}
    for number, (row, epoch) in enumerate(zip(rows, epochs, strict=True)):
        total, count, time = row.get("of iterations"), number_of(row.get("iter")), seconds_of(row.get(BAR), 1.0)
        if time is None or count is None:
            continue
        before, shown, in_epoch = last.get(total, (count, 0.0, epoch))
        is_new = count < before or (count == before == number_of(total) and epoch != in_epoch)
        clock = clocks.setdefault(total, [(-1, 0.0)])
        clock.append((number, clock[-1][1] + (time if is_new else max(0.0, time - shown))))
        last[total] = count, time, epoch
    longest = np.array(max(clocks.values(), key=lambda clock: clock[-1][1], default=[(-1, 0.0)]))
    times = longest[np.searchsorted(longest[:, 0], own, "right") - 1, 1]
    return times if np.ptp(times) > 0 else None


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
    is_of_each = any(words(name) == "data time" for name in names) or any(
        _is_milliseconds(row.get("time")) for row in rows
    )
    lengths = [*_of_kind(names, PER_ITERATION), *((n, 1e-3) for n in names if words(n) == "time ms")]
    lengths += [(name, 1.0) for name in named(names, ("time",)) if is_of_each]
    for name, factor in lengths:
        for counter in named(names, COUNTERS):
            counted = [row for row in rows if row.get(counter) not in (None, "")]
            took = [one for row in counted if (one := seconds_of(row.get(name), factor)) is not None and one > 0]
            counts = [seconds_of(value, 1.0) for value in carried(rows, counter, own)]
            if len(set(counts)) == 1 < len(counts):  # each evaluation counts its batches
                counts = [seconds_of(value, 1.0) for value in carried(rows, counter, own, skips_own=True)]
            if not took or None in counts:
                continue
            found = np.array(counts, dtype=float)
            is_twice = 2 * len(np.unique(found)) == len(found)  # by two loggers
            if (np.diff(found) > 0).all() or (is_twice and (np.diff(found) >= 0).all()):
                return found * float(np.median(took))
    return None


def seconds_of(value: Any, factor: float) -> float | None:
    """Return seconds; None for a value that is not a time.

    >>> seconds_of("01:12", 1.0), seconds_of("2.5", 60.0), seconds_of("1:00:00.5", 1.0), seconds_of("soon", 1.0)
    (72.0, 150.0, 3600.5, None)
    >>> seconds_of("0.25h", 1.0), seconds_of("989ms", 1.0), seconds_of("1h30m", 1.0)
    (900.0, 0.989, 5400.0)
    """
    number = number_of(value)
    if number is None:
        return _of_text(str(value).strip())
    if not np.isfinite(number):
        return None
    return number / 1000 if number > MILLISECONDS_FROM and factor == 1.0 else factor * number


def number_of(value: Any) -> float | None:
    """Return a number, also of a text; None for another value, and for an integer that no float can hold.

    >>> number_of("0.5"), number_of("soon"), number_of(10**400)
    (0.5, None, None)
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def unit_of_value(value: Any) -> str:
    """Return the unit at the end of a duration; empty without one.

    >>> unit_of_value("989ms"), unit_of_value("1h30m"), unit_of_value("0.5")
    ('ms', 'm', '')
    """
    if not isinstance(value, str) or not _WITH_UNITS.fullmatch(value.strip()):
        return ""
    return str(_WITH_UNIT.findall(value)[-1][1])


def seconds_of_year(month: int, day: int, clock: str) -> float | None:
    """Return the seconds since the start of a year with a 29 February; None for a wrong date."""
    try:
        return (datetime.fromisoformat(f"2000-{month:02d}-{day:02d} {clock}") - datetime(2000, 1, 1)).total_seconds()
    except ValueError:
        return None


def _is_milliseconds(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\d.]{1,30}\s?[mµu]s", value) is not None


def _is_short(value: Any) -> bool:
    """Return whether a value is minutes and seconds, such as 01:12. If such times do not rise, each is the duration of its row."""
    return isinstance(value, str) and re.fullmatch(r"(\d{1,9}:)?\d{1,3}:\d\d([.,]\d{1,9})?", value.strip()) is not None


def _of_text(text: str) -> float | None:
    if _is_short(text):
        parts = [float(part) for part in text.replace(",", ".").split(":")]
        return sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
    if _WITH_UNITS.fullmatch(text):
        return sum(float(number) * UNITS[unit] for number, unit in _WITH_UNIT.findall(text))
    try:
        return datetime.fromisoformat(text.replace("/", "-")).timestamp()
    except ValueError:
        return None
