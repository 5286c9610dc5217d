"""Strong and weak scaling: throughput, speed-up, computation and communication against the number of ranks.

Rows are those of `chronograd.record.ScalingRow`, measured and predicted, for one job or for several `series`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chronograd.answer import Column, Section, Table
from chronograd.figure import Bar, Bars, Figure, Lines, Role, Series
from chronograd.units import percent, seconds, whole_percent
from chronograd.words import how_many, off, signed_percent, time_unit

Row = Mapping[str, Any]
UTILISATION = (
    "bandwidth used: 2(n − 1)/n · gradient bytes / exposed communication / link bandwidth; above 100 % where most "
    "of the exchange is hidden behind backward"
)
COMPUTATION, INPUT, EXPOSED, OTHER = "computation", "waiting for input", "exposed communication", "other"
_WHOLE = 0.005  # ignore a remainder below this share of a step
EFFICIENCY = "efficiency: throughput over n times that of one rank"
GROWTH = "growth: step time over that of one rank"
_COLORS = ("accent", "vermilion", "green", "purple", "orange", "grey")


def _times(value: float) -> str:
    return f"{value:.2f} ×"


# All possible columns of a table.
_COLUMNS = {
    "series": Column("", lambda row: row.get("series", "")),
    "scaling": Column("scaling", "scaling"),
    "ranks": Column("ranks", "world", format="d"),
    "kind": Column("", "kind"),
    "batch": Column("effective batch", "batch", format=","),
    "per rank": Column("per rank", "per_rank", format=","),
    "step": Column("step", "step_time_s", "s", empty=""),
    "rate": Column("throughput", "throughput_samples_per_s", "sample/s", empty=""),
    "training": Column("training", "training_time_s", "s", empty=""),
    "cost": Column("cost", "cost_usd", "usd", empty=""),
    "speed-up": Column("speed-up", "speed_up", format=_times, empty=""),
    "efficiency": Column("efficiency", "efficiency", format=whole_percent, empty=""),
    "growth": Column("growth", "iteration_growth", format=_times, empty=""),
    "computation": Column("computation", "compute_s", "s", empty=""),
    "input": Column(INPUT, lambda row: row.get("input_stall_s"), "s", empty=""),
    "difference": Column("communication by difference", lambda row: _exchange(row, "communication_by_difference_s"), "s", empty=""),
    "exposed": Column("exposed", lambda row: _exchange(row, "communication_exposed_s"), "s", empty=""),
    "interval": Column("80 % interval", lambda row: _limits(row["exposed_low_s"], row["exposed_high_s"]), format=str),
    "bandwidth": Column("bandwidth used", "bandwidth_utilisation", format=whole_percent, empty=""),
}  # fmt: skip
_STEP = ("ranks", "kind", "batch", "per rank", "step", "rate", "training", "cost", "speed-up", "efficiency", "growth")
_SPLIT = ("computation", "input", "difference", "exposed")
# Columns that a narrow terminal leaves out, in this order.
_DROP = ("bandwidth", "growth", "difference", "per rank", "training", "computation", "input", "batch", "cost",
         "interval")  # fmt: skip


def _exchange(row: Row, name: str) -> float | None:
    return None if row["world"] == 1 else row[name]


def _limits(*bounds: float | None) -> str:
    return " … ".join(seconds(bound) for bound in bounds if bound is not None)


def _table(rows: Sequence[Row], names: Sequence[str], notes: Sequence[str]) -> Table:
    columns = [_COLUMNS[name] for name in names]
    drop = [_COLUMNS[name].name for name in _DROP if name in names]
    return Table.of(rows, columns, notes, drop=drop).without_empty_columns()


def table_of(rows: Sequence[Row], with_communication: bool = True) -> Table:
    """Return a table of all rows: step, throughput, time and cost of the training, speed-up, efficiency, and communication."""
    missing = [f"missing: {reason}" for reason in sorted({row["reason"] for row in rows if row["kind"] == "missing"})]
    if not with_communication:
        return _table(rows, _STEP, [EFFICIENCY, GROWTH, *missing])
    return _table(rows, (*_STEP, *_SPLIT, "bandwidth"), [EFFICIENCY, GROWTH, UTILISATION, *missing])


def throughput_section(title: str, rows: Sequence[Row], with_communication: bool = False) -> Section:
    """Plot throughput and step time against ranks: predictions as lines, measurements as points, the ideal dashed.

    With communication the table has every column, for pages without a `communication_section`.
    """
    worlds = sorted({row["world"] for row in rows})
    known = [row for row in rows if row["step_time_s"] is not None]
    unit, length = time_unit(row["step_time_s"] for row in known)
    panels = [
        _panel(known, "throughput_samples_per_s", "throughput, samples/s", 1.0, worlds, with_ideal=True),
        _panel(known, "step_time_s", f"step time, {unit}", length, worlds),
    ]
    return Section(
        title,
        _throughput_takeaway(known),
        figure=Figure(panels) if known else None,
        caption="Lines: predicted, with the 80 % interval. Points: measured, with the 80 % interval of steps. Dashed: ideal.",
        table=table_of(rows, with_communication),
    )


def communication_section(title: str, rows: Sequence[Row]) -> Section:
    """Return a section on computation and communication of a step, by two methods."""
    many = [row for row in rows if row["world"] > 1 and row["step_time_s"] is not None]
    split = [row for row in many if row["compute_s"] is not None and row["communication_exposed_s"] is not None]
    unit, length = time_unit(row["step_time_s"] for row in split)
    bars = [
        Bar(
            ", ".join(
                filter(None, (row.get("series", ""), row["scaling"], how_many(row["world"], "ranks"), row["kind"]))
            ),
            row["kind"],
            {name: float(f"{value / length:.6g}") for name, value in _segments(row).items()},
            note=_bar_note(row),
        )
        for row in split
    ]
    colors = {COMPUTATION: "accent", INPUT: "sky", EXPOSED: "vermilion", OTHER: "grey"}
    return Section(
        title,
        _communication_takeaway(many),
        "Computation is the step of one rank alone with the same batch per rank, without waiting for input. "
        "We report communication in two ways: the difference from that step, and the exposed time, from steps with and without exchange.",
        figure=Figure([Bars(f"time per step, {unit}", "ranks", bars, colors)]) if bars else None,
        caption="Solid bars are measured, light ones predicted; the label shows the whole step.",
        table=_table(
            many,
            ("series", "scaling", "ranks", "per rank", "kind", "step", *_SPLIT, "interval", "bandwidth"),
            [UTILISATION],
        ),
    )


def _groups(rows: Sequence[Row]) -> list[tuple[Role, str]]:
    return list(dict.fromkeys((row["kind"], row.get("series", "")) for row in rows if row["kind"] != "missing"))


def _panel(
    rows: Sequence[Row], name: str, label: str, length: float, worlds: list[int], with_ideal: bool = False
) -> Lines:
    groups = _groups(rows)
    names = list(dict.fromkeys(series for _, series in groups))
    series = []
    for role, text in groups:
        own = [row for row in rows if (row["kind"], row.get("series", "")) == (role, text)]
        color = _COLORS[names.index(text) % len(_COLORS)] if len(names) > 1 else ""
        series.append(
            _series(own, name, length, f"{text}, {role}" if text else role, role, color, has_band=name == "step_time_s")
        )
    first = next((row for row in rows if row["world"] == 1 and row[name]), None)
    if with_ideal and first is not None and len(names) == 1:
        series.append(Series("ideal", "reference", worlds, [n * first[name] for n in worlds]))
    is_log = max(worlds, default=1) > 8
    return Lines("ranks", label, series, log_x=is_log, log_y=is_log, from_zero=not is_log, x_ticks=worlds)


def _series(
    rows: Sequence[Row], name: str, length: float, label: str, role: Role, color: str, has_band: bool
) -> Series:
    def scaled(key: str) -> list[float | None]:
        return [None if row[key] is None else float(f"{row[key] / length:.6g}") for row in rows]

    low, high = (scaled("low"), scaled("high")) if has_band and all(row["low"] for row in rows) else ((), ())
    xs = [float(row["world"]) for row in rows]
    return Series(label, role, xs, scaled(name), low, high, color, is_joined=role == "measured")


def _segments(row: Row) -> dict[str, float]:
    """Return the parts of a step in seconds, with the unexplained rest."""
    stall_s = row.get("input_stall_s")
    parts: dict[str, float] = {
        COMPUTATION: row["compute_s"],
        **({INPUT: stall_s} if stall_s else {}),
        EXPOSED: row["communication_exposed_s"],
    }
    rest = row["step_time_s"] - sum(parts.values())
    return parts | ({OTHER: rest} if rest > _WHOLE * row["step_time_s"] else {})


def _bar_note(row: Row) -> str:
    """Return the step time; also the sum of its parts if that is larger, because one rank alone took longer than among others."""
    step_s, parts_s = row["step_time_s"], sum(_segments(row).values())
    return seconds(step_s) if parts_s <= (1 + _WHOLE) * step_s else f"{seconds(parts_s)}, the step {seconds(step_s)}"


def _throughput_takeaway(rows: Sequence[Row]) -> str:
    """Return a sentence on the efficiency of the largest measured world, and the error of the prediction."""
    measured = [row for row in rows if row["kind"] == "measured" and row["world"] > 1 and row["speed_up"]]
    found = measured or [row for row in rows if row["world"] > 1 and row["speed_up"]]
    if not found:
        return "There are no results with several ranks."
    last = max(found, key=lambda row: row["world"])
    told = "give" if measured else "are predicted to give"
    text = (
        f"{how_many(last['world'], 'ranks')} {told} {last['speed_up']:.2f} times the throughput of one "
        f"({percent(last['efficiency'], 0)} of ideal), at an effective batch of {last['batch']:,}."
    )
    pairs = _pairs(rows)
    if pairs:
        errors = [f"{signed_percent(p['step_time_s'] / m['step_time_s'] - 1)} at {m['world']}" for m, p in pairs]
        text += f" The predicted step is off by {', '.join(errors)}."
    return text


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return measured rows, each with the prediction for it."""

    def key(row: Row) -> tuple[Any, ...]:
        return row.get("series", ""), row["scaling"], row["world"], row["batch"]

    predicted = {key(row): row for row in rows if row["kind"] == "predicted"}
    return [(row, predicted[key(row)]) for row in rows if row["kind"] == "measured" and key(row) in predicted]


def _communication_takeaway(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row["kind"] == "measured" and row["communication_exposed_s"] is not None]
    found = measured or [row for row in rows if row["communication_exposed_s"] is not None]
    if not found:
        return "No communication was measured or predicted."
    largest = max(found, key=lambda row: row["communication_exposed_s"] / row["step_time_s"])
    share = largest["communication_exposed_s"] / largest["step_time_s"]
    text = (
        f"Exposed communication is at most {percent(share, 0)} of a step ({seconds(largest['communication_exposed_s'])} "
        f"of {seconds(largest['step_time_s'])}, {largest['scaling']} scaling, {how_many(largest['world'], 'ranks')})"
    )
    difference = largest["communication_by_difference_s"]
    if difference is not None and measured:
        text += f"; the difference from one rank is {seconds(difference)}"
    told = next((p["communication_exposed_s"] for m, p in _pairs(rows) if m is largest), None)
    if told:
        text += f"; predicted: {off(told, largest['communication_exposed_s'])}"
    return text + "."
