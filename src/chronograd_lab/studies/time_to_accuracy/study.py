"""Time to accuracy against the number of workers: with parameter servers, and with an all-reduce.

`depth-and-device` predicts the epochs of ResNet-50 to 92 % on CIFAR-10; Optimus' coefficients turn them into times. Y. Peng et
al., Optimus, EuroSys 2018. Time is steps to the target over steps per second; both have their spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.backends import parameter_server
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, changed
from chronograd.predict.speed import SpeedModel
from chronograd.units import seconds
from chronograd.units import signed as minus
from chronograd.words import how_many
from chronograd_lab.common.arms import job_of
from chronograd_lab.common.published_runs import RESNET50_EPOCHS_TO_92, RESNET50_REAL_EPOCHS_TO_92
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, ends, grouped, matching, plural, shown, six_digits
from chronograd_lab.common.runner import StudyRunner, curve
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key
from chronograd_lab.studies.time_to_accuracy.time_forecasts import (
    ALL_REDUCE,
    ASYNCHRONOUS,
    SINGLE,
    STRONG,
    WEAK,
    forecasts,
    mean,
    of_optimus,
    on_device,
    reached,
    series_of,
)

BACKENDS = {SINGLE: "single", ASYNCHRONOUS: "parameter_server", ALL_REDUCE: "ddp"}
COLORS = {"1 server": "purple", "2 servers": "accent", "4 servers": "vermilion", ALL_REDUCE: "orange"}


# -- runs ------------------------------------------------------------------------------------------


def job(settings: Settings, method: str, workers: int = 1, servers: int = 1) -> Job:
    """Return a job that runs until the target accuracy. Ranks of an all-reduce share a minibatch; a worker of parameter servers
    has one.
    """
    parts = {
        "cluster": {"device": "cpu", "count": workers, "threads": 1}, "communication": {"servers": servers},
        "backend": BACKENDS[method],
    }  # fmt: skip
    target = settings["target_accuracy"]
    return job_of(settings, settings["network"], parts=parts, recipe="sgd-momentum", target_accuracy=target)


def experiments(settings: Settings) -> dict[str, Job]:
    """Return the jobs by name, such as `asynchronous, 3 workers, 1 server`."""
    found = {
        f"{SINGLE}, seed {seed}": changed(job(settings, SINGLE), [f"training.seed={seed}"])
        for seed in range(settings["seeds"])
    }
    found |= {
        f"{ALL_REDUCE}, {how_many(ranks, 'ranks')}": job(settings, ALL_REDUCE, ranks) for ranks in settings["ranks"]
    }
    for workers, servers in settings["pairs"]:
        name = f"{ASYNCHRONOUS}, {plural(workers, 'worker')}, {series_of(servers)}"
        found[name] = job(settings, ASYNCHRONOUS, workers, servers)
    return found


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine, and each rank a core
    is_there, why_not = parameter_server.available()
    jobs = {n: one for n, one in experiments(settings).items() if is_there or one.backend != BACKENDS[ASYNCHRONOUS]}
    notes = [] if is_there else [f"Nothing ran on parameter servers: {why_not}."]
    runs, curves = [], {}
    for name, run in runner.train(jobs).items():
        record, one = run.record(), run.job()
        curves[name] = curve(record)
        epochs, spent = reached(curves[name], settings["target_accuracy"])
        servers = one.communication.servers if name.startswith(ASYNCHRONOUS) else None
        runs.append({
            "run": name, "method": name.split(",")[0], "workers": one.cluster.count, "servers": servers,
            "steps_per_s": 1 / record.value("step_time_s"), "staleness": record["staleness"].value, "epochs": epochs,
            "time_s": spent, "accuracy": record.value("test_accuracy"),
        })  # fmt: skip
    results = runner.results(settings, rows={"runs": runs}, curves=curves, notes=notes)
    return replace(results, rows={**results.rows, **predictions(results)})


def predictions(results: Results) -> dict[str, list[Row]]:
    settings = results.settings
    return {
        **of_optimus(settings["optimus"]),
        **on_device(settings["device"]),
        **forecasts(results.rows["runs"], settings),
    }


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, asked = results.rows, results.settings["optimus"]
    (epochs, low, high), real = asked["epochs"], mean(asked["real_epochs"])
    trained = [row for row in rows["runs"] if row["time_s"] is not None]
    stale, several = matching(trained, method=ASYNCHRONOUS), [row for row in trained if row["method"] != SINGLE]
    alone, last = _alone(rows["runs"]), max(stale, key=lambda row: row["epochs"])
    ratios = [row["time_s"] / _predicted(rows, row)["time_s"] for row in several]
    own = [_own_s(rows, row, alone) / row["time_s"] - 1 for row in stale]
    inside = [_predicted(rows, row)["low"] <= row["time_s"] <= _predicted(rows, row)["high"] for row in several]
    a0, a1, a2, a3 = (row["value"] for row in rows["coefficients"])
    return {
        "epochs": {"predicted": epochs, "low": low, "high": high, "either_way": high / epochs, "real": real, "later": real / epochs},
        "best": {f"at_{batch}": _best(rows, batch) for batch in asked["batches"]},
        "lost": ends([at["lost"] for b in asked["batches"] for at in _best(rows, b).values() if at["series"] != ALL_REDUCE]),
        "fit": {"pairs": len(rows["points"]), **{of: float(np.mean([abs(r[of]) for r in rows["points"] if r[of] is not None]))
                                                 for of in ("error", "left_out")}},
        "coefficients": {row["name"]: {end: 1e3 * row[end] for end in ("value", "low", "high")} for row in rows["coefficients"]},
        "here": {key(f"on {name}"): _fastest(own) for name, own in _by_series(_alike(trained)).items()},
        "first": _fastest(_alike(trained)),
        "alone": alone,
        "last": last | {"times": last["epochs"] / _epochs_of_seed_0(rows["runs"])},
        "runs": {"inside": sum(inside), "of": len(inside), "own_off": float(np.mean(np.abs(own))), **ends(ratios)},
        "shared": {f"with_{row['workers']}": _predicted(rows, row)["steps_per_s"] / row["steps_per_s"]
                   for row in matching(rows["runs"], method=ALL_REDUCE)},
        "ahead": {key(f"on {name}"): _fastest(own) for name, own in grouped(rows["here"], "series").items()},
        "exact": SpeedModel(ASYNCHRONOUS, (a0, a1, a2, a3)).all_reduce().closed_form(),
        "device": {
            scaling: {f"n{row['workers']}": row | {"times": own[0]["time_s"] / row["time_s"]} for row in own}
            for scaling, own in grouped(rows["device"], "scaling").items()
        },
    }  # fmt: skip


def _best(rows: Mapping[str, list[Row]], batch: int) -> dict[str, Row]:
    """Return Optimus' ResNet-50 at the best number of workers of each series.

    `slower`: the time of the most workers over that of the best number. `lost`: the same ratio of their steps per second.
    """
    best = {}
    for row in matching(rows["optimus_best"], batch=batch):
        own = matching(rows["optimus"], batch=batch, series=row["series"])
        (at,), last = matching(own, workers=row["best"]), max(own, key=lambda one: one["workers"])
        ratios = {"slower": last["time_s"] / at["time_s"], "lost": last["steps_per_s"] / at["steps_per_s"]}
        best[key(f"on {row['series']}")] = {**at, **row, **ratios}
    return best


def _by_series(runs: Sequence[Row]) -> dict[str, list[Row]]:
    """Return runs by their servers; a single process is an all-reduce with one rank."""
    return {series_of(servers): own for servers, own in grouped(runs, "servers").items()}


def _alike(trained: Sequence[Row]) -> list[Row]:
    """Return runs with the same minibatches: of `single` only the first seed."""
    return [row for row in trained if row["method"] != SINGLE or row["run"] == f"{SINGLE}, seed 0"]


def _alone(runs: Sequence[Row]) -> float:
    """Return the epochs of a single process to the target."""
    return mean([row["epochs"] for row in matching(runs, method=SINGLE) if row["epochs"]])


def _epochs_of_seed_0(runs: Sequence[Row]) -> float:
    return next((row["epochs"] for row in matching(runs, run=f"{SINGLE}, seed 0") if row["epochs"]), math.nan)


def _predicted(rows: Mapping[str, list[Row]], run: Row) -> Row:
    return matching(rows["here"], series=series_of(run["servers"]), workers=run["workers"])[0]


def _own_s(rows: Mapping[str, list[Row]], run: Row, alone: float) -> float:
    """Return the predicted time with the real epochs of the run, so that the remaining error is one of speed."""
    return float(_predicted(rows, run)["time_s"] * run["epochs"] / alone)


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row["time_s"])


def _with_interval(row: Row, form: Callable[[float], str] = seconds) -> str:
    return f"{form(row['time_s'])} ({form(row['low'])} … {form(row['high'])})"


def _band(label: str, rows: Sequence[Row], scale: float = 1.0, keys: Sequence[str] = ("time_s", "low", "high"),
          color: str = "") -> Series:  # fmt: skip
    y, *ends = ([six_digits(row[name] / scale) for row in rows] for name in keys)
    low, high = ends or ([], [])
    return Series(label, "predicted", [row["workers"] for row in rows], y, low, high, color or COLORS.get(label, ""))


def blocks(results: Results) -> dict[str, Block]:
    rows, asked = results.rows, results.settings["device"]
    made = {
        "Time to 92 % against workers": Block(figure=_against_workers(results)),
        "The best number of workers": Block(_best_table(results)),
    }
    if rows["points"]:
        made["Steps per second of parameter servers here"] = _speeds(rows)
        made["Time to accuracy here"] = Block(_runs_table(rows), _times_here(rows))
        made["More workers, 4 servers"] = _more_workers(rows)
    made[f"All-reduce of {asked['network']} on {asked['device']}, predicted"] = _on_device(results)
    made["Its steps per second"] = Block(_optimus_speeds(rows))
    return made


def _against_workers(results: Results) -> Figure:
    """Return the time to the accuracy for each number of servers, with the predicted epochs and with those of real runs."""
    asked = results.settings["optimus"]
    rows = [r for r in matching(results.rows["optimus"], batch=asked["reference_batch"]) if r["series"] != ALL_REDUCE]
    titles = {
        "time_s": f"{asked['epochs'][0]:.1f} epochs, as predicted",
        "real_time_s": f"{mean(asked['real_epochs']):.1f} epochs, as real runs took",
    }
    panels = []
    for name, title in titles.items():
        series = [_band(label, own, 86400, (name,)) for label, own in grouped(rows, "series").items()]
        ticks = [1, *range(2, asked["workers"] + 1, 2)]
        panels.append(Lines("workers", "time to 92 %, days", series, from_zero=True, x_ticks=ticks, title=title))
    return Figure(panels)


def _best_table(results: Results) -> Table:
    rows, asked = results.rows, results.settings["optimus"]
    best = [row for batch in asked["batches"] for row in _best(rows, batch).values()]
    made = table(best, {
        "batch": "batch", "": "series", "steps": ("steps", "{:,.0f}".format), "best": "best",
        "closed form": lambda row: shown(row["exact"], "{:.2f}".format, "more are always faster"),
        "steps/s": ("steps_per_s", "{:.5f}".format), "time to 92 %": _with_interval,
        f"{asked['workers']} workers take": ("slower", "{:.2f} ×".format),
    })  # fmt: skip
    return Table(made.columns, made.rows, {0, *range(2, len(made.columns))})


def _optimus_speeds(rows: Mapping[str, list[Row]]) -> Table:
    by_series = {f"{series}, batch {batch}": own for (batch, series), own in grouped(rows["optimus"], "batch", "series").items()}  # fmt: skip
    body = [[str(at[0]["workers"]), *(f"{row['steps_per_s']:.5f}" for row in at)] for at in zip(*by_series.values(), strict=True)]  # fmt: skip
    return listed(["workers", *by_series], body, text=0)


def _speeds(rows: Mapping[str, list[Row]]) -> Block:
    points, series = rows["points"], []
    for servers, own in grouped(sorted(points, key=lambda row: (row["servers"], row["workers"])), "servers").items():
        name = series_of(servers)
        series.append(_band(name, matching(rows["here"], series=name), 1.0, ("steps_per_s", "f_low", "f_high")))
        w, f = ([row[of] for row in own] for of in ("workers", "steps_per_s"))
        series.append(Series(f"{name}, measured", "measured", w, f, color=COLORS[name]))
    columns: dict[str, Any] = {
        "workers": "workers", "servers": "servers", "steps/s": ("steps_per_s", "{:.1f}".format),
        "fitted": ("fitted", "{:.1f}".format), "error": ("error", _percents), "by all others": ("left_out", _percents),
    }  # fmt: skip
    return Block(table(points, columns, text=0), Figure([Lines("workers", "steps/s", series, from_zero=True)]))


def _percents(error: float | None) -> str:
    return shown(error, lambda share: minus(f"{100 * share:+.0f} %"), "")


def _times_here(rows: Mapping[str, list[Row]]) -> Figure:
    most, panels = max(r["workers"] for r in rows["runs"]), []
    reached_by = _by_series([row for row in rows["runs"] if row["time_s"] is not None])
    for name in distinct(rows["here"], "series"):
        if own := reached_by.get(name):
            forecast = [row for row in matching(rows["here"], series=name) if row["workers"] <= most]
            measured = Series("measured", "measured", [r["workers"] for r in own], [r["time_s"] for r in own])
            both = [_band("predicted", forecast, color=COLORS[name]), measured]
            label = f"{'ranks' if name == ALL_REDUCE else 'workers'}, {name}"
            panels.append(Lines(label, "time to accuracy, s", both, from_zero=True, x_ticks=range(1, most + 1)))
    return Figure(panels)


def _runs_table(rows: Mapping[str, list[Row]]) -> Table:
    alone, first = _alone(rows["runs"]), _epochs_of_seed_0(rows["runs"])

    def predicted(form: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda run: "–" if run["method"] == SINGLE or run["time_s"] is None else form(run)

    return table(rows["runs"], {
        "run": "run", "staleness": lambda run: shown(run["staleness"], "{:.2f}".format, ""),
        "steps/s": ("steps_per_s", "{:.1f}".format), "epochs": lambda run: shown(run["epochs"], "{:.1f}".format),
        "of seed 0": lambda run: f"{run['epochs'] / first:.2f} ×" if run["epochs"] and first > 0 else "–",
        "time, s": lambda run: shown(run["time_s"], "{:.1f}".format),
        "predicted, s": predicted(lambda run: _with_interval(_predicted(rows, run), "{:.1f}".format)),
        "with its own epochs, s": predicted(lambda run: f"{_own_s(rows, run, alone):.1f}"),
    })  # fmt: skip


def _more_workers(rows: Mapping[str, list[Row]]) -> Block:
    here = [row for row in rows["here"] if row["series"] != series_of(1)]
    by_series, by_count = grouped(here, "series"), grouped(here, "workers")
    best = [_fastest(own) for own in by_series.values()]
    body = [[str(w), *(_with_interval(row) + " best" * (row in best) for row in own)] for w, own in by_count.items()]
    series = [_band(name, own) for name, own in by_series.items()]
    panel = Lines("workers", "time to accuracy, s", series, log_y=True, x_ticks=list(by_count))
    return Block(listed(["workers", *by_series], body, text=0), Figure([panel]))


def _on_device(results: Results) -> Block:
    rows, series = results.rows["device"], []
    for scaling, color in ((STRONG, "accent"), (WEAK, "teal")):
        series.append(_band(f"{scaling} scaling", matching(rows, scaling=scaling), 3600, color=color))
    one = {row["scaling"]: row["time_s"] for row in matching(rows, workers=rows[0]["workers"])}
    ticks = results.settings["device"]["counts"]
    columns: dict[str, Any] = {
        "scaling": "scaling", "devices": "workers", "batch": ("batch", "{:,}".format), "steps": ("steps", "{:,.0f}".format),
        "step time": ("step_time_s", seconds), "time to the target": _with_interval,
        "speed-up": lambda row: f"{one[row['scaling']] / row['time_s']:.2f} ×",
    }  # fmt: skip
    panel = Lines("devices", "time to the target, h", series, log_x=True, log_y=True, x_ticks=ticks)
    return Block(table(rows, columns), Figure([panel]))


_OPTIMUS = {
    "epochs": list(RESNET50_EPOCHS_TO_92), "real_epochs": list(RESNET50_REAL_EPOCHS_TO_92), "images": 50_000,
    "reference_batch": 128, "batches": [128, 40], "servers": [2, 4], "workers": 20,
}  # fmt: skip
_DEVICE = {
    "network": "resnet50-v1", "shape": [3, 224, 224], "classes": 1000, "device": "v100", "link": "ethernet-25g", "batch": 256,
    "counts": [1, 2, 4, 8, 16], "epochs": 90, "samples": 1_281_167,
}  # fmt: skip
_SMOKE = {
    "data": "digits", "network": "small-cnn", "samples": 400, "test_samples": None, "image_size": 8, "batch": 20,
    "learning_rate": 0.05, "momentum": 0.9, "epochs": 2, "target_accuracy": 0.2, "seeds": 1, "ranks": [],
    "pairs": [[2, 1]], "servers": [1, 2, 4], "workers": 8, "optimus": _OPTIMUS,
    "device": {**_DEVICE, "network": "lenet5", "shape": [1, 32, 32], "classes": 10},
}  # fmt: skip
_LAPTOP = {
    "data": "fashion-mnist", "network": "lenet5", "samples": 4000, "test_samples": 2000, "image_size": None, "batch": 32,
    "learning_rate": 0.01, "momentum": 0.9, "epochs": 16, "target_accuracy": 0.78, "seeds": 3, "ranks": [2, 4],
    "pairs": [[1, 1], [2, 1], [3, 1], [4, 1], [1, 2], [2, 2], [3, 2]], "servers": [1, 2, 4], "workers": 8,
    "optimus": _OPTIMUS, "device": _DEVICE,
}  # fmt: skip
_PAPER = {
    **_LAPTOP, "data": "cifar10", "network": "resnet20", "samples": None, "test_samples": None, "batch": 128,
    "learning_rate": 0.05, "epochs": 100, "target_accuracy": 0.85, "ranks": [2, 4, 8, 16],
    "pairs": [[w, p] for p in (1, 2, 4) for w in (1, 2, 4, 8, 16)], "workers": 20,
}  # fmt: skip

STUDY = Study(
    name="time-to-accuracy",
    question="How does the time to an accuracy depend on the workers, on 2 and 4 parameter servers and with all-reduce, and which number is best?",
    hypothesis="A synchronous step on p servers is shortest with sqrt(a0·M / (a2/p + a3)) workers. Asynchronous workers only add steps, "
    "until staleness costs more than they add. The traffic of an all-reduce does not grow with its ranks, so it gains longer",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)
