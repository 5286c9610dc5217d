"""The folder of a schedule that really runs: what was scheduled, and each start and end.

    schedule.json   when it began, the policy, the cluster and the jobs
    events.jsonl    one line for each start, stop and end of a job
    JOB/            the run directory of each job

The scheduler writes it, and others may read it at any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from chronograd import files
from chronograd.errors import FileFormatError, InputError
from chronograd.schedule.events import Stay, Timetable
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob

SCHEDULE, EVENTS = "schedule.json", "events.jsonl"
Kind = Literal["start", "stop", "end"]
"""A job that stops continues later, with another size or after its ranks were killed."""


@dataclass(frozen=True)
class Event:
    """A start or an end of a job; `time` is in seconds since 1970."""

    time: float
    job: str
    event: Kind
    workers: int


@dataclass(frozen=True)
class QueuedJob:
    """A job of the folder. `work`: samples until it is done."""

    name: str
    arrival_s: float
    work: float
    batch: int


@dataclass(frozen=True)
class JobQueue:
    """The jobs that a folder schedules. `cores`: places for ranks."""

    policy: str
    cores: int
    jobs: tuple[QueuedJob, ...]


@dataclass
class ScheduleLog:
    """The content of a schedule's folder. `start` is in seconds since 1970."""

    folder: Path
    queue: JobQueue
    start: float
    events: list[Event] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> ScheduleLog:
        """Return the log with its events so far; an incomplete last line is left out. Raises FileFormatError."""
        path = folder / SCHEDULE
        try:
            data = files.read_json(path)
            jobs = tuple(QueuedJob(**one) for one in data["jobs"])
            log = cls(folder, JobQueue(str(data["policy"]), int(data["cores"]), jobs), float(data["start"]))
            path = folder / EVENTS
            lines = files.read_bytes(path).decode(errors="replace").split("\n")[:-1] if path.exists() else []
            log.events = [Event(**json.loads(line)) for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        return log

    @classmethod
    def open(cls, folder: Path, queue: JobQueue) -> ScheduleLog:
        """Return the log of a folder, begun if it is new. Raises InputError if the folder schedules something else."""
        if not is_schedule(folder):
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(folder / SCHEDULE, {"start": time.time(), **asdict(queue)})
        log = cls.read(folder)
        if log.queue != queue:
            raise InputError(f"{folder} has another schedule", "repeat its command, or choose another folder")
        return log

    def note(self, job: str, event: Kind, workers: int, at: float | None = None) -> None:
        """Add an event, now or at a time in seconds since 1970."""
        line = Event(time.time() if at is None else at, job, event, workers)
        self.events.append(line)
        with files.filling(self.folder), (self.folder / EVENTS).open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")

    def running(self) -> dict[str, Event]:
        """Return the start of each job that has not stopped or ended since."""
        found: dict[str, Event] = {}
        for event in self.events:
            if event.event == "start":
                found[event.job] = event
            else:
                found.pop(event.job, None)
        return found

    def timetable(self, jobs: Sequence[ScheduledJob], pool: Pool) -> Timetable:
        """Return the timetable of jobs that have ended, in seconds from the start of the schedule."""
        index, begun, stays = {job.name: i for i, job in enumerate(jobs)}, dict[str, float](), list[Stay]()
        for event in self.events:
            at = event.time - self.start
            if event.event == "start":
                begun[event.job] = at
            elif event.job in begun:
                stays.append(Stay(index[event.job], begun.pop(event.job), at, Allocation(event.workers)))
        count = len(jobs)
        ended, held, ran, restarts = np.zeros(count), np.zeros(count), np.zeros(count), np.full(count, -1)
        for stay in stays:
            ended[stay.index] = max(ended[stay.index], stay.end_s)
            held[stay.index] += stay.size.workers * (stay.end_s - stay.start_s)
            ran[stay.index] += stay.end_s - stay.start_s
            restarts[stay.index] += 1
        capacity_s = pool.gpus * float(ended.max() - min(job.arrival_s for job in jobs))
        return Timetable(jobs, ended, held, ran, restarts, np.zeros(count, int), capacity_s, stays)


def is_schedule(path: Path) -> bool:
    """Return whether a folder has a schedule that ran or runs."""
    return (path / SCHEDULE).is_file()
