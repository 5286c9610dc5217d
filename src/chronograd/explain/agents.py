"""Time of an agent's steps; for actors, replay and learners also the slowest part and its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.errors import ChronogradError
from chronograd.figure import Bar, Bars, Figure, Lanes, Span
from chronograd.record import Record
from chronograd.reinforce.balance import BalanceSetting, Components, balance, enough_actors, gain
from chronograd.rundir import is_run_dir
from chronograd.units import percent, seconds
from chronograd.words import how_many, time_unit

# The title of each bottleneck, and its remedy.
TITLES = {
    "environments": ("actors cannot feed the learner: their environments take the time", "more actors, or a faster environment"),
    "acting": (
        "actors cannot feed the learner: choosing actions takes the time",
        "more environments for each actor (reinforcement.environments_per_actor), which share a pass through the network",
    ),
    "learner": ("the learner is the slowest part; actors wait for it", "a faster device for the learner, or fewer actors"),
    "replay": ("the replay is the slowest part", "more shards (reinforcement.replay_shards)"),
    "link": ("sending data takes most of the time", "send less at a time or keep actors near the replay; see reinforcement.send_every"),
    "cores": ("all cores are busy, and every part waits for them", "fewer actors, or more cores"),
}  # fmt: skip
# Number of parts in the timeline of the first seconds, learners first, and their colors.
MAX_LANES = 12
COLORS = {"learner": "orange", "actor": "teal"}
# Kinds of work, with their words and colors in the timeline.
WORK = {
    "act": "acting", "priorities": "acting", "environment": "environments", "learn": "learning", "compute": "learning",
    "sample": "waiting for minibatches", "add": "replay", "draw": "replay", "update": "replay", "trim": "replay",
    "send": "handing over", "publish": "handing over", "refresh": "handing over", "push": "handing over", "pull": "handing over",
}  # fmt: skip
WORK_COLORS = {
    "acting": "teal", "environments": "green", "learning": "orange", "replay": "purple", "handing over": "vermilion",
    "waiting for minibatches": "sky", "idle": "grey",
}  # fmt: skip
# Parts of a step of an agent in one process, each with its name and the remedy if it is the largest.
STEP = {
    "act_s": ("choosing actions", "a smaller network, or several environments that share a pass through it (algorithms ape-x, gorila)"),
    "environment_s": ("the environment", "a faster environment, or actors in separate processes (algorithms ape-x, gorila)"),
    "replay_s": ("replay", "uniform replay (reinforcement.replay), or fewer updates (reinforcement.update_every)"),
    "learn_s": ("learning", "fewer updates (reinforcement.update_every), or a smaller network or minibatch (training.batch)"),
}  # fmt: skip
STEP_COLORS = dict(
    zip((*(name for name, _ in STEP.values()), "else"), ("teal", "green", "purple", "orange", "grey"), strict=True)
)


def answer_of(path: Path) -> Answer | None:
    """Return the limits of the agent's run at a path; None if it is not an agent's run."""
    if not is_run_dir(path) or not (path / "record.json").exists():
        return None
    try:
        record = Record.load(path)
    except ChronogradError:
        return None
    found = sections_of(record)
    if not found:
        return None
    verdict, parts = _several(record)
    data = {"verdict": verdict, "parts": parts} if verdict else {"parts": [row for s in found for row in s.data]}
    return Answer("Why it is not faster", sections=found, data=data, notes=record.notes)


def sections_of(record: Record) -> list[Section]:
    """Return the limits of an agent's run and its time by part; an empty list for another record."""
    verdict, parts = _several(record)
    sections = [_cause(verdict), *_numbers(verdict), _where(parts)] if verdict else _of_a_step(record)
    return [*sections, *timeline_sections(record)]


def _several(record: Record) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the limits of actors, replay and learners, and the work of each; None and an empty list for one process."""
    tables = record.tables.model_extra or {}
    return next(iter(tables.get("verdict", [])), None), tables.get("agents", [])


def _of_a_step(record: Record) -> list[Section]:
    """Return the time by part of an agent's step in one process; an empty list for a record without such parts."""
    step = record["step_time_s"].value
    parts = {name: value for name in STEP if (value := record[name].value) is not None}
    if not parts or not step:
        return []
    rest = max(step - sum(parts.values()), 0.0)
    spent = {STEP[name][0]: value for name, value in parts.items()} | {"else": rest}
    unit, length = time_unit([step])
    bar = Bar("a step", "measured", {name: value / length for name, value in spent.items()})
    largest = max(parts, key=lambda name: parts[name])
    title, to_do = STEP[largest]
    # Work that other processes could do for a learner, if sending it took no time.
    most = step / (parts.get("learn_s", 0.0) + parts.get("replay_s", 0.0) + rest or step)
    outside = (record["wall_time_s"].value or 0.0) - (record["training_time_s"].value or 0.0)
    lines = [f"Actors in separate processes could give at most {most:.1f} times the frames per second, less the cost of sending data between them."]  # fmt: skip
    if outside > 0:
        lines.append(
            f"Outside the training time, evaluation, checkpoints and start-up took {seconds(outside)}, "
            f"{percent(outside / (record['wall_time_s'].value or outside), 0)} of the run."
        )
    return [
        Section(
            "Where an agent's step goes",
            f"Of a step of {seconds(step)}, {title} takes {percent(parts[largest] / step, 0)}. What to do: {to_do}.",
            lines=lines,
            figure=Figure([Bars(f"time per step, {unit}", "run", [bar], STEP_COLORS)]),
            table=Table(
                ("part of a step", "time", "share"),
                [[name, seconds(value), percent(value / step, 0)] for name, value in spent.items()],
                {1, 2},
            ),
            data=[{"part": name, "seconds": value} for name, value in spent.items()],
        )
    ]


