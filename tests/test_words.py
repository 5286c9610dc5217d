"""Numbers in sentences: equal formats for value and interval, intervals that contain the value, and singulars."""

from __future__ import annotations

import re

import pytest

from chronograd.forecast.learning import what_was_reached
from chronograd.plan.effort import of_epochs
from chronograd.record import Quantity, Record
from chronograd.units import number, quantity
from chronograd.words import how_many, interval
from chronograd_lab.studies.depth_and_device.blocks import epochs_words

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.mark.parametrize("unit", ["count", "sample/s", "s", "B", "1", "FLOP/s", "usd"])
@pytest.mark.parametrize("value", [0.5, 9.996, 99.96, 999.7, 45909.2, 171_766.0, 9_999_999.5])
def test_shown_interval_contains_the_value(unit: str, value: float) -> None:
    """Also in records whose interval omitted the longest steps, which the mean includes."""
    outside = Quantity(value=value, unit=unit, low=1.01 * value, high=1.02 * value)
    assert interval(outside).startswith(quantity(value, unit).partition(" ")[0])
    inside = Quantity(value=value, unit=unit, low=value / 1.5, high=value * 1.5)
    assert interval(inside) == interval(inside.model_copy(update={"value": None}))


def test_value_and_interval_have_one_format() -> None:
    q = Quantity(value=171_766.0, unit="count", low=45909.2, high=300_000.4)
    assert (quantity(q.value, q.unit), interval(q)) == ("171,766", "45,909 … 300,000")
    assert epochs_words({"epochs": 171_766.0, "low": 45909.2, "high": 300_000.4}) == "171,766 (45,909 to 300,000)"
    assert epochs_words({"epochs": 19.1, "low": 12.0, "high": 45909.2}) == "19.1 (12.0 to 45,909)"
    for one in (999.4, 999.6, 1000.0, 45909.2, 1e6):
        assert NUMBER.fullmatch(number(one)), number(one)
        assert "e" not in number(one)
        assert float(number(one).replace(",", "")) == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize(
    ("plural", "singular"),
    [("epochs", "epoch"), ("old names", "old name"), ("boxes", "box"), ("batches", "batch"), ("processes", "process"),
     ("test images", "test image"), ("classes", "class"), ("pieces", "piece"), ("GPUs", "GPU")],
)  # fmt: skip
def test_one_is_singular(plural: str, singular: str) -> None:
    assert [how_many(n, plural) for n in (0, 1, 1.0, "1", 2)] == [
        f"0 {plural}",
        f"1 {singular}",
        f"1 {singular}",
        f"1 {singular}",
        f"2 {plural}",
    ]


def test_answers_use_the_singular_for_one() -> None:
    record = Record(kind="measured", title="a run")
    record.quantities |= {
        "test_accuracy": Quantity(value=0.5, unit="1"),
        "epochs": Quantity(value=1, unit="count"),
    }
    assert "after 1 epoch;" in what_was_reached(record)
    assert of_epochs(1, 100, 10).source == "1 epoch at batch 10, as you stated"
    assert of_epochs(1500, 100, 10).source == "1,500 epochs at batch 10, as you stated"
