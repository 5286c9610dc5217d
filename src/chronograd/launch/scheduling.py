"""Real jobs under a scheduling policy, on the cores of this machine or in a SLURM partition.

A job is resized at a checkpoint: it is stopped when the next one is written, and continues from it with another number of ranks. Its
global batch and the order of its samples stay the same. Everything is in one folder, see `chronograd.schedule.log`. If the scheduler
is killed, its ranks on this machine end with it, and jobs in SLURM continue; the next call on that folder continues all of them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from chronograd.errors import InputError, RunError
from chronograd.job import Job, changed, from_dict, resolved, scaled, with_ranks
from chronograd.launch import jobs as runs
from chronograd.launch import slurm
from chronograd.launch.jobs import OnPoll
from chronograd.launch.slurm.script import Options
from chronograd.rundir import RunDir, StepFollower
from chronograd.rundir.steps import Epoch, StepLine
from chronograd.schedule.events import Conditions, Timetable
from chronograd.schedule.jobs import NOTHING, Allocation, JobState, Moment, Pool, ScheduledJob
from chronograd.schedule.log import BEAT_S, JobQueue, Kind, QueuedJob, ScheduleLog
from chronograd.schedule.policies import Policy
from chronograd.train.checkpoint_folder import list_checkpoints

POLL_S = 0.5
_TINY_JOBS = 4

Say = Callable[[str], None]


class ResizedError(Exception):
    """Ends the ranks of a run that gets another size."""


class Machines(NamedTuple):
    """The machines that run jobs.

    Attributes:
        open: returns the run directory of a job at a path, made if there is none.
        run: runs a job until it is finished, and calls the function with it again and again; what that raises ends the ranks.
    """

    open: Callable[[Job, Path], RunDir]
    run: Callable[[RunDir, OnPoll], None]


def here() -> Machines:
    """Return this machine."""

    def opened(job: Job, path: Path) -> RunDir:
        return RunDir.open(path) if path.exists() else runs.create(job, path)

    def run(own: RunDir, on_poll: OnPoll) -> None:
        runs.resume(own, on_poll=on_poll)

    return Machines(opened, run)


def by_slurm(options: Options = Options()) -> Machines:  # noqa: B008
    """Return the nodes of SLURM, where a job is cancelled to be resized."""

    def opened(job: Job, path: Path) -> RunDir:
        if not path.exists():
            return slurm.create(job, options, path)
        own = RunDir.open(path)
        if not own.is_finished and slurm.is_submitted(own):  # by a scheduler that was killed
            slurm.withdraw(own)
        return own

    def run(own: RunDir, on_poll: OnPoll) -> None:
        slurm.submit(own, options)
        try:
            slurm.wait(own, on_poll=on_poll)
        except ResizedError:
            slurm.withdraw(own)
            raise

    return Machines(opened, run)


def time_start(machines: Machines, folder: Path, places: int = 1) -> float:
    """Return the seconds that a job needs besides its steps: its ranks start, and its record is written.

    Trains a tiny job in each place at once, because jobs start while others run. Their folder is one that all nodes see, and is removed
    again.

    Args:
        places: for ranks; at most _TINY_JOBS are tried.
    """
    tiny = {
        "network": {"name": "small-cnn"}, "data": {"name": "digits", "samples": 64, "test_samples": 16},
        "training": {"epochs": 1, "batch": 64}, "cluster": {"device": "cpu", "count": 1, "threads": 1},
    }  # fmt: skip

    def timed(path: Path) -> float:
        run = machines.open(from_dict(tiny), path)
        start = time.monotonic()
        machines.run(run, lambda run: None)
        whole_s = time.monotonic() - start
        return whole_s - run.record().value("training_time_s")

    count = min(places, _TINY_JOBS)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="start-", dir=folder) as own, ThreadPoolExecutor(count) as pool:
        return fmean(pool.map(timed, [Path(own) / f"run-{i}" for i in range(count)]))


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
    follower: StepFollower | None = None
    wanted: Allocation = NOTHING
    checkpoint: str = ""  # the newest one when the size was decided
    thread: threading.Thread | None = None
    error: Exception | None = None
    is_over: bool = False


def check_job(run: RunDir, job: Job) -> None:
    """Raise InputError for a run that trains something else than a job. Its number of ranks may differ."""
    ours, its = (
        {name: value for name, value in resolved(scaled(one)).items() if name not in ("backend", "cluster")}
        for one in (job, run.job())
    )
    if ours != its:
        different = ", ".join(name for name in ours if ours[name] != its.get(name))
        raise InputError(
            f"{run.path} is a run of another job; it differs in {different}", "move it away, or choose another folder"
        )


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
    machines: Machines | None = None,
    say: Say = lambda line: None,
) -> Timetable:
    """Run jobs to their end under a policy. Returns their timetable, in seconds from the first call on this folder.

    Args:
        folder: of the runs; a schedule that was interrupted there continues.
        machines: `here()` by default.
    Raises: RunError if a job failed, after the others have ended, or if another process schedules the folder; InputError for a
        folder with another schedule, and for a job that is larger than the cluster.
    """
    for one in jobs:
        pool.check(one.scheduled.name, one.scheduled.requested)
    queued = (QueuedJob(s.name, s.arrival_s, s.work, one.job.training.batch) for one in jobs for s in [one.scheduled])
    log = ScheduleLog.open(folder, JobQueue(policy.name, pool.gpus, tuple(queued)))
    try:
        return _Schedule(jobs, pool, policy, log, conditions, machines or here(), say).run()
    finally:
        log.close()


class _Schedule:
    def __init__(
        self,
        jobs: Sequence[RealJob],
        pool: Pool,
        policy: Policy,
        log: ScheduleLog,
        conditions: Conditions,
        machines: Machines,
        say: Say,
    ) -> None:
        self.jobs, self.pool, self.policy, self.log = jobs, pool, policy, log
        self.conditions, self.machines, self.say = conditions, machines, say
        self.live = [_Live(i, one.scheduled, one.scheduled.work, real=one) for i, one in enumerate(jobs)]
        self.is_stopped = threading.Event()
        for name, event in self.log.running().items():  # when an earlier scheduler was killed
            last = RunDir(log.folder / name).steps_path(0)
            self.log.note(name, "stop", event.workers, max(event.time, last.stat().st_mtime if last.exists() else 0.0))

    def run(self) -> Timetable:
        regular = self.conditions.interval_s if self.policy.decides != "events" else 0.0
        at_events = self.policy.decides != "interval" or not regular
        tick, beat, known = 0.0, 0.0, (0, 0)
        try:
            while not all(one.is_over for one in self.live):
                if time.monotonic() >= beat:
                    self.log.beat()
                    beat = time.monotonic() + BEAT_S
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
            raise RunError(f"{failed[0].job.name}: {failed[0].error}", f"the runs are in {self.log.folder}")
        return self.log.timetable([one.scheduled for one in self.jobs], self.pool)

    def _now(self) -> float:
        return time.time() - self.log.start

    def _is_here(self, one: _Live) -> bool:
        """Return whether a job has arrived and is not over."""
        if one.run is None and one.job.arrival_s <= self._now():
            assert one.real is not None
            one.run = self._opened(one.real.job, self.log.folder / one.job.name)
            one.follower = StepFollower(one.run.steps_path(0), is_from_start=True)
            one.is_over = one.run.is_finished
            if one.is_over and one.job.name not in self.log.over():  # a scheduler was killed before it could write this
                self.log.note(one.job.name, "end", 0, (one.run.path / "record.json").stat().st_mtime)
        return one.run is not None and not one.is_over

    def _opened(self, job: Job, path: Path) -> RunDir:
        """Return the run of a job, made if there is none. Raises InputError for a link, and for a run of another job."""
        if path.is_symlink():
            raise InputError(f"{path} is a link; a schedule writes only in its own folder", "move the link away")
        run = self.machines.open(job, path)
        check_job(run, job)
        return run

    def _decide(self, active: Sequence[_Live]) -> None:
        for one in active:
            self._look(one)
        regular_s = self.conditions.interval_s if self.policy.decides != "events" else 0.0
        sizes = self.policy.allocate(Moment(list(active), self.pool, self._now(), self.conditions.resize_s, regular_s))
        for one in active:
            one.wanted = sizes.get(one.index, NOTHING)
            one.checkpoint = _newest(one)

    def _look(self, one: _Live) -> None:
        """Read the progress and the speed of a job from the new lines of its run."""
        assert one.real is not None
        assert one.follower is not None
        batch = one.real.job.training.batch
        for line in one.follower.new_lines():
            if isinstance(line, StepLine):
                one.left = max(one.job.work - line.step * batch, 0.01 * one.job.work)
            elif isinstance(line, Epoch) and line.epoch and line.epoch_time_s and one.size != NOTHING:
                one.pace = line.step / line.epoch * batch / line.epoch_time_s / one.job.speed(one.size)

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

        def look(_: RunDir) -> None:
            if self.is_stopped.is_set() or (one.wanted != size and _newest(one) != one.checkpoint):
                raise ResizedError

        try:
            resize(one.run, size.workers)
            self._note(one, "start", size.workers)
            self.machines.run(one.run, look)
            one.is_over = True
        except ResizedError:
            one.is_over = one.run.is_finished  # it ended while it was stopped
        except Exception as error:  # reported once the others have ended
            one.error, one.is_over = error, True
        one.attained += size.workers * (self._now() - start_s)
        one.size = NOTHING
        try:
            self._note(one, "fail" if one.error else "end" if one.is_over else "stop", size.workers)
        except Exception as error:  # the disk is full
            one.error, one.is_over = one.error or error, True

    def _note(self, one: _Live, event: Kind, workers: int) -> None:
        self.log.note(one.job.name, event, workers)
        self.say(f"{self._now():8.1f} s  {one.job.name} {event}s with {workers}")

    def _stop_all(self) -> None:
        """End what still runs, because the schedule was interrupted."""
        self.is_stopped.set()
        for one in self.live:
            if one.thread is not None:
                one.thread.join()


def _newest(one: _Live) -> str:
    """Return the name of a run's newest checkpoint; "" without one."""
    found = list_checkpoints(one.run.checkpoints) if one.run is not None else []
    return found[-1].name if found else ""
