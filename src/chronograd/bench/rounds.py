"""Two jobs measured in turn, round by round, for the gate of `compare jobs`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.errors import FileFormatError, JobError, RunError
from chronograd.files import filling, read_json, write_json
from chronograd.job import Job
from chronograd.launch import jobs as launched
from chronograd.launch.jobs import PathLike
from chronograd.measure.result import Timing
from chronograd.record import Record
from chronograd.rundir import RunDir, is_run_dir, new_path

PLAN = "rounds.json"  # both jobs and their timing
SIDES = ("a", "b")


@dataclass(frozen=True)
class Rounds:
    """The records of both jobs, in order of their rounds, and the folder of their runs."""

    folder: Path
    a: list[Record]
    b: list[Record]


def measure_rounds(
    a: Job,
    b: Job,
    rounds: int,
    *,
    out: PathLike | None = None,
    timing: Timing,
    say: Callable[[str], None] = lambda text: None,
) -> Rounds:
    """Measure both jobs once in each round; every second round begins with b.

    Existing runs in `out` stay. A run gets its name when it is finished, so an interrupted one is measured again.

    Args:
        out: the folder of all runs; a new one by default.
        timing: how long to time steps.

    Raises: JobError if `out` has rounds of other jobs or another timing; RunError if it holds something else; else as
    `jobs.measure`.
    """
    both = {"a": jobs.scaled(a), "b": jobs.scaled(b)}
    for one in both.values():
        launched.check(one)
    folder = _folder(out, {**{side: jobs.resolved(job) for side, job in both.items()}, "timing": asdict(timing)})
    records: dict[str, list[Record]] = {side: [] for side in SIDES}
    for number in range(1, rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            path = folder / side / f"round-{number}"
            if not is_run_dir(path):
                say(f"round {number} of {rounds}: job {side.upper()}")
                aside = path.with_name(f".{path.name}-{secrets.token_hex(4)}")  # until the run is finished
                run = launched.measure(both[side], out=aside, timing=timing)
                try:
                    run.path.rename(path)
                except OSError as error:  # another process did so first
                    what = f"cannot rename {run.path} to {path}: {error.strerror}"
                    raise RunError(what, "let only one command measure in this folder") from None
            records[side].append(RunDir.open(path).record())
    return Rounds(folder, records["a"], records["b"])


def _folder(out: PathLike | None, plan: Mapping[str, Any]) -> Path:
    """Return the folder of these rounds: one that already holds some of them, or a new one."""
    folder = Path(out) if out is not None else new_path("rounds")
    try:
        with filling(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not any(folder.iterdir()):
                write_json(folder / PLAN, plan)
    except OSError as error:
        raise RunError(f"cannot measure rounds in {folder}: {error.strerror}", "name another with --out") from None
    try:
        before = read_json(folder / PLAN)
    except FileNotFoundError:
        raise RunError(f"{folder} is not empty and has no rounds", "name another folder with --out") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{folder / PLAN} is damaged: {error}", "name another folder with --out") from None
    different = [name for name in plan if before.get(name) != plan[name]] if isinstance(before, dict) else list(plan)
    if different:
        what = " and ".join("the timing" if name == "timing" else f"job {name.upper()}" for name in different)
        raise JobError(f"{folder} has rounds with another {what}", "name another folder with --out")
    return folder
