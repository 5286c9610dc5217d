"""Learning curves from wherever they were written: a run, CSV, JSON, JSON lines, or TensorBoard events.

A curve is a loss, or the error 1 - accuracy, against epochs or steps: lower is better, so that one model serves both. In files
the first column or tag whose name says so is taken (`epoch`, `step`; `loss`, `train_loss`, `accuracy`, ...); others by name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chronograd import files
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.fit.curves import Array
from chronograd.fit.schedule import Schedule, schedule_of
from chronograd.rundir import RunDir, is_run_dir
from chronograd.rundir.listing import one_run
from chronograd.rundir.steps import Epoch

Metric = Literal["loss", "accuracy"]
# In the order in which they are looked for, in lower case.
STEPS = ("epoch", "epochs", "step", "steps", "iteration", "iter", "k", "x")
NAMES: dict[Metric, tuple[str, ...]] = {
    "loss": ("loss", "train_loss", "training_loss", "loss/train", "train/loss", "test_loss", "val_loss", "y"),
    "accuracy": (
        "accuracy",
        "acc",
        "test_accuracy",
        "val_accuracy",
        "val_acc",
        "accuracy/test",
        "top1",
        "train_accuracy",
    ),
}
MOST_ROWS = 5_000_000
_HINT = "give columns such as epoch,loss, or --column NAME"


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Values against steps or epochs, both of shape (num_points,), steps rising from above 0.

    Attributes:
        values: losses, or errors (1 - accuracy); `metric` says which.
        unit: `epoch` or `step`.
        schedule: of the learning rate, in that unit, as far as the job or the user tells it.
        notes: which points of the source are not among these, and why, in words.
    """

    name: str
    steps: Array
    values: Array
    metric: Metric
    unit: str
    schedule: Schedule = field(default_factory=Schedule)
    notes: tuple[str, ...] = ()

    def first(self, count: int) -> LearningCurve:
        """As it was after so many points."""
        return replace(self, steps=self.steps[:count], values=self.values[:count])

    def since_last_drop(self, least: int = 3) -> tuple[float, LearningCurve]:
        """Where the rate fell last, and the points from there on, their steps counted from it; all, from 0, if it never fell.

        A drop with fewer than `least` points after it is not counted yet.
        """
        started = 0.0
        for drop in self.schedule.drops:
            if int((self.steps > drop).sum()) >= least:
                started = drop
        kept = self.steps > started
        return started, replace(self, steps=self.steps[kept] - started, values=self.values[kept])


def read_curve(path: Path, metric: Metric = "loss", column: str | None = None) -> LearningCurve:
    """Read a learning curve.

    Args:
        column: name of the column or tag of the values, rather than the usual names of `metric`.
    Raises: FileFormatError naming what is wrong; NotFoundError for a column that is not there; InputError for a run without
        such points, and for several runs.
    """
    path = one_run(path)
    if path.is_dir() and is_run_dir(path) and not path.match("tensorboard"):
        return _of_run(RunDir.open(path), metric)
    if path.is_dir() or ".tfevents." in path.name:
        return _of_events(path, metric, column)
    rows = _rows(path)
    known = {name.lower(): name for name in rows[0]}
    values_at = _found(known, (column.lower(),) if column else NAMES[metric], path, column)
    steps_at = next((known[name] for name in STEPS if name in known), None)
    pairs = [(row.get(steps_at) if steps_at else n, row.get(values_at)) for n, row in enumerate(rows, 1)]
    told = [(step, value) for step, value in pairs if value is not None and value != ""]
    unit = "step" if steps_at is not None and not steps_at.lower().startswith("epoch") else "epoch"
    try:
        steps, values = (np.array([float(v) for v in column]) for column in zip(*told, strict=True))
    except (TypeError, ValueError):
        raise FileFormatError(f"{path} has a {values_at} or {steps_at} that is no number", _HINT) from None
    return _curve(
        path.name, steps, values, metric, unit, notes=_without(len(rows) - len(told), len(rows), "row", values_at)
    )


