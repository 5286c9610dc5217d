"""What the studies of many ranks share: jobs on growing numbers of ranks, measured here and predicted for elsewhere.

Runs of one study never overlap: they are timed. What cannot run here is a row that says why; predictions for devices
that are not here stand beside, labelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.compare.scaling import Ladder, Scaling, per_rank
from chronograd.errors import InputError
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.record import Record
from chronograd.rundir import RunDir, is_run_dir
from chronograd.study.lab import Lab
from chronograd.study.results import Row


@dataclass(frozen=True)
class Arm:
    """One job of a study and the numbers of ranks it is looked at with.

    Attributes:
        measured: numbers of ranks to run here; `predicted`: to predict, on the job's device.
        algorithm: of the all-reduce, for what is predicted.
    """

    name: str
    job: Job
    scaling: Scaling
    measured: Sequence[int] = ()
    predicted: Sequence[int] = ()
    algorithm: str | None = None


def climb(lab: Lab, arms: Sequence[Arm], num_steps: int, warmup: int) -> list[Row]:
    """Rows of `chronograd.compare.scaling.Point`, with `series`: the arm's name. One run at a time.

    What was measured is predicted as well where this machine is calibrated. Every rank has as many threads as leaves a
    core for each of the largest world.
    """
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job

    rows: list[Row] = []
    lab.parallel, lab.threads = 1, lab.threads_alone([1, *(world for arm in arms for world in arm.measured)])
    for arm in arms:
        job = changed(arm.job, [f"cluster.threads={lab.threads}"]) if arm.measured else arm.job
        ladder = Ladder(job, trace_job(job), card(job.data).train_size)

        def measure(one: Job, name: str = arm.name) -> Record:
            return measured(lab, f"{name}/{one.cluster.count}x{per_rank(one)}", one, num_steps, warmup)

        points = ladder.measured(arm.measured, arm.scaling, measure, lab.say)
        worlds = [*arm.predicted] or [point.world for point in points if point.kind == "measured"]
        try:
            points += ladder.predicted(worlds, arm.scaling, algorithm=arm.algorithm) if worlds else []
        except InputError as error:
            lab.say(f"{arm.name}: not predicted: {error.message}")
        rows += [{"series": arm.name, **point.row()} for point in points]
    return rows


def measured(lab: Lab, name: str, job: Job, num_steps: int, warmup: int) -> Record:
    """The record of a timed job, from an earlier run of the study where there is one."""
    path = lab.path(name)
    if is_run_dir(path) and RunDir.open(path).is_finished:
        return RunDir.open(path).record()
    if is_run_dir(path):
        path = lab.path(f"{name}-again")
    return jobs.measure(job, num_steps=num_steps, warmup=warmup, seconds=120.0, out=path).record()


def of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have the wanted values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def last(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """Of the wanted rows the one with most ranks and a step time; None if there is none."""
    known = [row for row in of(rows, **wanted) if row["step_time_s"] is not None]
    return max(known, key=lambda row: row["world"], default=None)


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why rows are missing, each once, with the series that it keeps away."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["kind"] == "missing" and row["series"] not in found.setdefault(row["reason"], []):
            found[row["reason"]].append(row["series"])
    return [f"{', '.join(series)}: {reason}" for reason, series in found.items()]
