"""The steps file of a rank: how its lines are written, read and followed. Each line is a step or an event.

A line is one JSON object: `attempt`, `time`, `event` (absent for a step), `step`, and the fields of its class below. The types
of the fields define the valid values: a number at or above zero, a text, or a loss. A field with a default may be absent. A
field that may be None and has no default is then written as null. Fields of other versions are stored in `extra`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_type_hints

from chronograd import files
from chronograd.errors import FileFormatError, RunError

# A rank that was killed with its parent needs a moment to end; after this time we assume that it is alive.
LOCK_WAIT_S = 10.0
# Counts up to here are exact as float64; sums of losses up to here stay finite.
_MAX_INT = 2**53
_MAX_LOSS = 1e100

# Losses, accuracies and squared norms may have any sign. A value that is not finite is null in the file and NaN once read.
Loss = Annotated[float, "signed"]


def _since_boot_s() -> float:
    """Return the seconds since boot, a clock that cannot be set. On Linux it includes the time that a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_BOOTED = time.time() - _since_boot_s()


def wall_clock_s() -> float:
    """Return seconds since 1970 by the clock as it was when this process began. Setting the clock later has no effect."""
    return _BOOTED + _since_boot_s()


# -- lines -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Line:
    """The fields of every line. `time`: when it was written, in seconds since 1970; NaN if the line does not state it.

    A writer sets the attempt, and the time if it is missing. `extra`: fields that its class does not have.
    """

    event: ClassVar[str] = ""
    attempt: int = 0
    time: float = math.nan
    step: int = 0
    extra: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(slots=True, kw_only=True)
class StepLine(Line):
    """One step of a rank; with parameter servers, one update of a learner.

    Attributes:
        mode: the timed mode of a measured step (chronograd.measure.steps), or `warmup`.
        seconds: the training clock at its end. `epoch` is counted from 1.
        loss: of this rank, over its `samples`, before the update.
        exchange_wait_s: within backward, after this rank's own last gradient.
        page_faults: pages that the system gave the process in this step.
        grad_sq_small, …: see chronograd.train.noise_scale.
        learner, …: see chronograd.backends.parameter_server; `time_s` is the clock of server 0.
        num_steps: number of an agent's steps in this line, if more than one; `step` is the last of them. `step_time_s`, the
            parts and the loss are means over them; `updates` is how often the agent learned in them.
        environment_s, …: seconds of acting, of the environment, of replay, and of learning, per step.
    """

    mode: str | None = None
    epoch: int | None = None
    seconds: float | None = None
    step_time_s: float | None = None
    loss: Loss | None = None
    samples: int | None = None
    input_s: float | None = None
    transfer_s: float | None = None
    noise_scale_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    communication_exposed_s: float | None = None
    update_s: float | None = None
    grad_sq_small: Loss | None = None
    grad_sq_big: Loss | None = None
    batch_small: float | None = None
    batch_big: float | None = None
    exchange_wait_s: float | None = None
    page_faults: int | None = None
    learner: int | None = None
    staleness: int | None = None
    pull_s: float | None = None
    compute_s: float | None = None
    push_s: float | None = None
    time_s: float | None = None
    num_steps: int | None = None
    updates: int | None = None
    act_s: float | None = None
    environment_s: float | None = None
    replay_s: float | None = None
    learn_s: float | None = None

    def needed(self, name: str) -> float:
        """Return a figure that this step must have. Raises FileFormatError if it is missing."""
        value: float | None = getattr(self, name)
        if value is None:
            raise FileFormatError(f"the run is damaged: a line of step {self.step} has no {name}")
        return value


@dataclass(slots=True, kw_only=True)
class Attempt(Line):
    """The start of a rank."""

    event: ClassVar[str] = "attempt"


@dataclass(slots=True, kw_only=True)
class Start(Line):
    """The place where a rank runs; chronograd.measure.process reads the other fields."""

    event: ClassVar[str] = "start"
    device: str | None = None
    device_name: str | None = None
    threads: int | None
    process_time: float | None = None
    busy_s: float | None = None
    cores: int | None = None
    host: str | None = None
    gpus_given: str | None = None
    pid: int | None = None


