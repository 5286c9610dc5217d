"""Agreement of predictions with measurements, quantity by quantity."""

from __future__ import annotations

from statistics import median

from chronograd.answer import Column, Section, Table
from chronograd.figure import Figure, Range, Ranges
from chronograd.record import STEP_PARTS, QuantityDifference, Record, subtract
from chronograd.units import percent, quantity
from chronograd.words import interval, is_inside, listed, off, processes, quantity_name, signed_percent

# These figures follow from the step time, so one measurement of it covers them.
_OF_STEP = ("throughput_samples_per_s", "achieved_flops_per_s", "mfu")
# Another section shows the parts of a step. A price is an input, not a prediction.
_LEFT_OUT = {*STEP_PARTS, "communication_overlapped_s", "cost_usd_per_hour", "epochs"}
_NAMES = {"throughput_samples_per_s": "throughput", "achieved_flops_per_s": "achieved FLOP/s", "mfu": "utilisation"}


def accuracy_of_prediction_section(predicted: dict[int, Record], measured: dict[int, Record]) -> Section:
    """Return a section on prediction / measurement for every quantity that both have, by world size."""
    pairs = [
        (n, d)
        for n in sorted(predicted.keys() & measured.keys())
        for d in subtract(predicted[n], measured[n])
        if d.name not in _LEFT_OUT and d.a.value is not None and d.b.value is not None
    ]
    of_steps = {n for n, d in pairs if d.name == "step_time_s"}
    left_out = list(dict.fromkeys(_name(d) for n, d in pairs if d.name in _OF_STEP and n in of_steps))
    pairs = [(n, d) for n, d in pairs if d.name not in _OF_STEP or n not in of_steps]
    ranges = [r for n, d in pairs if (r := _range(n, d)) is not None]
    return Section(
        title="Accuracy of the prediction",
        intro="All quantities with both a prediction and a measurement.",
        figure=Figure([Ranges("predicted / measured", "quantity", ranges)]) if ranges else None,
        caption="Light bar: the predicted 80 % interval, with a tick at the prediction. Point: the measurement, at 1.",
        table=Table.of(
            pairs,
            _COLUMNS,
            [f"{listed(left_out)} follow from the step time, so the table leaves them out"] if left_out else [],
            drop=("n", "80 % interval"),
        ).without_empty_columns(),
        takeaway=_takeaway(pairs),
    )


def _name(difference: QuantityDifference) -> str:
    return _NAMES.get(difference.name) or quantity_name(difference.name)


def _range(n: int, d: QuantityDifference) -> Range | None:
    real = d.b.value
    if not real or real <= 0 or not d.a.value or d.a.value <= 0:
        return None
    bounds = (d.a.low, d.a.high, d.b.low, d.b.high)
    low, high, real_low, real_high = (None if b is None or b <= 0 else b / real for b in bounds)
    return Range(f"{_name(d)}, {processes(n)}", d.a.value / real, low, high, real_low, real_high)


_COLUMNS = (
    Column("quantity", lambda pair: _name(pair[1])),
    Column("processes", lambda pair: pair[0], format="d"),
    Column("predicted", lambda pair: quantity(pair[1].a.value, pair[1].unit), format=str),
    Column("80 % interval", lambda pair: interval(pair[1].a), format=str),
    Column("measured", lambda pair: quantity(pair[1].b.value, pair[1].unit), format=str),
    Column("n", lambda pair: pair[1].b.n, format="d", empty=""),
    Column("error", lambda pair: _error(pair[1]), format=signed_percent),
    Column("inside", lambda pair: _inside(pair[1])),
)


def _inside(d: QuantityDifference) -> str | None:
    inside = None if d.b.value is None else is_inside(d.b.value, d.a)
    return None if inside is None else "yes" if inside else "no"


def _error(d: QuantityDifference) -> float | None:
    return d.a.value / d.b.value - 1 if d.a.value is not None and d.b.value else None


def _takeaway(pairs: list[tuple[int, QuantityDifference]]) -> str:
    judged = [(abs(e), n, d) for n, d in pairs if (e := _error(d)) is not None]
    if not judged:
        return "No quantity was both predicted and measured, so we cannot check the prediction."
    inside = [is_inside(d.b.value, d.a) for _, d in pairs if d.b.value is not None]
    known = [i for i in inside if i is not None]
    hits = f"{sum(known)} of {len(known)} measurements fall inside the predicted 80 % interval" if known else ""
    hits = hits or "The predictions state no interval"
    _, n, worst = max(judged, key=lambda item: item[0])
    told, real = worst.a.value or 0.0, worst.b.value or 0.0
    return (
        f"{hits}; half of the predictions are within {percent(median(e for e, _, _ in judged), 0)}, and the worst, "
        f"{_name(worst)} with {processes(n)}, is {off(told, real)}."
    )
