"""Learning curves from a run, or from any log that `chronograd.forecast.logs` can read.

A curve is a loss, the error 1 - accuracy, or the distance of a return from a high one, by epochs or steps. A loss below 0 is the
distance from a lower one. Lower is better, so one model serves all. In logs the first column or tag with a usual name is used
(`epoch`, `step`; `loss`, `train_loss`, `accuracy`, ...); others can be named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.forecast.curves import Array
from chronograd.forecast.learning_rates import schedule_of_drops, schedule_of_rates
from chronograd.forecast.log_words import (
    NO_SPLIT,
    Metric,
    are_of_images,
    is_rate,
    is_score,
    metric_of,
    split_rank,
    without_split,
    words,
)
from chronograd.forecast.logs import HINT, Log, LogColumn, read_log
from chronograd.forecast.schedule import Schedule, schedule_of
from chronograd.rundir import RunDir, is_run_dir
from chronograd.rundir.listing import one_run
from chronograd.rundir.steps import Epoch
from chronograd.units import seconds
from chronograd.words import how_many

__all__ = ["Metric", "is_score", "metric_of"]  # used with curves
# Usual names in lower case, in search order; `matching` then accepts any name with such words.
NAMES: dict[Metric, tuple[str, ...]] = {
    "loss": ("loss", "train_loss", "training_loss", "loss/train", "train/loss", "test_loss", "val_loss", "y"),
    "accuracy": (
        "accuracy",
        "acc",
        "test_accuracy",
        "val_accuracy",
        "val_acc",
        "accuracy/test",
        "top1",
        "train_accuracy",
    ),
    "return": ("return", "mean_return", "ep_rew_mean", "episode_reward_mean"),
}
_WHOLE = {"loss", "total loss", "avg loss", "lm loss", "loss step", "loss epoch", "y"}
DROPPED = {"change", "changed", "reduce", "reduced", "reducing"}  # words of a rate that is printed when it drops
LEAST_STEP = 1e-9  # of an epoch or step; sums of squares of much smaller ones are 0
# Column of a language model on real text: the loss on its test split.
BITS_PER_BYTE = "bits_per_byte"


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Values by steps or epochs, both of shape (num_points,), with increasing steps above 0.

    Attributes:
        values: losses, or distances below `top`, depending on `metric`.
        unit: `epoch` or `step`.
        schedule: of the learning rate, in that unit, as far as the job, the log or the user gives it; `schedule_told` describes
            it.
        notes: points of the source that were left out, and why, in words.
        times: when each point was written, in seconds since 1970 or since some start; None if unknown.
        column: the name of the values in their source. scale: their divisor, 100 for percentages.
        bottom: 0 for losses; if they go below 0, the smallest so far minus their range, because no such loss is known to be the
            smallest. top: 1 for accuracies; for returns the best so far plus their range, because no return is known to be the best.
        may_fall: whether the rate of an unknown schedule without an end may fall; otherwise it is assumed to stay.
        is_of_images: whether the source shows that the run trains an image classifier, or something else; None if it does not
            show it.
    """

    name: str
    steps: Array
    values: Array
    metric: Metric
    unit: str
    schedule: Schedule = field(default_factory=Schedule)
    notes: tuple[str, ...] = ()
    times: Array | None = None
    column: str = ""
    schedule_told: str = ""
    scale: float = 1.0
    top: float = 1.0
    bottom: float = 0.0
    may_fall: bool = False
    is_of_images: bool | None = None

    def shown(self, values: Any) -> Any:
        """Return losses from distances above `bottom`, and accuracies or returns from distances below `top`."""
        return values + self.bottom if self.metric == "loss" else self.top - values

    def fitted(self, shown: Any) -> Any:
        """Return the values that `shown` shows: its reverse."""
        return shown - self.bottom if self.metric == "loss" else self.top - shown

    def places(self, steps: Array) -> Array:
        """Return the scale on which the curve is fitted: the sum of the learning rates for a loss whose rate falls evenly."""
        sums_rates = self.metric == "loss" and self.schedule.kind in ("annealed", "wsd")
        return self.schedule.at_full_rate(steps) if sums_rates else steps

    def as_known_in(self, early: LearningCurve) -> LearningCurve:
        """Return the curve as its first part shows it: its schedule, its scale and its notes, without those of later points.

        The later values remain, for the score of a forecast.
        """
        later = len(early.steps)
        shown = self.shown(self.values[later:]) * self.scale / early.scale
        values = np.concatenate([early.values, early.fitted(shown)])
        times = early.times if early.times is None else np.append(early.times, np.full(len(values) - later, np.nan))
        return replace(early, steps=self.steps, values=values, times=times)

    def first(self, count: int) -> LearningCurve:
        """Return the curve with its first `count` points."""
        times = None if self.times is None else self.times[:count]
        return replace(self, steps=self.steps[:count], values=self.values[:count], times=times)

    def since_last_drop(self, least: int = 3) -> tuple[float, LearningCurve]:
        """Return the step of the last drop of the rate, and the points after it with steps counted from it; 0 and all points if
        the rate never fell.

        A drop with fewer than `least` points after it does not count yet.
        """
        started = 0.0
        for drop in self.schedule.drops:
            if int((self.steps > drop).sum()) >= least:
                started = drop
        kept = self.steps > started
        times = None if self.times is None else self.times[kept]
        return started, replace(self, steps=self.steps[kept] - started, values=self.values[kept], times=times)


