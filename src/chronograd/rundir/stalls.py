"""Stalls of a run: steps, and moments between steps, in which all ranks stood still for a reason other than the work.

If a rank was stopped for 25 s, or a link was down, that step does not show the usual step time. So step times leave out such
steps, and stalls are reported separately. A step is a stall in two cases:

- A rank logged that its process was stopped, or that a connection did not answer (chronograd.rundir.steps.Stall). The step
  must also take at least 1.5 times as long as usual.
- It took over a second and five times the third quartile of the step times, and such steps are few. If there are many, they
  are not accidents: a loader that sometimes fetches its next file is part of the step time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from chronograd.record import OWN_PARTS, WARMUP, Quantity
from chronograd.rundir.steps import MIN_STALL_S, Stall, StepLine, StepLog
from chronograd.units import seconds
from chronograd.words import listed

Reason = Literal["stopped", "link", "rank", "waiting"]
FACTOR, KNOWN_FACTOR = 5.0, 1.5
# Limit on unexplained long steps: a number, and a share of the steps.
MAX_FEW = 3
MAX_FEW_SHARE = 0.01
MAX_NAMED = 5  # stalls that get a separate sentence
# Places at which ranks read or write, as text.
_DISKS = {"input": "reading its batch", "transfer": "copying its batch", "checkpoint": "writing a checkpoint"}


@dataclass(frozen=True)
class Stalled:
    """One stall.

    Attributes:
        step: the step that stalled, or the last step before the stall. `is_in_step`: whether that step's time includes it.
        seconds: how much longer the step took than usual; between steps, how long the rank stood still.
        ranks: those that made the others wait; empty if all waited.
        reason: `stopped`: the process of a rank did not run. `link`: a connection did not answer. `rank`: a rank spent the time
            in some part of the work. `waiting`: all waited.
        text: the event, as a clause.
    """

    step: int
    seconds: float
    ranks: tuple[int, ...]
    reason: Reason
    text: str
    is_in_step: bool = True


@dataclass(frozen=True)
class Stalls:
    """All stalls of a run, in order of steps; `usual_s` is the median of its other steps."""

    found: tuple[Stalled, ...] = ()
    usual_s: float = 0.0

    @cached_property
    def steps(self) -> set[int]:
        """Return the steps that contain a stall."""
        return {one.step for one in self.found if one.is_in_step}

    @property
    def in_steps_s(self) -> float:
        return sum(one.seconds for one in self.found if one.is_in_step)

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.found)

    def between(self, first: int, last: int) -> float:
        """Return the seconds of the stalls within the steps from `first` to `last`."""
        return sum(one.seconds for one in self.found if one.is_in_step and first <= one.step <= last)

    def sentences(self) -> list[str]:
        """Return a sentence for each stall, the longest first; beyond five, one sentence for the rest."""
        longest = sorted(self.found, key=lambda one: -one.seconds)
        lines = [self._sentence(one) for one in longest[:MAX_NAMED]]
        if rest := longest[MAX_NAMED:]:
            lines.append(f"{len(rest)} more stalls took {seconds(sum(one.seconds for one in rest))}")
        return lines

    def _sentence(self, one: Stalled) -> str:
        if not one.is_in_step:
            return f"{seconds(one.seconds)} were lost after step {one.step}: {one.text}"
        took = f"step {one.step} took {seconds(one.seconds + self.usual_s)}, usually {seconds(self.usual_s)}"
        return f"{took}: {one.text}"

    def quantities(self) -> dict[str, Quantity]:
        """Return `stall_s`, the sum; nothing without stalls."""
        if not self.found:
            return {}
        sentences = "; ".join(self.sentences())
        source = f"not in the step time and the throughput. {sentences}"
        return {"stall_s": Quantity(value=self.seconds, unit="s", n=len(self.found), source=source)}

    @property
    def without(self) -> str:
        """Return words to add to the source of a step time; empty if no step is left out."""
        count = len(self.steps)
        return f", without {count} stalled step{'s' * (count > 1)} (stall_s)" if count else ""


def stalls_of(logs: Mapping[int, StepLog]) -> Stalls:
    """Return the stalls of a run from its logs. The ranks must do each step together. Warm-up steps never count as stalls."""
    return find(
        {rank: log.last_attempt() if any(s.mode for s in log.steps) else log.steps for rank, log in logs.items()},
        {rank: log.of(Stall) for rank, log in logs.items()},
    )


def find(lines: Mapping[int, Sequence[StepLine]], events: Mapping[int, Sequence[Stall]] | None = None) -> Stalls:
    """Return the stalls as `stalls_of` does, from lines of steps and of stalls."""
    events = events or {}
    ranks = {rank: {line.step: line for line in own if line.mode != "warmup"} for rank, own in lines.items()}
    ranks = {rank: own for rank, own in ranks.items() if own}
    common = sorted(set.intersection(*map(set, ranks.values()))) if ranks else []
    first = next(iter(ranks.values()), {})
    times = {step: _time_s([own[step] for own in ranks.values()], _is_first(first, step)) for step in common}

    def noted(step: int, least_s: float | None = None) -> dict[int, list[Stall]]:
        return {rank: _within(own[step], events.get(rank, ()), least_s) for rank, own in ranks.items()}

    chosen = _stalled_steps(times, noted, _warmup(first))
    inside = {step: noted(step, MIN_STALL_S / 2) for step in chosen}
    others = [times[step] for step in common if step not in chosen]
    usual_s = float(np.median(others)) if others else 0.0
    found = [_in_step(step, times[step] - usual_s, ranks, inside[step]) for step in chosen]
    taken = {id(event) for step in chosen for own in inside[step].values() for event in own}
    rest = {rank: [e for e in own if id(e) not in taken] for rank, own in events.items()}
    found += _between(rest)
    return Stalls(tuple(sorted(found, key=lambda one: one.step)), usual_s)


def _time_s(lines: Sequence[StepLine], is_first: bool) -> float:
    """Return the time of a step on its slowest rank. In an epoch's first step the others wait for rank 0's evaluation."""
    times = [_own_time_s(line) for line in lines]
    return min(times) if is_first else max(times)


def _own_time_s(line: StepLine) -> float:
    if line.step_time_s is not None:
        return line.step_time_s
    return sum(getattr(line, name) or 0.0 for name in OWN_PARTS)


def _is_first(lines: Mapping[int, StepLine], step: int) -> bool:
    before = lines.get(step - 1)
    return before is None or before.epoch != lines[step].epoch


def _within(line: StepLine, events: Sequence[Stall], least_s: float | None = None) -> list[Stall]:
    """Return the stalls of a rank that overlap one of its steps by more than half, or by more than `least_s`."""
    begin, end = line.time - _own_time_s(line), line.time
    found = []
    for event in events:
        shared_s = min(end, event.time) - max(begin, event.time - event.seconds)
        wanted_s = event.seconds / 2 if least_s is None else least_s
        if shared_s > wanted_s if math.isfinite(shared_s) else event.step == line.step:
            found.append(event)
    return found


def _warmup(lines: Mapping[int, StepLine]) -> set[int]:
    """Return the first steps of every start, which always take longer. A measurement does not log them."""
    numbers: Counter[int] = Counter()
    found = set[int]()
    for step, line in lines.items():
        numbers[line.attempt] += 1
        if line.mode is None and numbers[line.attempt] <= WARMUP:
            found.add(step)
    return found


def _stalled_steps(
    times: Mapping[int, float], noted: Callable[[int], Mapping[int, Sequence[Stall]]], warmup: set[int]
) -> list[int]:
    if len(times) < 2:
        return []
    values = np.array([time_s for step, time_s in times.items() if step not in warmup] or list(times.values()))
    usual_s, long_s = float(np.median(values)), max(MIN_STALL_S, FACTOR * float(np.quantile(values, 0.75)))
    known = {
        step
        for step, time_s in times.items()
        if time_s >= KNOWN_FACTOR * usual_s
        and any(e.stopped_s >= MIN_STALL_S or e.links for own in noted(step).values() for e in own)
    }
    beyond = [step for step, time_s in times.items() if time_s > long_s and step not in known | warmup]
    is_few = len(beyond) <= max(MAX_FEW, MAX_FEW_SHARE * len(times)) and len(beyond) < len(times) / 4
    return sorted(known | set(beyond if is_few else ()))


def _in_step(
    step: int, lost_s: float, ranks: Mapping[int, Mapping[int, StepLine]], inside: Mapping[int, Sequence[Stall]]
) -> Stalled:
    cause = _reason(inside)
    if cause is None:
        cause = _by_parts({rank: own[step] for rank, own in ranks.items()}, lost_s)
    reason, guilty, text = cause
    return Stalled(step, lost_s, guilty, reason, text)


def _reason(events: Mapping[int, Sequence[Stall]]) -> tuple[Reason, tuple[int, ...], str] | None:
    """Return the reason that the ranks logged for stalls at one time; None if they logged only waits."""
    stopped = {rank: s for rank, own in events.items() if (s := sum(e.stopped_s for e in own)) >= MIN_STALL_S}
    if stopped:
        first = max(stopped, key=lambda rank: stopped[rank])
        place = next(e for e in events[first] if e.stopped_s)
        who = listed([f"rank {rank}" for rank in stopped])
        text = f"{who} {_was(stopped)} not running for {seconds(stopped[first])}, stopped in {place.place}"
        return "stopped", tuple(stopped), text
    links = sorted({link for own in events.values() for e in own for link in e.links.split(", ") if link})
    if links:
        waited = max((e for own in events.values() for e in own if e.links), key=lambda e: e.seconds)
        text = f"the link {listed(links)} did not answer for {seconds(waited.seconds)}, in {waited.place}"
        return "link", (), text
    busy = {rank: e for rank, own in events.items() for e in own if not e.is_waiting}
    if busy:
        first = max(busy, key=lambda rank: busy[rank].seconds)
        event = busy[first]
        used = f"it used the processor for {seconds(event.busy_s)} of these"
        what = _DISKS.get(event.place, f"in {event.place}")
        return "rank", (first,), f"rank {first} took {seconds(event.seconds)} {what}; {used}"
    return None


def _was(ranks: Mapping[int, float]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _by_parts(lines: Mapping[int, StepLine], lost_s: float) -> tuple[Reason, tuple[int, ...], str]:
    """Return the rank whose own work took long, judged by the parts of the step; if there is none, all ranks waited."""
    waits = {rank: line.exchange_wait_s or 0.0 for rank, line in lines.items()}
    own = {rank: _own_time_s(line) - waits[rank] for rank, line in lines.items()}
    first = max(own, key=lambda rank: own[rank])
    parts = {name: getattr(lines[first], name) or 0.0 for name in OWN_PARTS}
    parts["backward_s"] -= waits[first]
    if len(lines) > 1 and own[first] < lost_s / 2:
        return "waiting", (), "all ranks waited for the exchange, and none for its own work"
    longest = max(parts, key=lambda name: parts[name])
    if parts[longest] < lost_s / 2:
        return "rank", (first,), f"rank {first} took that long; which part of its work did was not timed"
    part = longest.removesuffix("_s")
    return "rank", (first,), f"rank {first} took {seconds(parts[longest])} {_DISKS.get(part, f'in {part}')}"


def _between(events: Mapping[int, Sequence[Stall]]) -> list[Stalled]:
    """Return stalls outside of steps. Stalls that several ranks logged at the same time count as one."""
    moments: list[list[tuple[int, Stall]]] = []
    for rank, event in sorted(((r, e) for r, own in events.items() for e in own), key=lambda one: one[1].time):
        if moments and event.time - event.seconds < max(e.time for _, e in moments[-1]):
            moments[-1].append((rank, event))
        else:
            moments.append([(rank, event)])
    stalled = []
    for moment in moments:
        by_rank: dict[int, list[Stall]] = {}
        for rank, event in moment:
            by_rank.setdefault(rank, []).append(event)
        if (reason := _reason(by_rank)) is not None:
            kind, guilty, text = reason
            stops = [sum(e.stopped_s for e in own) for own in by_rank.values()]
            lost_s = max(stops) if kind == "stopped" else max(e.seconds for _, e in moment)
            stalled.append(Stalled(min(e.step for _, e in moment), lost_s, guilty, kind, text, is_in_step=False))
    return stalled
