"""Ranks stopped for a few seconds and resumed: is each reported, and does the step time stay the same?

    python -m benchmarks.stopped --json benchmarks/results/stopped.json
    python -m benchmarks.stopped --table --json benchmarks/results/stopped.json

Ten moments: before the first step, within steps, in evaluation, at a checkpoint, with one, two or three ranks. Each row shows
the launcher's output while the rank was stopped, and the later reports of `explain` and the record. It compares the mean step
time with its interval and with an undisturbed run. The rank's own note states where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.faults_common import make_job
from chronograd.explain import explanation
from chronograd.launch import jobs
from chronograd.rundir import RunDir
from chronograd.rundir.steps import StepLine
from chronograd.train.watchdog import note_path, read_note

PAUSE_S = 3.5
# Undisturbed steps differ between runs on a busy machine; a counted stall would be many times this factor.
NEAR = 1.5


@dataclass(frozen=True)
class Moment:
    """The rank to stop, of `world` ranks, at a place and at or after a step."""

    name: str
    world: int
    rank: int
    place: str
    step: int


MOMENTS = (
    Moment("before the first step", 2, 1, "start-up|rendezvous|broadcast", 0),
    Moment("in input or forward", 2, 1, "input|forward", 8),
    Moment("in backward, rank 1 of 2", 2, 1, "backward|all-reduce", 15),
    Moment("in backward, rank 0 of 2", 2, 0, "backward|all-reduce", 20),
    Moment("in the update", 2, 0, "update", 30),
    Moment("in evaluation", 2, 1, "evaluation", 12),
    Moment("at a checkpoint", 2, 0, "checkpoint", 24),
    Moment("rank 2 of 3, any place", 3, 2, "", 16),
    Moment("rank 1 of 3, in evaluation", 3, 1, "evaluation", 24),
    Moment("the only rank", 1, 0, "", 22),
)


def strike(run: RunDir, moment: Moment, is_over: threading.Event, told: dict[str, str]) -> None:
    """Wait for the moment, stop the rank, and resume it."""
    while not is_over.is_set():
        note = read_note(note_path(run, moment.rank))
        if note is None or note.step < moment.step or not re.match(moment.place, note.what.removeprefix("sum (")):
            time.sleep(0.0002)
            continue
        os.kill(note.process, signal.SIGSTOP)
        now = read_note(note_path(run, moment.rank))
        told["hit"] = now.place if now is not None else note.place
        time.sleep(PAUSE_S)
        os.kill(note.process, signal.SIGCONT)
        return


def train(world: int, path: Path, moment: Moment | None) -> tuple[RunDir, str, str]:
    """Train; return the run, the launcher's output, and the place where the rank was stopped."""
    changes = [f"cluster.count={world}", f"backend={'ddp' if world > 1 else 'single'}", "cluster.timeout_s=600"]
    run = jobs.create(make_job(*changes, "training.batch=18", "cluster.max_restarts=0"), path)
    is_over, told, said = threading.Event(), dict[str, str](), io.StringIO()
    thread = threading.Thread(target=strike, args=(run, moment, is_over, told)) if moment is not None else None
    if thread is not None:
        thread.start()
    try:
        with contextlib.redirect_stderr(said):
            jobs.resume(run, launcher="local")
    finally:
        is_over.set()
        if thread is not None:
            thread.join()
    return run, said.getvalue(), told.get("hit", "")


def row_of(moment: Moment, run: RunDir, said: str, hit: str, usual_s: float) -> dict[str, Any]:
    """Return the reports about the stop, and the step time."""
    name = f"rank {moment.rank}"
    (one,) = explanation.explain([run.path]).runs
    finding = next(f for f in one.findings if f.cause == "stall")
    record = run.record()
    step = record["step_time_s"]
    assert step.value is not None
    assert step.low is not None
    assert step.high is not None
    plain = [line.needed("step_time_s") for line in run.read_steps(0).steps if isinstance(line, StepLine)]
    return {
        "moment": moment.name,
        "ranks": moment.world,
        "hit": hit,
        "launcher": name in said and "stopped" in said,
        "said": said.strip().splitlines()[:3],
        "explain": finding.is_found and name in " ".join((finding.title, *finding.evidence)),
        "evidence": list(finding.evidence),
        "stall_s": record["stall_s"].value,
        "step_time_s": step.value,
        "in_interval": step.low <= step.value <= step.high,
        "with_stall_s": sum(plain) / len(plain),
        "median_s": median(plain),
        "undisturbed_s": usual_s,
        "near": step.value < NEAR * median(plain),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with one row for each moment."""
    head = "| stopped | where it was | launcher named it | `explain` named it | stall | step time, undisturbed | step time | in its interval |"
    lines = [head, "| --- | --- | --- | --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        stall = "–" if row["stall_s"] is None else f"{row['stall_s']:.1f} s"
        words = ["yes" if row[key] else "no" for key in ("launcher", "explain", "in_interval")]
        times = [f"{1000 * row[key]:.0f} ms" for key in ("undisturbed_s", "step_time_s")]
        lines.append(
            f"| {row['moment']} | {row['hit']} | {words[0]} | {words[1]} | {stall} | {times[0]} | {times[1]} | {words[2]} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="the results")
    parser.add_argument("--table", action="store_true", help="print the table from --json, run nothing")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of moments, from 0")
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())["rows"]))
        return
    rows: list[dict[str, Any]] = []
    chosen = [MOMENTS[i] for i in arguments.only] if arguments.only else list(MOMENTS)
    with tempfile.TemporaryDirectory() as name:
        usual = {
            world: train(world, Path(name) / f"undisturbed-{world}", None)[0].record().value("step_time_s")
            for world in sorted({moment.world for moment in chosen})
        }
        for number, moment in enumerate(chosen):
            run, said, hit = train(moment.world, Path(name) / str(number), moment)
            rows.append(row_of(moment, run, said, hit, usual[moment.world]))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(
                    json.dumps({"pause_s": PAUSE_S, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
                )
    print(table(rows))


if __name__ == "__main__":
    main()
