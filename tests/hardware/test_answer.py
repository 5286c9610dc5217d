"""Catalogue answers from Python: their sentences follow from the figures."""

from __future__ import annotations

import pytest

from chronograd.hardware import answer, catalog, market
from chronograd.units import dollars, si


def test_devices_name_the_fastest() -> None:
    (section,) = answer.devices().sections
    known = catalog.devices()
    peak = max(d.peak_flops_per_s.get("fp32", 0.0) for d in known)
    first = max(d.name for d in known if d.peak_flops_per_s.get("fp32") == peak)
    assert section.takeaway.startswith(f"{len(known)} devices; {first} has the highest fp32 peak, {si(peak, 'FLOP/s')}")
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [d.name for d in known]


def test_device_has_balance_sources_and_lowest_price() -> None:
    shown = answer.device("V100")
    v100 = catalog.device("v100")
    assert [section.title for section in shown.sections] == [f"v100: {v100.title}", "Sources", "Prices"]
    balance = v100.peak_flops_per_s["fp32"] / v100.bandwidth_bytes_per_s
    assert f"{balance:.1f} FLOP/byte" in shown.sections[0].takeaway
    assert shown.sections[1].takeaway.startswith(f"{sum(len(s.of) for s in v100.source)} figures: ")
    price = market.price_of(v100)
    assert price is not None
    assert shown.sections[2].takeaway.startswith(f"{dollars(price.usd_per_device_hour)} an hour on demand")
    assert shown.data == v100.model_dump(mode="json")


def test_devices_show_the_price_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of eight devices once appeared at its whole price."""
    eight = catalog.Price(
        vendor="AWS", instance="big", device="v100-32", count=8, price_usd_per_hour=32.0, kind="on-demand",
        includes_host=True, date="2020-05", tag="verified", source="this test",
    )  # fmt: skip
    monkeypatch.setattr(catalog, "_prices", lambda: (eight, eight.model_copy(update={"device": "t4", "count": 1})))
    table = answer.devices().sections[0].table
    assert table is not None
    columns = [table.columns.index(name) for name in ("name", "device-hour", "price of")]
    rows = {row[columns[0]]: [row[i] for i in columns[1:]] for row in table.rows}
    assert (rows["v100-32"], rows["t4"]) == (["$4.00†", "AWS, 2020-05"], ["$32.00†", "AWS, 2020-05"])
    assert set(rows["h100"]) == {"–"}
    told = answer.prices("v100-32").sections[0].takeaway
    assert told == (
        "$4.00 an hour on demand is the least for one device, AWS big ($32.00 for 8 devices) with the host, of 2020-05."
    )


def test_device_without_fp32_shows_its_own_precisions() -> None:
    section = answer.device("tpu-v5e").sections[0]
    assert section.takeaway.startswith(f"Machine balance {197e12 / 819e9:.1f} FLOP/byte (bf16)")
    assert section.table is not None
    assert ["peak int8", "393 TOP/s"] in [list(row) for row in section.table.rows]


def test_link_latency_threshold() -> None:
    link = catalog.link("ethernet-10g")
    size = si(link.latency_s * link.bandwidth_bytes_per_s, "B")
    assert f"below {size} spend more time on latency" in answer.link("ethernet-10g").sections[0].takeaway


@pytest.mark.parametrize(
    ("name", "message"), [("titan-xp", "No price of titan-xp is known"), ("t4", "is the least for one device")]
)
def test_prices(name: str, message: str) -> None:
    shown = answer.prices(name)
    assert message in shown.sections[0].takeaway
    assert len(shown.data) == len(catalog.prices(name))


def test_prices_and_devices_agree() -> None:
    (listed,) = answer.devices().sections
    (priced,) = answer.prices().sections
    assert listed.table is not None
    assert priced.table is not None
    in_table = {row[0] for row in priced.table.rows}
    named = {row[0] for row in listed.table.rows}
    assert in_table <= named
    assert named - in_table <= {word.strip(".,") for line in priced.lines for word in line.split()}


@pytest.mark.parametrize(
    "name",
    ["h100-pcie", "h100-nvl", "h200", "b200", "gb200", "gh200", "a10", "l40s", "rtx8000", "rtx2080ti", "titan-v", "v100-32", "mi250",
     "mi300x", "b300", "gb300", "h20", "a30", "a40", "rtx3080", "rtx4080", "rtx5080", "mi325x", "mi355x", "xeon-8481c", "epyc-7763", "epyc-9r14", "graviton3"],
)  # fmt: skip
def test_common_devices_and_their_links_exist(name: str) -> None:
    d = catalog.device(name)
    links = [d.node.intra_link, d.node.inter_link, d.node.host_link, d.node.group_link]
    assert all(catalog.link(link).bandwidth_bytes_per_s > 0 for link in links if link)
    assert d.tdp_w
    assert catalog.device(d.aliases[0]).name == name


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Quadro RTX 8000", "rtx8000"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B300", "b300"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA GeForce RTX 5080", "rtx5080"),
    ],
)
def test_device_by_driver_name(driver: str, name: str) -> None:
    assert catalog.device(driver).name == name


@pytest.mark.parametrize(
    ("name", "peak", "sparse"),
    # Vendors print figures for 2:4 sparsity: twice the dense peak.
    [
        ("h100-pcie", 756.5e12, 1513e12),
        ("b200", 2250e12, 4500e12),
        ("gb200", 2500e12, 5000e12),
        ("l40s", 362.05e12, 724.1e12),
    ],
)
def test_peaks_are_dense(name: str, peak: float, sparse: float) -> None:
    assert catalog.device(name).peak("bf16") == pytest.approx(peak, rel=0.01)
    assert catalog.device(name).peak("bf16") == pytest.approx(sparse / 2, rel=0.01)
