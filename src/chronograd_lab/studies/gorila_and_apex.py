"""Gorila beside Ape-X, and both beside one process: what is spread over processes, what it costs, and what it learns.

Nair et al., Massively parallel methods for deep reinforcement learning, arXiv 1507.04296; Horgan et al., Distributed
prioritized experience replay, arXiv 1803.00933.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.job import Job, changed
from chronograd.record import Record
from chronograd.reinforce.balance import BalanceSetting, Components, balance, enough_actors
from chronograd.units import percent, si
from chronograd_lab.common import returns
from chronograd_lab.common.arms import Arm, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import seeds, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

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
# Of a run's record; what a run has not is None.
MEASURED = (
    "staleness", "agents_parameter_age_updates", "agents_parameter_age_s", "agents_priority_age_s", "agents_bytes_per_update",
    "agents_draws_of_top_tenth", "agents_actor_idle", "agents_learner_idle", "agents_replay_idle", "agents_drawn_per_s",
    "agents_added_per_s", "agents_steps_per_s", "agents_batches_per_s", "throughput_frames_per_s", "updates_per_s",
)  # fmt: skip
# Horgan et al. 2018, section 4: actors, frames a second of each, minibatches a second of the learner, transitions of each.
PUBLISHED_ACTORS, FRAMES_PER_S, BATCHES_PER_S, BATCH, FRAMES_PER_TRANSITION = 360, 139.0, 19.0, 512, 4
PUBLISHED_FRAMES_PER_S, PUBLISHED_IN_PER_S, PUBLISHED_OUT_PER_S = 50_000, 12_500, 9_700


def job_of(settings: Settings, name: str) -> Job:
    """The agent of one arm: the same network, minibatch, steps and updates for each step."""
    shares: dict[str, Any] = {}
    if name in (GORILA, APEX):
        shares = {"actors": settings["actors"], "environments_per_actor": settings["environments_per_actor"]}
    if name in (GORILA, BUNDLED):
        shares["learners"] = settings["learners"]
    job = returns.agent_job(settings, **{**settings["agent"], **ARMS[name], **shares})
    if name in (GORILA, BUNDLED):  # servers have AdaGrad, whose rates are other ones
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


def page(results: Results) -> Answer:
    rows = results.rows["runs"]
    highlights = [
        Highlight(name, f"{spread(rows, 'throughput_frames_per_s', agent=name).mean:,.0f} frames/s",
                  f"return {returns.plus_minus(spread(rows, 'last_return', agent=name))} at the end")
        for name in ARMS
    ]  # fmt: skip
    return STUDY.answer(results, [_learned(results), _unlike(rows), _alike(rows), published()], highlights)


def _learned(results: Results) -> Section:
    rows = results.rows["runs"]
    others = returns.beside(rows, ARMS, ONE)
    speeds = {name: spread(rows, "throughput_frames_per_s", agent=name).mean for name in ARMS}
    return Section(
        "What is learned of the same frames",
        f"One process returns {returns.plus_minus(spread(rows, 'last_return', agent=ONE))} at the end; the others beside it: "
        f"{'; '.join(others)}. In frames per second one process does {speeds[ONE]:,.0f}, Gorila {speeds[GORILA]:,.0f}, Ape-X "
        f"{speeds[APEX]:,.0f}: here all parts share {results.environment.get('cores', '?')} cores.",
        intro="The same environment, network, minibatch, steps, and updates for each step. Gorila's servers have AdaGrad and its "
        "actors a falling ε; Ape-X has priorities, n-step returns, double and dueling Q, and the ladder of ε.",
        figure=returns.curves_figure(results, COLORS),
        caption="Mean over seeds and ± one standard deviation.",
        table=returns.returns_table(rows),
    )


def _mean(rows: Sequence[Row], name: str, agent: str) -> float | None:
    values = [float(row[name]) for row in rows if row["agent"] == agent and row[name] is not None]
    return sum(values) / len(values) if values else None


def _unlike(rows: Sequence[Row]) -> Section:
    stale, sent = (_mean(rows, name, GORILA) for name in ("staleness", "agents_bytes_per_update"))
    apex_sent, top = (_mean(rows, name, APEX) for name in ("agents_bytes_per_update", "agents_draws_of_top_tenth"))
    gorila_top = _mean(rows, "agents_draws_of_top_tenth", GORILA)
    told = [
        ["gradients", "of several learners, applied as they come", f"{_shown(stale)} updates old on average", "of one learner", "0 updates old"],
        ["what travels", "parameters and gradients, and transitions", f"{_bytes(sent)} an update", "transitions and parameters",
         f"{_bytes(apex_sent)} an update"],
        ["replay", "alike", f"{_percent(gorila_top)} of draws to the highest tenth", "by priority, first made by actors",
         f"{_percent(top)} of draws to the highest tenth"],
    ]  # fmt: skip
    return Section(
        "Three differences",
        f"A gradient of Gorila is {_shown(stale)} updates old when it is applied, Ape-X's none; an update moves "
        f"{_bytes(sent)} with Gorila and {_bytes(apex_sent)} with Ape-X; the tenth of transitions with the highest priorities "
        f"gets {_percent(top)} of Ape-X's draws and {_percent(gorila_top)} of Gorila's.",
        intro=f"Means over {seeds(len([row for row in rows if row['agent'] == GORILA]))}. {_dropped(rows)}",
        table=listed(["", "Gorila", "measured", "Ape-X", "measured "], told, text=5),
    )


def _dropped(rows: Sequence[Row]) -> str:
    notes = [note for row in rows if row["agent"] == GORILA for note in row["notes"]]
    return f"Of Gorila's first run: {notes[0]}." if notes else ""


def _alike(rows: Sequence[Row]) -> Section:
    body = []
    for title, name, form in (
        ("actors use old parameters: updates behind", "agents_parameter_age_updates", _shown),
        ("acting and learning overlap: steps a second", "agents_steps_per_s", _rate),
        ("and minibatches a second", "agents_batches_per_s", _rate),
        ("replay, off-policy: draws of a transition", "draws", _shown),
    ):
        values = [_draws(rows, agent) if name == "draws" else _mean(rows, name, agent) for agent in (GORILA, APEX)]
        body.append([title, *(form(value) for value in values)])
    gorila, apex = (_mean(rows, "agents_parameter_age_updates", agent) for agent in (GORILA, APEX))
    return Section(
        "Three likenesses",
        f"Both act with parameters that are behind ({_shown(gorila)} and {_shown(apex)} updates), act and learn at once, and learn "
        f"from replay, each transition {body[3][1]} and {body[3][2]} times.",
        table=listed(["", "Gorila", "Ape-X"], body),
    )


def _draws(rows: Sequence[Row], agent: str) -> float | None:
    drawn, added = (_mean(rows, name, agent) for name in ("agents_drawn_per_s", "agents_added_per_s"))
    return drawn / added if drawn is not None and added else None


def published() -> Section:
    """The balance of the 360 actors of Ape-X, from the times of one actor and of the learner."""
    parts = Components(actor_s=FRAMES_PER_TRANSITION / FRAMES_PER_S, learner_s=1 / BATCHES_PER_S)
    once = balance(parts, BalanceSetting(BATCH, draws=1.0, num_actors=PUBLISHED_ACTORS))
    frames = PUBLISHED_ACTORS * FRAMES_PER_S
    made = frames / FRAMES_PER_TRANSITION
    drawn = BATCHES_PER_S * BATCH
    enough = enough_actors(parts, BalanceSetting(BATCH, draws=1.0))
    rows = [
        ["frames per second of all actors", f"{frames:,.0f}", f"about {PUBLISHED_FRAMES_PER_S:,}"],
        ["transitions per second into replay", f"{made:,.0f}", f"{PUBLISHED_IN_PER_S:,}"],
        ["transitions per second to the learner", f"{drawn:,.0f}", f"{PUBLISHED_OUT_PER_S:,}"],
        ["draws of a transition", f"{drawn / made:.2f}", f"{PUBLISHED_OUT_PER_S / PUBLISHED_IN_PER_S:.2f}"],
    ]
    return Section(
        "The published balance",
        f"With one draw of each transition {enough} of those actors would feed the learner; 360 make {made / drawn:.2f} times "
        f"what it draws, and the bottleneck is the {once.bottleneck}.",
        intro="From the published rates of one actor and of the learner alone, by chronograd.reinforce.balance.",
        table=listed(["", "computed", "published"], rows),
    )


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return "–" if value is None else si(value, "B")


def _percent(value: float | None) -> str:
    return "–" if value is None else percent(value, 0)


_PARTS = {"actors": 2, "environments_per_actor": 4, "learners": 2, "gorila_rate": 0.01}
_SMOKE = {**returns.SMOKE, **_PARTS, "seeds": 1}
_AGENT: dict[str, Any] = returns.LAPTOP["agent"]  # type: ignore[assignment]
_LAPTOP = {
    **returns.LAPTOP, **_PARTS, "seeds": 5, "agent": {**_AGENT, "update_every": 4, "replay_start": 1000},
}  # fmt: skip

STUDY = Study(
    name="gorila-and-apex",
    question="Many learners or many actors: what do Gorila and Ape-X share out, and what does it cost?",
    hypothesis="Gorila's gradients are as stale as it has other learners, and each moves all parameters twice; Ape-X has one "
    "learner, whose gradients are fresh, and moves transitions, which priorities choose from",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
)
