"""The fastest layout of a large model on a ladder of GPU counts, what each choice is worth there, and its regret on published runs.

A choice is worth the additional time of the fastest layout without it. The regret of a rule is the additional time of the layout that it
chooses, compared with the best measured one of the same group. Groups are those of vTrain (Bang et al. 2024, arXiv:2312.12391): layouts of
one GPT on 2 to 8 A100, if CHRONOGRAD_MEASURED names their folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.large.layout_asking import AskedLayouts, ask_layouts
from chronograd.large.search import LayoutOption, searched
from chronograd.large.search_answer import in_words
from chronograd.large.step import step_of
from chronograd.units import GIB, memory, percent, seconds
from chronograd_lab.common.large_runs import TimedRun, timed
from chronograd_lab.common.published_runs import MEASURED_VARIABLE, large_models_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

# Layouts without a choice, by the value that is fixed.
WITHOUT: dict[str, Mapping[str, Any]] = {
    "tensor parallelism": {"tensor": 1},
    "sequence parallelism": {"sequence": False},
    "pipeline stages": {"pipeline": 1},
    "context parallelism": {"context": 1},
    "recomputation": {"recompute": "none"},
    "sharding": {"zero_stage": 0},
    "sharded parameters": {"zero_stage": 1},
}
COLORS = dict(zip(WITHOUT, ("accent", "green", "vermilion", "purple", "orange", "brown", "grey"), strict=True))
FREE, RULE, RANDOM = "search", "rule of thumb", "random layout"
LEAST_LAYOUTS = 4  # of a group, so that a choice matters


# -- conduct: the ladder ---------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    is_there = large_models_folder() is not None
    notes = (
        []
        if is_there
        else [f"No published runs: {MEASURED_VARIABLE} names no folder that has them, so no regret was computed."]
    )
    return runner.results(settings, rows={"groups": [], **predictions(settings)}, notes=notes)


def predictions(settings: Settings) -> dict[str, list[Row]]:
    """Return the layouts of every count; the regret on published runs, too, if their folder is available."""
    ladder: list[Row] = []
    choices: list[Row] = []
    front: list[Row] = []
    for count in settings["counts"]:
        asked = ask_layouts(
            settings["model"],
            [],
            {name: settings[name] for name in ("batch", "sequence")},
            f"{count}x{settings['device']}",
        )
        search = searched(asked.setting, asked.fixed)
        best = search.best
        ladder.append(
            {**_row(count, best), "rule_s": search.rule.step_s, "slower": search.rule.step_s / best.step_s - 1, "rule": in_words(search.rule), "legal": search.legal,
             "fitting": search.fitting, "tokens": asked.setting.step_tokens}
        )  # fmt: skip
        choices += [
            {"gpus": count, "without": name, "worth": None if other is None else other / best.step_s - 1}
            for name, fixed in WITHOUT.items()
            for other in [_shortest_s(asked, fixed)]
        ]
        if count == settings["front_of"]:
            front = [_row(count, one) for one in search.front]
    folder = large_models_folder()
    groups = {} if folder is None else {"groups": groups_of(folder)}
    return {"ladder": ladder, "choices": choices, "front": front, **groups}


def _row(count: int, option: LayoutOption) -> Row:
    return {
        "gpus": count,
        "layout": in_words(option),
        "step_s": option.step_s,
        "bytes": option.used_bytes,
        **option.degrees,
    }


def _shortest_s(asked: AskedLayouts, fixed: Mapping[str, Any]) -> float | None:
    """Return the shortest step with some values fixed; None if no such layout fits."""
    try:
        return searched(asked.setting, {**asked.fixed, **fixed}).best.step_s
    except InputError:
        return None


# -- conduct: published runs -------------------------------------------------------------------------------


def groups_of(folder: Path) -> list[Row]:
    """Return a row for each of vTrain's groups: its size, and the regret of each rule. Equal layouts are averaged."""
    runs = [run for run in timed(folder) if run.file == "vtrain"]
    predicted = {run.name: step_of(run.setting, run.software).step_s for run in runs}
    rules: dict[str, Callable[[TimedRun], Any]] = {
        FREE: lambda run: predicted[run.name],
        RULE: lambda run: (-run.setting.data, -run.setting.micro_batch),
        RANDOM: lambda run: 0,
    }
    by_group: dict[str, list[TimedRun]] = {}
    for run in runs:
        by_group.setdefault(run.group, []).append(run)
    return [
        {"group": name, "gpus": group[0].setting.ranks, "layouts": len(group),
         **{rule: regret(group, key) for rule, key in rules.items()}}
        for name, group in by_group.items()
        if len(group) >= LEAST_LAYOUTS
    ]  # fmt: skip


def regret(group: Sequence[TimedRun], key: Callable[[TimedRun], Any]) -> float:
    """Return the mean additional time of the runs with the least key, over that of the fastest run."""
    least = min(map(key, group))
    chosen = [run.measured_s for run in group if key(run) == least]
    return statistics.fmean(chosen) / min(run.measured_s for run in group) - 1


# -- page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    ladder, groups = results.rows["ladder"], results.rows["groups"]
    worth = {name.replace(" ", "_"): _worth(own) for name, own in grouped(results.rows["choices"], "without").items()}
    first, last = ladder[0], ladder[-1]
    return {
        "first": first,
        "last": last,
        "faster": first["step_s"] / last["step_s"],
        "more": last["gpus"] / first["gpus"],
        "rule": {"worst": max(row["slower"] for row in ladder)},
        "worth": worth,
        "front": {
            "fast": results.rows["front"][0],
            "small": results.rows["front"][-1],
            "layouts": len(results.rows["front"]),
        },
        "groups": len(groups),
        "regret": {rule.replace(" ", "_"): _spread([row[rule] for row in groups]) for rule in (FREE, RULE, RANDOM)},
    }


