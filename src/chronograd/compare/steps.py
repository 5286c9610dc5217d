"""The parts of a step, and their change with the number of processes: predictions next to measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chronograd.answer import Section, Table
from chronograd.compare.scaling import speed_up
from chronograd.figure import PART_COLORS, Bar, Bars, Figure, Lines, Role, Series
from chronograd.quantities import series_of
from chronograd.record import STEP_PARTS, Quantity, Record
from chronograd.units import NOTHING_S, percent, quantity, seconds
from chronograd.words import (
    how_many,
    interval,
    is_inside,
    listed,
    off,
    processes,
    reasons,
    signed_percent,
    time_unit,
)

ByCount = dict[int, Record]
# Ignore a remainder below this share of the step time.
_WHOLE = 0.005


def parts_section(predicted: ByCount, measured: ByCount) -> Section:
    """Return a section on step time by part for each world size. A step that was not split is one grey bar."""
    records = list(_labelled(predicted, measured))
    counts = _counts(predicted, measured)
    unit, length = time_unit(r["step_time_s"].value for _, _, r in records)
    bars = [_bar(label, role, record, length) for label, role, record in records if _total(record)]
    totals = ("step_time_s", *STEP_PARTS)
    table = Table(
        ("processes", "part", "predicted", "80 % interval", "measured", "80 % interval", "n", "error"),
        [
            row
            for n in counts
            for row in _part_rows(
                n, predicted.get(n), measured.get(n), len(counts) <= 2 or (n in predicted and n in measured)
            )
        ],
        {0, 2, 3, 4, 5, 6, 7},
        reasons(((label, r) for label, _, r in records), totals),
        drop=(6, 5, 3),
    ).without_empty_columns()
    return Section(
        title="Parts of a step",
        intro="A step runs from reading a batch to updated weights. Communication hidden behind the backward pass is not "
        "part of its length.",
        figure=Figure([Bars(f"time per step, {unit}", "run", bars, PART_COLORS)]) if bars else None,
        caption="Solid bars are measured, light ones predicted. The whisker is the 80 % interval of the whole step.",
        table=table,
        takeaway=_parts_takeaway(predicted, measured),
    )


def scaling_section(predicted: ByCount, measured: ByCount) -> Section:
    """Return a section on step time and throughput against the number of processes."""
    counts = _counts(predicted, measured)
    both = [*predicted.values(), *measured.values()]
    unit, length = time_unit(r["step_time_s"].value for r in both)
    panels = [
        _against_count("step_time_s", f"step time, {unit}", length, predicted, measured, counts),
        _against_count("throughput_samples_per_s", "throughput, samples/s", 1.0, predicted, measured, counts),
    ]
    return Section(
        title="More processes",
        intro=_batch_words(both),
        figure=Figure(panels),
        caption="Line and band: predicted, 80 % interval. Points and bars: measured mean, 80 % interval. Dashed: ideal "
        "throughput, n times that of one process.",
        table=_scaling_table(predicted, measured, counts),
        takeaway=_scaling_takeaway(predicted, measured),
    )


# -- parts ---------------------------------------------------------------------------------------


def _counts(*groups: ByCount) -> list[int]:
    return sorted({n for group in groups for n in group})


def _labelled(predicted: ByCount, measured: ByCount) -> Iterator[tuple[str, Role, Record]]:
    for n in _counts(predicted, measured):
        groups: list[tuple[Role, ByCount]] = [("measured", measured), ("predicted", predicted)]
        for role, group in groups:
            if n in group:
                yield f"{processes(n)}, {role}", role, group[n]


def _total(record: Record) -> float:
    """Return the step time, or the sum of the known parts."""
    whole = record["step_time_s"].value
    return whole if whole is not None else sum(_parts(record).values())


def _parts(record: Record) -> dict[str, float]:
    found = {text: record[name].value for name, text in STEP_PARTS.items()}
    return {text: value for text, value in found.items() if value}


def _bar(label: str, role: Role, record: Record, length: float) -> Bar:
    parts, total = _parts(record), _total(record)
    rest = total - sum(parts.values())
    if rest > _WHOLE * total:
        parts["not split"] = rest
    low, high = record["step_time_s"].low, record["step_time_s"].high
    return Bar(
        label,
        role,
        {name: float(f"{value / length:.6g}") for name, value in parts.items()},
        None if low is None else low / length,
        None if high is None else high / length,
        seconds(total),
    )


def _part_rows(n: int, predicted: Record | None, measured: Record | None, in_full: bool) -> Iterator[list[str]]:
    names = {"step_time_s": "whole step", **STEP_PARTS, "communication_overlapped_s": "hidden communication"}
    for i, (name, text) in enumerate(names.items()):
        a = predicted[name] if predicted else Quantity.missing("s", "")
        b = measured[name] if measured else Quantity.missing("s", "")
        if i and all(q.value is None or abs(q.value) < NOTHING_S for q in (a, b)):
            continue
        error = a.value / b.value - 1 if a.value is not None and b.value else None
        yield [
            str(n) if i == 0 else "",
            text,
            quantity(a.value, "s") if predicted else "",
            interval(a),
            quantity(b.value, "s") if measured else "",
            interval(b),
            "" if b.n is None else str(b.n),
            signed_percent(error) if predicted and measured else "",
        ]
        if not in_full:
            return


def _parts_takeaway(predicted: ByCount, measured: ByCount) -> str:
    shared = [n for n in _counts(predicted, measured) if n in predicted and n in measured]
    shared = [n for n in shared if predicted[n]["step_time_s"].value and measured[n]["step_time_s"].value]
    if not shared:
        return _one_sided(predicted, measured)
    steps = []
    for n in shared if len(shared) <= 3 else (shared[0], shared[-1]):
        a, b = predicted[n]["step_time_s"], measured[n].value("step_time_s")
        inside = is_inside(b, a)
        verdict = "" if inside is None else ", inside its interval" if inside else ", outside its interval"
        steps.append(f"{off(a.value or 0.0, b)} with {processes(n)} ({seconds(b)} measured{verdict})")
    return f"The predicted step time is {listed(steps)}{_worst_part(predicted, measured, shared)}."


def _worst_part(predicted: ByCount, measured: ByCount, shared: Sequence[int]) -> str:
    """Return words on the part that adds most seconds to the error, if both records have parts."""
    gaps = [
        (abs(a - b), n, text, a, b)
        for n in shared
        for name, text in STEP_PARTS.items()
        if (a := predicted[n][name].value) is not None and (b := measured[n][name].value) is not None
    ]
    if not gaps or max(gaps)[0] == 0:
        return ""
    _, n, text, a, b = max(gaps)
    return f"; the largest error is in {text} with {processes(n)}: predicted {quantity(a, 's')}, measured {quantity(b, 's')}"


def _one_sided(predicted: ByCount, measured: ByCount) -> str:
    """Return a sentence for records that were only predicted or only measured."""
    for what, missing, group in (("measured", "prediction", measured), ("predicted", "measurement", predicted)):
        for n in sorted(group):
            step, parts = group[n]["step_time_s"].value, _parts(group[n])
            if step:
                largest = max(parts, key=lambda name: parts[name], default="")
                share = (
                    f", {percent(parts[largest] / step, 0)} of it {largest}" if largest else ", not split into parts"
                )
                return (
                    f"A step with {processes(n)} is {what} at {seconds(step)}{share}; "
                    f"there is no {missing} to compare with."
                )
    return "No step time is known, neither predicted nor measured."


# -- scaling -------------------------------------------------------------------------------------


def _against_count(
    name: str, label: str, length: float, predicted: ByCount, measured: ByCount, counts: list[int]
) -> Lines:
    groups: list[tuple[Role, ByCount]] = [("predicted", predicted), ("measured", measured)]
    series = [series_of(group, name, role, role, length) for role, group in groups if group]
    base = measured.get(1) or predicted.get(1)
    if name == "throughput_samples_per_s" and base is not None and base[name].value:
        ideal = [n * base.value(name) for n in counts]
        series.append(Series("ideal", "reference", [float(n) for n in counts], ideal))
    is_log = max(counts, default=1) > 8
    return Lines("processes", label, series, log_x=is_log, log_y=is_log, from_zero=not is_log, x_ticks=counts)


def speedup(group: ByCount, n: int) -> float | None:
    """Return the throughput with n processes divided by that with one; None if either is unknown."""
    name = "throughput_samples_per_s"
    if 1 not in group or n not in group:
        return None
    return speed_up(group[n][name].value, group[1][name].value)


def _scaling_table(predicted: ByCount, measured: ByCount, counts: list[int]) -> Table:
    name = "throughput_samples_per_s"
    rows = []
    for n in counts:
        row = [str(n)]
        for group in (predicted, measured):
            record, factor = group.get(n), speedup(group, n)
            row += (
                ["", "", ""]
                if record is None
                else [
                    quantity(record["step_time_s"].value, "s"),
                    quantity(record[name].value, "sample/s"),
                    "–" if factor is None else percent(factor / n, 0),
                ]
            )
        rows.append(row)
    heads = ("step", "throughput", "efficiency")
    columns = ("processes", *(f"{role} {head}" for role in ("predicted", "measured") for head in heads))
    labelled = ((label, record) for label, _, record in _labelled(predicted, measured))
    notes = reasons(labelled, ("step_time_s", name))
    notes = ["efficiency: throughput over n times that of one process", *notes]
    return Table(columns, rows, set(range(7)), notes).without_empty_columns()


def _scaling_takeaway(predicted: ByCount, measured: ByCount) -> str:
    scales = [n for n in _counts(predicted, measured) if n > 1]
    if not scales:
        return "There are only results with one process, so the scaling is unknown."
    for n in reversed(scales):
        real, told = speedup(measured, n), speedup(predicted, n)
        if real is not None:
            versus = "" if told is None else f"; the prediction was {told:.2f} times"
            return f"{_scaling_verdict(n, real, 'give')} (scaling efficiency {percent(real / n, 0)}){versus}."
    n = scales[-1]
    told = speedup(predicted, n)
    if told is None:
        return f"The speed-up of {processes(n)} is unknown, because a throughput is missing."
    verdict = _scaling_verdict(n, told, "should give")
    return f"{verdict} (scaling efficiency {percent(told / n, 0)}); there is no measurement to confirm it."


def _scaling_verdict(n: int, factor: float, verb: str) -> str:
    amount = f"{factor:.2f} times the throughput of one"
    if factor < 1:
        return f"{n} processes are slower than one: they {verb} only {amount}"
    if factor < 1 + 0.1 * (n - 1):
        return f"{n} processes help little: they {verb} {amount}"
    return f"{how_many(n, 'processes')} {verb} {amount}"


def _batch_words(records: Sequence[Record]) -> str:
    batches = {r.global_batch for r in records} - {None}
    if len(batches) == 1:
        return f"Strong scaling: the global batch stays at {batches.pop()}, so each process gets a smaller share."
    if batches:
        return "The global batch differs between these runs, so compare throughputs, not step times."
    return ""
