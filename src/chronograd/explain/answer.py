"""The output of `explain`: the causes of lost time with their evidence, then the time of each step by part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chronograd import door
from chronograd.answer import Answer, Column, Section, Table, join, under
from chronograd.errors import InputError
from chronograd.explain import agents, explanation, wall_times
from chronograd.explain.explanation import Explained, Explanation
from chronograd.explain.ranks import scaling_text
from chronograd.explain.split import STRAGGLING
from chronograd.explain.trace_file import CONTRADICTS, distinguished
from chronograd.explain.wall_times import Account
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent, quantity, whole_percent
from chronograd.words import interval, time_unit

_PART_COLORS = {
    "computation": "blue", "input": "sky", "exposed communication": "orange",
    "exposed copies": "purple", "idle device": "grey",
}  # fmt: skip
# Characters of the longest line with a run's name.
LONGEST_LINE = 70
# Disturbances of a measurement that a prediction does not model.
DISTURBANCES = ("busy_host", "slow_worker", "too_many_threads")


def explain(paths: Sequence[Path]) -> Answer[Explanation | list[Account]]:
    """Explain why runs are not faster, from run directories, records and traces of torch.profiler, or one CSV file of wall
    times.

    Raises: InputError for a table of wall times together with another file; as `explanation.explain` and `wall_times.explain`.
    """
    for path in paths:
        if not path.is_dir() and os.path.lexists(path):
            door.check(path, "a run, a record or a trace", expects=("any",))
    tables = [path for path in paths if path.suffix == ".csv"]
    if tables and len(paths) > 1:
        raise InputError("a table of wall times cannot be combined with other files", f"give only {tables[0]}")
    if tables:
        accounts = wall_times.explain(tables[0])
        sections = [_account(account) for account in accounts]
        return Answer("Why it is not faster", sections=sections, result=accounts)
    of_agents = [answer for path in paths if (answer := agents.answer_of(path)) is not None]
    if of_agents and len(of_agents) == len(paths):
        named = zip(paths, of_agents, strict=True)
        joined = [replace(answer, sections=under(path.name, answer.sections)) for path, answer in named]
        return of_agents[0] if len(paths) == 1 else join("Why they are not faster", joined)
    explained = explanation.explain(paths)
    sections = [_causes(explained.runs[-1], _legend(explained.runs))]
    if explained.compared:
        sections.append(_compared(explained))
    notes = [
        note if len(explained.runs) == 1 else f"{one.run.title}: {note}"
        for one in explained.runs
        for note in one.run.notes
    ]
    if any(rank.device is not None for one in explained.runs for rank in one.run.ranks.values()):
        sections.append(_devices(explained.runs))
    sections += [
        _operators(one, number) for one in explained.runs for number, rank in one.run.ranks.items() if rank.operators
    ]
    sections += [_split(explained.runs), *_others(explained.runs[-1])]
    return Answer("Why it is not faster", sections=sections, notes=notes, result=explained)


def disturbances(path: Path) -> str:
    """Return disturbances of a run that no prediction models, such as a busy host, as a clause; empty if there are none."""
    (one,) = explanation.explain([path]).runs
    met = [f"{finding.title}{finding.share}" for finding in one.causes if finding.cause in DISTURBANCES]
    is_known = all(f.verdict != "not measured" for f in one.findings if f.cause == "busy_host")
    return "; ".join(met if is_known else [*met, "whether other processes used the host is not known"])


def _legend(runs: Sequence[Explained]) -> list[str]:
    """Return the short labels of runs with their names."""
    several = [one.run for one in runs if len(runs) > 1 and one.run.label]
    return [f"{run.label}: {explanation.shortened(run.name, LONGEST_LINE)}" for run in several]


def _causes(one: Explained, legend: Sequence[str]) -> Section:
    """Return the causes in the run with the most ranks, each with its evidence and the experiment that would disprove it."""
    lines = [*legend]
    busy = next((finding for finding in one.causes if finding.cause == "busy_host"), None)
    if busy is not None and len(one.causes) > 1:
        lines.append(
            "other processes used the host meanwhile: run it again without them to measure the cost of the other causes"
        )
    for number, finding in enumerate(one.causes, start=1):
        lines += [
            f"{number}. {finding.title}{finding.share}",
            *(f"   {sentence}" for sentence in finding.evidence),
            *(f"   what to do: {remedy.text()}" for remedy in finding.remedies),
            f"   to disprove: {finding.experiment}",
        ]
    takeaway = f"No cause costs a tenth of the time of {one.run.title} or more."
    if one.run.captures_graph:
        takeaway = "The trace captures a graph, and kernels do not run during capture: idle time shows nothing about the graph."
    if one.causes:
        first, num_more = one.causes[0], len(one.causes) - 1
        more = f"; {num_more} more cause{'s' * (num_more > 1)} of lost time" if num_more else ""
        to_do = f" What to do: {first.remedies[0].text()}." if first.remedies else ""
        takeaway = f"{first.title[0].upper()}{first.title[1:]}{first.share}{more}.{to_do}"
    rows = [
        {
            "cause": f.cause,
            "verdict": f.verdict,
            "share": f.cost,
            "evidence": " ".join(f.evidence),
            "remedies": [remedy.text() for remedy in f.remedies],
        }
        for f in one.findings
    ]
    return Section(f"Why {one.run.title} is not faster", takeaway, lines=lines, data=rows)


def _others(one: Explained) -> list[Section]:
    """Return the rejected causes, and those without a measurement."""
    sections = []
    for verdict, title in (("not found", "Rejected causes"), ("not measured", "Never measured")):
        findings = [finding for finding in one.findings if finding.verdict == verdict]
        if not findings:
            continue
        sections.append(
            Section(
                title,
                f"{len(findings)} of {len(one.findings)} causes.",
                table=Table.of(findings, _OTHER).without_empty_columns(),
                data=[{"cause": f.cause, "share": f.cost} for f in findings],
            )
        )
    return sections


_OTHER = (
    Column("cause", "cause"),
    Column("share", lambda finding: finding.cost or None, format=whole_percent, empty=""),
    Column("evidence", lambda one: one.evidence[0] if one.evidence and one.verdict == "not found" else one.title),
)


def _compared(explained: Explanation) -> Section:
    """Return the time by number of ranks; without ratios if other programs used the host."""
    names = [one.run.title for one in explained.runs]
    text = explained.void or scaling_text(explained.compared, names)
    ratios = (
        ()
        if explained.void
        else (
            Column("speed-up", "speedup", format=".2f"),
            Column("samples per second", "throughput", format=lambda times: f"{times:.2f} ×"),
        )
    )
    return Section(
        title="Compared with fewer ranks"
        if explained.runs[0].run.world < explained.runs[-1].run.world
        else "Compared with the other run",
        takeaway=f"{text[0].upper()}{text[1:]}.",
        table=Table.of(
            [replace(row, name=name) for name, row in zip(names, explained.compared, strict=True)],
            (Column("run", "name"), Column("ranks", "world", format="d"), Column("time", "seconds", "s"), *ratios),
            ("time: of the run from its first step on; of one step if any of the runs is a sample of steps",),
        ),
        data=[{"run": row.name, "ranks": row.world, "seconds": row.seconds} for row in explained.compared],
    )


def _split(runs: Sequence[Explained]) -> Section:
    """Return the time of a step by part, for each run."""
    unit, length = time_unit(one.split.step_s.value for one in runs)
    last = runs[-1]
    shares = ", ".join(f"{percent(share, 0)} {name}" for name, share in last.split.shares())
    lines, rows, bars = [], [], []
    for one in runs:
        split, label = one.split, f"{one.run.title}, {one.run.world} rank{'s' * (one.run.world > 1)}"
        start = split.startup_s
        before = f"start-up {quantity(start.value, 's')}" + (f" ({start.reason})" if start.value is None else "")
        lines.append(
            f"{label}: {one.run.kind}, {quantity(split.step_s.value, 's')} a step ({split.step_s.source}); {before}"
        )
        segments = {name: q.value / length for name, q, _ in split.rows() if q.value and name != STRAGGLING}
        bars.append(Bar(label, "measured", segments, note=quantity(split.step_s.value, "s")))
        for name, q, share in split.rows():
            shown = interval(q) if q.value is not None else q.reason
            run = one.run.title if len(runs) > 1 else ""
            text = f"  {name}" if name == STRAGGLING else name
            rows.append([run, text, quantity(q.value, "s"), "–" if share is None else percent(share, 0), shown])
    return Section(
        title="Time of a step",
        takeaway=f"A step of {last.run.title} takes {quantity(last.split.step_s.value, 's')}: {shares or 'no part is known'}.",
        lines=lines,
        figure=Figure([Bars(f"time per step, {unit}", "run", bars, _PART_COLORS)]),
        table=Table(("run", "part of a step", "time", "share", "80 % interval"), rows, {2, 3},
                    ("straggling: waiting for the slowest rank, within exposed communication",)
                    if any(one.run.world > 1 for one in runs) else ()).without_empty_columns(),
    )  # fmt: skip


def _column(one: Explained, rank: int, num_runs: int) -> str:
    if len(one.run.ranks) == 1:
        return one.run.title
    return f"rank {rank}" if num_runs == 1 else f"{one.run.title}, rank {rank}"


def _devices(runs: Sequence[Explained]) -> Section:
    """Return the activity of devices in complete traces, as shares of their spans, with a column for each rank."""
    named = [
        (_column(one, number, len(runs)), device)
        for one in runs
        for number, rank in one.run.ranks.items()
        if (device := rank.device) is not None
    ]
    first = named[0][1]
    rows = [["span", *(quantity(device.span_s, "s") for _, device in named)]]
    rows += [
        [name, *(percent(device.share(dict(device.rows())[name]), 1) for _, device in named)]
        for name, _ in first.rows()
        if any(dict(device.rows())[name] for _, device in named)
    ]
    busy, idle = percent(first.share(first.busy_s), 0), percent(first.share(first.idle_s), 0)
    exposed = f", {percent(first.share(first.exposed_s), 0)} in exposed communication" if first.exposed_s else ""
    doubt = " The trace contradicts itself, so these shares are uncertain: see the notes." if _contradicts(runs) else ""
    short = distinguished([name for name, _ in first.kernels])
    most = zip(short[:3], first.kernels, strict=False)
    lines = [
        f"{named[0][0]}, kernels with the most time: "
        + "; ".join(f"{name} {percent(first.share(length), 0)}" for name, (_, length) in most)
    ]
    return Section(
        title="Device activity",
        takeaway=f"{first.name or 'The device'} was busy in {busy} of {quantity(first.span_s, 's')}{exposed}, and idle in {idle}.{doubt}",
        lines=lines if first.kernels else [],
        table=Table(
            ("part of the span", *(name if len(named) > 1 else "share" for name, _ in named)),
            rows,
            set(range(1, len(named) + 1)),
            ("span: from the first start to the last end of work on the device, in the whole trace",),
            is_stacked=True,
        ),
        data=[{"rank": name} | device.as_data() for name, device in named],
    )


def _contradicts(runs: Sequence[Explained]) -> bool:
    return any(CONTRADICTS in note for one in runs for note in one.run.notes)


def _operators(one: Explained, number: int) -> Section:
    """Return the operators of a CPU trace with the largest self time."""
    rank = one.run.ranks[number]
    span_s = float(rank.step_s.sum())
    names = distinguished([name for name, _ in rank.operators])
    rows = [
        [name, quantity(length, "s"), percent(length / span_s, 0)]
        for name, (_, length) in zip(names, rank.operators, strict=True)
    ]
    where = one.run.title if len(one.run.ranks) == 1 else f"{one.run.title}, rank {number}"
    return Section(
        title=f"Operators of {where} with the most time",
        takeaway=f"{rows[0][0]} took {rows[0][1]} by itself, {rows[0][2]} of the step time.",
        table=Table(("operator", "by itself", "share of the steps"), rows, {1, 2},
                    ("by itself: without the operators that it calls; summed over all threads",)),
        data=[{"operator": name, "seconds": length, "share": length / span_s} for name, length in rank.operators],
    )  # fmt: skip


def _account(account: Account) -> Section:
    """Return the account of one network's wall times, with the causes that fit first."""
    others = [(name, sentence) for name, sentences in account.sections() for sentence in sentences]
    fits = account.fits[0]
    return Section(
        title=account.title,
        takeaway=f"Fits the times: {fits}.",
        lines=[f"{name}: {sentence}" for name, sentence in others if sentence != fits],
        data=[{"what": name, "sentence": sentence} for name, sentence in others],
    )
