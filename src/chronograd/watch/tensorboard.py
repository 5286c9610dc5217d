"""A writer that turns the lines of a run into TensorBoard events, while it runs or afterwards.

Scalars of the run: `loss/train` and `step_time_s` by step, `loss/test` and `accuracy/test` by step at the end of an epoch. Each
rank has a separate folder, `rank-0` and so on, so that TensorBoard draws the ranks into one plot. Scalars of a rank:
`steps_per_s`, `input_share` and `exchange_wait_share` of each step; of a learner `staleness`, `pull_share`, `compute_share`,
`push_share`. Wall time is the start of the run plus its training clock, so it excludes evaluation and pauses between attempts.

Events are derived only from the steps files. Each writer starts from the first step and replaces earlier events.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from chronograd.errors import MissingExtraError, RunError
from chronograd.rundir import Line, RunDir, StepLine, StepLog
from chronograd.rundir.steps import Epoch
from chronograd.watch.progress import PARTS_OF_UPDATE, RunLines, seconds_of

try:
    # Its EventFileWriter would import TensorFlow if installed, and write from a thread; these parts do neither.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError:
    raise MissingExtraError("tensorboard", "tensorboard", "writing TensorBoard events") from None

POLL_EVERY_S = 1.0
_STEP_TAGS = {"loss": "loss/train", "step_time_s": "step_time_s"}
_EPOCH_TAGS = {"test_loss": "loss/test", "test_accuracy": "accuracy/test", "bits_per_byte": "bits_per_byte/test"}
_SHARES = {
    "input_s": "input_share",
    "exchange_wait_s": "exchange_wait_share",
    **{name: f"{name.removesuffix('_s')}_share" for name in PARTS_OF_UPDATE},
}
_SUFFIX = ".chronograd"
_number = itertools.count()


def scalars_of_run(line: Line) -> dict[str, float]:
    """Return values by tag of a step, or of the end of an epoch; empty for other lines."""
    tags = _STEP_TAGS if isinstance(line, StepLine) else _EPOCH_TAGS if isinstance(line, Epoch) else {}
    values = {tag: getattr(line, name) for name, tag in tags.items()}
    return {tag: value for tag, value in values.items() if value is not None and math.isfinite(value)}


def scalars_of_rank(line: Line) -> dict[str, float]:
    """Return values by tag of a step on its rank, or of an update on its learner; empty for other lines."""
    if not isinstance(line, StepLine) or not (seconds := seconds_of(line)):
        return {}
    parts = {tag: getattr(line, name) for name, tag in _SHARES.items()}
    found = {"steps_per_s": 1 / seconds} | {tag: s / seconds for tag, s in parts.items() if s is not None}
    if line.staleness is not None:
        found["staleness"] = line.staleness
    return found


class Events:
    """One event file. Call it with each line of a steps file; lines without scalars are skipped.

    After a restart, repeated steps replace those of the attempt before.

    Args:
        folder: where the file is created, under a unique name.
        started: when the run's clock was zero, in seconds since 1970; now by default.
        scalars: values by tag of a line.
    """

    def __init__(
        self,
        folder: Path,
        started: float | None = None,
        scalars: Callable[[Line], dict[str, float]] = scalars_of_run,
    ) -> None:
        self._started = time.time() if started is None else started
        self._scalars = scalars
        self._clock_s = 0.0
        self._attempt = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{_later(folder):017.6f}.{os.getpid()}.{next(_number)}{_SUFFIX}"
        self._file = RecordWriter(self.path.open("wb"))
        self._write(Event(wall_time=self._started, file_version="brain.Event:2"))

    def __call__(self, line: Line) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in self._scalars(line).items()]
        if isinstance(line, StepLine):  # a custom training loop has only the time of each step
            self._clock_s = self._clock_s + (line.step_time_s or 0.0) if line.seconds is None else line.seconds
        if not values:
            return
        wall_time = self._started + (line.seconds if isinstance(line, Epoch) else self._clock_s)
        if line.attempt > self._attempt:
            # At the first line of a file this makes an open TensorBoard forget the file that it replaces.
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=wall_time, step=line.step if self._attempt else 0, session_log=restart))
            self._attempt = line.attempt
        self._write(Event(wall_time=wall_time, step=line.step, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()


class RunEvents:
    """The events of a run. The constructor writes all lines so far, replacing earlier events; `poll` adds new ones.

    They are in the run's folder `tensorboard` by default.
    """

    def __init__(self, run: RunDir, folder: Path | None = None) -> None:
        self.run = run
        self.folder = run.path / "tensorboard" if folder is None else folder
        self._started = _started(run)
        self._of_rank: dict[int, Events] = {}
        self._done: dict[int, tuple[int, int]] = {}  # by rank, attempt and step of the last line written
        self._waiting: dict[int, dict[int, StepLine]] = {}  # by step and rank, until all ranks have done a step
        self._ends: list[Epoch] = []
        self._attempt = self._step = 0
        old = list(_files(self.folder))
        self._of_run = Events(self.folder, self._started)
        self._lines = RunLines(run, is_from_start=False)
        logs = self.run.logs()
        for line in _lines(logs):
            self._of_run(line)
            self._attempt, self._step = max(self._attempt, line.attempt), line.step
        for rank, log in logs.items():
            for step in log.steps:
                self._write_of_rank(rank, step)
        for path in old:
            _retire(path)

    def close(self) -> None:
        """Write new lines, and close the files."""
        try:
            self.poll()
        finally:
            for events in (self._of_run, *self._of_rank.values()):
                events.close()

    def poll(self) -> None:
        """Write new lines: those of a rank at once, those of the run when all ranks have done a step."""
        for rank, line in self._lines.new():
            if line.attempt > self._attempt:
                self._attempt, self._step = line.attempt, 0
                self._waiting.clear()
                self._ends.clear()
            if isinstance(line, Epoch):
                self._ends.append(line)
            elif isinstance(line, StepLine) and (line.attempt, line.step) > self._done.get(rank, (0, 0)):
                self._write_of_rank(rank, line)
                if line.attempt == self._attempt and line.step > self._step:
                    self._waiting.setdefault(line.step, {})[rank] = line
        self._write_of_run()

    def _write_of_run(self) -> None:
        """Write steps without a gap, each with the end of its epoch. An attempt may start at any step."""
        while self._waiting:
            step = min(self._waiting)
            own = list(self._waiting[step].values())
            is_next = not self._step or step - (own[0].num_steps or 1) == self._step
            if not is_next or (len(own) < self._lines.num_ranks and all(line.staleness is None for line in own)):
                break
            self._of_run(_of_all(own))
            self._step = step
            del self._waiting[step]
            while self._ends and self._ends[0].step <= step:
                self._of_run(self._ends.pop(0))
        while self._ends and self._ends[0].step <= self._step:
            self._of_run(self._ends.pop(0))

    def _write_of_rank(self, rank: int, line: StepLine) -> None:
        if rank not in self._of_rank:
            self._of_rank[rank] = Events(self.folder / f"rank-{rank}", self._started, scalars_of_rank)
        self._of_rank[rank](line)
        self._done[rank] = line.attempt, line.step


class LiveEvents:
    """A callback that may be called at any rate with the current run, and writes its events every POLL_EVERY_S."""

    def __init__(self) -> None:
        self._events: RunEvents | None = None
        self._next_s = 0.0

    def __call__(self, run: RunDir) -> None:
        if self._events is None or self._events.run != run:
            self.close()
            self._events = RunEvents(run)
        elif time.monotonic() >= self._next_s:
            self._events.poll()
            self._next_s = time.monotonic() + POLL_EVERY_S

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def write_events(run: RunDir, folder: Path | None = None) -> Path:
    """Write the events of a complete run, in its folder `tensorboard` by default; earlier ones there are replaced.

    The loss of a step is the mean over the ranks' samples; its time is that of rank 0.
    Raises: RunError if the run has no steps.
    """
    if not any(run.read_steps(rank).steps for rank in run.ranks()):
        raise RunError(f"{run.path} has no steps to show", "train or measure it first")
    with contextlib.closing(RunEvents(run, folder)) as events:
        return events.folder


def _files(folder: Path) -> Iterator[Path]:
    """Yield Chronograd's event files in a folder of a run and those of its ranks."""
    pattern = f"events.out.tfevents.*{_SUFFIX}"
    yield from folder.glob(pattern)
    yield from folder.glob(f"rank-*/{pattern}")


