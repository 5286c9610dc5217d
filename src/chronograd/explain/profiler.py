"""Evidence from traces of torch.profiler, as `export_chrome_trace` and `tensorboard_trace_handler` write them.

One file per rank; files that tell of one world size are ranks of one run. Steps are those of `profiler.step()`, else from one
optimizer step to the next. Within a step

    input   `enumerate(DataLoader)` on the thread that steps
    update  `Optimizer.step`; forward is `DistributedDataParallel.forward` where there is one
    wait    collectives (NCCL's kernels, gloo's calls) while nothing is computed
    launch  where kernels ran: the step less all that kernels, input and waiting cover; else operators shorter than
            SHORT_US and what lies between operators

Left out: what a rank does in Python while a collective is under way counts as waiting.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import ChronogradError, FileFormatError
from chronograd.explain.evidence import Evidence, Rank
from chronograd.rundir.steps import Start

LARGEST_BYTES = 4_000_000_000
# 3,000 years; the clock of a trace is microseconds since 1970, or since the machine was started.
LATEST_US = 1e17
# Steps that take less are none: a clock of nanoseconds does not see them.
SHORTEST_US = 1e-3
# An operator on the CPU that is shorter spends most of its time on being called.
SHORT_US = 20.0
_COLLECTIVE = re.compile(r"^(ncclDevKernel|ncclKernel|gloo:|nccl:|record_param_comms)")
# Sorted intervals, microseconds: starts and ends.
Intervals = list[tuple[float, float]]


@dataclass(frozen=True)
class _Event:
    name: str
    category: str
    start: float
    end: float
    thread: Any


def read(paths: Sequence[Path]) -> list[Evidence]:
    """One piece of evidence per world. Raises FileFormatError for what is no trace, ChronogradError for one without steps."""
    worlds: dict[int, dict[int, tuple[str, Rank]]] = {}
    for path in paths:
        trace = _load(path)
        told = trace.get("distributedInfo")
        told = told if isinstance(told, dict) else {}
        number, world = told.get("rank", 0), told.get("world_size", 1)
        if not (isinstance(number, int) and isinstance(world, int) and 0 <= number < world):
            raise FileFormatError(f"{path} says it is rank {number!r} of {world!r}", "write the trace again")
        ranks = worlds.setdefault(world, {})
        if number in ranks:
            raise FileFormatError(
                f"{path} and {ranks[number][0]} are both rank {number} of {world}", "give one of them"
            )
        ranks[number] = (str(path), _rank(path, trace))
    return [_evidence(world, ranks) for world, ranks in worlds.items()]


def _evidence(world: int, named: dict[int, tuple[str, Rank]]) -> Evidence:
    shortest = min(len(rank.step_s) for _, rank in named.values())
    ranks = {number: _cut(rank, shortest) for number, (_, rank) in sorted(named.items())}
    missing = () if len(ranks) == world else (f"traces of {len(ranks)} of {world} ranks were given",)
    name = Path(next(iter(named.values()))[0]).name
    return Evidence(name, "profile", world, ranks, num_steps=shortest, notes=missing)


def _cut(rank: Rank, steps: int) -> Rank:
    return Rank(
        rank.step_s[:steps],
        rank.input_s[:steps],
        rank.wait_s[:steps],
        {name: values[:steps] for name, values in rank.parts.items()},
        start=rank.start,
        launch_s=rank.launch_s[:steps],
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise FileFormatError(f"{path} has {path.stat().st_size:,} bytes", "profile fewer steps")
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(path) as stream:
                raw = stream.read(LARGEST_BYTES)
        trace = json.loads(raw)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise FileFormatError(
            f"{path} is neither a run directory nor a trace of torch.profiler: {' '.join(str(error).split())[:200]}",
            "write one with profiler.export_chrome_trace",
        ) from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise FileFormatError(f"{path} has no traceEvents", "write one with profiler.export_chrome_trace")
    return trace


def _rank(path: Path, trace: dict[str, Any]) -> Rank:
    events = [event for event in map(_event, trace["traceEvents"]) if event is not None]
    steps = [step for step in _steps(events) if step.end - step.start >= SHORTEST_US]
    if len(steps) < 2:
        raise ChronogradError(
            f"{path} has {len(steps)} whole steps; two or more are needed", "call profiler.step() after each step"
        )
    main = steps[0].thread
    kernels = [e for e in events if e.category in ("kernel", "gpu_memcpy", "gpu_memset")]
    computing = [e for e in kernels if not _COLLECTIVE.match(e.name)]
    operators = [
        e for e in events if e.category == "cpu_op" and not e.name.startswith(("c10d::", "record_param_comms"))
    ]
    comm = _union(
        (e.start, e.end) for e in events if _COLLECTIVE.match(e.name) and (bool(kernels) == (e.category == "kernel"))
    )
    busy = _union((e.start, e.end) for e in (computing or operators))
    inputs = _named(events, main, "enumerate(DataLoader)")
    updates, forwards = _named(events, main, "Optimizer.step"), _named(events, main, "DistributedDataParallel.forward")
    working = [] if kernels else _work_intervals(operators, main)
    columns: dict[str, list[float]] = {name: [] for name in ("step", "input", "wait", "update", "forward", "launch")}
    for step in steps:
        span = (step.start, step.end)
        waiting = _minus(_clip(comm, span), _clip(busy, span))
        columns["step"].append(step.end - step.start)
        columns["input"].append(_length(_clip(inputs, span)))
        columns["wait"].append(_length(waiting))
        columns["update"].append(_length(_clip(updates, span)))
        columns["forward"].append(_length(_clip(forwards, span)))
        covered = _union([*waiting, *_clip(inputs, span), *_clip(busy if kernels else working, span)])
        columns["launch"].append(step.end - step.start - _length(covered))
    seconds = {name: np.array(values) / 1e6 for name, values in columns.items()}
    parts = {"input_s": seconds["input"], "update_s": seconds["update"]}
    if forwards:
        parts["forward_s"] = seconds["forward"]
    return Rank(
        seconds["step"], seconds["input"], seconds["wait"], parts, start=_start(trace, bool(kernels)),
        launch_s=seconds["launch"],
    )  # fmt: skip


def _start(trace: dict[str, Any], has_kernels: bool) -> Start:
    devices = trace.get("deviceProperties")
    names = [d.get("name", "GPU") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    given = f"deviceProperties: {len(names)} × {names[0]}" if names else ""
    return Start(device="cuda" if has_kernels else "cpu", threads=None, gpus_given=given)


def _event(raw: Any) -> _Event | None:
    """A complete event with a duration; None for others and for damaged ones."""
    if not isinstance(raw, dict) or raw.get("ph") != "X":
        return None
    start, duration, name = raw.get("ts"), raw.get("dur"), raw.get("name")
    if not isinstance(start, (int, float)) or not isinstance(duration, (int, float)) or not isinstance(name, str):
        return None
    if not (abs(start) < LATEST_US and 0 <= duration < LATEST_US):  # nor nan
        return None
    return _Event(name, str(raw.get("cat", "")), float(start), float(start + duration), str(raw.get("tid")))


def _steps(events: Sequence[_Event]) -> list[_Event]:
    """ProfilerStep annotations on the host, else from one end of Optimizer.step to the next."""
    marked = [e for e in events if e.name.startswith("ProfilerStep#") and e.category != "gpu_user_annotation"]
    if len(marked) >= 2:
        return sorted(marked, key=lambda e: e.start)
    ends = sorted((e for e in events if e.name.startswith("Optimizer.step")), key=lambda e: e.end)
    return [_Event("step", "", a.end, b.end, a.thread) for a, b in itertools.pairwise(ends)]


def _named(events: Sequence[_Event], thread: Any, prefix: str) -> Intervals:
    return _union((e.start, e.end) for e in events if e.thread == thread and e.name.startswith(prefix))


def _work_intervals(operators: Sequence[_Event], thread: Any) -> Intervals:
    """Where operators on a thread do something themselves, less those that are short."""
    own = sorted((e for e in operators if e.thread == thread), key=lambda e: (e.start, -e.end))
    inner: list[Intervals] = [[] for _ in own]
    holding: list[int] = []
    for number, event in enumerate(own):
        while holding and own[holding[-1]].end <= event.start:
            holding.pop()
        if holding:
            inner[holding[-1]].append((event.start, event.end))
        holding.append(number)
    alone = [_minus([(e.start, e.end)], _union(held)) for e, held in zip(own, inner, strict=True)]
    return _union(interval for intervals in alone if _length(intervals) >= SHORT_US for interval in intervals)


def _union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _clip(intervals: Intervals, span: tuple[float, float]) -> Intervals:
    low, high = span
    return [(max(a, low), min(b, high)) for a, b in intervals if a < high and b > low]


def _minus(intervals: Intervals, taken: Intervals) -> Intervals:
    """What of `intervals` is in none of `taken`, both sorted and apart."""
    left: Intervals = []
    for start, end in intervals:
        at = start
        for a, b in taken:
            if b <= at:
                continue
            if a >= end:
                break
            if a > at:
                left.append((at, a))
            at = max(at, b)
        if at < end:
            left.append((at, end))
    return left


def _length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)
