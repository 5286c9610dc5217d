"""Ranks, servers and nodes killed or stopped at random moments: every job must end with the result of an undisturbed run.

    python -m benchmarks.faults --kills 20 --launcher local,torchrun --json benchmarks/results/faults.json
    python -m benchmarks.faults --kills 10 --backend fsdp,tensor_parallel --json benchmarks/results/faults.json
    python -m benchmarks.faults --kills 20 --servers --json benchmarks/results/faults.json
    python tools/slurm_cluster.py python -m benchmarks.faults --kills 20 --slurm --json benchmarks/results/faults.json
    python -m benchmarks.faults --table --json benchmarks/results/faults.json

A job is right when it has a record, and every step once. With two ranks that exchange in each step, it also has the weights and
optimizer state of an undisturbed run, bit by bit. The seed decides the rank, the moment and the fault; the rank's own note shows where it was
hit. One in three ranks is stopped (SIGSTOP) instead of killed, so the others must detect it. One in five is hit twice. This
benchmark measures no times, so other programs may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import faults_servers, faults_slurm
from benchmarks.faults_common import SHARDED_JOBS, STEPS, STEPS_PER_EPOCH, final_bytes, make_job, outcome
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.rundir import RunDir
from chronograd.train.watchdog import Note, note_path, read_note

PHASES = ("start-up", "step", "evaluation", "checkpoint")


@dataclass(frozen=True)
class Fault:
    """A fault planned for a rank: the attempt (from 1), and the earliest step."""

    start: int
    rank: int
    kind: str
    phase: str
    step: int
    after_s: float


def planned(chance: random.Random, number: int) -> list[Fault]:
    """Return the faults of one job. Phases take turns; the moments within them are random."""
    found = []
    for start in range(1, 3 if number % 5 == 4 else 2):
        phase = PHASES[(number + start - 1) % len(PHASES)]
        kind = "stop" if (number + start - 1) % 3 == 2 else "kill"
        step = chance.randrange(1, STEPS - STEPS_PER_EPOCH) if start == 1 else 0
        after_s = chance.uniform(0, {"start-up": 3.0, "step": 0.1, "evaluation": 0.01, "checkpoint": 0.01}[phase])
        found.append(Fault(start, chance.randrange(2), kind, phase, step, after_s))
    return found


def has_come(fault: Fault, note: Note | None, of_first: Note | None) -> bool:
    """Return whether a rank has reached the planned moment. Rank 0 writes checkpoints, with the others if parameters are sharded."""
    if note is None or of_first is None:
        return False
    if fault.phase == "checkpoint":
        return of_first.what == "checkpoint" and of_first.step >= fault.step
    if fault.phase == "evaluation":
        return "evaluation" in note.what and note.step >= fault.step
    return note.step >= max(1, fault.step) and "evaluation" not in note.what


def hit(run: RunDir, fault: Fault, seen: set[int], is_over: threading.Event) -> dict[str, Any] | None:
    """Wait for the moment, then kill or stop. Returns the rank's position, or None if the job ended before."""
    while not is_over.is_set():
        if fault.phase == "start-up":
            process = _new_rank(run, fault.rank, seen)
            moment = process is not None
        else:
            note, first = (read_note(note_path(run, rank)) for rank in (fault.rank, 0))
            moment = has_come(fault, note, first) and note is not None and note.process not in seen
            process = note.process if note is not None else None
        if not moment or process is None:
            time.sleep(0.0005)
            continue
        time.sleep(fault.after_s)
        note = read_note(note_path(run, fault.rank))
        try:
            os.kill(process, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            return None
        seen.update(child.pid for child in psutil.Process().children(recursive=True))
        known = note is not None and note.process == process
        where = f"{note.what}, step {note.step}" if known and note is not None else "before its first note"
        return {"rank": fault.rank, "kind": fault.kind, "phase": fault.phase, "hit": where}
    return None


def _new_rank(run: RunDir, rank: int, seen: set[int]) -> int | None:
    """Return a process of the rank that started after the last fault."""
    for child in psutil.Process().children(recursive=True):
        try:
            is_rank = child.environ().get("RANK") == str(rank) and "chronograd.train.worker" in child.cmdline()
        except psutil.Error:
            continue
        if is_rank and child.pid not in seen:
            return int(child.pid)
    return None


def one(job: Job, run_path: Path, launcher: str, faults: Sequence[Fault], expected: Sequence[bytes]) -> dict[str, Any]:
    """Run one job with its faults."""
    run = jobs.create(job, run_path)
    is_over, hits = threading.Event(), list[dict[str, Any]]()

    def strike() -> None:
        seen: set[int] = set()
        for fault in faults:
            if (found := hit(run, fault, seen, is_over)) is not None:
                hits.append(found)

    thread = threading.Thread(target=strike)
    thread.start()
    error = ""
    try:
        jobs.resume(run, launcher=launcher)
    except RunError as failed:
        error = failed.message.splitlines()[0]
    finally:
        is_over.set()
        thread.join()
    return {"launcher": launcher, "faults": hits, **outcome(run, expected, STEPS, error)}


def of_ranks(kills: int, launcher: str, seed: int, folder: Path, told: Callable[[Any], None], job: Job) -> None:
    expected = final_bytes(jobs.train(job, out=folder / "undisturbed", launcher="local"))
    chance = random.Random(f"{seed} {launcher}" + ("" if job.backend == "ddp" else f" {job.backend}"))
    for number in range(kills):
        told(one(job, folder / f"{launcher}-{number}", launcher, planned(chance, number), expected))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--launcher", default="", help="local,torchrun")
    parser.add_argument("--backend", default="", help="fsdp,tensor_parallel")
    parser.add_argument("--servers", action="store_true", help="parameter servers, learners and their driver")
    parser.add_argument("--slurm", action="store_true", help="nodes of the SLURM cluster on this machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of the results; kinds that do not run again stay in it")
    parser.add_argument(
        "--table", action="store_true", help="print the table of docs/clusters.md from --json, run nothing"
    )
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())))
        return
    own = environment.environment()
    host = {k: own[k] for k in ("processor", "cores", "versions")}

    def told_as(kind: str) -> Callable[[Any], None]:
        rows: list[dict[str, Any]] = []

        def told(row: dict[str, Any]) -> None:
            rows.append(row)
            print(json.dumps(row), flush=True)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            if arguments.json is not None:
                keep(
                    arguments.json,
                    kind,
                    {"created": created, "seed": arguments.seed, "environment": host, "rows": rows},
                )

        return told

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for launcher in filter(None, arguments.launcher.split(",")):
            of_ranks(arguments.kills, launcher, arguments.seed, folder / launcher, told_as(launcher), make_job())
        for backend in filter(None, arguments.backend.split(",")):
            job = make_job(*SHARDED_JOBS[backend])
            of_ranks(arguments.kills, "local", arguments.seed, folder / backend, told_as(backend), job)
        if arguments.servers:
            faults_servers.run(arguments.kills, arguments.seed, folder / "servers", told_as("servers"))
        if arguments.slurm:
            faults_slurm.run(arguments.kills, arguments.seed, folder / "slurm", told_as("slurm"))


