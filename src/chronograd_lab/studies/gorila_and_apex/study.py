"""Gorila and Ape-X, each compared with one process: the parts spread over processes, their cost, and the learning.

Nair et al., Massively parallel methods for deep reinforcement learning, arXiv 1507.04296; Horgan et al., Distributed
prioritized experience replay, arXiv 1803.00933.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.job import Job, changed
from chronograd.record import Record
from chronograd.reinforce.balance import BalanceSetting, Components, balance, enough_actors
from chronograd.units import percent, si
from chronograd_lab.common import returns
from chronograd_lab.common.arms import Arm, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import mean, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block, key

ONE, GORILA, BUNDLED, APEX = "one process", "Gorila", "Gorila, bundled", "Ape-X"
ARMS: dict[str, dict[str, Any]] = {
    ONE: {},
    GORILA: {"algorithm": "gorila"},
    BUNDLED: {"algorithm": "gorila", "bundled": True},
    APEX: {
        "algorithm": "apex", "exploration": "ladder", "replay": "proportional", "double": True, "dueling": True, "n_step": 3,
        "max_gradient_norm": 40.0,
    },
}  # fmt: skip
COLORS = {ONE: "grey", GORILA: "orange", BUNDLED: "vermilion", APEX: "teal"}
# Fields of a run's record; a missing one is None.
MEASURED = (
    "staleness", "agents_parameter_age_updates", "agents_parameter_age_s", "agents_priority_age_s", "agents_bytes_per_update",
    "agents_draws_of_top_tenth", "agents_actor_idle", "agents_learner_idle", "agents_replay_idle", "agents_drawn_per_s",
    "agents_added_per_s", "agents_steps_per_s", "agents_batches_per_s", "throughput_frames_per_s", "updates_per_s",
)  # fmt: skip
# Horgan et al. 2018, section 4: actors, frames per second of each, minibatches per second of the learner, transitions of each.
PUBLISHED_ACTORS = 360
FRAMES_PER_S = 139.0
BATCHES_PER_S = 19.0
BATCH = 512
FRAMES_PER_TRANSITION = 4
PUBLISHED_FRAMES_PER_S, PUBLISHED_IN_PER_S, PUBLISHED_OUT_PER_S = 50_000, 12_500, 9_700


def job_of(settings: Settings, name: str) -> Job:
    """Return the agent of one arm: the same network, minibatch, steps and updates for each step."""
    shares: dict[str, Any] = {}
    if name in (GORILA, APEX):
        shares = {"actors": settings["actors"], "environments_per_actor": settings["environments_per_actor"]}
    if name in (GORILA, BUNDLED):
        shares["learners"] = settings["learners"]
    job = returns.agent_job(settings, **{**settings["agent"], **ARMS[name], **shares})
    if name in (GORILA, BUNDLED):  # servers use AdaGrad, which needs other rates
        return changed(job, [f"training.learning_rate={settings['gorila_rate']}", "communication.servers=2"])
    return job


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, and each has several processes
    trained = train_arms(
        runner, [Arm(name, job_of(settings, name), {"agent": name}, range(settings["seeds"])) for name in ARMS]
    )
    rows = [{**returns.row_of(one), **_measured(one.run.record())} for one in trained]
    curves = {one.name: returns.returns_of(one.run.record()) for one in trained}
    return runner.results(settings, rows={"runs": rows}, curves=curves)


def _measured(record: Record) -> Row:
    row: Row = {name: record[name].value for name in MEASURED}
    row["trained_params"] = record["trained_params"].value
    row["notes"] = [note for note in record.notes if note.startswith("gradients dropped")]
    return row


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows["runs"]
    frames = {key(name): {"frames_per_s": mean(rows, "throughput_frames_per_s", agent=name)} for name in ARMS}
    systems = {
        key(name): {column.removeprefix("agents_"): mean(rows, column, agent=name) for column in MEASURED}
        | {"draws": _draws(rows, name)}
        for name in (GORILA, APEX)
    }
    ends = returns.values(results)
    arms = {name: {**ends[name], **frames[name], **systems.get(name, {})} for name in frames}
    notes = [note for row in rows if row["agent"] == GORILA for note in row["notes"]]
    return {
        **arms,
        "cores": results.environment["cores"],
        "note": notes[0] if notes else None,
        "published": published(),
    }


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows["runs"]
    return {
        "Learning from the same frames": returns.returns_block(results, COLORS),
        "Three differences": Block(_unlike(rows)),
        "Three similarities": Block(_alike(rows)),
        "The published balance": Block(_published()),
    }


def _unlike(rows: Sequence[Row]) -> Table:
    gorila, apex = (
        {name: mean(rows, name, agent=agent) for name in ("staleness", "agents_bytes_per_update", "agents_draws_of_top_tenth")}
        for agent in (GORILA, APEX)
    )  # fmt: skip
    sent, top = (
        [shown(one["agents_bytes_per_update"], lambda n: si(n, "B")) for one in (gorila, apex)],
        [shown(one["agents_draws_of_top_tenth"], lambda share: percent(share, 0)) for one in (gorila, apex)],
    )
    body = [
        ["gradients", "of several learners, applied as they come", f"{shown(gorila['staleness'], '{:.2f}'.format)} updates old on average",
         "of one learner", "0 updates old"],
        ["what travels", "parameters and gradients, and transitions", f"{sent[0]} an update", "transitions and parameters", f"{sent[1]} an update"],
        ["replay", "alike", f"{top[0]} of draws to the highest tenth", "by priority, first made by actors", f"{top[1]} of draws to the highest tenth"],
    ]  # fmt: skip
    return listed(["", "Gorila", "measured", "Ape-X", "measured "], body, text=5)


def _alike(rows: Sequence[Row]) -> Table:
    body = [
        [title, *(shown(mean(rows, name, agent=agent), form) for agent in (GORILA, APEX))]
        for title, name, form in (
            ("actors use old parameters: updates behind", "agents_parameter_age_updates", "{:.2f}".format),
            ("acting and learning overlap: steps per second", "agents_steps_per_s", "{:,.0f}".format),
            ("and minibatches per second", "agents_batches_per_s", "{:,.0f}".format),
        )
    ]
    draws = [shown(_draws(rows, agent), "{:.2f}".format) for agent in (GORILA, APEX)]
    return listed(["", "Gorila", "Ape-X"], [*body, ["replay, off-policy: draws of a transition", *draws]])


def _draws(rows: Sequence[Row], agent: str) -> float | None:
    drawn, added = (mean(rows, name, agent=agent) for name in ("agents_drawn_per_s", "agents_added_per_s"))
    return drawn / added if drawn is not None and added else None


def published() -> dict[str, Any]:
    """Return the balance of the 360 actors of Ape-X, from the times of one actor and of the learner."""
    parts = Components(actor_s=FRAMES_PER_TRANSITION / FRAMES_PER_S, learner_s=1 / BATCHES_PER_S)
    frames = PUBLISHED_ACTORS * FRAMES_PER_S
    return {
        "actors": PUBLISHED_ACTORS,
        "frames": frames,
        "made": frames / FRAMES_PER_TRANSITION,
        "drawn": BATCHES_PER_S * BATCH,
        "bottleneck": balance(parts, BalanceSetting(BATCH, draws=1.0, num_actors=PUBLISHED_ACTORS)).bottleneck,
        "enough": enough_actors(parts, BalanceSetting(BATCH, draws=1.0)),
    }


def _published() -> Table:
    once = published()
    rows = [
        ["frames per second of all actors", f"{once['frames']:,.0f}", f"about {PUBLISHED_FRAMES_PER_S:,}"],
        ["transitions per second into replay", f"{once['made']:,.0f}", f"{PUBLISHED_IN_PER_S:,}"],
        ["transitions per second to the learner", f"{once['drawn']:,.0f}", f"{PUBLISHED_OUT_PER_S:,}"],
        [
            "draws of a transition",
            f"{once['drawn'] / once['made']:.2f}",
            f"{PUBLISHED_OUT_PER_S / PUBLISHED_IN_PER_S:.2f}",
        ],
    ]
    return listed(["", "computed", "published"], rows)


_PARTS = {"actors": 2, "environments_per_actor": 4, "learners": 2, "gorila_rate": 0.01}
_SMOKE = {**returns.SMOKE, **_PARTS, "seeds": 1}
_AGENT: dict[str, Any] = returns.LAPTOP["agent"]  # type: ignore[assignment]
_LAPTOP = {
    **returns.LAPTOP, **_PARTS, "seeds": 5, "agent": {**_AGENT, "update_every": 4, "replay_start": 1000},
}  # fmt: skip

STUDY = Study(
    name="gorila-and-apex",
    question="Many learners or many actors: what do Gorila and Ape-X distribute, and what does it cost?",
    hypothesis="The staleness of Gorila's gradients is the number of its other learners, and each moves all parameters twice. Ape-X has "
    "one learner, whose gradients are fresh. It moves transitions, and priorities choose among them",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