@dataclass(slots=True, kw_only=True)
class WorkLine(Line):
    """The work of a rank in each step and epoch, as far as it is known."""

    event: ClassVar[str] = "work"
    dataset_samples: int | None = None
    rank_batch: float | None = None
    steps_per_epoch: int | None = None
    sampler: str | None = None
    workers: int | None = None
    params: int | None = None
    gradient_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class Weights(Line):
    """A description of the weights that were loaded."""

    event: ClassVar[str] = "weights"
    text: str


@dataclass(slots=True, kw_only=True)
class Features(Line):
    """A frozen trunk ran over all images, once."""

    event: ClassVar[str] = "features"
    seconds: float


@dataclass(slots=True, kw_only=True)
class NoteLine(Line):
    """A note on this start for the record."""

    event: ClassVar[str] = "note"
    text: str


@dataclass(slots=True, kw_only=True)
class Ready(Line):
    """The start of the first step. `queued_s`: how long this thread was ready so far while another had the processor."""

    event: ClassVar[str] = "ready"
    queued_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Epoch(Line):
    """The end of an epoch. `seconds`: the training clock. Test figures are None if the test data were not evaluated. Real text
    has `bits_per_byte` of the test split instead of an accuracy.

    `epoch_time_s`: since the last start, if a run of several processes was restarted within the epoch.

    The figures of an agent are the returns of its `episodes`: their mean, the 80 % interval and the standard deviation.
    `largest_value`: the largest |Q| of an action in these episodes.
    `updates`: 0 if it did not learn, and has no loss.
    """

    event: ClassVar[str] = "epoch"
    epoch: int
    seconds: float
    epoch_time_s: float
    train_loss: Loss | None
    test_loss: Loss | None
    test_accuracy: Loss | None
    bits_per_byte: Loss | None = None
    mean_return: Loss | None = None
    return_low: Loss | None = None
    return_high: Loss | None = None
    return_std: float | None = None
    largest_value: Loss | None = None
    episodes: int | None = None
    updates: int | None = None


@dataclass(slots=True, kw_only=True)
class EpisodeLine(Line):
    """The end of an agent's training episode. `total`: its return; `epsilon`: the share of random actions at its end."""

    event: ClassVar[str] = "episode"
    total: Loss | None
    length: int
    epsilon: float


@dataclass(slots=True, kw_only=True)
class EpochTiming(Line):
    """The times of an epoch of `num_steps`, with and without loading data."""

    event: ClassVar[str] = "epoch_timing"
    num_steps: int
    epoch_time_s: float
    epoch_compute_time_s: float


@dataclass(slots=True, kw_only=True)
class MemoryLine(Line):
    """The peak memory of this rank. `source`: how it was read, as text."""

    event: ClassVar[str] = "memory"
    memory_peak_bytes: int
    source: str


@dataclass(slots=True, kw_only=True)
class TrafficLine(Line):
    """The bytes that this rank sends in one step. `source`: how they were counted, as text."""

    event: ClassVar[str] = "traffic"
    sent_bytes: int
    source: str


@dataclass(slots=True, kw_only=True)
class End(Line):
    """The end of all steps. `queued_s` as in Ready; processor seconds of this process."""

    event: ClassVar[str] = "end"
    queued_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None


@dataclass(slots=True, kw_only=True)
class WhatIfThreads(Line):
    """Forward and backward times of a batch with the threads of the run, and with its fair share of the cores."""

    event: ClassVar[str] = "what_if_threads"
    threads: int
    seconds: float
    fair_threads: int
    fair_seconds: float


@dataclass(slots=True, kw_only=True)
class WhatIfBatch(Line):
    """Forward and backward times of a batch, and of one that is `times` as large."""

    event: ClassVar[str] = "what_if_batch"
    times: int
    seconds: float
    larger_seconds: float


@dataclass(slots=True, kw_only=True)
class PageFault(Line):
    """The extra time per page fault of writing new memory instead of used memory, with the threads of the run."""

    event: ClassVar[str] = "page_fault"
    seconds: float


# Shorter pauses are not stalls: the ranks do not log them, and they do not make a step a stall.
MIN_STALL_S = 1.0


@dataclass(slots=True, kw_only=True)
class Stall(Line):
    """A pause of a rank at one place, far longer than usual, until `time`.

    Attributes:
        place: a part of the work, or the collective in which the rank waited; then `is_waiting` is 1.
        seconds: the length of the pause. For `stopped_s` of it the process did not run; it used the processor for `busy_s`.
        links: connections whose other end did not acknowledge the data sent, such as `10.0.0.1 → 10.0.0.2`.
    """

    event: ClassVar[str] = "stall"
    place: str
    seconds: float
    stopped_s: float = 0.0
    busy_s: float = 0.0
    is_waiting: int = 0
    links: str = ""


