"""The training needed for a target: epochs from the user, from a learning curve or from a published recipe; else unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chronograd import known
from chronograd.errors import InputError
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve, read_curve
from chronograd.forecast.schedule import schedule_of
from chronograd.job import Job
from chronograd.known import KnownResult
from chronograd.large.tokens import TrainingTokens
from chronograd.plan.goal import SEED_SIGMA, SamplesToTarget
from chronograd.record import Z80
from chronograd.rundir import RunDir, is_run_dir
from chronograd.units import percent
from chronograd.words import how_many

Scale = tuple[float, float, float] | None
UNKNOWN = (math.nan, math.nan, math.nan)
# Probability that the target is reached if a forecast has no upper bound, so that even its 90th percentile never reaches it.
REACHED_WITHOUT_BOUND = 0.9
# Deviation of the samples of a published recipe: its epochs are fixed, but the last batch of each may be dropped or padded.
RECIPE_SIGMA = 0.01
# Judged: improvement still possible over the best published result, of one network and of all networks on a data set.
NETWORK_MARGIN, DATA_MARGIN = 0.03, 0.01
MAX_NEIGHBOURS = MAX_OTHERS = 3


@dataclass(frozen=True)
class Unknown:
    """A target whose number of epochs is unknown.

    Attributes:
        reason: a sentence.
        samples: samples in an epoch.
        batch: the job's batch.
        neighbours: results of networks of the same family on the data set.
    """

    reason: str
    samples: int
    batch: int
    target: float | None = None
    neighbours: Sequence[KnownResult] = ()


@dataclass(frozen=True)
class OutOfReach:
    """A target far above every known result; `reason` is a sentence with the source."""

    target: float
    reason: str


Effort = SamplesToTarget | Unknown | OutOfReach


def effort_of(
    job: Job,
    samples: int,
    *,
    target: float | None = None,
    epochs: float | None = None,
    curve: Path | None = None,
    noise: Scale = None,
    network: str | None = None,
    has_epochs: bool = True,
) -> Effort:
    """Return the effort from stated epochs, else a learning curve, else a published recipe, else the job's epochs without a
    promise.

    Args:
        samples: training samples in an epoch.
        target: accuracy to reach, instead of the job's.
        epochs: epochs to the target at the job's batch.
        noise: gradient noise scale, with its 80 % interval.
        network: catalogue name of the network, instead of the job's name.
        has_epochs: whether the job's epochs have a basis; see `ask.Asked.has_epochs`.

    Raises: InputError if the number of samples is unknown, and for a curve without a target.
    """
    if not samples:
        raise InputError("the number of training samples is unknown", "set data.samples")
    target = target or job.training.target_accuracy
    if network is not None:
        job = job.model_copy(update={"network": job.network.model_copy(update={"name": network})})
    if epochs is not None:
        return replace(of_epochs(epochs, samples, job.training.batch, noise), target=target)
    if curve is not None:
        if target is None:
            raise InputError("a learning curve needs a target", "give --to, the accuracy to reach")
        return replace(of_curve(curve, job, samples, target, noise), target=target)
    if target is not None and (beyond := out_of_reach(job, target)) is not None:
        return beyond
    result = known.of_job(job)
    if result is not None:
        effort = of_result(result, samples, target, noise, other_recipe(job, target, result))
        return replace(effort, others=others_that_reach(job, target, result))
    if not has_epochs:
        return unknown(job, samples, target)
    return of_job(job, samples, target, noise)


def of_epochs(epochs: float, samples: int, batch: int, noise: Scale = None) -> SamplesToTarget:
    """Return the effort of `epochs` epochs of `samples` samples at global batch `batch`, as stated by the user."""
    return SamplesToTarget(
        epochs * samples,
        batch,
        SEED_SIGMA,
        1.0,
        noise or UNKNOWN,
        f"{how_many(epochs, 'epochs')} at batch {batch}, as you stated",
    )


def of_result(
    result: KnownResult, samples: int, target: float | None, noise: Scale = None, note: str = ""
) -> SamplesToTarget:
    """Return the effort of a published recipe: all its epochs, because its schedule ends only with the last one."""
    reaches = f"{100 * result.accuracy:.4g} %" + ("" if result.std is None else f" ± {100 * result.std:.2g}")
    return SamplesToTarget(
        result.epochs * samples,
        result.batch,
        RECIPE_SIGMA,
        1.0 if target is None else result.probability(target),
        noise or UNKNOWN,
        source=f"{how_many(result.epochs, 'epochs')} of the recipe {result.short}, which reaches {reaches} ({result.source})",
        largest_batch=None if noise else result.most_samples,
        note=note,
        target=target,
        beyond=result.beyond,
    )


def of_job(job: Job, samples: int, target: float | None, noise: Scale = None) -> SamplesToTarget:
    """Return the effort of all epochs of the job. Whether they reach the target is unknown."""
    epochs = job.training.epochs
    return SamplesToTarget(
        epochs * samples,
        job.training.batch,
        RECIPE_SIGMA if target is None else SEED_SIGMA,
        1.0 if target is None else None,
        noise or UNKNOWN,
        source=f"all {how_many(epochs, 'epochs')} of the job",
        note=other_recipe(job, target, None),
        target=target,
    )


def other_recipe(job: Job, target: float | None, result: KnownResult | None) -> str:
    """Return a sentence on a recipe that reaches the target if the job's recipe does not; else ""."""
    if target is None or (result is not None and result.probability(target) >= 0.5):
        return ""
    own = (
        ""
        if result is None
        else f"The recipe of this job reaches {100 * result.accuracy:.4g} % in published runs, not {100 * target:g} %. "
    )
    best = known.cheapest(job.network.name, job.data.name, target)
    if best is None:
        return own.strip()
    fields = " ".join(f"training.{key}={value}" for key, value in best.fields.items()).replace(", ", ",")
    return f"{own}A recipe that reaches {100 * best.accuracy:.4g} % is {best.name}: {fields}"


