"""`schedule`: many jobs on one cluster, under several policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import DURATION, SHARE, ListKind, complete_devices
from chronograd.verbs.request import FILE, FOLDER, Request, Spelling
from chronograd.verbs.screen import waiting

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.hardware.catalog import Device
    from chronograd.job import Job
    from chronograd.launch.scheduling import Machines, RealJob
    from chronograd.schedule.answer import SchedulePlan
    from chronograd.schedule.jobs import Pool, ScheduledJob
    from chronograd.schedule.workload import JobLine


def parse_policies(text: str) -> tuple[str, ...]:
    """Return the names of policies, as in `optimus,fifo`; `all` for all. Raises ValueError."""
    from chronograd.schedule.policies import names

    found = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    unknown = [name for name in found if name not in names() and name != "all"]
    if unknown or not found:
        raise ValueError(f"unknown policy {(unknown or [text])[0]!r}; known: {', '.join(names())}, all")
    return tuple(names()) if "all" in found else tuple(dict.fromkeys(found))


POLICIES = ListKind("LIST", parse_policies, lambda _: False)


@dataclass(frozen=True, kw_only=True)
class ScheduleJobs(Request):
    """Schedule many jobs on one cluster: their order, how many GPUs each gets, and when each is done.

    WORKLOAD is a CSV file with columns such as name, arrival, job, data, gpus, epochs, batch, deadline, a folder of job files, or a job
    log of Philly or Helios.
    With --count, jobs are drawn from it at random, and arrive as a Poisson process. Speeds are predicted for every size. Each
    policy is simulated several times, with the work and the speed of jobs drawn from their predictions.
    """

    verb = "schedule"
    examples = (
        "chronograd schedule jobs.csv --on 16xv100 --policy optimus,fifo,fair",
        "chronograd schedule jobs.csv --on 64xa100 --count 100 --gap 5min --policy all",
        "chronograd schedule jobs.csv --on 2xlocal --policy optimus --run runs/queue",
    )

    workload: Annotated[
        Path, click.Path(exists=True, path_type=Path), Spelling(metavar="FILE.csv|FOLDER", is_argument=True)
    ]
    on: Annotated[str, Spelling(metavar="[COUNTx]DEVICE", complete=complete_devices)]
    """GPUs of the cluster, such as 16xv100."""
    policy: Annotated[tuple[str, ...], POLICIES, Spelling(metavar="LIST")] = ("optimus", "fifo", "fair")
    """allox, fair, fifo, gavel, makespan, optimus, pollux, srtf, themis, throughput, tiresias; or all. The first one gets a timeline."""
    slots: Annotated[int | None, click.IntRange(0)] = None
    """Places for parameter servers; as many as GPUs by default."""
    count: Annotated[int | None, click.IntRange(1, 100_000)] = None
    """Draw this number of jobs from the workload, by the column weight."""
    gap: Annotated[float, DURATION] = 600.0
    """With --count: mean time between arrivals, such as 10min."""
    interval: Annotated[float | None, DURATION] = None
    """Length of a round, or time between regular decisions: of all policies but fifo and srtf. By default a tenth of the mean job's time, up to 10 minutes: longer for jobs of months, and at least twice the pause."""
    resize: Annotated[float | None, DURATION] = None
    """Pause of a job that gets another size: checkpoint and restart; 30 s by default, with --run as --start."""
    start: Annotated[float | None, DURATION] = None
    """Time from the start of a job to its first step; 0 by default, with --run measured first."""
    mtbf: Annotated[float | None, DURATION] = None
    """Mean time between failures of one GPU, such as 30d."""
    slow: Annotated[float | None, SHARE] = None
    """Share of jobs that run at half the predicted speed."""
    reclaim: Annotated[float | None, DURATION] = None
    """Mean time until a spot node is reclaimed, for half an hour."""
    draws: Annotated[int, click.IntRange(2, 1000)] = 20
    """Simulations of each policy."""
    run: Annotated[Path | None, FOLDER] = None
    """Really run the jobs on this machine's cores, under the first policy, in this folder. An interrupted schedule continues."""
    slurm: bool = False
    """With --run: let SLURM run the jobs, with one rank on each node."""
    partition: str | None = None
    """With --slurm: the partition; by default that of the cluster."""
    timeline: Annotated[Path | None, FILE] = None
    """Save the schedule, or the run, for Perfetto."""
    seed: Annotated[int, click.IntRange(0)] = 0

    def answer(self) -> Answer[SchedulePlan]:
        from chronograd.files import save_json
        from chronograd.hardware import catalog
        from chronograd.job import parse_on
        from chronograd.schedule.answer import schedule_answer, with_real
        from chronograd.schedule.events import simulate
        from chronograd.schedule.log import MAX_JOBS
        from chronograd.schedule.policies import policy
        from chronograd.schedule.timelines import timeline_of_schedule
        from chronograd.schedule.workload import drawn, read_workload
        from chronograd.verbs.screen import say as notice

        machines = self._machines()
        count, name = parse_on(self.on)
        device = catalog.device(name)
        lines = read_workload(self.workload, notice)
        if self.count is not None:
            lines = drawn(lines, self.count, self.gap, self.seed)
        if len(lines) > MAX_JOBS:
            raise InputError(
                f"{self.workload} has {len(lines):,} jobs", f"draw at most {MAX_JOBS:,} of them with --count"
            )
        pool = self._pool(device, count or 1)
        reader = _JobMaker(device, pool, is_real=self.run is not None)
        with waiting("predicting the speed of each job") as say:
            jobs = reader.jobs(lines, say)
        policies = [policy(one) for one in self.policy]
        conditions = self._conditions(jobs, machines, pool)
        with waiting("simulating"):
            answer = schedule_answer(
                jobs,
                pool,
                policies,
                conditions,
                draws=self.draws,
                seed=self.seed,
                assumed=list(reader.assumed.values()),
            )
        real = None
        if machines is not None and self.run is not None:
            from chronograd.launch.scheduling import run_schedule  # imports torch

            real = run_schedule(reader.real(jobs, lines), pool, policies[0], self.run, conditions, machines, notice)
            answer = with_real(answer, real, pool, policies[0], conditions)
        if self.timeline is not None:
            shown = real or simulate(jobs, pool, policies[0], conditions)
            save_json(self.timeline, timeline_of_schedule(shown, pool.title))
            notice(f"{self.timeline}: open it in https://ui.perfetto.dev")
        return answer

    def _pool(self, device: Device, num_gpus: int) -> Pool:
        from chronograd.hardware import market
        from chronograd.schedule.jobs import Pool

        price = market.price_of(device, count=num_gpus) if device.kind == "gpu" else None
        return Pool(
            num_gpus,
            num_gpus if self.slots is None else self.slots,
            gpus_per_node=min(num_gpus, device.node.devices_per_node),
            title=device.title,
            usd_per_hour=None if price is None else float(price.usd_per_hour(num_gpus)) / num_gpus,
        )

    def _machines(self) -> Machines | None:
        """Return where the jobs really run; None if they are only simulated."""
        if self.run is None and self.slurm:
            raise InputError("--slurm is for jobs that really run", "add --run FOLDER")
        if not self.slurm and self.partition is not None:
            raise InputError("--partition is one of SLURM", "add --slurm")
        if self.run is None:
            return None
        from chronograd.launch.scheduling import by_slurm, here
        from chronograd.launch.slurm.script import Options

        return by_slurm(Options(partition=self.partition)) if self.slurm else here()

    def _conditions(self, jobs: list[ScheduledJob], machines: Machines | None, pool: Pool) -> Any:
        from chronograd.schedule.events import Conditions, usual_interval_s

        start_s = self.start
        if start_s is None and machines is not None and self.run is not None:
            from chronograd.launch.scheduling import time_start

            with waiting("measuring how long a job needs to start"):
                start_s = time_start(machines, self.run, pool.gpus)
        stated = {
            "start_s": start_s,
            "resize_s": start_s if self.resize is None and machines is not None else self.resize,
            "mtbf_s": self.mtbf,
            "slow_share": self.slow,
            "reclaim_s": self.reclaim,
        }
        conditions = Conditions(**{name: value for name, value in stated.items() if value is not None})
        usual_s = usual_interval_s(jobs, conditions.start_s + conditions.resize_s)
        return replace(conditions, interval_s=self.interval or usual_s)


