"""The output of `fit speed` and `fit batch`: steps per second by workers and servers, and steps to a target by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.errors import InputError
from chronograd.figure import SERIES_COLORS, Figure, Lines, Series
from chronograd.fit.batch_size import (
    MIN_BATCHES,
    BatchRun,
    FittedBatches,
    fewest_steps,
    fit_batches,
    from_noise_scale,
    read_runs,
)
from chronograd.fit.speed import FittedSpeed, SpeedPoint, fit_speed, read_points
from chronograd.forecast.learning_curves import Metric
from chronograd.units import number, percent, whole_percent
from chronograd.words import how_many

MAX_BATCHES = 16  # rows of the default table


@dataclass(frozen=True)
class SpeedForecast:
    """Steps per second with some workers and servers, with the 80 % interval."""

    workers: int
    servers: int
    steps_per_s: float
    low: float
    high: float


@dataclass(frozen=True)
class FittedPoint:
    """A measured speed, and the relative error of the model there."""

    workers: int
    servers: int
    steps_per_s: float
    error: float


@dataclass(frozen=True)
class SpeedFit:
    """The result of `fit speed`: `coefficients` in seconds, each with its 80 % interval in `intervals`."""

    mode: str
    batch: float | None
    coefficients: list[float]
    intervals: list[tuple[float, float]]
    points: list[FittedPoint]
    forecasts: list[SpeedForecast]


@dataclass(frozen=True)
class StepsOfRun:
    """Steps of a run to the target; None if it did not reach it.

    Attributes:
        is_counted: whether its learning rate needs the fewest steps at its batch.
        measured_noise_scale: in samples, with the 80 % interval.
    """

    run: str
    batch: int
    learning_rate: float
    steps: float | None
    is_counted: bool
    measured_noise_scale: float | None
    measured_low: float | None
    measured_high: float | None


@dataclass(frozen=True)
class StepsAtBatch:
    """Steps to the target at a batch with the 80 % interval; `efficiency` is the fewest samples over the samples of this batch."""

    batch: int
    steps: float
    low: float
    high: float
    epochs: float
    efficiency: float


@dataclass(frozen=True)
class BatchFit:
    """The result of `fit batch`: `noise_scale` is the critical batch; None if it is larger than the batches of the runs."""

    noise_scale_from: str
    min_steps: float
    min_steps_interval: list[float]
    min_samples: float
    noise_scale: float | None
    noise_scale_interval: list[float | None]
    runs: list[StepsOfRun]
    batches: list[StepsAtBatch]


def speed(
    sources: Sequence[Path], batch: float | None = None, pairs: Sequence[tuple[int, int]] = ()
) -> Answer[SpeedFit]:
    """Fit a speed model of parameter servers to runs or CSV files, and forecast pairs of workers and servers.

    Args:
        batch: samples of a synchronous step; without it a step belongs to one worker.
    Raises: InputError for a batch with asynchronous runs, and as `read_points` and `fit_speed`.
    """
    points = [point for source in sources for point in read_points(source)]
    if batch is not None and any(point.is_asynchronous for point in points):
        raise InputError("--batch is for synchronous steps; runs of parameter_server are asynchronous", "leave it out")
    fitted = fit_speed([p.workers for p in points], [p.servers for p in points], [p.steps_per_s for p in points], batch)
    model = fitted.model
    forecasts = [SpeedForecast(*pair, model.steps_per_s(*pair), *map(float, fitted.interval(*pair))) for pair in pairs]
    result = SpeedFit(
        mode=model.mode,
        batch=batch,
        coefficients=list(model.coefficients),
        intervals=fitted.coefficient_intervals(),
        points=[
            FittedPoint(p.workers, p.servers, p.steps_per_s, float(e))
            for p, e in zip(points, fitted.errors, strict=True)
        ],
        forecasts=forecasts,
    )
    speeds = [
        f"{how_many(f.workers, 'workers')}, {how_many(f.servers, 'servers')}: {number(f.steps_per_s)} steps/s "
        f"({number(f.low)} … {number(f.high)})"
        for f in forecasts
    ]
    first, *others = [*speeds, _errors(fitted)]
    section = Section(
        title=f"{model.mode.capitalize()} speed, {how_many(len(points), 'points')}",
        takeaway=first,
        lines=others,
        figure=Figure([_speed_panel(fitted, points)]),
        caption="Points: measured. Lines and bands: the fitted model, 80 % interval.",
        table=Table.of(
            enumerate(zip(result.coefficients, result.intervals, strict=True)),
            (
                Column("coefficient", lambda one: f"a{one[0]}"),
                Column("seconds", lambda one: one[1][0], format=".4g"),
                Column("80 % interval", lambda one: "{:.4g} … {:.4g}".format(*one[1][1])),
            ),
        ),
    )
    return Answer("Speed of parameter servers", sections=[section], result=result)


def _errors(fitted: FittedSpeed) -> str:
    """Return the error of the model on its fitted points and on points left out of the fit."""
    left_out = np.abs(fitted.left_out[np.isfinite(fitted.left_out)])
    left_out_error = f", {percent(float(left_out.mean()))} if the point is left out of the fit" if len(left_out) else ""
    return f"Mean error of a point: {percent(float(np.abs(fitted.errors).mean()))}{left_out_error}."


def _speed_panel(fitted: FittedSpeed, points: Sequence[SpeedPoint]) -> Lines:
    """Return steps per second by workers, with a colour for each number of servers."""
    most = max(p.workers for p in points)
    workers = np.unique(np.geomspace(1, most, 20).round()).astype(int).tolist()
    series = []
    for i, servers in enumerate(sorted({p.servers for p in points})):
        color, name = SERIES_COLORS[i % len(SERIES_COLORS)], f"{servers} server{'s' * (servers > 1)}"
        seen = [p for p in points if p.servers == servers]
        low, high = fitted.interval(np.array(workers), np.full(len(workers), servers))
        speeds = [float(fitted.model.steps_per_s(w, servers)) for w in workers]
        series.append(Series(name, "predicted", workers, speeds, low.tolist(), high.tolist(), color))
        series.append(Series(name, "measured", [p.workers for p in seen], [p.steps_per_s for p in seen], color=color))
    return Lines("workers", "steps per second", series, from_zero=True)


def batch(
    sources: Sequence[Path], metric: Metric, target: float | None = None, batches: Sequence[int] | None = None
) -> Answer[BatchFit]:
    """Fit steps to a target by batch, from runs at several batches or from a measured noise scale.

    Args:
        target: of the training loss or the test accuracy; by default the target accuracy of the job.
        batches: rows of the table; by default powers of two around the critical batch.
    Raises: InputError as `read_runs`, and if no run reached the target.
    """
    if metric == "loss" and target is None:
        raise InputError("--metric loss needs --to: a job only has a target accuracy", "give --to, such as --to 0.5")
    runs = read_runs(sources, metric, target)
    best = fewest_steps(runs)
    if not best:
        raise InputError(
            "at no batch did all seeds of a learning rate reach the target", "give an easier target to --to"
        )
    if len({run.batch for run in runs}) >= MIN_BATCHES:
        fitted, how = fit_batches(list(best), [steps for steps, _ in best.values()]), "steps"
    else:
        measured = next((run for run in runs if run.noise_scale.value is not None and run.batch in best), runs[0])
        at = measured.batch if measured.batch in best else next(iter(best))
        fitted, how = from_noise_scale(best[at][0], at, measured.noise_scale), "measured"
    result = _batch_fit(fitted, how, runs, best, batches or _around(fitted, list(best)))
    sections = [_steps_section(result), _runs_section(result.runs)]
    return Answer("Steps to the target by batch", sections=sections, result=result)


def _around(fitted: FittedBatches, batches: Sequence[int]) -> list[int]:
    """Return powers of two that cover the batches of the runs, and a quarter to four times the critical batch."""
    scale = fitted.model.noise_scale
    around = [scale / 4, 4 * scale] if 0 < scale < math.inf else []
    first = math.floor(math.log2(max(1.0, min(*batches, *around, math.inf))))
    last = math.ceil(math.log2(max(*batches, *around, 1.0)))
    return [2**k for k in range(first, min(last, first + MAX_BATCHES - 1) + 1)]


def _batch_fit(
    fitted: FittedBatches,
    how: str,
    runs: Sequence[BatchRun],
    best: dict[int, tuple[float, float]],
    shown: Sequence[int],
) -> BatchFit:
    model, samples = fitted.model, runs[0].samples
    lows, highs = fitted.steps_interval(shown)
    return BatchFit(
        noise_scale_from=how,
        min_steps=model.min_steps,
        min_steps_interval=list(fitted.min_steps_interval()),
        min_samples=model.min_samples,
        noise_scale=_finite(model.noise_scale),
        noise_scale_interval=[_finite(end) for end in fitted.noise_scale_interval()],
        runs=[
            StepsOfRun(run.name, run.batch, run.learning_rate, run.steps, best.get(run.batch, (0, None))[1] == run.learning_rate,
                       run.noise_scale.value, run.noise_scale.low, run.noise_scale.high)
            for run in runs
        ],
        batches=[
            StepsAtBatch(size, model.steps(size), float(low), float(high), model.samples(size) / samples, model.efficiency(size))
            for size, low, high in zip(shown, lows, highs, strict=True)
        ],
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known(value: float | None, otherwise: str = "–") -> str:
    return otherwise if value is None else number(value)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _steps_section(fit: BatchFit) -> Section:
    rows, ran = fit.batches, [run for run in fit.runs if run.steps is not None]
    low, high = fit.noise_scale_interval
    least, most = fit.min_steps_interval
    how = "from the steps" if fit.noise_scale_from == "steps" else "as measured"
    x, y, low_y, high_y = ([getattr(row, name) for row in rows] for name in ("batch", "steps", "low", "high"))
    model = Series("model", "predicted", x, y, low_y, high_y)
    points = Series("runs", "measured", [run.batch for run in ran], [run.steps for run in ran])
    return Section(
        title="Steps to the target by batch",
        takeaway=f"Critical batch, {how}: {_known(fit.noise_scale, 'beyond the batches tried')} samples "
        f"({_known(low, '∞')} … {_known(high, '∞')}); tune the learning rate for each batch.",
        lines=[
            f"At any batch: at least {_whole(fit.min_steps)} steps ({_whole(least)} … {_whole(most)}) and "
            f"{_whole(fit.min_samples)} samples."
        ],
        figure=Figure([Lines("global batch", "steps to the target", [model, points], log_x=True, log_y=True)]),
        caption="Line and band: the fitted model, 80 % interval. Points: runs. Both axes are logarithmic.",
        table=Table.of(
            rows,
            (
                Column("batch", "batch", format=","),
                Column("steps", "steps", format=_whole),
                Column("80 % interval", lambda row: f"{_whole(row.low)} … {_whole(row.high)}", format=str),
                Column("epochs", "epochs", format=".3g"),
                Column("efficiency", "efficiency", format=whole_percent),
            ),
            ("efficiency: the fewest samples of any batch over the samples of this one",),
        ),
    )


def _runs_section(runs: Sequence[StepsOfRun]) -> Section:
    def measured(run: StepsOfRun) -> str:
        if run.measured_noise_scale is None:
            return "–"
        return f"{number(run.measured_noise_scale)} ({_known(run.measured_low)} … {_known(run.measured_high, '∞')})"

    num_reached = sum(run.steps is not None for run in runs)
    num_counted = sum(run.is_counted for run in runs)
    return Section(
        title=f"{len(runs)} run{'s' * (len(runs) > 1)}",
        takeaway=f"{num_reached} of {len(runs)} reached the target. The fit uses {num_counted}: at each batch, those of the "
        "learning rate with the fewest steps.",
        table=Table.of(
            runs,
            (
                Column("run", "run"),
                Column("batch", "batch", format=","),
                Column("learning rate", "learning_rate", format="g"),
                Column("steps", "steps", format=_whole, empty="not reached"),
                Column("measured noise scale", measured),
                Column("", lambda run: "used" if run.is_counted else ""),
            ),
        ),
        data=as_json(runs),
    )
