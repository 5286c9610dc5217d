"""The noise scale of a run from what its steps measured: planted scales are found, and what is missing has a reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from chronograd.fit.noise_scale import NoiseLog
from chronograd.rundir import StepLine


def planted(squared: Any, trace: Any, num: int = 200, noise: float = 0.0, small: int = 32, big: int = 64) -> NoiseLog:
    """Norms as they are in the mean, or with relative noise."""
    random = np.random.default_rng(0)
    factors = np.exp(noise * random.standard_normal((2, num)))
    ones = np.ones(num)
    sq_small, sq_big = (squared + trace / small) * factors[0], (squared + trace / big) * factors[1]
    return NoiseLog(np.arange(1.0, num + 1), sq_small * ones, sq_big * ones, small * ones, big * ones)


def test_one_scale_all_along_is_found() -> None:
    found = planted(2.0, 300.0).quantity()
    assert (found.value, found.low, found.high) == pytest.approx((150, 150, 150))
    assert (found.n, found.unit) == (200, "sample")


def test_a_growing_scale_is_averaged_over_the_way_that_was_made() -> None:
    """Two halves with scales 50 and 400: a step of 64 samples comes 1/(1 + 50/64) and 1/(1 + 400/64) of a step far."""
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


def test_ranks_are_put_together() -> None:
    """Two ranks of 1 and 3 samples whose squared norms are |G|² + tr(Σ)/n, with |G|² = 2 and tr(Σ) = 12."""
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


def test_what_cannot_be_told_says_why() -> None:
    assert "0 steps measured" in NoiseLog.of_lines([[StepLine(step=1)]]).quantity().reason
    assert "19 steps measured" in planted(1.0, 1.0, num=19).quantity().reason
    assert "|G|² is not above 0" in planted(-0.1, 100.0).quantity().reason
    assert "tr(Σ) is not above 0" in planted(1.0, -1.0).quantity().reason


def test_an_end_that_is_not_known_is_left_open() -> None:
    """The signal drowns in what the norms scatter: |G|² of some draws of blocks is below 0."""
    found = planted(0.05, 64.0, noise=0.1).quantity()
    assert found.value is not None
    assert found.low is not None
    assert found.high is None
