"""Logs of training from wherever they were written, as columns by name.

    tables            CSV with any delimiter, header and decimal sign; Lightning's metrics.csv; W&B's exports; MLflow's metrics
    JSON, JSON lines  rows, or lists by name as Keras keeps a history; W&B's history; Hugging Face's trainer_state.json
    text              what programs print: `Epoch 3/90 [10/500] loss: 0.52`, progress bars, lines with JSON
    folders           TensorBoard events; an MLflow run (`mlruns/EXPERIMENT/RUN`)

A column has the points of its own: rows without a value are no points of it. Where a run was restarted the later values hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import door
from chronograd.errors import FileFormatError, InputError
from chronograd.forecast.curves import Array
from chronograd.forecast.log_rows import HINT, STEPS, WHAT, read_rows
from chronograd.forecast.log_times import carried, named, times_of, words
from chronograd.words import how_many

__all__ = ["HINT", "Log", "LogColumn", "read_log", "words"]
ITERATIONS = ("iter", "iteration", "step", "batch")
# Restarts are rare: where steps go back more often, rows of several runs, ranks or splits are mixed.
MAX_RESTARTS = 0.25


@dataclass(frozen=True, eq=False)
class LogColumn:
    """Points of one name, each of shape (num_points,), in the order of the log.

    Attributes:
        steps: as the log counts them; `counts_from_0` where they are whole epochs of which the first has number 0.
        times: seconds, since 1970 or since some start; None where the log does not tell them.
        unit: `epoch` or `step`.
        num_rows: rows or records that could have had a value.
        notes: what was left out or assumed, in words.
    """

    name: str
    steps: Array
    values: Array
    times: Array | None
    unit: str
    num_rows: int
    counts_from_0: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Log:
    """Columns that may be asked for, and what reads one, by epochs or steps if that is stated; `notes` say what could not be read."""

    names: tuple[str, ...]
    reader: Callable[[str, str | None], LogColumn]
    notes: tuple[str, ...] = ()

    def read(self, name: str, unit: str | None = None) -> LogColumn:
        return self.reader(name, unit)


def read_log(path: Path, run: str | None = None) -> Log:
    """A log that is a file or a folder, but no run directory.

    Args:
        run: the name of one of several runs in a file.
    Raises: FileFormatError; InputError for several runs of which none is named; NotFoundError for a run that is not there.
    """
    if path.is_dir() and (folder := _mlflow_metrics(path)) is not None:
        return _of_points(_mlflow_points(folder))
    if path.is_dir() or ".tfevents." in path.name:
        return _of_events(path)
    rows, notes = read_rows(path, run)
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if not name.endswith(("__MIN", "__MAX"))]  # of W&B's charts
    return Log(tuple(names), lambda name, unit: _of_rows(rows, names, name, unit, path), tuple(notes))


# -- rows ---------------------------------------------------------------------------------------------------


def _of_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], name: str, unit: str | None, path: Path
) -> LogColumn:
    own = [number for number, row in enumerate(rows) if row.get(name) not in (None, "")]
    values = _numbers((rows[number][name] for number in own), name, path)
    others = [one for one in names if one != name]
    steps, unit, notes = _steps(rows, others, own, unit)
    kept = _held(steps)
    if len(kept) < len(own):
        back = int(np.flatnonzero(np.diff(steps) <= 0)[0])
        if (np.diff(steps) <= 0).sum() > MAX_RESTARTS * len(own):
            raise FileFormatError(
                f"{path.name}: steps do not rise from point to point ({unit} {steps[back + 1]:g} follows {steps[back]:g})",
                "sort them, and leave one of each; several runs or splits in one file need a column that tells them apart",
            )
        notes.append(
            f"{unit}s go back from {steps[back]:,g} to {steps[back + 1]:,g}, as after a restart: the later values hold, and "
            f"{len(own) - len(kept):,} earlier points are left out"
        )
    times = times_of(rows, others, own)
    from_0 = unit == "epoch" and len(steps) > 0 and min(steps) == 0 and bool((steps == np.round(steps)).all())
    is_text = any("of iterations" in row for row in rows)  # its lines are of many kinds
    return LogColumn(
        name, steps[kept], values[kept], None if times is None else times[kept], unit,
        len(kept) if is_text else len(rows) - len(own) + len(kept), from_0, tuple(notes),
    )  # fmt: skip


def _steps(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: list[int], unit: str | None
) -> tuple[Array, str, list[str]]:
    """Return the steps of the points, their unit, and notes on assumptions: the first counter that rises from point to point.

    That is one of the rows' own, else epochs with the iterations in them, else one that goes back at a few restarts, else one of
    the rows before, else the rows themselves. An `unit` that is asked for comes first.
    """
    counters = {name: found for name in named(names, STEPS) if (found := _counts(carried(rows, name, own))) is not None}
    theirs = [name for name in counters if all(rows[number].get(name) not in (None, "") for number in own)]
    if unit is not None:
        counters = {name: steps for name, steps in counters.items() if _unit(name) == unit}
        if unit == "epoch" and (ahead := _ahead(rows, names, own)) is not None:
            return ahead, unit, []
        theirs = [name for name in counters if name in theirs] or list(counters)
    for name in theirs:
        if (np.diff(counters[name]) > 0).all():
            epochs = next((steps for other, steps in counters.items() if _unit(other) == "epoch"), None)
            is_epoch = epochs is not None and len(own) > 1 and np.array_equal(epochs, counters[name])
            return counters[name], "epoch" if is_epoch else _unit(name), []
    within = _within_epochs(rows, names, own) if unit != "step" else None
    if within is not None and (np.diff(within) > 0).all():
        return within, "epoch", []
    restarted = [(int((np.diff(steps) <= 0).sum()), name) for name, steps in counters.items() if np.ptp(steps) > 0]
    if within is not None:
        restarted.append((int((np.diff(within) <= 0).sum()), ""))
    fewest, name = min(restarted, default=(len(own), ""))
    if restarted and fewest <= MAX_RESTARTS * len(own):
        return (counters[name], _unit(name), []) if name else (np.asarray(within), "epoch", [])
    for name in named(names, STEPS):
        before = _counts(carried(rows, name, own, skips_own=True))
        if name in theirs and before is not None and (np.diff(before) > 0).all() and not np.ptp(counters[name]):
            note = f"every point has {name} {counters[name][0]:g}, so each is placed at the {name} of the row before it"
            return before, _unit(name), [note]
    if restarted:
        return (counters[name], _unit(name), []) if (name := min(restarted)[1]) else (np.asarray(within), "epoch", [])
    notes = (
        [f"every point has {name} {counters[name][0]:g}: points are counted in their order" for name in theirs[:1]]
        if len(own) > 1
        else []
    )
    return np.array([number + 1.0 for number in (range(len(own)) if notes else own)]), unit or "epoch", notes


def _unit(name: str) -> str:
    return "epoch" if "epoch" in words(name) else "step"


def _counts(values: Sequence[Any]) -> Array | None:
    try:
        found = np.array([float(value) for value in values])
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found).all() else None


def _within_epochs(rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Epochs with the share of their iterations, where iterations start anew in each epoch: 1.5 in the middle of the second."""
    epoch, inner = named(names, ("epoch", "epochs")), named(names, ITERATIONS)
    if not epoch or not inner:
        return None
    epochs, counts = _counts(carried(rows, epoch[0], own)), _counts([rows[number].get(inner[0]) for number in own])
    if epochs is None or counts is None:
        return None
    totals = _counts([rows[number].get("of iterations") or 0 for number in own])
    least = min(float(row[epoch[0]]) for row in rows if row.get(epoch[0]) not in (None, ""))
    total = totals if totals is not None and totals.all() else np.full(len(own), max(counts.max(), 1.0))
    return np.asarray(epochs - (least > 0) + counts / total)


