"""Shared code of studies of agents: their jobs, the results of a run, curves over seeds, and significance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.job import Job, from_dict
from chronograd.record import Record
from chronograd_lab.common.arms import Arm, Curves, Trained, mean_curve, of_arm, train_arms
from chronograd_lab.common.finished import processor_time
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, processor_s, six_digits, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import listed
from chronograd_lab.common.written import Block, key

# Share of a run's last evaluations in its return. A single one says little about an agent that keeps changing.
LAST_SHARE = 0.25
# The agent from which studies remove parts, at two sizes.
_AGENT = {
    "algorithm": "dqn-2015", "clip_rewards": False, "update_every": 1, "evaluation_epsilon": 0.0, "epsilon_end": 0.05,
}  # fmt: skip
SMOKE = {
    "environment": "gymnasium:CartPole-v1", "solved_at": 475, "hidden": [16], "learning_rate": 0.001, "batch": 16,
    "epochs": 2, "seeds": 2,
    "agent": {**_AGENT, "steps_per_epoch": 100, "epsilon_steps": 100, "replay_size": 200, "replay_start": 20,
              "target_every": 10, "evaluation_episodes": 3},
}  # fmt: skip
LAPTOP = {
    **SMOKE, "hidden": [64, 64], "batch": 64, "epochs": 12, "seeds": 5,
    "agent": {**_AGENT, "update_every": 2, "steps_per_epoch": 1000, "epsilon_steps": 5000, "replay_size": 50_000, "replay_start": 500,
              "target_every": 200, "evaluation_episodes": 20},
}  # fmt: skip


def agent_job(settings: Settings, learning_rate: float | None = None, **changes: Any) -> Job:
    """Return a job of the environment, network and agent of the settings; `changes` apply to the agent."""
    return from_dict(
        {
            "task": "reinforcement",
            "network": {"name": "mlp", "options": {"hidden": list(settings["hidden"])}},
            "data": {"name": settings["environment"]},
            "training": {
                "recipe": "adam", "learning_rate": learning_rate or settings["learning_rate"], "batch": settings["batch"], "epochs": settings["epochs"],
                "checkpoint_every": settings["epochs"],
            },
            "reinforcement": {**settings["agent"], **changes},
        }
    )  # fmt: skip


def conduct(runner: StudyRunner, settings: Settings, arms: Mapping[str, Mapping[str, Any]]) -> Results:
    """Train the agent of each arm, a name and the arguments of its `agent_job`, from each seed.

    Settings without a `first_seed` start at seed 0.
    """
    runner.threads = 1  # networks of this size are no faster with more
    first = settings.get("first_seed", 0)
    seeds = range(first, first + settings["seeds"])
    compared = [Arm(name, agent_job(settings, **changes), {"agent": name}, seeds) for name, changes in arms.items()]
    trained = train_arms(runner, compared)
    rows = [row_of(one) for one in trained]
    curves = {one.name: returns_of(one.run.record()) for one in trained}
    return runner.results(settings, rows={"runs": rows}, curves=curves)


def returns_of(record: Record) -> dict[str, list[float | None]]:
    """Return frames, seconds, mean return, loss and largest |Q| of every evaluation."""
    columns = record.curves["training"].columns
    kept = [i for i, value in enumerate(columns["mean_return"]) if value is not None]
    names = ("frames", "seconds", "mean_return", "train_loss", "largest_value")
    return {name: [columns[name][i] for i in kept] for name in names if name in columns}  # older runs lack the last


def row_of(one: Trained) -> Row:
    """Return the results of a run as a row."""
    record = one.run.record()
    returns = [value or 0.0 for value in returns_of(record)["mean_return"]]
    last = returns[-max(1, round(LAST_SHARE * len(returns))) :]
    return {
        **one.arm.known,
        "seed": one.seed,
        "last_return": float(np.mean(last)),
        "worst_of_last": min(last),
        "best_return": record.value("best_return"),
        "frames": record.value("frames"),
        "seconds": record.value("training_time_s"),
        **processor_time(one.run),
        "updates": round(record.value("updates_per_s") * record.value("training_time_s")),
    }


def returns_table(rows: Sequence[Row]) -> Table:
    """Return a row per agent: the return over the last evaluations, the worst of them, the best of all; core time if known."""
    column, rows = _timed(rows)
    body = [
        [name, f"{spread(own, 'last_return'):.4g}", f"{spread(own, 'worst_of_last').mean:.4g}",
         f"{spread(own, 'best_return').mean:.4g}", str(len(own)), f"{spread(own, 'frames').mean:,.0f}",
         f"{spread(own, 'updates').mean:,.0f}", f"{spread(own, 'time_s').mean:.3g}"]
        for name, own in grouped(rows, "agent").items()
    ]  # fmt: skip
    columns = [
        "agent",
        "return at the end",
        "its worst evaluation",
        "best of all",
        "seeds",
        "frames",
        "updates",
        column,
    ]
    return listed(columns, body)


def _timed(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    """Return the rows with `time_s`, and its name: processor time, which does not grow with the load of other processes, if all
    rows have it; otherwise wall time.
    """
    times = [processor_s(row) for row in rows]
    name, times = ("seconds", [row["seconds"] for row in rows]) if None in times else ("seconds of a core", times)
    return name, [{**row, "time_s": time_s} for row, time_s in zip(rows, times, strict=True)]


def values(results: Results) -> dict[str, Any]:
    """Return each agent's return at the end and its time, the number of pairs whose returns differ significantly, and the time
    of one core that all runs took.
    """
    _, rows = _timed(results.rows["runs"])
    agents = grouped(rows, "agent")
    ends = {name: spread(own, "last_return") for name, own in agents.items()}
    times = {name: spread(own, "time_s") for name, own in agents.items()}
    differ = sum((one - other).is_seen for one, other in combinations(ends.values(), 2))
    each = {key(name): {"end": ends[name], "time": times[name]} for name in agents}
    total_s = sum(row["time_s"] for row in rows)
    return {**each, "pairs_that_differ": differ, "all_runs": {"count": len(rows), "core_s": total_s}}


def pairs_table(rows: Sequence[Row]) -> Table:
    """Return the difference of the returns of every two agents."""
    ends = {name: spread(own, "last_return") for name, own in grouped(rows, "agent").items()}
    pairs = [[one, other, f"{ends[one] - ends[other]:.0f}"] for one, other in combinations(ends, 2)]
    return listed(["one", "other", "return at the end, one less other"], pairs, text=2)


def paired_blocks(colors: Mapping[str, str]) -> Callable[[Results], dict[str, Block]]:
    """Return the sections of a study of agents that it compares in pairs."""
    return lambda results: {
        "Here": returns_block(results, colors),
        "Pairwise differences": Block(pairs_table(results.rows["runs"])),
    }


def returns_block(results: Results, colors: Mapping[str, str]) -> Block:
    """Return the table of agents, and their returns against frames."""
    bands, solved = (
        [band(results.curves, name, color) for name, color in colors.items()],
        results.settings.get("solved_at"),
    )
    marks = [] if solved is None else [Mark("y", solved, "solved")]
    panel = Lines("frames", "mean return", bands, marks, from_zero=True)
    return Block(returns_table(results.rows["runs"]), Figure([panel]))


def log_band(curves: Curves, name: str, column: str, color: str = "") -> Series:
    """Return the geometric mean of a positive column over seeds against frames, with the lowest and highest seed as a band."""
    own = of_arm(curves, name)
    shortest = min(len(columns["frames"]) for columns in own)  # a seed that diverged to infinity ended early
    values = np.array([[float(v or "nan") for v in columns[column][:shortest]] for columns in own])
    mean, low, high = np.exp(np.log(values).mean(axis=0)), values.min(axis=0), values.max(axis=0)
    y, below, above = ([six_digits(v) if np.isfinite(v) else None for v in one] for one in (mean, low, high))
    return Series(name, "predicted", [float(v or 0) for v in own[0]["frames"][:shortest]], y, below, above, color)


def band(curves: Curves, name: str, color: str = "") -> Series:
    """Return the mean return over seeds against the frames of the first seed, with ± one standard deviation as a band."""
    line = mean_curve(curves, name, "frames", color=color, y="mean_return", scale=1.0)
    frames = [float(v or 0) for v in of_arm(curves, name)[0]["frames"][: len(line.x)]]
    return replace(line, x=frames, role="predicted", is_joined=False)
