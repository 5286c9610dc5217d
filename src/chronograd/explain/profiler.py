"""Evidence from traces of torch.profiler, as written by `export_chrome_trace` and `tensorboard_trace_handler`.

There is one file per rank. Files with the same world size above one, the same kind of device and overlapping times are ranks of
one run. Other files are separate runs. A trace that captures a graph shows little, because kernels do not run during capture.
Steps are those of `profiler.step()`, else from one optimizer step to the next; else the whole trace is one step, with a wider
interval. On a device, a step begins with the first kernel that was launched in it. Within a step

    input    `enumerate(DataLoader)` on the thread that steps; in a trace with kernels, while the device is idle
    update   `Optimizer.step`; forward is `DistributedDataParallel.forward` if there is one
    wait     collectives (kernels of NCCL and others, gloo's calls) without computation
    copies   of memory, without computation or exchange; in a trace with kernels
    launch   in a trace with kernels the rest: the device is idle; else operators shorter than SHORT_US and the time
             between operators

If a trace has several devices, the busiest is reported. Left out: Python work of a rank during a collective counts as waiting.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import ChronogradError, FileFormatError
from chronograd.explain import trace_file
from chronograd.explain.device_time import MAX_KERNELS, Activity, device_time, is_communication, is_waiting
from chronograd.explain.evidence import Evidence, Rank
from chronograd.explain.intervals import Intervals
from chronograd.files import without_collection
from chronograd.rundir.steps import Start

# 3,000 years; the clock of a trace counts microseconds since 1970, or since the machine was started.
LATEST_US = 1e17
# Shorter steps are not real: a clock of nanoseconds cannot time them.
SHORTEST_US = 1e-3
# A shorter operator on the CPU spends most of its time on call overhead.
SHORT_US = 20.0
CAPTURE = "the trace captures a graph, and kernels do not run during capture: profile its replays"
_CALLS = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel", "record_param_comms")
# Names of 2021 and of today. Other categories are ignored, such as Python frames, often nine in ten of all events.
_CATEGORIES = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "copy", "gpu_memset": "copy", "Memcpy": "copy", "Memset": "copy",
    "cuda_runtime": "runtime", "cuda_driver": "runtime", "Runtime": "runtime",
    "cpu_op": "operator", "Operator": "operator", "user_annotation": "annotation", "": "annotation",
}  # fmt: skip
# Marks of steps and their parts, which older versions and torch_npu write as operators.
_MARKS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.")
# Task types of Ascend's devices, from torch_npu: rows without a category. Others are waits and records of events.
_TASKS = ((re.compile(r"AI_|AIC|AIV|MIX_|FFTS|HCCL"), "kernel"), (re.compile("MEMCPY|SDMA"), "copy"))


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    category: str
    start: float
    end: float
    thread: str
    device: str = ""
    correlation: Any = None


@dataclass
class _Events:
    """Events of one trace, by kind."""

    kernels: list[_Event] = field(default_factory=list)
    copies: list[_Event] = field(default_factory=list)
    calls: list[_Event] = field(default_factory=list)
    operators: list[_Event] = field(default_factory=list)
    annotations: list[_Event] = field(default_factory=list)

    @property
    def on_host(self) -> list[_Event]:
        return self.annotations + self.operators

    @property
    def on_device(self) -> list[_Event]:
        return self.kernels + self.copies


def read(paths: Sequence[Path]) -> list[Evidence]:
    """Read one piece of evidence per world, or per trace of one rank.

    Raises FileFormatError for a file that is not a trace, ChronogradError for a trace without the parts of a step.
    """
    names = Counter(path.name for path in paths)
    traces: list[_Trace] = []
    for path in paths:
        with without_collection():
            trace = trace_file.load(path)
        stated = trace.get("distributedInfo")
        stated = stated if isinstance(stated, dict) else {}
        number, world = stated.get("rank", 0), stated.get("world_size")
        is_number = isinstance(number, int) and number >= 0
        if not (is_number and (world is None or (isinstance(world, int) and number < world))):
            raise FileFormatError(f"{path} states rank {number!r} of {world!r}", "write the trace again")
        with without_collection():
            events = _sorted_out(trace["traceEvents"])
            rank = _rank(path, trace, events)
            notes = tuple(trace_file.contradictions(trace["traceEvents"], events.kernels))
        name = path.name if names[path.name] == 1 else f"{Path(os.path.realpath(path)).parent.name}/{path.name}"
        traces.append(_Trace(name, number, world, rank, _device_name(trace, ""), _span_us(trace, events), notes))
    alone = [_alone(one) for one in traces if one.world in (None, 1)]
    return [*alone, *map(_evidence, _runs([one for one in traces if one.world not in (None, 1)]))]


@dataclass(frozen=True)
class _Trace:
    """One trace: its rank, device, and start and end in microseconds."""

    name: str
    number: int
    world: int | None
    rank: Rank
    device: str
    span_us: tuple[float, float]
    notes: tuple[str, ...] = ()

    def goes_with(self, run: Sequence[_Trace]) -> bool:
        """Return whether it can be another rank of a run: same world size, same kind of device, overlapping time."""
        is_alike = (self.world, self.device) == (run[0].world, run[0].device)
        low, high = min(one.span_us[0] for one in run), max(one.span_us[1] for one in run)
        is_new = all(one.number != self.number for one in run)
        return is_alike and is_new and self.span_us[0] <= high and low <= self.span_us[1]


def _runs(traces: Sequence[_Trace]) -> list[list[_Trace]]:
    """Return the traces of each run, in the given order; a repeated rank starts another run."""
    runs: list[list[_Trace]] = []
    for trace in sorted(traces, key=lambda one: one.span_us):
        own = next((run for run in runs if trace.goes_with(run)), None)
        if own is None:
            runs.append([trace])
        else:
            own.append(trace)
    order = {id(trace): number for number, trace in enumerate(traces)}
    runs = [sorted(run, key=lambda one: order[id(one)]) for run in runs]
    return sorted(runs, key=lambda run: order[id(run[0])])


def _span_us(trace: dict[str, Any], events: _Events) -> tuple[float, float]:
    """Return the start of the first event and the end of the last, since 1970 if the trace states when its clock began."""
    every = events.on_host + events.on_device + events.calls
    base = trace.get("baseTimeNanoseconds")
    base_us = base / 1e3 if isinstance(base, (int, float)) and abs(base) < 1e3 * LATEST_US else 0.0
    return base_us + min(one.start for one in every), base_us + max(one.end for one in every)


def events_of(path: Path) -> _Events:
    """Return the events of one trace by kind. Raises FileFormatError for a file that is not a trace."""
    with without_collection():
        return _sorted_out(trace_file.load(path)["traceEvents"])


def _alone(trace: _Trace) -> Evidence:
    """Return the evidence of the only trace of a run, or of one that does not state the number of ranks."""
    number, rank, notes = trace.number, trace.rank, trace.notes
    if trace.world is None and (number > 0 or float(np.nansum(rank.wait_s)) > 0):
        least = max(2, number + 1)
        unknown = f"the trace does not state the number of ranks: {least} or more"
        return _with_notes(Evidence(trace.name, "profile", least, {number: rank}, notes=(*notes, unknown)))
    return _with_notes(Evidence(trace.name, "profile", 1, {0: rank}, notes=notes))


def _evidence(run: Sequence[_Trace]) -> Evidence:
    """Return the evidence of the ranks of one run."""
    shortest, world = min(len(one.rank.step_s) for one in run), run[0].world or 1
    ranks = {one.number: _cut(one.rank, shortest) for one in sorted(run, key=lambda one: one.number)}
    missing = () if len(ranks) == world else (f"you gave traces of {len(ranks)} of {world} ranks",)
    notes = tuple(f"rank {one.number}: {note}" for one in run for note in one.notes)
    return _with_notes(Evidence(run[0].name, "profile", world, ranks, notes=(*notes, *missing)))


def _with_notes(run: Evidence) -> Evidence:
    """Return the evidence with the number of steps, and a note if there is only one."""
    num_steps = len(run.first.step_s)
    one = "the trace has one step, or no marked steps (profiler.step() after each): intervals assume the usual variation of steps"
    notes = [*run.notes, *([one] if num_steps == 1 else []), *([CAPTURE] if run.captures_graph else [])]
    return replace(run, num_steps=num_steps, notes=tuple(notes))


def _cut(rank: Rank, steps: int) -> Rank:
    return replace(
        rank,
        step_s=rank.step_s[:steps],
        input_s=rank.input_s[:steps],
        wait_s=rank.wait_s[:steps],
        parts={name: values[:steps] for name, values in rank.parts.items()},
        launch_s=rank.launch_s[:steps],
        copies_s=rank.copies_s[:steps],
    )


def _rank(path: Path, trace: dict[str, Any], events: _Events) -> Rank:
    steps = _steps(events)
    if not (events.on_device or events.operators or steps):
        trace_file.check_writer(path, trace["traceEvents"], {name for name in _CATEGORIES if name})
    trace_file.check_steps(path, steps, events.kernels)
    if not events.on_device:
        _check_host(path, trace, events, steps)
        return _of_host(trace, events, steps)
    captures = any("StreamBeginCapture" in e.name for e in events.calls)
    return replace(_of_device(trace, events, steps), captures_graph=captures)


def _check_host(path: Path, trace: dict[str, Any], events: _Events, steps: Sequence[_Event]) -> None:
    """Raise ChronogradError if the trace does not contain the work, or marks no steps."""
    trace_file.check_devices(path, trace["traceEvents"], set(_CATEGORIES))
    stated = trace.get("distributedInfo")
    is_nccl = isinstance(stated, dict) and stated.get("backend") == "nccl"
    launches = sum("aunch" in e.name for e in events.calls)
    if any("StreamBeginCapture" in e.name for e in events.calls):
        raise ChronogradError(f"{path} has no kernel of a device", CAPTURE)
    if launches or is_nccl:
        reason = f"{launches:,} launches of kernels" if launches else "ranks that exchange with NCCL, so on GPUs"
        raise ChronogradError(
            f"{path} has {reason}, but no kernel: device activity is missing",
            "profile with ProfilerActivity.CUDA, and without counters of CUPTI",
        )
    if not steps:
        raise ChronogradError(
            f"{path} has no kernel of a device, and 0 whole steps; at least one is needed",
            "call profiler.step() after each step",
        )


def _of_host(trace: dict[str, Any], events: _Events, steps: Sequence[_Event]) -> Rank:
    """Return a rank that computes on the CPU."""
    main = steps[0].thread
    operators = [e for e in events.operators if not e.name.startswith(("c10d::", *_CALLS))]
    comm = _union([e for e in events.on_host if e.name.startswith(_CALLS)])
    busy, inputs = _union(operators), _union(_named(events, main, "enumerate(DataLoader)"))
    lows, highs = np.array([s.start for s in steps]), np.array([s.end for s in steps])
    wait = (comm | busy).within(lows, highs) - busy.within(lows, highs)
    # Visible work: input, operators that are not short, and exposed exchange.
    working = inputs | _work_intervals(operators, main)
    seen = (
        working.within(lows, highs) + (comm | busy | inputs).within(lows, highs) - (busy | inputs).within(lows, highs)
    )
    return Rank(
        (highs - lows) / 1e6,
        inputs.within(lows, highs) / 1e6,
        wait / 1e6,
        _parts(events, main, lows, highs),
        start=_start(trace, "cpu", ""),
        operators=_longest_operators(operators, float(lows[0]), float(highs[-1])),
        launch_s=np.maximum(0.0, highs - lows - seen) / 1e6,
    )


def _of_device(trace: dict[str, Any], events: _Events, steps: Sequence[_Event]) -> Rank:
    """Return a rank that computes on a device; windows begin with the first kernel that was launched in a step."""
    by_device: dict[str, float] = {}
    for event in events.on_device:
        by_device[event.device] = by_device.get(event.device, 0.0) + event.end - event.start
    device = max(by_device, key=lambda name: by_device[name])
    kernels = [e for e in events.kernels if e.device == device]
    copies = [e for e in events.copies if e.device == device]
    is_exchange = {name: is_communication(name) for name in {e.name for e in kernels}}
    computing = [e for e in kernels if not is_exchange[e.name]]
    main = steps[0].thread if steps else None
    activity = Activity(
        computing=_union(computing),
        communicating=_union([e for e in kernels if is_exchange[e.name]]),
        copying=_union(copies),
        inputs=_union(_named(events, main, "enumerate(DataLoader)")),
        waits=_union([e for e in events.calls if is_waiting(e.name)]),
    )
    if not len(activity.busy):
        raise ChronogradError("all kernels of the trace have zero duration", "profile again, with a finer clock")
    edges = _edges(events.calls, computing or kernels, steps, activity.span) if kernels else np.array(activity.span)
    lows, highs = edges[:-1], edges[1:]
    parts_K = {name: np.maximum(0.0, value) / 1e6 for name, value in activity.parts(lows, highs).items()}
    name = _device_name(trace, device)
    busiest = f"{name}, the busiest of {len(by_device)} in the trace".lstrip(", ") if len(by_device) > 1 else name
    summary = device_time(busiest, activity, [(e.name, e.end - e.start) for e in kernels])
    return Rank(
        (highs - lows) / 1e6,
        parts_K["input"],
        parts_K["exposed"],
        _parts(events, main, lows, highs),
        start=_start(trace, "npu" if name.startswith(trace_file.ASCEND) else "cuda", name),
        launch_s=parts_K["launching"] + parts_K["synchronizing"],
        copies_s=parts_K["copies"],
        device=summary,
    )


def _edges(
    calls: Sequence[_Event], kernels: Sequence[_Event], steps: Sequence[_Event], span: tuple[float, float]
) -> np.ndarray:
    """Return where steps begin on the device: with the first kernel of its busiest stream that was launched in the step.

    The time after the last of these is only part of a step, and is left out. With less than three steps, return the device's
    span.
    """
    if len(steps) < 3:
        return np.array(span)
    by_stream: dict[str, float] = {}
    for event in kernels:
        by_stream[event.thread] = by_stream.get(event.thread, 0.0) + event.end - event.start
    stream = max(by_stream, key=lambda name: by_stream[name])
    own = [e for e in kernels if e.thread == stream]
    launched_at = {e.correlation: e.start for e in calls if e.correlation is not None}
    launch = np.array([launched_at.get(e.correlation, e.start) for e in own])
    order = np.argsort(launch, kind="stable")
    starts = np.array([e.start for e in own])[order]
    next_start = np.append(np.minimum.accumulate(starts[::-1])[::-1], np.inf)
    firsts = next_start[np.searchsorted(launch[order], np.array([step.start for step in steps]))]
    edges = np.unique(firsts[np.isfinite(firsts)])
    if not len(edges):
        return np.array(span)
    edges = edges[np.concatenate([[True], np.diff(edges) >= SHORTEST_US])]
    return edges if len(edges) > 1 else np.array(span)


def _parts(events: _Events, main: str | None, lows: np.ndarray, highs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the host time in each window, for the parts that the host marks."""
    prefixes = {
        "input_s": "enumerate(DataLoader)",
        "update_s": "Optimizer.step",
        "forward_s": "DistributedDataParallel.forward",
    }
    marked = {name: _union(_named(events, main, prefix)) for name, prefix in prefixes.items()}
    return {name: held.within(lows, highs) / 1e6 for name, held in marked.items() if len(held) or name != "forward_s"}


