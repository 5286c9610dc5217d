"""The run directory: one per run, append-only, safe on a network file system and with many writers.

    job.yaml              the resolved job; a loop of the user's own may have none
    environment.json      versions, processor, devices
    initial.safetensors   if there: weights to start from, in place of those of the seed
    steps.<rank>.jsonl    one line per step; one writer per file; each line with its attempt
    output.<rank>.txt     what a rank printed
    record.json           what was measured, once it is
    checkpoints/          see chronograd.train.checkpoint

`os.mkdir` is the lock: whoever makes `checkpoints` owns the directory. Whole files are written aside,
synced and renamed. There is no index: `list_runs` reads the directories.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from chronograd import job as jobs
from chronograd.errors import ChronogradError, FileFormatError, RunError
from chronograd.record import Record, write_aside, write_json

DEFAULT_PARENT = Path("runs")
MARKS = ("job.yaml", "environment.json", "record.json")
# A rank that was killed with its parent needs a moment to go; longer means that it is alive.
LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class RunDir:
    """A directory that was created or opened as a run. Says nothing about whether the run is finished."""

    path: Path

    # -- making and finding ------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        job: jobs.Job | None = None,
        environment: dict[str, Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        parent: str | os.PathLike[str] = DEFAULT_PARENT,
    ) -> RunDir:
        """A new run directory: `out`, or a new name such as 20261121-083000-digits-resnet20-ab12 in `parent`.

        Raises RunError if `out` is there and not empty, or cannot be written.
        """
        try:
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
        """An existing run. Raises RunError if there is no such directory, FileFormatError if it is no run."""
        path = Path(path)
        if not path.exists():
            raise RunError(f"no run directory at {path}", "`chronograd records` lists what there is")
        if not is_run_dir(path):
            raise FileFormatError(
                f"{path} is not a run directory: it has none of {', '.join(MARKS)}",
                "`chronograd records` lists what there is",
            )
        return cls(path)

    # -- whole files ---------------------------------------------------------------------------------

    def job(self) -> jobs.Job:
        """The job of this run. Raises RunError if it is a loop of the user's own, which has none."""
        if not (self.path / "job.yaml").exists():
            raise RunError(f"{self.path} has no job.yaml: it is a loop of your own and cannot be run again from here")
        return jobs.load(self.path / "job.yaml")

    def environment(self) -> dict[str, Any]:
        path = self.path / "environment.json"
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        return data if isinstance(data, dict) else {}

    @property
    def is_finished(self) -> bool:
        return (self.path / "record.json").exists()

    def record(self) -> Record:
        """The record. Raises FileFormatError if the run has none yet, or it is damaged."""
        return Record.load(self.path)

    def save_record(self, record: Record) -> None:
        record.save(self.path / "record.json")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def initial_weights(self) -> Path:
        return self.path / "initial.safetensors"

    def output_path(self, name: str | int) -> Path:
        """What a rank printed, or a launcher."""
        return self.path / f"output.{name}.txt"

    # -- steps -----------------------------------------------------------------------------------------

    def steps_path(self, rank: int = 0) -> Path:
        return self.path / f"steps.{rank}.jsonl"

    def step_writer(self, rank: int = 0) -> StepWriter:
        """Opens the steps file of a rank for one new attempt. Raises RunError if another process has it."""
        return StepWriter(self.steps_path(rank))

    def read_steps(self, rank: int = 0) -> StepLog:
        """The steps of one rank; an empty log if the rank has written none. Raises FileFormatError."""
        return read_steps(self.steps_path(rank))

    def first_error(self, since: float = 0.0) -> tuple[int, str] | None:
        """The rank that failed first since a time, and its error; others then fail for want of it."""
        errors = []
        for rank in self.ranks():
            events = self.read_steps(rank).events
            errors += [(float(e["time"]), rank, str(e["text"])) for e in events if e["event"] == "error"]
        recent = [error for error in errors if error[0] >= since]
        return min(recent)[1:] if recent else None

    def ranks(self) -> list[int]:
        """Ranks that have a steps file."""
        found = (re.fullmatch(r"steps\.(\d+)\.jsonl", p.name) for p in self.path.iterdir())
        return sorted(int(m[1]) for m in found if m)


def is_run_dir(path: Path) -> bool:
    return path.is_dir() and any((path / mark).exists() for mark in MARKS)


