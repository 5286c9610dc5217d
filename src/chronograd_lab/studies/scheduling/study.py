"""Scheduling: six policies on three workloads, and what wrong forecasts cost them.

Y. Peng et al., Optimus, EuroSys 2018; J. Gu et al., Tiresias, NSDI 2019; A. Qiao et al., Pollux, OSDI 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, Role, Series
from chronograd.record import INTERVAL
from chronograd.schedule.events import Conditions, Timetable, simulate
from chronograd.schedule.jobs import ScheduledJob
from chronograd.schedule.policies import policy
from chronograd.schedule.timelines import timeline
from chronograd.units import seconds, whole_percent
from chronograd.units import signed as minus
from chronograd_lab.common.published_runs import measured_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, table
from chronograd_lab.common.written import Block, key
from chronograd_lab.studies.scheduling import cluster
from chronograd_lab.studies.scheduling.real_runs import HERE, SLURM, real_values, run_real, stays_of, timetable
from chronograd_lab.studies.scheduling.workloads import OPTIMUS, OWN, POLLUX, workload

# How each workload is run: Optimus decides every ten minutes, Pollux every minute; our runs are short.
CONDITIONS = {
    OPTIMUS: Conditions(resize_s=30, interval_s=600),
    POLLUX: Conditions(resize_s=30, interval_s=60),
    OWN: Conditions(resize_s=5, interval_s=10),
}
# The policies of the first sections, by name.
POLICIES = ("fair", "fifo", "optimus", "pollux", "srtf", "tiresias")
# Standard deviation of the logarithm over the mean size of an error.
SIGMA = math.sqrt(math.pi / 2)
WITHOUT_FORECAST = "fair"
WORKLOAD_COLORS = {OPTIMUS: "accent", POLLUX: "vermilion", OWN: "teal"}
ROLES: dict[str, Role] = {"measured": "measured", "simulated": "predicted"}
COLORS = {"optimus": "accent", "srtf": "teal", "pollux": "vermilion"}
# Mean completion in seconds that the authors' simulator gives for workload 6 of Pollux with jobs of all six applications. Source:
# simulator/README.md of petuum/adaptdl @de25dcc.
PUBLISHED = {"pollux": 2446, "tiresias": 3470, "optimus": 5302}


# -- runs ------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    notes = [
        f"The workload of {name} was left out: {why}." for name in settings["workloads"] if (why := _why_not(name))
    ]
    rows = _simulated(settings, {})
    if settings["real"]:
        rows["real"], left_out = run_real(runner.folder / "queues", settings["real"], runner.say)
        notes += left_out
    return runner.results(settings, rows=rows, notes=notes)


def _why_not(name: str) -> str:
    """Return why a workload is not available; empty if it is."""
    try:
        workload(name, 0, measured_folder())
    except InputError as why:
        return why.message
    return ""


def _simulated(settings: Settings, stored: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the simulated tables; of a workload that is not available, the stored rows."""
    rows: dict[str, list[Row]] = {"runs": [], "errors": [], "loads": []}
    for name in settings["workloads"]:
        if _why_not(name):
            for table_, own in rows.items():
                own += matching(stored.get(table_, []), workload=name)
            continue
        for seed in range(settings["seeds"]):
            for table_, more in _of_seed(name, seed, settings).items():
                rows[table_] += more
    jobs, pool = workload(OWN, 0)
    shown = simulate(jobs, pool, policy("optimus"), CONDITIONS[OWN])
    rows["stays"] = [{**vars(stay), "size": list(stay.size)} for stay in shown.stays]
    try:
        rows["cluster"] = cluster.rows(measured_folder())
    except InputError:
        rows["cluster"] = list(stored.get("cluster", []))
    return rows


def _of_seed(name: str, seed: int, settings: Settings) -> dict[str, list[Row]]:
    """Simulate one workload under all policies; with wrong forecasts and with other loads under those that forecast."""
    jobs, pool = workload(name, seed, measured_folder())
    some = (*COLORS, WITHOUT_FORECAST)

    def row(of: Sequence[ScheduledJob], policy_: str, **known: Any) -> Row:
        found = simulate(of, pool, policy(policy_), CONDITIONS[name], np.random.default_rng(seed))
        return {"workload": name, "policy": policy_, "seed": seed, **known, **_measures(found)}

    wrong = {error: [_wrong(job, error) for job in jobs] for error in settings["errors"]}
    denser = {load: [replace(job, arrival_s=job.arrival_s / load) for job in jobs] for load in settings["loads"]}
    return {
        "runs": [row(jobs, own, jobs=len(jobs)) for own in POLICIES],
        "errors": [row(of, own, error=error) for error, of in wrong.items() for own in some],
        "loads": [row(of, own, load=load) for load, of in denser.items() for own in some],
    }


def _wrong(job: ScheduledJob, error: float) -> ScheduledJob:
    """Return a job whose work and speed are predicted with errors of a mean size."""
    return replace(job, work_sigma=SIGMA * error, speed_sigma=SIGMA * error)


