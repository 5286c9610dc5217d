"""Curves of arms: the mean over seeds and its deviation."""

from __future__ import annotations

import pytest

from chronograd_lab.common.arms import mean_curve


def test_mean_curve_has_deviation_between_seeds() -> None:
    """Average 80 and 90 %: 85 ± 7.07 % with one degree of freedom. The shortest seed ends the curve."""
    curves = {
        "plain/seed-0": {"epoch": [1.0, 2.0, 3.0], "test_accuracy": [0.5, 0.8, 0.9]},
        "plain/seed-1": {"epoch": [1.0, 2.0], "test_accuracy": [0.5, 0.9]},
        "other/seed-0": {"epoch": [1.0], "test_accuracy": [0.1]},
    }
    found = mean_curve(curves, "plain", "epoch")
    assert (list(found.x), found.y) == ([1, 2], pytest.approx([50, 85]))
    assert (found.low, found.high) == (pytest.approx([50, 77.9289], rel=1e-5), pytest.approx([50, 92.0711], rel=1e-5))
