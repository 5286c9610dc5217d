"""Steps to a target by batch: from runs of one job at several batches, or from one run that measured its noise scale.

S(B) = S_min + E_min/B is linear in what is looked for, so it is found by least squares with nothing below 0; each row is
divided by what was measured, so that relative errors count alike. Intervals are from refits to the model's own values plus
relative residuals drawn anew. Of runs at one batch those of the learning rate that took the fewest steps count, in the mean over
seeds, as the theory has the rate chosen for each batch: with a single rate for all, what is found is the batch and the rate.

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
# A residual of a fit through as many points as coefficients is 0, and yet another seed takes other steps.
MIN_NOISE = 0.02
# What runs of one job may differ in, beside cluster, communication and backend.
MAY_DIFFER = {
    *("batch", "learning_rate", "epochs", "seed", "target_accuracy", "accumulation", "noise_scale_every", "recipe"),
    *("checkpoint_every", "evaluate_every", "scale_by_ranks", "activation_checkpointing", "compile", "channels_last"),
}


@dataclass(frozen=True)
class BatchRun:
    """What one run says.

    Attributes:
        steps: steps until the target was reached, between the ends of two epochs; all of them without a target; None where it was
            not reached.
        samples: training samples of an epoch.
        noise_scale: as the run measured it, or missing with a reason.
    """

    name: str
    batch: int
    learning_rate: float
    steps: float | None
    samples: int
    noise_scale: Quantity


def read_runs(paths: Sequence[Path], metric: Metric, target: float | None) -> list[BatchRun]:
    """Runs of one job that differ in batch, learning rate, length or seed.

    Args:
        metric: of `target`: the training loss, or the test accuracy. Without a target it is the first job's target accuracy, if any.
    Raises: InputError for runs of different jobs, for several batches without a target, and for backend parameter_server, whose
        batch is one learner's; RunError and FileFormatError for what is no finished run.
    """
    runs = [RunDir.open(path) for _, path in listing.runs(*paths)]
    every = [run.job() for run in runs]
    for run, job in zip(runs, every, strict=True):
        if job.backend == "parameter_server":
            raise InputError(f"{run.path} is of backend parameter_server, whose updates do not wait for one another",
                             "name runs whose steps are of a global batch")  # fmt: skip
        differing = _difference(every[0], job)
        if differing:
            raise InputError(f"{run.path} is of another job than {runs[0].path}: {differing}",
                             "name runs that differ in batch, learning rate, epochs or seed")  # fmt: skip
    if target is None:
        metric, target = "accuracy", every[0].training.target_accuracy
    if target is None and len({job.training.batch for job in every}) > 1:
        raise InputError(
            "runs at several batches, and no target to compare their steps by", "give --to, such as --to 0.9"
        )
    return [_read(run, job, metric, target) for run, job in zip(runs, every, strict=True)]


def _difference(one: jobs.Job, other: jobs.Job) -> str:
    """The first field that matters to learning and differs."""
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
        # The mean loss of an epoch is that of its middle.
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
    """Where values that fall reach the target, on the line between two of them; None if they do not."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) and values[0] <= target:
        raise InputError(f"{run.path} reached the target within its first epoch, and nothing says when",
                         "choose a target that takes longer, or train with fewer data.samples")  # fmt: skip
    return crossing(steps, values, target)


def fewest_steps(runs: Iterable[BatchRun]) -> dict[int, tuple[float, float]]:
    """By batch: fewest steps over learning rates, each in the mean over its runs, and that rate. A rate counts if all its runs
    reached the target.
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
    """S(B) and how sure it is.

    Attributes:
        draws: S_min and E_min of refits, shape (num_draws, 2). From a measured noise scale: those at the ends of its interval.
        errors: fitted over given steps, less 1, of each batch.
    """

    model: BatchModel
    draws: Array
    errors: Array

    def steps_interval(self, batch: Any) -> tuple[Array, Array]:
        """Bounds of the 80 % interval of steps to the target."""
        drawn = self.draws[:, :1] + self.draws[:, 1:] / np.atleast_1d(np.asarray(batch, dtype=float))
        return self._bounds(drawn)

    def noise_scale_interval(self) -> tuple[float, float]:
        """Of B_noise, in samples; the upper end is infinite where no batch was large enough to tell."""
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
    """S(B) of the steps that each batch took to one target.

    Raises: InputError for fewer than three batches, or numbers that are not above 0.

    >>> found = fit_batches([16, 64, 256, 1024], BatchModel(100, 12800).steps([16, 64, 256, 1024])).model
    >>> round(found.min_steps, 6), round(found.noise_scale, 6)
    (100.0, 128.0)
    """
    b, s = np.asarray(batches, dtype=float), np.asarray(steps, dtype=float)
    if len(set(b.tolist())) < MIN_BATCHES:
        raise InputError(
            f"{len(set(b.tolist()))} batches with steps to the target",
            f"{MIN_BATCHES} are needed, or one run with training.noise_scale_every",
        )
    if b.shape != s.shape or not all((np.isfinite(column) & (column > 0)).all() for column in (b, s)):
        raise InputError("a batch or a number of steps is not above 0", "leave out runs that did not reach the target")
    least, samples = _solve(b, s)
    model = BatchModel(least, samples)
    fitted = np.asarray(model.steps(b))
    # Two coefficients take two degrees of freedom away.
    spread = (len(s) / max(1, len(s) - 2)) ** 0.5
    noise = np.maximum(np.abs(np.log(s / fitted)) * spread, MIN_NOISE)
    refits = [_solve(b, drawn) for drawn in redrawn(fitted, noise, draws, seed)]
    return FittedBatches(model, np.array(refits), fitted / s - 1)


def from_noise_scale(steps: float, batch: float, noise_scale: Quantity) -> FittedBatches:
    """S(B) through one run's steps, with the noise scale that it measured. Raises InputError if it measured none."""
    value, low, high = noise_scale.value, noise_scale.low, noise_scale.high
    if value is None:
        raise InputError(f"no noise scale was measured: {noise_scale.reason}",
                         "train with training.noise_scale_every=10, or name runs at three batches or more")  # fmt: skip
    ends = [BatchModel.through(steps, batch, value if low is None else max(0.0, low))]
    ends.append(BatchModel(0, steps * batch) if high is None else BatchModel.through(steps, batch, high))
    draws = np.array([(end.min_steps, end.min_samples) for end in ends])
    return FittedBatches(BatchModel.through(steps, batch, value), draws, np.zeros(1))


def _solve(b: Array, s: Array) -> tuple[float, float]:
    found, _ = nnls(np.stack([np.ones_like(b), 1 / b], axis=1) / s[:, None], np.ones(len(s)))
    return float(found[0]), float(found[1])
