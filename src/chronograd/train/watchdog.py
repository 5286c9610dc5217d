"""A watchdog: it reports the place of each rank, its stalls, and the rank that is missing. Never imports torch.

A rank writes its current activity to `where.<rank>`, a small memory-mapped file of the run directory. A write takes a
microsecond or two, and stays readable when the rank is stopped. It includes the number of collectives so far.

A thread of each rank wakes four times a second. If it wakes more than a second late, and the process neither used the
processor nor queued for it, the process was stopped (SIGSTOP, a frozen container or machine). A rank that leaves a
place after ten times the usual time writes a `Stall` line with the thread's observations. If a rank stays in one
collective for longer than `cluster.timeout_s`, the thread reads the files of all ranks and names the missing rank, or
the link. Then it ends the process, and the launcher ends or restarts all.

Left out: ranks that all hang outside of collectives. Files of other nodes are as old as the file system allows.
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
from chronograd.files import open_plain
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import MIN_STALL_S, Error, Stall, wall_clock_s
from chronograd.train.processes import ENDED, address_to, queued_s, state_of, unanswered

# Start number of the ranks, process, host; heartbeat; collectives so far, step, time of entry, waiting or not,
# activity; the rank's own address.
_HEAD, _BEAT, _NOTE = struct.Struct("<QI32s"), struct.Struct("<Q"), struct.Struct("<Qqd?48s")
_BEAT_AT, _NOTE_AT, _ADDRESS_AT, _SIZE = 48, 64, 144, 192
# The last heartbeat of a rank that ended itself because it had waited too long.
GAVE_UP = 2**64 - 1
# Distinguishes one start of the ranks from the next: they meet at another address.
_START = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
GRADIENTS = "all-reduce of gradients"
TIME_OUT = "a time-out"  # the first words of the error
LINK_DOWN = f"{TIME_OUT}: no rank is missing"  # the first words if a link is to blame
# The thread's period; a stay at one place that exceeds the usual one by this factor is a stall.
TICK_S = 0.25
STALL_FACTOR = 10.0
# Interval for reading the connections of a standing rank; weight of the newest stay in the usual one; number of stays
# before a usual one is known.
LINKS_EVERY_S = 2.0
NEWEST = 1 / 8
MIN_STAYS = 3
# Seconds between heartbeats that other nodes see, as a share of the time-out; bounded to spare a shared file system.
BEAT_SHARE = 1 / 20
MIN_BEAT_S = 0.5
MAX_BEAT_S = 30.0


class Now(NamedTuple):
    """The position of this rank: collectives so far, step, time of entry, current collective (or empty), and place."""

    num_met: int
    step: int
    since_s: float
    collective: str
    place: str = ""


@dataclass(frozen=True)
class Note:
    """The note that a rank wrote about its position.

    Attributes:
        start: the same for ranks that were started together.
        count: number of collectives so far. `beat` grows while the process runs.
        waits: whether it is in a collective. `what` is the name of the collective, or of a part of the work.
        address: its address in the group; empty if it has none.
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
        """Return the place, such as `backward of step 3`."""
        return _place(self.what, self.step)

    @property
    def site(self) -> str:
        """Return host and address."""
        return f"{self.host} ({self.address})" if self.address else self.host

    @property
    def is_here(self) -> bool:
        """Return whether this machine runs the rank, so that its system and clock know the process."""
        return self.host == socket.gethostname()[:32]


