"""Logs of training from wherever they were written, as columns by name.

    CSV, TSV          any header; Lightning's metrics.csv; W&B's exports of a history or a chart; MLflow's metrics
    JSON, JSON lines  rows, or lists by name as Keras keeps a history; W&B's history; Hugging Face's trainer_state.json
    folders           TensorBoard events; an MLflow run (`mlruns/EXPERIMENT/RUN`)

A column has the points of its own: rows without a value are no points of it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import files
from chronograd.errors import FileFormatError, InputError
from chronograd.fit.curves import Array

MOST_ROWS = 5_000_000
HINT = "give columns such as epoch,loss, or --column NAME"
# Names of columns as words, in the order in which they are looked for.
STEPS = ("epoch", "epochs", "train epoch", "step", "steps", "global step", "trainer global step", "train global step",
         "iteration", "iter", "k", "x")  # fmt: skip
# When a row was written, in seconds (since 1970 or since the start), milliseconds since 1970, or as a date.
TIMES = ("timestamp", "wall time", "walltime", "datetime", "date", "time", "runtime", "elapsed", "elapsed time", "elapsed s",
         "seconds", "time s", "relative time process", "relative time wall", "total time", "train time", "training time")  # fmt: skip
HOURS, MINUTES = ("hours", "time hours", "elapsed hours"), ("minutes", "elapsed minutes")
# What each row took.
DURATIONS = ("epoch time", "epoch time s", "time per epoch", "step time", "step time s", "duration", "epoch seconds")
MILLISECONDS_FROM = 1e11  # of a number since 1970: as seconds that is the year 5138
CLOCK_FROM = 1e9  # seconds since 1970: a log of before September 2001 is none


@dataclass(frozen=True, eq=False)
class Column:
    """Points of one name, each of shape (num_points,), in the order of the log.

    Attributes:
        times: seconds, since 1970 or since some start; None where the log does not tell them.
        unit: `epoch` or `step`.
        num_rows: rows or records that could have had a value.
    """

    name: str
    steps: Array
    values: Array
    times: Array | None
    unit: str
    num_rows: int


@dataclass(frozen=True)
class Log:
    """Columns that may be asked for, and what reads one; `notes` say what could not be read."""

    names: tuple[str, ...]
    read: Callable[[str], Column]
    notes: tuple[str, ...] = ()


def words(name: str) -> str:
    """A column's name in lower case with blanks between its words; of W&B's charts without the run's name before it.

    >>> words("Accuracy/val"), words("worldly-sun-3 - val_acc"), words("_step")
    ('accuracy val', 'val acc', 'step')
    """
    return re.sub(r"[^a-z0-9]+", " ", name.rpartition(" - ")[2].lower()).strip()


def read_log(path: Path) -> Log:
    """A log that is a file or a folder, but no run directory. Raises FileFormatError; InputError for several runs of MLflow."""
    if path.is_dir() and (folder := _mlflow_metrics(path)) is not None:
        return _of_points(_mlflow_points(folder))
    if path.is_dir() or ".tfevents." in path.name:
        return _of_events(path)
    rows = _rows(path)
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if not name.endswith(("__MIN", "__MAX"))]  # of W&B's charts
    return Log(tuple(names), lambda name: _of_rows(rows, names, name, path))


# -- rows ---------------------------------------------------------------------------------------------------


def _of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], name: str, path: Path) -> Column:
    own = [(number, row) for number, row in enumerate(rows, 1) if row.get(name) not in (None, "")]
    values = _numbers((row[name] for _, row in own), name, path)
    steps_at, steps = None, np.array([float(number) for number, _ in own])
    for place in _named(names, STEPS):
        there = [row.get(place) for _, row in own]
        if None in there or "" in there:
            continue
        own_steps = _numbers(there, place, path)
        if steps_at is None or (np.diff(own_steps) > 0).all():  # the first, unless another rises as the first does not
            steps_at, steps = place, own_steps
        if (np.diff(steps) > 0).all():
            break
    unit = "step" if steps_at is not None and "epoch" not in words(steps_at) else "epoch"
    return Column(name, steps, values, _row_times(rows, names, [number - 1 for number, _ in own]), unit, len(rows))


def _numbers(given: Iterable[Any], name: str, path: Path) -> Array:
    try:
        return np.array([float(value) for value in given])
    except (TypeError, ValueError):
        raise FileFormatError(f"{path} has a {name} that is no number", HINT) from None


def _named(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Those of the names that are wanted, in the order of what is wanted."""
    by_words = {words(name): name for name in reversed(names)}
    return [by_words[one] for one in wanted if one in by_words]