def others_that_reach(job: Job, target: float | None, result: KnownResult) -> tuple[KnownResult, ...]:
    """Return other recipes of the job's network that reach the target, least work first."""
    reaching = [] if target is None else known.that_reach(job.network.name, job.data.name, target)
    return tuple(one for one in reaching if one != result)[:MAX_OTHERS]


def out_of_reach(job: Job, target: float) -> OutOfReach | None:
    """Return `OutOfReach` if the target lies well above the best published result of the network or of the data set; else None."""
    name, data = job.network.name, job.data.name.partition(":")[0]
    limit = known.ceiling(data)
    if limit is not None and target > limit[0] + DATA_MARGIN:
        reason = f"the best published top-1 accuracy on {data} is {percent(limit[0])} ({limit[1]})"
        return OutOfReach(target, reason)
    results = known.known(name, data)
    if results and target > results[0].accuracy + NETWORK_MARGIN:
        best = results[0]
        reason = (
            f"the best published result of {name} on {data} without extra data is {percent(best.accuracy)} "
            f"({best.short}, {how_many(best.epochs, 'epochs')}; {best.source})"
        )
        return OutOfReach(target, reason)
    return None


def unknown(job: Job, samples: int, target: float | None) -> Unknown:
    """Return `Unknown` for a job without a known recipe, with known recipes of similar networks."""
    name, data = job.network.name, job.data.name.partition(":")[0]
    reach = "" if target is None else f" to reach {100 * target:g} %"
    reason = f"we know no published recipe for {name} on {data}, so the number of epochs{reach} is unknown"
    near = known.neighbours(name, data)
    near = [one for one in near if target is not None and one.probability(target) >= 0.5] or near
    first: dict[str, KnownResult] = {}
    for one in near:
        first.setdefault(one.networks[0], one)
    return Unknown(reason, samples, job.training.batch, target, tuple(first.values())[:MAX_NEIGHBOURS])


