"""Runs of a large model by hand: time and cost follow from the step time and the price, on demand and on spot nodes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import chronograd
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.plan.rows import LargePlan

SMALL = ("num_hidden_layers=4", "vocab_size=32000")  # 1.1 G parameters, searched in a moment


def planned(*words: str, **options: Any) -> LargePlan:
    given = {"on": "h100", "counts": [8, 16], "sequence": 2048, "batch": 256, "pipeline": 1, "context": 1, **options}
    result = chronograd.plan("llama-3-8b", *SMALL, *words, **given).result
    assert isinstance(result, LargePlan)
    return result


def test_time_and_cost_by_hand() -> None:
    """A price in the job has no start-up, no steps of billing, and no age: 2 dollars per device and hour."""
    plan = planned("cluster.price_usd_per_hour=2", tokens=1e9, prices="on-demand")
    for one in plan.by_count:
        run = one.on_demand
        assert run is not None
        assert one.spot is None
        steps = 1e9 / (256 * 2048)
        assert run.steps == pytest.approx(steps)
        assert run.hours == pytest.approx(steps * run.step_time_s / 3600)
        assert run.dollars == pytest.approx(2 * run.count * run.hours)
        assert run.tokens_per_s == pytest.approx(256 * 2048 / run.step_time_s)
    assert plan.chosen is not None
    assert plan.chosen.dollars == min(row.dollars for row in plan.front)


def test_deadline_rents_more_devices() -> None:
    free = planned("cluster.price_usd_per_hour=2", tokens=1e12, prices="on-demand")
    assert free.chosen is not None
    assert free.chosen.count == 8
    tight = planned(
        "cluster.price_usd_per_hour=2", tokens=1e12, prices="on-demand", deadline=3600 * free.chosen.hours * 0.8
    )
    assert tight.chosen is not None
    assert tight.chosen.count == 16
    never = planned("cluster.price_usd_per_hour=2", tokens=1e12, prices="on-demand", deadline=60)
    assert never.verdict == "missed"
    assert never.missing is not None
    assert never.missing["deadline_h"] == pytest.approx(tight.chosen.hours, rel=0.3)


def test_money_buys_tokens() -> None:
    """$320 pay for 20 hours of 8 devices, and for 10 of 16."""
    plan = planned("cluster.price_usd_per_hour=2", budget=320, prices="on-demand")
    for one in plan.by_count:
        assert one.on_demand is not None
        assert one.on_demand.hours == pytest.approx(320 / 2 / one.count)
        assert one.on_demand.tokens == pytest.approx(3600 * one.on_demand.hours * one.tokens_per_s)
    assert plan.chosen is not None
    assert plan.chosen.tokens == max(row.tokens for row in plan.front)
    within = planned("cluster.price_usd_per_hour=2", budget=320, deadline=3600, prices="on-demand")
    assert {row.hours for row in within.front} == {1.0}
    assert within.chosen is not None
    assert within.chosen.count == 16


def test_tokens_and_money_agree() -> None:
    bought = planned(budget=500).chosen
    assert bought is not None
    back = planned(tokens=bought.tokens)
    same = [
        row for row in back.front if (row.vendor, row.prices, row.count) == (bought.vendor, bought.prices, bought.count)
    ]
    assert same[0].dollars == pytest.approx(500, rel=0.02)  # bills come in whole steps


def test_interruptions_and_checkpoints_slow_spot_nodes() -> None:
    def hours(**options: Any) -> tuple[float, float, LargePlan]:
        plan = planned(tokens=1e11, counts=[16], **options)
        one = plan.by_count[0]
        assert one.on_demand is not None
        assert one.spot is not None
        return one.spot.hours - one.spot.startup_s / 3600, one.on_demand.hours - one.on_demand.startup_s / 3600, plan

    spot, on_demand, plan = hours(interruptions=0)
    written_s = plan.spot.checkpoint_bytes / (2 * 1e9)  # 16 devices in two nodes
    assert spot == pytest.approx(on_demand * (1 + written_s / 600))
    assert hours(interruptions=0, storage=10**10)[0] == pytest.approx(on_demand * (1 + written_s / 10 / 600))
    rate = 2 * 0.5 / 3600  # interruptions of both nodes per second
    lost = math.exp(rate * (300 + written_s)) * math.expm1(rate * (600 + written_s)) / (rate * 600)
    assert hours(interruptions=0.5)[0] == pytest.approx(on_demand * lost)


def test_whole_nodes_are_rented() -> None:
    """Twelve devices take two nodes of eight."""
    for row in planned(tokens=1e11, counts=[4, 12], batch=240).front:
        rented = math.ceil(row.count / row.price.devices_of_instance - 1e-9)
        assert row.usd_per_hour == pytest.approx(rented * row.price.usd_per_hour_of_instance)


def test_one_global_batch_for_all_numbers_of_devices() -> None:
    """Sequences of 2,048 tokens: the least multiple of 24 and 64 with 2^22 tokens is 11 · 192 = 2,112."""
    plan = planned(tokens=1e11, batch=None, counts=[24, 64])
    assert {row.command.partition("--batch ")[2].split()[0] for row in plan.front} == {"2112"}


def test_layouts_of_the_plan_are_those_of_the_search() -> None:
    run = planned(tokens=1e11, counts=[16], pipeline=None, context=None).by_count[0]
    options = {"on": "16xh100", "sequence": 2048, "batch": 256, "layouts": True}
    best = chronograd.plan("llama-3-8b", *SMALL, **options).result.search.best
    assert run.step_time_s == best.step_s


def test_another_name_of_a_device_has_the_same_plan() -> None:
    one, other = (planned(tokens=1e11, counts=[8], on=name).chosen for name in ("a100", "a100-40"))
    assert one is not None
    assert other is not None
    assert (one.device, one.dollars) == (other.device, other.dollars) == ("a100-40", one.dollars)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "without a number of tokens there is no training time"),
        ({"tokens": 1e9, "on": "8xh100"}, "both state the number of devices"),
        ({"tokens": 1e9, "on": ()}, "on which devices"),
        ({"tokens": 1e9, "to": 0.7}, "--tokens does not apply"),
        ({"epochs": 2}, "--tokens-per-epoch"),
        ({"tokens": 1e9, "counts": [1], "sequence": 2**20}, "no layout fits"),
    ],
)
def test_questions_without_an_answer(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**options)


def test_text_states_its_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3-8b", *SMALL, "--on", "16xh100", "--sequence", "2048", "--batch", "256", "--tokens", "20B"]
    assert main([*words, "--deadline", "7d"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Rent 16 × h100",
        "Assumed: AdamW",
        "Assumed for spot: 0.05 interruptions",
        "Its prediction: chronograd predict",
    ):
        assert part in text, part
    assert main([*words[:-2], "--budget", "$100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["chosen"]["tokens"] > 1e9
