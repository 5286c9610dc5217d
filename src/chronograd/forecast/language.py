"""The curves of small language models on real text: bits per byte against the sum of the learning rates.

With S the sum of the rates so far, x = log(S / S now), and r the rate as a share of its peak:

    log(bits / bits now) = (c0 + c1 · slope + c2 · fallen + c3 · log(bits now)) · (1 - exp(-x)) + c4 · (r now - r)

`slope` is that of the later half of the run on logarithmic axes, and `fallen` is log(bits now / first bits). So the curve begins
as a power law, with an exponent between that of the run and that of other runs at this level. The exponent falls as the run goes
on, and a falling rate has an effect beyond that on the sum.

The coefficients come from the runs in `language_curves.json`, which `python -m benchmarks.language` trains. The interval is that of
the errors for texts which the coefficients do not know, because the text of a new run is unknown, too.

Source: Tissue et al. 2024, Scaling Law with Learning Rate Annealing, for the sum and the gain; the rest is ours.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.forecast.curves import TINY, Array
from chronograd.forecast.schedule import Schedule

FILE = Path(__file__).with_name("language_curves.json")
KINDS = ("constant", "annealed", "wsd")  # of the schedules of these runs
MIN_POINTS = 3
# Shares of a known run from which its rest is forecast.
ORIGINS = (0.25, 0.3334, 0.4, 0.5, 0.6, 0.6667, 0.75)
NUM_PATHS = 300


@dataclass(frozen=True, eq=False)
class LanguageRun:
    """Bits per byte by epoch of one run, both of shape (num_points,). `group`: its text and its tokens."""

    name: str
    group: str
    schedule: Schedule
    steps: Array
    bits: Array


@dataclass(frozen=True, eq=False)
class Rules:
    """The coefficients c0 … c4, and the errors of log(bits) / sqrt(x) without the text of the run, with the weight of each."""

    coefficients: Array
    errors: Array
    weights: Array
    num_runs: int


@dataclass(frozen=True, eq=False)
class LanguageCurve:
    """The forecast of one run from its points: steps and bits of shape (num_points,)."""

    schedule: Schedule
    steps: Array
    bits: Array
    rules: Rules

    def middle(self, steps: Array) -> Array:
        """Return the expected log(bits) at later steps."""
        ahead = features(self.schedule, self.steps, self.bits, steps) @ self.rules.coefficients
        return np.asarray(math.log(self.bits[-1]) + ahead)

    def paths(self, steps: Array) -> Array:
        """Return log(bits) of possible runs, each off by the error of a known run; shape (NUM_PATHS, num_steps)."""
        order = np.argsort(self.rules.errors)
        passed = np.cumsum(self.rules.weights[order]) / self.rules.weights.sum()
        shares = (np.arange(NUM_PATHS) + 0.5) / NUM_PATHS
        errors = np.interp(shares, passed, self.rules.errors[order])
        return np.asarray(self.middle(steps) + errors[:, None] * np.sqrt(_ahead(self.schedule, self.steps, steps)))


def features(schedule: Schedule, steps: Array, bits: Array, later: Array) -> Array:
    """Return the factors of c0 … c4 at later steps, (num_steps, 5), from the points of a run so far."""
    sums, logs = schedule.at_full_rate(steps), np.log(bits)
    half = slice(-max(2, len(steps) // 2), None)
    slope = float(np.polyfit(np.log(sums[half]), logs[half], 1)[0])
    bent = 1 - np.exp(-_ahead(schedule, steps, later))
    falls = schedule.rate(steps[-1:]) - schedule.rate(later)
    return np.column_stack([bent, slope * bent, (logs[-1] - logs[0]) * bent, logs[-1] * bent, falls])


def _ahead(schedule: Schedule, steps: Array, later: Array) -> Array:
    return np.maximum(0.0, np.log(schedule.at_full_rate(later) / schedule.at_full_rate(steps[-1:])))


def rules(runs: tuple[LanguageRun, ...]) -> Rules:
    """Return the coefficients that forecast the rest of these runs best from their first parts, and their errors by text."""
    errors, weights = [], []
    for group in {run.group for run in runs}:
        own, others = [one for one in runs if one.group == group], [one for one in runs if one.group != group]
        inputs, targets, weight, ahead = _points(own)
        errors.append((targets - inputs @ _fitted(others or own)) / np.sqrt(np.maximum(ahead, TINY)))
        weights.append(weight)
    return Rules(_fitted(runs), np.concatenate(errors), np.concatenate(weights), len(runs))


def _fitted(runs: Sequence[LanguageRun]) -> Array:
    inputs, targets, weight, _ = _points(runs)
    root = np.sqrt(weight)
    return np.asarray(np.linalg.lstsq(inputs * root[:, None], targets * root, rcond=None)[0])


def _points(runs: Sequence[LanguageRun]) -> tuple[Array, Array, Array, Array]:
    """Return features, log(bits / bits now), weights and x of all forecasts of these runs. Each run has the same weight."""
    parts = []
    for run in runs:
        counts = [int(share * len(run.steps)) for share in ORIGINS]
        found = [count for count in counts if MIN_POINTS <= count < len(run.steps)]
        weight = 1 / sum(len(run.steps) - count for count in found)
        for count in found:
            early, later = run.steps[:count], run.steps[count:]
            inputs = features(run.schedule, early, run.bits[:count], later)
            ahead = _ahead(run.schedule, early, later)
            parts.append((inputs, np.log(run.bits[count:] / run.bits[count - 1]), np.full(len(later), weight), ahead))
    inputs, targets, weights, ahead = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inputs, targets, weights, ahead


@functools.cache
def known_runs() -> tuple[LanguageRun, ...]:
    """Return the runs that are part of the package."""
    data: dict[str, Any] = json.loads(FILE.read_text())
    return tuple(
        LanguageRun(one["name"], one["text"], Schedule(one["kind"], (), float(len(one["bits"]))),
                    np.arange(1.0, len(one["bits"]) + 1), np.array(one["bits"]))
        for one in data["runs"]
    )  # fmt: skip


@functools.cache
def known_rules() -> Rules:
    return rules(known_runs())