@dataclass(frozen=True)
class StepLog:
    """What one rank wrote.

    Attributes:
        steps: one line per step, in order, each from the last attempt that did it.
        events: the other lines (they have `event`), such as the end of an epoch, one per kind and step.
        attempts: how many times the rank was started.
        redone: steps that were done again by a later attempt.
        torn: lines that were cut off when the rank was killed, and dropped.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0
    redone: int = 0
    torn: int = 0

    def last_attempt(self) -> list[dict[str, Any]]:
        """The steps that the last attempt did."""
        return [line for line in self.steps if line["attempt"] == self.attempts]


class StepWriter:
    """Appends lines to the steps file of one rank, as one attempt: one more than the last in the file.

    A line is handed to the system as soon as it is written: a killed process loses at most a part of its
    last line. Numbers that are not finite become null. As a context it also writes which error ended it.
    """

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = path.open("ab")
        try:
            _lock(self._stream, path)
            lines, _ = _parse(path)
            self.attempt = 1 + max((line["attempt"] for line in lines), default=0)
            if _is_cut_off(path):
                self._stream.write(b"\n")
        except BaseException:
            self._stream.close()
            raise

    def write(self, **values: Any) -> None:
        """One line. `step` is required; `event` marks a line that is not a step."""
        line = {"attempt": self.attempt, **{k: _finite(v) for k, v in values.items()}}
        self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._stream.flush()

    def sync(self) -> None:
        """What was written survives a loss of power, and is seen by processes of other nodes."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Syncs and closes, so that a process on another node that opens the file afterwards sees all of it."""
        if not self._stream.closed:
            self.sync()
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.write(event="error", step=0, time=time.time(), text=f"{type(error).__name__}: {error}")
        self.close()


class StepFollower:
    """Reads the whole new lines of a steps file that is being written; what was there before is skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in map(_parse_line, whole.splitlines()) if line is not None]


def read_steps(path: Path) -> StepLog:
    """Drops torn lines, keeps the last attempt of steps done twice, counts both.

    Raises FileFormatError for a line that is damaged and not at the end of an attempt.
    """
    lines, torn = _parse(path)
    steps: dict[int, dict[str, Any]] = {}
    events: dict[tuple[str, int], dict[str, Any]] = {}
    redone = 0
    for line in lines:
        if "event" in line:
            events[str(line["event"]), line["step"]] = line
        else:
            redone += line["step"] in steps
            steps[line["step"]] = line
    return StepLog(
        steps=[steps[s] for s in sorted(steps)],
        events=sorted(events.values(), key=lambda line: line["step"]),
        attempts=max((line["attempt"] for line in lines), default=0),
        redone=redone,
        torn=torn,
    )


@dataclass(frozen=True)
class RunSummary:
    """One row of a listing: a run directory or a record file. `problem` says why it could not be read."""

    path: Path
    record: Record | None = None
    job: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def state(self) -> str:
        return "damaged" if self.problem else "unfinished" if self.record is None else self.record.kind


def list_runs(parent: str | os.PathLike[str] = DEFAULT_PARENT) -> list[RunSummary]:
    """Run directories and record files directly in a folder, by name. One that is damaged does not hide the others."""
    parent = Path(parent)
    if not parent.is_dir():
        return []
    candidates = sorted(p for p in parent.iterdir() if not p.name.startswith("."))
    return [s for s in map(_summary, candidates) if s is not None]


def _summary(path: Path) -> RunSummary | None:
    try:
        if path.suffix == ".json" and path.is_file():
            record = Record.load(path)
            return RunSummary(path, record, record.job)
        if not is_run_dir(path):
            return None
        run = RunDir(path)
        if run.is_finished:
            record = run.record()
            return RunSummary(path, record, record.job)
        has_job = (path / "job.yaml").exists()
        return RunSummary(path, None, jobs.resolved(run.job()) if has_job else {})
    except ChronogradError as error:
        return None if path.suffix == ".json" else RunSummary(path, problem=error.message)


def _label(job: jobs.Job | None) -> str:
    text = f"{job.data.name}-{Path(job.network.name).name}" if job is not None else "loop"
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60]


def _claim_new_name(parent: Path, label: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = parent / f"{moment}-{label}-{secrets.token_hex(2)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return _claim(path)


def _claim(path: Path) -> Path:
    """Own an absent or empty directory. Of several processes that try, one succeeds."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        if any(path.iterdir()):
            raise FileExistsError
        (path / "checkpoints").mkdir()
    except FileExistsError:
        what = "holds a run already" if is_run_dir(path) else "is not empty"
        raise RunError(f"{path} {what}", "name a directory that is not there, or resume the run") from None
    return path


def _lock(stream: IO[bytes], path: Path) -> None:
    """One writer per file. File systems without locks, and Windows, rely on one process per rank."""
    try:
        import fcntl
    except ImportError:
        return
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{path} is being written by another process", "wait for that run to end, or end it, then resume"
                ) from None
            time.sleep(0.1)
        except OSError:
            return


def _parse(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a steps file, and how many were torn."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
    lines: list[dict[str, Any]] = []
    torn = 0
    torn_at: int | None = None
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw:
            continue
        line = _parse_line(raw)
        if line is None:
            torn += 1
            torn_at = torn_at or number
            continue
        if torn_at is not None and lines and line["attempt"] <= lines[-1]["attempt"]:
            raise FileFormatError(f"{path} is damaged at line {torn_at}, in the middle of an attempt")
        torn_at = None
        lines.append(line)
    return lines, torn


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(line, dict) or not all(isinstance(line.get(k), int) for k in ("attempt", "step")):
        return None
    return line


def _is_cut_off(path: Path) -> bool:
    return path.read_bytes()[-1:] not in (b"", b"\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
