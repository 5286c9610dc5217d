"""Published curves of fine-tuning: a curve that never falls, and the steps to an accuracy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.large_models import fine_tuning as writer
from hypothesis import given
from hypothesis import strategies as st

from chronograd.forecast import fine_tuning
from chronograd.forecast.fine_tuning import TESTED, FineTuningRun, never_falling, published_runs


def run(accuracies: list[float], tested: float) -> FineTuningRun:
    count = len(accuracies)
    return FineTuningRun(
        "a run", "lora", 1, 1, tested, 250.0 * np.arange(1, count + 1), np.array(accuracies), 30.0 * np.arange(1, count + 1)
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 100)), min_size=1, max_size=20))
def test_curve_never_falls_and_keeps_the_weighted_mean(points: list[tuple[float, float]]) -> None:
    values, weights = np.array(points).T
    found = never_falling(values, weights)
    assert (np.diff(found) >= -1e-12).all()
    assert float(found @ weights) == pytest.approx(float(values @ weights))
    rising = np.sort(values)
    assert never_falling(rising, weights) == pytest.approx(rising)


def test_first_evaluation_of_the_curve_with_the_accuracy() -> None:
    """Evaluations of 20, 40, 40 and 60 %; the test of 60 % agrees with the last."""
    one = run([0.2, 0.4, 0.4, 0.6], 0.6)
    found = one.reaches(0.4)
    assert found is not None
    assert (found.step, found.seconds) == (500, 60)
    assert found.seconds_interval[0] <= 60 <= found.seconds_interval[1]
    assert one.reaches(0.7) is None
    assert [one.after(seconds) for seconds in (29, 30, 119, 1e9)] == pytest.approx([0, 0.2, 0.4, 0.6])


def test_lucky_evaluation_decides_nothing() -> None:
    one = run([0.3, 0.3, 0.3, 0.6, 0.3], 0.3)
    assert one.reaches(0.4) is None
    assert one.curve[-1] == pytest.approx((50 * 0.6 + 50 * 0.3 + TESTED * 0.3) / (100 + TESTED))


def test_probability_falls_with_the_accuracy() -> None:
    for one in published_runs():
        found = [reached for target in (0.3, 0.4, 0.45, 0.48) if (reached := one.reaches(target))]
        shares, steps = [reached.probability for reached in found], [reached.step for reached in found]
        assert shares == sorted(shares, reverse=True)
        assert steps == sorted(steps)


@pytest.mark.published
@pytest.mark.skipif("CHRONOGRAD_MEASURED" not in os.environ, reason="needs the published tables")
def test_packaged_table_is_the_published_one() -> None:
    import json

    data = writer.packaged(Path(os.environ["CHRONOGRAD_MEASURED"]) / "large_models")
    assert json.loads(fine_tuning.PATH.read_bytes()) == json.loads(json.dumps(data))
