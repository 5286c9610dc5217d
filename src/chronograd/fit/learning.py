"""What training reached, and the forecast of its loss held against what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from chronograd.answer import Section, Table
from chronograd.figure import Figure, Lines, Mark, Panel, Series
from chronograd.record import Curve, Record
from chronograd.units import percent, quantity, seconds
from chronograd.words import device, interval, reasons, scaled, time_unit

# More points than this cannot be told apart in a plot; every k-th is drawn, and the caption says so.
MOST_POINTS = 400
_SHOWN = {
    "test_accuracy": "test accuracy",
    "epochs": "epochs",
    "training_time_s": "training time",
    "time_to_accuracy_s": "time to target accuracy",
    "throughput_samples_per_s": "throughput",
    "cost_usd": "cost",
}


class Forecast(TypedDict):
    """The rest of a loss curve, forecast from its first part. `mape` is the mean absolute error, as a fraction."""

    fitted_until_step: int
    steps: Sequence[float]
    forecast: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    mape: float | None
    family: str


def training_section(train_record: Record, forecast: Forecast | None = None) -> Section:
    """Loss by step with its forecast, accuracy by time, and the figures at the end."""
    panels: list[Panel] = []
    caption = []
    losses = train_record.curves.get("loss")
    if losses is not None and losses.columns.get("loss"):
        panel, every = _loss_panel(losses, forecast)
        panels.append(panel)
        caption.append("Dots: training loss of each step" + (f", every {every}th drawn." if every > 1 else "."))
    if forecast is not None:
        caption.append(f"Line and band: forecast ({forecast['family']}) and its middle 80 %.")
    target = _target(train_record)
    epochs = train_record.curves.get("training")
    if epochs is not None and any(v is not None for v in epochs.columns.get("test_accuracy", [])):
        panels.append(_accuracy_panel(epochs, target))
        caption.append("Points: accuracy on the test split after each epoch.")
    rows = [_row(train_record, name) for name in _SHOWN if name in train_record.quantities]
    return Section(
        title="Training",
        intro=f"Trained on {device(train_record)}, backend {train_record.backend or 'not stated'}.",
        figure=Figure(panels) if panels else None,
        caption=" ".join(caption),
        table=Table(
            ("quantity", "value", "middle 80 %", "n", "source"),
            rows,
            {1, 2, 3},
            reasons([("training", train_record)], [n for n in _SHOWN if n in train_record.quantities]),
        ).without_empty_columns(),
        takeaway=f"{_reached(train_record, target)}{_forecast_words(losses, forecast)}.",
    )


def _row(record: Record, name: str) -> list[str]:
    q = record[name]
    return [_SHOWN[name], quantity(q.value, q.unit), interval(q), "" if q.n is None else str(q.n), q.source]


def _target(record: Record) -> float | None:
    target = (record.job.get("training") or {}).get("target_accuracy")
    return float(target) if target is not None else None


def _loss_panel(curve: Curve, forecast: Forecast | None) -> tuple[Lines, int]:
    steps, losses = curve.columns["step"], curve.columns["loss"]
    every = -(-len(steps) // MOST_POINTS)
    kept = [(x, y) for x, y in list(zip(steps, losses, strict=True))[::every] if x is not None]
    series = [Series("loss", "measured", [x for x, _ in kept], scaled((y for _, y in kept), 1.0))]
    marks: list[Mark] = []
    if forecast is not None:
        k = -(-len(forecast["steps"]) // MOST_POINTS)
        y, low, high = (
            scaled(values[::k], 1.0) for values in (forecast["forecast"], forecast["low"], forecast["high"])
        )
        series.append(Series("forecast", "predicted", list(forecast["steps"][::k]), y, low, high))
        marks.append(Mark("x", forecast["fitted_until_step"], "forecast from here"))
    return Lines("step", "training loss", series, marks, from_zero=True), max(every, 1)


def _accuracy_panel(curve: Curve, target: float | None) -> Lines:
    accuracy = [None if a is None else float(f"{100 * a:.6g}") for a in curve.columns["test_accuracy"]]
    times = curve.columns.get("seconds", [])
    known = [t for t in times if t is not None]
    if known and len(known) == len(accuracy):
        unit, length = time_unit(known)
        label, x = f"training time, {unit}", [t / length for t in known]
    else:
        label, x = "epoch", [float(e or 0) for e in curve.columns.get("epoch") or range(1, len(accuracy) + 1)]
    marks = [] if target is None else [Mark("y", 100 * target, f"target {percent(target)}")]
    return Lines(label, "test accuracy, %", [Series("test accuracy", "measured", x, accuracy)], marks)


def _reached(record: Record, target: float | None) -> str:
    accuracy, epochs = record["test_accuracy"].value, record["epochs"].value
    spent = record["training_time_s"].value
    effort = [f"{epochs:g} epochs"] if epochs is not None else []
    effort += [seconds(spent)] if spent is not None else []
    after = f" after {' and '.join(effort)}" if effort else ""
    if accuracy is None:
        return f"The test accuracy is not known ({record['test_accuracy'].reason})"
    reached = f"{percent(accuracy)} test accuracy{after}"
    if target is None:
        return f"Training ended at {reached}; no target was set"
    until = record["time_to_accuracy_s"].value
    if accuracy >= target:
        sooner = f", reached after {seconds(until)}" if until is not None else ""
        return f"Training ended at {reached}, at or above the target of {percent(target)}{sooner}"
    if until is not None:
        return f"The target of {percent(target)} was reached after {seconds(until)}; training ended at {reached}"
    return f"Training missed its target of {percent(target)}: it ended at {reached}"


def _forecast_words(curve: Curve | None, forecast: Forecast | None) -> str:
    if forecast is None:
        return ", and the loss was not forecast"
    if curve is None:
        return ", and there is no loss curve to hold the forecast against"
    part = f"; a forecast from the first {forecast['fitted_until_step']:,} steps"
    if forecast["mape"] is None:
        return f"{part} could not be held against what happened"
    text = f"{part} missed the loss of the epochs that followed by {percent(forecast['mape'], 0)} on average"
    inside = _share_inside(curve, forecast)
    if inside is None:
        return text
    verdict = "an honest band" if 0.7 <= inside <= 0.9 else "a band too narrow" if inside < 0.7 else "a band too wide"
    return f"{text}, and its 80 % band held {percent(inside, 0)} of it ({verdict})"


def _share_inside(curve: Curve, forecast: Forecast) -> float | None:
    """Share of the steps after the fitted part whose loss lies inside the band."""
    pairs = zip(curve.columns["step"], curve.columns["loss"], strict=True)
    later = [(s, v) for s, v in pairs if s is not None and v is not None and s > forecast["fitted_until_step"]]
    later = [(s, v) for s, v in later if forecast["steps"][0] <= s <= forecast["steps"][-1]] if later else []
    if not later:
        return None
    steps = np.array([s for s, _ in later])
    values = np.array([v for _, v in later])
    low = np.interp(steps, forecast["steps"], forecast["low"])
    high = np.interp(steps, forecast["steps"], forecast["high"])
    return float(np.mean((low <= values) & (values <= high)))