def of_curve(path: Path, job: Job, samples: int, target: float, noise: Scale = None) -> SamplesToTarget:
    """Return the effort from a run or a log of accuracies by epoch: the epoch that reached the target, or its forecast.

    A run has its own batch, and its noise scale if it measured one. A log has the job's batch.

    Raises: InputError for a curve by step, or one whose forecast never reaches the target.
    """
    curve = read_curve(path, "accuracy")
    batch = job.training.batch
    if is_run_dir(path):
        run = RunDir.open(path)
        batch = run.job().training.batch
        noise = noise or _measured_noise(run)
    if curve.unit != "epoch":
        raise InputError(
            f"{path} has accuracies by {curve.unit}, but a plan counts epochs", _hint_of_counter(curve.unit, ("epoch",))
        )
    if curve.schedule.kind is None and not curve.schedule.planned:
        curve = replace(curve, schedule=schedule_of(job))
    step, sigma, share, source = _reached(curve, target, "lower --target-accuracy, or change the recipe")
    return SamplesToTarget(step * samples, batch, sigma, share, noise or UNKNOWN, source)


def tokens_of_curve(path: Path, loss: float, step_tokens: int, tokens_per_epoch: float | None) -> TrainingTokens:
    """Return the tokens to a loss from a log of it: those until it reached the loss, or until its forecast does.

    Args:
        step_tokens: of a step of the logged training.
    Raises: InputError for a log by epoch without `tokens_per_epoch`, for one without steps and epochs, or one whose forecast never
        reaches the loss.
    """
    curve = read_curve(path, "loss")
    if curve.unit not in ("step", "epoch"):
        raise InputError(
            f"{path} has losses by {curve.unit}, and the tokens of a {curve.unit} are unknown",
            _hint_of_counter(curve.unit, ("step", "epoch")),
        )
    unit_tokens = step_tokens if curve.unit == "step" else tokens_per_epoch
    if unit_tokens is None:
        raise InputError(f"{path} has losses by epoch", "add --tokens-per-epoch, such as --tokens-per-epoch 1B")
    step, sigma, share, source = _reached(curve, loss, "give a higher --target-loss, or train a larger model")
    note = f"Each {curve.unit} of {curve.name} is taken to have {unit_tokens:,.0f} tokens"
    return TrainingTokens(step * unit_tokens, sigma, share, source, (note,))


def _hint_of_counter(unit: str, counters: tuple[str, ...]) -> str:
    """Return the hint for a log whose unit is none of the counters that the plan can use."""
    columns = " or ".join(counters)
    return (
        f"name a log by {columns}" if unit != "row" else f"add a column {columns} to it: its rows have no such number"
    )


def _reached(curve: LearningCurve, target: float, hint: str) -> tuple[float, float, float, str]:
    """Return the step or epoch at which a curve reaches a target, the deviation of its logarithm, the probability that it does,
    and its source in words. Raises InputError with the hint if no forecast does.
    """
    reached = forecast(curve, target=target).reached
    assert reached is not None
    if reached.seen is not None:
        return reached.seen, SEED_SIGMA, 1.0, f"{curve.name} reached it at {curve.unit} {reached.seen:g}"
    if reached.step is None:
        scale, unit = (100, " %") if curve.metric == "accuracy" else (1, "")
        now = scale * curve.shown(curve.values[-1])
        raise InputError(
            f"{curve.name} is not forecast to reach {scale * target:g}{unit}; it is at {now:.2f}{unit}", hint
        )
    low, high = reached.low, reached.high
    ratios = [reached.step / low if low else 1.0, high / reached.step if high else 1.0]
    sigma = float(np.hypot(SEED_SIGMA, math.log(max(ratios)) / Z80))
    source = f"{curve.name} is forecast to reach it at {curve.unit} {reached.step:.4g}"
    return reached.step, sigma, 1.0 if high else REACHED_WITHOUT_BOUND, source


def _measured_noise(run: RunDir) -> Scale:
    """Return the gradient noise scale that a run measured, with its bounds."""
    if not (run.path / "record.json").exists():
        return None
    noise_scale = run.record().quantities.get("gradient_noise_scale")
    if noise_scale is None or not noise_scale.value or noise_scale.value < 0:
        return None
    low, high = (noise_scale.value if bound is None else bound for bound in (noise_scale.low, noise_scale.high))
    return max(low, 0.0), noise_scale.value, high
