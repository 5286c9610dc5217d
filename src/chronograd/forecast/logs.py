"""Logs of training in many formats, as columns by name.

    tables            CSV with any delimiter, header and decimal sign; Lightning's metrics.csv; W&B's exports; MLflow's metrics
    JSON, JSON lines  rows, or lists by name as in a Keras history; W&B's history; Hugging Face's trainer_state.json
    text              printed output: `Epoch 3/90 [10/500] loss: 0.52`, progress bars, lines with JSON
    folders           TensorBoard events; an MLflow run (`mlruns/EXPERIMENT/RUN`)

Each column has its own points; rows without a value add none. After a restart the later values replace the earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import door
from chronograd.errors import FileFormatError, InputError
from chronograd.forecast.curves import Array
from chronograd.forecast.log_rows import HINT, WHAT, read_rows
from chronograd.forecast.log_times import UNITS, carried, number_of, seconds_of, times_of, unit_of_value
from chronograd.forecast.log_words import STEPS, named, unit_of, words
from chronograd.forecast.pace import CLOCK_FROM
from chronograd.words import how_many

__all__ = ["HINT", "Log", "LogColumn", "read_log", "words"]
OF_TRAINING = {"train", "training", "loss", "lr"}  # words of columns that a row before training does not have
ITERATIONS = ("iter", "iteration", "step", "batch")
# Restarts are rare: if steps go back more often, the file mixes rows of several runs, ranks or splits.
MAX_RESTARTS = 0.25
OF_LOGS = (".csv", ".json", ".jsonl", ".log", ".tsv", ".txt")  # endings of files that may be logs
MAX_REPEATS = 0.5  # every step twice


@dataclass(frozen=True, eq=False)
class LogColumn:
    """Points of one name, each of shape (num_points,), in the order of the log.

    Attributes:
        steps: as the log counts them; `counts_from_0` if they are whole epochs and the first trained one is 0.
        times: seconds, since 1970 or since some start; None if the log does not have them.
        unit: `epoch`, `step` or `episode`; `row` if no column counts them.
        num_rows: number of rows or records that could have a value.
        rows: the number of each point's row; None if the log has no rows.
        notes: omissions and assumptions, in words.
    """

    name: str
    steps: Array
    values: Array
    times: Array | None
    unit: str
    num_rows: int
    counts_from_0: bool = False
    notes: tuple[str, ...] = ()
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Log:
    """The available columns, and functions that read one, by epochs or steps, and that cut the log after a point of one.

    Attributes:
        cut: returns the log as it was at a point of a column. notes: name unreadable parts.
    """

    names: tuple[str, ...]
    reader: Callable[[str, str | None], LogColumn]
    cut: Callable[[LogColumn, int], Log]
    notes: tuple[str, ...] = ()

    def read(self, name: str, unit: str | None = None) -> LogColumn:
        return self.reader(name, unit)


def read_log(path: Path, run: str | None = None) -> Log:
    """Read a log from a file or a folder that is not a run directory.

    Args:
        run: the name of one of several runs in a file.
    Raises: FileFormatError; InputError for several runs if none is named; NotFoundError for a missing run.
    """
    if path.is_dir() and (folder := _mlflow_metrics(path)) is not None:
        return _of_points(_mlflow_points(folder))
    if path.is_dir() and (files := _files_of_epochs(path)):
        return _log_of_rows([row for file in files for row in read_rows(file, run)[0]], [], path)
    if path.is_dir() or ".tfevents." in path.name:
        return _of_events(path)
    return _log_of_rows(*read_rows(path, run), path)


# -- rows ---------------------------------------------------------------------------------------------------


def _log_of_rows(rows: Sequence[Mapping[str, Any]], notes: Sequence[str], path: Path) -> Log:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if not name.endswith(("__MIN", "__MAX"))]  # of W&B's charts

    def cut(own: LogColumn, point: int) -> Log:
        assert own.rows is not None
        return _log_of_rows(rows[: own.rows[point] + 1], notes, path)

    return Log(tuple(names), cache(lambda name, unit: _of_rows(rows, names, name, unit, path)), cut, tuple(notes))


def _of_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], name: str, unit: str | None, path: Path
) -> LogColumn:
    own = [number for number, row in enumerate(rows) if row.get(name) not in (None, "")]
    values = _numbers((rows[number][name] for number in own), name, path)
    others = [one for one in names if one != name]
    steps, unit, notes = _steps(rows, others, own, unit)
    valid = _valid_points(steps)
    notes += _repeats(steps, unit, len(own) - len(valid), path)
    times = times_of(rows, others, own)
    from_0 = unit == "epoch" and len(steps) > 0 and min(steps) == 0 and bool((steps == np.round(steps)).all())
    from_0 = from_0 and not _starts_before_training(rows, others, [own[point] for point in valid], steps[valid])
    is_text = any("of iterations" in row for row in rows)  # text logs mix lines of many kinds
    return LogColumn(
        name, steps[valid], values[valid], None if times is None else times[valid], unit,
        len(valid) if is_text else len(rows) - len(own) + len(valid), from_0, tuple(notes),
        tuple(own[point] for point in valid),
    )  # fmt: skip


def _repeats(steps: Array, unit: str, num_left_out: int, path: Path) -> list[str]:
    """Return a note on steps that repeat or go back. Raises FileFormatError if too many do."""
    apart = np.diff(steps)
    if (apart > 0).all():
        return []
    at = int(np.flatnonzero(apart < 0)[0] if (apart < 0).any() else np.flatnonzero(apart == 0)[0])
    if (apart < 0).sum() > MAX_RESTARTS * len(steps) or (apart <= 0).sum() > MAX_REPEATS * len(steps):
        raise FileFormatError(
            f"{path.name}: steps do not increase from point to point ({unit} {steps[at + 1]:g} follows {steps[at]:g})",
            "sort them and remove duplicates; several runs or splits in one file need a column with their names",
        )
    left_out = f"{num_left_out:,} earlier {'point is' if num_left_out == 1 else 'points are'} left out"
    if (apart < 0).any():
        return [
            f"{unit}s go back from {steps[at]:,g} to {steps[at + 1]:,g}, as after a restart: the later values are used, and {left_out}"
        ]
    return [f"{unit} {steps[at]:,g} has several values: the last one is used, and {left_out}"]


def _starts_before_training(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int], steps: Array
) -> bool:
    """Return whether the first point, at epoch 0, is an evaluation before training.

    Then its row has no training loss or rate, and all later rows have one. Or another counter is 0 there, and rises in
    proportion to the epochs.
    """
    if len(own) < 2 or steps[0] != 0:
        return False
    for name in names:
        first, *later = (rows[number].get(name) not in (None, "") for number in own)
        if not first and all(later) and OF_TRAINING & set(words(name).split()):
            return True
    counters = [_counts([rows[number].get(name) for number in own]) for name in named(names, STEPS)]
    return any(
        counts is not None and counts[1] > steps[1] and np.allclose(counts / counts[1], steps / steps[1], rtol=0.01)
        for counts in counters
    )


def _steps(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: list[int], unit: str | None
) -> tuple[Array, str, list[str]]:
    """Return the steps of the points, their unit, and notes on assumptions. The first counter that rises from point to point is
    used.

    The search order is a counter in the rows themselves, epochs with the iterations in them, and a counter that goes back
    at a few restarts. Then follow a counter in earlier rows and the row numbers. A counter of the given `unit` comes first.
    """
    counters = {name: steps for name in named(names, STEPS) if (steps := _counts(carried(rows, name, own))) is not None}
    if broken := [name for name, steps in counters.items() if (steps == -1).any() and np.ptp(steps) > 0]:
        rising = next((name for name, steps in counters.items() if (np.diff(steps) > 0).all()), None)
        if rising is None:  # a count of -1 is that of no step
            note = f"{broken[0]} is -1 in {how_many(int((counters[broken[0]] == -1).sum()), 'rows')}, so the rows are numbered"
            return np.array(own) + 1.0, "row", [note]
    theirs = [name for name in counters if all(rows[number].get(name) not in (None, "") for number in own)]
    if unit is not None:
        counters = {name: steps for name, steps in counters.items() if unit_of(name) == unit}
        if unit == "epoch" and (ahead := _ahead(rows, names, own)) is not None:
            return ahead, unit, []
        theirs = [name for name in counters if name in theirs] or list(counters)
    if unit is None and (steps := _of_all_epochs(rows, own, counters, theirs)) is not None:
        return steps, "step", []
    for name in theirs:
        if (np.diff(counters[name]) > 0).all():
            epochs = next((steps for other, steps in counters.items() if unit_of(other) == "epoch"), None)
            is_epoch = epochs is not None and len(own) > 1 and np.array_equal(epochs, counters[name])
            return counters[name], "epoch" if is_epoch else unit_of(name), []
    within = _within_epochs(rows, names, own) if unit in (None, "epoch") else None
    if within is not None and (np.diff(within) > 0).all():
        return within, "epoch", []
    candidates: list[tuple[Array, str]] = [] if within is None else [(within, "epoch")]
    candidates += [(steps, unit_of(name)) for name, steps in counters.items() if np.ptp(steps) > 0]
    best = min(candidates, key=lambda candidate: (np.diff(candidate[0]) <= 0).sum(), default=None)
    if best is not None and (np.diff(best[0]) <= 0).sum() <= MAX_RESTARTS * len(own):
        return *best, []
    for name in named(names, STEPS):
        before = _counts(carried(rows, name, own, skips_own=True))
        if name in theirs and before is not None and (np.diff(before) > 0).all() and not np.ptp(counters[name]):
            note = f"every point has {name} {counters[name][0]:g}, so each gets the {name} of the row before it"
            return before, unit_of(name), [note]
    return (*best, []) if best is not None else _numbered(own, names, counters, theirs)


def _numbered(
    own: list[int], names: Sequence[str], counters: Mapping[str, Array], theirs: Sequence[str]
) -> tuple[Array, str, list[str]]:
    """Return the numbers of the points' rows, or those of the points if a counter never changes."""
    if len(own) > 1 and theirs:
        note = f"every point has {theirs[0]} {counters[theirs[0]][0]:g}: points are numbered in their order"
        return np.arange(1.0, len(own) + 1), "row", [note]
    column = next(iter(named(names, STEPS)), None)
    problem = "no column counts epochs or steps" if column is None else f"not every {column} is a number"
    return np.array(own) + 1.0, "row", [f"{problem}, so the rows are numbered"]


