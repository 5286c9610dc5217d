"""SLURM's commands and their output."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from chronograd.errors import RunError
from chronograd.train.rank_command import PARENT_VARIABLE

COMMAND_TIMEOUT_S = 60.0


def num_nodes() -> int:
    """Return the number of nodes of the SLURM that this machine can submit to; 0 if none answers."""
    try:
        return len(set(_call("sinfo", "--noheader", "--Node", "--format=%N").split()))
    except RunError:
        return 0


def sbatch(script: Path) -> str:
    """Submit a script. Returns the id of its job."""
    return _call("sbatch", "--parsable", str(script)).strip().split(";")[0]


def scancel(job_id: str) -> None:
    """End a job, or remove it from the queue. Raises RunError if SLURM refuses or does not answer."""
    _call("scancel", job_id)


def squeue(job_id: str) -> tuple[str, str] | None:
    """Return state and reason; None for a job that SLURM has forgotten, some minutes after its end."""
    arguments = ("--jobs", job_id, "--states=all", "--noheader", "--format=%T|%R")
    try:
        text = _call("squeue", *arguments).strip()
    except RunError as error:
        if "Invalid job id" in error.message:
            return None
        raise
    if not text:
        return None
    name, _, reason = text.splitlines()[-1].partition("|")
    return name, reason.strip("()").replace("None", "")


def sacct(job_id: str) -> tuple[str, str] | None:
    """Return state and reason from the accounting; None without accounting, or if it does not know the job."""
    try:
        text = _call("sacct", "--jobs", job_id, "-X", "--noheader", "--parsable2", "--format=State,Reason").strip()
    except RunError:
        return None
    if not text:
        return None
    name, _, reason = text.splitlines()[-1].partition("|")
    return name.split()[0], reason.replace("None", "")


def _call(*command: str) -> str:
    """Run a SLURM command and return its output. Raises RunError with its message."""
    # Only processes that we watch end with their parent; SLURM ends its own.
    kept = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, env=kept)
    except FileNotFoundError:
        raise RunError(
            f"there is no {command[0]} on this machine",
            "run this on a login node of the cluster; --dry-run prints the script anywhere",
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(
            f"{command[0]} did not answer in {COMMAND_TIMEOUT_S:g} s", "see whether slurmctld is up"
        ) from None
    if done.returncode:
        said = [re.sub(rf"^{command[0]}: (error: )?", "", line) for line in done.stderr.splitlines() if line.strip()]
        raise RunError(
            f"{command[0]} says: {'; '.join(said) or f'exit status {done.returncode}'}",
            "`sinfo` lists partitions, nodes and limits" if command[0] == "sbatch" else "",
        )
    return done.stdout
