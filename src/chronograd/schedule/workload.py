"""Workloads: a CSV file with a line for each job, a folder of job files, or random draws from either.

    name,arrival,job,data,gpus,epochs,batch,deadline
    vision,0,resnet50,imagenet,8,90,256,30h
    small,10min,resnet20,cifar10,1,,,

A line without a job states the speed of a job with parameter servers: `coefficients` of Optimus' model, separated by spaces, and
`steps`. Or it states only the `duration` at the requested GPUs, as the job logs of clusters do (see `traces`).
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import door
from chronograd.errors import FileFormatError, InputError
from chronograd.predict.speed import NUM_COEFFICIENTS
from chronograd.schedule.log import MAX_JOBS, check_name
from chronograd.schedule.traces import read_log
from chronograd.units import parse_seconds
from chronograd.words import how_many

SUFFIXES = (".yaml", ".yml")
_TEXTS = ("name", "job", "data", "precision")
_WHOLE = ("gpus", "servers", "batch", "epochs")
_TIMES = ("arrival", "deadline", "duration")
# Products and quotients of such numbers are exact to 15 digits. 1e15 seconds are 30 million years.
_LEAST, _MOST = 1e-12, 1e15
_EXAMPLE = "write a first line such as name,arrival,job,data,gpus,epochs and then a line for each job"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


@dataclass(frozen=True)
class JobLine:
    """A job of a workload as its file states it.

    Attributes:
        arrival_s: after the start. job: the name of a network or a job file; "" with `coefficients`.
        gpus, servers: requested. epochs, target: how long it trains; by default as `plan` assumes.
        noise_scale: of its gradients, in samples; without it the job keeps its batch.
        coefficients, steps: of Optimus' speed model, five synchronous or four asynchronous ones.
        deadline_s: after the start. weight: of random draws.
        duration_s: at the requested size; instead of a job. batches: the epoch from which each later batch is used, and the batch.
    """

    name: str
    arrival_s: float = 0.0
    job: str = ""
    data: str | None = None
    precision: str | None = None
    batch: int | None = None
    gpus: int = 1
    servers: int = 1
    epochs: int | None = None
    target: float | None = None
    noise_scale: float | None = None
    deadline_s: float | None = None
    coefficients: tuple[float, ...] = ()
    steps: float | None = None
    weight: float = 1.0
    duration_s: float | None = None
    batches: tuple[tuple[int, int], ...] = ()


COLUMNS = {field.name.removesuffix("_s"): field.name for field in fields(JobLine)}


def read_workload(path: Path, say: Callable[[str], object] = lambda line: None) -> list[JobLine]:
    """Return the jobs of a CSV file, of a cluster's job log, or of a folder of job files, which all arrive at the start.

    Args:
        say: called with the number of jobs of a log that were left out.
    Raises: InputError without a job; FileFormatError that names the line.
    """
    if path.is_dir():
        lines = [JobLine(file.stem, job=str(file)) for file in sorted(path.iterdir()) if file.suffix in SUFFIXES]
        for line in lines:
            _check_name(line.name, line.job)
    elif (log := read_log(path)) is not None:
        lines = [JobLine(job.name, job.arrival_s, gpus=job.gpus, duration_s=job.duration_s) for job in log.jobs]
        for line in lines:
            _check_name(line.name, str(path))
        if log.left_out:
            say(
                f"{path}: {how_many(log.left_out, 'jobs')} without a GPU or a time left out of {how_many(len(lines), 'others')}."
            )
    else:
        lines = _read_csv(path)
    if not lines:
        raise InputError(f"{path} has no job", "give a CSV file with columns job and arrival, or a folder of job files")
    return lines


def drawn(lines: Sequence[JobLine], count: int, gap_s: float, seed: int) -> list[JobLine]:
    """Return `count` random jobs from the lines, by weight, which arrive as a Poisson process.

    Args:
        gap_s: mean time between arrivals. A deadline counts from the arrival.
    """
    random = np.random.default_rng(seed)
    weights = np.array([line.weight for line in lines])
    chosen = random.choice(len(lines), count, p=weights / weights.sum())
    arrivals = np.cumsum(random.exponential(gap_s, count)) - gap_s
    found = []
    for number, (index, arrival) in enumerate(zip(chosen, np.maximum(arrivals, 0.0), strict=True), 1):
        line = lines[index]
        deadline = None if line.deadline_s is None else float(arrival) + line.deadline_s
        found.append(replace(line, name=f"{line.name}-{number}", arrival_s=float(arrival), deadline_s=deadline))
    return found


def _read_csv(path: Path) -> list[JobLine]:
    text = door.read_text(path, "a workload", most_lines=MAX_JOBS + 2, hint=_EXAMPLE)
    if text.lstrip().startswith(("{", "[")):
        raise FileFormatError(f"{path} is JSON, and a workload is CSV", _EXAMPLE)
    reader = csv.DictReader(io.StringIO(text, newline=None), strict=True)
    lines, places = list[JobLine](), dict[str, str]()
    try:
        _check_columns(list(reader.fieldnames or ()), path)
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            line = _line(row, place, path.parent)
            if line.name and line.name.casefold() in places:
                before = places[line.name.casefold()]
                raise FileFormatError(f"{before} and {reader.line_num}: two jobs have the name {line.name!r}", _NAMES)
            if line.name:
                places[line.name.casefold()] = place.replace(", line ", ", lines ")
            lines.append(line)
    except csv.Error as error:
        raise FileFormatError(f"cannot read {path}, line {reader.line_num}: {error}", _EXAMPLE) from None
    return _named(lines)


_NAMES = "give each job its own name, or leave the column out"


def _check_columns(columns: Sequence[str], path: Path) -> None:
    """Raise FileFormatError for a header that does not consist of known columns, each once."""
    unknown = [name for name in columns if name not in COLUMNS]
    for separator, words in _SEPARATORS.items():
        if unknown and separator in unknown[0]:
            raise FileFormatError(f"{path} separates its columns with {words}", "separate them with commas")
    if unknown:
        raise FileFormatError(f"{path} has an unknown column {unknown[0]!r}", f"known: {', '.join(COLUMNS)}")
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise FileFormatError(f"{path} has the column {twice[0]!r} twice", "leave one of them out")


def _named(lines: Sequence[JobLine]) -> list[JobLine]:
    """Return lines in which each has a name: a line without one gets that of its job, and a number if it is not the first."""
    names, named = {line.name.casefold() for line in lines}, list[JobLine]()
    numbers = Counter[str]()
    for line in lines:
        name = stem = line.name or _stem(line.job)
        while not line.name and name.casefold() in names:
            numbers[stem] += 1
            name = f"{stem}-{numbers[stem] + 1}"
        names.add(name.casefold())
        named.append(replace(line, name=name))
    return named


def _stem(job: str) -> str:
    """Return the name of a job without one.

    >>> _stem("jobs/wide.yaml"), _stem("torchvision:resnet18"), _stem("")
    ('wide', 'torchvision:resnet18', 'job')
    """
    return Path(job).stem or "job"


def _check_name(name: str, place: str) -> None:
    try:
        check_name(name)
    except InputError as error:
        raise FileFormatError(f"{place}: {error.message}", error.hint) from None


def _line(row: dict[str, Any], place: str, folder: Path) -> JobLine:
    values: dict[str, Any] = {}
    for column, text in row.items():
        if column is None or text is None:
            hint = "write one field per column" + "; separate coefficients with spaces" * ("coefficients" in row)
            raise FileFormatError(f"{place} has another number of fields than the header", hint)
        if text.strip():
            values[COLUMNS[column]] = _value(column, text.strip(), place)
    if (
        not values.get("job")
        and not (values.get("coefficients") and values.get("steps"))
        and not values.get("duration_s")
    ):
        raise FileFormatError(
            f"{place} has no job", "give a network or job file, coefficients and steps, or a duration"
        )
    if values.get("batches") and not (values.get("job") and values.get("epochs")):
        raise FileFormatError(f"{place} has batches without a job or its epochs", "fill the columns job and epochs")
    job = values.get("job", "")
    if job.endswith(SUFFIXES):
        values["job"] = str(folder / job)
    _check_name(values.get("name") or _stem(job), place)
    return JobLine(**{"name": "", **values})


def _value(column: str, text: str, place: str) -> Any:
    """Return the value of a field. Raises FileFormatError."""
    if column in _TEXTS:
        return text
    if column == "coefficients":
        return _coefficients(text, place)
    if column == "batches":
        return _batches(text, place)
    try:
        number = _seconds(text) if column in _TIMES else float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if text.endswith("%"):
        number /= 100
    is_right = _LEAST <= number <= _MOST or (column == "arrival" and number == 0)
    if not is_right or (column in _WHOLE and number % 1):
        kind = "a whole number above 0" if column in _WHOLE else "a number above 0"
        hint = "write a time such as 90, 90s, 10min or 2h" if column in _TIMES else f"write {kind}"
        raise FileFormatError(f"{place}: {column} is {text!r}", hint)
    return int(number) if column in _WHOLE else number


def _seconds(text: str) -> float:
    """Return a time, also 0, in seconds; a number without a unit is in seconds. Raises ValueError.

    >>> [_seconds(text) for text in ("0s", "90", "1.5 h")]
    [0.0, 90.0, 5400.0]
    """
    amount = re.fullmatch(r"([0-9.]+)\s*([a-zA-Z]+)", text)
    return float(amount[1]) * parse_seconds(f"1{amount[2]}") if amount else float(text)


def _batches(text: str, place: str) -> tuple[tuple[int, int], ...]:
    """Return epochs and batches, as in `30:256 60:512`. Raises FileFormatError."""
    matches = [re.fullmatch(r"(\d{1,9}):(\d{1,9})", word) for word in text.split()]
    pairs = tuple((int(match[1]), int(match[2])) for match in matches if match)
    epochs = [epoch for epoch, _ in pairs]
    if len(pairs) < len(matches) or epochs != sorted(set(epochs)) or min(min(pair) for pair in pairs) < 1:
        raise FileFormatError(
            f"{place}: batches are {text!r}", "write the epoch from which each batch is used, in order: 30:256 60:512"
        )
    return pairs


def _coefficients(text: str, place: str) -> tuple[float, ...]:
    """Return the coefficients of a speed model. Raises FileFormatError."""
    try:
        numbers = tuple(float(word) for word in text.split())
    except ValueError:
        numbers = ()
    counts = NUM_COEFFICIENTS["synchronous"], NUM_COEFFICIENTS["asynchronous"]
    if len(numbers) not in counts or not all(number == 0 or _LEAST <= number <= _MOST for number in numbers):
        raise FileFormatError(
            f"{place}: coefficients are {text!r}",
            f"write {counts[0]} numbers of synchronous steps, or {counts[1]} of asynchronous ones, none below 0, separated by "
            "spaces: 1.02 2.78 4.92 0 0.02",
        )
    return numbers
