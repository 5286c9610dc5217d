"""Rented settings, computed by hand: whole instances, hosts, and image decoding."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Price
from chronograd.job import Job, from_dict
from chronograd.plan.renting import VCPUS_PER_DEVICE, Decoding, RentalTerms, Rented, rent

V100 = catalog.device("v100")
EXACT = Decoding(100.0, 100.0, 100.0)


def job(**cluster: object) -> Job:
    return from_dict(
        {"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": {"device": "v100", **cluster}}
    )


def offer(instance: str, count: float, usd: float, **fields: object) -> Price:
    stated = {"vendor": "A", "instance": instance, "device": "v100", "count": count, "price_usd_per_hour": usd, "kind": "on-demand",
              "includes_host": True, "date": "2026-11-22", "tag": "assumed", "source": "a test"}  # fmt: skip
    return Price.model_validate({**stated, **fields})


def rented(
    monkeypatch: pytest.MonkeyPatch, offers: list[Price], counts: list[int], decoding: Decoding | None = None
) -> Rented:
    monkeypatch.setattr(market, "offers", lambda device: offers)
    n = len(counts)
    table = {
        "device": np.zeros(n, dtype=int), "count": np.array(counts), "batch_per_rank": np.full(n, 100),
        "step_time_s": np.full(n, 0.05), "sigma_log": np.full(n, 0.2), "throughput_samples_per_s": np.array(counts) * 100 / 0.05,
        "fits": np.full(n, True),
    }  # fmt: skip
    return rent(table, [V100], job(), RentalTerms(decoding=decoding))


def by_offer(found: Rented, column: str) -> dict[str, list[float]]:
    return {o.instance: found.columns[column][found.columns["offer"] == i].tolist() for i, o in enumerate(found.offers)}


def test_whole_instances_are_charged_and_small_ones_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A V100 node has eight: two machines of eight are nodes, but eight machines of one are not."""
    offers = [offer("eight", 8, 24), offer("pod", 1, 4, up_to=4), offer("one", 1, 3)]
    found = rented(monkeypatch, offers, [1, 2, 4, 8, 16])
    assert by_offer(found, "count") == {"eight": [1, 2, 4, 8, 16], "pod": [1, 2, 4], "one": [1]}
    assert by_offer(found, "price_usd_per_hour") == {"eight": [24, 24, 24, 24, 48], "pod": [4, 8, 16], "one": [3]}
    assert by_offer(found, "machines") == {"eight": [1, 1, 1, 1, 2], "pod": [1, 1, 1], "one": [1]}


def test_price_without_host_is_no_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rented(monkeypatch, [offer("GPU", 1, 0.1, includes_host=False)], [1, 2])
    assert found.without_host == ["v100"]
    assert np.isnan(found.columns["price_usd_per_hour"]).all()
    assert found.columns["count"].tolist() == [1, 2]


def test_price_in_the_job_is_on_demand() -> None:
    table = {"device": np.zeros(1, dtype=int), "count": np.array([16]), "batch_per_rank": np.array([8]), "step_time_s": np.ones(1),
             "sigma_log": np.zeros(1), "throughput_samples_per_s": np.ones(1), "fits": np.array([True])}  # fmt: skip
    found = rent(table, [V100], job(price_usd_per_hour=2.0), RentalTerms(("on-demand",)))
    assert (found.columns["price_usd_per_hour"].tolist(), found.columns["sigma_price"].tolist()) == ([32.0], [0.0])
    assert [o.vendor for o in found.offers] == ["the job"]


def test_step_time_includes_host_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode 100 images/s per core: 100 samples take 0.01 s on 100 cores and 0.125 s on 8; the network takes 0.05 s."""
    offers = [
        offer("many", 8, 24, vcpus=100),
        offer("few", 8, 24, vcpus=8),
        offer("pod", 1, 4, vcpus=10, up_to=4),
        offer("unknown", 1, 4),
    ]
    found = rented(monkeypatch, offers, [1, 4, 16], EXACT)
    assert by_offer(found, "step_time_s") == {
        "many": [0.05, 0.05, pytest.approx(0.08)],  # two machines of eight: 800 samples on 100 cores
        "few": [pytest.approx(0.125), pytest.approx(0.5), pytest.approx(1.0)],
        "pod": [pytest.approx(0.1), pytest.approx(0.1)],  # cores grow with the pod
        "unknown": [pytest.approx(1 / VCPUS_PER_DEVICE)],
    }
    assert by_offer(found, "is_input_bound")["many"] == [False, False, True]
    assert by_offer(found, "throughput_samples_per_s")["few"] == pytest.approx([800, 800, 1600])
    assert by_offer(found, "sigma_log")["few"] == [0, 0, 0]
    assert by_offer(found, "sigma_log")["many"] == [0.2, 0.2, 0]
    assert by_offer(rented(monkeypatch, offers, [1], None), "step_time_s")["few"] == [0.05]


def test_decoding_spread_comes_from_its_interval() -> None:
    assert Decoding(100 / 1.5, 100, 150).sigma_log == pytest.approx(np.log(1.5) / 1.2816, rel=1e-3)