def _of_all_epochs(
    rows: Sequence[Mapping[str, Any]], own: Sequence[int], counters: Mapping[str, Array], theirs: Sequence[str]
) -> Array | None:
    """Return the iterations of the last rows before the points, if they go on from epoch to epoch.

    The points count nothing, or count the batches of each evaluation and epochs at uneven distances.
    """
    epochs = named(counters, ("epoch", "epochs"))
    name = next(iter(named(counters, ITERATIONS)), None)
    if name is None or not epochs or len(own) < 2:
        return None
    is_uneven = np.ptp(np.diff(counters[epochs[0]])) > 0 and name in theirs and np.ptp(counters[name]) == 0
    if theirs and not is_uneven:
        return None
    steps, points = _counts(carried(rows, name, own, skips_own=True)), set(own)
    counted = [number for number, row in enumerate(rows) if row.get(name) not in (None, "") and number not in points]
    iterations, of = _counts([rows[at][name] for at in counted]), _counts(carried(rows, epochs[0], counted))
    if steps is None or iterations is None or of is None or not np.ptp(of) > 0:
        return None
    return steps if (np.diff(steps) > 0).all() and (np.diff(iterations) >= 0).all() else None


def _counts(values: Sequence[Any]) -> Array | None:
    numbers = [number_of(value) for value in values]
    return np.array(numbers, dtype=float) if all(n is not None and math.isfinite(n) for n in numbers) else None


