"""What a target takes, for planning: from epochs that are known, from a learning curve, or from the job's own schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from chronograd import known
from chronograd.errors import InputError
from chronograd.fit.convergence import from_schedule
from chronograd.fit.forecast import forecast
from chronograd.fit.learning_curves import read_curve
from chronograd.fit.published_curves import published
from chronograd.fit.schedule import schedule_of
from chronograd.job import Job
from chronograd.known import KnownResult
from chronograd.plan.goal import SEED_SIGMA, SamplesToTarget
from chronograd.record import Z80
from chronograd.rundir import RunDir, is_run_dir

Scale = tuple[float, float, float] | None
UNKNOWN = (math.nan, math.nan, math.nan)
# Where a forecast has no upper bound, the target may never come: not even its 90th percentile does.
REACHED_WITHOUT_BOUND = 0.9
# Of the samples of a published recipe: its epochs are fixed, and the last batch of each is dropped or padded.
RECIPE_SIGMA = 0.01


def effort_of(
    job: Job,
    samples: int,
    *,
    target: float | None = None,
    epochs: float | None = None,
    curve: Path | None = None,
    noise: Scale = None,
) -> SamplesToTarget:
    """From epochs that were told, else from a learning curve, else from the job's own epochs.

    Args:
        samples: training samples in an epoch. target: accuracy to be reached, instead of the job's.
        epochs: until the target, at the job's batch. noise: gradient noise scale, with its 80 % interval.
    Raises: InputError where samples are not known, and for a curve without a target.
    """
    if not samples:
        raise InputError("the number of training samples is not known", "set data.samples")
    target = target or job.training.target_accuracy
    if epochs is not None:
        return replace(of_epochs(epochs, samples, job.training.batch, noise), target=target)
    if curve is None:
        result = known.of_job(job)
        effort = of_job(job, samples, target, noise) if result is None or noise else of_result(result, samples, target)
        return replace(effort, note=unknown_recipe(job, target), target=target)
    if target is None:
        raise InputError("a curve tells nothing without a target", "give --target-accuracy, to tell when it is reached")
    return replace(of_curve(curve, job, samples, target, noise), target=target)


def of_epochs(epochs: float, samples: int, batch: int, noise: Scale = None) -> SamplesToTarget:
    """Of a number of epochs that was told, each of so many samples, at a global batch."""
    return SamplesToTarget(
        epochs * samples, batch, SEED_SIGMA, 1.0, noise or UNKNOWN, f"{epochs:g} epochs at batch {batch}, told"
    )


def of_result(result: KnownResult, samples: int, target: float | None) -> SamplesToTarget:
    """Of a published run of the job's recipe: all its epochs, as its schedule is not at its end before."""
    reaches = f"{100 * result.accuracy:.4g} %" + ("" if result.std is None else f" ± {100 * result.std:.2g}")
    source = f"{result.epochs} epochs, in which published runs of this recipe reach {reaches} ({result.source})"
    return SamplesToTarget(
        result.epochs * samples,
        result.batch,
        RECIPE_SIGMA,
        1.0 if target is None else result.probability(target),
        source=source,
        largest_batch=result.most_samples,
    )


def unknown_recipe(job: Job, target: float | None) -> str:
    """What a reader has to know of a target that no published run of the job's recipe is known to reach; else nothing.

    >>> from chronograd.job import from_dict
    >>> unknown_recipe(from_dict({"network": {"name": "resnet50"}, "data": {"name": "imagenet"}}), 0.75)[:60]
    'No published run known here reaches 75 % with schedule const'
    """
    if target is None:
        return ""
    result = known.of_job(job)
    if result is not None and result.probability(target) >= 0.5:
        return ""
    others = [one for one in known.known(job.network.name, job.data.name) if one.probability(target) >= 0.5]
    training = job.training
    how = f"schedule {training.schedule.replace('_', '-')} and {training.epochs} epochs"
    text = f"No published run known here reaches {100 * target:g} % with {how}; that this one does is assumed."
    if result is not None:
        text = (
            f"The recipe of this job reaches {100 * result.accuracy:.4g} % in published runs, not {100 * target:g} %."
        )
    if others:
        best = min(others, key=lambda one: one.epochs)
        fields = " ".join(f"training.{key}={value}" for key, value in best.fields.items()).replace(", ", ",")
        text += f" One that does ({100 * best.accuracy:.4g} %): {fields}"
    return text


