"""Writes the lines of a run as TensorBoard events, while it runs or afterwards.

Scalars: `loss/train` and `step_time_s` by step, `loss/test` and `accuracy/test` by step at the end of an epoch. Their
wall time is the start of the run plus its training clock, so evaluation and pauses between attempts are left out.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chronograd.errors import MissingExtraError, RunError
from chronograd.rundir import RunDir

try:
    # Its EventFileWriter would import TensorFlow where there is one, and write from a thread; the parts do neither.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError:
    raise MissingExtraError("tensorboard", "tensorboard", "writing TensorBoard events") from None

_STEP_TAGS = {"loss": "loss/train", "step_time_s": "step_time_s"}
_EPOCH_TAGS = {"test_loss": "loss/test", "test_accuracy": "accuracy/test"}
_SUFFIX = ".chronograd"
_number = itertools.count()


class Events:
    """One event file. Called with each line of a steps file; lines without scalars are skipped.

    After a restart, steps that are done again replace those of the attempt before. As a context it closes the file.

    Args:
        folder: where the file is made, under a name of its own.
        started: when the run's clock was zero, in seconds since 1970; now by default.
    """

    def __init__(self, folder: Path, started: float | None = None) -> None:
        self._started = time.time() if started is None else started
        self._clock_s = 0.0
        self._attempt = 1
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files of one folder in the order of their names.
        name = f"events.out.tfevents.{int(self._started):010d}.{os.getpid()}.{next(_number)}{_SUFFIX}"
        self.path = folder / name
        self._file = RecordWriter(self.path.open("wb"))
        self._write(Event(wall_time=self._started, file_version="brain.Event:2"))

    def __call__(self, line: dict[str, Any]) -> None:
        tags = _EPOCH_TAGS if line.get("event") == "epoch" else {} if "event" in line else _STEP_TAGS
        values = [
            Summary.Value(tag=tag, simple_value=line[name]) for name, tag in tags.items() if line.get(name) is not None
        ]
        if "event" not in line:  # a loop of the user's own writes the time of each step only
            self._clock_s = line.get("seconds", self._clock_s + line.get("step_time_s", 0.0))
        if not values:
            return
        wall_time = self._started + line.get("seconds", self._clock_s)
        if line.get("attempt", 1) > self._attempt:
            self._attempt = line["attempt"]
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=wall_time, step=line["step"], session_log=restart))
        self._write(Event(wall_time=wall_time, step=line["step"], summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_events(run: RunDir, folder: Path | None = None) -> Path:
    """The events of a whole run, in its folder `tensorboard` by default; those written there before are replaced.

    The loss of a step is the mean over the ranks' samples; other values are those of rank 0.
    Raises: RunError if the run has no steps.
    """
    lines = list(_lines(run))
    if not lines:
        raise RunError(f"{run.path} has no steps to show", "train or measure it first")
    folder = run.path / "tensorboard" if folder is None else folder
    for old in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
        old.unlink()
    with Events(folder, _started(run)) as events:
        for line in lines:
            events(line)
    return folder


def _lines(run: RunDir) -> Iterator[dict[str, Any]]:
    """Steps in order, each followed by the end of its epoch."""
    first = run.read_steps(0)
    others = [{line["step"]: line for line in run.read_steps(rank).steps} for rank in run.ranks() if rank]
    steps = [
        {**line, "loss": _mean_loss([line, *(other[line["step"]] for other in others if line["step"] in other)])}
        for line in first.steps
    ]
    epochs = [event for event in first.events if event["event"] == "epoch"]
    yield from sorted([*steps, *epochs], key=lambda line: (line["step"], "event" in line))


def _mean_loss(shares: list[dict[str, Any]]) -> float | None:
    """Mean over samples; None where one rank has no finite loss."""
    losses = [share.get("loss") for share in shares]
    samples = [share.get("samples", 1) for share in shares]
    if None in losses:
        return None
    return float(sum(loss * n for loss, n in zip(losses, samples, strict=True)) / sum(samples))


def _started(run: RunDir) -> float:
    """When the run was made, as its environment tells; else when its first rank last wrote."""
    created = run.environment().get("created")
    return datetime.fromisoformat(created).timestamp() if created else run.steps_path(0).stat().st_mtime
