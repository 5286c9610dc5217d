"""A schedule over time: lanes for the jobs, the GPUs in use, and a file for a trace viewer."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from chronograd.figure import Lanes, Lines, Role, Series, Span
from chronograd.predict.timeline import Event, counter, event, named, trace_file
from chronograd.schedule.events import Stay, Timetable
from chronograd.schedule.jobs import Pool
from chronograd.words import how_many

RUNS, STARTS, WAITS = "runs", "starts", "waits"
COLORS = {RUNS: "sky", STARTS: "vermilion", WAITS: "grey"}
MAX_LANES = 20


def timeline(schedule: Timetable, role: Role = "predicted") -> Lanes:
    """Return the first jobs as lanes, in hours or minutes: waiting, starting, running with a number of GPUs."""
    shown = range(min(MAX_LANES, len(schedule.jobs)))
    unit, scale = _unit(max(float(schedule.ended_s[i]) for i in shown))
    spans = []
    for i in shown:
        at = schedule.jobs[i].arrival_s
        for stay in _stays_of(schedule, i):
            if stay.start_s > at:
                spans.append(Span(i, WAITS, at / scale, stay.start_s / scale))
            part = STARTS if stay.is_paused else RUNS
            note = "" if stay.is_paused else str(stay.size.workers)
            spans.append(Span(i, part, stay.start_s / scale, stay.end_s / scale, note))
            at = stay.end_s
    return Lanes(f"time, {unit}", [schedule.jobs[i].name for i in shown], spans, [], [], COLORS, role)


def in_use(schedule: Timetable, pool: Pool) -> Lines:
    """Return the GPUs that jobs hold over time, as steps."""
    unit, scale = _unit(float(schedule.ended_s.max()))
    times, counts = zip(*_held(schedule), strict=True)
    x = [float(at) / scale for at in times for _ in range(2)][1:]
    y = [count for count in counts for _ in range(2)][:-1]
    steps = Series("in use", "predicted", x, y)
    return Lines(f"time, {unit}", f"{pool.title}s in use", [steps], from_zero=True, most_y=pool.gpus)


def timeline_of_schedule(schedule: Timetable, title: str) -> dict[str, Any]:
    """Return a schedule as trace events: a process for each job, and a counter. Its seconds are those of the viewer.

    Args:
        title: of a GPU.
    """
    events = list[Event]()
    for i, job in enumerate(schedule.jobs):
        events += named(i, job.name, ("size",))
        at = job.arrival_s
        for stay in _stays_of(schedule, i):
            events += event(0, WAITS, at, stay.start_s - at, "wait", process=i)
            text = STARTS if stay.is_paused else how_many(stay.size.workers, "workers")
            sizes = {"workers": stay.size.workers, "servers": stay.size.servers}
            events += event(0, text, stay.start_s, stay.end_s - stay.start_s, "run", sizes, i)
            at = stay.end_s
    return trace_file([*events, *(counter(f"{title} in use", at, {"count": count}) for at, count in _held(schedule))])


def _stays_of(schedule: Timetable, index: int) -> list[Stay]:
    """Return the stays of a job, in order."""
    return sorted((stay for stay in schedule.stays if stay.index == index), key=lambda stay: stay.start_s)


def _held(schedule: Timetable) -> list[tuple[float, int]]:
    """Return the times at which the number of GPUs in use changes, and the number from then on."""
    changes: dict[float, int] = {}
    for stay in schedule.stays:
        for at, change in ((stay.start_s, stay.size.workers), (stay.end_s, -stay.size.workers)):
            changes[at] = changes.get(at, 0) + change
    held = list(zip(sorted(changes), accumulate(changes[at] for at in sorted(changes)), strict=True))
    return held or [(0.0, 0)]  # no job needed time


def _unit(end_s: float) -> tuple[str, float]:
    """Return the unit of a time axis that ends there, and its seconds."""
    return ("h", 3600.0) if end_s >= 7200 else ("min", 60.0) if end_s >= 120 else ("s", 1.0)