class _JobMaker:
    """Makes jobs from lines. Lines that differ only in name and time share one prediction."""

    def __init__(self, device: Device, pool: Pool, is_real: bool) -> None:
        from chronograd.schedule.predicted import beside_others

        self.device, self.pool, self.is_real = beside_others(device), pool, is_real
        self.known: dict[JobLine, tuple[ScheduledJob, Job | None]] = {}
        self.assumed: dict[str, str] = {}
        if self.device is not device:
            self.assumed[""] = "Speeds are those of this machine while its other cores work, too."

    def jobs(self, lines: list[JobLine], say: Any) -> list[ScheduledJob]:
        """Return the jobs of lines. Raises InputError, before the first prediction if one is larger than the cluster."""
        from chronograd.schedule.predicted import check_size

        for line in lines:
            check_size(line, self.pool)
        found = []
        for line in lines:
            if _kind(line) not in self.known:
                say(line.name)
                try:
                    self.known[_kind(line)] = self._job(line)
                except InputError as error:
                    raise InputError(f"job {line.name}: {error.message}", error.hint) from None
            own, _ = self.known[_kind(line)]
            found.append(replace(own, name=line.name, arrival_s=line.arrival_s, deadline_s=line.deadline_s))
        return found

    def real(self, jobs: list[ScheduledJob], lines: list[JobLine]) -> list[RealJob]:
        """Return the jobs with their job files. Raises InputError for one that has only coefficients."""
        from chronograd.launch.scheduling import RealJob

        found = []
        for scheduled, line in zip(jobs, lines, strict=True):
            _, job = self.known[_kind(line)]
            if job is None:
                raise InputError(f"{line.name} has a speed, but nothing to run", "give a network or a job file")
            found.append(RealJob(scheduled, job))
        return found

    def _job(self, line: JobLine) -> tuple[ScheduledJob, Job | None]:
        from chronograd import trust
        from chronograd.ask import ask
        from chronograd.data.datasets import card
        from chronograd.data.trace_job import trace_job
        from chronograd.job import is_job_file, read
        from chronograd.models import names
        from chronograd.plan.effort import effort_of
        from chronograd.schedule import predicted

        if not line.job and line.duration_s is not None:
            self.assumed["duration"] = (
                "A job with a duration takes longer in proportion on fewer GPUs than it requests."
            )
            return predicted.of_duration(line), None
        if not line.job:
            return predicted.of_coefficients(line, self.pool), None
        if is_job_file(line.job):  # the workload names its code, not the user
            names.check_code(read(line.job))
        elif names.split(line.job)[0] == "function":
            trust.check(line.job)
        short = {"data": line.data, "precision": line.precision, "batch": line.batch}
        fields = [] if line.epochs is None else [f"training.epochs={line.epochs}"]
        if self.is_real:  # a rank has a core
            fields += ["cluster.threads=1", f"cluster.device={self.device.name}"]
        asked = ask(line.job, fields, {name: value for name, value in short.items() if value is not None})
        if asked.job.mode == "inference":
            raise InputError(f"{line.name} is an inference job", "schedule training jobs")
        samples = card(asked.job.data).train_size if asked.has_data else 0
        effort = effort_of(asked.job, samples, target=line.target, has_epochs=asked.has_epochs)
        if asked.assumed:
            self.assumed[line.job] = f"{line.job}: {', '.join(asked.assumed.values())}."
        return predicted.of_job(line, asked.job, trace_job(asked.job), effort, self.device, self.pool), asked.job


def _kind(line: JobLine) -> JobLine:
    """Return a line without what differs between jobs of a kind."""
    return replace(line, name="", arrival_s=0.0, deadline_s=None)


REQUESTS = (ScheduleJobs,)