TITLES = {
    "local": "rank, launcher `local`",
    "torchrun": "rank, `torchrun`",
    "fsdp": "rank of fsdp",
    "tensor_parallel": "rank of tensor_parallel",
    "servers": "server, learner or driver on Ray",
    "slurm": "node of SLURM, drained or lost",
}


def table(results: dict[str, Any]) -> str:
    """Return one row per kind of fault, with the median and maximum seconds and steps of the jobs that lost any."""
    rows = [
        "| what was hit | jobs | hits: killed, stopped | ended | every step once | same weights | "
        "steps redone, median of jobs with any | lost, median of jobs with any |"
    ]
    rows += ["| --- |" + " ---: |" * 7]
    for kind, title in TITLES.items():
        found = results.get(kind, {}).get("rows", [])
        if not found:
            continue
        hits = [fault for row in found for fault in row["faults"] if fault.get("hit")]
        stopped = sum(fault["kind"] == "stop" for fault in hits)
        killed = f"{len(hits) - stopped}, {stopped}" if kind != "slurm" else f"{len(hits)} nodes"
        count = len(found)
        weights = [row["same_weights"] for row in found if "same_weights" in row]
        redone = [row["redone_steps"] for row in found if row.get("redone_steps")]
        lost = [row["lost_s"] for row in found if row.get("lost_s")]
        cells = [title, str(count), killed, f"{sum(row['ended'] for row in found)} of {count}"]
        cells += [f"{sum(row['right_steps'] for row in found)} of {count}"]
        cells += [f"{sum(weights)} of {len(weights)}" if weights else "–"]
        cells += [
            f"{median(redone or [0]):.0f} in {len(redone)} jobs, at most {max(redone, default=0):.0f}",
            f"{median(lost or [0]):.0f} s in {len(lost)} jobs, at most {max(lost, default=0):.0f} s",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def keep(path: Path, kind: str, result: dict[str, Any]) -> None:
    """Write one kind of fault to a file and preserve the others."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**whole, kind: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
