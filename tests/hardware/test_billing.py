"""Billing of runs on rented machines, and suspicious prices."""

from __future__ import annotations

import pytest

from chronograd.hardware import billing, catalog, market
from chronograd.hardware.catalog import Price
from chronograd.plan.renting import billed


def offer(vendor: str = "AWS", **fields: object) -> Price:
    stated = {"vendor": vendor, "instance": "x", "device": "v100", "count": 1, "price_usd_per_hour": 3.6, "kind": "on-demand",
              "includes_host": True, "date": "2026-11-22", "tag": "assumed", "source": "a test"}  # fmt: skip
    return Price.model_validate({**stated, **fields})


@pytest.mark.parametrize(
    ("vendor", "seconds", "expected"),
    [("AWS", 0.43, 60), ("GCP", 61.2, 62), ("Lambda", 61, 120), ("Verda", 1, 600), ("RunPod", 0.43, 1), ("CoreWeave", 10, 3600),
     ("CoreWeave", 3601, 7200), ("AWS", 3600, 3600)],
)  # fmt: skip
def test_minimum_and_billing_steps(vendor: str, seconds: float, expected: float) -> None:
    terms = billing.billing_of(vendor)
    columns = {"minimum_h": terms.minimum_s / 3600, "billing_h": terms.step_s / 3600}
    assert 3600 * billed(seconds / 3600, columns) == pytest.approx(expected)


def test_every_vendor_has_a_billing_source_or_hours() -> None:
    for vendor in {row.vendor for row in catalog.prices()}:
        found = billing.billing_of(vendor)
        assert found.source
        assert found is billing.UNKNOWN or found.date
        assert found.minimum_s >= found.step_s


def test_price_far_from_peers_is_flagged() -> None:
    peers = [offer(vendor, price_usd_per_hour=price) for vendor, price in (("B", 3), ("C", 3.3), ("D", 4))]
    assert billing.peers_median(offer(), [offer(), *peers]) == 3.3
    assert billing.price_note(offer(), peers) == ""
    assert "below 1/3 of the on-demand median" in billing.price_note(offer(price_usd_per_hour=1), peers)
    assert "above 3 times" in billing.price_note(offer(price_usd_per_hour=12), peers)
    assert billing.price_note(offer(price_usd_per_hour=1), peers[:2]) == ""
    regions = [offer("B", price_usd_per_hour=3, region=str(i)) for i in range(3)]
    assert billing.peers_median(offer(), regions) is None


def test_spot_price_without_spot_peers() -> None:
    peers = [offer(vendor) for vendor in "BCD"]
    assert "below 1/5 of the on-demand median" in billing.price_note(offer(kind="spot", price_usd_per_hour=0.7), peers)
    assert billing.price_note(offer(kind="spot", price_usd_per_hour=1), peers) == ""


def test_suspicious_a100_price_is_flagged() -> None:
    flagged = {(row.vendor, row.instance) for row in catalog.prices() if billing.price_note(row)}
    assert ("Verda", "1A100.40S.22V") in flagged
    assert len(flagged) < 0.1 * len(catalog.prices())


def test_price_of_one_board_and_of_four() -> None:
    one, four = market.price_of("k80"), market.price_of("k80", count=4)
    assert one is not None
    assert four is not None
    gpu = market.price_of("k80-gk210")
    assert gpu is not None
    assert float(one.usd_per_hour(1)) == pytest.approx(2 * gpu.price_usd_per_hour)
    assert float(four.usd_per_hour(4)) == pytest.approx(8 * gpu.price_usd_per_hour)
