"""Speed models from a few short runs: coefficients that explain the steps per second of (servers, workers) pairs.

1/f (asynchronously w/f) is linear in the coefficients, so least squares with coefficients >= 0 fits it. Each row is divided by
its measured value, so that relative errors count equally. Intervals come from refits to the values of the model plus resampled
relative residuals.

Source: the form and NNLS of Peng et al., Optimus, EuroSys 2018; weights and intervals are ours.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from chronograd import files
from chronograd.errors import FileFormatError, InputError
from chronograd.predict.speed import NUM_COEFFICIENTS, Array, Mode, SpeedModel, terms, without_servers
from chronograd.record import INTERVAL, Record
from chronograd.rundir import RunDir
from chronograd.rundir.listing import runs
from chronograd.words import how_many

LARGEST = 1e12  # count, or steps per second
# A fit with as few points as coefficients has residuals of 0, but real step times always vary.
MIN_NOISE = 0.01


class SpeedPoint(NamedTuple):
    """One timed pair. `batch`: samples of a step, of all workers if they are synchronous; None if unknown."""

    workers: int
    servers: int
    steps_per_s: float
    is_asynchronous: bool | None = None
    batch: float | None = None


def read_points(path: Path) -> list[SpeedPoint]:
    """Read a CSV file with columns workers, servers and steps_per_s or step_time_s, and maybe batch; or runs.

    Raises: FileFormatError that names the line; InputError for a run without parameter servers or step time.
    """
    paths = [one for _, one in runs(path)]
    if len(paths) > 1:
        return [point for one in paths for point in read_points(one)]
    (path,) = paths
    if path.is_dir():
        return [_of_record(RunDir.open(path).record(), path)]
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
        lines = list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    return [_of_line(line, path, number) for number, line in enumerate(lines, 2)]


def _of_record(record: Record, path: Path) -> SpeedPoint:
    seconds, servers = record["step_time_s"].value, record.cluster.servers
    if not seconds or servers is None:
        raise InputError(f"{path} has no step time or no parameter servers", "measure with backend=parameter_server")
    return SpeedPoint(record.world, servers, 1 / seconds, True, record.global_batch)


def _of_line(line: Mapping[str | None, Any], path: Path, number: int) -> SpeedPoint:
    hint = "write columns workers, servers and steps_per_s or step_time_s"
    try:
        speed = float(line["steps_per_s"]) if line.get("steps_per_s") else 1 / float(line["step_time_s"])
        point = SpeedPoint(int(line["workers"]), int(line["servers"]), speed)
        batch = float(line["batch"]) if line.get("batch") else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise FileFormatError(
            f"{path}, line {number}: numbers of workers, servers or the speed are missing", hint
        ) from None
    numbers = (point.workers, point.servers, speed, 1.0 if batch is None else batch)
    if not all(1 / LARGEST < value < LARGEST for value in numbers):
        shown = str(dict(line))[:200]
        raise FileFormatError(f"{path}, line {number}: {shown} has a number that is not above 0, or too large", hint)
    return point._replace(batch=batch)


@dataclass(frozen=True, eq=False)
class FittedSpeed:
    """A speed model and its uncertainty.

    Attributes:
        draws: coefficients of bootstrap refits, shape (num_draws, num_coefficients).
        errors: fitted over measured steps per second, minus 1, of each point.
        left_out: the same for each point by the fit to all others; NaN if too few remain.
    """

    model: SpeedModel
    draws: Array
    errors: Array
    left_out: Array

    def interval(self, workers: Any, servers: Any) -> tuple[Array, Array]:
        """Return the bounds of the 80 % interval of steps per second."""
        needed_s = np.tensordot(self.draws, terms(self.model.mode, workers, servers, self.model.batch), axes=1)
        done = np.asarray(workers, dtype=float) if self.model.mode == "asynchronous" else 1.0
        with np.errstate(divide="ignore"):
            low, high = np.quantile(done / needed_s, INTERVAL, axis=0)
        return low, high

    def all_reduce(self) -> FittedSpeed:
        """Return the model of the same work and link without servers, including its draws."""
        return replace(self, model=self.model.all_reduce(), draws=without_servers(self.model.mode, self.draws))

    def coefficient_intervals(self) -> list[tuple[float, float]]:
        low, high = np.quantile(self.draws, INTERVAL, axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))


def fit_speed(
    workers: Sequence[float],
    servers: Sequence[float],
    steps_per_s: Sequence[float],
    batch: float | None = None,
    draws: int = 200,
    seed: int = 0,
) -> FittedSpeed:
    """Fit the speed model of timed pairs: synchronous with a global `batch`, else asynchronous.

    Raises: InputError for fewer points than coefficients, columns of different length, or numbers that are not above 0.

    >>> truth = SpeedModel("asynchronous", (2.83, 3.92, 0.0, 0.11))
    >>> w, p = [1, 2, 4, 8, 8, 2], [1, 1, 2, 2, 4, 4]
    >>> [round(a, 6) for a in fit_speed(w, p, truth.steps_per_s(w, p)).model.coefficients]
    [2.83, 3.92, 0.0, 0.11]
    """
    mode: Mode = "asynchronous" if batch is None else "synchronous"
    w, p, f = (np.asarray(column, dtype=float) for column in (workers, servers, steps_per_s))
    needed = NUM_COEFFICIENTS[mode]
    if not w.shape == p.shape == f.shape or w.ndim != 1 or len(w) < needed:
        raise InputError(
            f"{how_many(w.size, 'workers')}, {how_many(p.size, 'servers')}, {f.size} speeds",
            f"a {mode} model needs at least {how_many(needed, 'points')}",
        )
    if not all((np.isfinite(column) & (column > 0)).all() for column in (w, p, f)):
        raise InputError("a count or a speed is not above 0", "time each pair, and leave out those that did not run")
    a = _solve(mode, w, p, f, batch)
    model = SpeedModel(mode, tuple(a.tolist()), batch)
    fitted = np.asarray(model.steps_per_s(w, p))
    # Each nonzero coefficient uses one degree of freedom.
    spread = (len(f) / max(1, len(f) - int(np.count_nonzero(a)))) ** 0.5
    relative = np.log(f / fitted) * spread
    noise = np.maximum(np.abs(relative), MIN_NOISE) * np.where(relative < 0, -1, 1)
    refits = [_solve(mode, w, p, drawn, batch) for drawn in redrawn(fitted, noise, draws, seed)]
    return FittedSpeed(model, np.array(refits), fitted / f - 1, _left_out(mode, w, p, f, batch))


def redrawn(fitted: Array, noise: Array, draws: int, seed: int) -> Iterator[Array]:
    """Yield fitted values times exp of resampled log residuals with random sign, as other runs might measure them."""
    random = np.random.default_rng(seed)
    for _ in range(draws):
        yield fitted * np.exp(random.choice(noise, len(fitted)) * random.choice([-1, 1], len(fitted)))


def _left_out(mode: Mode, w: Array, p: Array, f: Array, batch: float | None) -> Array:
    found = np.full(len(f), np.nan)
    for i in range(len(f)):
        rest = np.arange(len(f)) != i
        if rest.sum() >= NUM_COEFFICIENTS[mode]:
            model = SpeedModel(mode, tuple(_solve(mode, w[rest], p[rest], f[rest], batch).tolist()), batch)
            found[i] = model.steps_per_s(w[i], p[i]) / f[i] - 1
    return found


def _solve(mode: Mode, w: Array, p: Array, f: Array, batch: float | None) -> Array:
    measured = w / f if mode == "asynchronous" else 1 / f
    a, _ = nnls((terms(mode, w, p, batch) / measured).T, np.ones(len(f)))
    return np.asarray(a)
