"""The scores of `benchmarks.large_models.step`."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks.large_models.held import Held, errors, line
from benchmarks.large_models.step import Scored, calibrated, regrets, score

from chronograd.large.step import StepTime
from chronograd_lab.common.large_runs import TimedRun


def scored(predicted_s: float, measured_s: float, group: str = "") -> Scored:
    unused: Any = None
    step = StepTime(predicted_s, {}, (), 1.0, 1.0, 0.13, (), 0.12)
    return Scored(TimedRun("file", "device", "row", measured_s, unused, unused, group), step)


def test_score() -> None:
    """Errors of +10 % and −20 %: mean 15, bias √(1.1 · 0.8) − 1 = −6.2 %; only the first is in ± 1.28 · 0.13."""
    words = score([scored(1.1, 1.0), scored(0.8, 1.0)]).split()
    assert words[0] == "15.0"
    assert words[3:] == ["-6.2", "50", "2"]


def test_regret_of_groups_with_four_layouts() -> None:
    group = [scored(seconds, 2.0 / seconds, "a") for seconds in (1.0, 2.0, 3.0, 4.0)]
    assert regrets([*group, *(scored(1.0, 1.0, "b") for _ in range(3))]) == [pytest.approx(2.0 / 0.5 - 1)]


def test_four_rows_remove_most_of_a_common_error() -> None:
    rows = calibrated([scored(1.2, 1.0) for _ in range(6)], seed=0)
    assert len(rows) == 2
    assert all(abs(one.log_error) < 0.1 * math.log(1.2) for one in rows)


def test_errors_of_one_table() -> None:
    """Errors of +10 % and −20 %: mean 15, worst 20, bias √(1.1 · 0.8) − 1 = −6.2 %. Only one run surely fits."""
    pairs = [(1.1, 1.0), (0.8, 1.0)]
    assert errors(pairs) == "15.0 % | 20.0 % | −6.2 %"
    rows = [Held("a", pairs[0], None, 0.99), Held("b", pairs[1], (3.0, 2.0), 0.5)]
    assert line("ours", rows) == "| ours | 2 | 15.0 % | 20.0 % | −6.2 % | 50.0 % | 50.0 % | +50.0 % | 1 |"
    assert line("ours", rows[:1]).endswith("| – | – | – | 1 |")
