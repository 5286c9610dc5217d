"""Staleness: a simulator of asynchronous SGD, compared with counts of learners on parameter servers.

W. Zhang et al., Staleness-aware async-SGD, arXiv 1511.05950; S. Dutta et al., Slow and stale gradients, AISTATS 2018.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.backends import parameter_server
from chronograd.figure import Figure, Lines, Role, Series
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.simulate.simulations import panel
from chronograd.simulate.staleness import NS, Duration, Learner, Updates, of_pushes, simulate
from chronograd.units import percent
from chronograd.words import how_many
from chronograd_lab.common.arms import job_of
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, plural
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, table
from chronograd_lab.common.written import Block, key
from chronograd_lab.studies.staleness.parameter_servers import (
    AT_ONCE,
    COLUMNS,
    COUNTED,
    PARTS,
    WITH_GAP,
    compared,
    lines_of,
    paused,
    shares_of,
    timeline,
)

EXERCISE = ((1.0, 2.0, 3.0, 4.0), (2.5, 5.0))
FIXED, EXPONENTIAL = "fixed", "exponential"


# -- runs ------------------------------------------------------------------------------------------


def job(settings: Settings, learners: int, servers: int) -> Job:
    """Return a job of one epoch, within which learners do not synchronise."""
    parts = {
        "cluster": {"device": "cpu", "count": learners, "threads": 1}, "communication": {"servers": servers},
        "backend": "parameter_server",
    }  # fmt: skip
    network, recipe = settings["network"], "sgd-momentum"
    return job_of(settings, network, parts=parts, recipe=recipe, momentum=0.0, learning_rate=0.01, epochs=1)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine, and each learner a core
    rows = predictions(settings)
    curves = {"exercise": _columns(of_pushes(EXERCISE))}
    notes = []
    is_there, why_not = parameter_server.available()
    if is_there:
        lines = {name: lines_of(run) for name, run in _runs(runner, settings).items()}
        rows["runs"], rows["counts"] = compared(lines, settings["updates"])
        shown = _shown(rows["runs"])["run"]
        curves[shown] = _columns(timeline(lines[shown]))
        if _is_elsewhere() and settings["one_slow"]:
            notes.append("No learner was slowed down: those of RAY_ADDRESS may be on other machines.")
    else:
        notes.append(f"Nothing was counted on parameter servers: {why_not}.")
    return runner.results(settings, rows=rows, curves=curves, notes=notes)


def predictions(settings: Settings) -> dict[str, list[Row]]:
    return {"alike": _alike(settings), "softsync": _softsync(settings), "slow": _slow(settings)}


def _runs(runner: StudyRunner, settings: Settings) -> dict[str, RunDir]:
    """Return runs by name, such as `4 learners, 1 server, one slow`."""
    runs: dict[str, RunDir] = {}
    for servers in settings["servers"]:
        for learners in settings["learners"]:
            name = _name(learners, servers)
            runs |= runner.train({name: job(settings, learners, servers)})
    for learners in [] if _is_elsewhere() else settings["one_slow"]:
        name = f"{_name(learners, 1)}, one slow"
        with paused(runner.path(name), learners - 1, settings["paused"]):
            runs |= runner.train({name: job(settings, learners, 1)})
    return runs


def _name(learners: int, servers: int) -> str:
    return f"{plural(learners, 'learner')}, {plural(servers, 'server')}"


def _is_elsewhere() -> bool:
    """Return whether learners may be on other machines."""
    return bool(os.environ.get("RAY_ADDRESS"))


# -- simulated -------------------------------------------------------------------------------------


def _alike(settings: Settings) -> list[Row]:
    """Simulate equal learners, by the distribution of their compute times. With fixed times they start together and stay in
    step.
    """
    rows = []
    for kind in (FIXED, EXPONENTIAL):
        for learners in settings["simulated_learners"]:
            found = simulate([Learner(Duration(kind, (1.0,)))] * learners, settings["updates"])
            shares = shares_of(found.staleness)
            rows += [{"times": kind, "learners": learners, "staleness": s, "share": p} for s, p in shares.items()]
    return rows


def _softsync(settings: Settings) -> list[Row]:
    learners, rows = settings["softsync_learners"], []
    for n in settings["softsync"]:
        alike = [Learner(Duration(EXPONENTIAL, (1.0,)))] * learners
        found = simulate(alike, settings["updates"], learners // n)
        most = int(found.staleness.max())
        rows.append({"n": n, "gradients_per_update": learners // n, "mean": found.mean, "most": most})
    return rows


def _slow(settings: Settings) -> list[Row]:
    """Simulate one learner that is slower than the others by a factor; all compute times are exponential."""
    learners, rows = settings["slow_learners"], []
    for factor in settings["slow_factors"]:
        slow = [Learner(Duration(EXPONENTIAL, (s,))) for s in (*[1.0] * (learners - 1), float(factor))]
        found = simulate(slow, settings["updates"])
        stale = found.of_learner(learners)
        share = len(stale) / len(found.staleness)
        others = (found.staleness.sum() - stale.sum()) / (len(found.staleness) - len(stale))
        rows.append(
            {"factor": factor, "slow": float(stale.mean()), "others": float(others), "mean": found.mean,
             "updates_per_s": found.updates_per_s, "slow_share": share}
        )  # fmt: skip
    return rows


def _columns(updates: Updates) -> dict[str, list[float | None]]:
    return {name: getattr(updates, name).tolist() for name in COLUMNS}


def _updates(columns: Mapping[str, Sequence[float | None]]) -> Updates:
    return Updates(**{name: np.array(columns[name], dtype=np.int64) for name in COLUMNS}, num_waiting=0)


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, exercise = results.rows, _updates(results.curves["exercise"])
    fixed, random = (_shares(results, times) for times in (FIXED, EXPONENTIAL))
    most, slow, softsync = max(fixed), rows["slow"][-1], {f"n_{row['n']}": row["mean"] for row in rows["softsync"]}
    several = [row for row in rows["runs"] if row["learners"] > 1]
    off = [abs(row["mean_with_gap"] / row["mean"] - 1) for row in several[1:]]
    drawn = _shown(rows["runs"])["run"]
    return {
        "exercise": {"mean": exercise.mean, "tied": of_pushes([(*EXERCISE[0], EXERCISE[1][-1]), EXERCISE[1]]).of_learner(2)[-1],
                     **{f"of_{one}": ", ".join(map(str, exercise.of_learner(one))) for one in (1, 2)}},
        "alike": {"mean": _mean(random[most]), "fixed": fixed[most][most - 1], "fresh": random[most][0], "stalest": max(random[most]),
                  "off": max(abs(_mean(of[n]) / (n - 1) - 1) for of in (fixed, random) for n in of if n > 1)},
        "softsync": softsync,
        "slow": slow,
        "runs": {key(f"run {row['run']}"): row for row in rows["runs"]},
        "first": several[0],
        "off": {"median": float(np.median(off)), "most": max(off)},
        "too_stale": _mean_of(several, lambda row: row["mean_at_once"] / row["mean"] - 1),
        "distance": {how: float(np.mean([row[f"distance_{how}"] for row in several])) for how in ("at_once", "with_gap")},
        "too_fast": _mean_of(rows["runs"], lambda row: row["updates_per_s_at_once"] / row["updates_per_s"] - 1),
        "stalest": {key(how): max(distinct(rows["counts"], "staleness", run=_counted_run(results), how=how))
                    for how in (COUNTED, WITH_GAP)},
        "drawn": {"mean": _updates(results.curves[drawn]).mean, "updates": len(results.curves[drawn]["update"])},
    }  # fmt: skip


def _mean_of(rows: Sequence[Row], value: Callable[[Row], float]) -> float:
    return float(np.mean([value(row) for row in rows]))


def blocks(results: Results) -> dict[str, Block]:
    made = {
        "Two learners, by hand": _exercise(results),
        "How staleness grows with learners": _grows(results),
        "n-softsync": _by_softsync(results),
        "One slow learner": _by_factor(results),
    }
    if results.rows.get("runs"):
        shown = _shown(results.rows["runs"])
        drawn = panel(_updates(results.curves[shown["run"]]), shown["learners"], role="measured")
        made["Simulated, and counted on parameter servers"] = _counted(results)
        made["Updates per second"] = Block(_rates(results.rows["runs"]))
        made["A run over time"] = Block(figure=Figure([drawn]))
    return made


def _exercise(results: Results) -> Block:
    found = _updates(results.curves["exercise"])
    rows = zip(found.applied_ns / NS, found.learner, found.index, found.update, found.staleness, strict=True)
    body = [
        [f"{at:g}", f"{index} of learner {learner}", str(update - 1 - stale), str(update - 1), str(stale)]
        for at, learner, index, update, stale in rows
    ]
    columns = ["time, s", "gradient", "version read", "version before", "staleness"]
    return Block(Table(columns, body, {0, 2, 3, 4}), Figure([panel(found, 2)]))


def _shares(results: Results, times: str) -> dict[int, dict[int, float]]:
    """Return the share of each staleness, by number of simulated equal learners."""
    by_learners = grouped(matching(results.rows["alike"], times=times), "learners")
    return {n: {row["staleness"]: row["share"] for row in own} for n, own in by_learners.items()}


def _mean(shares: Mapping[int, float]) -> float:
    return sum(staleness * share for staleness, share in shares.items())


def _grows(results: Results) -> Block:
    fixed, random = (_shares(results, times) for times in (FIXED, EXPONENTIAL))
    learners, most = list(fixed), max(fixed)
    shown = list(range(4 * most))
    means = [
        Series(f"{times} times", "predicted", learners, [_mean(of[n]) for n in learners], color=color, is_scatter=True)
        for times, of, color in ((FIXED, fixed, "accent"), (EXPONENTIAL, random, "teal"))
    ]
    means.append(Series("learners − 1", "reference", learners, [n - 1 for n in learners]))
    shares = [
        Series(
            EXPONENTIAL,
            "predicted",
            shown,
            [100 * random[most].get(s, 0.0) for s in shown],
            color="teal",
            is_scatter=True,
        ),
        Series("geometric", "reference", shown, [100 / most * (1 - 1 / most) ** s for s in shown]),
    ]
    columns: dict[str, Any] = {
        "learners": str, "mean, fixed": lambda n: f"{_mean(fixed[n]):.3f}", "mean, exponential": lambda n: f"{_mean(random[n]):.3f}",
        "most, fixed": lambda n: str(max(fixed[n])), "most, exponential": lambda n: str(max(random[n])),
    }  # fmt: skip
    panels = [
        Lines("learners", "mean staleness, updates", means, x_ticks=learners),
        Lines(f"staleness with {how_many(most, 'learners')}, updates", "share of updates, %", shares),
    ]
    return Block(table(fixed, columns, text=0), Figure(panels))


def _by_softsync(results: Results) -> Block:
    rows, learners = results.rows["softsync"], results.settings["softsync_learners"]
    ns = [row["n"] for row in rows]
    series = [
        Series("simulated", "predicted", ns, [row["mean"] for row in rows], is_scatter=True),
        Series("n", "reference", ns, ns),
    ]
    columns: dict[str, Any] = {
        "n": "n", "gradients per update": "gradients_per_update", "mean staleness": ("mean", "{:.3f}".format),
        "n (1 − 1 / learners)": lambda row: f"{(learners - 1) / row['gradients_per_update']:.3f}", "most": "most",
    }  # fmt: skip
    return Block(table(rows, columns, text=0), Figure([Lines("n", "mean staleness, updates", series, x_ticks=ns)]))


def _by_factor(results: Results) -> Block:
    rows, others = results.rows["slow"], results.settings["slow_learners"] - 1
    factors = [row["factor"] for row in rows]
    series = [
        Series(label, "predicted", factors, [row[name] for row in rows], color=color)
        for label, name, color in (("the slow one", "slow", "vermilion"), ("each other", "others", "teal"))
    ]
    series.append(Series("all: learners − 1", "reference", factors, [others] * len(rows)))
    columns: dict[str, Any] = {
        "times as slow": ("factor", "{:g}".format), "the slow one": ("slow", "{:.2f}".format),
        "factor × (learners − 1)": lambda row: f"{row['factor'] * others:g}",
        "each other": ("others", "{:.2f}".format), "all": ("mean", "{:.2f}".format),
        "updates/s": ("updates_per_s", "{:.2f}".format), "gradients of the slow one": ("slow_share", percent),
    }  # fmt: skip
    panel = Lines("times as slow", "mean staleness, updates", series, from_zero=True, x_ticks=factors)
    return Block(table(rows, columns, text=0), Figure([panel]))


def _counted_run(results: Results) -> str:
    """Return the first run with the most learners."""
    return str(max(results.rows["runs"], key=lambda row: row["learners"])["run"])


def _counted(results: Results) -> Block:
    shown, series = _counted_run(results), []
    roles: dict[str, Role] = {AT_ONCE: "reference", WITH_GAP: "predicted", COUNTED: "measured"}
    for how, role in roles.items():
        counts = [row for row in matching(results.rows["counts"], run=shown, how=how) if row["share"] >= 0.001]
        x, y = [row["staleness"] for row in counts], [100 * row["share"] for row in counts]
        series.append(Series(how, role, x, y, is_joined=role == "measured"))
    names = ("mean", "replayed", "mean_at_once", "mean_with_gap", "distance_at_once", "distance_with_gap")
    heads = (COUNTED, "replayed", AT_ONCE, WITH_GAP, "distance, at once", "distance, with the gap")
    columns: dict[str, Any] = {"run": "run"}
    columns |= {head: (name, "{:.2f}".format) for head, name in zip(heads, names, strict=True)}
    columns["gap, share of pull and push"] = lambda row: (
        "–" if row["gap_s"] is None else f"{1e3 * row['gap_s']:.1f} ms, {100 * row['outside']:.0f} %"
    )
    panel = Lines(f"staleness, {shown}, updates", "share of updates, %", series, from_zero=True)
    return Block(table(results.rows["runs"], columns), Figure([panel]))


def _rates(rows: Sequence[Row]) -> Table:
    one = next((row["updates_per_s"] for row in rows if row["learners"] == 1), None)
    ms = {f"{part.removesuffix('_s')}, ms": (part, lambda s: f"{1e3 * s:.1f}") for part in (*PARTS, "idle_s")}
    columns: dict[str, Any] = {
        "run": "run", **ms, "updates/s": ("updates_per_s", "{:.1f}".format),
        "simulated": ("updates_per_s_at_once", "{:.1f}".format),
        "one learner's × learners": lambda row: f"{one * row['learners']:.1f}" if one else "–",
    }  # fmt: skip
    return table(rows, columns)


def _shown(rows: Sequence[Row]) -> Row:
    """Return the run of the figure: one with the most learners, with a slow learner if possible."""
    return max(rows, key=lambda row: (row["learners"], "slow" in row["run"]))


_SMOKE = {
    "data": "digits", "network": "small-cnn", "samples": 400, "test_samples": None, "image_size": 8, "batch": 10,
    "learners": [2], "servers": [1], "one_slow": [], "paused": 0.5,
    "updates": 4000, "simulated_learners": [1, 2, 4], "softsync_learners": 4, "softsync": [1, 2, 4],
    "slow_learners": 4, "slow_factors": [1, 4],
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "network": "small-cnn", "samples": 20_000, "test_samples": 500, "image_size": 16, "batch": 32,
    "learners": [1, 2, 4], "servers": [1, 2], "one_slow": [4], "paused": 0.5,
    "updates": 200_000, "simulated_learners": [1, 2, 4, 8, 16], "softsync_learners": 8, "softsync": [1, 2, 4, 8],
    "slow_learners": 4, "slow_factors": [1, 2, 4, 8],
}  # fmt: skip
_PAPER = {
    **_LAPTOP, "network": "resnet20", "samples": None, "test_samples": None, "image_size": 32, "batch": 128,
    "learners": [1, 4, 10, 30], "one_slow": [30], "updates": 1_000_000, "simulated_learners": [1, 4, 10, 30],
    "softsync_learners": 30, "softsync": [1, 2, 15, 30], "slow_learners": 30,
}  # fmt: skip

STUDY = Study(
    name="staleness",
    question="How stale are gradients of asynchronous SGD, and does a simulator agree with the counts of parameter servers?",
    hypothesis="With n learners the mean is n − 1 updates, whatever their speeds and spread. With n-softsync it is about n. "
    "The staleness of a slow learner grows in proportion to its step time. A simulator with the measured durations "
    "agrees with the counts of servers",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predictions(results.settings),
)
