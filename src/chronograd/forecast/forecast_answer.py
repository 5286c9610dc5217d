"""The output of `forecast`: when the run reaches a level, in epochs, in hours and by the clock, and the values at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Numbers
from chronograd.forecast.curves import Array
from chronograd.forecast.forecasting import At, Forecast
from chronograd.forecast.learning_curves import (
    BITS_PER_BYTE,
    NAMES,
    LearningCurve,
    Metric,
    all_matching,
    curve_of_log,
    is_run,
    named_column,
    read_curve,
)
from chronograd.forecast.log_words import NO_SPLIT, metric_of, split_rank, without_split, words
from chronograd.forecast.logs import HINT, Log, read_log
from chronograd.forecast.loss_answer import missed, panel
from chronograd.forecast.pace import CLOCK_FROM, Pace
from chronograd.job import is_real_text
from chronograd.rundir import RunDir
from chronograd.rundir.listing import one_run
from chronograd.units import number, percent, seconds
from chronograd.words import how_many

# Without a per cent sign, a level from here on is an accuracy in per cent. Between 1 and here it is a loss.
PERCENT_FROM = 20.0
LEAST_POINTS = 3  # of a curve
_LEVEL = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*")


def level(text: str, metric: Metric) -> float:
    """Parse a loss, a return, or an accuracy as a share: `92%`, `92` and `0.92` are the same. Raises InputError.

    >>> [level(text, "accuracy") for text in ("92%", "92", "0.92", ".5%")], level("1.5", "loss"), level("-0.79", "loss")
    ([0.92, 0.92, 0.92, 0.005], 1.5, -0.79)
    """
    sign = -1.0 if text.strip().startswith("-") and metric != "accuracy" else 1.0
    read = _LEVEL.fullmatch(text.strip().removeprefix("-") if sign < 0 else text)
    if read is None:
        raise InputError(f"{text!r} is not a level", "write an accuracy such as 92% or 0.92, or a loss such as 0.5")
    value = float(read[1])
    if metric != "accuracy":
        if read[2]:
            raise InputError(f"a {metric} of {text.strip()}", f"give a {metric} as a number, or --metric accuracy")
        return sign * value
    if not read[2] and 1 < value < 2:
        raise InputError(f"an accuracy of {value:g}", f"write {value:g}% or {value / 100:g}")
    if read[2] or value > 1:
        value = float(f"{value / 100:.12g}")
    if value > 1:
        raise InputError(f"an accuracy of {text.strip()}", "give at most 100%")
    return value


def read(
    source: Path, metric: str | None, to: str | None, run: str | None = None, fraction: float = 1.0
) -> LearningCurve:
    """Read the curve of the run or log to forecast.

    Args:
        metric: `loss`, `accuracy`, or the name of a column. The default is an accuracy if the source has one and the level may
            be one. Validation and test splits come before the training split.
        to: the level, as the user wrote it. run: the name of one of several runs in a file.
        fraction: share of the points that will be fitted; nothing else is read from later ones.
    """
    source = one_run(source)
    if is_run(source):
        return read_curve(source, _metric_of_run(source, metric, to), fraction=fraction)
    log = read_log(source, run)
    name, kind, notes = _column(log, source, metric, to)
    curve = curve_of_log(log, name, kind, source, fraction)
    return replace(curve, notes=(*notes, *curve.notes))


def _column(log: Log, source: Path, metric: str | None, to: str | None) -> tuple[str, Metric, list[str]]:
    """Return the column to forecast, its metric, and notes on other columns. A column of exactly the given name comes first.

    Raises: InputError if no column fits; NotFoundError for a name that is neither a metric nor a column.
    """
    if metric is not None and (metric in log.names or metric not in NAMES):
        name = named_column(log.names, metric)
        values = log.read(name).values
        kind = metric_of(name) or _metric_of_values(values, to)
        if kind == "accuracy" and _is_falling_loss(values):
            return name, "loss", [f"{name} falls from a value above 1, so it is read as a loss"]
        if kind == "return" and to is not None and to.strip().endswith("%"):  # such as a rate of success
            kind = _metric_of_values(values, to)
        return name, kind, _held_out_notes(log, name, kind, metric)
    kinds: Sequence[Metric] = _kinds(to) if metric is None else (metric,)
    notes: list[str] = []
    short: list[tuple[str, Metric, list[str]]] = []
    for kind in kinds:
        for name in all_matching(log.names, kind, is_held_out=True):
            if metric is None and _is_late(log, name):
                continue
            values = log.read(name).values
            if metric is None and not values.any():
                notes.append(f"{name} is 0 at every point, so it is no {kind}")
            elif len(values) < LEAST_POINTS:
                short.append((name, kind, list(notes)))
            else:
                too_few = [
                    f"{other} has {how_many(len(log.read(other).values), 'points')}" for other, _, _ in short[:3]
                ]
                return name, kind, [*notes, *too_few]
    if short:
        return short[0]
    raise InputError(
        f"{source} has columns {', '.join(log.names[:12])}, none of them of {' or '.join(kinds)}",
        f"{HINT.split(',')[0]},{kinds[0]}, or name one with --metric",
    )


def _held_out_notes(log: Log, name: str, kind: Metric, metric: str) -> list[str]:
    """Return a note if a column has no split, and the log has the same metric of held-out data."""
    others = all_matching(log.names, kind, is_held_out=True)
    if metric not in NAMES:
        others = [one for one in others if split_rank(name) == NO_SPLIT and without_split(one) == without_split(name)]
    held_out = next(iter(others), name)
    if split_rank(held_out) >= split_rank(name):
        return []
    return [f"{name} is of training: --metric {held_out} forecasts the held-out data"]


def _is_late(log: Log, name: str) -> bool:
    """Return whether a column is the accuracy of single tokens in a log with a loss, which is the usual result of such a model."""
    return (
        "token" in words(name).split() and metric_of(name) == "accuracy" and bool(all_matching(log.names, "loss", True))
    )


def _is_falling_loss(values: Array) -> bool:
    """Return whether values are no accuracy whatever their name: they fall from above 1, and are too small for percentages."""
    values = values[np.isfinite(values)]
    third = max(1, len(values) // 3)
    return (
        len(values) > 0
        and 1 < values.max() < PERCENT_FROM
        and float(np.median(values[:third])) > max(1.0, float(np.median(values[-third:])))
    )


def _kinds(to: str | None) -> tuple[Metric, ...]:
    """Return the metrics that a level may be of, in search order."""
    number = None if to is None else _LEVEL.fullmatch(to.strip().lstrip("-"))
    if number is not None and not number[2] and (float(number[1]) > 100 or str(to).strip().startswith("-")):
        return "return", "loss"
    return ("accuracy", "loss", "return") if _may_be_accuracy(to) else ("loss", "return")


def _metric_of_values(values: Array, to: str | None) -> Metric:
    """Return the metric of a column whose name shows none.

    It is an accuracy if values and level are shares or percentages; otherwise a return if it rises, and a loss if it falls.
    """
    values = values[np.isfinite(values)]
    third = max(1, len(values) // 3)
    rises = len(values) > 0 and float(np.median(values[-third:])) >= float(np.median(values[:third]))
    level = None if to is None else _LEVEL.fullmatch(to)
    is_percent = level is not None and bool(level[2])
    is_share = len(values) > 0 and values.min() >= 0 and values.max() <= (100 if is_percent else 1)
    if is_percent or (is_share and rises and (level is None or float(level[1]) <= 100)):
        return "accuracy"
    return "return" if rises else "loss"


def _may_be_accuracy(to: str | None) -> bool:
    number = None if to is None else _LEVEL.fullmatch(to)
    return number is None or bool(number[2]) or not 1 < float(number[1]) < PERCENT_FROM


def _metric_of_run(run: Path, metric: str | None, to: str | None) -> Metric:
    if (
        metric in (None, BITS_PER_BYTE)
        and (run / "job.yaml").exists()
        and is_real_text(RunDir.open(run).job().data.name)
    ):
        return "loss"
    if metric is None:
        return "accuracy" if _may_be_accuracy(to) else "loss"
    kind: Metric | None = "loss" if metric == "loss" else "accuracy" if metric == "accuracy" else metric_of(metric)
    if kind is None:
        raise InputError(f"a run has no {metric}", "choose loss or accuracy")
    return kind


@dataclass(frozen=True)
class Wait:
    """Seconds until the run reaches a level, or the clock time (seconds since 1970), with the 80 % interval; None for never."""

    seconds: float
    low: float
    high: float | None


@dataclass(frozen=True)
class LogForecast:
    """The result of `forecast`.

    Attributes:
        forecast: in epochs or steps; `forecast.reached` is when the run reaches the level.
        pace: duration of an epoch or step; None if the log has no times.
        ahead, clock: the time from the last point to the level, and the clock time then; None if unknown.
    """

    forecast: Forecast
    pace: Pace | None
    ahead: Wait | None
    clock: Wait | None

    def as_data(self) -> dict[str, Any]:
        curve, pace = self.forecast.curve, self.pace
        return {
            **self.forecast.as_data(),
            "column": curve.column,
            "time": None
            if pace is None
            else {f"seconds_per_{curve.unit}": pace.seconds, "ahead": self.ahead, "clock": self.clock},
            "warnings": self.forecast.warnings,
        }


def forecast_answer(forecast: Forecast, now: float) -> Answer[LogForecast]:
    """Return when the run reaches the level, the expected values of the last epochs, and the basis of the forecast.

    Args:
        now: seconds since 1970, to compute the remaining time of a log that still grows.
    """
    curve, unit = forecast.curve, forecast.curve.unit
    rows = []
    if forecast.reached is not None:
        rows += _rows_of_level(forecast, now)
    rows += [[f"{curve.column or curve.metric} at {unit} {_place(one.step)}", _value(one.value, curve), _between(one, curve)]
             for one in forecast.at if one.step > forecast.until]  # fmt: skip
    lines = _lines(forecast)
    section = Section(
        title=f"{curve.name}: {curve.column or curve.metric}, {int((curve.steps <= forecast.until).sum()):,} points until {unit} {_place(forecast.until)}",
        takeaway=_takeaway(forecast, now),
        lines=lines,
        figure=Figure([_in_percent(panel(forecast)) if curve.metric == "accuracy" else panel(forecast)]),
        caption="Points: the log. Line and band: forecast, 80 % interval.",
        table=Table(("", "expected", "80 % interval"), rows, {1, 2}),
    )
    notes = [*curve.notes, *forecast.warnings]
    return Answer(f"Forecast of {curve.name}", sections=[section], notes=notes, result=_result(forecast))


def _result(forecast: Forecast) -> LogForecast:
    pace, took = forecast.pace, _seconds(forecast)
    if pace is None or took is None:
        return LogForecast(forecast, pace, None, None)
    after, low, high = took
    clock = (
        Wait(pace.last + after, pace.last + low, None if high is None else pace.last + high) if pace.is_clock else None
    )
    return LogForecast(forecast, pace, Wait(*took), clock)


def _in_percent(lines: Lines) -> Lines:
    """Return a figure of shares as a figure in per cent."""

    def times_100(values: Numbers) -> list[float | None]:
        return [None if value is None else 100 * value for value in values]

    series = [replace(s, y=times_100(s.y), low=times_100(s.low), high=times_100(s.high)) for s in lines.series]
    marks = [replace(mark, at=100 * mark.at) if mark.axis == "y" else mark for mark in lines.marks]
    return replace(lines, y_label=f"{lines.y_label}, %", series=series, marks=marks)


def _value(value: float, curve: LearningCurve) -> str:
    return percent(value) if curve.metric == "accuracy" else number(value)


def _place(step: float) -> str:
    return f"{step:,.0f}" if step >= 10 else f"{step:.2g}"


def _between(one: At, curve: LearningCurve) -> str:
    was = "" if one.seen is None else f"; was {_value(one.seen, curve)}"
    return f"{_value(one.low, curve)} … {_value(one.high, curve)}{was}"


def _takeaway(forecast: Forecast, now: float) -> str:
    curve, unit, reached = forecast.curve, forecast.curve.unit, forecast.reached
    last = next((one for one in reversed(forecast.at) if one.step > forecast.until), None)
    if reached is None:
        if last is None:
            return f"The log ends at {unit} {_place(forecast.until)}; give the end of training with --planned."
        return f"At {unit} {_place(last.step)}: {_value(last.value, curve)} ({_between(last, curve)})."
    level = _value(reached.value, curve)
    if _is_behind(forecast):
        assert reached.seen is not None
        return f"{level} was reached at {unit} {_place(reached.seen)}."
    if reached.step is None:
        span = "never in the 80 % interval" if reached.low is None else f"80 % interval {_place(reached.low)} … never"
        until = "" if last is None else f"; {unit} {_place(last.step)} is expected at {_value(last.value, curve)}"
        if forecast.curve.schedule.kind is None:
            return f"Whether {level} will be reached is unknown, because the learning rate may fall ({span}){until}."
        return f"{level} is not expected to be reached ({span}){until}."
    words = f"{level} at {unit} {_place(reached.step)} ({_span(reached.low, reached.high)})"
    took = _seconds(forecast)
    if took is None or forecast.pace is None:
        return f"{words}."
    return f"{words}, {_when(took[0], forecast.pace, now)}."


def _is_behind(forecast: Forecast) -> bool:
    """Return whether the fitted part already reached the level."""
    reached = forecast.reached
    return reached is not None and reached.seen is not None and reached.seen <= forecast.until


def _span(low: float | None, high: float | None) -> str:
    return " … ".join("never" if k is None else _place(k) for k in (low, high))


def _seconds(forecast: Forecast) -> tuple[float, float, float | None] | None:
    """Return the time from the last fitted point to the level, with the 80 % interval; None if unknown."""
    reached, pace = forecast.reached, forecast.pace
    if reached is None or reached.step is None or pace is None or _is_behind(forecast):
        return None
    low, high = (None if k is None else k - forecast.until for k in (reached.low, reached.high))
    return pace.seconds_to(reached.step - forecast.until, low, high)


def _when(after_s: float, pace: Pace, now: float) -> str:
    """Return the clock time and the time from now; if the log has stopped, the time from its last point."""
    if not pace.is_clock:
        return f"{seconds(after_s)} after the last point"
    then = pace.last + after_s
    if pace.is_under_way(now) and then > now:
        return f"by {_clock(then, now)}, in {seconds(then - now)}"
    return f"{seconds(after_s)} after the last point of {_clock(pace.last, now)}"


def _clock(at: float, now: float) -> str:
    """Format the local time, with the year if it is not this year.

    >>> import re; bool(re.fullmatch(r"\\d\\d Nov 2023 \\d\\d:\\d\\d", _clock(1700000000.0, 1800000000.0)))
    True
    """
    try:
        then = datetime.fromtimestamp(at)
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"
    year = "" if then.year == datetime.fromtimestamp(now).year else " %Y"
    return then.strftime(f"%d %b{year} %H:%M")


def _rows_of_level(forecast: Forecast, now: float) -> list[list[str]]:
    curve, reached, pace = forecast.curve, forecast.reached, forecast.pace
    assert reached is not None
    level = _value(reached.value, curve)
    if _is_behind(forecast):
        return [[f"{level} reached", f"{curve.unit} {_place(reached.seen or 0)}", "seen in the log"]]
    seen = "" if reached.seen is None else f"; was {_place(reached.seen)}"
    never = "unknown" if curve.schedule.kind is None else "not reached"
    expected = never if reached.step is None else f"{curve.unit} {_place(reached.step)}"
    rows = [[f"{level} reached", expected, f"{_span(reached.low, reached.high)}{seen}"]]
    took = _seconds(forecast)
    if took is None or pace is None:
        return rows
    after = ["never" if s is None else seconds(s) if s else "0 s" for s in took]
    rows.append([f"after {curve.unit} {_place(forecast.until)}", after[0], f"{after[1]} … {after[2]}"])
    if pace.is_clock:
        clock = ["never" if s is None else _clock(pace.last + s, pace.last) for s in took]
        rows.append(["by the clock here", clock[0], f"{clock[1]} … {clock[2]}"])
    return rows


def _lines(forecast: Forecast) -> list[str]:
    curve, unit, pace = forecast.curve, forecast.curve.unit, forecast.pace
    lines = [f"learning rate: {curve.schedule_told}" if curve.schedule_told else _unknown_rate(curve)]
    if pace is not None:
        lines.append(
            f"pace: {seconds(pace.seconds)} a{'n' * (unit in ('epoch', 'episode'))} {unit} ({seconds(pace.low)} … {seconds(pace.high)})"
        )
    else:
        lines.append(
            "pace: the log has no times that can be read (a column such as timestamp, or --pace), so there is no forecast in hours"
        )
    return [*lines, forecast.basis, *missed(forecast, "points")]


def _unknown_rate(curve: LearningCurve) -> str:
    if curve.schedule.planned is not None:
        return f"learning rate: only its end is known, {curve.unit} {_place(curve.schedule.planned)}; give the rest with --schedule"
    end = f"--schedule cosine --planned {2 * curve.steps[-1]:.0f}"
    return f"learning rate: unknown; if it will fall, give {end}"


def with_pace(curve: LearningCurve, seconds_each: float | None) -> LearningCurve:
    """Return the curve with a given duration of every epoch or step; unchanged for None. Raises InputError for durations that
    add up to more than 30 years.
    """
    if seconds_each is None:
        return curve
    if seconds_each >= CLOCK_FROM / curve.steps[-1]:
        raise InputError(
            f"--pace of {seconds_each:g} s: {curve.unit} {curve.steps[-1]:,g} would be later than 30 years after the start",
            f"give the seconds of one {curve.unit}, such as --pace 90",
        )
    return replace(curve, times=curve.steps * seconds_each)
