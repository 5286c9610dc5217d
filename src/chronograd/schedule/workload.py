"""Workloads: a CSV file with a line for each job, a folder of job files, or random draws from either.

    name,arrival,job,data,gpus,epochs,batch,deadline
    vision,0,resnet50,imagenet,8,90,256,30h
    small,10min,resnet20,cifar10,1,,,

A line without a job states the speed of a job with parameter servers: `coefficients` of Optimus' model and `steps`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import files
from chronograd.errors import FileFormatError, InputError
from chronograd.units import parse_seconds

SUFFIXES = (".yaml", ".yml")
_WHOLE = ("gpus", "servers", "batch", "epochs")
_TIMES = ("arrival", "deadline")


@dataclass(frozen=True)
class JobLine:
    """A job of a workload as its file states it.

    Attributes:
        arrival_s: after the start. job: the name of a network or a job file; "" with `coefficients`.
        gpus, servers: requested. epochs, target: how long it trains; by default as `plan` assumes.
        noise_scale: of its gradients, in samples; without it the job keeps its batch.
        coefficients, steps: of Optimus' speed model, five synchronous or four asynchronous ones.
        deadline_s: after the start. weight: of random draws.
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


COLUMNS = {field.name.removesuffix("_s"): field.name for field in fields(JobLine)}


def read_workload(path: Path) -> list[JobLine]:
    """Return the jobs of a CSV file, or of a folder of job files, which all arrive at the start.

    Raises: InputError without a job; FileFormatError that names the line.
    """
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES)
        lines = [JobLine(one.stem, job=str(one)) for one in found]
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
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text), strict=True)
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    unknown = [name for name in reader.fieldnames or () if name not in COLUMNS]
    if unknown:
        raise FileFormatError(f"{path} has an unknown column {unknown[0]!r}", f"known: {', '.join(COLUMNS)}")
    return [_line(row, f"{path}, line {number}", path.parent, number) for number, row in enumerate(rows, 2)]


def _line(row: dict[str, Any], place: str, folder: Path, number: int) -> JobLine:
    values: dict[str, Any] = {}
    for column, text in row.items():
        if column is None or text is None:
            raise FileFormatError(f"{place} has another number of fields than the header", "write one field per column")
        if text.strip():
            values[COLUMNS[column]] = _value(column, text.strip(), place)
    if not values.get("job") and not (values.get("coefficients") and values.get("steps")):
        raise FileFormatError(f"{place} has no job", "give a network or job file, or coefficients and steps")
    job = values.get("job", "")
    if job.endswith(SUFFIXES):
        values["job"] = str(folder / job)
    return JobLine(**{"name": Path(job).stem or f"job-{number - 1}", **values})


def _value(column: str, text: str, place: str) -> Any:
    """Return the value of a field. Raises FileFormatError."""
    if column in ("name", "job", "data", "precision"):
        return text
    try:
        if column == "coefficients":
            return tuple(float(part) for part in text.split())
        number = parse_seconds(text) if column in _TIMES and text[-1].isalpha() else float(text.removesuffix("%"))
        if text.endswith("%"):
            number /= 100
        if not 0 <= number < math.inf or (number == 0 and column != "arrival") or (column in _WHOLE and number % 1):
            raise ValueError(text)
    except ValueError:
        raise FileFormatError(
            f"{place}: {column} is {text!r}", "write a number above 0; times as 90s, 10min or 2h"
        ) from None
    return int(number) if column in _WHOLE else number
