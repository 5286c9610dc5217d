"""SLURM nodes drained or lost while a job runs on them; SLURM_CONF names the cluster."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults_common import STEPS, final_bytes, make_job, outcome
from chronograd.errors import ChronogradError
from chronograd.launch import jobs, slurm
from chronograd.rundir import RunDir

OVERRIDES = ("cluster.per_node=1", "cluster.max_restarts=1")
MAX_S = 300.0
AT_REST = {"idle", "drained", "down", "down*", "idle*"}


def strike(run: RunDir, kind: str, step: int, chance: random.Random) -> dict[str, Any]:
    """Drain a node and requeue the job, as before maintenance; or lose the node, after which SLURM requeues the job."""
    _wait(lambda: slurm.state(run).step >= step or run.is_finished, run)
    if run.is_finished:
        return {}
    time.sleep(chance.uniform(0, 0.2))
    job_id = slurm.state(run).job_id
    node = chance.choice(_said("scontrol", "show", "hostnames", _said("squeue", "-hj", job_id, "-o%N")).split())
    at = slurm.state(run).step
    _said("scontrol", "update", f"nodename={node}", f"state={kind}", "reason=benchmark")
    if kind == "drain":
        _said("scontrol", "requeue", job_id)
    return {"node": node, "kind": kind, "hit": f"step {at}"}


def begin_again(run: RunDir) -> None:
    """Release a requeued job, which SLURM holds back for two minutes, longer than its end takes to arrive."""
    job_id = slurm.state(run).job_id
    _wait(lambda: slurm.state(run).state == "PENDING" and set(_said("sinfo", "-hNo%T").split()) <= AT_REST, run)
    time.sleep(3)
    _said("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def one(path: Path, number: int, chance: random.Random, expected: Sequence[bytes]) -> dict[str, Any]:
    """Run one job. Every second time the node returns before the job resumes; otherwise the job resumes without it."""
    kind = "drain" if number % 2 == 0 else "down"
    is_back_first = chance.random() < 0.5
    run = slurm.launch(make_job(*OVERRIDES), out=path)
    found: dict[str, Any] = {}
    error = ""
    try:
        found = strike(run, kind, chance.randrange(1, STEPS - 12), chance)
        if found:
            if is_back_first:
                _resume(found["node"])
            begin_again(run)
        slurm.wait(run)
    except (ChronogradError, TimeoutError) as failed:
        error = str(failed).splitlines()[0]
        subprocess.run(["scancel", slurm.state(run).job_id], check=False)
    if found:
        _resume(found["node"])
    _wait(lambda: set(_said("sinfo", "-hNo%T").split()) == {"idle"}, run)
    found |= {"is_back_first": is_back_first}
    return {"launcher": "slurm", "faults": [found], **outcome(run, expected, STEPS, error)}


def run(kills: int, seed: int, folder: Path, told: Callable[[Any], None]) -> None:
    expected = final_bytes(jobs.train(make_job(), out=folder / "undisturbed", launcher="local"))
    chance = random.Random(f"{seed} slurm")
    for number in range(kills):
        told(one(folder / str(number), number, chance, expected))


def _resume(node: str) -> None:
    if "idle" not in _said("sinfo", "-hNn", node, "-o%T"):
        # A node set down returns by itself because its daemon still runs; SLURM then refuses this command.
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False, capture_output=True)


def _wait(is_so: Callable[[], bool], run: RunDir) -> None:
    deadline = time.monotonic() + MAX_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited too long for {run.path}, which is {slurm.state(run)}")
        time.sleep(0.1)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
