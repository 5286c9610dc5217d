"""How published training runs converged under schedules of the learning rate: what a new run of that kind may expect.

`published_curves.json`, `small_curves.json` and `small_losses.json` beside this file are made by `python -m benchmarks.convergence --write`.
Sources: entries of DAWNBench (stanford-futuredata/dawn-bench-entries), self-reported, whose schedules are read from the curves;
and runs of our own studies on 160 to 2,000 images (docs/studies), which gain little or nothing where the rate falls. Training
losses are those of such runs and of small networks on digits: they go on falling where test errors do not.
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
SMALL_SHARE = 0.25  # of the weight: with more, published runs are forecast too high by more than small ones too low


@dataclass(frozen=True, eq=False)
class PublishedRun:
    """One run whose rate fell.

    Attributes:
        team: who ran it; runs of one team are alike, and together count as the square root of their number.
        steps, errors: epochs, and 1 - accuracy on the test split, both of shape (num_points,).
        converged: the epoch by which it was, as `convergence.converged_at` says of the whole curve.
    """

    name: str
    team: str
    schedule: Schedule
    steps: Array
    errors: Array
    converged: float

    def level(self, progress: Array, schedule: Schedule) -> Array:
        """log(error) at such progress in that scale, of shape (...)."""
        mine = self.scale(schedule).progress(self.steps)
        return np.interp(progress, mine, np.log(np.maximum(self.errors, TINY)))

    def scale(self, schedule: Schedule) -> Schedule:
        """The scale on which this run is compared with one of `schedule`: the share of what was planned where that is all
        that is known of it."""
        if schedule.kind is None or schedule.kind != self.schedule.kind:
            return Schedule("annealed", (), self.schedule.planned)
        return self.schedule


@dataclass(frozen=True, eq=False)
class PublishedCurves:
    """All of them, and how far off forecasts from the curve alone were where the rate was constant.

    Attributes:
        ratios: by group of runs, true over forecast epoch of convergence, as `convergence.from_curve` has it.
        small: runs on small data, asked for levels only.
        losses: training losses, as `errors`, of runs on small data.
    """

    runs: tuple[PublishedRun, ...]
    ratios: Mapping[str, tuple[float, ...]]
    small: tuple[PublishedRun, ...] = ()
    losses: tuple[PublishedRun, ...] = ()

    def without(self, group: str) -> PublishedCurves:
        """Leaves out a team or a group, to see how well its runs are forecast from the others."""
        ratios = {name: values for name, values in self.ratios.items() if name != group}
        runs, small, losses = (
            tuple(run for run in some if run.team != group) for some in (self.runs, self.small, self.losses)
        )
        return replace(self, runs=runs, ratios=ratios, small=small, losses=losses)

    def alike(self, schedule: Schedule) -> tuple[list[PublishedRun], Array]:
        """The runs of that kind, all where it is not known, and their weights."""
        return _alike(self.runs, schedule)

    def of_losses(self) -> tuple[list[PublishedRun], Array]:
        """Runs whose training losses are known, whatever their schedule: a loss falls as long as it trains."""
        return _alike(self.losses, Schedule())

    def alike_with_small(self, schedule: Schedule) -> tuple[list[PublishedRun], Array]:
        """Those and runs on small data, which have SMALL_SHARE of the weight: nobody says how small a run's data are."""
        runs, weights = self.alike(schedule)
        small, own = _alike(self.small, schedule)
        if not small or not runs:
            return runs + small, np.concatenate([weights, own])
        return runs + small, np.concatenate(
            [weights / weights.sum() * (1 - SMALL_SHARE), own / own.sum() * SMALL_SHARE]
        )


def _alike(some: Sequence[PublishedRun], schedule: Schedule) -> tuple[list[PublishedRun], Array]:
    found = [run for run in some if schedule.kind in (None, run.schedule.kind)]
    counts = Counter(run.team for run in found)
    return found, np.array([counts[run.team] ** -0.5 for run in found])


def weighted_quantiles(values: Array, weights: Array, shares: tuple[float, ...]) -> list[float]:
    """The values below which such shares of the weight lie.

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