def _ahead(rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Epochs of rows that are written before those of their epoch, and do not name it themselves, as Lightning's rates."""
    for name in named(names, STEPS):
        if _unit(name) == "epoch" and all(rows[number].get(name) in (None, "") for number in own):
            turned = [len(rows) - 1 - number for number in reversed(own)]
            found = _counts(carried(list(reversed(rows)), name, turned)[::-1])
            if found is not None and (np.diff(found) > 0).all():
                return found
    return None


def _held(steps: Array) -> list[int]:
    """The points that hold where steps go back: of each step the last, and none that a restart goes back before.

    >>> _held(np.array([1.0, 2, 3, 2, 3, 4]))
    [0, 3, 4, 5]
    """
    held: list[int] = []
    for number, step in enumerate(steps):
        while held and steps[held[-1]] >= step:
            held.pop()
        held.append(number)
    return held


def _numbers(given: Iterable[Any], name: str, path: Path) -> Array:
    found = []
    for value in given:
        try:
            is_share = isinstance(value, str) and value.rstrip().endswith("%")
            found.append(float(value.rstrip().rstrip("%")) / 100 if is_share else float(value))
        except (TypeError, ValueError):
            raise FileFormatError(f"{path} has a {name} that is no number: {str(value)[:40]!r}", HINT) from None
    return np.array(found)


# -- folders ------------------------------------------------------------------------------------------------

Points = dict[str, dict[float, tuple[float, float]]]  # by name and step: value and time


def _of_points(points: Points, notes: Sequence[str] = ()) -> Log:
    def read(name: str, _: str | None) -> LogColumn:
        by_step = dict(sorted(points[name].items()))
        values, times = np.array(list(by_step.values()), dtype=float).reshape(-1, 2).T
        is_told = len(times) > 0 and np.isfinite(times).all() and times.max() > 0
        return LogColumn(name, np.array(list(by_step)), values, times if is_told else None, "step", len(by_step))

    return Log(tuple(points), read, tuple(notes))


def _of_events(path: Path) -> Log:
    """Scalars of TensorBoard: of one file, or of all files of a folder, the last value of each step."""
    from chronograd.forecast.tensorboard_events import scalars  # an extra

    tags: Points = {}
    notes: list[str] = []
    for file in [path] if path.is_file() else sorted(path.glob("*.tfevents.*")):
        points, unread = scalars(file)
        notes += unread
        for tag, step, value, time in points:
            tags.setdefault(tag, {})[float(step)] = value, time
    if not tags:
        raise FileFormatError(
            "; ".join((f"{path} is no run and has no scalars of TensorBoard", *notes)),
            "name a run, a file, or their folder",
        )
    return _of_points(tags, notes)


def _mlflow_metrics(path: Path) -> Path | None:
    """The folder of metrics of an MLflow run, of the one run of an experiment or of `mlruns`; None where there is none."""
    for pattern in ("metrics", "*/metrics", "*/*/metrics"):
        runs = sorted(one.parent for one in path.glob(pattern) if (one.parent / "meta.yaml").exists())
        if len(runs) > 1:
            shown = ", ".join(run.name for run in runs[:3])
            raise InputError(
                f"{path} holds {how_many(len(runs), 'runs')} of MLflow: {shown}", f"name one, such as {runs[0]}"
            )
        if runs:
            return runs[0] / "metrics"
    return None


def _mlflow_points(folder: Path) -> Points:
    """A file for each metric, a line for each value: milliseconds since 1970, value, step."""
    points: Points = {}
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        lines = [line.split() for line in door.read_text(file, WHAT).splitlines() if line.strip()]
        try:
            told = [(float(line[0]) / 1000, float(line[1]), float((*line, "0")[2])) for line in lines]
        except (ValueError, IndexError):
            raise FileFormatError(f"{file} is no metric of MLflow", "its lines are time, value, step") from None
        is_numbered = len({step for _, _, step in told}) > 1
        points[file.relative_to(folder).as_posix()] = {
            step if is_numbered else float(number): (value, time) for number, (time, value, step) in enumerate(told, 1)
        }
    if not points:
        raise FileFormatError(f"{folder} holds no metric of MLflow", "name another run")
    return points
