"""Six small jobs that really run under a policy: on two cores of this machine, and in SLURM if there are three nodes.

The nodes of the tests' cluster share two cores, so only two of them get jobs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import api
from chronograd.launch import jobs
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.rundir import RunDir
from chronograd.schedule.events import Stay, Timetable
from chronograd.schedule.jobs import Allocation, ScheduledJob
from chronograd.train.checkpoint_folder import MODEL, list_checkpoints
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import grouped
from chronograd_lab.common.runner import Say
from chronograd_lab.common.written import key

HERE, SLURM = "two cores", "three nodes of SLURM"
CORES = 2
NODES = 3
WORKLOAD = "workload.csv"


def run_real(folder: Path, policies: Mapping[str, Sequence[str]], say: Say) -> tuple[list[Row], list[str]]:
    """Run the jobs in each place under some policies. Returns a row for each job, and what was left out.

    The weights of a job whose size never changed are compared with those of a run without a scheduler.
    """
    rows, notes = list[Row](), list[str]()
    for place, names in policies.items():
        by_slurm = place == SLURM
        if by_slurm and slurm_commands.num_nodes() < NODES:
            notes.append(f"SLURM was left out: there is no cluster of {NODES} nodes.")
            continue
        for policy in names:
            queue = folder / f"{policy}-{'slurm' if by_slurm else 'here'}"
            with resources.as_file(resources.files(__package__) / "real_jobs") as jobs_of:
                found = api.schedule(
                    jobs_of / WORKLOAD, on=f"{CORES}xlocal", policy=(policy,), run=queue, slurm=by_slurm
                )
            arrivals = {job.name: job.arrival_s for job in found.result.jobs}
            for one in found.result.real or []:
                say(f"{place}: {policy}, {one.name}: {one.measured_s:.1f} s, simulated {one.simulated_s:.1f} s")
                times = {"measured": _plain(one.measured), "simulated": _plain(one.simulated)}
                known = {"place": place, "policy": policy, "queue": queue.name, "arrival_s": arrivals[one.name]}
                rows.append({**known, **vars(one), **times})
    for row in rows:
        sizes = {stay["size"][0] for stay in row["measured"]}
        run = RunDir.open(folder / row.pop("queue") / row["name"])
        alone = folder / "alone" / f"{row['name']}-{run.job().cluster.count}"
        row["same_weights"] = _has_weights_of(run, alone) if len(sizes) == 1 else None
    return rows, notes


def _plain(stays: list[Stay]) -> list[Row]:
    return [{**vars(stay), "size": list(stay.size)} for stay in stays]


def _has_weights_of(scheduled: RunDir, alone: Path) -> bool:
    """Train a scheduled run's job without a scheduler, and return whether all weights are equal."""
    from safetensors.numpy import load_file

    job = scheduled.job()
    run = jobs.resume(RunDir.open(alone)) if alone.exists() else jobs.train(job, out=alone)
    ours, theirs = (load_file(list_checkpoints(one.checkpoints)[-1] / MODEL) for one in (scheduled, run))
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def stays_of(rows: list[Row]) -> list[Stay]:
    """Return stays from their rows in the results."""
    return [Stay(**{**row, "size": Allocation(*row["size"])}) for row in rows]


def timetable(rows: list[Row], which: str) -> Timetable:
    """Return the timetable of one schedule's rows: `measured` or `simulated`."""
    jobs_of = [ScheduledJob(row["name"], row["arrival_s"], 1.0, [[0.0], [1.0]], Allocation(1)) for row in rows]
    stays = [stay for row in rows for stay in stays_of(row[which])]
    ended, none = np.array([row["arrival_s"] + row[f"{which}_s"] for row in rows]), np.zeros(len(rows))
    return Timetable(jobs_of, ended, none, none, none, none, 1.0, stays)


def real_values(rows: list[Row]) -> dict[str, Any]:
    """Return by place and policy: jobs, mean error, bias, resized jobs, and jobs with the weights of a plain run."""
    found: dict[str, Any] = {}
    for place, own in grouped(rows, "place").items():
        for policy, jobs_of in grouped(own, "policy").items():
            errors = np.array([row["error"] for row in jobs_of])
            found.setdefault(key(place), {})[policy] = {
                "jobs": len(jobs_of), "error": float(np.abs(errors).mean()), "bias": float(errors.mean()),
                "largest": float(np.abs(errors).max()), "resized": sum(row["same_weights"] is None for row in jobs_of),
                "restarts": sum(row["restarts"] for row in jobs_of), "equal": sum(row["same_weights"] is True for row in jobs_of),
                "different": sum(row["same_weights"] is False for row in jobs_of),
            }  # fmt: skip
    return found