def _start(trace: dict[str, Any], device: str, device_name: str) -> Start:
    devices = trace.get("deviceProperties")
    names = [d.get("name") or "GPU" for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    given = f"deviceProperties: {len(names)} × {names[0]}" if names else ""
    return Start(device=device, device_name=device_name or None, threads=None, gpus_given=given)


def _device_name(trace: dict[str, Any], number: str) -> str:
    """Return the name of a device by its number, if the trace has it."""
    devices = trace.get("deviceProperties")
    known = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    own = [d for d in known if str(d.get("id")) == number] or known
    name = own[0].get("name") if own else trace_file.process_name(trace["traceEvents"], number)
    return name if isinstance(name, str) else ""


def _sorted_out(raw_events: list[Any]) -> _Events:
    """Return complete events with a duration, by category, without others and damaged ones."""
    events = _Events()
    lists = {
        "kernel": events.kernels, "copy": events.copies, "runtime": events.calls, "operator": events.operators,
        "annotation": events.annotations,
    }  # fmt: skip
    for raw in raw_events:
        if not isinstance(raw, dict) or raw.get("ph") != "X":
            continue
        name = raw.get("name")
        if not isinstance(name, str) or (category := _category(raw, name)) is None:
            continue
        start, duration = trace_file.number(raw.get("ts")), trace_file.number(raw.get("dur"))
        if start is None or duration is None:
            continue
        if not (abs(start) < LATEST_US and 0 <= duration < LATEST_US):  # nor nan
            continue
        args = raw.get("args") if category in ("kernel", "copy", "runtime") else None
        args = args if isinstance(args, dict) else {}
        correlation = args.get("correlation")
        lists[category].append(
            _Event(name, category, start, start + duration, str(raw.get("tid")),
                   str(args.get("device", raw.get("pid", ""))) if category in ("kernel", "copy") else "",
                   correlation if isinstance(correlation, (int, str)) else None)
        )  # fmt: skip
    return events


def _category(raw: dict[str, Any], name: str) -> str | None:
    """Return the kind of an event by its category, or by the task type of an Ascend device; None if it is not used."""
    stated, args = str(raw.get("cat", "")), raw.get("args")
    task = args.get("Task Type") if not stated and isinstance(args, dict) else None
    if task is not None:
        return next((kind for words, kind in _TASKS if words.search(str(task).upper())), None)
    if not stated and name.startswith("hcom_"):  # collectives of Ascend have no task type
        return "kernel"
    category = _CATEGORIES.get(stated)
    return "annotation" if category == "operator" and name.startswith(_MARKS) else category


def _steps(events: _Events) -> list[_Event]:
    """Return ProfilerStep annotations on the host, else intervals from one end of Optimizer.step to the next."""
    marked = sorted((e for e in events.on_host if e.name.startswith("ProfilerStep#")), key=lambda e: e.start)
    marked = [e for e in marked if e.end - e.start >= SHORTEST_US]
    if len(marked) >= 2:
        return marked
    ends = sorted((e for e in events.on_host if e.name.startswith("Optimizer.step")), key=lambda e: e.end)
    between = [_Event("step", "", a.end, b.end, a.thread) for a, b in itertools.pairwise(ends)]
    between = [e for e in between if e.end - e.start >= SHORTEST_US]
    return between if len(between) > len(marked) else marked


def _named(events: _Events, thread: str | None, prefix: str) -> list[_Event]:
    """Return named events on one thread; on any thread if the stepping thread is unknown."""
    return [e for e in events.on_host if e.name.startswith(prefix) and (thread is None or e.thread == thread)]


def _union(events: Sequence[_Event]) -> Intervals:
    return Intervals.union([(e.start, e.end) for e in events])


def _work_intervals(operators: Sequence[_Event], thread: str) -> Intervals:
    """Return when operators on a thread do work themselves, without short ones."""
    own = [e for e in operators if e.thread == thread]
    alone = [pieces for _, pieces in _by_themselves(own) if _length(pieces) >= SHORT_US]
    return Intervals.union([piece for pieces in alone for piece in pieces])


def _longest_operators(operators: Sequence[_Event], low: float, high: float) -> tuple[tuple[str, float], ...]:
    """Return the operators with the largest self time, in seconds over all threads, largest first."""
    totals: dict[str, float] = {}
    for thread in {e.thread for e in operators}:
        for event, pieces in _by_themselves([e for e in operators if e.thread == thread and low <= e.start < high]):
            totals[event.name] = totals.get(event.name, 0.0) + _length(pieces)
    dearest = sorted(totals.items(), key=lambda item: -item[1])[:MAX_KERNELS]
    return tuple((name, us / 1e6) for name, us in dearest)


def _length(pieces: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in pieces)


def _by_themselves(operators: Sequence[_Event]) -> list[tuple[_Event, list[tuple[float, float]]]]:
    """Return the operators of one thread, each with its intervals outside the operators that it calls."""
    own = sorted(operators, key=lambda e: (e.start, -e.end))
    inner: list[list[_Event]] = [[] for _ in own]
    holding: list[int] = []
    for number, event in enumerate(own):
        while holding and own[holding[-1]].end <= event.start:
            holding.pop()
        if holding:
            inner[holding[-1]].append(event)
        holding.append(number)
    return [(event, _between(event, held)) for event, held in zip(own, inner, strict=True)]


def _between(event: _Event, held: Sequence[_Event]) -> list[tuple[float, float]]:
    """Return the parts of an event outside its sorted inner events."""
    pieces, at = [], event.start
    for one in held:
        if one.start > at:
            pieces.append((at, min(one.start, event.end)))
        at = max(at, one.end)
    return [*pieces, (at, event.end)] if at < event.end else pieces