def _row_times(rows: Sequence[Mapping[str, Any]], names: Sequence[str], own: Sequence[int]) -> Array | None:
    for wanted, length in ((TIMES, 1.0), (HOURS, 3600.0), (MINUTES, 60.0)):
        for name in _named(names, wanted):
            times = [_time(rows[number].get(name)) for number in own]
            if times and None not in times:
                found = length * np.array(times, dtype=float)
                if (np.diff(found) >= 0).all() and (length > 1 or np.ptp(found) > 0):
                    return found
    for name in _named(names, DURATIONS):
        took = [_time(row.get(name)) for row in rows]
        if any(took):
            return np.cumsum([one or 0.0 for one in took])[list(own)]
    return None


def _time(value: Any) -> float | None:
    """Seconds; None for what is no time."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            return None
    if not np.isfinite(number):
        return None
    return number / 1000 if number > MILLISECONDS_FROM else number


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """Of CSV (commas or tabs), JSON lines, or JSON: a list of objects, or lists by name as Keras keeps a history."""
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
        rows = _parsed(text.strip())
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {' '.join(str(error).split())[:200]}", HINT) from None
    if not rows or len(rows) > MOST_ROWS or not all(isinstance(row, dict) and row for row in rows):
        raise FileFormatError(f"{path} has {len(rows):,} rows that make no curve", HINT)
    return _by_key(rows, path)


def _parsed(text: str) -> list[Any]:
    if text.startswith(("{", "[")):
        try:
            data = json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return _of_object(data) if isinstance(data, dict) else list(data)
    first = text.partition("\n")[0]
    if re.fullmatch(r"\d{12,} \S+ \d+.*", first):  # one metric of an MLflow run
        return [dict(zip(("timestamp", "value", "step"), line.split(), strict=False)) for line in text.splitlines()]
    lines = csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in first else ",", strict=True)
    return [{name: value for name, value in line.items() if isinstance(name, str)} for line in lines]


def _of_object(data: dict[str, Any]) -> list[Any]:
    """Rows of trainer_state.json, of lists by name, of a pandas frame (values by row number), or the one row that it is."""
    if isinstance(history := data.get("log_history"), list):
        return history
    if data and all(isinstance(values, dict) for values in data.values()):
        data = {name: list(values.values()) for name, values in data.items()}
    lists = {name: values for name, values in data.items() if isinstance(values, list)}
    length = max(map(len, lists.values()), default=0)
    rows = [{name: values[i] for name, values in lists.items() if i < len(values)} for i in range(length)]
    return rows or [data]


def _by_key(rows: list[Mapping[str, Any]], path: Path) -> list[Mapping[str, Any]]:
    """MLflow writes metrics as rows of key, value, step and timestamp: the value goes into a column of the key's name."""
    named = {words(name): name for name in rows[0]}
    if not {"key", "value", "step"} <= named.keys():
        return rows
    if "run id" in named and len({row.get(named["run id"]) for row in rows}) > 1:
        raise InputError(f"{path} holds several runs", "export one run")
    return [{**row, str(row.get(named["key"])): row.get(named["value"])} for row in rows]


# -- folders ------------------------------------------------------------------------------------------------

Points = dict[str, dict[float, tuple[float, float]]]  # by name and step: value and time


def _of_points(points: Points, notes: Sequence[str] = ()) -> Log:
    def read(name: str) -> Column:
        by_step = dict(sorted(points[name].items()))
        values, times = np.array(list(by_step.values()), dtype=float).reshape(-1, 2).T
        is_told = len(times) > 0 and np.isfinite(times).all() and times.max() > 0
        return Column(name, np.array(list(by_step)), values, times if is_told else None, "step", len(by_step))

    return Log(tuple(points), read, tuple(notes))


def _of_events(path: Path) -> Log:
    """Scalars of TensorBoard: of one file, or of all files of a folder, the last value of each step."""
    from chronograd.fit.tensorboard_events import scalars  # an extra

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
            raise InputError(f"{path} holds {len(runs)} runs of MLflow: {shown}", f"name one, such as {runs[0]}")
        if runs:
            return runs[0] / "metrics"
    return None


def _mlflow_points(folder: Path) -> Points:
    """A file for each metric, a line for each value: milliseconds since 1970, value, step."""
    points: Points = {}
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        lines = [line.split() for line in files.read_bytes(file).decode(errors="replace").splitlines() if line.strip()]
        try:
            told = [(float(line[0]) / 1000, float(line[1]), float((*line, 0.0)[2])) for line in lines]
        except (ValueError, IndexError):
            raise FileFormatError(f"{file} is no metric of MLflow", "its lines are time, value, step") from None
        is_numbered = len({step for _, _, step in told}) > 1
        points[file.relative_to(folder).as_posix()] = {
            step if is_numbered else float(number): (value, time) for number, (time, value, step) in enumerate(told, 1)
        }
    if not points:
        raise FileFormatError(f"{folder} holds no metric of MLflow", "name another run")
    return points
