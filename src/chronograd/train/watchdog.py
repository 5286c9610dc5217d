"""Where each rank is, and who is missing where the others wait. Never imports torch.

A rank notes what it does in `where.<rank>`, a small file of the run directory that is mapped into memory: a note takes
a microsecond or two, and stays readable when the rank is stopped. It counts the collectives that it has come to.
A thread of each rank watches: when its own rank has been in one collective for longer than `cluster.timeout_s`, it reads
the notes of all, names the rank that did not come, and ends this process, upon which the launcher ends or restarts all.

Left out: a job of one rank, which waits for nobody; ranks that all hang outside of collectives. Notes of other nodes are as
old as their file system lets them be.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chronograd.errors import RunError
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import Error, wall_clock_s

# Which start of the ranks it is, process, host; sign of life; collectives so far, step, since when, waiting or not, what.
_HEAD, _BEAT, _NOTE = struct.Struct("<QI32s"), struct.Struct("<Q"), struct.Struct("<Qqd?48s")
_BEAT_AT, _NOTE_AT, _SIZE = 48, 64, 160
# What tells one start of the ranks from the next: they meet at another place.
_START = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
GRADIENTS = "all-reduce of gradients"
TIME_OUT = "a time-out"  # how the error begins
# Seconds between signs of life, as a share of the time-out; bounded so that many ranks do not burden a file system.
BEAT_SHARE, BEAT_LEAST_S, BEAT_MOST_S = 1 / 20, 0.5, 30.0


class Now(NamedTuple):
    """Where this rank is: collectives so far, step, since when, and in which collective, empty outside of any."""

    num_met: int
    step: int
    since_s: float
    collective: str


@dataclass(frozen=True)
class Note:
    """What a rank noted.

    Attributes:
        start: the same for ranks that were started together.
        count: collectives that it has come to; `beat` grows as long as its process runs.
        waits: whether it is in a collective; `what` is its name, or that of a part of the work.
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


class Watchdog:
    """The note of this process. Nothing is noted before `watch`."""

    def __init__(self) -> None:
        self.now = Now(0, 0, 0.0, "")
        self._part, self._meetings = "start-up", dict[str, str]()
        self._memory: mmap.mmap | None = None

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
        count = self.now.num_met + bool(collective and is_counted)
        _NOTE.pack_into(
            self._memory, _NOTE_AT, count, step, wall_clock_s(), bool(collective), (collective or part).encode()[:48]
        )
        self.now = Now(count, step, time.monotonic(), collective)

    @contextlib.contextmanager
    def watch(self, run: RunDir, rank: int, world_size: int, timeout_s: float, lines: StepWriter) -> Iterator[None]:
        """Within, this rank notes where it is, and ends itself where it has waited too long. Nothing for one rank.

        Args:
            lines: the open steps file of this rank, for the error.
        """
        if world_size == 1:
            yield
            return
        path = note_path(run, rank)
        handle, self._memory = _mapped(path)
        _HEAD.pack_into(self._memory, 0, _start(), os.getpid(), socket.gethostname().encode()[:32])
        self.now, self._part, self._meetings = Now(0, 0, 0.0, ""), "start-up", {}
        self._write("", 0, self._part)
        ended = threading.Event()
        watcher = _Watcher(self, self._memory, handle, run, rank, world_size, timeout_s, lines)
        thread = threading.Thread(target=watcher.work, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._memory = None
            path.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)


WATCHDOG = Watchdog()  # a process is one rank


@dataclass(frozen=True)
class _Watcher:
    where: Watchdog
    memory: mmap.mmap
    handle: int | None
    run: RunDir
    rank: int
    world_size: int
    timeout_s: float
    lines: StepWriter

    def work(self, ended: threading.Event) -> None:
        period_s = min(BEAT_MOST_S, max(BEAT_LEAST_S, self.timeout_s * BEAT_SHARE))
        beat = 0
        while not ended.wait(period_s):
            beat += 1
            _BEAT.pack_into(self.memory, _BEAT_AT, beat)
            if self.handle is not None:
                with contextlib.suppress(OSError):
                    os.fsync(self.handle)  # so that other nodes see it
            now = self.where.now
            if not now.collective or time.monotonic() - now.since_s < self.timeout_s:
                continue
            before = self._notes()
            if ended.wait(2.5 * period_s):
                return
            blamed = self._blame(now, before, self._notes())
            if blamed is not None and self.where.now is now:
                self._end(*blamed)

    def _notes(self) -> dict[int, Note | None]:
        """Of the others, as far as they are of this start of the ranks."""
        notes = {rank: read_note(note_path(self.run, rank)) for rank in range(self.world_size) if rank != self.rank}
        return {rank: note if note is not None and note.start == _start() else None for rank, note in notes.items()}

    def _blame(
        self, now: Now, before: Mapping[int, Note | None], after: Mapping[int, Note | None]
    ) -> tuple[int, str] | None:
        """The rank that is missing, and what is known of it; None if it is this one, and another is to say so."""
        silent = {r for r, n in after.items() if n is None or (b := before[r]) is None or b.beat == n.beat}
        counts = {r: -1 if n is None else n.count for r, n in after.items()}
        missing = [
            r for r in after if counts[r] < now.num_met and (r in silent or (n := after[r]) is None or not n.waits)
        ]
        missing = missing or [r for r in after if counts[r] < now.num_met] or sorted(silent)
        place = _place(now.collective, now.step)
        if not missing:
            if any(count > now.num_met for count in counts.values()):
                return None
            return (
                self.rank,
                f"{TIME_OUT}: all ranks came to the {place}, which did not end within {self.timeout_s:g} s",
            )
        first = min(missing, key=lambda r: (counts[r], r))
        verb = "did not come to" if counts[first] < now.num_met else "stopped in"
        text = f"{TIME_OUT}: it {verb} the {place} within {self.timeout_s:g} s; {_known(after[first], first in silent)}"
        if others := [str(r) for r in missing if r != first]:
            text += f"; missing, too: rank {', '.join(others)}"
        return first, text

    def _end(self, rank: int, text: str) -> None:
        self.lines.write(Error(rank=rank, text=text))
        print(f"Error: rank {rank} failed with {text}", file=sys.stderr, flush=True)
        os._exit(RunError.exit_status)


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
    return Note(start, process, _text(host), beat, count, step, since, waits, _text(what))


def _known(note: Note | None, is_silent: bool) -> str:
    if note is None:
        return "it has not started, or has ended"
    where = _place(note.what, note.step)
    told = f"it has been in {where} for {max(0.0, wall_clock_s() - note.time):.0f} s, process {note.process} on {note.host}"
    return told + (", which gives no sign of life, as one that was stopped or whose node is lost" if is_silent else "")


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
        os.ftruncate(handle, _SIZE)
        return handle, mmap.mmap(handle, _SIZE)
    except (OSError, ValueError):
        return None, mmap.mmap(-1, _SIZE)
