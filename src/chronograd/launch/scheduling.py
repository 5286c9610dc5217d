"""Real jobs under a scheduling policy, on the cores of this machine or in a SLURM partition.

A job is resized at a checkpoint: it is stopped when the next one is written, and continues from it with another number of ranks. Its
global batch and the order of its samples stay the same. Everything is in one folder: a run for each job, and `events.jsonl` with
each start and stop. If the scheduler is killed, its ranks on this machine end with it; the next call on that folder continues all runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import files
from chronograd.errors import InputError, RunError
from chronograd.job import Job, changed, with_ranks
from chronograd.launch import jobs as runs
from chronograd.launch import slurm
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Epoch
from chronograd.schedule.events import Conditions, Stay, Timetable
from chronograd.schedule.jobs import NOTHING, Allocation, JobState, Moment, Pool, ScheduledJob
from chronograd.schedule.policies import Policy
from chronograd.train.checkpoint_folder import list_checkpoints

EVENTS = "events.jsonl"
POLL_S = 0.5
SLURM_POLL_S = 2.0

Say = Callable[[str], None]


class ResizedError(Exception):
    """Ends the ranks of a run that gets another size."""


Way = Callable[[RunDir, Callable[[], bool]], None]
"""Runs a job until it is finished, or until the function says that it must stop; then raises ResizedError."""


def here(run: RunDir, must_stop: Callable[[], bool]) -> None:
    """Run a job's ranks on this machine."""

    def look(_: RunDir) -> None:
        if must_stop():
            raise ResizedError

    runs.resume(run, on_poll=look)


def by_slurm(run: RunDir, must_stop: Callable[[], bool]) -> None:
    """Run a job in SLURM; it is cancelled to be resized."""
    job_id = slurm.submit(run)
    while not (now := slurm.state(run)).is_over:
        if must_stop():
            slurm_commands.scancel(job_id)
            while not slurm.state(run).is_over:
                time.sleep(SLURM_POLL_S)
            raise ResizedError
        time.sleep(SLURM_POLL_S)
    if now.state != "COMPLETED":
        slurm.collect(run)  # raises with the reason


@dataclass(frozen=True)
class RealJob:
    """A job that really runs, and what the scheduler knows of it."""

    scheduled: ScheduledJob
    job: Job


@dataclass
class _Live(JobState):
    """A job of a running schedule. `wanted` is its next size."""

    real: RealJob | None = None
    run: RunDir | None = None
    wanted: Allocation = NOTHING
    checkpoint: str = ""  # the newest one when the size was decided
    thread: threading.Thread | None = None
    error: Exception | None = None
    is_over: bool = False


def resize(run: RunDir, count: int) -> None:
    """Give an unfinished run another number of ranks. Raises JobError if it cannot have them."""
    own = run.job()
    backend = "single" if count == 1 and own.backend == "ddp" else own.backend
    job = with_ranks(changed(own, [f"backend={backend}", f"cluster.count={count}"]))
    if job != own:
        run.replace_job(job)


def run_schedule(
    jobs: Sequence[RealJob],
    pool: Pool,
    policy: Policy,
    folder: Path,
    conditions: Conditions,
    way: Way = here,
    say: Say = lambda line: None,
) -> Timetable:
    """Run jobs to their end under a policy. Returns their timetable, in seconds from the first call on this folder.

    Args:
        folder: of the runs; a schedule that was interrupted there continues.
        way: `here` or `by_slurm`.
    Raises: RunError if a job failed, after the others have ended; InputError for a folder with other jobs.
    """
    return _Schedule(jobs, pool, policy, folder, conditions, way, say).run()