@dataclass(slots=True, kw_only=True)
class Error(Line):
    """The error that ended this attempt. `rank`: the rank that failed, if it is another one."""

    event: ClassVar[str] = "error"
    rank: int | None = None
    text: str


@dataclass(slots=True, kw_only=True)
class Other(Line):
    """An event of another version; `extra` has its name and all its fields."""


E = TypeVar("E", bound=Line)
_EVENTS: tuple[type[Line], ...] = (
    *(Attempt, Start, WorkLine, Weights, Features, NoteLine, Ready, Epoch, EpisodeLine, EpochTiming, MemoryLine, End),
    *(TrafficLine, WhatIfThreads, WhatIfBatch, PageFault, Stall, Error),
)


class _Field(NamedTuple):
    """The valid values of a field: types, and numbers from `least` to below `most`. Null is read as `null`."""

    types: tuple[type, ...]
    least: float
    most: float
    takes_null: bool
    null: float | None


class _Kind:
    """A reader and writer for the lines of one class, driven by the types of its fields."""

    def __init__(self, line: type[Line]) -> None:
        self.make = line
        hints = get_type_hints(line, include_extras=True)
        own = [f for f in dataclasses.fields(line) if f.name != "extra"]
        self.fields = {f.name: _field_of(hints[f.name], has_default=f.default is not dataclasses.MISSING) for f in own}
        # Names in the order of a written line, and whether None is written as null.
        self.written = [(f.name, self.fields[f.name].takes_null and f.default is not None) for f in own[2:]]
        self.needed = {f.name for f in own if f.default is dataclasses.MISSING and not self.fields[f.name].takes_null}
        self.or_null = {
            f.name: None for f in own if f.default is dataclasses.MISSING and self.fields[f.name].takes_null
        }

    def read(self, data: dict[str, Any]) -> Line:
        """Return a line made from its fields. Raises ValueError for an invalid figure."""
        unknown: list[str] | None = None
        for name, value in data.items():
            known = self.fields.get(name)
            if known is None:
                unknown = [*(unknown or ()), name]
                is_right = not isinstance(value, float) or math.isfinite(value)
            elif type(value) not in known.types:
                is_right = value is None and known.takes_null
                data[name] = known.null
            elif known.types is _TEXT:
                is_right = value.isascii() or _can_be_written(value)
            else:
                is_right = known.least <= value < known.most
            if not is_right:
                raise ValueError(f"{name!r:.80} is {value!r:.80}")
        if not self.needed <= data.keys():
            raise ValueError(f"its {self.make.event} event has no {min(self.needed - data.keys())}")
        if unknown is None:
            return self.make(**self.or_null | data) if self.or_null else self.make(**data)
        return self.make(extra={name: data.pop(name) for name in unknown}, **self.or_null | data)

    def data(self, line: Line) -> dict[str, Any]:
        """Return the fields of a line, in order."""
        data: dict[str, Any] = {"event": line.event} if line.event else {}
        for name, is_null in self.written:
            value = getattr(line, name)
            if value is not None or is_null:
                data[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        return data | line.extra


_TEXT = (str,)


def _field_of(hint: Any, has_default: bool) -> _Field:
    parts = get_args(hint)
    is_optional = type(None) in parts
    plain = next(part for part in parts if part is not type(None)) if is_optional else hint
    if plain is str:
        return _Field(_TEXT, 0, 0, False, None)
    if plain == Loss:
        return _Field((int, float), -_MAX_LOSS, _MAX_LOSS, True, math.nan if has_default else None)
    types = (int,) if plain is int else (int, float)
    return _Field(types, 0, _MAX_INT, is_optional and not has_default, None)


_STEP, _OTHER = _Kind(StepLine), _Kind(Other)
_BY_EVENT = {line.event: _Kind(line) for line in _EVENTS}
_BY_CLASS = {kind.make: kind for kind in (_STEP, _OTHER, *_BY_EVENT.values())}


def parse_line(raw: bytes) -> Line | None:
    """Return a line, or None if it is torn (cut off while it was written).

    Raises ValueError for a whole line that lacks a required field of its event, or has an invalid figure.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not all(_is_count(data.get(k)) for k in ("attempt", "step")):
        return None
    if "event" not in data:
        return _STEP.read(data)
    event = data["event"]
    if not isinstance(event, str) or not _can_be_written(event):
        raise ValueError(f"'event' is {event!r:.80}")
    if event not in _BY_EVENT:
        return _OTHER.read(data)
    del data["event"]
    return _BY_EVENT[event].read(data)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_INT


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- writing -----------------------------------------------------------------------------------------------


class StepWriter:
    """A writer that appends lines to the steps file of one rank, as one new attempt.

    Each line is flushed to the system as soon as it is written: a killed process loses at most a part of its last line. Numbers
    that are not finite become null. As a context manager it also logs the error that ended the attempt.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with files.filling(path):
                self._stream: IO[bytes] = files.open_to_append(path)
        except OSError as error:
            hint = "move it away; a run writes only its own files, never through a link"
            raise RunError(f"cannot write {path}: {error.strerror}", hint) from None
        try:
            _lock(self._stream, path)
            lines, _ = _parse(path)
            self.attempt = 1 + max((line.attempt for line in lines), default=0)
            if _is_cut_off(path):
                self._stream.write(b"\n")
        except BaseException:
            self._stream.close()
            raise

    def write(self, line: Line) -> None:
        """Write one line of this attempt; its time is now unless the line has one."""
        time_s = line.time if math.isfinite(line.time) else wall_clock_s()
        data = {"attempt": self.attempt, "time": time_s, **_BY_CLASS[type(line)].data(line)}
        with files.filling(self._path):
            self._stream.write(json.dumps(data, allow_nan=False).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> None:
        """Sync the file, so that its lines survive a power loss and processes on other nodes see them."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Sync and close, so that a process on another node that opens the file afterwards sees all of it."""
        if not self._stream.closed:
            self.sync()
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(OSError, RunError):  # the disk may be full, and that may be the error to log
            if not self._stream.closed:
                self.write(Error(text=f"{type(error).__name__}: {error}"))
                self.sync()
        with contextlib.suppress(OSError):
            self._stream.close()


def _is_cut_off(path: Path) -> bool:
    """Return whether the last line has no end. Reads one byte, because files of long runs are large."""
    with files.open_plain(path) as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"


def _lock(stream: IO[bytes], path: Path) -> None:
    """Lock the file for one writer. File systems without locks, and Windows, rely on one process per rank."""
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


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepLog:
    """The log of one rank.

    Attributes:
        steps: one line per step, in order, each from the last attempt that did it.
        events: the other lines, such as the end of an epoch: one per kind and step. Of episodes and stalls all, of notes all
            that differ.
        attempts: how many times the rank was started.
        discarded: lines of steps that a later attempt did again. An agent's lines may end at other steps the second time,
            so there it is all lines beyond the step from which a later attempt continued.
        starts: when each attempt wrote its first line, in seconds since 1970; `ended`: when the last line was written.
            NaN if lines have no time.
        torn: lines that were cut off when the rank was killed, and dropped.
        set_back_s: how far the clock was set back between attempts. The times of later attempts are shifted by this
            amount, as if each had begun when the one before ended.
    """

    steps: list[StepLine] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    attempts: int = 0
    discarded: list[StepLine] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)
    ended: float = math.nan
    torn: int = 0
    set_back_s: float = 0.0

    @property
    def redone(self) -> int:
        """Return the number of steps that a later attempt did again."""
        return sum(line.num_steps or 1 for line in self.discarded)

    def last_attempt(self) -> list[StepLine]:
        """Return the steps of the last attempt."""
        return [line for line in self.steps if line.attempt == self.attempts]

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in order of steps."""
        return [line for line in self.events if isinstance(line, kind)]

    def last(self, kind: type[E]) -> E | None:
        """Return the last event of a kind; None if there is none."""
        return next(iter(self.of(kind)[-1:]), None)


def read_steps(path: Path) -> StepLog:
    """Read a steps file. Drops torn lines, uses the last attempt of repeated steps, and counts both.

    Raises FileFormatError for a damaged line that is not at the end of an attempt.
    """
    lines, torn = _parse(path)
    evened, set_back_s = _one_after_the_other(lines)
    starts: dict[int, float] = {}
    for line in evened:
        starts.setdefault(line.attempt, line.time)
    return _log(evened, starts, max((line.time for line in evened), default=math.nan), torn, set_back_s)


def merged(logs: Iterable[StepLog]) -> StepLog:
    """Merge the logs of several ranks into one, for runs in which any one of the ranks does each step."""
    logs = list(logs)
    lines = sorted((x for log in logs for x in (*log.discarded, *log.steps, *log.events)), key=attrgetter("attempt"))
    starts: dict[int, float] = {}
    for log in logs:
        starts = {**log.starts, **starts}
    ended = max((line.time for line in lines), default=math.nan)
    set_back_s = max((log.set_back_s for log in logs), default=0.0)
    return _log(lines, starts, ended, sum(log.torn for log in logs), set_back_s)


def _log(lines: Sequence[Line], starts: dict[int, float], ended: float, torn: int, set_back_s: float) -> StepLog:
    """Return the log of lines that are sorted by attempt."""
    steps: dict[int, StepLine] = {}
    events: dict[tuple[Any, ...], Line] = {}
    discarded: list[StepLine] = []
    ends = _ends_of_attempts(lines)
    for number, line in enumerate(lines):
        is_thrown_away = line.step > ends.get(line.attempt, math.inf)
        if isinstance(line, StepLine):
            if is_thrown_away:
                discarded.append(line)
                continue
            if line.step in steps:
                discarded.append(steps[line.step])
            steps[line.step] = line
        elif not is_thrown_away:
            several = (
                number if isinstance(line, EpisodeLine | Stall) else line.text if isinstance(line, NoteLine) else None
            )
            events[line.event or line.extra["event"], line.step, several] = line
    return StepLog(
        steps=[steps[s] for s in sorted(steps)],
        events=sorted(events.values(), key=attrgetter("step")),
        attempts=max(starts, default=0),
        discarded=discarded,
        starts=starts,
        ended=ended,
        torn=torn,
        set_back_s=set_back_s,
    )


def _ends_of_attempts(lines: Sequence[Line]) -> dict[int, int]:
    """Return for each attempt of an agent but the last the step from which a later one continued; else nothing."""
    if not any(isinstance(line, StepLine) and line.num_steps is not None for line in lines):
        return {}
    ends: dict[int, int] = {}
    least: int | None = None
    began = {line.attempt: line.step for line in lines if isinstance(line, Ready)}
    for attempt in sorted({line.attempt for line in lines}, reverse=True):
        if least is not None:
            ends[attempt] = least
        if attempt in began:
            least = began[attempt] if least is None else min(least, began[attempt])
    return ends


def _one_after_the_other(lines: Sequence[Line]) -> tuple[list[Line], float]:
    """Return the lines with times shifted so that attempts do not overlap, and how far the clock was set back in total."""
    evened: list[Line] = []
    ended, set_back_s = -math.inf, 0.0
    for _, group in itertools.groupby(lines, key=attrgetter("attempt")):
        own = list(group)
        times = [line.time for line in own if math.isfinite(line.time)]
        if times:
            set_back_s += max(0.0, ended - min(times) - set_back_s)
            ended = max(times) + set_back_s
        for line in own if set_back_s else ():
            line.time += set_back_s
            if isinstance(line, Start) and line.process_time is not None:
                line.process_time += set_back_s
        evened += own
    return evened, set_back_s


def _parse(path: Path) -> tuple[list[Line], int]:
    """Return the lines of a steps file, and the number of torn lines."""
    try:
        with files.open_plain(path) as stream:
            data = stream.read()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
    lines: list[Line] = []
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
        if torn_at is not None and lines and line.attempt <= lines[-1].attempt:
            raise FileFormatError(f"{path} is damaged at line {torn_at}, in the middle of an attempt")
        torn_at = None
        lines.append(line)
    return lines, torn


class StepFollower:
    """A reader of a steps file that is still written: each new line once; earlier lines only on request."""

    def __init__(self, path: Path, is_from_start: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() and not is_from_start else 0

    def new_lines(self) -> list[Line]:
        try:
            with files.open_plain(self._path) as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in map(_line_or_none, whole.split(b"\n")) if line is not None]


def _line_or_none(raw: bytes) -> Line | None:
    try:
        return parse_line(raw)
    except ValueError:
        return None
