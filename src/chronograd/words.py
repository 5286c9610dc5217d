"""Words of reports for numbers: counts, errors, intervals, names of operator kinds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from chronograd.record import QUANTITIES, Quantity, Record
from chronograd.units import number, quantity

T = TypeVar("T")
KIND_NAMES = {
    "conv_1x1": "1×1 convolution",
    "conv_3x3": "3×3 convolution",
    "conv_kxk": "k×k convolution",
    "conv_depthwise": "depthwise convolution",
    "conv_grouped": "grouped convolution",
    "gemm": "GEMM",
    "batched_gemm": "batched GEMM",
}
_NUMBER_UNIT = re.compile(
    r"(?<=\d) (?=%|(?:[nmµ]?s|min|h|d|[kKMGT]?i?B|[kMGTP]?FLOP|process(?:es)?|samples)\b)"
    r"|(?<=\d (?:h|d)) (?=\d)|(?<=\d min) (?=\d)"
)
_SENTENCE_END = re.compile(r"(?<=[\w%)`\u201d])\. (?=[A-Z0-9`\u201c])|; ")
_TIME_UNITS = (
    ("ns", 1e-9),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("minutes", 60.0),
    ("hours", 3600.0),
    ("days", 86400.0),
)


def kind_name(kind: str) -> str:
    """Return the readable name of a kind of operator.

    >>> kind_name("conv_3x3"), kind_name("norm")
    ('3×3 convolution', 'norm')
    """
    return KIND_NAMES.get(kind, kind.replace("_", " "))


def layout_name(is_channels_last: bool) -> str:
    """Return the name of a memory layout.

    >>> layout_name(True), layout_name(False)
    ('NHWC', 'NCHW')
    """
    return "NHWC" if is_channels_last else "NCHW"


def how_many(count: float | str | None, plural: str) -> str:
    """Return a count with its noun, which is singular after 1; text stays.

    >>> how_many(1, "epochs"), how_many(1200, "old names"), how_many(1, "boxes"), how_many(1, "batches"), how_many(1.5, "epochs")
    ('1 epoch', '1,200 old names', '1 box', '1 batch', '1.5 epochs')
    """
    text = f"{count:,}" if isinstance(count, int) else number(count) if isinstance(count, float) else str(count)
    if text != "1":
        return f"{text} {plural}"
    return f"1 {plural[:-2] if plural.endswith(('xes', 'ches', 'sses')) else plural[:-1]}"


def processes(count: int) -> str:
    """Return a number of processes in words.

    >>> processes(1), processes(2)
    ('1 process', '2 processes')
    """
    return how_many(count, "processes")


def signed_percent(fraction: float | None) -> str:
    """Return an error with its sign; from tenfold on as a factor.

    >>> signed_percent(0.082), signed_percent(-0.5), signed_percent(None), signed_percent(29)
    ('+8.2 %', '−50.0 %', '–', '×30')
    """
    if fraction is None:
        return "–"
    if fraction >= 9:
        return f"×{fraction + 1:,.0f}"
    return f"{'−' if fraction < 0 else '+'}{abs(100 * fraction):.1f} %"


def off(predicted: float, measured: float) -> str:
    """Return the difference of a prediction from a measurement, in words.

    >>> off(101, 100), off(120, 100), off(300, 100), off(20, 100)
    ('1.0 % too high', '20 % too high', '3.0 times too high', '5.0 times too low')
    """
    if predicted == measured:
        return "exact"
    if measured <= 0 or predicted <= 0:
        return f"{'too high' if predicted > measured else 'too low'} without a ratio"
    side = "high" if predicted > measured else "low"
    ratio = max(predicted / measured, measured / predicted)
    if ratio >= 2:
        return f"{ratio:,.1f} times too {side}"
    error = abs(predicted / measured - 1)
    return f"{100 * error:.{1 if error < 0.1 else 0}f} % too {side}"


def interval(q: Quantity) -> str:
    """Return `low … high`, with one unit if both have the same; empty if the quantity has no interval.

    The interval contains the value: older records have intervals without the longest steps, which their mean includes.

    >>> interval(Quantity(value=2.0, unit="s", low=1.0, high=3.0))
    '1 … 3 s'
    >>> interval(Quantity(value=0.002, unit="usd", low=0.001, high=0.02))
    '$0.0010 … $0.02'
    >>> interval(Quantity(value=496.0, unit="sample/s", low=499.6, high=500.0))
    '496 … 500 samples/s'
    """
    if q.low is None or q.high is None:
        return ""
    values = (q.low, q.high) if q.value is None else (min(q.low, q.value), max(q.high, q.value))
    low, high = (quantity(value, q.unit) for value in values)
    if q.unit == "usd":
        return low if low == high else f"{low} … {high}"
    number, _, unit = low.partition(" ")
    return f"{number if unit and ' ' not in unit and high.endswith(f' {unit}') else low} … {high}"


def is_inside(value: float, q: Quantity) -> bool | None:
    """Return whether a value lies in an interval; None without one."""
    return None if q.low is None or q.high is None else q.low <= value <= q.high


def device(record: Record) -> str:
    """Return count and name of a record's devices, such as `8×v100`."""
    return f"{record.world}×{record.device}"


