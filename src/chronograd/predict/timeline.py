"""A step over time, in the trace-event format that Perfetto and chrome://tracing open.

Each rank is a process, and each track (compute, communication) a thread. Times are in microseconds.
Source: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from chronograd.predict.prediction import Step, predict_step, rank_work
from chronograd.predict.setting import Setting
from chronograd.record import STEP_PARTS
from chronograd.rundir import RunDir
from chronograd.trace import PHASES, Trace
from chronograd.units import si

Event = dict[str, Any]
COMPUTE, COMMUNICATION = 0, 1
TRACKS = ("compute", "communication")


def timeline_of_step(trace: Trace, setting: Setting) -> dict[str, Any]:
    """Return a predicted step of one rank: its operators, its buckets of gradients, its memory.

    If the host issues a pass more slowly than the device runs it, the operators are stretched to the pass. The wait for
    stragglers follows the last bucket; the wait for input precedes the step.

    Raises: as `predict_step`.
    """
    step = predict_step(trace, setting)
    times, _ = rank_work(trace, setting.batch_per_rank, setting)
    title = f"{trace.network}, rank 0 of {setting.count} on {setting.device.title} (predicted)"
    return trace_file([*named(0, title), *_predicted(trace, setting, step, times)])


def _predicted(trace: Trace, setting: Setting, step: Step, times: np.ndarray) -> Iterator[Event]:
    now = 0.0
    for part in ("input_s", "transfer_s"):
        yield from event(COMPUTE, STEP_PARTS[part], now, step.parts[part])
        now += step.parts[part]
    live = trace.live_bytes(setting.batch_per_rank) + step.memory.optimizer_state
    codes = trace.columns["phase"]
    for code, phase in enumerate(PHASES[:2]):
        chosen = np.flatnonzero(codes == code)
        length = step.parts[f"{phase}_s"]
        stretched = times[chosen] * (length / max(float(times[chosen].sum()), 1e-30))
        starts = now + np.cumsum(stretched) - stretched
        for i, start, seconds in zip(chosen.tolist(), starts.tolist(), stretched.tolist(), strict=True):
            op = trace.operators[i]
            if op.kind != "view":
                details = {"kind": op.kind, "module": op.module, "MACs": op.macs.at(setting.batch_per_rank)}
                yield from event(COMPUTE, op.name, start, seconds, phase, details)
                yield counter("memory", start, {"bytes": float(live[i])})
        if phase == "backward":
            for bucket in step.communication.buckets:
                details = {"bytes": bucket.size_bytes, "algorithm": setting.algorithm}
                name = f"all-reduce {si(bucket.size_bytes, 'B')}"
                yield from event(COMMUNICATION, name, now + bucket.start_s, bucket.seconds, "communication", details)
        now += length
    exposed = step.parts["communication_exposed_s"]
    wait = step.straggler_wait_s
    yield from event(COMMUNICATION, "wait for the slowest rank", now + exposed - wait, wait)
    yield from event(COMPUTE, STEP_PARTS["update_s"], now + exposed, step.parts["update_s"])


def timeline_of_run(run: RunDir) -> dict[str, Any]:
    """Return the measured steps of a run, one process per rank, from the log of each rank.

    Steps follow each other without a gap. Steps timed in parts show the parts; steps without exchange are marked. A run
    contains no memory and no operators. The actors and learners of an agent's run have a process each, if the record contains
    their times.
    """
    events: list[Event] = []
    for rank in run.ranks():
        events += named(rank, f"rank {rank} (measured)", TRACKS[:1])
        now = 0.0
        log = run.read_steps(rank)
        is_timed = any(line.mode is not None for line in log.steps)  # measured, each attempt from its start
        for line in log.last_attempt() if is_timed else log.steps:
            found = {name: value for name in STEP_PARTS if (value := getattr(line, name)) is not None}
            length = max(sum(found.values()), line.step_time_s or 0.0)
            title = f"step {line.step}" + (" without exchange" if line.mode == "no_exchange" else "")
            events += event(COMPUTE, title, now, length, "step", {"attempt": line.attempt}, rank)
            start = now
            for name, seconds in found.items():
                events += event(COMPUTE, STEP_PARTS[name], start, seconds, "part", process=rank)
                start += seconds
            now += length
    return trace_file([*events, *(_of_agents(run, len(run.ranks())) if run.is_finished else ())])


def _of_agents(run: RunDir, first: int) -> Iterator[Event]:
    """Yield the actors and learners of an agent's run, as processes numbered from `first`; nothing for other runs."""
    rows = run.record().tables.timeline
    parts = {part: first + i for i, part in enumerate(sorted({(row.role, row.number) for row in rows}))}
    for (role, number), process in parts.items():
        yield from named(process, f"{role} {number} (measured)", TRACKS[:1])
    for row in rows:
        process = parts[row.role, row.number]
        yield from event(COMPUTE, "at work", row.start, row.end - row.start, process=process)


def event(
    track: int,
    name: str,
    start_s: float,
    seconds: float,
    kind: str = "part",
    args: Event | None = None,
    process: int = 0,
) -> Iterator[Event]:
    """Yield a complete event; nothing if its duration is 0."""
    if seconds > 0:
        span = {"ts": _us(start_s), "dur": _us(seconds)}
        yield {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": track, **span, "args": args or {}}


def named(process: int, title: str, tracks: tuple[str, ...] = TRACKS) -> Iterator[Event]:
    """Yield the names of a process and its tracks."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    for track, name in enumerate(tracks):
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(float(seconds) * 1e6, 4)


def counter(name: str, at_s: float, values: Mapping[str, float]) -> Event:
    """Return the value of a counter from a time on."""
    return {"ph": "C", "name": name, "pid": 0, "ts": _us(at_s), "args": dict(values)}


def trace_file(events: list[Event]) -> dict[str, Any]:
    """Return the content of a file with these events."""
    return {"traceEvents": events, "displayTimeUnit": "ms"}
