"""The cost of fine-tuning to an accuracy, by hand from the published curves."""

from __future__ import annotations

from typing import Any

import pytest

import chronograd
from chronograd.errors import InputError
from chronograd.forecast.fine_tuning import published_runs
from chronograd.plan.rows import FineTuningPlan


def planned(to: float, *words: str, **options: Any) -> FineTuningPlan:
    result = chronograd.plan("llama-3.2-3b", *words, on="l40s", to=to, **options).result
    assert isinstance(result, FineTuningPlan)
    return result


def test_cost_by_hand() -> None:
    """A price in the job has no start-up: one dollar an hour for the seconds until the curve has the accuracy."""
    plan = planned(0.45, "cluster.price_usd_per_hour=1", prices="on-demand", most=50)
    reached = {run.name: run.reaches(0.45) for run in published_runs()}
    assert {one.method for one in plan.options} == {name for name, found in reached.items() if found}
    for one in plan.options:
        found = reached[one.method]
        assert found is not None
        assert one.dollars == pytest.approx(found.seconds / 3600)
        assert one.probability <= found.probability
    assert plan.chosen is not None
    assert plan.chosen.dollars == min(one.dollars for one in plan.options if one.probability >= 0.8)


def test_out_of_reach_and_over_budget() -> None:
    never = planned(0.9)
    assert (never.verdict, never.options) == ("out of reach", [])
    assert never.best_accuracy == max(run.test_accuracy for run in published_runs())
    assert planned(0.45, budget=0.01).verdict == "missed"
    assert planned(0.45, budget=10).verdict == "rent"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("llama-3-8b", {"on": "l40s"}, "no published curve gives the accuracy of fine-tuning llama-3-8b"),
        ("llama-3.2-3b", {"on": "h100"}, "on h100"),
        ("llama-3.2-3b", {"on": "l40s", "lora": 8}, "ignore --lora"),
        ("llama-3.2-3b", {"on": "l40s", "tokens": 1e9}, "--tokens does not apply"),
    ],
)
def test_other_models_devices_and_options_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        chronograd.plan(name, to=0.4, **options)
