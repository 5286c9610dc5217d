"""Where each rank is, where it stalled, and who is missing where the others wait. Never imports torch.

A rank notes what it does in `where.<rank>`, a small file of the run directory that is mapped into memory: a note takes
a microsecond or two, and stays readable when the rank is stopped. It counts the collectives that it has come to.

A thread of each rank wakes four times a second. A wake-up that comes more than a second late, while the process neither
used the processor nor queued for it, means that the process was stopped (SIGSTOP, a frozen container or machine). A rank
that leaves a place after ten times the usual time there writes a `Stall` line, with what the thread saw meanwhile.
When a rank has been in one collective for longer than `cluster.timeout_s`, the thread reads the notes of all ranks, names
the rank that did not come, or the link, and ends this process, upon which the launcher ends or restarts all.

Left out: ranks that all hang outside of collectives. Notes of other nodes are as old as their file system lets them be.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from chronograd.errors import RunError
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import MIN_STALL_S, Error, Stall, wall_clock_s
from chronograd.train.processes import ENDED, address_to, queued_s, state_of, unanswered

# Which start of the ranks it is, process, host; sign of life; collectives so far, step, since when, waiting or not, what;
# the address at which the rank meets the others.
_HEAD, _BEAT, _NOTE = struct.Struct("<QI32s"), struct.Struct("<Q"), struct.Struct("<Qqd?48s")
_BEAT_AT, _NOTE_AT, _ADDRESS_AT, _SIZE = 48, 64, 144, 192
# The last sign of life of a rank that ended itself, as it had waited for too long.
GAVE_UP = 2**64 - 1
# What tells one start of the ranks from the next: they meet at another place.
_START = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
GRADIENTS = "all-reduce of gradients"
TIME_OUT = "a time-out"  # how the error begins
LINK_DOWN = f"{TIME_OUT}: no rank is missing"  # how it begins where a link is to blame
# The watching thread's period; a stay at one place that is this many times the usual one is a stall.
TICK_S, STALL_FACTOR = 0.25, 10.0
# How often a standing rank's connections are looked at; the weight of the newest stay in the usual one, and how many stays of
# steps make a usual one.
LINKS_EVERY_S, NEWEST, MIN_STAYS = 2.0, 1 / 8, 3
# Seconds between signs of life that other nodes see, as a share of the time-out; bounded to spare a shared file system.
BEAT_SHARE, MIN_BEAT_S, MAX_BEAT_S = 1 / 20, 0.5, 30.0


class Now(NamedTuple):
    """Where this rank is: collectives so far, step, since when, in which collective, empty outside of any, and at which place."""

    num_met: int
    step: int
    since_s: float
    collective: str
    place: str = ""


@dataclass(frozen=True)
class Note:
    """What a rank noted.

    Attributes:
        start: the same for ranks that were started together.
        count: collectives that it has come to; `beat` grows as long as its process runs.
        waits: whether it is in a collective; `what` is its name, or that of a part of the work.
        address: at which it meets the others; empty if it does not.
    """

    start: int
    process: int
    host: str
    beat: int
    count: int
    step: int
    time: float
    waits: bool
    what: str
    address: str = ""

    @property
    def place(self) -> str:
        """Such as `backward of step 3`."""
        return _place(self.what, self.step)

    @property
    def site(self) -> str:
        """Host and address."""
        return f"{self.host} ({self.address})" if self.address else self.host

    @property
    def is_here(self) -> bool:
        """Whether this machine runs the rank, so that its system and clock know of the process."""
        return self.host == socket.gethostname()[:32]


class Watchdog:
    """The note of this process. Nothing is noted before `watch`."""

    def __init__(self) -> None:
        self.now = Now(0, 0, 0.0, "")
        self._part, self._meetings = "start-up", dict[str, str]()
        self._usual = dict[str, tuple[int, float]]()
        self._memory: mmap.mmap | None = None
        self._watcher: _Watcher | None = None

    def at(self, part: str, step: int) -> None:
        """From here on this rank does a part of a step, or something after that step."""
        if self._memory is not None:
            self._part = part
            self._write(self._meetings.get(part, ""), step, part)

    @contextlib.contextmanager
    def waiting(self, collective: str, is_counted: bool = True) -> Iterator[None]:
        """Within, this rank waits for the others. Not counted is what ranks do not do equally often."""
        if self._memory is None:
            yield
            return
        step = self.now.step
        self._write(f"{collective} ({self._part})" if step else collective, step, self._part, is_counted)
        yield  # after an error the note stays as it is: the rank is to end
        self._write("", step, self._part)

    def set_collectives(self, meetings: Mapping[str, str]) -> None:
        """Parts of a step in which ranks wait for each other, and the collectives' names."""
        self._meetings = dict(meetings)

    def _write(self, collective: str, step: int, part: str, is_counted: bool = True) -> None:
        assert self._memory is not None
        before, count = self.now, self.now.num_met + bool(collective and is_counted)
        _NOTE.pack_into(
            self._memory, _NOTE_AT, count, step, wall_clock_s(), bool(collective), (collective or part).encode()[:48]
        )
        self.now = Now(count, step, time.monotonic(), collective, collective or part)
        self._left(before, self.now.since_s - before.since_s)

    def _left(self, before: Now, stay_s: float) -> None:
        """Update the usual stay at a place that this rank left, or write that the stay was a stall."""
        stays, usual_s = self._usual.get(before.place, (0, stay_s))
        if stay_s >= MIN_STALL_S and self._watcher is not None:
            is_long = stays >= MIN_STAYS and stay_s > STALL_FACTOR * usual_s
            if self._watcher.write_stall(before, stay_s, is_long):
                return
        if before.step:
            self._usual[before.place] = stays + 1, usual_s + NEWEST * (stay_s - usual_s)

    @contextlib.contextmanager
    def watch(self, run: RunDir, rank: int, world_size: int, timeout_s: float, lines: StepWriter) -> Iterator[None]:
        """Within, this rank notes where it is and where it stalled, and ends itself where it has waited too long.

        Args:
            lines: the open steps file of this rank, for stalls and the error.
        """
        path = note_path(run, rank)
        handle, self._memory = _mapped(path)
        _HEAD.pack_into(self._memory, 0, _start(), os.getpid(), socket.gethostname().encode()[:32])
        address = address_to(os.environ.get("MASTER_ADDR", "")) if world_size > 1 else ""
        self._memory[_ADDRESS_AT : _ADDRESS_AT + len(address)] = address.encode()
        self.now, self._part, self._meetings, self._usual = Now(0, 0, time.monotonic(), ""), "start-up", {}, {}
        self._write("", 0, self._part)
        ended = threading.Event()
        watcher = _Watcher(self, self._memory, handle, run, rank, world_size, timeout_s, lines)
        thread = threading.Thread(target=watcher.work, args=(ended,), daemon=True)
        thread.start()
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None
            ended.set()
            thread.join()
            self._memory = None
            path.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)


