"""Where a run stands in the schedule of its learning rate, on a scale on which runs of different length are alike.

    multi_step   the number of drops passed, and the share of the way to the next or, after the last, to the planned end
    annealed     the share of the planned steps: cosine, one cycle, linear

A constant rate has no such scale: there a curve is forecast from its own points alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.forecast.curves import Array
from chronograd.job import Job

Kind = Literal["constant", "multi_step", "annealed"]
# Schedules by the names that job files use, and others that are alike.
NAMES: dict[str, Kind] = {
    "constant": "constant", "multi_step": "multi_step", "cosine": "annealed", "one_cycle": "annealed", "linear": "annealed",
    "annealed": "annealed",
}  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """The learning rate's course.

    Attributes:
        kind: None where nothing tells it.
        drops: of multi_step, the steps or epochs after which the rate falls at once, rising.
        planned: where training is to end; None if not known.

    >>> steps = Schedule("multi_step", (30.0, 60.0), 90.0)
    >>> steps.progress(np.array([15.0, 60.0, 75.0])).tolist(), steps.step(1.5)
    ([0.5, 2.0, 2.5], 45.0)
    """

    kind: Kind | None = None
    drops: tuple[float, ...] = ()
    planned: float | None = None

    def __post_init__(self) -> None:
        if self.drops and (
            self.kind != "multi_step" or list(self.drops) != sorted(set(self.drops)) or self.drops[0] <= 0
        ):
            raise InputError(
                f"drops of the rate at {self.drops} in a {self.kind} schedule", "give rising steps above 0"
            )
        if self.kind == "multi_step" and not self.drops:
            raise InputError("a multi_step schedule without a drop", "say where the rate falls, such as --drops 30,60")
        if self.kind == "annealed" and not self.planned:
            raise InputError("an annealed schedule without an end", "say where it ends, such as --planned 90")

    def progress(self, steps: Array) -> Array:
        """Of multi_step, of annealed, and where nothing but the planned end is known."""
        return np.interp(steps, *self._scale())

    def step(self, progress: float) -> float:
        """The inverse of `progress`."""
        steps, marks = self._scale()
        return float(np.interp(progress, marks, steps))

    def at_full_rate(self, steps: Array) -> Array:
        """The steps at the full rate that add up to the same sum of rates, if the rate falls evenly to 0 at the planned end.

        >>> Schedule("annealed", (), 100.0).at_full_rate(np.array([0.0, 50.0, 100.0])).tolist()
        [0.0, 37.5, 50.0]
        """
        if not self.planned or self.kind == "constant":
            return steps
        progress = np.minimum(steps / self.planned, 1.0)
        return np.asarray(self.planned * progress * (1 - progress / 2))

    def next_fall(self, step: float) -> float | None:
        """Where a rate falls next that trains on from a step: at the next drop; at once where it falls, or may fall, until a
        planned end that is still to come. None where it falls no more."""
        if self.kind == "multi_step":
            return next((drop for drop in self.drops if drop > step), None)
        return step if self.kind != "constant" and self.planned is not None and self.planned > step else None

    def _scale(self) -> tuple[Array, Array]:
        """Steps, and the progress at each."""
        if self.kind in ("annealed", None) and self.planned:
            return np.array([0.0, self.planned]), np.array([0.0, 1.0])
        starts = [0.0, *self.drops]
        end = max(self.planned or 0.0, 2 * starts[-1] - starts[-2])
        return np.array([*starts, end]), np.arange(len(starts) + 1.0)


def schedule_of(job: Job) -> Schedule:
    """Of a job, in epochs."""
    training = job.training
    planned = float(training.epochs)
    if training.schedule == "multi_step":
        return Schedule("multi_step", tuple(share * planned for share in training.milestones), planned)
    return Schedule("constant" if training.schedule == "constant" else "annealed", (), planned)
