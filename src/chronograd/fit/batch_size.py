"""Steps to a target by batch: from runs of one job at several batches, or from one run that measured its noise scale.

S(B) = S_min + E_min/B is linear in its unknowns, so least squares with coefficients >= 0 fits it. Each row is divided by its
measured value, so that relative errors count equally. Intervals come from refits to the values of the model plus resampled
relative residuals. At each batch, only the learning rate with the fewest steps counts, averaged over its seeds, because the
theory assumes a tuned rate for each batch. With a single rate for all batches, the fit mixes the effects of batch and rate.

Source: McCandlish et al., arXiv 1812.06162, section 2.3, for the form; weights and intervals are ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.fit.speed import redrawn
from chronograd.forecast.curves import crossing
from chronograd.forecast.learning_curves import Metric
from chronograd.predict.batch_size import BatchModel
from chronograd.record import INTERVAL, Quantity
from chronograd.rundir import RunDir, listing
from chronograd.rundir.steps import WorkLine

Array = np.ndarray
MIN_BATCHES = 3
# A fit with as few points as coefficients has residuals of 0, but another seed would take a different number of steps.
MIN_NOISE = 0.02
# Fields in which runs of one job may differ, in addition to cluster, communication and backend.
MAY_DIFFER = {
    *(
        "batch",
        "learning_rate",
        "epochs",
        "seed",
        "target_accuracy",
        "target_bits_per_byte",
        "accumulation",
        "noise_scale_every",
        "recipe",
    ),
    *("checkpoint_every", "evaluate_every", "scale_by_ranks", "activation_checkpointing", "compile", "channels_last"),
}


@dataclass(frozen=True)
class BatchRun:
    """Results of one run.

    Attributes:
        steps: steps to the target, interpolated between the ends of two epochs; all steps without a target; None if the run did
            not reach it.
        samples: training samples of an epoch.
        noise_scale: as measured by the run, or missing with a reason.
    """

    name: str
    batch: int
    learning_rate: float
    steps: float | None
    samples: int
    noise_scale: Quantity


def read_runs(paths: Sequence[Path], metric: Metric, target: float | None) -> list[BatchRun]:
    """Read runs of one job that differ in batch, learning rate, length or seed.

    Args:
        metric: of `target`: the training loss, or the test accuracy. Without a target it is the first job's target accuracy, if
            any.
    Raises: InputError for runs of different jobs, for several batches without a target, and for backend parameter_server, whose
        batch is one learner's; RunError and FileFormatError for a path that is not a finished run.
    """
    runs = [RunDir.open(path) for _, path in listing.runs(*paths)]
    every = [run.job() for run in runs]
    for run, job in zip(runs, every, strict=True):
        if job.backend == "parameter_server":
            raise InputError(f"{run.path} uses backend parameter_server, whose updates are asynchronous",
                             "name runs whose steps use a global batch")  # fmt: skip
        differing = _difference(every[0], job)
        if differing:
            raise InputError(f"{run.path} has another job than {runs[0].path}: {differing}",
                             "name runs that differ in batch, learning rate, epochs or seed")  # fmt: skip
    if target is None:
        metric, target = "accuracy", every[0].training.target_accuracy
    if target is None and len({job.training.batch for job in every}) > 1:
        raise InputError("to compare runs at several batches, a target is needed", "give --to, such as --to 0.9")
    return [_read(run, job, metric, target) for run, job in zip(runs, every, strict=True)]


def _difference(one: jobs.Job, other: jobs.Job) -> str:
    """Return the first field that differs and affects learning."""
    a, b = jobs.resolved(one), jobs.resolved(other)
    for section in ("task", "network", "data"):
        if a[section] != b[section]:
            return f"its {section} differs"
    names = [n for n in a["training"] if n not in MAY_DIFFER and a["training"][n] != b["training"][n]]
    return f"training.{names[0]} is {b['training'][names[0]]}, not {a['training'][names[0]]}" if names else ""


def _read(run: RunDir, job: jobs.Job, metric: Metric, target: float | None) -> BatchRun:
    record, batch = run.record(), job.training.batch
    curve, name = record.curves.get("training"), "train_loss" if metric == "loss" else "test_accuracy"
    columns = curve.columns if curve is not None else {}
    ends, values = (np.array(columns.get(column, []), dtype=float) for column in ("step", name))
    if not len(ends) or len(ends) != len(values) or not (np.diff(ends, prepend=0.0) > 0).all():
        raise InputError(f"{run.path} has no {metric} by epoch", "name runs of `chronograd train`")
    steps: float | None = float(ends[-1])
    if target is not None:
        # The mean loss of an epoch belongs to the middle of the epoch.
        middles = ends - np.diff(ends, prepend=0.0) / 2
        steps = _reached(middles, values, target, run) if metric == "loss" else _reached(ends, -values, -target, run)
    work = run.read_steps(0).last(WorkLine)
    return BatchRun(
        name=run.path.name,
        batch=batch,
        learning_rate=job.training.learning_rate,
        steps=steps,
        samples=max(1, work.dataset_samples) if work and work.dataset_samples is not None else int(ends[0]) * batch,
        noise_scale=record["gradient_noise_scale"],
    )


def _reached(steps: Array, values: Array, target: float, run: RunDir) -> float | None:
    """Return the step at which falling values reach the target, by linear interpolation; None if they do not reach it."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) and values[0] <= target:
        raise InputError(f"{run.path} reached the target within its first epoch, at an unknown step",
                         "choose a target that takes longer, or train with fewer data.samples")  # fmt: skip
    return crossing(steps, values, target)


