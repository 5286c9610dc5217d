"""What a record says: every quantity with its interval, count and source. Of predictions and of measurements alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.figure import Role, Series
from chronograd.record import QUANTITIES, Record
from chronograd.units import quantity
from chronograd.words import interval, named, quantity_name, scaled

# What a reader asks for first; the first that is known is said with its interval.
FIRST = (
    "test_accuracy",
    "step_time_s",
    "throughput_samples_per_s",
    "training_time_s",
    "cost_usd",
    "memory_peak_bytes",
)


def record_answer(*records: Record) -> Answer:
    """Records of any kind, one section each. As data: the records themselves, or the one there is."""
    data: list[Any] = [record.model_dump(mode="json") for record in records]
    is_one = len(records) == 1
    return Answer(
        title=records[0].title if is_one else f"{len(records)} records",
        sections=[record_section(record) for record in records],
        records=named((record.title, record) for record in records),
        data=data[0] if is_one else data,
        notes=[note if is_one else f"{record.title}: {note}" for record in records for note in record.notes],
    )


def record_section(record: Record) -> Section:
    """Every quantity of a record in a table; those that are asked for first in a sentence."""
    usual = [name for name in QUANTITIES if name in record.quantities]
    others = sorted(name for name in record.quantities if name not in QUANTITIES)
    return Section(
        title=f"{record.title} ({record.kind})",
        takeaway=_takeaway(record),
        table=Table(
            ("quantity", "value", "± deviation", "80 % interval", "n", "source"),
            [_row(record, name) for name in (*usual, *others)],
            {1, 2, 3, 4},
        ),
        data=[{"quantity": name, **record[name].model_dump(mode="json")} for name in (*usual, *others)],
    )


def _row(record: Record, name: str) -> list[str]:
    q = record[name]
    deviation = "" if q.std is None else quantity(q.std, q.unit)
    count = "" if q.n is None else str(q.n)
    return [quantity_name(name), quantity(q.value, q.unit), deviation, interval(q), count, q.source or q.reason]


def _takeaway(record: Record) -> str:
    known = [name for name in FIRST if record[name].value is not None]
    if not known:
        missing = next((q.reason for q in record.quantities.values() if q.value is None and q.reason), "")
        return f"None of the usual quantities is known{f' ({missing})' if missing else ''}."
    parts = [f"{quantity_name(name)} {quantity(record[name].value, record[name].unit)}" for name in known]
    between = interval(record[known[0]])
    parts[0] += f" (80 % interval {between})" if between else ""
    return f"{record.kind.capitalize()}: {', '.join(parts)}."


def series_of(
    by_count: Mapping[int, Record], name: str, label: str, role: Role, length: float, color: str = ""
) -> Series:
    """A quantity of records against their number of devices, in units of `length`, with its 80 % interval as a band."""
    quantities = [by_count[n][name] for n in sorted(by_count)]
    middle, low, high = (scaled((getattr(q, bound) for q in quantities), length) for bound in ("value", "low", "high"))
    if all(bound is None for bound in low):
        low, high = [], []
    return Series(label, role, [float(n) for n in sorted(by_count)], middle, low, high, color)