def _within_epochs(rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return epochs with the fraction of their iterations, if iterations restart in each epoch: 1.5 in the middle of the
    second. None if the log counts fractions of epochs or all iterations.
    """
    epoch, inner = named(names, ("epoch", "epochs")), named(names, ITERATIONS)
    if not epoch or not inner:
        return None
    counted = [rows[number].get(inner[0]) for number in own]
    numbers_of_all = [rows[number].get("of iterations") or 0 for number in own]
    if sum(count in (None, "") for count in counted) * 2 < len(own):  # the mean of an epoch follows its iterations
        for point, total in enumerate(carried(rows, "of iterations", own)):
            if counted[point] in (None, ""):
                counted[point] = numbers_of_all[point] = total
    epochs, counts = _counts(carried(rows, epoch[0], own)), _counts(counted)
    if epochs is None or counts is None or (epochs != np.round(epochs)).any():
        return None
    is_next = np.diff(epochs) > 0
    if is_next.any() and (np.diff(counts)[is_next] > 0).all():
        return None
    totals = _counts(numbers_of_all)
    least = min(number for row in rows if (number := number_of(row.get(epoch[0]))) is not None)
    if totals is None or not totals.all():  # a count from 0 ends before the total
        gaps = np.diff(np.unique(counts))
        totals = np.full(len(own), max(counts.max() + (gaps.min() if len(gaps) and counts.min() == 0 else 0), 1.0))
    return np.asarray(epochs - (least > 0) + counts / totals)


def _ahead(rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int]) -> Array | None:
    """Return the epochs of rows that come before the row with their epoch and do not name it, such as Lightning's rates."""
    for name in named(names, STEPS):
        if unit_of(name) == "epoch" and all(rows[number].get(name) in (None, "") for number in own):
            turned = [len(rows) - 1 - number for number in reversed(own)]
            found = _counts(carried(list(reversed(rows)), name, turned)[::-1])
            if found is not None and (np.diff(found) > 0).all():
                return found
    return None


def _valid_points(steps: Array) -> list[int]:
    """Return the points that remain valid if steps go back: the last of each step, and none that a restart overwrites.

    >>> _valid_points(np.array([1.0, 2, 3, 2, 3, 4]))
    [0, 3, 4, 5]
    """
    valid: list[int] = []
    for number, step in enumerate(steps):
        while valid and steps[valid[-1]] >= step:
            valid.pop()
        valid.append(number)
    return valid


def _numbers(cells: Iterable[Any], name: str, path: Path) -> Array:
    """Return the values of cells: per cent as shares, and durations in seconds unless all have the same unit."""
    cells = list(cells)
    units = {unit_of_value(cell) for cell in cells}
    factor = UNITS[next(iter(units))] if len(units) == 1 and units != {""} else 1.0
    numbers = []
    for cell in cells:
        if isinstance(cell, str) and cell.rstrip().endswith("%"):
            number = number_of(cell.rstrip().rstrip("%"))
            number = None if number is None else number / 100
        else:
            number = seconds_of(cell, 1.0) if unit_of_value(cell) else number_of(cell)
        if number is None:
            raise FileFormatError(f"{path} has a {name} that is not a number: {str(cell)[:40]!r}", HINT)
        numbers.append(number / factor)
    return np.array(numbers)


# -- folders ------------------------------------------------------------------------------------------------

Points = dict[str, dict[float, tuple[float, float]]]  # by name and step: value and time


def _of_points(points: Points, notes: Sequence[str] = ()) -> Log:
    def read(name: str, _: str | None) -> LogColumn:
        by_step = dict(sorted(points[name].items()))
        values, times = np.array(list(by_step.values()), dtype=float).reshape(-1, 2).T
        has_times = (
            len(times) > 0 and np.isfinite(times).all() and times.min() > CLOCK_FROM
        )  # both writers use the clock
        return LogColumn(name, np.array(list(by_step)), values, times if has_times else None, "step", len(by_step))

    def cut(own: LogColumn, point: int) -> Log:
        """Drop later points of all names, also of those that have other steps."""
        last = own.steps[point]
        kept = {name: {k: at for k, at in found.items() if k <= last} for name, found in points.items()}
        return _of_points({name: found for name, found in kept.items() if found}, notes)

    return Log(tuple(points), read, cut, tuple(notes))


def _of_events(path: Path) -> Log:
    """Read TensorBoard scalars from one file, or from all files of a folder; the last value of each step counts."""
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
            "; ".join((f"{path} is not a run and has no TensorBoard scalars", *notes)),
            f"name a run, a file, or their folder{_such_as(path)}",
        )
    return _of_points(tags, notes)


