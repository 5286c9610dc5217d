"""The run directory: one per run, append-only, safe on a network file system and with many writers.

    job.yaml              the resolved job; a loop of the user's own may have none
    environment.json      versions, processor, devices
    initial.safetensors   if there: weights to start from, in place of those of the seed
    steps.<rank>.jsonl    one line per step; one writer per file; each line with its attempt
    where.<rank>          where a rank is, as long as it runs (chronograd.train.watchdog)
    output.<rank>.txt     what a rank printed
    record.json           what was measured, once it is
    checkpoints/          see chronograd.train.checkpoint

`os.mkdir` is the lock: whoever makes `checkpoints` owns the directory. Whole files are written aside,
synced and renamed. There is no index: `list_runs` reads the directories.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from chronograd import files
from chronograd import job as jobs
from chronograd.errors import ChronogradError, FileFormatError, RunError
from chronograd.record import JobHeader, Record, write_aside, write_json
from chronograd.stepline import Line, parse_line, wall_clock_s

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
        if not os.path.exists(path):  # unlike Path's, False for a name that no file can have
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

    def read_updates(self) -> StepLog:
        """The steps of all ranks as one log, where each step is done by one rank, whichever it is."""
        parsed = [_parse(self.steps_path(rank)) for rank in self.ranks()]
        evened = [_one_after_the_other(own) for own, _ in parsed]
        lines = sorted((line for own, _ in evened for line in own), key=lambda line: line["attempt"])
        return _log(lines, sum(torn for _, torn in parsed), max((back_s for _, back_s in evened), default=0.0))

    def attempts(self) -> dict[int, int]:
        """How many times each rank was started."""
        return {rank: self.read_steps(rank).attempts for rank in self.ranks()}

    def first_error(self, after: Mapping[int, int] | None = None) -> tuple[int, str] | None:
        """The rank that failed first, in its last attempt, and its error; others then fail for want of it.

        A rank that did not come to where another waited is the one that failed.

        Args:
            after: attempts of each rank, of whose errors nothing is asked any more.
        """
        errors = []
        for rank in self.ranks():
            log = self.read_steps(rank)
            if log.attempts <= (after or {}).get(rank, 0):
                continue
            own = [e for e in log.events if e["event"] == "error" and e["attempt"] == log.attempts]
            errors += [(time_of(e), int(e.get("rank", rank)), str(e["text"])) for e in own]
        return min(errors)[1:] if errors else None

    def ranks(self) -> list[int]:
        """Ranks that have a steps file."""
        found = (re.fullmatch(r"steps\.(0|[1-9][0-9]{0,8})\.jsonl", p.name) for p in self.path.iterdir())
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
        discarded: lines of steps that were done again by a later attempt.
        starts: when each attempt wrote its first line, in seconds since 1970; `ended`: when the last line was written.
            NaN where lines do not say.
        torn: lines that were cut off when the rank was killed, and dropped.
        set_back_s: by how much the clock was set back between attempts. Times of later ones are that much later than
            written, as if they had begun when the one before ended.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0
    discarded: list[dict[str, Any]] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)
    ended: float = math.nan
    torn: int = 0
    set_back_s: float = 0.0

    @property
    def redone(self) -> int:
        """Steps that were done again by a later attempt."""
        return len(self.discarded)

    def last_attempt(self) -> list[dict[str, Any]]:
        """The steps that the last attempt did."""
        return [line for line in self.steps if line["attempt"] == self.attempts]


class StepWriter:
    """Appends lines to the steps file of one rank, as one attempt: one more than the last in the file.

    A line is handed to the system as soon as it is written: a killed process loses at most a part of its
    last line. Numbers that are not finite become null. As a context it also writes which error ended it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._stream: IO[bytes] = files.open_to_append(path)
        except OSError as error:
            hint = "move it away; a run writes into files of its own, never through a link"
            raise RunError(f"cannot write {path}: {error.strerror}", hint) from None
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
        """One line. `step` is required; `event` marks a line that is not a step; `time` is now, in seconds since 1970."""
        line = {"attempt": self.attempt, "time": wall_clock_s(), **{k: _finite(v) for k, v in values.items()}}
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
        if error is not None and not self._stream.closed:
            self.write(event="error", step=0, text=f"{type(error).__name__}: {error}")
        self.close()


