"""Progress of a run in its learning rate schedule, on a scale that is the same for runs of different length.

    multi_step   the number of drops so far, plus the share of the way to the next or, after the last, to the planned end
    annealed     the share of the planned steps: cosine, one cycle, linear
    wsd          the same; the rate stays at its peak, and falls at the end (warm-up, stable, decay)

A constant rate has no such scale, so its curve is forecast from its own points alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.curves import Array
from chronograd.job import WSD_STAYS, Job

Kind = Literal["constant", "multi_step", "annealed", "wsd"]
# Schedules by their names in job files, and similar ones.
NAMES: dict[str, Kind] = {
    "constant": "constant", "multi_step": "multi_step", "cosine": "annealed", "one_cycle": "annealed", "linear": "annealed",
    "annealed": "annealed", "wsd": "wsd",
}  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A learning rate schedule.

    Attributes:
        kind: None if unknown.
        drops: of multi_step, the steps or epochs after which the rate drops, in increasing order.
        planned: planned end of training; None if unknown.
        stays: of wsd, the step after which the rate falls; by default WSD_STAYS of the planned steps.

    >>> steps = Schedule("multi_step", (30.0, 60.0), 90.0)
    >>> steps.progress(np.array([15.0, 60.0, 75.0])).tolist(), steps.step(1.5)
    ([0.5, 2.0, 2.5], 45.0)
    """

    kind: Kind | None = None
    drops: tuple[float, ...] = ()
    planned: float | None = None
    stays: float | None = None

    def __post_init__(self) -> None:
        if self.drops and (
            self.kind != "multi_step" or list(self.drops) != sorted(set(self.drops)) or self.drops[0] <= 0
        ):
            raise InputError(
                f"drops of the rate at {self.drops} in a {self.kind} schedule", "give rising steps above 0"
            )
        if self.kind == "multi_step" and not self.drops:
            raise InputError(
                "a multi_step schedule without a drop", "give the drops of the rate, such as --drops 30,60"
            )
        if self.kind in ("annealed", "wsd") and not self.planned:
            raise InputError(f"{self.kind} without an end of the schedule", "give its end, such as --planned 90")
        if self.kind == "wsd" and not 0 < self.falls_from < (self.planned or 0):
            raise InputError(f"a rate that falls after {self.stays:g}", "give one --drops before the planned end")

    @property
    def falls_from(self) -> float:
        """Return the step after which the rate of wsd falls; 0 for other schedules."""
        return (self.stays or WSD_STAYS * (self.planned or 0.0)) if self.kind == "wsd" else 0.0

    def progress(self, steps: Array) -> Array:
        """Return the progress for multi_step, for annealed, and if only the planned end is known."""
        return np.interp(steps, *self._scale())

    def step(self, progress: float) -> float:
        """Return the step of a progress, the inverse of `progress`."""
        steps, marks = self._scale()
        return float(np.interp(progress, marks, steps))

    def rate(self, steps: Array) -> Array:
        """Return the rate over its peak, if it falls evenly to 0 at the planned end; 1 for other schedules than annealed and wsd.

        >>> Schedule("wsd", (), 100.0, 80.0).rate(np.array([50.0, 90.0])).tolist()
        [1.0, 0.5]
        """
        if self.kind not in ("annealed", "wsd") or not self.planned:
            return np.ones(len(steps))
        return np.clip((self.planned - steps) / (self.planned - self.falls_from), 0.0, 1.0)

    def at_full_rate(self, steps: Array) -> Array:
        """Return the steps at the full rate with the same sum of rates, if the rate falls evenly to 0 at the planned end. The
        rate of wsd stays at first.

        >>> Schedule("annealed", (), 100.0).at_full_rate(np.array([0.0, 50.0, 100.0])).tolist()
        [0.0, 37.5, 50.0]
        """
        if self.kind not in ("annealed", "wsd") or not self.planned:
            return steps
        length = self.planned - self.falls_from
        progress = np.clip((steps - self.falls_from) / length, 0.0, 1.0)
        return np.asarray(np.minimum(steps, self.falls_from) + length * progress * (1 - progress / 2))

    def next_fall(self, step: float) -> float | None:
        """Return the step at which the rate next falls if training continues from `step`; None if it falls no more.

        That is the next drop, or `step` itself if the rate falls, or may fall, until a planned end that is still ahead.
        """
        if self.kind == "multi_step":
            return next((drop for drop in self.drops if drop > step), None)
        step = max(step, self.falls_from)
        return step if self.kind != "constant" and self.planned is not None and self.planned > step else None

    def _scale(self) -> tuple[Array, Array]:
        """Return steps, and the progress at each."""
        if self.kind in ("annealed", "wsd", None) and self.planned:
            return np.array([0.0, self.planned]), np.array([0.0, 1.0])
        starts = [0.0, *self.drops]
        end = max(self.planned or 0.0, 2 * starts[-1] - starts[-2])
        return np.array([*starts, end]), np.arange(len(starts) + 1.0)


def schedule_of(job: Job) -> Schedule:
    """Return the schedule of a job, in epochs."""
    training = job.training
    planned = float(training.epochs)
    if training.schedule == "multi_step":
        return Schedule("multi_step", tuple(share * planned for share in training.milestones), planned)
    if training.schedule == "wsd":
        return Schedule("wsd", (), planned, planned * (training.milestones or (WSD_STAYS,))[0])
    return Schedule("constant" if training.schedule == "constant" else "annealed", (), planned)
