"""Of a run of actors, replay and learners: which part the others wait for, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.errors import ChronogradError
from chronograd.figure import Bar, Bars, Figure, Lanes, Span
from chronograd.record import Record
from chronograd.reinforce.balance import Components, Setting, balance, enough_actors, gain
from chronograd.rundir import is_run_dir
from chronograd.units import percent, seconds

# What each bottleneck is called, and what to do about it.
TITLES = {
    "environments": ("actors cannot feed the learner: their environments take the time", "more actors, or a quicker environment"),
    "acting": (
        "actors cannot feed the learner: choosing actions takes the time",
        "more environments for each actor (reinforcement.environments_per_actor), which share a pass through the network",
    ),
    "learner": ("the learner is the slowest part; actors wait for it", "a quicker device for the learner, or fewer actors"),
    "replay": ("the replay is the slowest part", "more shards (reinforcement.replay_shards)"),
    "link": ("what is sent takes the time", "send less at a time or keep actors near the replay; see reinforcement.send_every"),
    "cores": ("all cores work, and every part waits for them", "fewer actors, or more cores"),
}  # fmt: skip
# Parts that have a lane in the picture of the first seconds, learners first; and what each is drawn in.
MOST_LANES, COLORS = 12, {"learner": "orange", "actor": "teal"}


def answer_of(path: Path) -> Answer | None:
    """What limits the run at a path; None if it is no run of several parts."""
    if not is_run_dir(path) or not (path / "record.json").exists():
        return None
    try:
        record = Record.load(path)
    except ChronogradError:
        return None
    told = (record.tables.model_extra or {}).get("verdict")
    if not told:
        return None
    parts: list[dict[str, Any]] = (record.tables.model_extra or {}).get("agents", [])
    sections = [_cause(told[0]), *_numbers(told[0]), _where(parts), *timeline_sections(record)]
    return Answer(
        "Why it is not faster", sections=sections, data={"verdict": told[0], "parts": parts}, notes=record.notes
    )


def _cause(verdict: Mapping[str, Any]) -> Section:
    title, to_do = TITLES[verdict["bottleneck"]]
    return Section(
        "What limits the run",
        f"{title[0].upper()}{title[1:]}. What to do: {to_do}.",
        lines=verdict["evidence"],
        data=[{"bottleneck": verdict["bottleneck"], "evidence": verdict["evidence"]}],
    )


def _numbers(verdict: Mapping[str, Any]) -> list[Section]:
    """How many actors would be enough, and what a second learner would bring, by the parts' own times."""
    if "setting" not in verdict:
        return []
    parts, setting = Components(**verdict["components"]), Setting(**verdict["setting"])
    now, enough = balance(parts, setting), enough_actors(parts, setting)
    second = gain(parts, setting)
    rows = [
        [part, f"{rate:,.1f}", percent(now.idle(part), 0)]
        for part, rate in sorted(now.rates.items(), key=lambda one: one[1])
    ]
    return [
        Section(
            "What each part could do alone",
            f"{enough} actor{'s' * (enough > 1)} would be enough, and there are {setting.num_actors}; a second learner would bring "
            f"{percent(second, 0)} more minibatches.",
            table=Table(
                ("part", "minibatches/s", "idle"), rows, {1, 2}, ("idle: where the slowest part sets the pace",)
            ),
            data=[{"part": part, "batches_per_s": rate} for part, rate in now.rates.items()],
        )
    ]


def _where(parts: Sequence[Mapping[str, Any]]) -> Section:
    names = list(dict.fromkeys(name for part in parts for name in part["seconds"]))
    bars = [
        Bar(
            f"{part['role']} {part['number']}",
            "measured",
            {_word(name): part["seconds"].get(name, 0.0) for name in names},
        )
        for part in parts
    ]
    idle = ", ".join(f"{part['role']} {part['number']} {percent(part['idle'], 0)}" for part in parts)
    return Section(
        "Where each part's time goes",
        f"Idle: {idle}.",
        figure=Figure([Bars("seconds", "part", bars)]),
        table=Table(
            ("part", "work done", "per second", "idle"),
            [[f"{p['role']} {p['number']}", f"{p['amount']:,}", f"{p['per_s']:,.1f}", percent(p["idle"], 0)] for p in parts],
            {1, 2, 3},
            ("work done: steps of an actor, minibatches of a learner, calls of a shard of the replay",),
        ),
        data=list(map(dict, parts)),
    )  # fmt: skip


def timeline_sections(record: Record) -> list[Section]:
    """When each part was at work in the first seconds; nothing of a run that has no parts."""
    rows = record.tables.timeline
    end = max((row.end for row in rows), default=0.0)
    if end <= 0:
        return []
    parts = sorted({(row.role, row.number) for row in rows}, key=lambda part: (part[0] != "learner", part))
    shown = parts[:MOST_LANES]
    spans = [
        Span(shown.index(part), row.role, row.start, row.end)
        for row in rows
        if (part := (row.role, row.number)) in shown
    ]
    at_work = [sum(span.end - span.start for span in spans if span.lane == lane) / end for lane in range(len(shown))]
    names = [f"{role} {number}" for role, number in shown]
    told = ", ".join(f"{name} {percent(share, 0)}" for name, share in zip(names, at_work, strict=True))
    return [
        Section(
            "The first seconds",
            f"Of the first {seconds(end, 2)} the parts were at work: {told}.",
            figure=Figure([Lanes("time, s", names, spans, [], [], COLORS, "measured")]),
            caption="A bar is a piece of work that was handed out."
            + (f" The first {len(shown)} of {len(parts)} parts." if len(shown) < len(parts) else ""),
        )
    ]


def _word(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")
