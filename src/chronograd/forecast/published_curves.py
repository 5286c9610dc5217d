"""Published training runs and their convergence under schedules of the learning rate, for forecasts of similar new runs.

`python -m benchmarks.convergence --write` creates `published_curves.json`, `small_curves.json` and `small_losses.json` here.
One source are entries of DAWNBench (stanford-futuredata/dawn-bench-entries): self-reported, with schedules read from the
curves. The other are our own studies on 160 to 2,000 images (docs/studies), which gain little or nothing when the rate falls.
Training losses come from those studies and from small networks on digits. Unlike test errors, they continue to fall.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.forecast.curves import TINY, Array
from chronograd.forecast.schedule import Schedule

FILE = Path(__file__).with_name("published_curves.json")
SMALL_FILE = Path(__file__).with_name("small_curves.json")
LOSS_FILE = Path(__file__).with_name("small_losses.json")
# of the weight: with more, forecasts of published runs are too high by more than those of small runs are too low
SMALL_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class PublishedRun:
    """One run whose rate fell.

    Attributes:
        team: who ran it; runs of one team are alike, so their total weight is the square root of their number.
        steps, errors: epochs, and 1 - accuracy on the test split, both of shape (num_points,).
        converged: the epoch of convergence, from `convergence.converged_at` on the complete curve.
    """

    name: str
    team: str
    schedule: Schedule
    steps: Array
    errors: Array
    converged: float

    def level(self, progress: Array, schedule: Schedule) -> Array:
        """Return log(error) at the given progress on that scale, of shape (...)."""
        mine = self.scale(schedule).progress(self.steps)
        return np.interp(progress, mine, np.log(np.maximum(self.errors, TINY)))

    def scale(self, schedule: Schedule) -> Schedule:
        """Return the scale for comparing this run with one of `schedule`: the share of the planned steps if only the end is
        known.
        """
        if schedule.kind != self.schedule.kind:
            return Schedule("annealed", (), self.schedule.planned)
        return self.schedule


@dataclass(frozen=True, eq=False)
class PublishedCurves:
    """All known runs, and the errors of forecasts from the curve alone with a constant rate.

    Attributes:
        ratios: by group of runs, true epoch of convergence over its forecast by `convergence.from_curve`.
        small: runs on small data, used for levels only.
        losses: training losses, as `errors`, of runs on small data.
    """

    runs: tuple[PublishedRun, ...]
    ratios: Mapping[str, tuple[float, ...]]
    small: tuple[PublishedRun, ...] = ()
    losses: tuple[PublishedRun, ...] = ()

    def without(self, group: str) -> PublishedCurves:
        """Return the runs without one team or group, to test forecasts of its runs from the others."""
        ratios = {name: values for name, values in self.ratios.items() if name != group}
        runs, small, losses = (
            tuple(run for run in some if run.team != group) for some in (self.runs, self.small, self.losses)
        )
        return replace(self, runs=runs, ratios=ratios, small=small, losses=losses)

    def alike(self, schedule: Schedule) -> tuple[list[PublishedRun], Array]:
        """Return the runs with that kind of schedule (all runs if it is unknown), and their weights."""
        return _alike(self.runs, schedule)

    def of_losses(self) -> tuple[list[PublishedRun], Array]:
        """Return the runs with known training losses, for any schedule, because a loss falls throughout training."""
        return _alike(self.losses, Schedule())

    def alike_with_small(self, schedule: Schedule) -> tuple[list[PublishedRun], Array]:
        """Return those and the runs on small data, which get SMALL_SHARE of the weight because the data size of a new run is
        unknown.
        """
        runs, weights = self.alike(schedule)
        small, own = _alike(self.small, schedule)
        if not small or not runs:
            return runs + small, np.concatenate([weights, own])
        return runs + small, np.concatenate(
            [weights / weights.sum() * (1 - SMALL_SHARE), own / own.sum() * SMALL_SHARE]
        )


def _alike(some: Sequence[PublishedRun], schedule: Schedule) -> tuple[list[PublishedRun], Array]:
    found = [run for run in some if schedule.kind in (None, "wsd", run.schedule.kind)]
    counts = Counter(run.team for run in found)
    return found, np.array([counts[run.team] ** -0.5 for run in found])


def weighted_quantiles(values: Array, weights: Array, shares: tuple[float, ...]) -> list[float]:
    """Return the values below which these shares of the weight lie.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), (0.1, 0.5, 0.9))
    [1.0, 2.0, 3.0]
    """
    order = np.argsort(values)
    passed = np.cumsum(weights[order]) / weights.sum()
    return [float(values[order][min(int(np.searchsorted(passed, share)), len(order) - 1)]) for share in shares]


@functools.cache
def published() -> PublishedCurves:
    data: dict[str, Any] = json.loads(FILE.read_text())
    small, losses = (json.loads(file.read_text()) for file in (SMALL_FILE, LOSS_FILE))
    ratios = {name: tuple(values) for name, values in data["ratios"].items()}
    return PublishedCurves(_runs(data["runs"]), ratios, _runs(small["runs"]), _runs(losses["runs"]))


def _runs(data: Sequence[Mapping[str, Any]]) -> tuple[PublishedRun, ...]:
    return tuple(
        PublishedRun(
            one["name"], one["team"], Schedule(one["kind"], tuple(one["drops"]), one["planned"]),
            np.array(one["steps"]), np.array(one["errors"]), one["converged"],
        )
        for one in data
    )  # fmt: skip