def _retire(path: Path) -> None:
    """Empty a file that was replaced, and remove one that was already empty. If a file disappears while TensorBoard reads it,
    TensorBoard never looks for the next.
    """
    if path.stat().st_size:
        os.truncate(path, 0)
    else:
        path.unlink()


def _later(folder: Path) -> float:
    """Return a time that is now, but later than the names there: TensorBoard reads in order; clocks may be set back."""
    named = [".".join(path.name.split(".")[3:5]) for path in folder.glob(f"events.out.tfevents.*{_SUFFIX}")]
    return max([time.time(), *(float(name) + 1e-6 for name in named)])


def _lines(logs: Mapping[int, StepLog]) -> Iterator[Line]:
    """Yield steps in order, each from its last attempt and followed by the end of its epoch."""
    by_step: dict[int, list[StepLine]] = {}
    ends: dict[int, Epoch] = {}
    for log in logs.values():
        for line in log.steps:
            by_step.setdefault(line.step, []).append(line)
        ends |= {epoch.step: epoch for epoch in log.of(Epoch)}
    for step in sorted({*by_step, *ends}):
        if step in by_step:
            yield _of_all(by_step[step])
        if step in ends:
            yield ends[step]


def _of_all(shares: list[StepLine]) -> StepLine:
    """Merge the lines of a step from all ranks: the first one, with the mean loss over all samples; NaN if a rank has none.

    Ranks that did not repeat the step are left out.
    """
    attempt = max(share.attempt for share in shares)
    last = [share for share in shares if share.attempt == attempt]
    weights = [1 if share.samples is None else share.samples for share in last]
    losses = [math.nan if share.loss is None else share.loss for share in last]
    return replace(last[0], loss=sum(loss * n for loss, n in zip(losses, weights, strict=True)) / sum(weights))


def _started(run: RunDir) -> float:
    """Return when the run was created, from its environment; else when its first rank last wrote."""
    created = run.environment().get("created")
    if created:
        return datetime.fromisoformat(created).timestamp()
    return run.steps_path(0).stat().st_mtime if run.steps_path(0).exists() else time.time()