class _Schedule:
    def __init__(
        self,
        jobs: Sequence[RealJob],
        pool: Pool,
        policy: Policy,
        folder: Path,
        conditions: Conditions,
        way: Way,
        say: Say,
    ) -> None:
        self.jobs, self.pool, self.policy, self.folder = jobs, pool, policy, folder
        self.conditions, self.way, self.say = conditions, way, say
        folder.mkdir(parents=True, exist_ok=True)
        names = [one.scheduled.name for one in jobs]
        if len(set(names)) < len(names):
            raise InputError("two jobs have the same name", "give each line of the workload its own name")
        self.events = list(_read_events(folder / EVENTS))
        if any(event["job"] not in names for event in self.events):
            raise InputError(f"{folder} has a schedule of other jobs", "choose another folder")
        self.start = self.events[0]["time"] if self.events else time.time()
        self.live = [_Live(i, one.scheduled, one.scheduled.work, real=one) for i, one in enumerate(jobs)]

    def run(self) -> Timetable:
        regular = self.conditions.interval_s if self.policy.decides != "events" else 0.0
        at_events = self.policy.decides != "interval" or not regular
        tick, known = 0.0, (0, 0)
        try:
            while not all(one.is_over for one in self.live):
                active = [one for one in self.live if self._is_here(one)]
                present = len(active), sum(one.is_over for one in self.live)
                if (regular and self._now() >= tick) or (at_events and present != known):
                    known, tick = present, self._now() + regular
                    self._decide(active)
                self._start()
                time.sleep(POLL_S)
        finally:
            self._stop_all()
        failed = [one for one in self.live if one.error is not None]
        if failed:
            raise RunError(f"{failed[0].job.name}: {failed[0].error}", f"the runs are in {self.folder}")
        return self._timetable()

    def _now(self) -> float:
        return time.time() - self.start

    def _is_here(self, one: _Live) -> bool:
        """Return whether a job has arrived and is not over."""
        if one.run is None and one.job.arrival_s <= self._now():
            assert one.real is not None
            path = self.folder / one.job.name
            one.run = RunDir.open(path) if path.exists() else runs.create(one.real.job, path)
            if one.run.is_finished:
                one.is_over = True
        return one.run is not None and not one.is_over

    def _decide(self, active: Sequence[_Live]) -> None:
        for one in active:
            self._look(one)
        sizes = self.policy.allocate(Moment(list(active), self.pool, self._now(), self.conditions.resize_s))
        for one in active:
            one.wanted = sizes.get(one.index, NOTHING)
            one.checkpoint = _newest(one)

    def _look(self, one: _Live) -> None:
        """Read the progress and the speed of a job from its run."""
        assert one.run is not None
        assert one.real is not None
        log, batch = one.run.read_steps(0), one.real.job.training.batch
        done = log.steps[-1].step * batch if log.steps else 0
        one.left = max(one.job.work - done, 0.01 * one.job.work)
        last = log.last(Epoch)
        if last is not None and last.epoch_time_s and one.size != NOTHING:
            per_epoch = last.step / last.epoch * batch
            one.pace = per_epoch / last.epoch_time_s / one.job.speed(one.size)

    def _start(self) -> None:
        """Start jobs whose cores are free, in the order of their arrival."""
        used = sum(one.size.workers for one in self.live if one.thread is not None)
        for one in self.live:
            if one.thread is not None and not one.thread.is_alive():
                one.thread = None
            is_waiting = one.thread is None and not one.is_over and one.wanted != NOTHING
            if is_waiting and used + one.wanted.workers <= self.pool.gpus:
                used += one.wanted.workers
                one.size, one.restarts = one.wanted, one.restarts + (one.started_s is not None)
                one.started_s = self._now() if one.started_s is None else one.started_s
                one.thread = threading.Thread(target=self._work, args=(one, one.size), daemon=True)
                one.thread.start()

    def _work(self, one: _Live, size: Allocation) -> None:
        """Run a job at one size, until it is over or gets another size."""
        assert one.run is not None
        start_s = self._now()
        try:
            resize(one.run, size.workers)
            self._note(one, "start", size.workers)
            self.way(one.run, lambda: one.wanted != size and _newest(one) != one.checkpoint)
            one.is_over = True
        except ResizedError:
            pass
        except Exception as error:  # reported once the others have ended
            one.error, one.is_over = error, True
        one.attained += size.workers * (self._now() - start_s)
        one.size = NOTHING
        self._note(one, "end" if one.is_over else "stop", size.workers)

    def _note(self, one: _Live, event: str, workers: int) -> None:
        line = {"time": time.time(), "job": one.job.name, "event": event, "workers": workers}
        self.events.append(line)
        with files.filling(self.folder), (self.folder / EVENTS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.say(f"{self._now():8.1f} s  {one.job.name} {event}s with {workers}")

    def _stop_all(self) -> None:
        """End what still runs, because the schedule was interrupted."""
        for one in self.live:
            one.wanted, one.checkpoint = Allocation(-1), "-"
        for one in self.live:
            if one.thread is not None:
                one.thread.join()

    def _timetable(self) -> Timetable:
        """Return the timetable from the events of all calls on this folder. A stay that a kill ended is left out."""
        stays, index = list[Stay](), {one.job.name: one.index for one in self.live}
        open_at: dict[str, dict[str, Any]] = {}
        for event in self.events:
            begun = open_at.pop(event["job"], None)
            if event["event"] == "start":
                open_at[event["job"]] = event
            elif begun is not None:
                start_s, end_s = begun["time"] - self.start, event["time"] - self.start
                stays.append(Stay(index[event["job"]], start_s, end_s, Allocation(event["workers"])))
        count = len(self.live)
        ended, held, ran, restarts = np.zeros(count), np.zeros(count), np.zeros(count), np.full(count, -1)
        for stay in stays:
            ended[stay.index] = max(ended[stay.index], stay.end_s)
            held[stay.index] += stay.size.workers * (stay.end_s - stay.start_s)
            ran[stay.index] += stay.end_s - stay.start_s
            restarts[stay.index] += 1
        span = ended.max() - min(one.job.arrival_s for one in self.live)
        scheduled = [one.scheduled for one in self.jobs]
        return Timetable(
            scheduled, ended, held, ran, restarts, np.zeros(count, int), self.pool.gpus * float(span), stays
        )


def _newest(one: _Live) -> str:
    """Return the name of a run's newest checkpoint; "" without one."""
    found = list_checkpoints(one.run.checkpoints) if one.run is not None else []
    return found[-1].name if found else ""


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of the events of earlier calls."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
