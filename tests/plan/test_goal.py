"""Goals for settings with hand-computed answers, and a goal without an answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronograd.errors import InputError
from chronograd.hardware import billing, catalog, market
from chronograd.hardware.catalog import Price
from chronograd.job import Job, from_dict
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget, changes, choose, missing
from chronograd.plan.renting import KINDS, RentalTerms, Spot, rent

EXACT = 0.0
V100 = catalog.device("v100")
ENDLESS = (1e12, 1e12, 1e12)  # a noise scale far above any batch: n times the batch needs 1/n of the steps
NONE = (0.0, 0.0, 0.0)  # no noise: a larger batch needs the same number of steps


def job(price: float | None = None) -> Job:
    cluster = {"device": "v100"} | ({} if price is None else {"price_usd_per_hour": price})
    return from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": cluster})


def table(counts: list[int], step_s: list[float], batch: int = 100, sigma: float = EXACT) -> dict[str, np.ndarray]:
    n = len(counts)
    return {
        "device": np.zeros(n, dtype=int), "count": np.array(counts), "batch_per_rank": np.full(n, batch),
        "algorithm": np.zeros(n, dtype=int), "step_time_s": np.array(step_s), "sigma_log": np.full(n, sigma),
        "fits": np.full(n, True),
    }  # fmt: skip


def plan_for(rows: dict[str, np.ndarray], effort: SamplesToTarget, goal: Goal, price: float = 3.0) -> PlanResult:
    return choose(rent(rows, [V100], job(price), RentalTerms(("on-demand",))), effort, goal)


def offer(kind: str, usd_per_hour: float, vendor: str = "AWS") -> Price:
    stated = {"vendor": vendor, "instance": kind, "device": "v100", "count": 8, "price_usd_per_hour": usd_per_hour, "kind": kind,
              "includes_host": True, "date": "2026-11-22", "tag": "assumed", "source": "a test"}  # fmt: skip
    return Price.model_validate(stated)


class TestByHand:
    def test_deadline_selects_the_cheapest_in_time(self) -> None:
        """Train 3.6e6 samples at batch 100: 10 h on 1, 5 h on 2 and 3 h on 4 devices for $30, $30 and $36."""
        rows = table([1, 2, 4], [1.0, 1.0, 1.2])
        effort = SamplesToTarget(3.6e6, 100, EXACT, noise_scale=ENDLESS)
        taken = {hours: plan_for(rows, effort, Goal(deadline_s=3600 * hours)).chosen for hours in (2.9, 3.1, 5.1, 11)}
        assert taken == {2.9: None, 3.1: 2, 5.1: 1, 11: 1}  # 1 and 2 devices cost the same, and 2 are faster
        one = plan_for(rows, effort, Goal(deadline_s=3600 * 3.1))
        assert one.columns["hours"] == pytest.approx([10, 5, 3])
        assert one.columns["dollars"] == pytest.approx([30, 30, 36])
        assert one.pareto_front() == [2, 1]

    def test_budget_selects_the_fastest_affordable(self) -> None:
        rows, effort = table([1, 2, 4], [1.0, 1.0, 1.2]), SamplesToTarget(3.6e6, 100, EXACT, noise_scale=ENDLESS)
        taken = {budget: plan_for(rows, effort, Goal(budget)).chosen for budget in (29, 31, 37)}
        assert taken == {29: None, 31: 1, 37: 2}

    def test_beyond_the_largest_known_batch(self) -> None:
        """Four times that batch needs twice the samples, with an 80 % interval from one to four times."""
        effort = SamplesToTarget(3.6e6, 100, 0.0, largest_batch=200)
        steps, sigma = effort.steps(np.array([100, 200, 800]))
        assert steps == pytest.approx([36000, 18000, 9000])
        assert np.exp(1.2816 * sigma) == pytest.approx([1, 1, 2])

    def test_more_workers_without_noise_only_cost_more(self) -> None:
        """36,000 steps at any batch: 10 h and $30 on 1, 10 h and $60 on 2."""
        rows, effort = table([1, 2], [1.0, 1.0]), SamplesToTarget(3.6e6, 100, EXACT, noise_scale=NONE)
        choice = plan_for(rows, effort, Goal(deadline_s=36001))
        assert choice.columns["dollars"] == pytest.approx([30, 60])
        assert (choice.chosen, choice.pareto_front()) == (0, [0])
        at_critical = SamplesToTarget(
            3.6e6, 100, EXACT, noise_scale=(100, 100, 100)
        )  # 36,000 at batch 100, 27,000 at 200
        assert plan_for(rows, at_critical, Goal()).columns["steps"] == pytest.approx([36000, 27000])

    def test_nothing_fits(self) -> None:
        """Options take 10 h or 5 h and $30: neither fits 4 h or $20."""
        rows, effort = table([1, 2], [1.0, 1.0]), SamplesToTarget(3.6e6, 100, EXACT, noise_scale=ENDLESS)
        choice = plan_for(rows, effort, Goal(20.0, 4 * 3600.0))
        assert (choice.chosen, choice.columns["probability"].tolist(), changes(choice)) == (None, [0, 0], [])
        assert missing(choice) == {"deadline_h": None, "budget_usd": None}
        assert missing(plan_for(rows, effort, Goal(40.0, 4 * 3600.0))) == {
            "deadline_h": pytest.approx(5),
            "budget_usd": None,
        }

    def test_suggested_changes(self) -> None:
        rows, effort = table([1, 2, 4], [1.0, 1.1, 1.2]), SamplesToTarget(3.6e6, 100, EXACT, noise_scale=ENDLESS)
        choice = plan_for(rows, effort, Goal(50.0, 6 * 3600.0))  # 10 h for 30, 5.5 h for 33, 3 h for 36
        assert choice.chosen == 1
        told = [(one.what, one.value, one.row) for one in changes(choice)]
        assert told == [
            ("deadline", pytest.approx(5.5), 2), ("deadline", pytest.approx(10), 0), ("budget", pytest.approx(33), None),
            ("steps", pytest.approx(6 / 5.5), None),
        ]  # fmt: skip


def test_probability_is_log_normal() -> None:
    rows = table([1], [1.0], sigma=0.3)
    effort = SamplesToTarget(3.6e6, 100, 0.4, noise_scale=ENDLESS)  # together 0.5
    for deadline, expected in ((10.0, 0.5), (10 * math.exp(0.5), 0.8413), (10 * math.exp(-1.0), 0.0228)):
        choice = plan_for(rows, effort, Goal(deadline_s=3600 * deadline))
        assert choice.columns["probability"][0] == pytest.approx(expected, abs=1e-4)
    assert choice.interval("hours", 0) == pytest.approx((10 * math.exp(-0.6408), 10 * math.exp(0.6408)))
    unsure = plan_for(rows, SamplesToTarget(3.6e6, 100, 0.4, 0.7, ENDLESS), Goal(deadline_s=1e9))
    assert (unsure.columns["probability"][0], unsure.chosen) == (pytest.approx(0.7), None)  # the goal asks for 80 %
    assert missing(unsure) == {"deadline_h": None, "budget_usd": None}


def test_unknown_noise_scale_widens_distant_batches() -> None:
    effort = SamplesToTarget(1e6, 64, EXACT)
    assert effort.noise_scale == (128, 512, 2048)
    _, sigmas = effort.steps(np.array([32, 64, 128, 1024]))
    assert sigmas[1] == 0
    assert 0 < sigmas[2] < sigmas[3]


def test_partly_used_machine_is_interrupted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine devices need two machines of eight, which doubles interruptions; spot is cheaper but slower."""
    sold = [offer("on-demand", 24.0), offer("spot", 8.0)]
    monkeypatch.setattr(market, "offers", lambda device: sold)
    effort, spot = (
        SamplesToTarget(3.6e6, 100, EXACT, noise_scale=NONE),
        Spot(per_hour=0.6, checkpoint_s=600, restart_s=300),
    )
    monkeypatch.setattr(billing, "STARTUP_S", 0.0)
    choice = choose(rent(table([8, 9], [1.0, 1.0]), [V100], job()), effort, Goal(), spot)
    kind, hours, dollars = (choice.columns[name] for name in ("kind", "hours", "dollars"))
    assert [KINDS[k] for k in kind] == ["on-demand", "on-demand", "spot", "spot"]
    assert hours[2:] / hours[:2] == pytest.approx(
        [math.exp(0.05) * (math.exp(0.1) - 1) / 0.1, math.exp(0.1) * (math.exp(0.2) - 1) / 0.2]
    )
    assert dollars / hours == pytest.approx([24, 48, 8, 16], rel=1e-4)  # billed by whole seconds