WATCHDOG = Watchdog()  # a process is one rank


@dataclass
class _Watcher:
    """The thread that watches this rank, and what it saw.

    Attributes:
        place, busy_s: where the rank was at the last tick, and the process's seconds on the processor when it was first seen there.
        ticked_s, used_s, queued_s: at the last tick the time, seconds on the processor, and seconds that the thread queued for it.
        rate: processors that the process used before the last tick.
        stops: when the process went on after it was stopped, and for how long it was.
        links: connections that did not answer while the rank has been at this place.
    """

    where: Watchdog
    memory: mmap.mmap
    handle: int | None
    run: RunDir
    rank: int
    world_size: int
    timeout_s: float
    lines: StepWriter
    place: Now | None = None
    busy_s: float = 0.0
    ticked_s: float = field(default_factory=time.monotonic)
    used_s: float = field(default_factory=time.process_time)
    queued_s: float = field(default_factory=lambda: queued_s(0))
    rate: float = 1.0
    stops: list[tuple[float, float]] = field(default_factory=list)
    links: str = ""
    thread: int = 0
    beat: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, ended: threading.Event) -> None:
        period_s = min(MAX_BEAT_S, max(MIN_BEAT_S, self.timeout_s * BEAT_SHARE))
        self.thread = threading.get_native_id()
        synced_s = looked_s = time.monotonic()
        before: tuple[Now, float, dict[int, Note | None]] | None = None  # the first look at the others' notes, and when
        while not ended.wait(TICK_S):
            self.tick()
            self.beat += 1
            _BEAT.pack_into(self.memory, _BEAT_AT, self.beat)
            now, now_s = self.where.now, time.monotonic()
            if self.handle is not None and now_s - synced_s >= period_s:
                with contextlib.suppress(OSError):
                    os.fsync(self.handle)  # so that other nodes see it
                synced_s = now_s
            if now.collective and min(now_s - looked_s, now_s - now.since_s) >= LINKS_EVERY_S:
                self.links, looked_s = unanswered() or self.links, now_s
            if not now.collective or self.world_size == 1 or now_s - now.since_s < self.timeout_s:
                before = None
            elif before is None or before[0] is not now:
                before = now, now_s, self._notes()
            elif now_s - before[1] >= 2.5 * period_s:
                blamed = self._blame(now, before[2], self._notes())
                if blamed is not None and self.where.now is now:
                    self._end(*blamed)
                before = None

    def tick(self) -> None:
        """Notice whether the process was stopped since the last tick.

        The watching thread is late, too, where it queues for a processor, or the first thread does and holds the interpreter's lock.
        """
        with self.lock:
            now_s, used_s, queued_now_s = time.monotonic(), time.process_time(), queued_s(self.thread)
            elapsed_s, busy_s = now_s - self.ticked_s, used_s - self.used_s
            late_s = elapsed_s - TICK_S - (queued_now_s - self.queued_s)
            if late_s >= MIN_STALL_S and busy_s - self.rate * TICK_S < late_s / 2:
                self.stops.append((now_s, late_s + TICK_S / 2))
            elif elapsed_s >= TICK_S / 2:
                self.rate = busy_s / elapsed_s
            self.ticked_s, self.used_s, self.queued_s = now_s, used_s, queued_now_s
            if self.where.now is not self.place:
                self.place, self.busy_s, self.links = self.where.now, used_s, ""

    def write_stall(self, place: Now, stay_s: float, is_long: bool) -> bool:
        """Write that the rank stood at a place, if that was long or its process was stopped; returns whether it was."""
        now_s = time.monotonic()
        if now_s - self.ticked_s > TICK_S + MIN_STALL_S:
            self.tick()  # the process went on just now, and its thread has not looked yet
        stopped_s = min(stay_s, sum(seconds for end_s, seconds in self.stops if end_s >= place.since_s))
        self.stops.clear()
        if not (is_long or stopped_s >= MIN_STALL_S):
            return False
        is_seen = self.place is place
        self.lines.write(
            Stall(
                step=place.step,
                place=place.place,
                seconds=stay_s,
                stopped_s=stopped_s,
                busy_s=max(0.0, time.process_time() - self.busy_s) if is_seen else 0.0,
                is_waiting=int(bool(place.collective)),
                links=self.links if is_seen else "",
            )
        )
        return True

    def _notes(self) -> dict[int, Note | None]:
        """Of the others, as far as they are of this start of the ranks."""
        notes = {rank: read_note(note_path(self.run, rank)) for rank in range(self.world_size) if rank != self.rank}
        return {rank: note if note is not None and note.start == _start() else None for rank, note in notes.items()}

    def _blame(
        self, now: Now, before: Mapping[int, Note | None], after: Mapping[int, Note | None]
    ) -> tuple[int, str] | None:
        """The rank that is missing, and what is known of it; None if it is this one, and another is to say so."""
        silent = {r for r, n in after.items() if not _is_alive(before[r], n)}
        counts = {r: -1 if n is None else n.count for r, n in after.items()}
        # A rank that waits and is alive is missing nowhere, though it waits in an earlier collective: a broadcast ends for the
        # rank that sends it when the data are on their way.
        missing = [
            r for r, n in after.items() if r in silent or (counts[r] < now.num_met and n is not None and not n.waits)
        ]
        if not missing:
            if any(count > now.num_met for count in counts.values()):
                return None
            return self.rank, self._link_down(now, {r: n for r, n in after.items() if n is not None})
        first = min(missing, key=lambda r: (counts[r], r))
        verb = "did not come to" if counts[first] < now.num_met else "stopped in"
        place = _place(now.collective, now.step)
        text = f"{TIME_OUT}: it {verb} the {place} within {self.timeout_s:g} s; {_known(after[first], first in silent)}"
        if others := [str(r) for r in missing if r != first]:
            text += f"; missing, too: rank {', '.join(others)}"
        return first, text

    def _link_down(self, now: Now, others: Mapping[int, Note]) -> str:
        """Describe a wait in which every rank is alive: where each one is, and which connection does not answer."""
        own = read_note(note_path(self.run, self.rank))
        notes = dict(sorted({**others, **({} if own is None else {self.rank: own})}.items()))
        sites: dict[str, list[str]] = {}
        for rank, note in notes.items():
            sites.setdefault(note.site, []).append(str(rank))
        ends = " and ".join(f"{site} (rank {', '.join(ranks)})" for site, ranks in sites.items())
        places = {note.place for note in notes.values()} or {_place(now.collective, now.step)}
        text = f"{LINK_DOWN}, all have waited for over {self.timeout_s:g} s, in the {' or the '.join(sorted(places))}"
        links = unanswered() or self.links
        what = f"; what was sent over {links} was not acknowledged" if links else ""
        return text + (f": the link between {ends} passes nothing" if len(sites) > 1 else f", on {ends}") + what

    def _end(self, rank: int, text: str) -> None:
        _BEAT.pack_into(self.memory, _BEAT_AT, GAVE_UP)
        self.lines.write(Error(rank=rank, text=text))
        who = "" if text.startswith(LINK_DOWN) else f"rank {rank} failed with "
        print(f"Error: {who}{text}", file=sys.stderr, flush=True)
        os._exit(RunError.exit_status)