def _without(count: int, of: int, what: str, name: str) -> tuple[str, ...]:
    """A note where rows, epochs or steps of a source have no value."""
    if not count:
        return ()
    return (f"{count:,} of {of:,} {what}s {'has' if count == 1 else 'have'} no {name} and {_are(count)} left out",)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _curve(
    name: str, steps: Array, values: Array, metric: Metric, unit: str, *, notes: Sequence[str] = (), **said: Any
) -> LearningCurve:
    """Steps from 1, as first epochs are often numbered 0; accuracies as errors, percent as shares."""
    if not np.isfinite(steps).all() or not (np.diff(steps) > 0).all():
        raise FileFormatError(f"{name}: steps do not rise from point to point", "sort them, and leave one of each")
    if len(steps) and steps[0] <= 0:
        steps = steps + 1 - steps[0]
    known = np.isfinite(values)  # a run that diverged has none at its end
    if lost := int((~known).sum()):
        first = f"{unit} {steps[~known][0]:g}" if lost == 1 else f"the first at {unit} {steps[~known][0]:g}"
        what = f"{lost:,} of {len(values):,} points {_are(lost)} left out: the {metric} is no finite number"
        notes = (*notes, f"{what} ({first})")
    steps, values = steps[known], values[known]
    if metric == "accuracy":
        scale = 100.0 if len(values) and values.max() > 1 else 1.0
        values = 1 - values / scale
        if len(values) and values.min() < 0:
            raise FileFormatError(f"{name}: accuracies reach {scale * (1 - values.min()):g}", "give shares, or percent")
    return LearningCurve(name, steps, values, metric, unit, notes=tuple(notes), **said)


def _of_run(run: RunDir, metric: Metric) -> LearningCurve:
    """By epoch; the loss by step where there are too few epochs for a curve."""
    log = run.read_steps(min(run.ranks(), default=0))
    ends = log.of(Epoch)
    name = "train_loss" if metric == "loss" else "test_accuracy"
    points = [(end.epoch, value) for end in ends if (value := getattr(end, name)) is not None]
    count, unit = len(ends), "epoch"
    if len(points) < 3 and metric == "loss":
        points = [(line.step, line.loss) for line in log.steps if line.loss is not None and np.isfinite(line.loss)]
        count, unit = len(log.steps), "step"
    if not points:
        raise InputError(f"{run.path} has no {metric} yet", "wait for its first epochs, or name another run")
    steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    said: dict[str, Any] = {}
    if unit == "epoch" and (run.path / "job.yaml").exists():
        said = {"schedule": schedule_of(run.job())}
    notes = _without(count - len(points), count, unit, f"finite {metric}")  # such a number is written as none
    return _curve(run.path.name, steps, values, metric, unit, notes=notes, **said)


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """Of CSV (commas or tabs), JSON lines, or JSON: a list of objects, or lists by name as Keras keeps a history."""
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
        rows = _parsed(text.strip())
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {' '.join(str(error).split())[:200]}", _HINT) from None
    if not rows or len(rows) > MOST_ROWS or not all(isinstance(row, dict) and row for row in rows):
        raise FileFormatError(f"{path} has {len(rows):,} rows that make no curve", _HINT)
    return rows


def _parsed(text: str) -> list[Any]:
    if text.startswith(("{", "[")):
        try:
            data = json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        if isinstance(data, dict):
            lists = {name: values for name, values in data.items() if isinstance(values, list)}
            length = max(map(len, lists.values()), default=0)
            return [{name: values[i] for name, values in lists.items() if i < len(values)} for i in range(length)] or [
                data
            ]
        return list(data)
    first = text.partition("\n")[0]
    lines = csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in first else ",", strict=True)
    return [{name: value for name, value in line.items() if isinstance(name, str)} for line in lines]


def _found(known: Mapping[str, str], wanted: Sequence[str], path: Path, column: str | None) -> str:
    for name in wanted:
        if name in known:
            return known[name]
    if column is not None:
        raise NotFoundError("column", column, known.values())
    raise FileFormatError(f"{path} has columns {', '.join(list(known.values())[:12])}, none of them {wanted[0]}", _HINT)


def _of_events(path: Path, metric: Metric, column: str | None) -> LearningCurve:
    """Scalars of TensorBoard: of one file, or of all files of a folder, the last value of each step."""
    from chronograd.fit.tensorboard_events import scalars  # an extra

    tags: dict[str, dict[int, float]] = {}
    notes: list[str] = []
    for file in [path] if path.is_file() else sorted(path.glob("*.tfevents.*")):
        points, unread = scalars(file)
        notes += unread
        for tag, step, value in points:
            tags.setdefault(tag, {})[step] = value
    if not tags:
        raise FileFormatError(
            "; ".join((f"{path} is no run and has no scalars of TensorBoard", *notes)),
            "name a run, a file, or their folder",
        )
    wanted = (column.lower(),) if column else NAMES[metric]
    by_step = tags[_found({tag.lower(): tag for tag in tags}, wanted, path, column)]
    steps = sorted(by_step)
    values = np.array([by_step[step] for step in steps])
    return _curve(path.name, np.array(steps, dtype=float), values, metric, "step", notes=notes)
