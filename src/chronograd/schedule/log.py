"""The folder of a schedule that really runs: what was scheduled, and each start and end.

    schedule.json   when it began, the policy, the cluster and the jobs
    events.jsonl    one line for each start, stop, end and failure of a job
    JOB/            the run directory of each job

One scheduler writes it: it holds a lock on `events.jsonl`, and touches that file every BEAT_S. Others may read the folder at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from chronograd import files
from chronograd.errors import FileFormatError, InputError, RunError, problems
from chronograd.schedule.events import Stay, Timetable
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.units import seconds

SCHEDULE, EVENTS = "schedule.json", "events.jsonl"
Kind = Literal["start", "stop", "end", "fail"]
"""A job that stops continues later, with another size or after its ranks were killed. One that fails continues if the user
schedules the folder again.
"""

MAX_JOBS = 100_000
# A file name may have 255 bytes, and a drawn job gets a number.
_MAX_NAME_BYTES = 200
# How often a scheduler touches its events; and how long it may be silent, such as while it is stopped.
BEAT_S, SILENT_S = 10.0, 60.0
# A reader that looks for a scheduler holds the lock for a moment.
_LOCK_WAIT_S = 2.0

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
# float64 holds whole numbers up to here.
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Number = Annotated[float, Field(ge=0, lt=2**53)]


@checked(frozen=True, config=_CONFIG)
class Event:
    """A start or an end of a job; `time` is in seconds since 1970."""

    time: _Number
    job: str
    event: Kind
    workers: _Count


@checked(frozen=True, config=_CONFIG)
class QueuedJob:
    """A job of the folder. `work`: samples until it is done."""

    name: str
    arrival_s: _Number
    work: Annotated[float, Field(gt=0)]
    batch: Annotated[_Count, Field(gt=0)]


@checked(frozen=True, config=_CONFIG)
class JobQueue:
    """The jobs that a folder schedules. `cores`: places for ranks."""

    policy: str
    cores: _Count
    jobs: Annotated[tuple[QueuedJob, ...], Field(max_length=MAX_JOBS)]

    def check(self) -> None:
        """Raise InputError for a job whose name cannot be its folder, or that another job has."""
        for job in self.jobs:
            check_name(job.name)
        (twice, count), *_ = Counter(job.name.casefold() for job in self.jobs).most_common(1) or [("", 0)]
        if count > 1:
            raise InputError(f"two jobs have the same name {twice!r}", "give each line of the workload its own name")


@checked(frozen=True, config=_CONFIG)
class _Saved(JobQueue):
    """The content of `schedule.json`."""

    start: _Number


_SAVED, _EVENT = TypeAdapter(_Saved), TypeAdapter(Event)


@dataclass
class ScheduleLog:
    """The content of a schedule's folder. `start` is in seconds since 1970."""

    folder: Path
    queue: JobQueue
    start: float
    events: list[Event] = field(default_factory=list)
    _stream: IO[bytes] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, folder: Path) -> ScheduleLog:
        """Return the log with its events so far; an incomplete last line is left out. Raises FileFormatError."""
        path = folder / SCHEDULE
        try:
            saved = _SAVED.validate_json(files.read_bytes(path))
            queue = JobQueue(saved.policy, saved.cores, saved.jobs)
            queue.check()
            path = folder / EVENTS
            data = files.read_bytes(path) if path.exists() else b""
        except ValidationError as error:
            raise _damaged(str(path), problems(error)[0]) from None
        except InputError as error:
            raise _damaged(str(path), error.message) from None
        except OSError as error:
            raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
        return cls(folder, queue, saved.start, list(_events(data, path, {job.name for job in queue.jobs})))

    @classmethod
    def open(cls, folder: Path, queue: JobQueue) -> ScheduleLog:
        """Return the log of a folder, begun if it is new, and held by this process until `close`.

        Raises InputError if the folder schedules something else; RunError if another process holds it, or it cannot be written.
        """
        queue.check()
        folder.mkdir(parents=True, exist_ok=True)
        stream = _held(folder / EVENTS)
        try:
            if not is_schedule(folder):
                files.write_json(folder / SCHEDULE, {"start": time.time(), **asdict(queue)})
            log = cls.read(folder)
            if log.queue != queue:
                raise InputError(f"{folder} has another schedule", "repeat its command, or choose another folder")
            if log.start > time.time() + SILENT_S:
                raise InputError(
                    f"the schedule in {folder} begins in the future", "set the clock, or choose another folder"
                )
            _cut_off_last_line(stream, folder / EVENTS)
        except BaseException:
            stream.close()
            raise
        log._stream = stream
        return log

    def close(self) -> None:
        """Let others schedule this folder."""
        if self._stream is not None:
            self._stream.close()

    def beat(self) -> None:
        """Show that the scheduler is alive: set the time of the file of events."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / EVENTS)

    def note(self, job: str, event: Kind, workers: int, at: float | None = None) -> None:
        """Add an event, now or at a time in seconds since 1970."""
        assert self._stream is not None  # only a log that was opened is written
        line = Event(time.time() if at is None else at, job, event, workers)
        self.events.append(line)
        with files.filling(self.folder):
            self._stream.write(json.dumps(asdict(line)).encode() + b"\n")
            self._stream.flush()

    def running(self) -> dict[str, Event]:
        """Return the start of each job that has not stopped or ended since."""
        starts: dict[str, Event] = {}
        for event in self.events:
            if event.event == "start":
                starts[event.job] = event
            else:
                starts.pop(event.job, None)
        return starts

    def over(self) -> dict[str, Event]:
        """Return the last event of each job that is done or failed."""
        last = {event.job: event for event in self.events}
        return {job: event for job, event in last.items() if event.event in ("end", "fail")}

    def abandoned(self) -> str:
        """Return how long nothing has been written if jobs are left and no process schedules them; else an empty text."""
        paths = [self.folder / SCHEDULE, self.folder / EVENTS]
        paths += [self.folder / name / "steps.0.jsonl" for name in self.running()]
        silent_s = time.time() - max(path.stat().st_mtime for path in paths if path.exists())
        if len(self.over()) == len(self.queue.jobs) or silent_s < SILENT_S or is_locked(self.folder / EVENTS):
            return ""
        return seconds(silent_s)

    def timetable(self, jobs: Sequence[ScheduledJob], pool: Pool) -> Timetable:
        """Return the timetable of jobs that have ended, in seconds from the start of the schedule."""
        index, begun, stays = {job.name: i for i, job in enumerate(jobs)}, dict[str, float](), list[Stay]()
        count = len(jobs)
        ended, held, ran, restarts = np.zeros(count), np.zeros(count), np.zeros(count), np.full(count, -1)
        for event in self.events:
            at = event.time - self.start
            if event.event == "start":
                begun[event.job] = at
            elif event.job in begun:
                stays.append(Stay(index[event.job], begun.pop(event.job), at, Allocation(event.workers)))
            if event.event == "end":
                ended[index[event.job]] = at
        for stay in stays:
            held[stay.index] += stay.size.workers * (stay.end_s - stay.start_s)
            ran[stay.index] += stay.end_s - stay.start_s
            restarts[stay.index] += 1
        capacity_s = pool.gpus * float(ended.max() - min(job.arrival_s for job in jobs))
        return Timetable(jobs, ended, held, ran, np.maximum(restarts, 0), np.zeros(count, int), capacity_s, stays)


def is_schedule(path: Path) -> bool:
    """Return whether a folder has a schedule that ran or runs."""
    return (path / SCHEDULE).is_file()


def check_name(name: str) -> None:
    """Raise InputError for a name of a job that is not one plain part of a path, or that the folder of a schedule uses."""
    hint = f"give the job a name of letters, digits, '.', '-' and '_', of at most {_MAX_NAME_BYTES} letters"
    if name.casefold() in (SCHEDULE, EVENTS):
        raise InputError(f"a job has the name {name!r}, which is a file of the schedule", "give the job another name")
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise InputError(f"a job has the name {name[:80]!r}, which cannot be the name of its folder", hint)
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise InputError(f"a job has a name of {len(name)} letters: {name[:40]!r}…", hint)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False where the system or the file system has no locks."""
    try:
        import fcntl

        with files.open_plain(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def _held(path: Path) -> IO[bytes]:
    """Open the file of events to append, with its lock. Raises RunError."""
    try:
        with files.filling(path):
            stream = files.open_to_append(path)
    except OSError as error:
        hint = "move it away; a schedule writes only its own files, never through a link"
        raise RunError(f"cannot write {path}: {error.strerror}", hint) from None
    try:
        _lock(stream, path)
    except BaseException:
        stream.close()
        raise
    return stream


def _lock(stream: IO[bytes], path: Path) -> None:
    """Lock the file for one scheduler. File systems without locks, and Windows, rely on the user to start only one."""
    try:
        import fcntl
    except ImportError:
        return
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                hint = f"follow it with `chronograd records {path.parent} --follow`, or end it first"
                raise RunError(f"another process schedules the jobs in {path.parent}", hint) from None
            time.sleep(0.1)
        except OSError:
            return


def _cut_off_last_line(stream: IO[bytes], path: Path) -> None:
    """Remove an incomplete last line, which a scheduler left that was killed while it wrote."""
    data = files.read_bytes(path)
    stream.truncate(data.rfind(b"\n") + 1)


def _events(data: bytes, path: Path, names: Collection[str]) -> Iterator[Event]:
    """Yield the events of whole lines. Raises FileFormatError that names the line."""
    for number, raw in enumerate(data.split(b"\n")[:-1], 1):
        place = f"{path}, line {number},"
        try:
            event = _EVENT.validate_json(raw.decode(errors="replace"))
        except ValidationError as error:
            raise _damaged(place, problems(error)[0]) from None
        if event.job not in names:
            raise _damaged(place, f"its job {event.job[:80]!r} is not in {SCHEDULE}")
        yield event


def _damaged(place: str, problem: str) -> FileFormatError:
    return FileFormatError(f"{place} is damaged: {problem}", "copy the folder again, or remove it")
