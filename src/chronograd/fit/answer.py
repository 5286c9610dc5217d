"""What `fit speed` and `fit batch` say: steps per second by workers and servers, and steps to a target by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section, Table
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
from chronograd.units import number, percent
from chronograd.words import how_many

MAX_BATCHES = 16  # of a table that nobody asked for


def speed(sources: Sequence[Path], batch: float | None = None, pairs: Sequence[tuple[int, int]] = ()) -> Answer:
    """A speed model of parameter servers from runs or CSV files, and its forecast for pairs of workers and servers.

    Args:
        batch: samples of a synchronous step; without it a step is one worker's.
    Raises: InputError for a batch with asynchronous runs, and as `read_points` and `fit_speed`.
    """
    points = [point for source in sources for point in read_points(source)]
    if batch is not None and any(point.is_asynchronous for point in points):
        raise InputError("--batch is for synchronous steps; runs of parameter_server are asynchronous", "leave it out")
    fitted = fit_speed([p.workers for p in points], [p.servers for p in points], [p.steps_per_s for p in points], batch)
    model = fitted.model
    forecasts = []
    for workers, servers in pairs:
        low, high = map(float, fitted.interval(workers, servers))
        value = model.steps_per_s(workers, servers)
        forecasts.append({"workers": workers, "servers": servers, "steps_per_s": value, "low": low, "high": high})
    data = {
        "mode": model.mode,
        "batch": batch,
        "coefficients": list(model.coefficients),
        "intervals": [list(pair) for pair in fitted.coefficient_intervals()],
        "points": [
            {"workers": p.workers, "servers": p.servers, "steps_per_s": p.steps_per_s, "error": float(e)}
            for p, e in zip(points, fitted.errors, strict=True)
        ],
        "forecasts": forecasts,
    }
    said = [
        f"{how_many(f['workers'], 'workers')}, {how_many(f['servers'], 'servers')}: {number(f['steps_per_s'])} steps/s "
        f"({number(f['low'])} … {number(f['high'])})"
        for f in forecasts
    ]
    first, *others = [*said, _errors(fitted)]
    coefficients = zip(model.coefficients, fitted.coefficient_intervals(), strict=True)
    section = Section(
        title=f"{model.mode.capitalize()} speed, {how_many(len(points), 'points')}",
        takeaway=first,
        lines=others,
        figure=Figure([_speed_panel(fitted, points)]),
        caption="Points: measured. Lines and bands: the fitted model, 80 % interval.",
        table=Table(
            ("coefficient", "seconds", "80 % interval"),
            [[f"a{i}", f"{a:.4g}", f"{low:.4g} … {high:.4g}"] for i, (a, (low, high)) in enumerate(coefficients)],
            {1},
        ),
    )
    return Answer("Speed of parameter servers", sections=[section], data=data)


def _errors(fitted: FittedSpeed) -> str:
    """How far off the model is, in points that it was fitted to and in those that were left out."""
    left_out = np.abs(fitted.left_out[np.isfinite(fitted.left_out)])
    apart = f", {percent(float(left_out.mean()))} where the point was left out of the fit" if len(left_out) else ""
    return f"Error of a point {percent(float(np.abs(fitted.errors).mean()))} in the mean{apart}."


def _speed_panel(fitted: FittedSpeed, points: Sequence[SpeedPoint]) -> Lines:
    """Steps per second against workers, a colour for each number of servers."""
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
) -> Answer:
    """Steps to a target by batch, from runs at several batches or from a noise scale that was measured.

    Args:
        target: of the training loss, or the test accuracy; by default the job's own accuracy.
        batches: of the table; by default powers of two around the critical one.
    Raises: InputError as `read_runs`, and where no run reached the target.
    """
    if metric == "loss" and target is None:
        raise InputError("--metric loss needs --to: a job names a target accuracy only", "give --to, such as --to 0.5")
    runs = read_runs(sources, metric, target)
    best = fewest_steps(runs)
    if not best:
        raise InputError("no run reached the target with all of its seeds", "give a lower one to --to")
    if len({run.batch for run in runs}) >= MIN_BATCHES:
        fitted, how = fit_batches(list(best), [steps for steps, _ in best.values()]), "steps"
    else:
        measured = next((run for run in runs if run.noise_scale.value is not None and run.batch in best), runs[0])
        at = measured.batch if measured.batch in best else next(iter(best))
        fitted, how = from_noise_scale(best[at][0], at, measured.noise_scale), "measured"
    data = _batch_data(fitted, how, runs, best, batches or _around(fitted, list(best)))
    sections = [_steps_section(data), _runs_section(data["runs"])]
    return Answer("Steps to the target by batch", sections=sections, data=data)


def _around(fitted: FittedBatches, batches: Sequence[int]) -> list[int]:
    """Powers of two: the batches that were run, and from a quarter of the critical one to four times it."""
    scale = fitted.model.noise_scale
    around = [scale / 4, 4 * scale] if 0 < scale < math.inf else []
    first = math.floor(math.log2(max(1.0, min(*batches, *around, math.inf))))
    last = math.ceil(math.log2(max(*batches, *around, 1.0)))
    return [2**k for k in range(first, min(last, first + MAX_BATCHES - 1) + 1)]


def _batch_data(
    fitted: FittedBatches,
    how: str,
    runs: Sequence[BatchRun],
    best: dict[int, tuple[float, float]],
    shown: Sequence[int],
) -> dict[str, Any]:
    model, samples = fitted.model, runs[0].samples
    lows, highs = fitted.steps_interval(shown)
    return {
        "noise_scale_from": how,
        "min_steps": model.min_steps,
        "min_steps_interval": list(fitted.min_steps_interval()),
        "min_samples": model.min_samples,
        "noise_scale": _finite(model.noise_scale),
        "noise_scale_interval": [_finite(end) for end in fitted.noise_scale_interval()],
        "runs": [
            {
                "run": run.name, "batch": run.batch, "learning_rate": run.learning_rate, "steps": run.steps,
                "is_counted": best.get(run.batch, (0, None))[1] == run.learning_rate,
                "measured_noise_scale": run.noise_scale.value,
                "measured_low": run.noise_scale.low, "measured_high": run.noise_scale.high,
            }
            for run in runs
        ],
        "batches": [
            {
                "batch": size, "steps": model.steps(size), "low": float(low), "high": float(high),
                "epochs": model.samples(size) / samples, "efficiency": model.efficiency(size),
            }
            for size, low, high in zip(shown, lows, highs, strict=True)
        ],
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known(value: float | None, otherwise: str = "–") -> str:
    return otherwise if value is None else number(value)


def _steps_section(data: dict[str, Any]) -> Section:
    rows, ran = data["batches"], [run for run in data["runs"] if run["steps"] is not None]
    low, high = data["noise_scale_interval"]
    least, most = data["min_steps_interval"]
    how = "from the steps" if data["noise_scale_from"] == "steps" else "as measured"
    x, y, low_y, high_y = ([row[name] for row in rows] for name in ("batch", "steps", "low", "high"))
    model = Series("model", "predicted", x, y, low_y, high_y)
    points = Series("runs", "measured", [run["batch"] for run in ran], [run["steps"] for run in ran])
    return Section(
        title="Steps to the target by batch",
        takeaway=f"Critical batch, {how}: {_known(data['noise_scale'], 'beyond the batches tried')} samples "
        f"({_known(low, '∞')} … {_known(high, '∞')}); the learning rate has to be chosen anew for each batch.",
        lines=[
            f"Of any batch: fewest steps {data['min_steps']:,.0f} ({least:,.0f} … {most:,.0f}), fewest samples "
            f"{data['min_samples']:,.0f}."
        ],
        figure=Figure([Lines("global batch", "steps to the target", [model, points], log_x=True, log_y=True)]),
        caption="Line and band: the fitted model, 80 % interval. Points: runs. Both axes are logarithmic.",
        table=Table(
            ("batch", "steps", "80 % interval", "epochs", "efficiency"),
            [
                [f"{r['batch']:,}", f"{r['steps']:,.0f}", f"{r['low']:,.0f} … {r['high']:,.0f}", f"{r['epochs']:.3g}",
                 percent(r["efficiency"], 0)]
                for r in rows
            ],
            set(range(5)),
            ("efficiency: the fewest samples that any batch needs, over those of this one",),
        ),
    )  # fmt: skip


def _runs_section(runs: Sequence[dict[str, Any]]) -> Section:
    def row(run: dict[str, Any]) -> list[str]:
        measured = _known(run["measured_noise_scale"])
        if run["measured_noise_scale"] is not None:
            measured += f" ({_known(run['measured_low'])} … {_known(run['measured_high'], '∞')})"
        steps = "not reached" if run["steps"] is None else f"{run['steps']:,.0f}"
        return [run["run"], f"{run['batch']:,}", f"{run['learning_rate']:g}", steps, measured,
                "counts" if run["is_counted"] else ""]  # fmt: skip

    num_reached = sum(run["steps"] is not None for run in runs)
    num_counted = sum(run["is_counted"] for run in runs)
    return Section(
        title=f"{len(runs)} run{'s' * (len(runs) > 1)}",
        takeaway=f"{num_reached} of {len(runs)} reached the target, and {num_counted} count: of each batch those of the "
        "learning rate with the fewest steps.",
        table=Table(
            ("run", "batch", "learning rate", "steps", "noise scale measured", ""),
            [row(run) for run in runs],
            {1, 2, 3},
        ),
        data=runs,
    )