class Watchdog:
    """The watchdog of this process. It writes nothing before `watch`."""

    def __init__(self) -> None:
        self.now = Now(0, 0, 0.0, "")
        self._part, self._meetings = "start-up", dict[str, str]()
        self._usual = dict[str, tuple[int, float]]()
        self._memory: mmap.mmap | None = None
        self._watcher: _Watcher | None = None

    def at(self, part: str, step: int) -> None:
        """Record that this rank begins a part of a step, or something after that step."""
        if self._memory is not None:
            self._part = part
            self._write(self._meetings.get(part, ""), step, part)

    @contextlib.contextmanager
    def waiting(self, collective: str, is_counted: bool = True) -> Iterator[None]:
        """Record that this rank waits for the others. Do not count collectives that ranks enter unequally often."""
        if self._memory is None:
            yield
            return
        step = self.now.step
        self._write(f"{collective} ({self._part})" if step else collective, step, self._part, is_counted)
        yield  # after an error the note stays, because the rank has to end
        self._write("", step, self._part)

    def set_collectives(self, meetings: Mapping[str, str]) -> None:
        """Set the parts of a step in which ranks wait for each other, and the names of these collectives."""
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
        """Update the usual stay at the place that this rank left, or record that the stay was a stall."""
        stays, usual_s = self._usual.get(before.place, (0, stay_s))
        if stay_s >= MIN_STALL_S and self._watcher is not None:
            is_long = stays >= MIN_STAYS and stay_s > STALL_FACTOR * usual_s
            if self._watcher.write_stall(before, stay_s, is_long):
                return
        if before.step:
            self._usual[before.place] = stays + 1, usual_s + NEWEST * (stay_s - usual_s)

    @contextlib.contextmanager
    def watch(self, run: RunDir, rank: int, world_size: int, timeout_s: float, lines: StepWriter) -> Iterator[None]:
        """Watch this rank within a context: record its position and its stalls, and end it if it waits too long.

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


WATCHDOG = Watchdog()  # a process runs one rank


@dataclass
class _Watcher:
    """The thread that watches this rank, and its observations.

    Attributes:
        place, busy_s: the place at the last tick, and the processor seconds of the process when it was first seen there.
        ticked_s, used_s, queued_s: at the last tick the time, the processor seconds, and the thread's seconds in the queue.
        rate: processors that the process used before the last tick.
        stops: when the process continued after a stop, and the length of the stop.
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
        before: tuple[Now, float, dict[int, Note | None]] | None = (
            None  # the first reading of the others' notes, and its time
        )
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
        """Detect whether the process was stopped since the last tick.

        The watching thread is also late if it queues for a processor, or if the first thread does while it holds the
        interpreter's lock.
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
        """Record that the rank stood at a place, if that was long or its process was stopped. Return whether it was."""
        now_s = time.monotonic()
        if now_s - self.ticked_s > TICK_S + MIN_STALL_S:
            self.tick()  # the process continued just now, and its thread has not run yet
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
        """Return the notes of the other ranks of this start."""
        notes = {rank: read_note(note_path(self.run, rank)) for rank in range(self.world_size) if rank != self.rank}
        return {rank: note if note is not None and note.start == _start() else None for rank, note in notes.items()}

    def _blame(
        self, now: Now, before: Mapping[int, Note | None], after: Mapping[int, Note | None]
    ) -> tuple[int, str] | None:
        """Return the missing rank and the facts about it; None if this rank is missing, because another one reports it."""
        silent = {r for r, n in after.items() if not _is_alive(before[r], n)}
        counts = {r: -1 if n is None else n.count for r, n in after.items()}
        # A rank that waits in an earlier collective and is alive is not missing: a broadcast ends for its sender when
        # the data are on their way.
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
            text += f"; also missing: rank {', '.join(others)}"
        return first, text

    def _link_down(self, now: Now, others: Mapping[int, Note]) -> str:
        """Describe a wait in which every rank is alive: the place of each one, and the connection that does not answer."""
        own = read_note(note_path(self.run, self.rank))
        notes = dict(sorted({**others, **({} if own is None else {self.rank: own})}.items()))
        sites: dict[str, list[str]] = {}
        for rank, note in notes.items():
            sites.setdefault(note.site, []).append(str(rank))
        ends = " and ".join(f"{site} (rank {', '.join(ranks)})" for site, ranks in sites.items())
        places = {note.place for note in notes.values()} or {_place(now.collective, now.step)}
        text = (
            f"{LINK_DOWN}, all have waited for more than {self.timeout_s:g} s, in the {' or the '.join(sorted(places))}"
        )
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
    """Return whether a rank's process ran between two readings of its note, or gave up waiting itself."""
    if after is None or before is None:
        return False
    return after.beat == GAVE_UP or after.beat > before.beat


def note_path(run: RunDir, rank: int) -> Path:
    return run.path / f"where.{rank}"


def read_note(path: Path) -> Note | None:
    """Read the note of a rank; None if there is none."""
    try:
        with open_plain(path) as stream:
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
    return f"{told}, which gives no sign of life: it was stopped, or its node is lost"


def _place(what: str, step: int) -> str:
    return f"{what} of step {step}" if step else what


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _start() -> int:
    told = "\0".join(os.environ.get(name, "") for name in _START)
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "little")


def _mapped(path: Path) -> tuple[int | None, mmap.mmap]:
    """Map a file into memory. If its file system cannot do that, return memory that the others do not see."""
    try:
        path.unlink(missing_ok=True)  # a stopped process that still lives keeps its own file
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(handle, bytes(_SIZE))  # a full disk raises an error now, not a SIGBUS at the first note
        return handle, mmap.mmap(handle, _SIZE)
    except (OSError, ValueError):
        return None, mmap.mmap(-1, _SIZE)
