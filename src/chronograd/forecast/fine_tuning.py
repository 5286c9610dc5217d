"""Published curves of fine-tuning a large model: accuracy and time by method, and the steps to an accuracy.

Each run evaluates few questions at a time, so single accuracies scatter by 7 percentage points. The curve of a run is the closest one
that never falls, by least squares, through its accuracies and its final test accuracy, each weighted by its questions.
Intervals come from accuracies that are drawn again around the curve, from a binomial distribution with the number of questions.

The table has no run that trains all parameters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import isotonic_regression

from chronograd.forecast.curves import Array
from chronograd.record import INTERVAL

PATH = Path(__file__).with_name("fine_tuning.json")
SOURCE = "huggingface/peft, method_comparison/MetaMathQA/results, 5d602fdbff04 (July 2026)"
# The setting of every run of the table.
MODEL, DEVICE, TASK = "llama-3.2-3b", "l40s", "MetaMathQA, tested on GSM8K"
SEQUENCES = 4  # of a step, each of up to 768 tokens
VALIDATED, TESTED = 50, 1319  # questions of an evaluation, and of the final test
NUM_DRAWS = 200


@dataclass(frozen=True)
class AccuracyReached:
    """The step at which a run reaches an accuracy, with an 80 % interval, and the seconds of its steps until then.

    Attributes:
        probability: share of the drawn curves that reach it.
    """

    step: float
    seconds: float
    seconds_interval: tuple[float, float]
    probability: float


@dataclass(frozen=True, eq=False)
class FineTuningRun:
    """A published run.

    Attributes:
        name: method and setting. method: a word of the library.
        memory_bytes: reserved on the device, at most.
        test_accuracy: after all steps.
        steps, accuracies: evaluations during training. times: seconds of all steps until each, without evaluation.
    """

    name: str
    method: str
    trainable_params: int
    memory_bytes: int
    test_accuracy: float
    steps: Array
    accuracies: Array
    times: Array

    @functools.cached_property
    def curve(self) -> Array:
        """Return the expected accuracy at each of the steps."""
        return _curve(self.accuracies, self.test_accuracy)

    @functools.cached_property
    def _drawn(self) -> list[Array]:
        random = np.random.default_rng(0)
        return [
            _curve(random.binomial(VALIDATED, self.curve) / VALIDATED, random.binomial(TESTED, self.curve[-1]) / TESTED)
            for _ in range(NUM_DRAWS)
        ]

    def reaches(self, accuracy: float) -> AccuracyReached | None:
        """Return the first evaluation at which the curve has an accuracy; None if it never does."""
        first = _first(self.curve, accuracy)
        if first is None:
            return None
        drawn = [at for at in (_first(curve, accuracy) for curve in self._drawn) if at is not None]
        low, high = np.quantile(self.times[[*drawn, first]], INTERVAL)
        seconds = float(self.times[first])
        bounds = (min(float(low), seconds), max(float(high), seconds))
        return AccuracyReached(float(self.steps[first]), seconds, bounds, len(drawn) / NUM_DRAWS)

    def after(self, seconds: float) -> float:
        """Return the expected accuracy at the last evaluation within a time of steps; 0 before the first one."""
        done = int(np.searchsorted(self.times, seconds, side="right"))
        return float(self.curve[done - 1]) if done else 0.0


@functools.cache
def published_runs() -> Sequence[FineTuningRun]:
    """Return the runs of the packaged table."""
    data = json.loads(PATH.read_bytes())
    steps = np.array(data["steps"], float)
    return tuple(
        FineTuningRun(
            one["name"],
            one["method"],
            one["trainable_params"],
            one["memory_bytes"],
            one["test_accuracy"],
            steps,
            np.array(one["accuracies"]),
            np.cumsum(one["seconds"]),
        )
        for one in data["runs"]
    )


def _first(curve: Array, accuracy: float) -> int | None:
    reached = np.flatnonzero(curve >= accuracy - 1e-9)
    return int(reached[0]) if len(reached) else None


def _curve(accuracies: Array, tested: float) -> Array:
    """Return the curve through evaluations and a final test: the last point has the questions of both."""
    weights = np.full(len(accuracies), float(VALIDATED))
    weights[-1] += TESTED
    last = (VALIDATED * accuracies[-1] + TESTED * tested) / weights[-1]
    return never_falling([*accuracies[:-1], last], weights)


def never_falling(values: Sequence[float] | Array, weights: Sequence[float] | Array) -> Array:
    """Return the sequence that never falls and has the least weighted squared distance from some values.

    >>> never_falling([1, 3, 2, 4], [1, 1, 1, 1]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    return np.asarray(isotonic_regression(values, weights=weights).x)
