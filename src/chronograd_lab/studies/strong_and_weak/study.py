"""Strong and weak scaling of ResNet-50 on Fashion-MNIST with tf.distribute: throughput, time, cost.

The effective batch stays 256 (strong), or is 256 images per learner (weak); 1 to 16 learners, 10 epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chronograd.answer import Table
from chronograd.compare.scaling import Scaling
from chronograd.figure import Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.job import Job
from chronograd.units import dollars, percent, quantity, seconds
from chronograd_lab.common.published_throughputs import beside_published, between_nodes_residual
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import (
    COLORS,
    Sweep,
    against_ranks,
    beside_figure,
    beside_table,
    by_world,
    cluster_sweeps,
    cluster_tables,
    has_many,
    here_table,
    ideal,
    is_one_market,
    predicted_points,
    run_sweeps,
    scaling_job,
    series_of,
    throughput_interval,
    with_interval,
)
from chronograd_lab.common.study import Column, Study, table
from chronograd_lab.common.written import Block, key

SCALINGS: tuple[Scaling, Scaling] = ("strong", "weak")
HERE = "here"
# The bandwidth between nodes that public runs used, which is a tenth of their data sheet's.
FITTED_LINK = "ethernet-50g-pollux"


def job(settings: Settings, scaling: Scaling, **cluster: Any) -> Job:
    """Return the job of one learner. `batches`: the global batch of strong scaling and the batch per learner of weak scaling.

    On a predicted device, the batches are those of the published setting.
    """
    batch = settings["gpu_batches" if cluster else "batches"][SCALINGS.index(scaling)]
    training = {"batch": batch, "epochs": settings["epochs"], "learning_rate": 0.01}
    return scaling_job(settings, "ddp" if cluster else settings["backend"], training, **cluster)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Measure here with the backend of the setting, and predict its GPUs."""
    here = [Sweep(HERE, job(settings, scaling), scaling, measured=settings["worlds"]) for scaling in SCALINGS]
    results = run_sweeps(runner, settings, here)
    return replace(results, rows={**results.rows, **predictions(results)})


def predictions(results: Results) -> dict[str, list[Row]]:
    settings = results.settings

    def there(scaling: Scaling, **cluster: Any) -> Job:
        return job(settings, scaling, **cluster)

    tables, t4 = (
        cluster_tables(results, cluster_sweeps(settings, there, SCALINGS)),
        beside_published("t4", settings["network"]),
    )
    points = [_widened(row, settings["per_node"], between_nodes_residual(t4)) for row in tables["points"]]
    slow = {**settings, "clusters": [[device, FITTED_LINK] for device, _ in settings["clusters"]]}
    fitted = predicted_points(cluster_sweeps(slow, there, ("strong",)))
    return {
        **tables,
        "points": points,
        "t4": t4,
        "fitted": [row for row in fitted if row["world"] > settings["per_node"]],
    }


def _widened(row: Row, per_node: int, residual: float) -> Row:
    """Return a row whose interval contains the error of the published run, for strong scaling on several nodes."""
    if row["kind"] != "predicted" or row["scaling"] != "strong" or row["world"] <= per_node:
        return row
    return {**row, "high": max(row["high"], residual * row["step_time_s"])}


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, prices = _predicted(results), results.rows["prices"]
    front = _front(rows, is_one_market(prices))
    here = matching(results.rows["points"], series=HERE, kind="measured")
    return {
        **{key(device): _by_scaling(own) for device, own in grouped(rows, "series").items()},
        "here": _by_scaling(here),
        "t4": {name: by_world(own) for name, own in grouped(results.rows["t4"], "set").items()},
        "residual": between_nodes_residual(results.rows["t4"]),
        "fitted": {
            "gb_per_s": catalog.link(FITTED_LINK).bandwidth_bytes_per_s / 1e9,
            **{key(device): by_world(own) for device, own in grouped(results.rows["fitted"], "series").items()},
        },
        "prices": {key(row["device"]): row for row in prices},
        "published": {key(row["device"]): row for row in matching(results.rows["published"], gpus=1)[::-1]},
        "fastest": min(rows, key=lambda row: row["training_time_s"]),
        "front": {
            key(device): {kind: _worlds(matching(front, series=device, scaling=kind)) for kind in SCALINGS}
            for device in distinct(rows, "series")
        },
    }  # fmt: skip


