"""Errors between two outputs, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd.deploy.export_answer import _parity_section
from chronograd.deploy.parity import OutputDifference, Parity, Tolerance
from chronograd.errors import ExportError

ONE = np.float32(1)


def difference(expected: list[float], given: list[float], rtol: float = 1e-3, atol: float = 1e-5) -> OutputDifference:
    one = OutputDifference("logits", "random", Tolerance(rtol, atol))
    one.add(np.array([expected], dtype=np.float32), np.array([given], dtype=np.float32))
    return one


def test_largest_error_of_each_kind() -> None:
    one = difference([0.5, -2.0, 0.0, 64.0], [0.5078125, -2.0, 0.25, 64.5])
    assert one.largest_absolute == 0.5
    assert one.largest_relative == 0.0078125 / 0.5
    assert one.num_values == 4
    assert one.num_beyond == 3
    assert one.tightest == pytest.approx(0.25 / 1e-5)


def test_ulp_distance_crosses_zero() -> None:
    tiny = float(np.nextafter(np.float32(0), ONE))
    assert difference([1.0], [float(np.nextafter(ONE, np.float32(2)))]).largest_ulp == 1
    assert difference([-tiny], [2 * tiny]).largest_ulp == 3
    assert difference([-0.0], [0.0]).largest_ulp == 0
    assert difference([1.0], [2.0]).largest_ulp == 2**23


def test_tolerance_matches_numpys_allclose() -> None:
    drawn = np.random.RandomState(0)
    for scale in (1e-6, 1e-5, 1e-4, 1e-3):
        expected = drawn.normal(size=(3, 5)).astype(np.float32)
        given = (expected + scale * drawn.normal(size=(3, 5))).astype(np.float32)
        one = OutputDifference("logits", "random", Tolerance(1e-4, 1e-6))
        one.add(expected, given)
        wide = expected.astype(np.float64), given.astype(np.float64)
        assert one.holds == np.allclose(wide[1], wide[0], rtol=1e-4, atol=1e-6)
        assert one.tightest is not None
        for factor, holds in ((1.001, True), (0.999, False)):
            rtol, atol = factor * one.tightest * 1e-4, factor * one.tightest * 1e-6
            assert np.allclose(wide[1], wide[0], rtol=rtol, atol=atol) is holds


def test_batches_add_up_with_class_agreement() -> None:
    one = difference([1.0, 2.0], [1.0, 2.0])
    assert one.holds
    assert one.tightest == 0
    one.add(np.float32([[1, 2], [4, 3]]), np.float32([[2, 1], [4, 3]]))
    assert (one.num_same, one.num_rows) == (2, 3)
    assert one.largest_absolute == 1
    assert not one.holds


def test_non_finite_values_must_be_equal() -> None:
    assert difference([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf]).holds
    one = difference([1.0, 2.0, np.inf], [1.0, np.nan, 3.0])
    assert one.num_beyond == 2
    assert one.tightest is None
    assert one.largest_absolute == 0


def test_zero_tolerance_requires_equal_values() -> None:
    assert difference([1.0], [1.0], rtol=0, atol=0).holds
    one = difference([1.0], [1.0000001], rtol=0, atol=0)
    assert not one.holds
    assert one.tightest is None


def test_output_of_another_shape_is_refused() -> None:
    one = OutputDifference("logits", "random", Tolerance())
    with pytest.raises(ExportError, match=r"logits has shape \(2, 3\)"):
        one.add(np.zeros((4, 3), np.float32), np.zeros((2, 3), np.float32))


def test_tolerance_for_rounding_of_large_outputs_is_shown() -> None:
    one = difference([200.0, 0.0], [200.25, 0.0002])
    assert not one.holds
    assert one.largest_output == 200
    assert one.needed_atol == pytest.approx(0.25 - 0.2)
    assert difference([200.0, 0.0], [200.25, 0.0002], atol=1.01 * one.needed_atol).holds
    assert not difference([200.0, 0.0], [200.25, 0.0002], atol=0.99 * one.needed_atol).holds
    (line,) = [line for line in _lines(difference([200.0, 0.0], [200.0, 0.0002])) if "--atol" in line]
    assert "at most 1e-06 of its largest value, 200, as float32 rounds" in line
    assert "--atol 0.0002 would hold" in line
    assert not [line for line in _lines(difference([2.0, 0.0], [2.0, 0.0002])) if "--atol" in line]


def _lines(one: OutputDifference) -> list[str]:
    parity = Parity(one.tolerance, (1,), [one], {one.kind: 1})
    return list(_parity_section(parity).lines)
