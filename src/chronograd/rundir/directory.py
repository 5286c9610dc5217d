"""The run directory: one per run, append-only, safe on a network file system and with many writers.

    job.yaml              the resolved job; a custom training loop may have none
    environment.json      versions, processor, devices
    initial.safetensors   optional: weights to start from, instead of random ones from the seed
    steps.<rank>.jsonl    one line per step; one writer per file; each line with its attempt (chronograd.rundir.steps)
    where.<rank>          where a rank is, as long as it runs (chronograd.train.watchdog)
    output.<rank>.txt     the output that a rank printed
    record.json           the measurements, once the run has finished
    episode.gif           of an agent: one episode that it played after training
    checkpoints/          see chronograd.train.checkpoint

`os.mkdir` is the lock: the process that creates `checkpoints` owns the directory. Whole files are written to a temporary name,
synced and renamed. There is no index: chronograd.rundir.listing reads the directories.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chronograd import door, files
from chronograd import job as jobs
from chronograd.errors import FileFormatError, RunError
from chronograd.files import write_aside, write_json
from chronograd.record import Record
from chronograd.rundir.steps import Error, StepLog, StepWriter, read_steps

DEFAULT_PARENT = Path("runs")
EPISODE = "episode.gif"
MARKS = ("job.yaml", "environment.json", "record.json")


@dataclass(frozen=True)
class RunDir:
    """A directory that was created or opened as a run. The run may be unfinished."""

    path: Path

    # -- creating and opening ----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        job: jobs.Job | None = None,
        environment: dict[str, Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        parent: str | os.PathLike[str] = DEFAULT_PARENT,
    ) -> RunDir:
        """Create a run directory: `out`, or a new name such as 20261121-083000-digits-resnet20-ab12 in `parent`.

        Raises RunError if `out` exists and is not empty, or cannot be written.
        """
        try:
            with files.filling(Path(out or parent)):
                path = _claim(Path(out)) if out is not None else _claim_new_name(Path(parent), _label(job))
        except OSError as error:
            where = out if out is not None else parent
            raise RunError(f"cannot make a run directory at {where}: {error.strerror}", "choose another") from None
        run = cls(path)
        if job is not None:
            write_aside(path / "job.yaml", jobs.to_yaml(job))
        write_json(path / "environment.json", environment or {})
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDir:
        """Open an existing run. Raises RunError if the directory does not exist, FileFormatError if it is not a run."""
        path = Path(path)
        if not os.path.exists(path):  # unlike Path's, returns False for a name that is not valid
            if os.path.islink(path):
                door.check(path, "a run directory")  # raises, and names the target of a link
            raise RunError(f"no run directory at {path}", "`chronograd records` lists what there is")
        if not is_run_dir(path):
            raise FileFormatError(
                f"{path} is not a run directory: it has none of {', '.join(MARKS)}",
                "`chronograd records` lists what there is",
            )
        return cls(path)

    # -- whole files ---------------------------------------------------------------------------------

    def job(self) -> jobs.Job:
        """Return the job of this run. Raises RunError for a custom training loop, which has no job."""
        if not (self.path / "job.yaml").exists():
            raise RunError(
                f"{self.path} has no job.yaml: it is a custom training loop and cannot be run again from here"
            )
        return jobs.read(self.path / "job.yaml")

    def environment(self) -> dict[str, Any]:
        path = self.path / "environment.json"
        try:
            data = files.read_json(path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        if not isinstance(data, dict) or not _are_texts(data.get("versions", {})):
            raise FileFormatError(f"{path} is damaged: it is no mapping, or its versions are none", "remove it")
        return data

    @property
    def is_finished(self) -> bool:
        return (self.path / "record.json").exists()

    def record(self) -> Record:
        """Return the record. Raises FileFormatError if the run has no record yet, or the record is damaged."""
        return Record.load(self.path)

    def save_record(self, record: Record) -> None:
        record.save(self.path / "record.json")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def initial_weights(self) -> Path:
        return self.path / "initial.safetensors"

    @property
    def given_weights(self) -> Path | None:
        """Return the weights to start from if the run has them."""
        return self.initial_weights if self.initial_weights.exists() else None

    def output_path(self, name: str | int) -> Path:
        """Return the file with the printed output of a rank or a launcher."""
        return self.path / f"output.{name}.txt"

    def replace_job(self, job: jobs.Job) -> None:
        """Give a finished run another job, so that it can train further.

        The record is removed first: if this is interrupted in between, resuming writes the record of the old job again.
        """
        with files.filling(self.path):
            (self.path / "record.json").unlink(missing_ok=True)
            write_aside(self.path / "job.yaml", jobs.to_yaml(job))

    # -- steps -----------------------------------------------------------------------------------------

    def steps_path(self, rank: int = 0) -> Path:
        return self.path / f"steps.{rank}.jsonl"

    def step_writer(self, rank: int = 0) -> StepWriter:
        """Open the steps file of a rank for one new attempt. Raises RunError if another process has it open."""
        return StepWriter(self.steps_path(rank))

    def read_steps(self, rank: int = 0) -> StepLog:
        """Return the steps of one rank, or an empty log if the rank has written none. Raises FileFormatError."""
        return read_steps(self.steps_path(rank))

    def logs(self) -> dict[int, StepLog]:
        """Return the steps of every rank that has written a line."""
        return {rank: self.read_steps(rank) for rank in self.ranks()}

    def attempts(self) -> dict[int, int]:
        """Return the number of times each rank was started."""
        return {rank: log.attempts for rank, log in self.logs().items()}

    def first_error(self, after: Mapping[int, int] | None = None) -> tuple[int, str] | None:
        """Return the rank that failed first in its last attempt, and its error. The other ranks fail because it is missing.

        If a rank did not arrive where another waited, it is the one that failed.

        Args:
            after: attempts of each rank whose errors are ignored.
        """
        errors = [
            (error.time, rank if error.rank is None else error.rank, error.text)
            for rank, log in self.logs().items()
            if log.attempts > (after or {}).get(rank, 0)
            for error in log.of(Error)
            if error.attempt == log.attempts
        ]
        return min(errors)[1:] if errors else None

    def ranks(self) -> list[int]:
        """Return the ranks that have a steps file."""
        found = (re.fullmatch(r"steps\.(0|[1-9][0-9]{0,8})\.jsonl", p.name) for p in self.path.iterdir())
        return sorted(int(m[1]) for m in found if m)


def is_run_dir(path: Path) -> bool:
    return path.is_dir() and any((path / mark).exists() for mark in MARKS)


def run_named(what: str) -> RunDir | None:
    """Return the run at a path, or with a name in the folder `runs`; None if it is not a run."""
    for path in (Path(what), DEFAULT_PARENT / what):
        if is_run_dir(path):
            return RunDir.open(path)
    return None


def _label(job: jobs.Job | None) -> str:
    text = f"{job.data.name}-{Path(job.network.name).name}" if job is not None else "loop"
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60]


def new_path(label: str, parent: Path = DEFAULT_PARENT) -> Path:
    """Return a path with a new name: the time in UTC, the label and four random digits. Nothing is created."""
    return parent / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{label}-{secrets.token_hex(2)}"


def _claim_new_name(parent: Path, label: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = new_path(label, parent)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return _claim(path)


def _claim(path: Path) -> Path:
    """Claim an absent or empty directory. If several processes try, one succeeds."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        if any(path.iterdir()):
            raise FileExistsError
        (path / "checkpoints").mkdir()
    except FileExistsError:
        what = "holds a run already" if is_run_dir(path) else "is not empty"
        raise RunError(f"{path} {what}", "name a directory that is not there, or resume the run") from None
    return path


def _are_texts(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(value, str) for value in data.values())