def read_curve(
    path: Path, metric: Metric = "loss", column: str | None = None, run: str | None = None, fraction: float = 1.0
) -> LearningCurve:
    """Read a learning curve.

    Args:
        column: name of the column or tag of the values, instead of the usual names of `metric`.
        run: name of one of several runs in a file.
        fraction: share of the points that will be fitted; schedule and scale are read from them alone.
    Raises: FileFormatError that names the problem; NotFoundError for a missing column; InputError for a run without such
    points, and
        for several runs.
    """
    path = one_run(path)
    if is_run(path):
        return _of_run(RunDir.open(path), metric, fraction)
    log = read_log(path, run)
    if column is None:
        name = matching(log.names, metric)
        if name is None:
            shown = ", ".join(log.names[:12])
            raise FileFormatError(
                f"{path} has columns {shown}, none of them {NAMES[metric][0]}",
                f"{HINT}; `fit loss --column NAME` reads any column",
            )
    else:
        name = named_column(log.names, column)
    return curve_of_log(log, name, metric, path, fraction)


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory or its folder of TensorBoard events, and not a log."""
    return path.is_dir() and is_run_dir(path) and not path.match("tensorboard")


def matching(names: Sequence[str], metric: Metric, is_held_out: bool = False) -> str | None:
    """Return the column of a metric: one of the usual names, or the first name with such words; None without one.

    Args:
        is_held_out: prefer values of a validation or test split, then values without a split.

    >>> matching(["accuracy", "val_accuracy"], "accuracy"), matching(["accuracy", "val_accuracy"], "accuracy", True)
    ('accuracy', 'val_accuracy')
    """
    return next(iter(all_matching(names, metric, is_held_out)), None)


def all_matching(names: Sequence[str], metric: Metric, is_held_out: bool = False) -> list[str]:
    """Return all columns of a metric, the first one as in `matching`."""
    by_lower = {name.lower(): name for name in reversed(names)}
    usual = [by_lower[name] for name in NAMES[metric] if name in by_lower]
    fitting = list(dict.fromkeys([*usual, *(name for name in names if metric_of(name) == metric)]))
    if usual and not is_held_out:
        return fitting
    order = (0, 1, 2, 3) if is_held_out or metric == "accuracy" else (2, 3, 0, 1)
    return sorted(fitting, key=lambda name: (_rank(name), order.index(split_rank(name))))


def _rank(name: str) -> int:
    """Return a sort key: accuracies before other scores, a total loss before its parts, and the best value so far last.

    >>> [_rank(name) for name in ("val/accuracy", "train/total_loss", "loss_cls", "mIoU", "best_acc")]
    [0, 0, 1, 1, 2]
    """
    if "best" in words(name).split():
        return 2
    if metric_of(name) == "loss":
        return 0 if without_split(name) in _WHOLE else 1
    return 1 if is_score(name) else 0


def named_column(names: Sequence[str], column: str) -> str:
    """Return the column that the user names, in any case and with any separators. Raises NotFoundError.

    Its group may be missing if only one column, or only one of held-out data, has the rest of its name.

    >>> named_column(["train/top1", "eval/top1", "rollout/ep_rew_mean"], "top1")
    'eval/top1'
    """
    for same in (str.lower, words):
        for name in names:
            if same(name) == same(column):
                return name
    in_groups = [name for name in names if "/" in name and words(name.rpartition("/")[2]) == words(column)]
    for candidates in (in_groups, [name for name in in_groups if split_rank(name) < NO_SPLIT]):
        if len(candidates) == 1:
            return candidates[0]
    raise NotFoundError("column", column, names)


def curve_of_log(log: Log, name: str, metric: Metric, path: Path, fraction: float = 1.0) -> LearningCurve:
    """Return the curve of a column, with the times of its points and the schedule from the log's learning rate.

    Args:
        fraction: share of the points that will be fitted; schedule and scale are those of a log that ends there.
    """
    curve, own = _curve_of_column(log, name, metric, path), log.read(name)
    count = int(fraction * len(curve.steps))
    if not 0 < count < len(curve.steps):
        return curve
    last = int(np.flatnonzero(np.isfinite(own.values))[count - 1])
    return curve.as_known_in(_curve_of_column(log.cut(own, last), name, metric, path, curve.unit))


def _curve_of_column(log: Log, name: str, metric: Metric, path: Path, unit: str | None = None) -> LearningCurve:
    own = log.read(name, unit)
    notes = (*log.notes, *own.notes, *_without(own.num_rows - len(own.steps), own.num_rows, "row", name))
    steps, note = _counted(own)
    curve = _curve(path.name, steps, own.values, metric, own.unit, notes=(*notes, *note), times=own.times, column=name)
    curve = replace(curve, is_of_images=are_of_images(log.names))
    rates = next(filter(is_rate, log.names), None)
    if rates is None:
        return curve
    try:
        return _with_rates(curve, log.read(rates, curve.unit))
    except FileFormatError as error:  # the results are read without it
        return replace(curve, notes=(*curve.notes, f"the learning rate is not read: {error.message}"))


def _with_rates(curve: LearningCurve, rates: LogColumn) -> LearningCurve:
    steps, _ = _counted(rates)
    if rates.unit != curve.unit or not len(steps) or not (np.diff(steps) > 0).all():
        return curve
    is_of_drops = bool(DROPPED & set(words(rates.name).split())) and bool((np.diff(rates.values) < 0).all())
    rate_schedule = (
        schedule_of_drops(steps, curve.unit) if is_of_drops else schedule_of_rates(steps, rates.values, curve.unit)
    )
    return replace(
        curve, schedule=rate_schedule.schedule, schedule_told=f"{rate_schedule.text}, from column {rates.name}"
    )


def _counted(own: LogColumn) -> tuple[Array, tuple[str, ...]]:
    """Return steps above 0: epoch 0 becomes the first, and a point at step 0, before training, moves to just before the next."""
    steps = own.steps
    if own.counts_from_0:
        return steps + 1, ("the log numbers epochs from 0; here the first is epoch 1",)
    if len(steps) and steps[0] == 0:
        first = min(1.0, steps[1] / 2) if len(steps) > 1 else 1.0
        steps = np.concatenate([[first], steps[1:]])
    return steps, ()


def _without(count: int, of: int, what: str, name: str) -> tuple[str, ...]:
    """Return a note if rows, epochs or steps of a source have no value."""
    if not count:
        return ()
    return (f"{count:,} of {of:,} {what}s {'has' if count == 1 else 'have'} no {name} and {_are(count)} left out",)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _curve(
    name: str,
    steps: Array,
    values: Array,
    metric: Metric,
    unit: str,
    *,
    notes: Sequence[str] = (),
    times: Array | None = None,
    **others: Any,
) -> LearningCurve:
    """Return the curve, with accuracies as errors and percentages as shares."""
    if not np.isfinite(steps).all() or not (np.diff(steps) > 0).all():
        raise FileFormatError(f"{name}: steps do not increase from point to point", "sort them and remove duplicates")
    if len(steps) and steps[0] <= 0:
        raise FileFormatError(f"{name}: {unit} {steps[0]:g} is below 0", "count from 0 or 1")
    if len(steps) and steps[-1] < LEAST_STEP:
        raise FileFormatError(f"{name}: its last {unit} is {steps[-1]:g}, which counts nothing", "count from 0 or 1")
    known = np.isfinite(values)  # a run that diverged ends without finite values
    if lost := int((~known).sum()):
        first = f"{unit} {steps[~known][0]:g}" if lost == 1 else f"the first at {unit} {steps[~known][0]:g}"
        what = (
            f"{lost:,} of {how_many(len(values), 'points')} {_are(lost)} left out: the {metric} is not a finite number"
        )
        notes = (*notes, f"{what} ({first})")
    steps, values, times = steps[known], values[known], None if times is None else times[known]
    scale = 100.0 if metric == "accuracy" and len(values) and values.max() > 1 else 1.0
    top = float(values.max() + np.ptp(values)) if metric == "return" and len(values) else 1.0
    bottom = 0.0
    if metric == "return":
        values = top - values
    if metric == "loss" and len(values) and values.min() < 0:
        bottom = float(values.min() - np.ptp(values))
        values = values - bottom
    if metric == "accuracy":
        values = 1 - values / scale
        if len(values) and values.min() < 0:
            raise FileFormatError(f"{name}: accuracies reach {scale * (1 - values.min()):g}", "give shares, or percent")
    others |= {"scale": scale, "top": top, "bottom": bottom}
    return LearningCurve(name, steps, values, metric, unit, notes=tuple(notes), times=times, **others)


def _of_run(run: RunDir, metric: Metric, fraction: float) -> LearningCurve:
    """Return the curve by epoch; the loss by step if there are too few epochs for a curve. The loss of a language model on real
    text is that of its test split, in bits per byte.

    Times beyond the `fraction` to fit are not used, so that a later pause does not move them.
    """
    log = run.read_steps(min(run.ranks(), default=0))
    ends = log.of(Epoch)
    name = "train_loss" if metric == "loss" else "test_accuracy"
    if metric == "loss" and any(end.bits_per_byte is not None for end in ends):
        name = BITS_PER_BYTE
    points = [
        (end.epoch, value, end.time, end.attempt, end.seconds)
        for end in ends
        if (value := getattr(end, name)) is not None
    ]
    count, unit = len(ends), "epoch"
    if len(points) < 3 and name == "train_loss":
        points = [
            (line.step, line.loss, line.time, line.attempt, math.nan if line.seconds is None else line.seconds)
            for line in log.steps
            if line.loss is not None and np.isfinite(line.loss)
        ]
        count, unit = len(log.steps), "step"
    if not points:
        raise InputError(f"{run.path} has no {metric} yet", "wait for its first epochs, or name another run")
    steps, values, times, attempts, clock = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    known = max(1, int(fraction * len(times)))
    times[:known], pauses = without_pauses(times[:known], attempts[:known], clock[:known])
    others: dict[str, Any] = {"column": name, "times": times if all(map(math.isfinite, times)) else None}
    if unit == "epoch" and (run.path / "job.yaml").exists():
        job = run.job()
        others |= {
            "schedule": schedule_of(job),
            "schedule_told": f"{job.training.schedule} until epoch {job.training.epochs}, from its job",
            "is_of_images": job.task == "classification",
        }
    notes = [
        *_without(count - len(points), count, unit, f"finite {metric}"),
        *pauses,
    ]  # a number that is not finite is stored as None
    return _curve(run.path.name, steps, values, metric, unit, notes=notes, **others)


def without_pauses(times: Array, attempts: Array, clock: Array) -> tuple[Array, list[str]]:
    """Return the times of points without the pauses between two attempts of a run, and a note. The last time stays.

    Args:
        clock: seconds of training until each point, without pauses.

    >>> without_pauses(np.array([10.0, 20, 3620]), np.array([1, 1, 2]), np.array([9.0, 18, 27]))[0].tolist()
    [3601.0, 3611.0, 3620.0]
    """
    took, trained = np.diff(times), np.maximum(np.diff(clock), 0.0)
    is_new = (np.diff(attempts) != 0) & (trained < took) & np.isfinite(trained)
    if not is_new.any():
        return times, []
    pause = seconds(float((took - trained)[is_new].sum()))
    took = np.where(is_new, trained, took)
    count = int(is_new.sum())
    note = f"the run resumed {'once' if count == 1 else f'{count} times'} after a pause: {pause} between its attempts is left out"
    return times[-1] - np.append(np.cumsum(took[::-1])[::-1], 0.0), [note]
