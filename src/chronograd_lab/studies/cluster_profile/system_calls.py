"""System calls with which the ranks of a backend wait for each other, counted by strace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from chronograd import trust
from chronograd.errors import RunError
from chronograd.job import Job, to_yaml
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Row

# A thread that polls gives its core away (sched_yield) and asks again; one that sleeps is woken through a futex.
WAITS = ("sched_yield", "futex")


def counted(job: Job, folder: Path) -> list[Row]:
    """Train a job under strace. Return the calls of each kind per step and rank, start included; nothing without strace.

    Raises: RunError if training fails.
    """
    if shutil.which("strace") is None:
        return []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(to_yaml(job))
    command = trust.python("-m", "chronograd", "train", str(folder / "job.yaml"), "--out", str(folder / "run"))
    calls = calls_of(command, folder / "calls.txt")
    steps = len(RunDir.open(folder / "run").read_steps().steps)
    per_step = {name: number / (steps * job.cluster.count) for name, number in calls.items()}
    return [{"backend": job.backend, "call": name, "steps": steps, "per_step": per_step[name]} for name in WAITS]


def calls_of(command: Sequence[str], path: Path) -> dict[str, int]:
    """Run a command. Return how often its threads and processes made each call of WAITS; strace writes its table to `path`."""
    strace = ["strace", "-f", "-c", "--seccomp-bpf", "-e", f"trace={','.join(WAITS)}", "-o", str(path)]
    done = subprocess.run([*strace, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {done.stderr[-500:]}", "run it without strace")
    rows = [line.split() for line in path.read_text().splitlines()]
    return {name: sum(int(row[3]) for row in rows if row and row[-1] == name) for name in WAITS}