def _cause(verdict: Mapping[str, Any]) -> Section:
    title, to_do = TITLES[verdict["bottleneck"]]
    return Section(
        "What limits the run",
        f"{title[0].upper()}{title[1:]}. What to do: {to_do}.",
        lines=verdict["evidence"],
        data=[{"bottleneck": verdict["bottleneck"], "evidence": verdict["evidence"]}],
    )


def _numbers(verdict: Mapping[str, Any]) -> list[Section]:
    """Return the sufficient number of actors, and the gain from a second learner, from the parts' times."""
    if "setting" not in verdict:
        return []
    parts, setting = Components(**verdict["components"]), BalanceSetting(**verdict["setting"])
    now, enough = balance(parts, setting), enough_actors(parts, setting)
    second = gain(parts, setting)
    rows = [
        [part, f"{rate:,.1f}", percent(now.idle(part), 0)]
        for part, rate in sorted(now.rates.items(), key=lambda one: one[1])
    ]
    return [
        Section(
            "What each part could do alone",
            f"{enough} actor{'s' * (enough > 1)} would be enough; the run has {setting.num_actors}. A second learner would give "
            f"{percent(second, 0)} more minibatches.",
            table=Table(
                ("part", "minibatches/s", "idle"), rows, {1, 2}, ("idle: if the slowest part limits the speed",)
            ),
            data=[{"part": part, "batches_per_s": rate} for part, rate in now.rates.items()],
        )
    ]


def _where(parts: Sequence[Mapping[str, Any]]) -> Section:
    bars = [Bar(f"{part['role']} {part['number']}", "measured", _shares(part)) for part in parts]
    idle = ", ".join(f"{part['role']} {part['number']} {percent(_idle(part), 0)}" for part in parts)
    return Section(
        "Where each part's time goes",
        f"Idle: {idle}.",
        figure=Figure([Bars("% of its time", "part", bars, WORK_COLORS)]),
        table=Table(
            ("part", "work done", "per second", "idle"),
            [[f"{p['role']} {p['number']}", f"{p['amount']:,}", f"{p['per_s']:,.1f}", percent(_idle(p), 0)] for p in parts],
            {1, 2, 3},
            ("work done: steps of an actor, minibatches of a learner, calls of a shard of the replay", "idle: nothing to do, or waiting for a minibatch"),
        ),
        data=list(map(dict, parts)),
    )  # fmt: skip


def _idle(part: Mapping[str, Any]) -> float:
    """Return the share of its time in which a part was idle; a learner is also idle while it waits for minibatches."""
    waited = part["seconds"].get("sample_s", 0.0) if part["role"] == "learner" else 0.0
    return float(part["idle"] + waited / (sum(part["seconds"].values()) or 1.0))


def timeline_sections(record: Record) -> list[Section]:
    """Return when each part was at work in the first seconds; an empty list for a run without parts."""
    rows = record.tables.timeline
    end = max((row.end for row in rows), default=0.0)
    if end <= 0:
        return []
    parts = sorted({(row.role, row.number) for row in rows}, key=lambda part: (part[0] != "learner", part))
    shown = parts[:MAX_LANES]
    spans = [
        Span(shown.index(part), row.role, row.start, row.end)
        for row in rows
        if (part := (row.role, row.number)) in shown
    ]
    at_work = [sum(span.end - span.start for span in spans if span.lane == lane) / end for lane in range(len(shown))]
    names = [f"{role} {number}" for role, number in shown]
    shares = ", ".join(f"{name} {percent(share, 0)}" for name, share in zip(names, at_work, strict=True))
    return [
        Section(
            "The first seconds",
            f"Share of the first {seconds(end, 2)} in which each part worked: {shares}.",
            figure=Figure([Lanes("time, s", names, spans, [], [], COLORS, "measured")]),
            caption="A bar is one piece of assigned work."
            + (f" The first {len(shown)} of {how_many(len(parts), 'parts')}." if len(shown) < len(parts) else ""),
        )
    ]


def _shares(part: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentages of a part's time by activity, idle last."""
    whole = sum(part["seconds"].values()) or 1.0
    shares = dict.fromkeys(WORK_COLORS, 0.0)
    for name, value in part["seconds"].items():
        word = WORK.get(name.removesuffix("_s"), name.removesuffix("_s"))
        shares[word] = shares.get(word, 0.0) + 100 * value / whole
    return shares