def of_job(job: Job, samples: int, target: float | None, noise: Scale = None) -> SamplesToTarget:
    """Of the job's epochs: where its rate falls, the target comes when published runs of such a schedule converged; else at the
    end. That the recipe reaches the target at all is assumed."""
    schedule, batch = schedule_of(job), job.training.batch
    what = "convergence" if target is None else f"an accuracy of {100 * target:g} %"
    if schedule.kind == "constant" or target is None:
        source = f"all {job.training.epochs} epochs of the job; that they reach {what} is assumed"
        return SamplesToTarget(job.training.epochs * samples, batch, SEED_SIGMA, 1.0, noise or UNKNOWN, source)
    when = from_schedule(schedule, 0.0, published())
    sigma = float(np.hypot(SEED_SIGMA, math.log(when.high / when.low) / (2 * Z80)))
    source = (
        f"epoch {when.step:.3g} of {job.training.epochs}, when published runs of such a schedule converged; that it reaches "
        f"{what} is assumed"
    )
    return SamplesToTarget(when.step * samples, batch, sigma, 1.0, noise or UNKNOWN, source)


def of_curve(path: Path, job: Job, samples: int, target: float, noise: Scale = None) -> SamplesToTarget:
    """Of a run, or a log of accuracies by epoch at the job's batch: when the target was reached, or is forecast to be.

    A run tells its own batch, and its noise scale if it measured that.
    Raises: InputError for a curve by step, or one whose forecast never reaches the target.
    """
    curve = read_curve(path, "accuracy")
    batch = job.training.batch
    if is_run_dir(path):
        run = RunDir.open(path)
        batch = run.job().training.batch
        noise = noise or _measured_noise(run)
    if curve.unit != "epoch":
        raise InputError(f"{path} is by {curve.unit}, and a plan counts epochs", "give accuracies by epoch")
    if curve.schedule.kind is None and not curve.schedule.planned:
        curve = replace(curve, schedule=schedule_of(job))
    reached = forecast(curve, target=target).reached
    assert reached is not None
    if reached.seen is not None:
        source = f"{curve.name} reached it at epoch {reached.seen:g}"
        return SamplesToTarget(reached.seen * samples, batch, SEED_SIGMA, 1.0, noise or UNKNOWN, source)
    if reached.step is None:
        raise InputError(
            f"{curve.name} is not forecast to reach {100 * target:g} %; it is at {100 * (1 - curve.values[-1]):.2f} %",
            "lower --target-accuracy, or change the recipe",
        )
    low, high = reached.low, reached.high
    ratios = [reached.step / low if low else 1.0, high / reached.step if high else 1.0]
    sigma = float(np.hypot(SEED_SIGMA, math.log(max(ratios)) / Z80))
    share = 1.0 if high else REACHED_WITHOUT_BOUND
    source = f"{curve.name} is forecast to reach it at epoch {reached.step:.4g}"
    return SamplesToTarget(reached.step * samples, batch, sigma, share, noise or UNKNOWN, source)


def _measured_noise(run: RunDir) -> Scale:
    """The gradient noise scale that a run measured, with its bounds."""
    if not (run.path / "record.json").exists():
        return None
    found = run.record().quantities.get("gradient_noise_scale")
    if found is None or not found.value or found.value < 0:
        return None
    low, high = (found.value if bound is None else bound for bound in (found.low, found.high))
    return max(low, 0.0), found.value, high
