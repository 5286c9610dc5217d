"""Predicted time to accuracy: with published coefficients, with a fit to runs on parameter servers, and from a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from chronograd.fit.speed import FittedSpeed, fit_speed
from chronograd.forecast.curves import crossing
from chronograd.hardware import catalog
from chronograd.plan.goal import SEED_SIGMA, SamplesToTarget
from chronograd.predict.speed import NUM_COEFFICIENTS, OPTIMUS_RESNET50, SpeedModel, time_to_target
from chronograd.record import Z80
from chronograd_lab.common.published_throughputs import (
    base_row,
    beside_published,
    between_nodes_residual,
    correction,
    factor_shown,
)
from chronograd_lab.common.results import Row, Settings
from chronograd_lab.common.rows import plural
from chronograd_lab.common.scaling import Sweep, predicted_points, scaling_job

SINGLE: Final = "single"
ASYNCHRONOUS: Final = "asynchronous"
ALL_REDUCE: Final = "all-reduce"
STRONG: Final = "strong"
WEAK: Final = "weak"


def reached(columns: Mapping[str, Sequence[float | None]], target: float) -> tuple[float | None, float | None]:
    """Return epochs and training seconds until a test accuracy, linear between epochs; None if it never came.

    >>> reached({"epoch": [1, 2], "seconds": [3.0, 5.0], "test_accuracy": [0.5, 1.0]}, 0.75)
    (1.5, 4.0)
    """
    epochs, spent, accuracy = (np.array(columns[name], float) for name in ("epoch", "seconds", "test_accuracy"))
    return crossing(epochs, -accuracy, -target), crossing(spent, -accuracy, -target)


def _row(times: np.ndarray, **known: Any) -> Row:
    return {**known, **dict(zip(("time_s", "low", "high"), times.tolist(), strict=True))}


def series_of(servers: int | None) -> str:
    return ALL_REDUCE if servers is None else plural(servers, "server")


def of_optimus(asked: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Predict ResNet-50 with the published coefficients, to the accuracy with known epochs, at each batch.

    `epochs`: predicted, with the ends of their 80 % interval; `real_epochs`: of runs. Both at `reference_batch`.
    """
    rows, best = [], []
    counts = range(1, asked["workers"] + 1)
    epochs, low, high = asked["epochs"]
    effort = SamplesToTarget(
        epochs * asked["images"], asked["reference_batch"], sigma_log=math.log(high / low) / (2 * Z80)
    )
    later = mean(asked["real_epochs"]) / epochs
    for batch in asked["batches"]:
        steps, spread = effort.steps(batch)
        with_servers = SpeedModel("synchronous", OPTIMUS_RESNET50.coefficients, batch)
        for servers in (*asked["servers"], None):
            model, p = (with_servers.all_reduce(), 1) if servers is None else (with_servers, servers)
            own: Row = {"batch": batch, "series": series_of(servers)}
            best.append({**own, "best": model.best_workers(p, counts), "exact": model.closed_form(p), "steps": steps})
            for w in counts:
                f = model.steps_per_s(w, p)
                times = _row(time_to_target(steps, f, spread), **own, workers=w, steps_per_s=f)
                rows.append({**times, "real_time_s": times["time_s"] * later})
    return {"optimus": rows, "optimus_best": best}


def on_device(asked: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Predict step times from a trace, at a global batch and at a batch of each device, corrected by published throughputs.

    The long end of strong scaling on several nodes contains the error of the published run of that kind.
    """
    data = {"name": "synthetic", "shape": asked["shape"], "classes": asked["classes"], "samples": 1024}
    one = scaling_job(
        {**asked, "data": data}, "ddp", {"batch": asked["batch"]}, device=asked["device"], link=asked["link"]
    )
    base = base_row(asked["device"], asked["network"])
    known: Any = {"predicted": asked["counts"], "factor": correction(asked["device"], asked["network"])}
    effort, rows = SamplesToTarget(asked["epochs"] * asked["samples"], asked["batch"]), []
    residual = between_nodes_residual(beside_published("t4", asked["network"]))
    for point in predicted_points([Sweep(scaling, one, scaling, **known) for scaling in (STRONG, WEAK)]):
        steps, of_steps = effort.steps(point["batch"])
        spread = math.log(point["high"] / point["low"]) / (2 * Z80)
        is_far = point["scaling"] == STRONG and point["world"] > catalog.device(asked["device"]).node.devices_per_node
        row = _row(
            time_to_target(steps, 1 / point["step_time_s"], of_steps, spread), scaling=point["scaling"], workers=point["world"],
            batch=point["batch"], steps=steps, step_time_s=point["step_time_s"], shown=base and factor_shown(base),
            residual=residual if is_far else 1.0,
        )  # fmt: skip
        rows.append({**row, "high": max(row["high"], row["residual"] * row["time_s"])})
    return {"device": rows}


def forecasts(runs: Sequence[Row], settings: Settings) -> dict[str, list[Row]]:
    """Fit the asynchronous speed model to the runs on parameter servers, and predict times to the target; nothing for too few
    runs.

    Steps to the target are those of `single`: as if staleness had no cost.
    """
    pairs = [row for row in runs if row["method"] == ASYNCHRONOUS]
    alone = [row["epochs"] for row in runs if row["method"] == SINGLE and row["epochs"]]
    if len(pairs) < NUM_COEFFICIENTS[ASYNCHRONOUS] or not alone:
        return {"points": [], "coefficients": [], "here": []}
    workers, servers, speeds = ([row[key] for row in pairs] for key in ("workers", "servers", "steps_per_s"))
    fit = fit_speed(workers, servers, speeds)
    points = [
        {**{key: row[key] for key in ("run", "workers", "servers", "steps_per_s")},
         "fitted": fit.model.steps_per_s(row["workers"], row["servers"]), "error": float(error),
         "left_out": None if math.isnan(left_out) else float(left_out)}
        for row, error, left_out in zip(pairs, fit.errors, fit.left_out, strict=True)
    ]  # fmt: skip
    coefficients = [
        {"name": f"a{i}", "value": value, "low": low, "high": high}
        for i, (value, (low, high)) in enumerate(zip(fit.model.coefficients, fit.coefficient_intervals(), strict=True))
    ]
    return {"points": points, "coefficients": coefficients, "here": _here(fit, alone, settings)}


def _here(fit: FittedSpeed, alone: Sequence[float], settings: Settings) -> list[Row]:
    steps = mean(alone) * settings["samples"] / settings["batch"]
    sigma = max(SEED_SIGMA, float(np.std(np.log(alone), ddof=1)) if len(alone) > 1 else 0.0)
    shared = fit.all_reduce()
    rows = []
    for servers in (*settings["servers"], None):
        own, p = (shared, 1) if servers is None else (fit, servers)
        for w in range(1, settings["workers"] + 1):
            f = own.model.steps_per_s(w, p)
            low, high = own.interval(w, p)
            times = time_to_target(steps, f, sigma, np.log(high / low) / (2 * Z80))
            rows.append(
                _row(times, series=series_of(servers), workers=w, steps_per_s=f, f_low=float(low), f_high=float(high))
            )
    return rows


def mean(epochs: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(epochs))))
