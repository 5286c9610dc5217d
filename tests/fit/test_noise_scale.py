"""The noise scale from the measurements of a run's steps: planted scales are recovered, gaps have a reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from chronograd.fit.noise_scale import NoiseLog
from chronograd.rundir import StepLine


def planted(squared: Any, trace: Any, num: int = 200, noise: float = 0.0, small: int = 32, big: int = 64) -> NoiseLog:
    """Return a log of exact mean gradient norms, or of norms with relative noise."""
    random = np.random.default_rng(0)
    factors = np.exp(noise * random.standard_normal((2, num)))
    ones = np.ones(num)
    sq_small, sq_big = (squared + trace / small) * factors[0], (squared + trace / big) * factors[1]
    return NoiseLog(np.arange(1.0, num + 1), sq_small * ones, sq_big * ones, small * ones, big * ones)


def test_constant_noise_scale_is_recovered() -> None:
    found = planted(2.0, 300.0).quantity()
    assert (found.value, found.low, found.high) == pytest.approx((150, 150, 150))
    assert (found.n, found.unit) == (200, "sample")


def test_growing_noise_scale_is_averaged_by_progress() -> None:
    """Halves with scales 50 and 400: steps of 64 samples make 1/(1 + 50/64) and 1/(1 + 400/64) of a full step."""
    squared, trace = np.repeat([8.0, 0.5], 100), np.repeat([400.0, 200.0], 100)
    found = planted(squared, trace)
    ways = 1 / (1 + 50 / 64), 1 / (1 + 400 / 64)
    assert found.quantity().value == pytest.approx((50 * ways[0] + 400 * ways[1]) / sum(ways))
    scales = found.curve().columns["noise_scale"]
    assert scales == pytest.approx([50.0] * 10 + [400.0] * 10)
    assert found.curve().columns["step"][:2] == [10, 20]


def test_noise_widens_the_interval_around_the_truth() -> None:
    found = planted(1.0, 64.0, noise=0.05).quantity()
    assert found.low is not None
    assert found.high is not None
    assert 40 < found.low < 64 < found.high < 110


def test_ranks_are_combined() -> None:
    """Ranks of 1 and 3 samples have squared norms of |G|² + tr(Σ)/n, with |G|² = 2 and tr(Σ) = 12."""
    ranks = [
        [
            StepLine(step=step, grad_sq_small=2 + 12 / n, grad_sq_big=5.0, batch_small=n, batch_big=4)
            for step in range(1, 41)
        ]
        for n in (1, 3)
    ]
    ranks[0].append(StepLine(step=41, loss=1.0))
    ranks[1][0].grad_sq_small = math.nan
    log = NoiseLog.of_lines(ranks)
    assert log.steps.tolist() == list(range(2, 41))
    assert log.batch_small[0] == pytest.approx(1.5)
    assert log.quantity().value == pytest.approx(6)


def test_unknown_noise_scale_states_the_reason() -> None:
    assert "0 steps measured" in NoiseLog.of_lines([[StepLine(step=1)]]).quantity().reason
    assert "19 steps measured" in planted(1.0, 1.0, num=19).quantity().reason
    assert "|G|² is not above 0" in planted(-0.1, 100.0).quantity().reason
    assert "tr(Σ) is not above 0" in planted(1.0, -1.0).quantity().reason


def test_unknown_upper_limit_stays_open() -> None:
    """The noise of the norms exceeds the signal: |G|² of some block draws is below 0."""
    found = planted(0.05, 64.0, noise=0.1).quantity()
    assert found.value is not None
    assert found.low is not None
    assert found.high is None