def _files_of_epochs(path: Path) -> list[Path]:
    """Return the files of a folder that has one for each epoch, such as AllenNLP's `metrics_epoch_3.json`, in their order."""
    files = {file.stem.removeprefix("metrics_epoch_"): file for file in path.glob("metrics_epoch_*.json")}
    return [files[number] for number in sorted(filter(str.isdecimal, files), key=int)]


def _such_as(path: Path) -> str:
    """Return the names of a folder's files that may be logs, as the end of a sentence."""
    files = sorted(file.name for file in path.glob("*.*") if file.suffix in OF_LOGS) if path.is_dir() else []
    return f"; {path} holds {', '.join(files[:5])}" if files else ""


def _mlflow_metrics(path: Path) -> Path | None:
    """Return the metrics folder of an MLflow run, or of the only run of an experiment or of `mlruns`; None without one."""
    for pattern in ("metrics", "*/metrics", "*/*/metrics"):
        runs = sorted(one.parent for one in path.glob(pattern) if (one.parent / "meta.yaml").exists())
        if len(runs) > 1:
            shown = ", ".join(run.name for run in runs[:3])
            raise InputError(
                f"{path} holds {how_many(len(runs), 'MLflow runs')}: {shown}", f"name one, such as {runs[0]}"
            )
        if runs:
            return runs[0] / "metrics"
    return None


def _mlflow_points(folder: Path) -> Points:
    """Read a file for each metric, with a line for each value: milliseconds since 1970, value, step."""
    points: Points = {}
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        lines = [line.split() for line in door.read_text(file, WHAT).splitlines() if line.strip()]
        try:
            rows = [(float(line[0]) / 1000, float(line[1]), float((*line, "0")[2])) for line in lines]
        except (ValueError, IndexError):
            raise FileFormatError(f"{file} is not an MLflow metric", "its lines are time, value, step") from None
        is_numbered = len({step for _, _, step in rows}) > 1
        points[file.relative_to(folder).as_posix()] = {
            step if is_numbered else float(number): (value, time) for number, (time, value, step) in enumerate(rows, 1)
        }
    if not points:
        raise FileFormatError(f"{folder} has no MLflow metric", "name another run")
    return points