class StepFollower:
    """Reads the whole new lines of a steps file that is being written, once; what was there before only if asked for."""

    def __init__(self, path: Path, is_from_start: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() and not is_from_start else 0

    def new_lines(self) -> list[dict[str, Any]]:
        try:
            with files.open_plain(self._path) as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in map(_line_or_none, whole.split(b"\n")) if line is not None]


def read_steps(path: Path) -> StepLog:
    """Drops torn lines, keeps the last attempt of steps done twice, counts both.

    Raises FileFormatError for a line that is damaged and not at the end of an attempt.
    """
    lines, torn = _parse(path)
    evened, set_back_s = _one_after_the_other(lines)
    return _log(evened, torn, set_back_s)


def _one_after_the_other(lines: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """The lines of a file with no attempt before the end of the last, and by how much the clock was set back in all."""
    evened: list[dict[str, Any]] = []
    ended, set_back_s = -math.inf, 0.0
    for _, group in itertools.groupby(lines, key=lambda line: line["attempt"]):
        own = list(group)
        times = [time_s for line in own if math.isfinite(time_s := time_of(line))]
        if times:
            set_back_s += max(0.0, ended - min(times) - set_back_s)
            ended = max(times) + set_back_s
        evened += [_later(line, set_back_s) for line in own] if set_back_s else own
    return evened, set_back_s


def _later(line: dict[str, Any], seconds: float) -> dict[str, Any]:
    later = Line(line)
    for name in ("time", "process_time"):
        if name in line:
            later[name] += seconds
    return later


def _log(lines: Sequence[dict[str, Any]], torn: int, set_back_s: float) -> StepLog:
    """From lines, those of a later attempt after those of an earlier one."""
    steps: dict[int, dict[str, Any]] = {}
    events: dict[tuple[str, int], dict[str, Any]] = {}
    discarded: list[dict[str, Any]] = []
    starts: dict[int, float] = {}
    for line in lines:
        starts.setdefault(line["attempt"], time_of(line))
        if "event" in line:
            events[str(line["event"]), line["step"]] = line
            continue
        if line["step"] in steps:
            discarded.append(steps[line["step"]])
        steps[line["step"]] = line
    return StepLog(
        steps=[steps[s] for s in sorted(steps)],
        events=sorted(events.values(), key=lambda line: line["step"]),
        attempts=max(starts, default=0),
        discarded=discarded,
        starts=starts,
        ended=max(map(time_of, lines), default=math.nan),
        torn=torn,
        set_back_s=set_back_s,
    )


@dataclass(frozen=True)
class RunSummary:
    """One row of a listing: a run directory or a record file. `problem` says why it could not be read."""

    path: Path
    record: Record | None = None
    job: JobHeader = field(default_factory=JobHeader)
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
        job = jobs.resolved(run.job()) if (path / "job.yaml").exists() else {}
        return RunSummary(path, None, JobHeader.model_validate(job))
    except ChronogradError as error:
        return None if path.suffix == ".json" else RunSummary(path, problem=error.message)


def time_of(line: dict[str, Any]) -> float:
    """When a line was written, in seconds since 1970; NaN where it does not say."""
    time_s = line.get("time")
    return float(time_s) if isinstance(time_s, int | float) else math.nan


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
        with files.open_plain(path) as stream:
            data = stream.read()
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
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise FileFormatError(f"{path}, line {number}: {error}", "copy the file again, or remove it") from None
        if line is None:
            torn += 1
            torn_at = torn_at or number
            continue
        if torn_at is not None and lines and line["attempt"] <= lines[-1]["attempt"]:
            raise FileFormatError(f"{path} is damaged at line {torn_at}, in the middle of an attempt")
        torn_at = None
        lines.append(line)
    return lines, torn


def _line_or_none(raw: bytes) -> dict[str, Any] | None:
    try:
        return parse_line(raw)
    except ValueError:
        return None


def _are_texts(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(value, str) for value in data.values())


def _is_cut_off(path: Path) -> bool:
    return path.read_bytes()[-1:] not in (b"", b"\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