def _worth(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a choice is worth at most, where that is, and on how many counts nothing fits without it."""
    known = [row for row in rows if row["worth"] is not None]
    most = max(known, key=lambda row: row["worth"], default=None)
    return {
        "most": 0.0 if most is None else most["worth"],
        "gpus": None if most is None else most["gpus"],
        "needed": len(rows) - len(known),
    }


def _spread(regrets: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(regrets)), "tenth": float(np.quantile(regrets, 0.9)), "most": float(np.max(regrets))}


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows
    shown = {
        "The fastest layout on more GPUs": _ladder(rows["ladder"]),
        "What each choice is worth": _choices(rows["choices"]),
        "Time against memory": _front(rows["front"]),
    }
    return shown | ({"Regret on published runs": _regrets(rows["groups"])} if rows["groups"] else {})


def _ladder(rows: Sequence[Row]) -> Block:
    ideal = [rows[0]["step_s"] * rows[0]["gpus"] / row["gpus"] for row in rows]
    counts = [row["gpus"] for row in rows]
    series = [
        Series("fastest layout", "predicted", counts, [row["step_s"] for row in rows], is_joined=True, color="accent"),
        Series(
            "rule of thumb", "predicted", counts, [row["rule_s"] for row in rows], is_joined=True, color="vermilion"
        ),
        Series("ideal", "predicted", counts, ideal, is_joined=True, color="grey"),
    ]
    return Block(
        table(rows, {
            "GPUs": ("gpus", str), "fastest layout": "layout", "step": ("step_s", seconds), "memory": ("bytes", memory),
            "tokens/s/GPU": lambda row: f"{row['tokens'] / row['step_s'] / row['gpus']:,.0f}",
            "rule of thumb takes longer by": ("slower", percent),
        }),
        Figure([Lines("GPUs", "s per step", series, log_x=True, log_y=True, x_ticks=counts)]),
    )  # fmt: skip


def _choices(rows: Sequence[Row]) -> Block:
    counts = list(grouped(rows, "gpus"))
    body = [
        [name, *("nothing fits" if row["worth"] is None else percent(row["worth"]) for row in own)]
        for name, own in grouped(rows, "without").items()
    ]
    series = [
        Series(
            name,
            "predicted",
            [row["gpus"] for row in known],
            [100 * row["worth"] for row in known],
            is_joined=True,
            color=COLORS[name],
        )
        for name, own in grouped(rows, "without").items()
        if (known := [row for row in own if row["worth"] is not None])
    ]
    return Block(
        listed(["without", *(f"{count} GPUs" for count in counts)], body),
        Figure([Lines("GPUs", "% longer", series, log_x=True, from_zero=True, x_ticks=counts)]),
    )


def _front(rows: Sequence[Row]) -> Block:
    series = [
        Series(
            "front", "predicted", [row["bytes"] / GIB for row in rows], [row["step_s"] for row in rows], is_joined=True
        )
    ]
    return Block(
        table(_apart(rows), {"step": ("step_s", seconds), "memory": ("bytes", memory), "layout": "layout"}),
        Figure([Lines("GiB", "s per step", series)]),
    )


def _apart(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a front that save at least 5 % of the memory of the one before."""
    kept = [rows[0]]
    for row in rows[1:]:
        if row["bytes"] < 0.95 * kept[-1]["bytes"]:
            kept.append(row)
    return kept


def _regrets(rows: Sequence[Row]) -> Block:
    sizes = {
        "all": rows,
        **{f"{gpus} GPUs": matching(rows, gpus=gpus) for gpus in sorted({row["gpus"] for row in rows})},
    }
    body = [
        [rule, size, str(len(own)), *(percent(value) for value in _spread([row[rule] for row in own]).values())]
        for size, own in sizes.items()
        for rule in (FREE, RULE, RANDOM)
    ]
    shares = [(place + 0.5) / len(rows) for place in range(len(rows))]
    series = [
        Series(
            rule,
            "measured",
            [100 * one for one in sorted(row[rule] for row in rows)],
            shares,
            is_joined=True,
            color=color,
        )
        for rule, color in ((FREE, "accent"), (RULE, "vermilion"), (RANDOM, "grey"))
    ]
    return Block(
        listed(["rule", "groups on", "groups", "mean regret", "worst tenth", "worst"], body),
        Figure([Lines("regret, %", "share of groups", series, from_zero=True)]),
    )


_LAPTOP: dict[str, Any] = {
    "model": "llama-3-70b", "device": "h100", "batch": 1024, "sequence": 8192, "counts": [32, 64, 128, 256, 512, 1024],
    "front_of": 64,
}  # fmt: skip
_SMOKE = {**_LAPTOP, "model": "llama-3-8b", "counts": [8, 16], "batch": 64, "front_of": 8}

STUDY = Study(
    name="layouts",
    question="Which layout of a large model is the fastest, and what is each choice worth?",
    hypothesis="Sharding alone is the fastest on few GPUs. On many, tensor parallelism and a pipeline pay, because each GPU has few sequences. "
    "A search beats the rule of thumb",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predictions(results.settings),
)
