"""Staleness: what a simulator of asynchronous SGD says, and what learners on parameter servers counted.

W. Zhang et al., Staleness-aware async-SGD, arXiv 1511.05950; S. Dutta et al., Slow and stale gradients, AISTATS 2018.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.backends import parameter_server
from chronograd.figure import Figure, Lines, Role, Series
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.simulate.simulations import panel
from chronograd.simulate.staleness import NS, Duration, Learner, Updates, of_pushes, simulate
from chronograd.units import percent
from chronograd.words import how_many
from chronograd_lab.common.arms import job_of
from chronograd_lab.common.parameter_servers import (
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
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching, plural, upper
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, table

EXERCISE = ((1.0, 2.0, 3.0, 4.0), (2.5, 5.0))
FIXED, EXPONENTIAL = "fixed", "exponential"


# -- what is run -----------------------------------------------------------------------------------


def job(settings: Settings, learners: int, servers: int) -> Job:
    """One epoch, within which learners do not meet."""
    parts = {
        "cluster": {"device": "cpu", "count": learners, "threads": 1}, "communication": {"servers": servers},
        "backend": "parameter_server",
    }  # fmt: skip
    network, recipe = settings["network"], "sgd-momentum"
    return job_of(settings, network, parts=parts, recipe=recipe, momentum=0.0, learning_rate=0.01, epochs=1)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine to itself, and a learner one core
    rows: dict[str, list[Row]] = {"alike": _alike(settings), "softsync": _softsync(settings), "slow": _slow(settings)}
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


def _runs(runner: StudyRunner, settings: Settings) -> dict[str, RunDir]:
    """Runs by name, such as `4 learners, 1 server, one slow`."""
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
    """Whether learners may be on other machines."""
    return bool(os.environ.get("RAY_ADDRESS"))


# -- simulated -------------------------------------------------------------------------------------


def _alike(settings: Settings) -> list[Row]:
    """Learners alike, by how their times to compute are distributed. Fixed ones start together and never part."""
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
    """One learner that takes so many times as long as each other; all take an exponential time."""
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


def page(results: Results) -> Answer:
    sections = [_exercise_section(results), _alike_section(results), _softsync_section(results), _slow_section(results)]
    alike = _means(_shares(results, EXPONENTIAL))
    most = max(alike)
    highlights = [
        Highlight(
            f"mean staleness of {how_many(most, 'learners')}, simulated", f"{alike[most]:.2f}", "exponential times"
        )
    ]
    if results.rows.get("runs"):
        sections += [_counted_section(results), _rate_section(results), _picture_section(results)]
        run = max(results.rows["runs"], key=lambda row: row["learners"])
        told = f"{run['run']}; simulated {run['mean_with_gap']:.2f}"
        highlights.append(Highlight("mean staleness counted", f"{run['mean']:.2f}", told))
    return STUDY.answer(results, sections, highlights)


def _exercise_section(results: Results) -> Section:
    found = _updates(results.curves["exercise"])
    rows = zip(found.applied_ns / NS, found.learner, found.index, found.update, found.staleness, strict=True)
    body = [
        [f"{at:g}", f"{index} of learner {learner}", str(update - 1 - stale), str(update - 1), str(stale)]
        for at, learner, index, update, stale in rows
    ]
    told = " and ".join(f"learner {one} has {', '.join(map(str, found.of_learner(one)))}" for one in (1, 2))
    fifth = of_pushes([(*EXERCISE[0], EXERCISE[1][-1]), EXERCISE[1]]).of_learner(2)[-1]
    return Section(
        "Two learners, by hand",
        f"{upper(told)}; the mean is {found.mean:.2f}. Did learner 1 push at {EXERCISE[1][-1]:g} s too, it "
        f"would come first, and the last gradient of learner 2 would have {fifth}.",
        intro="Each pulls as it has pushed; both start from version 0 at time 0. At one instant learners act in the order of "
        "their numbers, each its push and then its pull.",
        figure=Figure([panel(found, 2)]),
        table=Table(["time, s", "gradient", "version read", "version before", "staleness"], body, {0, 2, 3, 4}),
    )


def _shares(results: Results, times: str) -> dict[int, dict[int, float]]:
    """By number of simulated learners alike, the share of each staleness."""
    by_learners = grouped(matching(results.rows["alike"], times=times), "learners")
    return {n: {row["staleness"]: row["share"] for row in own} for n, own in by_learners.items()}


def _means(shares: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    return {n: sum(staleness * share for staleness, share in own.items()) for n, own in shares.items()}


def _alike_section(results: Results) -> Section:
    by_fixed, by_random = (_shares(results, times) for times in (FIXED, EXPONENTIAL))
    fixed, random = _means(by_fixed), _means(by_random)
    most = max(fixed)
    shown = range(4 * most)
    percents = [100 * by_random[most].get(s, 0.0) for s in shown]
    shares = [
        Series(EXPONENTIAL, "predicted", list(shown), percents, color="teal"),
        Series("geometric", "reference", list(shown), [100 / most * (1 - 1 / most) ** s for s in shown]),
    ]
    means = [
        Series(f"{times} times", "predicted", list(of), list(of.values()), color=color, is_scatter=True)
        for times, of, color in ((FIXED, fixed, "accent"), (EXPONENTIAL, random, "teal"))
    ]
    means.append(Series("learners − 1", "reference", list(fixed), [n - 1 for n in fixed]))
    columns: dict[str, Any] = {
        "learners": str, "mean, fixed": lambda n: f"{fixed[n]:.3f}", "mean, exponential": lambda n: f"{random[n]:.3f}",
        "most, fixed": lambda n: str(max(by_fixed[n])), "most, exponential": lambda n: str(max(by_random[n])),
    }  # fmt: skip
    worst = max(abs(of[n] / (n - 1) - 1) for of in (fixed, random) for n in of if n > 1)
    stuck = 100 * by_fixed[most].get(most - 1, 0.0)
    return Section(
        "How staleness grows with learners",
        f"The mean is learners − 1 within {100 * worst:.2f} %, whatever the times are. Of {how_many(most, 'learners')} {stuck:.1f} % of "
        f"gradients have {most - 1} exactly if their times are fixed; if they are exponential {100 * by_random[most][0]:.1f} % "
        f"have 0, and the stalest {max(by_random[most])}.",
        intro="Simulated: learners alike, who compute for a second in the mean; pull and push take no time. Between two "
        "gradients of one learner each of the others makes one in the mean. With exponential times the next update is any "
        "learner's alike, so staleness is geometric.",
        figure=Figure([Lines("learners", "mean staleness, updates", means, x_ticks=list(fixed)),
                       Lines(f"staleness with {how_many(most, 'learners')}, updates", "share of updates, %", shares)]),
        table=table(fixed, columns, text=0),
    )  # fmt: skip


def _softsync_section(results: Results) -> Section:
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
    told = ", ".join(f"{row['mean']:.2f} for n = {row['n']}" for row in rows)
    return Section(
        "n-softsync",
        f"Mean staleness is about n: {told}.",
        intro=f"{how_many(learners, 'learners')} with exponential times; an update takes {learners} / n gradients in, and learners do not "
        "wait for it. So a version is made less often, and the same others make fewer of them meanwhile.",
        figure=Figure([Lines("n", "mean staleness, updates", series, x_ticks=ns)]),
        table=table(rows, columns, text=0),
    )


def _slow_section(results: Results) -> Section:
    rows, learners = results.rows["slow"], results.settings["slow_learners"]
    factors = [row["factor"] for row in rows]
    series = [
        Series(label, "predicted", factors, [row[key] for row in rows], color=color)
        for label, key, color in (("the slow one", "slow", "vermilion"), ("each other", "others", "teal"))
    ]
    series.append(Series("all: learners − 1", "reference", factors, [learners - 1] * len(rows)))
    columns: dict[str, Any] = {
        "times as slow": ("factor", "{:g}".format), "the slow one": ("slow", "{:.2f}".format),
        "factor × (learners − 1)": lambda row: f"{row['factor'] * (learners - 1):g}",
        "each other": ("others", "{:.2f}".format), "all": ("mean", "{:.2f}".format),
        "updates/s": ("updates_per_s", "{:.2f}".format),
        "gradients of the slow one": ("slow_share", percent),
    }  # fmt: skip
    last = rows[-1]
    return Section(
        "One slow learner",
        f"A learner that takes {last['factor']:g} times as long has {last['slow']:.1f} in the mean, the others "
        f"{last['others']:.1f}; over all gradients it stays {last['mean']:.2f}.",
        intro=f"One of {learners} learners takes so many times as long as each of the others. Nobody waits for it, so few "
        "gradients are its own, and those are very old.",
        figure=Figure([Lines("times as slow", "mean staleness, updates", series, from_zero=True, x_ticks=factors)]),
        table=table(rows, columns, text=0),
    )


def _counted_section(results: Results) -> Section:
    rows = results.rows["runs"]
    most = max(row["learners"] for row in rows)
    shown = next(row["run"] for row in rows if row["learners"] == most)
    series = []
    roles: dict[str, Role] = {AT_ONCE: "reference", WITH_GAP: "predicted", COUNTED: "measured"}
    stalest = {}
    for how, role in roles.items():
        counts = matching(results.rows["counts"], run=shown, how=how)
        stalest[how] = max(row["staleness"] for row in counts)
        x, y = zip(*((row["staleness"], 100 * row["share"]) for row in counts if row["share"] >= 0.001), strict=True)
        series.append(Series(how, role, list(x), list(y), is_joined=role == "measured"))
    several = [row for row in rows if row["learners"] > 1]
    columns: dict[str, Any] = {"run": "run"}
    keys = ("mean", "replayed", "mean_at_once", "mean_with_gap", "distance_at_once", "distance_with_gap")
    heads = (COUNTED, "replayed", AT_ONCE, WITH_GAP, "distance, at once", "distance, with the gap")
    columns |= {head: (key, "{:.2f}".format) for head, key in zip(heads, keys, strict=True)}
    columns["gap, share of pull and push"] = lambda row: (
        "–" if row["gap_s"] is None else f"{1e3 * row['gap_s']:.1f} ms, {100 * row['outside']:.0f} %"
    )
    fitted, others = several[0], several[1:]
    share = 100 * results.settings["paused"]
    is_slow = any("slow" in row["run"] for row in rows)
    slow = f" A slow learner is stopped for {share:.0f} % of the time." if is_slow else ""
    off = [100 * abs(row["mean_with_gap"] / row["mean"] - 1) for row in others]
    over = np.mean([100 * (row["mean_at_once"] / row["mean"] - 1) for row in several])
    told = f", and the other runs are {np.median(off):.0f} % off in the median, {max(off):.0f} % at most" if off else ""
    apart = [float(np.mean([row[f"distance_{how}"] for row in several])) for how in ("at_once", "with_gap")]
    return Section(
        "Simulated, and counted on parameter servers",
        f"A simulated learner that reads at once, as it has pushed, is {over:.0f} % too stale, with learners − 1 updates: really "
        f"weights are read some time after a push. With {100 * fitted['outside']:.0f} % of pull and push before the read or after the update, as in "
        f"the run of {fitted['run']}, its mean is {fitted['mean_with_gap']:.2f} ({fitted['mean']:.2f} counted){told}. "
        f"The distance is {apart[0]:.2f} in the mean without the gap, {apart[1]:.2f} with it.",
        intro="Each run's own times to pull, compute and push are given to the simulator as samples. Replayed: pushes at the "
        "times of its updates, each learner pulling at once. The gap is the time from a learner's update until weights are "
        "read for its next, in which others' updates do not make it stale: an answer and a request under way, and idling. "
        f"Distance is total variation: the share of updates with another staleness.{slow}",
        figure=Figure([Lines(f"staleness, {shown}, updates", "share of updates, %", series, from_zero=True)]),
        caption=_stall_told(next(row for row in rows if row["run"] == shown), stalest),
        table=table(rows, columns),
    )


def _stall_told(row: Row, stalest: Mapping[str, int]) -> str:
    told = f"Counted, the stalest gradient of {row['run']} has {stalest[COUNTED]}; simulated with the gap, {stalest[WITH_GAP]}. "
    if row["learners_stalled"] > 1:
        told += (
            f"The longest cycle took {row['longest_cycle_s']:.2f} s, and {row['learners_stalled']} of {row['learners']} learners had "
            "their longest at that time: everything stood still together, while in the simulation, which draws every time on "
            "its own, others go on."
        )
    return told.strip()


def _rate_section(results: Results) -> Section:
    rows = results.rows["runs"]
    one = next((row for row in rows if row["learners"] == 1), None)
    ms = {f"{part.removesuffix('_s')}, ms": (part, lambda s: f"{1e3 * s:.1f}") for part in (*PARTS, "idle_s")}
    columns: dict[str, Any] = {
        "run": "run", **ms, "updates/s": ("updates_per_s", "{:.1f}".format),
        "simulated": ("updates_per_s_at_once", "{:.1f}".format),
        "one learner's × learners": lambda row: f"{one['updates_per_s'] * row['learners']:.1f}" if one else "–",
    }  # fmt: skip
    excess = [100 * (row["updates_per_s_at_once"] / row["updates_per_s"] - 1) for row in rows]
    most, grown = max(rows, key=lambda row: row["learners"]), ""
    if one and most is not one:
        times = most["learners"] * one["updates_per_s"] / most["updates_per_s"]
        grown = (
            f" A cycle, though, takes {times:.1f} times as long with {most['run']} as with one: instead of "
            f"{most['learners'] * one['updates_per_s']:.0f} updates a second {most['updates_per_s']:.0f} are made, which a "
            "simulator has to be told."
        )
    return Section(
        "Updates per second",
        f"From its own pulls, computations and pushes a run is simulated {np.mean(excess):.1f} % too fast in the mean, by what "
        f"learners are idle.{grown}",
        table=table(rows, columns),
    )


def _shown(rows: Sequence[Row]) -> Row:
    """The run that is drawn: of most learners, and one with a slow learner if there is."""
    return max(rows, key=lambda row: (row["learners"], "slow" in row["run"]))


def _picture_section(results: Results) -> Section:
    rows = results.rows["runs"]
    shown = _shown(rows)
    slowest = ""
    if "slow" in shown["run"]:
        slowest = (
            f" Its last learner, the slow one, has {shown['last_learner']:.1f} in the mean; simulated "
            f"{shown['last_learner_with_gap']:.1f}."
        )
    first = _updates(results.curves[shown["run"]])
    return Section(
        "A run over time",
        f"These {how_many(len(first.update), 'updates')} of {shown['run']} have {first.mean:.2f} in the mean, all of the run "
        f"{shown['mean']:.2f}.{slowest}",
        intro="As its learners told it, drawn as if weights were read when a pull begins and updated when a push ends; between "
        "bars a learner is idle.",
        figure=Figure([panel(first, shown["learners"], role="measured")]),
    )


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
    question="How stale are gradients of asynchronous SGD, and does a simulator say what parameter servers count?",
    hypothesis="With n learners the mean is n − 1 updates, whatever their speeds and spread; with n-softsync it is about n; "
    "a slow learner's gradients are as much staler as it is slower; and what servers count is what a simulator says "
    "that is given the durations",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)