def _measures(found: Timetable) -> Row:
    return {
        "completion_s": float(found.completion_s.mean()),
        "p95_s": float(np.quantile(found.completion_s, 0.95)),
        "waiting_s": float(found.waiting_s.mean()),
        "makespan_s": found.makespan_s,
        "utilization": found.utilization,
        "restarts": float(found.restarts.mean()),
    }


# -- the page --------------------------------------------------------------------------------------


def relative(rows: Sequence[Row], own: str, to: str, measure: str = "completion_s") -> Row:
    """Return the geometric mean over seeds of a policy's measure over another's, with the 80 % interval of that mean."""
    by_seed = {name: {row["seed"]: row[measure] for row in matching(rows, policy=name)} for name in (own, to)}
    logs = np.log([by_seed[own][seed] / by_seed[to][seed] for seed in sorted(by_seed[own])])
    chosen = np.random.default_rng(0).integers(0, len(logs), (2000, len(logs)))
    low, high = np.exp(np.quantile(logs[chosen].mean(axis=1), INTERVAL))
    return {"ratio": float(np.exp(logs.mean())), "low": float(low), "high": float(high)}


def values(results: Results) -> dict[str, Any]:
    runs = results.rows["runs"]
    found: dict[str, Any] = {"slower": {}, "load": {}, "real": real_values(results.rows.get("real", []))}
    found["cluster"] = {row["policy"]: row for row in results.rows.get("cluster", [])}
    for name in distinct(runs, "workload"):
        own, place = matching(runs, workload=name), key(name.lower())
        found[place] = {
            p: {"completion": relative(own, p, WITHOUT_FORECAST), "makespan": relative(own, p, WITHOUT_FORECAST, "makespan_s"),
                "seconds": _mean(matching(own, policy=p), "completion_s"), "restarts": _mean(matching(own, policy=p), "restarts")}
            for p in POLICIES
        }  # fmt: skip
        found[place]["pollux"]["over"] = {p: relative(own, "pollux", p) for p in POLICIES}
        found["slower"][place] = _by(matching(results.rows["errors"], workload=name), "error")
        found["load"][place] = _by(matching(results.rows["loads"], workload=name), "load")
    return found


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _by(rows: Sequence[Row], setting: str) -> dict[str, Any]:
    """Return each policy's completion over fair shares, by a setting."""
    at = distinct(rows, setting)
    return {
        p: {key(f"at {x:g}"): relative(matching(rows, **{setting: x}), p, WITHOUT_FORECAST) for x in at} for p in COLORS
    }


def blocks(results: Results) -> dict[str, Block]:
    runs = results.rows["runs"]
    return {
        "Six policies": _policies(runs),
        "The published orders": _published(runs),
        "Wrong forecasts": _lines(results.rows["errors"], "error", "mean error of work and speed, %", 100),
        "When fairness costs little": _lines(
            results.rows["loads"], "load", "arrivals per hour, over the workload's", 1
        ),
        "Our own runs over time": Block(figure=Figure([timeline(_shown(results))])),
        **({"For real": _real(results.rows["real"])} if results.rows.get("real") else {}),
        **({"Compared with a real cluster": _cluster(results.rows["cluster"])} if results.rows.get("cluster") else {}),
    }


def _cluster(rows: Sequence[Row]) -> Block:
    """Return measured and simulated times of the published cluster, with the errors of its authors' simulator."""
    shown = list[Row]()
    for row in rows:
        for measure, label in (("completion", "mean completion"), ("makespan", "makespan")):
            shown.append({"policy": row["policy"], "measure": label, "measured": row[f"physical_{measure}_s"],
                          "simulated": row[f"{measure}_s"], "error": row[f"{measure}_error"],
                          "theirs": row[f"authors_{measure}_error"], "is_fitted": row["is_fitted"]})  # fmt: skip
    columns: dict[str, Any] = {
        "policy": "policy", "measure": "measure", "measured": ("measured", seconds), "simulated": ("simulated", seconds),
        "error": lambda row: _error(row["error"]), "authors' simulator": lambda row: _error(row["theirs"]),
        "pause of a start": lambda row: "fitted" if row["is_fitted"] else "checked",
    }  # fmt: skip
    return Block(table(shown, columns, text=2))


def _error(value: float) -> str:
    return minus(f"{100 * value:+.1f} %")


def _real(rows: Sequence[Row]) -> Block:
    """Return each job's real and simulated time, and both timelines of the first policy in each place."""
    panels = []
    for place, own in grouped(rows, "place").items():
        first = matching(own, policy=own[0]["policy"])
        for which, role in ROLES.items():
            lanes = timeline(timetable(first, which), role)
            panels.append(replace(lanes, x_label=f"{place}, {own[0]['policy']}, {which}: {lanes.x_label}"))
    columns: dict[str, Any] = {
        "place": "place", "policy": "policy", "job": "name", "measured": ("measured_s", seconds), "simulated": ("simulated_s", seconds),
        "error": lambda row: minus(f"{100 * row['error']:+.0f} %"), "restarts": "restarts",
        "weights of a plain run": lambda row: {None: "resized", True: "equal", False: "different"}[row["same_weights"]],
    }  # fmt: skip
    return Block(table(rows, columns, text=3), Figure(panels))


