"""The output of `fit loss`: the forecast of a learning curve; for a run in progress, a line whenever it has grown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep

import numpy as np

from chronograd.answer import Answer, Column, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.forecast.convergence import Convergence
from chronograd.forecast.forecasting import At, Forecast, Reached
from chronograd.forecast.forecasting import forecast as make_forecast
from chronograd.forecast.learning_curves import LearningCurve, Metric, read_curve
from chronograd.forecast.loss import MIN_POINTS
from chronograd.forecast.schedule import NAMES, Schedule
from chronograd.rundir import RunDir
from chronograd.units import number, percent
from chronograd.words import how_many, signed_percent

POLL_EVERY_S = 1.0
FARTHEST_DRAWN = 4.0  # times the fitted steps: a farther target would make the curve too small to see
NUM_DRAWN = 50  # steps of a forecast's curve


def read(
    source: Path,
    metric: Metric = "loss",
    column: str | None = None,
    schedule: str | None = None,
    drops: Sequence[float] = (),
    planned: float | None = None,
    fraction: float = 1.0,
) -> LearningCurve:
    """Read a learning curve to fit its first `fraction`. A given schedule replaces that of its job or log; see
    `with_schedule`.
    """
    curve = read_curve(source, metric, column, fraction=fraction)
    return with_schedule(curve, schedule, drops, planned, is_part=fraction < 1)


def with_schedule(
    curve: LearningCurve,
    schedule: str | None = None,
    drops: Sequence[float] = (),
    planned: float | None = None,
    is_part: bool = False,
) -> LearningCurve:
    """Return the curve with a given schedule instead of that of its job or its log's rates.

    Args:
        schedule: a name of `schedule.NAMES`.
        is_part: whether only part of a finished log is fitted; the end of the log is then the planned end.
    """
    own = curve.schedule
    end = planned or own.planned or (float(curve.steps[-1]) if is_part else None)
    kind = NAMES[schedule] if schedule else "multi_step" if drops else own.kind
    places = tuple(drops) or (own.drops if kind == "multi_step" else ())
    stays = (places or (own.stays,))[0] if kind == "wsd" else None
    description = curve.schedule_told
    if schedule or drops or planned:
        what = [
            schedule or kind or "an unknown schedule",
            f"{'falls' if stays else 'drops'} after {curve.unit} {', '.join(map(place, places))}" if places else "",
        ]
        until = "" if end is None else f" until {curve.unit} {place(end)}"
        description = f"{', '.join(filter(None, what))}{until}, as given"
    given = Schedule(kind, () if kind == "wsd" else places, end, stays)
    return replace(curve, schedule=given, schedule_told=description)


def forecast_from_half(run: Path) -> Forecast:
    """Forecast the loss of a finished run from its first half, to compare with the rest. The half has at least the points of a
    fit.

    Raises: InputError for fewer.
    """
    fraction = min(1.0, max(0.5, MIN_POINTS / len(read_curve(run).steps)))
    return make_forecast(with_schedule(read_curve(run, fraction=fraction), is_part=True), fraction)


def growing(run: RunDir, read_again: Callable[[], LearningCurve]) -> Iterator[LearningCurve]:
    """Yield the curve of a run whenever it has grown, once it has enough points for a fit, until the run has ended."""
    seen = MIN_POINTS - 1
    while True:
        is_last = run.is_finished
        with contextlib.suppress(InputError):  # no point yet
            curve = read_again()
            if len(curve.steps) > seen:
                seen = len(curve.steps)
                yield curve
        if is_last:
            return
        sleep(POLL_EVERY_S)


def line(forecast: Forecast) -> str:
    """Return a forecast of a run in progress, as one line."""
    curve, until = forecast.curve, forecast.until
    value = curve.shown(curve.values[-1])
    parts = [f"{curve.unit} {until:g}: {curve.metric} {value:.4g}", _convergence(forecast.converged, until, curve.unit)]
    if forecast.reached is not None:
        parts.append(_when(forecast.reached, curve))
    return "; ".join([*parts, *curve.notes])


def missed(forecast: Forecast, points: str) -> list[str]:
    """Return a line with the error on later points; an empty list without such points."""
    if forecast.error is None:
        return []
    return [
        f"of {len(forecast.held_out)} later {points}, {forecast.num_inside} lie in the 80 % band; "
        f"their mean error is {percent(forecast.error)} of the largest value (bias {signed_percent(forecast.bias)})"
    ]


def loss(forecast: Forecast) -> Answer[Forecast]:
    """Return when the curve reaches a target, its later values, its convergence, and the quality of the forecast."""
    curve, model, unit = forecast.curve, forecast.model, forecast.curve.unit
    since = f" since {unit} {forecast.started:g}" if forecast.started else ""
    converged = [
        f"forecast at {unit} {until:g}: {_convergence(when, until, unit)}"
        for until, when in (*forecast.earlier, (forecast.until, forecast.converged))
    ]
    first = converged.pop() if forecast.reached is None else _when(forecast.reached, curve)
    others = [_value(one, curve) for one in forecast.at]
    others += missed(forecast, f"{unit}s")
    named = ", ".join(f"{name} {value:.4g}" for name, value in model.coefficients.items())
    section = Section(
        title=f"{curve.name}: {curve.metric}, {how_many(model.num_points, 'points')}{since} until {unit} {forecast.until:g}",
        takeaway=first,
        lines=[*others, *converged, f"{model.family}: {named}"],
        figure=Figure([panel(forecast)]),
        caption="Points: the curve. Line and band: forecast, 80 % interval.",
        table=Table.of(
            sorted(forecast.errors.items(), key=lambda pair: pair[1]),
            (
                Column("curve", lambda pair: pair[0]),
                Column("error of held-out points", lambda pair: pair[1], format=lambda error: percent(error, 2)),
                Column("", lambda pair: "used" if pair[0] == model.family else ""),
            ),
            ("held out: the last quarter of the points; errors over the largest value",),
        ),
    )
    return Answer(f"Forecast of {curve.name}", sections=[section], notes=curve.notes, result=forecast)


def panel(forecast: Forecast) -> Lines:
    """Return the curve, its forecast until the end, and the target."""
    curve, unit = forecast.curve, forecast.curve.unit
    seen = curve.shown(curve.values).tolist()
    end = max(forecast.at[-1].step if forecast.at else forecast.until, curve.schedule.planned or 0.0)
    if forecast.reached is not None and forecast.reached.step is not None:
        end = max(end, min(forecast.reached.step, FARTHEST_DRAWN * forecast.until))
    places = np.linspace(forecast.until, end, NUM_DRAWN) if end > forecast.until else [forecast.until]
    ahead = [forecast.expected(float(step)) for step in places]
    x, y, low, high = ([getattr(one, name) for one in ahead] for name in ("step", "value", "low", "high"))
    marks = [Mark("x", forecast.until, "forecast from here")]
    if forecast.reached is not None:
        marks.append(Mark("y", forecast.reached.value, "target"))
    series = [
        Series(curve.column or curve.metric, "measured", curve.steps.tolist(), seen),
        Series("forecast", "predicted", x, y, low, high),
    ]
    return Lines(unit, curve.metric, series, marks)


def _value(one: At, curve: LearningCurve) -> str:
    was = "" if one.seen is None else f"; it was {number(one.seen)}"
    between = f"{number(one.low)} … {number(one.high)}"
    return f"{curve.unit} {one.step:,.10g}: {curve.metric} {number(one.value)} ({between}){was}"


def _convergence(when: Convergence, now: float, unit: str) -> str:
    if when.step <= now:
        return f"converged at {unit} {when.step:g}"
    source = "published image classifiers with such a schedule" if when.source == "published" else "its curve"
    return f"converged at {unit} {place(when.step)} ({place(when.low)} … {place(when.high)}), from {source}"


def place(step: float) -> str:
    """Format an epoch or step for a reader.

    >>> place(30080.4), place(19.104)
    ('30,080', '19.1')
    """
    return number(step)


def _when(reached: Reached, curve: LearningCurve) -> str:
    low, high = (place(k) if k is not None else "never" for k in (reached.low, reached.high))
    when = (
        f"{'may be' if curve.schedule.kind is None else 'is'} out of reach for this curve ({low} … {high})"
        if reached.step is None
        else f"at {curve.unit} {place(reached.step)} ({low} … {high})"
    )
    was = "" if reached.seen is None else f"; the run reached it at {curve.unit} {reached.seen:,.10g}"
    return f"{curve.metric} {reached.value:g} {when}{was}"
