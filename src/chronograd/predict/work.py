"""The time of a step by kind of operator."""

from __future__ import annotations

from collections.abc import Sequence

from chronograd.answer import Column, Section, Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.record import OperatorKind, Record
from chronograd.units import percent, seconds, si
from chronograd.words import device, kind_name, time_unit


def operators_section(record: Record) -> Section:
    """Return the section with the time of a step by operator kind, from the record's table `by_kind`."""
    rows = sorted(record.tables.by_kind, key=lambda row: -row.time_s)
    total = sum(row.time_s for row in rows)
    unit, length = time_unit([rows[0].time_s] if rows else [])
    role = record.kind
    bars = [
        Bar(
            kind_name(row.kind),
            role,
            {"time": float(f"{row.time_s / length:.6g}")},
            note=f"{seconds(row.time_s)}, {percent(row.time_s / total, 0)}" if total else "",
        )
        for row in rows
    ]
    return Section(
        title="Which operators take the time",
        intro=f"One step on {device(record)}, {record.kind}. FLOPs are those of matrix work, 1 MAC = 2 FLOPs.",
        figure=Figure([Bars(f"time per step, {unit}", "operator kind", bars)]) if bars else None,
        caption=f"Operators of one step by kind, {record.kind}, longest first.",
        table=Table.of(
            rows,
            (
                Column("operator kind", lambda row: kind_name(row.kind)),
                Column("time", "time_s", "s"),
                Column("share", lambda row: row.time_s / total if total else None, "1"),
                Column("FLOPs", lambda row: row.flops or None, "FLOP"),
                Column("bytes", lambda row: row.bytes or None, format=lambda size: si(size, "B")),
                Column("rate", lambda row: row.flops / row.time_s if row.flops and row.time_s else None, "FLOP/s"),
                Column(
                    "FLOPs per byte",
                    lambda row: row.flops / row.bytes if row.flops and row.bytes else None,
                    format=".3g",
                ),
            ),
        ),
        takeaway=_operators_takeaway(rows, total),
    )


def _operators_takeaway(rows: Sequence[OperatorKind], total: float) -> str:
    if not rows or not total:
        return "The record has no time by operator kind, so it does not show single operators."
    top = rows[0]
    flops = sum(row.flops for row in rows)
    of_flops = f" for {percent(top.flops / flops, 0)} of the FLOPs" if flops else ""
    idle = sum(row.time_s for row in rows if not row.flops)
    rest = f"; operators without matrix work take {percent(idle / total, 0)} of it" if idle and flops else ""
    return (
        f"{kind_name(top.kind).capitalize()} takes {percent(top.time_s / total, 0)} of the operators' "
        f"time{of_flops}{rest}."
    )