def test_slower_but_surer_setting_is_not_recommended() -> None:
    """A step takes 1.0 s with a wide spread or 1.3 s with none; the second meets ten hours more reliably."""
    rows = table([1, 1, 2], [1.0, 1.3, 1.0])
    rows["sigma_log"] = np.array([0.5, EXACT, 0.5])
    effort = SamplesToTarget(2.9e6, 100, 1e-6, noise_scale=NONE)  # 8.06 h at 1.0 s, 10.5 h at 1.3 s
    choice = plan_for(rows, effort, Goal(deadline_s=3600 * 11, confidence=0.7))
    assert choice.is_candidate.tolist() == [True, False, True]
    assert choice.columns["probability"][1] > 0.99 > choice.columns["probability"][0] > 0.7
    assert choice.chosen == 0
    assert plan_for(rows, effort, Goal(deadline_s=3600 * 11, confidence=0.8)).chosen is None


def test_old_price_widens_cost_but_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are log-normal: half are above the median, and 10 % above 1.28 deviations."""
    monkeypatch.setattr(market, "offers", lambda device: [offer("on-demand", 8.0)])
    monkeypatch.setattr(market, "sigma_log", lambda price: 0.5)
    monkeypatch.setattr(billing, "STARTUP_S", 0.0)
    effort = SamplesToTarget(3.6e6, 100, 1e-6, noise_scale=ENDLESS)  # 10 h on one device, 1.25 h on eight, 10 dollars
    rows = table([8], [1.0])
    choice = choose(rent(rows, [V100], job()), effort, Goal(10.0))
    assert choice.columns["probability"][0] == pytest.approx(0.5, abs=0.02)
    assert choice.interval("hours", 0) == pytest.approx((1.25, 1.25), rel=1e-3)
    assert choice.interval("dollars", 0) == pytest.approx((10 * math.exp(-0.6408), 10 * math.exp(0.6408)), rel=1e-3)
    spread = SamplesToTarget(3.6e6, 100, 0.5, noise_scale=ENDLESS)  # both together: 0.7071
    for budget in (5.0, 10.0, 20.0):
        choice = choose(rent(rows, [V100], job()), spread, Goal(budget))
        expected = 0.5 * (1 + math.erf(math.log(budget / 10) / 0.70711 / math.sqrt(2)))
        assert choice.columns["probability"][0] == pytest.approx(expected, abs=1e-3)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 10)), min_size=1, max_size=12),
    st.floats(1, 1000), st.floats(1e3, 1e6), st.floats(0.1, 0.95),
)  # fmt: skip
def test_choice_meets_the_goal_at_the_lowest_cost(
    settings: list[tuple[int, float]], budget: float, deadline_s: float, confidence: float
) -> None:
    counts, seconds = (list(column) for column in zip(*settings, strict=True))
    effort = SamplesToTarget(3.6e6, 100, 0.2, 0.97, (100, 800, 6400))
    choice = plan_for(table(counts, seconds, sigma=0.2), effort, Goal(budget, deadline_s, confidence))
    able = choice.columns["probability"] >= confidence
    sure = choice.quantile("hours"), choice.quantile("dollars")
    assert (able == ((sure[0] <= deadline_s / 3600 * (1 + 1e-9)) & (sure[1] <= budget * (1 + 1e-9)))).all()
    if choice.chosen is None:
        assert not able.any()
    else:
        assert able[choice.chosen]
        assert choice.columns["dollars"][choice.chosen] == choice.columns["dollars"][able].min()
    pareto_front = choice.pareto_front()
    hours, dollars = choice.columns["hours"], choice.columns["dollars"]
    for row in range(len(hours)):
        beaten = any(hours[f] <= hours[row] and dollars[f] <= dollars[row] for f in pareto_front)
        assert beaten


@pytest.mark.parametrize("bad", [{"budget_usd": 0.0}, {"deadline_s": -1.0}, {"confidence": 1.0}])
def test_invalid_goals(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"goal|confidence"):
        Goal(**bad)


def test_effort_needs_samples() -> None:
    with pytest.raises(InputError, match="epochs above 0"):
        SamplesToTarget(0.0, 100)


def test_overlapping_options_tie_and_the_cheaper_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight devices take 1.25 h at $80 an hour from A, or 1.30 h at $16 from B; one device takes ten hours."""
    sold = [offer("on-demand", 80.0, vendor="A"), offer("on-demand", 16.0, vendor="B")]
    monkeypatch.setattr(market, "offers", lambda device: sold)
    effort = SamplesToTarget(3.6e6, 100, 0.2, noise_scale=ENDLESS)
    choice = choose(rent(table([8, 1], [1.0, 1.0]), [V100], job()), effort, Goal(budget_usd=1000.0))
    assert choice.chosen is not None
    assert choice.offers[choice.columns["offer"][choice.chosen]].vendor == "B"
    assert choice.columns["count"][choice.chosen] == 8
    assert choice.chosen == choice.fastest()
    assert choice.columns["dollars"][choice.cheapest()] <= choice.columns["dollars"][choice.fastest()]


