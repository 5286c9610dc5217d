"""What Python gets of the catalogue: sentences that follow from its figures."""

from __future__ import annotations

import pytest

from chronograd.hardware import answer, catalog, market
from chronograd.units import dollars, si


def test_devices_name_the_fastest() -> None:
    (section,) = answer.devices().sections
    known = catalog.devices()
    peak = max(d.peak("fp32") for d in known)
    first = max(d.name for d in known if d.peak("fp32") == peak)
    assert section.takeaway.startswith(f"{len(known)} devices; {first} has the highest fp32 peak, {si(peak, 'FLOP/s')}")
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [d.name for d in known]


def test_a_device_has_its_balance_sources_and_least_price() -> None:
    shown = answer.device("V100")
    v100 = catalog.device("v100")
    assert [section.title for section in shown.sections] == [f"v100: {v100.title}", "Sources", "Prices"]
    balance = v100.peak_flops_per_s["fp32"] / v100.bandwidth_bytes_per_s
    assert f"{balance:.1f} FLOP/byte" in shown.sections[0].takeaway
    assert shown.sections[1].takeaway.startswith(f"{sum(len(s.of) for s in v100.source)} figures: ")
    price = market.price_of(v100)
    assert price is not None
    assert shown.sections[2].takeaway.startswith(f"{dollars(float(price.usd_per_hour(1)))} an hour on demand")
    assert shown.data == v100.model_dump(mode="json")


def test_a_link_says_from_which_size_on_bandwidth_matters() -> None:
    link = catalog.link("ethernet-10g")
    size = si(link.latency_s * link.bandwidth_bytes_per_s, "B")
    assert f"below {size} spend more time on latency" in answer.link("ethernet-10g").sections[0].takeaway


@pytest.mark.parametrize(
    ("name", "said"), [("titan-xp", "No price of titan-xp is known"), ("t4", "is the least for one device")]
)
def test_prices(name: str, said: str) -> None:
    shown = answer.prices(name)
    assert said in shown.sections[0].takeaway
    assert len(shown.data) == len(catalog.prices(name))
