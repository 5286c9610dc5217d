"""What the studies of many ranks share: jobs on growing numbers of ranks, measured here and predicted for elsewhere.

Runs of one study never overlap: they are timed. What cannot run here is a row that says why; predictions for devices
that are not here stand beside, labelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chronograd.compare.scaling import Ladder, Scaling
from chronograd.errors import InputError
from chronograd.job import Job, changed, from_dict
from chronograd.launch import jobs
from chronograd.record import Record
from chronograd.rundir import RunDir, is_run_dir
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import matching
from chronograd.study.runner import StudyRunner


@dataclass(frozen=True)
class Sweep:
    """One job of a study and the numbers of ranks it is looked at with.

    Attributes:
        measured: numbers of ranks to run here; `predicted`: to predict, on the job's device.
        known: further columns of its rows. `algorithm`: of the all-reduce, for what is predicted.
    """

    name: str
    job: Job
    scaling: Scaling = "weak"
    measured: Sequence[int] = ()
    predicted: Sequence[int] = ()
    known: Row = field(default_factory=dict)
    algorithm: str | None = None


def scaling_job(
    settings: Settings, backend: str, training: Row, data: str = "data", communication: Row | None = None, **cluster: Any
) -> Job:  # fmt: skip
    """A job of these settings on this machine, or on the device that `cluster` names. `data`: the setting that has it."""
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings[data]),
            "training": {"recipe": "sgd-momentum", **training},
            "communication": communication or {},
            "cluster": {"device": "local", **cluster},
            "backend": backend,
        }
    )


def run_sweeps(runner: StudyRunner, settings: Settings, sweeps: Sequence[Sweep]) -> Results:
    """The table `points`: rows of `chronograd.launch.scaling.Point`, with `series`: the sweep's name. One run at a time.

    What was measured is predicted as well where this machine is calibrated. Every rank has as many threads as leaves a
    core for each of the largest world.
    """
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job

    rows: list[Row] = []
    worlds = [1, *(world for sweep in sweeps for world in sweep.measured)]
    runner.parallel, runner.threads = 1, runner.threads_alone(worlds)
    for sweep in sweeps:
        job = changed(sweep.job, [f"cluster.threads={runner.threads}"]) if sweep.measured else sweep.job
        ladder = Ladder(job, trace_job(job), card(job.data).train_size)

        def measure(one: Job, name: str = sweep.name) -> Record:
            per_rank = -(-one.training.batch // one.cluster.count)
            return measured(runner, settings, f"{name}/{one.cluster.count}x{per_rank}", one)

        points = ladder.measured(sweep.measured, sweep.scaling, measure, runner.say)
        worlds = [*sweep.predicted] or [point.world for point in points if point.kind == "measured"]
        try:
            points += ladder.predicted(worlds, sweep.scaling, algorithm=sweep.algorithm) if worlds else []
        except InputError as error:
            runner.say(f"{sweep.name}: not predicted: {error.message}")
        rows += [{"series": sweep.name, **point.model_dump(), **sweep.known} for point in points]
    return runner.results(settings, rows={"points": rows}, notes=reasons(rows))


def measured(runner: StudyRunner, settings: Settings, name: str, job: Job) -> Record:
    """The record of a timed job, from an earlier run of the study where there is one."""
    path = runner.path(name)
    if is_run_dir(path) and RunDir.open(path).is_finished:
        return RunDir.open(path).record()
    if is_run_dir(path):
        path = runner.path(f"{name}-again")
    steps, warmup = settings["steps"], settings["warmup"]
    return jobs.measure(job, num_steps=steps, warmup=warmup, seconds=120.0, out=path).record()


def last(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """Of the wanted rows the one with most ranks and a step time; None if there is none."""
    known = [row for row in matching(rows, **wanted) if row["step_time_s"] is not None]
    return max(known, key=lambda row: row["world"], default=None)


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why rows are missing, each once, with the series that it keeps away."""
    missing: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["kind"] == "missing":
            missing.setdefault(row["reason"], {})[row["series"]] = None
    return [f"{', '.join(series)}: {reason}" for reason, series in missing.items()]
