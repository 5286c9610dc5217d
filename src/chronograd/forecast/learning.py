"""Report sections on the result of training, and on its loss forecast compared with the measured loss."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chronograd.answer import Section, Table
from chronograd.figure import Figure, Lines, Mark, Panel, Series
from chronograd.forecast.forecasting import Forecast
from chronograd.record import Curve, Record
from chronograd.units import number, percent, quantity, seconds
from chronograd.words import device, how_many, interval, quantity_name, reasons, scaled, time_unit

# A plot cannot show more points than this; it draws every k-th point and the caption states k.
MAX_POINTS = 400
_SHOWN = {
    "test_accuracy": "test accuracy",
    "bits_per_byte": "bits per byte",
    "epochs": "epochs",
    "training_time_s": "training time",
    "time_to_accuracy_s": "time to target accuracy",
    "time_to_bits_per_byte_s": "time to target of bits per byte",
    "throughput_samples_per_s": "throughput",
    "cost_usd": "cost",
}
_RETURNS = ("frames", "mean_return", "return_low", "return_high")
_SHOWN_OF_AGENTS = (
    *("mean_return", "best_return", "frames_to_return", "time_to_return_s", "frames", "training_time_s"),
    *("throughput_frames_per_s", "updates_per_s", "step_time_s", "act_s", "environment_s", "replay_s", "learn_s"),
)


def training_section(train_record: Record, forecast: Forecast | None = None) -> Section:
    """Return loss by step with its forecast, accuracy or bits per byte by time, and the final figures.

    Args:
        forecast: of this run's loss, by epoch or by step, from its first part.
    """
    if "mean_return" in train_record.quantities:
        return returns_section(train_record)
    panels: list[Panel] = []
    caption = []
    is_text = "bits_per_byte" in train_record.quantities
    losses = train_record.curves.get("loss")
    if losses is not None and losses.columns.get("loss"):
        panel, every = _loss_panel(train_record, losses, None if is_text else forecast)
        panels.append(panel)
        caption.append("Dots: training loss of each step" + (f", every {every}th shown." if every > 1 else "."))
    if forecast is not None:
        of = "bits per byte" if is_text else "epoch means" if forecast.curve.unit == "epoch" else "steps"
        caption.append(f"Line and band: forecast of {of} ({forecast.model.family}) and its 80 % interval.")
    training, epochs = train_record.job.training, train_record.curves.get("training")
    if epochs is not None and is_text:
        panels.append(_bits_panel(epochs, training.target_bits_per_byte, forecast))
        caption.append("Points: bits per byte of the test split after each epoch.")
    elif epochs is not None and any(v is not None for v in epochs.columns.get("test_accuracy", [])):
        panels.append(_accuracy_panel(epochs, training.target_accuracy))
        caption.append("Points: accuracy on the test split after each epoch.")
    return Section(
        title="Training",
        intro=f"Trained on {device(train_record)}, backend {train_record.backend or 'not stated'}.",
        figure=Figure(panels) if panels else None,
        caption=" ".join(caption),
        table=_quantities(train_record, _SHOWN),
        takeaway=f"{what_was_reached(train_record)}; {held_against(forecast)}.",
    )


def returns_section(record: Record) -> Section:
    """Return an agent's returns by frames, its loss, and the final figures."""
    panels: list[Panel] = []
    caption = []
    curve, losses = record.curves.get("training"), record.curves.get("loss")  # there is no loss for several seeds
    if curve is not None:
        panels.append(_returns_panel(curve, record.job.reinforcement.target_return))
        is_of_seeds = curve.source.startswith("mean over")
        of = "the lowest and the highest seed" if is_of_seeds else "the middle 80 % of its episodes"
        caption.append(
            f"Points: mean return of the evaluation after each epoch{', over seeds' * is_of_seeds}, with {of}."
        )
    if losses is not None and losses.columns["step"]:
        panels.append(_loss_panel(record, losses, None)[0])
        caption.append("Dots: loss.")
    return Section(
        title="Returns",
        intro=f"Learned on {device(record)}.",
        figure=Figure(panels) if panels else None,
        caption=" ".join(caption),
        table=_quantities(record, {name: quantity_name(name) for name in _SHOWN_OF_AGENTS}),
        takeaway=what_was_returned(record) + ".",
    )


def _returns_panel(curve: Curve, target: float | None) -> Lines:
    points = [i for i, value in enumerate(curve.columns["mean_return"]) if value is not None]
    frames, mean, low, high = (scaled((curve.columns[name][i] for i in points), 1.0) for name in _RETURNS)
    scores = Series("evaluation", "measured", [f or 0.0 for f in frames], mean, low, high, is_joined=True)
    return Lines("frames", "return", [scores], [] if target is None else [Mark("y", target, f"target {target:g}")])


def what_was_returned(record: Record) -> str:
    """Return a clause with the final mean return of an agent and its target."""
    target, end = record.job.reinforcement.target_return, record["mean_return"].value
    if end is None:
        return f"The mean return is not known ({record['mean_return'].reason})"
    frames, spent = record["frames"], record["training_time_s"]
    after = f"after {quantity(frames.value, 'count')} frames and {seconds(spent.value or 0.0)}"
    reached = f"mean return {quantity(end, '')} {after}"
    if target is None:
        return f"The agent ended at a {reached}"
    first = record["frames_to_return"].value
    if first is None:
        return f"The agent missed its target return of {target:g}: it ended at a {reached}"
    if first == frames.value:
        return f"The agent reached its target return of {target:g}: {reached}"
    return f"The agent reached its target return of {target:g} after {first:,.0f} frames; it ended at a {reached}"