def fewest_steps(runs: Iterable[BatchRun]) -> dict[int, tuple[float, float]]:
    """Return, by batch, the fewest steps of any learning rate, averaged over its runs, and that rate. A rate counts if all its
    runs reached the target.
    """
    by_rate: dict[tuple[int, float], list[float | None]] = defaultdict(list)
    for run in runs:
        by_rate[run.batch, run.learning_rate].append(run.steps)
    found: dict[int, tuple[float, float]] = {}
    for (batch, rate), steps in sorted(by_rate.items()):
        reached = [s for s in steps if s is not None]
        if len(reached) == len(steps):
            found[batch] = min(found.get(batch, (np.inf, 0.0)), (float(np.mean(reached)), rate))
    return found


@dataclass(frozen=True, eq=False)
class FittedBatches:
    """S(B) and its uncertainty.

    Attributes:
        draws: S_min and E_min of refits, shape (num_draws, 2). From a measured noise scale: those at the ends of its interval.
        errors: fitted over given steps, minus 1, of each batch.
    """

    model: BatchModel
    draws: Array
    errors: Array

    def steps_interval(self, batch: Any) -> tuple[Array, Array]:
        """Return the bounds of the 80 % interval of steps to the target."""
        drawn = self.draws[:, :1] + self.draws[:, 1:] / np.atleast_1d(np.asarray(batch, dtype=float))
        return self._bounds(drawn)

    def noise_scale_interval(self) -> tuple[float, float]:
        """Return the interval of B_noise in samples; the upper end is infinite if no batch was large enough to show it."""
        least, samples = self.draws.T
        with np.errstate(divide="ignore"):
            low, high = self._bounds(np.where(least > 0, samples / np.where(least > 0, least, 1), np.inf))
        return float(low), float(high)

    def min_steps_interval(self) -> tuple[float, float]:
        low, high = self._bounds(self.draws[:, 0])
        return float(low), float(high)

    def _bounds(self, drawn: Array) -> tuple[Array, Array]:
        low, high = np.quantile(drawn, INTERVAL if len(drawn) > 2 else (0, 1), axis=0, method="nearest")
        return low, high


def fit_batches(batches: Sequence[float], steps: Sequence[float], draws: int = 500, seed: int = 0) -> FittedBatches:
    """Fit S(B) to the steps of each batch to one target.

    Raises: InputError for fewer than three batches, or numbers that are not above 0.

    >>> found = fit_batches([16, 64, 256, 1024], BatchModel(100, 12800).steps([16, 64, 256, 1024])).model
    >>> round(found.min_steps, 6), round(found.noise_scale, 6)
    (100.0, 128.0)
    """
    b, s = np.asarray(batches, dtype=float), np.asarray(steps, dtype=float)
    if len(set(b.tolist())) < MIN_BATCHES:
        raise InputError(
            f"{len(set(b.tolist()))} batches have steps to the target",
            f"give at least {MIN_BATCHES}, or one run with training.noise_scale_every",
        )
    if b.shape != s.shape or not all((np.isfinite(column) & (column > 0)).all() for column in (b, s)):
        raise InputError("a batch or a number of steps is not above 0", "leave out runs that did not reach the target")
    least, samples = _solve(b, s)
    model = BatchModel(least, samples)
    fitted = np.asarray(model.steps(b))
    # Two coefficients use two degrees of freedom.
    spread = (len(s) / max(1, len(s) - 2)) ** 0.5
    noise = np.maximum(np.abs(np.log(s / fitted)) * spread, MIN_NOISE)
    refits = [_solve(b, drawn) for drawn in redrawn(fitted, noise, draws, seed)]
    return FittedBatches(model, np.array(refits), fitted / s - 1)


def from_noise_scale(steps: float, batch: float, noise_scale: Quantity) -> FittedBatches:
    """Return S(B) through the steps of one run, with its measured noise scale. Raises InputError if it measured none."""
    value, low, high = noise_scale.value, noise_scale.low, noise_scale.high
    if value is None:
        raise InputError(f"the run has no noise scale: {noise_scale.reason}",
                         "train with training.noise_scale_every=10, or name runs at three or more batches")  # fmt: skip
    ends = [BatchModel.through(steps, batch, value if low is None else max(0.0, low))]
    ends.append(BatchModel(0, steps * batch) if high is None else BatchModel.through(steps, batch, high))
    draws = np.array([(end.min_steps, end.min_samples) for end in ends])
    return FittedBatches(BatchModel.through(steps, batch, value), draws, np.zeros(1))


def _solve(b: Array, s: Array) -> tuple[float, float]:
    found, _ = nnls(np.stack([np.ones_like(b), 1 / b], axis=1) / s[:, None], np.ones(len(s)))
    return float(found[0]), float(found[1])
