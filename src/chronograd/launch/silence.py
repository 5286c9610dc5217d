"""Reports on ranks that make no progress: since when, and whether the process is stopped, waiting or running.

A launcher may call `look` at any rate. Once a second it reads the ranks' notes (chronograd.train.watchdog) and, for ranks on
this machine, the state of their processes. It reports

- a stopped process, at the second look;
- ranks that have waited in a collective for ten seconds, or up to 18 if waits of some seconds are usual. The report names the
  rank that they wait for, or the link if all wait;
- a rank that has neither moved nor used the processor for that time.

It does not report a rank that computes for long while no other rank waits for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from chronograd.errors import printable
from chronograd.rundir import RunDir
from chronograd.rundir.steps import wall_clock_s
from chronograd.train.processes import ENDED, STOPPED, state_of
from chronograd.train.watchdog import Note, note_path, read_note
from chronograd.units import seconds
from chronograd.words import listed

EVERY_S = 1.0
# A rank may stand still for PATIENCE_S, or PATIENCE_FACTOR times the longest pause in a step so far, up to a limit.
PATIENCE_S = 10.0
PATIENCE_FACTOR = 5.0
MAX_PATIENCE_S = 18.0
# Each report waits this many times as long as the one before.
NEXT_FACTOR = 2.0
# A process that used the processor for a smaller share of a second counts as waiting.
IDLE_SHARE = 0.1


@dataclass(frozen=True)
class Seen:
    """The state of a rank at a look: its note, how long it has stood there, and the state of its process, empty if unknown.

    `looks`: how often in a row its process was seen stopped. `idle_s`: for how long it has not used the processor.
    """

    note: Note
    stood_s: float
    state: str = ""
    used_s: float = 0.0
    looks: int = 0
    idle_s: float = 0.0


def tell(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)  # a rank's note is a file, whose text we do not trust


class Silence:
    """A watcher of the ranks of a run, whose notes come and go; `say` prints a line."""

    def __init__(self, run: RunDir, world_size: int, say: Callable[[str], None] = tell) -> None:
        self._run, self._world_size, self._say = run, world_size, say
        self._seen: dict[int, Seen] = {}
        self._looked_s = -EVERY_S
        self._longest_s = 0.0
        self._told: dict[int, float] = {}  # by reported rank: how long it had stood still at the last report

    def look(self) -> None:
        """Read notes and report, if a second has passed since the last time."""
        now_s = time.monotonic()
        if now_s - self._looked_s < EVERY_S:
            return
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        notes = {rank: note for rank in range(self._world_size) if (note := read_note(note_path(self._run, rank)))}
        self.take({rank: self._now(rank, note, elapsed_s) for rank, note in notes.items()})

    def _now(self, rank: int, note: Note, elapsed_s: float) -> Seen:
        before = self._seen.get(rank)
        if not note.is_here:  # its clock may differ from ours
            if before is None or _at(before.note) != _at(note):
                return Seen(note, 0.0)
            return Seen(note, before.stood_s + elapsed_s)
        seen = Seen(note, max(0.0, wall_clock_s() - note.time))
        state, used = state_of(note.process)
        if before is None or before.note.process != note.process:
            return replace(seen, state=state, used_s=used, looks=int(state == STOPPED))
        is_idle = used - before.used_s < IDLE_SHARE * elapsed_s
        return replace(
            seen,
            state=state,
            used_s=used,
            looks=before.looks + 1 if state == STOPPED else 0,
            idle_s=before.idle_s + elapsed_s if is_idle else 0.0,
        )

    def take(self, seen: Mapping[int, Seen]) -> None:
        """Report ranks that make no progress, and reported ranks that continue, from one look at all ranks."""
        for rank, before in self._seen.items():
            now = seen.get(rank)
            if now is not None and _at(now.note) == _at(before.note):
                continue
            if self._told.pop(rank, None) is None:
                self._longest_s = max(self._longest_s, before.stood_s if before.note.step else 0.0)
            elif now is not None:
                self._say(f"rank {rank} goes on, after {seconds(before.stood_s)} in {before.note.place}")
        self._seen = dict(seen)
        patience_s = min(MAX_PATIENCE_S, max(PATIENCE_S, PATIENCE_FACTOR * self._longest_s))
        for ranks, text in _complaints(seen, self._world_size, patience_s):
            stood_s = max((seen[rank].stood_s for rank in ranks if rank in seen), default=0.0)
            last_s = max(self._told.get(rank, 0.0) for rank in ranks)
            if stood_s >= NEXT_FACTOR * last_s or not last_s:
                self._say(text)
                self._told |= dict.fromkeys(ranks, max(stood_s, PATIENCE_S / NEXT_FACTOR))


def _at(note: Note) -> tuple[int, int, int, str, float]:
    return note.process, note.step, note.count, note.what, note.time


def _complaints(seen: Mapping[int, Seen], world_size: int, patience_s: float) -> list[tuple[tuple[int, ...], str]]:
    """Return ranks, and the sentence to print about them."""
    stopped = tuple(rank for rank, one in seen.items() if one.looks >= 2)
    if stopped:
        first = seen[stopped[0]].note
        others = [rank for rank, one in seen.items() if one.note.waits and rank not in stopped]
        wait = f"; rank {', '.join(map(str, others))} wait{'s' * (len(others) == 1)} for it" if others else ""
        where = f"{first.place}, process {first.process} on {first.site}"
        who = listed([f"rank {rank}" for rank in stopped])
        text = f"{who} {'is' if len(stopped) == 1 else 'are'} stopped in {where}{wait}; `kill -CONT {first.process}` lets it go on"
        return [(stopped, text)]
    waiting = {rank: one for rank, one in seen.items() if one.note.waits}
    long = [rank for rank, one in waiting.items() if one.stood_s >= patience_s]
    if long:
        return [_of_waiting(seen, world_size, long[0])]
    return [
        (
            (rank,),
            f"rank {rank} has been in {one.note.place} for {seconds(one.stood_s)} without using the processor; its process "
            f"{one.note.process} on {one.note.site} {one.state}",
        )
        for rank, one in seen.items()
        if not one.note.waits and min(one.stood_s, one.idle_s) >= patience_s and one.state
    ]


def _of_waiting(seen: Mapping[int, Seen], world_size: int, first: int) -> tuple[tuple[int, ...], str]:
    """Return the ranks that a rank waits for, and a sentence: ranks that are in no collective, otherwise the link."""
    one = seen[first]
    text = f"rank {first} has waited in {one.note.place} for {seconds(one.stood_s)}"
    if absent := tuple(rank for rank in range(world_size) if rank not in seen or seen[rank].state == ENDED):
        who, has = listed([f"rank {rank}" for rank in absent]), "has" if len(absent) == 1 else "have"
        return (first, *absent), f"{text}; {who} {has} not started, or {has} ended"
    if busy := tuple(rank for rank, other in seen.items() if not other.note.waits):
        longest = max(busy, key=lambda rank: seen[rank].stood_s)
        other = seen[longest]
        cause = f"rank {longest} has been in {other.note.place} for {seconds(other.stood_s)}"
        state = (
            "" if not other.state else f", and its process {other.note.process} on {other.note.site} {_doing(other)}"
        )
        return (first, longest), f"{text}; {cause}{state}"
    sites = sorted({other.note.site for other in seen.values()})
    link = f"the link between {listed(sites)} may be down" if len(sites) > 1 else "they wait for each other"
    return tuple(seen), f"{text}; so has every other rank: {link}"


def _doing(one: Seen) -> str:
    return f"{one.state} without using the processor" if one.idle_s >= 2 * EVERY_S else "uses the processor"