def _by_scaling(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    return {scaling: by_world(matching(rows, scaling=scaling)) for scaling in SCALINGS}


def _worlds(rows: Sequence[Row]) -> str:
    return ", ".join(str(row["world"]) for row in rows)


def _predicted(results: Results) -> list[Row]:
    """Return the predicted rows, with the ends of the interval of the training, its cost and its efficiency."""
    return [{**row, **_bounds(row)} for row in results.rows["points"] if row["series"] != HERE]


def _bounds(row: Row) -> Row:
    """Return the columns that are proportional to the step or to its inverse, at the ends of its interval."""
    ends = {name: row[name] / row["step_time_s"] for name in ("low", "high")}
    bounds = {f"training_{name}_s": row["training_time_s"] * share for name, share in ends.items()}
    bounds |= {
        f"efficiency_{name}": row["efficiency"] / ends[other] for name, other in (("low", "high"), ("high", "low"))
    }
    return bounds | {f"cost_{name}_usd": row["cost_usd"] and row["cost_usd"] * share for name, share in ends.items()}


def blocks(results: Results) -> dict[str, Block]:
    rows, per_node, fitted = _predicted(results), results.settings["per_node"], results.rows["fitted"]
    priced = [row for row in rows if row["cost_usd"] is not None]
    weak, here = matching(rows, scaling="weak"), matching(results.rows["points"], series=HERE)
    growth = [
        series_of(f"{device}, predicted", own, "iteration_growth", "predicted", color)
        for (device, own), color in zip(grouped(weak, "series").items(), COLORS, strict=False)
    ]
    names: dict[str, Column] = {"device": "series", "scaling": "scaling", "learners": "world"}
    made = {
        "Throughput": Block(table(rows, {
            **names, "effective batch": ("batch", "{:,}".format), "of a learner": ("per_rank", "{:,}".format),
            "throughput": lambda row: quantity(row["throughput_samples_per_s"], "sample/s"),
            "80 % interval": lambda row: " … ".join(f"{v:,.0f}" for v in throughput_interval(row) if v),
            "speed-up": ("speed_up", "{:.2f} ×".format), "of ideal": lambda row: percent(row["efficiency"], 0),
        }, text=2), Figure(_panels(rows, "throughput_samples_per_s", "images/s", throughput_interval, fitted=fitted, with_ideal=True))),
        "Training time": Block(table(rows, {
            **names, "step": ("step_time_s", seconds), "training": ("training_time_s", seconds),
            "80 % interval": lambda row: f"{seconds(row['training_low_s'])} … {seconds(row['training_high_s'])}",
        }, text=2), Figure(_panels(rows, "training_time_s", "minutes", _minutes, 60.0, fitted))),
        "Weak-scaling efficiency": Block(table(weak, {
            "device": "series", "learners": "world", "nodes": lambda row: str(-(-row["world"] // per_node)),
            "iteration": ("step_time_s", seconds), "growth": ("iteration_growth", "{:.2f} ×".format),
            "efficiency": lambda row: percent(row["efficiency"], 0),
            "exposed communication": lambda row: "" if row["world"] == 1 else seconds(row["communication_exposed_s"]),
        }), Figure([against_ranks("times that of one learner", growth, "Time of an iteration, weak scaling", "learners", is_log=False)])),
    }  # fmt: skip
    if priced:
        made["Cost"] = Block(table(priced, {
            **names, "training": ("training_time_s", seconds), "cost": ("cost_usd", _dollars),
            "80 % interval": lambda row: f"{_dollars(row['cost_low_usd'])} … {_dollars(row['cost_high_usd'])}",
            "a GPU and hour": lambda row: dollars(row["cost_usd"] / row["world"] / row["training_time_s"] * 3600),
        }, text=2), Figure(_panels(priced, "cost_usd", "US dollars", lambda row: (row["cost_low_usd"], row["cost_high_usd"]))))  # fmt: skip
        made["Time against cost"] = Block(_trade(priced, is_one_market(results.rows["prices"])), _trade_figure(priced))
    if t4 := results.rows["t4"]:
        made["Compared with published runs on T4s"] = Block(beside_table(t4), beside_figure(t4))
    if has_many(here):
        made["Here, on CPUs"] = Block(here_table(here, {"scaling": "scaling"}))
    return made


def _minutes(row: Row) -> tuple[float, float]:
    """Return the ends of the interval of a training, in minutes."""
    return row["training_low_s"] / 60, row["training_high_s"] / 60


def _panels(
    rows: Sequence[Row], column: str, y_label: str, bounds: Callable[[Row], tuple[float | None, float | None]],
    unit: float = 1.0, fitted: Sequence[Row] = (), with_ideal: bool = False,
) -> list[Lines]:  # fmt: skip
    """Return a panel for each device, with a line and its interval for each kind of scaling.

    fitted: rows of strong scaling on several nodes with the bandwidth of public runs; a second line to these.
    """
    panels = []
    for device, own in grouped(rows, "series").items():
        series: list[Series] = []
        for scaling, color in zip(SCALINGS, COLORS, strict=False):
            of_kind = matching(own, scaling=scaling)
            line = series_of(f"{scaling} scaling", of_kind, column, "predicted", color, unit)
            series.append(with_interval(line, [bounds(row) for row in of_kind]))
        strong = matching(own, scaling="strong")
        if far := matching(fitted, series=device):
            near = [row for row in strong if row["world"] < far[0]["world"]][-1:]
            series.append(
                series_of("strong, bandwidth of public runs", [*near, *far], column, "predicted", COLORS[2], unit)
            )
        ends = [ideal(strong, column)] if with_ideal else []
        panels.append(against_ranks(y_label, [*series, *ends], f"{device}, predicted", "learners"))
    return panels


def _dollars(usd: float) -> str:
    """Format dollars to a tenth of a cent, as these runs cost cents; smaller amounts to two digits.

    >>> _dollars(2), _dollars(0.0604), _dollars(0.00012)
    ('$2.00', '$0.060', '$0.00012')
    """
    return f"${usd:.3f}" if 0.001 <= usd < 1 else dollars(usd)


def _trade(rows: Sequence[Row], is_one: bool) -> Table:
    front = _front(rows, is_one)
    return table(sorted(rows, key=lambda row: row["training_time_s"]), {
        "device": "series", "scaling": "scaling", "learners": "world", "training": ("training_time_s", seconds),
        "cost": ("cost_usd", _dollars), "no run is faster and cheaper": lambda row: "yes" if row in front else "",
    }, text=2)  # fmt: skip


def _front(rows: Sequence[Row], is_one: bool) -> list[Row]:
    """Runs that no other run beats in both time and cost. `is_one`: whether prices of different devices can be compared."""

    def is_better(one: Row, other: Row) -> bool:
        is_comparable = is_one or one["series"] == other["series"]
        return is_comparable and all(one[column] < other[column] for column in ("training_time_s", "cost_usd"))

    return [row for row in rows if not any(is_better(other, row) for other in rows)]


def _trade_figure(rows: Sequence[Row]) -> Figure:
    series = []
    for ((device, scaling), own), color in zip(grouped(rows, "series", "scaling").items(), COLORS, strict=False):
        minutes = [{**row, "minutes": row["training_time_s"] / 60} for row in own]
        line = series_of(f"{device}, {scaling}", minutes, "cost_usd", "predicted", color, x="minutes")
        series.append(replace(line, notes=[str(row["world"]) for row in own]))
    return Figure([Lines("training time, minutes", "cost, US dollars", series, log_x=True, log_y=True)])


_PAPER = {
    "network": "resnet50-v1", "data": {"name": "fashion-mnist"}, "backend": "tf_multiworker", "batches": [256, 256],
    "gpu_batches": [256, 256], "epochs": 10, "worlds": [1, 2, 4, 8, 16],
    "clusters": [["k80-gk210", "ethernet-10g"], ["v100", "ethernet-25g"]], "per_node": 8,
    "predicted_worlds": [1, 2, 4, 8, 16], "steps": 30, "warmup": 5,
}  # fmt: skip
_LAPTOP = {**_PAPER, "batches": [32, 16], "worlds": [1, 2], "steps": 5, "warmup": 1}
_SMOKE = {
    **_LAPTOP, "network": "lenet5", "data": {"name": "synthetic", "shape": [1, 16, 16], "classes": 10, "samples": 256},
    "backend": "ddp", "batches": [16, 8], "gpu_batches": [32, 32], "epochs": 1, "clusters": [["v100", "ethernet-25g"]],
    "predicted_worlds": [1, 4], "steps": 2,
}  # fmt: skip
_EVENING = {**_LAPTOP, "batches": [64, 32], "steps": 20, "warmup": 3}

STUDY = Study(
    name="strong-and-weak",
    question="Does ResNet-50 on Fashion-MNIST scale better when the batch grows with the learners, and what does it cost?",
    hypothesis="Weak scaling stays close to ideal; strong scaling loses more with every learner, as its steps get shorter "
    "and its gradients do not.",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)
