"""How published training runs converged under schedules of the learning rate: what a new run of that kind may expect.

`published_curves.json` beside this file is made by `python -m benchmarks.convergence --write`.
Source: entries of DAWNBench (stanford-futuredata/dawn-bench-entries), self-reported; their schedules are read from the curves.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.fit.curves import TINY, Array
from chronograd.fit.schedule import Schedule

FILE = Path(__file__).with_name("published_curves.json")


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
class Published:
    """All of them, and how far off forecasts from the curve alone were where the rate was constant.

    Attributes:
        ratios: by group of runs, true over forecast epoch of convergence, as `convergence.from_curve` has it.
    """

    runs: tuple[PublishedRun, ...]
    ratios: Mapping[str, tuple[float, ...]]

    def without(self, group: str) -> Published:
        """Leaves out a team or a group, to see how well its runs are forecast from the others."""
        ratios = {name: values for name, values in self.ratios.items() if name != group}
        return replace(self, runs=tuple(run for run in self.runs if run.team != group), ratios=ratios)

    def alike(self, schedule: Schedule) -> tuple[list[PublishedRun], Array]:
        """The runs of that kind, all where it is not known, and their weights."""
        found = [run for run in self.runs if schedule.kind in (None, run.schedule.kind)]
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
def published() -> Published:
    data: dict[str, Any] = json.loads(FILE.read_text())
    runs = [
        PublishedRun(
            one["name"], one["team"], Schedule(one["kind"], tuple(one["drops"]), one["planned"]),
            np.array(one["steps"]), np.array(one["errors"]), one["converged"],
        )
        for one in data["runs"]
    ]  # fmt: skip
    return Published(tuple(runs), {name: tuple(values) for name, values in data["ratios"].items()})