def listed(items: Sequence[str], joint: str = "and") -> str:
    """Join items with commas and a last "and".

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return f"{', '.join(items[:-1])} {joint} {items[-1]}" if len(items) > 1 else "".join(items)


def some(items: Sequence[str], most: int = 3) -> str:
    """Join the first items, and state the number of the others.

    >>> some(["a", "b", "c"]), some(["a", "b", "c", "d"])
    ('a, b, c', 'a, b, c, …')
    """
    return ", ".join(items[:most]) + (", …" if len(items) > most else "")


def named(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return values by name; a repeated name becomes `name (2)`, then `name (3)`.

    >>> named([("a", 1), ("a", 2)])
    {'a': 1, 'a (2)': 2}
    """
    values: dict[str, T] = {}
    for name, value in pairs:
        own, number = name, 2
        while own in values:
            own, number = f"{name} ({number})", number + 1
        values[own] = value
    return values


def dotted(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full names of nested fields, and their values.

    >>> list(dotted({"data": {"name": "digits"}, "mode": None}))
    [('data.name', 'digits'), ('mode', None)]
    """
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def quantity_name(name: str) -> str:
    """Return the readable name of a quantity.

    >>> quantity_name("training_time_s"), quantity_name("of_my_own")
    ('training time', 'of_my_own')
    """
    return QUANTITIES.get(name, (name, ""))[0]


def reasons(records: Iterable[tuple[str, Record]], names: Iterable[str]) -> list[str]:
    """Return why quantities are missing, each reason once: the note under a table with "–"."""
    found: dict[str, list[str]] = {}
    for label, record in records:
        for name in names:
            q = record[name]
            if q.value is None:
                text = f"no {quantity_name(name)}: {q.reason or 'no reason was given'}"
                found.setdefault(text, []).append(label)
    return [f"{listed(list(dict.fromkeys(labels)))}: {text}" for text, labels in found.items()]


def first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence, up to its full stop or semicolon, and the rest.

    >>> first_sentence("It takes 0.5 s. That is long; too long.")
    ('It takes 0.5 s', 'That is long; too long.')
    >>> first_sentence("It takes 0.5 s; the rest is short.")
    ('It takes 0.5 s', 'The rest is short.')
    >>> first_sentence("Is it long?")
    ('Is it long?', '')
    """
    first, *rest = _SENTENCE_END.split(text, maxsplit=1)
    if not rest:
        return text.removesuffix("."), ""
    is_word = rest[0].split(maxsplit=1)[0].isalpha()
    return first, rest[0][0].upper() + rest[0][1:] if is_word else rest[0]


def tight(text: str) -> str:
    """Keep numbers and their units on one line."""
    return _NUMBER_UNIT.sub("\u00a0", text)


def time_unit(values: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which the median of some durations is at least 1, and its length in seconds.

    >>> time_unit([0.09, 0.1]), time_unit([7200.0])
    (('ms', 0.001), ('hours', 3600.0))
    """
    known = sorted(v for v in values if v is not None and v > 0 and math.isfinite(v))
    middle = known[len(known) // 2] if known else 1.0
    return next(((n, s) for n, s in reversed(_TIME_UNITS) if middle >= s), _TIME_UNITS[0])


def scaled(values: Iterable[float | None], unit: float) -> list[float | None]:
    """Return values in another unit, to six digits; missing ones stay missing."""
    return [None if v is None else float(f"{v / unit:.6g}") for v in values]