def _policies(runs: Sequence[Row]) -> Block:
    rows, series, places = [], [], list(range(len(POLICIES)))
    for name, color in WORKLOAD_COLORS.items():
        if own := matching(runs, workload=name):
            mine = [{"workload": name, "policy": p, **relative(own, p, WITHOUT_FORECAST)} for p in POLICIES]
            ratio, low, high = ([row[k] for row in mine] for k in ("ratio", "low", "high"))
            series.append(Series(name, "predicted", places, ratio, low, high, color=color, is_scatter=True))
            rows += [
                {**row, **{m: _mean(matching(own, policy=row["policy"]), m) for m in _measures_of(own)}} for row in mine
            ]
    panel = Lines(
        "policy",
        "mean completion, over fair shares",
        series,
        [Mark("y", 1, "fair shares")],
        log_y=True,
        x_ticks=places,
        x_names=POLICIES,
    )
    columns: dict[str, Any] = {
        "workload": "workload", "policy": "policy", "completion": ("completion_s", seconds), "over fair shares": _interval,
        "95 %": ("p95_s", seconds), "waiting": ("waiting_s", seconds), "makespan": ("makespan_s", seconds),
        "in use": ("utilization", whole_percent), "restarts of a job": ("restarts", "{:.1f}".format),
    }  # fmt: skip
    return Block(table(rows, columns, text=2), Figure([panel]))


def _measures_of(rows: Sequence[Row]) -> list[str]:
    return [name for name in rows[0] if name not in ("workload", "policy", "seed", "jobs")]


def _interval(row: Row) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f} … {row['high']:.2f})"


def _published(runs: Sequence[Row]) -> Block:
    rows = []
    own = matching(runs, workload=POLLUX)
    if own:
        for p, published in PUBLISHED.items():
            rows.append({"policy": p, "published": published, "here": _mean(matching(own, policy=p), "completion_s"),
                         "than": PUBLISHED["pollux"] / published, **relative(own, "pollux", p)})  # fmt: skip
    columns: dict[str, Any] = {
        "policy": "policy", "published, all six applications": ("published", seconds), "here, three": ("here", seconds),
        "Pollux over it, published": ("than", "{:.2f}".format), "here": _interval,
    }  # fmt: skip
    return Block(table(rows, columns))


def _lines(rows: Sequence[Row], name: str, label: str, scale: float) -> Block:
    """Return completion over fair shares against a setting, a panel for each workload."""
    panels, found = [], []
    for title, own in grouped(rows, "workload").items():
        series = []
        for p, color in COLORS.items():
            xs = distinct(own, name)
            ratios = [relative(matching(own, **{name: x}), p, WITHOUT_FORECAST) for x in xs]
            found += [{"workload": title, "policy": p, name: x, **r} for x, r in zip(xs, ratios, strict=True)]
            columns = {k: [r[k] for r in ratios] for k in ("ratio", "low", "high")}
            series.append(
                Series(
                    p,
                    "predicted",
                    [scale * x for x in xs],
                    columns["ratio"],
                    columns["low"],
                    columns["high"],
                    color=color,
                )
            )
        panels.append(Lines(label, "completion, over fair shares", series, title=title))
    columns_of: dict[str, Any] = {
        "workload": "workload", "policy": "policy", label: lambda row: f"{scale * row[name]:g}", "over fair shares": _interval,
    }  # fmt: skip
    return Block(table(found, columns_of, text=2), Figure(panels))


def _shown(results: Results) -> Timetable:
    """Return the timetable of the figure."""
    jobs, _ = workload(OWN, 0)
    stays = stays_of(results.rows["stays"])
    ended = np.array([max(stay.end_s for stay in stays if stay.index == i) for i in range(len(jobs))])
    none = np.zeros(len(jobs))
    return Timetable(jobs, ended, none, none, none, none, 1.0, stays)


_SMOKE = {"workloads": [OPTIMUS, OWN], "seeds": 2, "errors": [0.0, 0.5], "loads": [1.0], "real": {}}
_LAPTOP = {
    "workloads": [OPTIMUS, POLLUX, OWN], "seeds": 10, "errors": [0.0, 0.1, 0.3, 0.5], "loads": [0.25, 0.5, 1.0, 2.0],
    "real": {HERE: ["optimus", "fifo"], SLURM: ["optimus"]},
}  # fmt: skip

STUDY = Study(
    name="scheduling",
    question="Which scheduler ends jobs soonest, and what does it lose when its forecasts are wrong?",
    hypothesis="Optimus ends jobs 2.4 times sooner than fair shares, and Pollux 1.6 to 2 times sooner than Optimus and Tiresias. "
    "Errors of 15 % cost little of it",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: _simulated(results.settings, results.rows),
)