def _quantities(record: Record, labels: Mapping[str, str]) -> Table:
    """Return the quantities that a record has, with their labels."""
    shown = {name: record.quantities[name] for name in labels if name in record.quantities}
    rows = [
        [labels[name], quantity(q.value, q.unit), interval(q), "" if q.n is None else str(q.n), q.source]
        for name, q in shown.items()
    ]
    notes = reasons([("training", record)], list(shown))
    columns = ("quantity", "value", "80 % interval", "n", "source")
    return Table(columns, rows, {1, 2, 3}, notes).without_empty_columns()


def _loss_panel(record: Record, curve: Curve, forecast: Forecast | None) -> tuple[Lines, int]:
    steps, losses = curve.columns["step"], curve.columns["loss"]
    every = -(-len(steps) // MAX_POINTS)
    kept = [(x, y) for x, y in list(zip(steps, losses, strict=True))[::every] if x is not None]
    series = [Series("loss", "measured", [x for x, _ in kept], scaled((y for _, y in kept), 1.0))]
    marks: list[Mark] = []
    if forecast is not None and forecast.held_out:
        # The mean loss of an epoch belongs to the middle of the epoch.
        back = 0.5 if forecast.curve.unit == "epoch" else 0.0
        x = [_step_of(record, forecast, one.step - back) for one in forecast.held_out]
        y, low, high = (scaled((getattr(one, n) for one in forecast.held_out), 1.0) for n in ("value", "low", "high"))
        series.append(Series("forecast", "predicted", x, y, low, high))
        marks.append(Mark("x", _step_of(record, forecast, forecast.until), "forecast from here"))
    return Lines("step", "training loss", series, marks, from_zero=True), max(every, 1)


def _step_of(record: Record, forecast: Forecast, at: float) -> float:
    """Return the step of a position on the forecast's own scale."""
    if forecast.curve.unit == "step":
        return at
    ends = record.curves["training"].columns
    return float(np.interp(at, [0.0, *ends["epoch"]], [0.0, *ends["step"]]))  # type: ignore[arg-type]


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
    return Lines(label, "test accuracy, %", [Series("test accuracy", "measured", x, accuracy)], marks, most_y=100.0)


def _bits_panel(curve: Curve, target: float | None, forecast: Forecast | None) -> Lines:
    points = [
        (e, b) for e, b in zip(curve.columns["epoch"], curve.columns["bits_per_byte"], strict=True) if b is not None
    ]
    series = [Series("bits per byte", "measured", [e or 0.0 for e, _ in points], [b for _, b in points])]
    marks = [] if target is None else [Mark("y", target, f"target {target:g}")]
    if forecast is not None and forecast.held_out:
        x, y, low, high = (scaled((getattr(one, n) for one in forecast.held_out), 1.0) for n in ("step", "value", "low", "high"))  # fmt: skip
        series.append(Series("forecast", "predicted", [step or 0.0 for step in x], y, low, high))
        marks.append(Mark("x", forecast.until, "forecast from here"))
    return Lines("epoch", "bits per byte", series, marks)


def what_was_reached(record: Record) -> str:
    """Return a clause with the final accuracy of training, or the bits per byte of a language model, and its target."""
    is_text, training = "bits_per_byte" in record.quantities, record.job.training
    name, target = ("bits_per_byte", training.target_bits_per_byte) if is_text else ("test_accuracy", training.target_accuracy)  # fmt: skip
    words, better, shown = ("bits per byte", "below", number) if is_text else ("test accuracy", "above", percent)
    score, epochs = record[name].value, record["epochs"].value
    spent = record["training_time_s"].value
    effort = [how_many(epochs, "epochs")] if epochs is not None else []
    effort += [seconds(spent)] if spent is not None else []
    after = f" after {' and '.join(effort)}" if effort else ""
    if score is None:
        return f"The {words} {'are' if is_text else 'is'} not known ({record[name].reason})"
    reached = f"{shown(score)} {words}{after}"
    if target is None:
        return f"Training ended at {reached}; no target was set"
    until = record["time_to_bits_per_byte_s" if is_text else "time_to_accuracy_s"].value
    if score <= target if is_text else score >= target:
        is_sooner = until is not None and (spent is None or until < 0.99 * spent)
        sooner = f", reached after {seconds(until or 0.0)}" if is_sooner else ""
        return f"Training ended at {reached}, at or {better} the target of {shown(target)}{sooner}"
    if until is not None:
        return f"The target of {shown(target)} was reached after {seconds(until)}; it ended at {reached}"
    return f"Training missed its target of {shown(target)}: it ended at {reached}"


def held_against(forecast: Forecast | None) -> str:
    """Return a clause on the accuracy of a forecast: its error on the points after it."""
    if forecast is None:
        return "the loss was not forecast"
    unit, held_out = forecast.curve.unit, forecast.held_out
    made = f"the loss forecast at {unit} {forecast.until:g}"
    if forecast.error is None:
        return f"{made} could not be compared with later losses"
    return (
        f"{made} was off by {percent(forecast.error)} of the largest loss over {len(held_out)} later "
        f"{unit}{'s' * (len(held_out) > 1)}; {forecast.num_inside} of them lie in its 80 % band"
    )