def test_balanced_option_costs_no_more_than_the_fastest() -> None:
    """8 devices take 1.25 h and $30, 7 take 1.39 h and $29.10: they tie, and 7 win despite the larger product."""
    effort = SamplesToTarget(3.6e6, 100, 0.2, noise_scale=ENDLESS)
    choice = plan_for(table([8, 7], [1.0, 0.97]), effort, Goal(budget_usd=1000.0))
    assert choice.columns["dollars"] == pytest.approx([30, 29.1])
    assert (choice.fastest(), choice.balanced()) == (1, 1)


def test_startup_and_minimum_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train a second on a machine for $36 an hour that starts in 300 s and has a minimum charge of 600 s."""
    monkeypatch.setattr(market, "offers", lambda device: [offer("on-demand", 36.0)])
    monkeypatch.setattr(billing, "STARTUP_S", 300.0)
    monkeypatch.setitem(
        billing._vendors(), "aws", billing.UNKNOWN.model_copy(update={"minimum_s": 600.0, "step_s": 1.0})
    )
    effort = SamplesToTarget(100, 100, EXACT, noise_scale=ENDLESS)
    choice = choose(rent(table([1], [1.0]), [V100], job()), effort, Goal())
    assert choice.columns["hours"][0] == pytest.approx(301 / 3600)
    assert choice.columns["dollars"][0] == pytest.approx(6.0)
    assert choice.under(Goal(budget_usd=5.99)).chosen is None


def test_price_far_below_its_peers_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    sold = [offer("on-demand", usd, vendor=name) for name, usd in (("A", 10.0), ("B", 9.0), ("C", 8.0), ("D", 1.0))]
    monkeypatch.setattr(market, "offers", lambda device: sold)
    effort = SamplesToTarget(3.6e6, 100, EXACT, noise_scale=ENDLESS)
    choice = choose(rent(table([1], [1.0]), [V100], job()), effort, Goal())
    assert choice.chosen is not None
    assert choice.offers[choice.columns["offer"][choice.chosen]].vendor == "C"
