"""The fit of required over predicted memory, on rows with known factors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.memory import Bound, fitted


def row(least: float, most: float) -> Bound:
    """Return a network that needs between `least` and `most` times the predicted bytes."""
    return Bound("table", "network", "training", 1, 2, 100 / most, 100 / least, 100.0, [[0.0, 1.0]])


def test_fit_recovers_the_planted_factors() -> None:
    logs = math.log(1.3) + 0.2 * np.random.default_rng(0).standard_normal(400)
    rungs = np.log(1.25) * np.floor(logs / np.log(1.25))
    median, sigma = fitted([row(float(np.exp(one)), 1.25 * float(np.exp(one))) for one in rungs])
    assert median == pytest.approx(1.3, rel=0.03)
    assert sigma == pytest.approx(0.2, rel=0.1)


def test_verdict_compares_both_batch_sizes() -> None:
    between = row(1.2, 1.5)
    assert [between.verdict(1 / factor) for factor in (1.1, 1.3, 1.6)] == ["too high", "consistent", "too low"]
    assert between.largest(1 / 1.25) == 80