def _is_alive(before: Note | None, after: Note | None) -> bool:
    """Return whether a rank's process ran between two looks at its note, or gave up waiting itself."""
    if after is None or before is None:
        return False
    return after.beat == GAVE_UP or after.beat > before.beat


def note_path(run: RunDir, rank: int) -> Path:
    return run.path / f"where.{rank}"


def read_note(path: Path) -> Note | None:
    """What a rank noted; None if there is nothing."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_SIZE)
    except OSError:
        return None
    if len(data) < _SIZE:
        return None
    start, process, host = _HEAD.unpack_from(data, 0)
    (beat,) = _BEAT.unpack_from(data, _BEAT_AT)
    count, step, since, waits, what = _NOTE.unpack_from(data, _NOTE_AT)
    return Note(start, process, _text(host), beat, count, step, since, waits, _text(what), _text(data[_ADDRESS_AT:]))


def _known(note: Note | None, is_silent: bool) -> str:
    if note is None:
        return "it has not started, or has ended"
    stood_s = max(0.0, wall_clock_s() - note.time)
    told = f"it has been in {note.place} for {stood_s:.0f} s, process {note.process} on {note.site}"
    if not is_silent:
        return told
    state = state_of(note.process)[0] if note.is_here else ""
    if state == ENDED:
        return f"its process {note.process} on {note.site} has ended; it was in {note.place}"
    if state:
        return f"{told}, which {state}"
    return f"{told}, which gives no sign of life, as one that was stopped or whose node is lost"


def _place(what: str, step: int) -> str:
    return f"{what} of step {step}" if step else what


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _start() -> int:
    told = "\0".join(os.environ.get(name, "") for name in _START)
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "little")


def _mapped(path: Path) -> tuple[int | None, mmap.mmap]:
    """A file in memory; where its file system cannot do that, memory that the others do not see."""
    try:
        path.unlink(missing_ok=True)  # one that was stopped and lives yet keeps its own
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(handle, bytes(_SIZE))  # of a full disk an error now, rather than a SIGBUS at the first note
        return handle, mmap.mmap(handle, _SIZE)
    except (OSError, ValueError):
        return None, mmap.mmap(-1, _SIZE)
