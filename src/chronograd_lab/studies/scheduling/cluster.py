"""A real cluster: 120 jobs on 32 V100, run under three policies and simulated here.

The jobs, throughputs and results are those of the artefact of Zheng et al., Shockwave, NSDI 2023 (uw-mad-dash/shockwave @8a44f4a), in
`schedulers` of CHRONOGRAD_MEASURED. Jobs keep the size that they request; 67 of them change their batch while they run. A
scheduler knows the table of throughputs. One number is fitted, the pause of a job that starts or continues. `pause_s` takes it from the
rounds of AlloX' run. The runs of the other two policies check it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chronograd.errors import InputError
from chronograd.schedule.events import Conditions, Timetable, simulate
from chronograd.schedule.fairness import finish_time_fairness
from chronograd.schedule.jobs import Allocation, Phase, Pool, ScheduledJob, Speeds
from chronograd.schedule.policies import policy
from chronograd_lab.common.results import Row

FOLDER = "schedulers"
# Our policies, and their names in the tables. The first one gives the pause of a start.
POLICIES = {"allox": "allox", "gavel": "max_min_fairness", "themis": "finish_time_fairness"}
CLUSTER = Pool(32, gpus_per_node=4, title="V100")
ROUND_S = 120.0
# A job is treated unfairly if its finish-time fairness is above this, as in the artefact.
UNFAIR = 1.1

Table = list[dict[str, str]]


def read(measured: Path | None, name: str) -> Table:
    """Return a table of the artefact. Raises InputError if it is not available."""
    path = (measured or Path()) / FOLDER / f"{name}.csv"
    if measured is None or not path.is_file():
        raise InputError("the published cluster needs its tables", "set CHRONOGRAD_MEASURED to their folder")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def jobs(measured: Path | None) -> list[ScheduledJob]:
    """Return the 120 jobs with the speeds that a scheduler knows. Work is counted in samples, in whole epochs."""
    rates = {
        (row["kind"], row["batch"], row["gpus"]): float(row["steps_per_second_tacc_file"])
        for row in read(measured, "throughputs")
        if row["gpu"] == CLUSTER.title and row["steps_per_second_tacc_file"]
    }
    batches: dict[str, list[tuple[int, str]]] = {}
    for row in read(measured, "batch_by_epoch"):
        batches.setdefault(row["job"], []).append((int(row["first_epoch"]), row["batch"]))
    return [_job(row, batches[row["job"]], rates) for row in read(measured, "jobs")]


def _job(
    row: Mapping[str, str], batches: Sequence[tuple[int, str]], rates: Mapping[tuple[str, str, str], float]
) -> ScheduledJob:
    samples, gpus = int(row["samples_per_epoch"]), int(row["gpus"])

    def speeds(batch: str) -> Speeds:
        """Return samples per second; only the requested size is known and used."""
        steps = math.ceil(samples / int(batch))
        rate = samples / steps * rates[row["kind"], batch, row["gpus"]]
        return [[rate * count / gpus] for count in range(gpus + 1)]

    phases = [Phase(float(epoch * samples), speeds(batch)) for epoch, batch in batches]
    return ScheduledJob(
        row["job"],
        float(row["arrival_s"]),
        float(samples * int(row["epochs"])),
        phases[0].samples_per_s,
        Allocation(gpus),
        phases=phases[1:],
    )


def pause_s(measured: Path | None) -> float:
    """Return the seconds by which a round of AlloX' run was longer than planned, for each job that did not just go on."""
    (row,) = (r for r in read(measured, "summary") if r["policy"] == "allox" and r["run"] == "physical")
    started = 1 - float(row["lease_extension_percent"]) / 100
    return (float(row["makespan_corrected_s"]) / int(row["rounds"]) - ROUND_S) / started


def simulated(name: str, of: Sequence[ScheduledJob], pause: float) -> Timetable:
    """Return the schedule of the jobs on the cluster, in rounds."""
    return simulate(of, CLUSTER, policy(name), Conditions(resize_s=pause, start_s=pause, interval_s=ROUND_S))


def rows(measured: Path | None) -> list[Row]:
    """Return, for each policy that ran: the measured and the simulated mean completion, makespan and share of unfair jobs."""
    every, pause, by_job = jobs(measured), pause_s(measured), read(measured, "jobs_by_policy")
    summary = {(row["policy"], row["run"]): row for row in read(measured, "summary")}
    return [
        _compared(name, simulated(name, every, pause), ClusterRun.of(published, by_job, every), summary, pause)
        for name, published in POLICIES.items()
    ]


@dataclass(frozen=True)
class ClusterRun:
    """A run of the cluster. `gpu_time`: of all jobs, over that of the table of throughputs."""

    published: str
    completion_s: np.ndarray
    gpu_time: float

    @classmethod
    def of(cls, published: str, by_job: Table, every: Sequence[ScheduledJob]) -> ClusterRun:
        ran = [row for row in by_job if row["policy"] == published and row["run"] == "physical"]
        ran.sort(key=lambda row: int(row["job"]))
        needed_s = sum(job.requested_s * job.requested.workers for job in every)
        gpu_s = sum(float(row["run_time_s"]) for row in ran)
        return cls(published, np.array([float(row["completion_s"]) for row in ran]), gpu_s / needed_s)


def _compared(
    name: str, schedule: Timetable, run: ClusterRun, summary: Mapping[tuple[str, str], Mapping[str, str]], pause: float
) -> Row:
    physical, theirs = summary[run.published, "physical"], summary[run.published, "simulation"]
    completion_s, makespan_s = float(physical["mean_completion_s"]), float(physical["makespan_corrected_s"])
    rho = finish_time_fairness(schedule, CLUSTER.gpus)
    return {
        "policy": name,
        "is_fitted": name == next(iter(POLICIES)),
        "pause_s": pause,
        "physical_completion_s": completion_s,
        "completion_s": float(schedule.completion_s.mean()),
        "completion_error": float(schedule.completion_s.mean()) / completion_s - 1,
        "physical_makespan_s": makespan_s,
        "makespan_s": schedule.makespan_s,
        "makespan_error": schedule.makespan_s / makespan_s - 1,
        "authors_completion_error": float(theirs["mean_completion_s"]) / completion_s - 1,
        "authors_makespan_error": float(theirs["makespan_corrected_s"]) / makespan_s - 1,
        "job_error": float(np.abs(schedule.completion_s / run.completion_s - 1).mean()),
        "job_bias": float((schedule.completion_s / run.completion_s - 1).mean()),
        "gpu_time": run.gpu_time,
        "unfair": float((rho > UNFAIR).mean()),
        "physical_unfair": float((rho_of(schedule, run.completion_s) > UNFAIR).mean()),
    }


def rho_of(schedule: Timetable, completion_s: np.ndarray) -> np.ndarray:
    """Return the finish-time fairness of the same jobs with other times from arrival to end."""
    other = Timetable(
        schedule.jobs,
        schedule.arrived_s + completion_s,
        schedule.gpu_s,
        schedule.running_s,
        schedule.restarts,
        schedule.failures,
        schedule.capacity_s,
        [],
    )
    return finish_time_fairness(other, CLUSTER.gpus)
