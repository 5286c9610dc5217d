"""Cloud choice, computed by hand: nodes, transfer costs and interruptions; and monotonic prices."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import billing, catalog, egress, market
from chronograd.hardware.catalog import Price
from chronograd.hardware.instances import catalogue, clouds
from chronograd.job import Job, from_dict
from chronograd.plan import rows as shown
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget, choose
from chronograd.plan.place_advice import _nodes, beside, place_rows
from chronograd.plan.places import Places
from chronograd.plan.renting import KINDS, RentalTerms, Spot, rent
from chronograd.plan.rows import OfferedPrice, RunOption

V100, T4, A100 = (catalog.device(name) for name in ("v100", "t4", "a100-40"))
DEVICES = [V100, T4, A100]
COUNTS = (1, 2, 4, 8, 16)
GB = egress.GB
ANY, USUAL = Goal(), Spot()
# 3.6e6 samples at batch 100 take 10 h at 1 s a step. With an endless noise scale, n devices take 1/n of that.
EFFORT = SamplesToTarget(3.6e6, 100, 0.1, noise_scale=(1e12, 1e12, 1e12))


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market, "today", lambda: date(2026, 11, 23))


def job() -> Job:
    return from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": {"device": "v100"}})


def table(steps_s: tuple[float, ...] = (1.0, 1.5, 0.4)) -> dict[str, np.ndarray]:
    """Return every count of every device with the given seconds per step."""
    n = len(DEVICES) * len(COUNTS)
    return {
        "device": np.repeat(np.arange(len(DEVICES)), len(COUNTS)), "count": np.tile(COUNTS, len(DEVICES)),
        "batch_per_rank": np.full(n, 100), "step_time_s": np.repeat(steps_s, len(COUNTS)), "sigma_log": np.full(n, 0.2),
        "fits": np.full(n, True),
    }  # fmt: skip


def planned(places: Places, goal: Goal = ANY, spot: Spot = USUAL) -> PlanResult:
    return choose(rent(table(), DEVICES, job(), RentalTerms(places=places)), EFFORT, goal, spot)


def least(choices: PlanResult) -> float:
    return math.inf if choices.chosen is None else float(choices.columns["dollars"][choices.chosen])


def cloud_of(choices: PlanResult, row: int) -> str:
    return choices.offers[choices.columns["offer"][row]].vendor.lower()


class TestOffers:
    def test_offers_are_instances_as_launch_renders_them(self) -> None:
        """Two T4 on n1-standard-16 cost twice as much as one on n1-standard-8."""
        offers = {(o.instance, o.kind, o.region): o for o in Places(("aws", "gcp")).offers(T4)}
        two = offers["n1-standard-16:NVIDIA_TESLA_T4:2", "on-demand", "us-central1"]
        assert (two.count, two.vcpus, two.price_usd_per_hour) == (2, 16, pytest.approx(2 * 0.73))
        assert {key[0] for key in offers} <= {
            one.name for c in ("sagemaker", "vertex") for one in catalogue(c).instance
        }
        assert {region for name, _, region in offers if name == "ml.g4dn.xlarge"} == {"us-east-1", "eu-north-1"}

    def test_nodes_are_rented_completely(self) -> None:
        """AWS has A100 nodes of eight only, GCP of one, two, four and eight; only those of eight can be joined."""
        choices = planned(Places(("aws", "gcp")))
        rented = {(cloud_of(choices, row), int(choices.columns["count"][row]), int(choices.columns["machines"][row]))
                  for row in np.flatnonzero((choices.columns["device"] == 2) & (choices.columns["offer"] >= 0))}  # fmt: skip
        assert rented == {
            ("aws", 8, 1),
            ("aws", 16, 2),
            ("gcp", 1, 1),
            ("gcp", 2, 1),
            ("gcp", 4, 1),
            ("gcp", 8, 1),
            ("gcp", 16, 2),
        }

    def test_missing_prices_are_reported(self) -> None:
        missing = Places(("aws", "azure", "ibm")).without_price()
        assert missing["ibm"] == {"on-demand": ["K80", "V100"], "spot": ["K80", "V100"]}
        assert "Standard_NC4as_T4_v3" in missing["azure"]["on-demand"]
        assert "ml.p4d.24xlarge" not in missing["aws"]["spot"]
        with pytest.raises(InputError, match="no price of an instance with v100 or t4 or a100-40 is known at ibm"):
            Places(("ibm",)).of_devices(DEVICES)

    @pytest.mark.parametrize("places", [("awz",), ("aws", "sagemaker"), ("",)])
    def test_unknown_cloud(self, places: tuple[str, ...]) -> None:
        with pytest.raises(NotFoundError, match=f"cloud.*{places[-1]}"):
            Places(places)
        with pytest.raises(NotFoundError, match="cloud"):
            Places(("aws",), data_in="nowhere")


class TestMoving:
    def test_egress_tiers(self) -> None:
        """AWS: 100 GB free, then $0.09 to 10 TB and $0.085 to 50 TB."""
        assert egress.of("aws").usd(100 * GB) == 0
        assert egress.of("aws").usd(150 * GB) == pytest.approx(50 * 0.09)
        assert egress.of("aws").usd(20480 * GB) == pytest.approx(10140 * 0.09 + 10240 * 0.085)
        assert egress.of("gcp").usd(2048 * GB) == pytest.approx(1024 * 0.12 + 1024 * 0.11)

    def test_every_cloud_has_a_sourced_egress_price(self) -> None:
        for name in clouds():
            known = egress.of(name)
            assert known.source
            assert known.tiers[-1].up_to_gb is None
            assert [t.up_to_gb for t in known.tiers[:-1]] == sorted(t.up_to_gb or math.inf for t in known.tiers[:-1])

    def test_transfer_costs_by_route(self) -> None:
        """Store 200 GB in AWS and return 10 GB: $9 to AWS and $1.20 to GCP; AWS regions charge $0.02 per GB."""

        def moving(cloud: str, home: str | None, region: str = "") -> float:
            places = Places((cloud,), home, region, 200 * GB, 10 * GB)
            return places.moving_usd(next(o for o in places.offers(A100) if o.region != "us-east-1"))  # fmt: skip

        assert moving("gcp", "aws") == pytest.approx(100 * 0.09 + 10 * 0.12)
        assert moving("aws", "gcp") == pytest.approx(200 * 0.12 + 0)  # the first 100 GB of AWS are free
        assert (moving("aws", "aws"), moving("gcp", None)) == (0, 0)
        assert moving("aws", "aws", "us-east-1") == pytest.approx(210 * 0.02)

    def test_transfer_is_in_cost_budget_and_interval(self) -> None:
        """It is charged once for any number of hours, and the interval covers the rest."""
        here, there = planned(Places(("aws",), "aws")), planned(Places(("aws",), "gcp", data_bytes=1000 * GB))
        assert there.columns["dollars"] - here.columns["dollars"] == pytest.approx(120, nan_ok=True)
        row = here.chosen
        assert row is not None
        assert np.subtract(there.interval("dollars", row), here.interval("dollars", row)) == pytest.approx([120, 120])
        assert there.interval("hours", row) == here.interval("hours", row)
        assert (there.quantile("dollars") - here.quantile("dollars"))[row] == pytest.approx(120)
        budgets = [here.under(Goal(50.0)), there.under(Goal(170.0))]
        assert budgets[0].columns["probability"] == pytest.approx(budgets[1].columns["probability"])
        assert there.under(Goal(119.0)).columns["probability"].max() == 0


class TestInterruptions:
    def test_slowdown_without_and_with_few_interruptions(self) -> None:
        assert float(Spot(0.0).slow_down(4)) == pytest.approx(1)
        few = Spot(per_hour=0.001, checkpoint_s=1200, restart_s=300)
        assert float(few.slow_down(2)) - 1 == pytest.approx(0.002 * (600 + 300) / 3600, rel=1e-3)

    def test_slowdown_matches_a_simulation(self) -> None:
        """Simulate 400 checkpoints with 3 interruptions an hour (1.5 per node, two nodes), 40 times."""
        spot, random = Spot(per_hour=1.5, checkpoint_s=600, restart_s=120), np.random.default_rng(7)
        took = []
        for _ in range(40):
            now, next_one = 0.0, random.exponential(1200)
            for _ in range(400):
                while next_one < now + 600:  # lost work restarts, and a restart may be interrupted too
                    now = next_one
                    next_one += random.exponential(1200)
                    while next_one < now + 120:
                        now = next_one
                        next_one += random.exponential(1200)
                    now += 120
                now += 600
            took.append(now / (400 * 600))
        error = np.std(took) / math.sqrt(len(took))
        assert abs(np.mean(took) - float(spot.slow_down(2))) < 4 * error

    def test_rare_checkpoints_and_more_nodes_take_longer(self) -> None:
        times = [
            float(Spot(0.5, minutes * 60).slow_down(nodes)) for minutes, nodes in ((5, 1), (10, 1), (10, 4), (60, 4))
        ]
        assert times == sorted(times)
        assert np.isinf(Spot(100.0, 3.6e6).slow_down(8))


LIMITS = st.sampled_from(
    [Goal(), Goal(deadline_s=7200), Goal(deadline_s=14400, budget_usd=60), Goal(deadline_s=60000, budget_usd=40)]
)
SOME = st.lists(st.sampled_from(["aws", "gcp", "azure"]), min_size=1, max_size=3, unique=True)


class TestMonotonicPrices:
    @settings(max_examples=25, deadline=None)
    @given(goal=LIMITS, data=st.data(), share=st.floats(0.05, 1.0))
    def test_cheaper_price_never_makes_a_plan_dearer(self, goal: Goal, data: st.DataObject, share: float) -> None:
        """Check goals that ask for the cheapest; a budget alone asks for the fastest."""
        places, listed = Places(("aws", "gcp", "azure"), "aws", data_bytes=300 * GB), market.offers
        cut = data.draw(st.sampled_from([o.instance for device in DEVICES for o in listed(device) if o.includes_host]))

        def cheaper(device: catalog.Device) -> list[Price]:
            return [o.model_copy(update={"price_usd_per_hour": o.price_usd_per_hour * (share if o.instance == cut else 1)})
                    for o in listed(device)]  # fmt: skip

        before = least(planned(places, goal))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(market, "offers", cheaper)
            assume(not any(billing.is_low(o, cheaper(d)) for d in DEVICES for o in cheaper(d) if o.instance == cut))
            assert least(planned(places, goal)) <= before * (1 + 1e-9)

    @settings(max_examples=25, deadline=None)
    @given(
        goal=LIMITS,
        home=st.sampled_from(["aws", "gcp", "azure", "ibm"]),
        gigabytes=st.floats(0, 2e5),
        more=st.floats(0, 2e5),
    )
    def test_more_transfer_is_never_cheaper(self, goal: Goal, home: str, gigabytes: float, more: float) -> None:
        def cost(data: float, back: float) -> float:
            return least(planned(Places(("aws", "gcp", "azure"), home, "", data * GB, back * GB), goal))

        assert cost(gigabytes, 1) <= cost(gigabytes + more, 1) * (1 + 1e-9)
        assert cost(1, gigabytes) <= cost(1, gigabytes + more) * (1 + 1e-9)

    @settings(max_examples=15, deadline=None)
    @given(goal=LIMITS, some=SOME)
    def test_all_clouds_include_the_options_of_each(self, goal: Goal, some: list[str]) -> None:
        together = planned(Places(tuple(some), "gcp", data_bytes=200 * GB), goal)
        alone = {name: planned(Places((name,), "gcp", data_bytes=200 * GB), goal) for name in some}
        assert least(together) == pytest.approx(min(least(one) for one in alone.values()))
        rows = place_rows(together, Places(tuple(some)), KINDS)
        assert together.chosen is None or rows[0] == together.chosen
        listed = {(cloud_of(together, row), round(float(together.columns["dollars"][row]), 6)) for row in rows}
        for name, one in alone.items():
            assert one.chosen is None or (name, round(least(one), 6)) in listed


OPTION = RunOption(
    device="t4", count=4, batch_per_device=64, precision="fp32", channels_last=False, compile=False, activation_checkpointing="none",
    param_dtype="fp32", algorithm="ring", vendor="AWS", instance="n1-standard-16:NVIDIA_TESLA_T4:2", region="us-east-2",
    prices="spot", usd_per_hour=11.56, price=OfferedPrice(11.56, 8, 64, True, "2026-11-01", False, 0.1, "vendor", "a list"), machines=1,
    step_time_s=1.0, throughput_samples_per_s=256.0, is_input_bound=False, memory_bytes=1e9, may_not_fit=None, startup_s=0.0,
    steps=1e4, hours=1.2, hours_interval=[1.0, 1.5], dollars=14.0, dollars_interval=[12.0, 17.0], probability=0.9, cloud="aws",
    platform="sagemaker", moving_usd=0.0,
)  # fmt: skip


def test_option_text() -> None:
    assert shown.devices(OPTION) == "4 × t4"
    assert shown.hourly(OPTION) == "$11.56 an hour for all 8 GPUs"
    assert shown.hourly(replace(OPTION, count=8)) == "$11.56 an hour"
    assert _nodes(replace(OPTION, machines=2)) == "2 × n1-standard-16 + 2 t4"


def test_fastest_is_compared_with_the_cheapest() -> None:
    fast, cheap, dear = (replace(OPTION, dollars=dollars) for dollars in (56.0, 14.0, 70.0))
    assert beside(fast, [dear, cheap]).startswith("the cheapest in the table, aws in us-east-2, spot")
    assert beside(fast, [dear, cheap]).endswith("costs $14.00, 75 % less")
    assert beside(cheap, [fast, dear]).startswith("the next best, aws")
    assert beside(cheap, [fast, dear]).endswith("costs $56.00, 4 times as much")
    assert beside(cheap, []) == "no other option in these clouds meets the goal"
