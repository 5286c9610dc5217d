"""`chronograd devices`: what the catalogue knows of devices, links and prices, with the source of every figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from chronograd.cli.common import json_option, print_json, print_table
from chronograd.units import GIB, dollars, seconds, si

if TYPE_CHECKING:
    from pydantic import BaseModel

    from chronograd.hardware.catalog import Device, Link, Precision, Price, Source

E = TypeVar("E", bound="BaseModel")
# fp64 is left to the page of one device: networks are not trained in it.
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")


@click.command()
@click.argument("name", required=False)
@click.option("--links", "of_links", is_flag=True, help="Links instead of devices.")
@click.option("--prices", "of_prices", is_flag=True, help="Prices instead of devices.")
@json_option
def command(name: str | None, of_links: bool, of_prices: bool, as_json: bool) -> None:
    """List devices, links and prices, or show one with its sources.

    NAME is a device (or a link, with --links) of the catalogue, `local`, or a device file.
    Peaks are dense, 1 FMA = 2 FLOPs.
    """
    from chronograd.hardware import catalog

    if of_links and of_prices:
        raise click.UsageError("--links and --prices exclude each other")
    if of_links:
        links = catalog.links() if name is None else [catalog.link(name)]
        _show(links, as_json, one=name is not None, table=_links_table, page=_link_page)
    elif of_prices:
        prices = catalog.prices(name)
        if as_json:
            print_json([{**p.model_dump(mode="json"), "usd_per_device_hour": p.usd_per_device_hour} for p in prices])
        elif prices:
            _prices_table(prices)
        else:
            click.echo(f"No price of {name} is known; state one as cluster.price_usd_per_hour.")
    else:
        devices = catalog.devices() if name is None else [catalog.device(name)]
        _show(devices, as_json, one=name is not None, table=_devices_table, page=_device_page)


def _show(
    entries: Sequence[E], as_json: bool, one: bool, table: Callable[[Sequence[E]], None], page: Callable[[E], None]
) -> None:
    """Entries as JSON, as the page of one, or as a table."""
    if as_json:
        data = [entry.model_dump(mode="json") for entry in entries]
        print_json(data[0] if one else data)
    elif one:
        page(entries[0])
    else:
        table(entries)


def _devices_table(devices: Sequence[Device]) -> None:
    rows = [
        [
            d.name,
            f"{d.memory_bytes / GIB:.0f} GiB",
            si(d.bandwidth_bytes_per_s, "B/s", digits=4),
            *(_tera(d.peak_flops_per_s.get(precision)) for precision in PRECISIONS),
            _price_cell(d),
            d.title,
        ]
        for d in devices
    ]
    print_table(
        ("name", "memory", "bandwidth", *PRECISIONS, "per hour", "device"),
        rows,
        right=range(1, 8),
        caption="Peaks in TFLOP/s. Price: least of the latest on-demand prices, * without the host machine.\n"
        "`chronograd devices NAME` shows sources and dates.",
    )


def _links_table(links: Sequence[Link]) -> None:
    print_table(
        ("name", "link", "latency", "bandwidth", "per"),
        [[k.name, k.title, seconds(k.latency_s), si(k.bandwidth_bytes_per_s, "B/s", digits=4), k.per] for k in links],
        right=(2, 3),
        caption="Bandwidth in one direction, of one device or one node.",
    )


def _prices_table(prices: list[Price]) -> None:
    rows = [
        [
            *(p.vendor, p.instance, p.device, f"{p.count:g}"),
            *(dollars(p.price_usd_per_hour), dollars(p.usd_per_device_hour)),
            *(p.kind, "with host" if p.includes_host else "device only", p.date or "unknown", p.tag),
        ]
        for p in prices
    ]
    print_table(
        ("vendor", "instance", "device", "count", "per hour", "per device", "kind", "covers", "date", "tag"),
        rows,
        right=(3, 4, 5),
        caption="US dollars. Prices moved a lot: use them only with their date. `--json` has the source of each.",
    )


def _device_page(device: Device) -> None:
    from chronograd.hardware import catalog

    rows = [
        ["kind", device.kind + (f", {device.year}" if device.year else "")],
        ["also called", ", ".join(device.aliases) or "–"],
        ["memory", f"{device.memory_bytes / GIB:.1f} GiB, {si(device.bandwidth_bytes_per_s, 'B/s', digits=4)}"],
        ["last shared cache", f"{device.l2_bytes / 2**20:g} MiB"],
        ["units", str(device.num_units)],
        ["power limit", f"{device.tdp_w:g} W" if device.tdp_w else "–"],
        *([f"peak {p}", si(v, "FLOP/s", digits=4)] for p, v in device.peak_flops_per_s.items()),
        *([f"base-clock peak {p}", si(v, "FLOP/s", digits=4)] for p, v in device.base_peak_flops_per_s.items()),
        ["machine balance", f"{device.machine_balance():.1f} FLOP/byte (fp32)"],
        ["usual node", f"{device.node.devices_per_node} devices over {device.node.intra_link}"],
        ["between nodes", device.node.inter_link],
        ["to the host", device.node.host_link or "–"],
        ["calibration", ", ".join(device.calibration) if device.calibration else "none: figures are the datasheet's"],
        *([f"provenance: {key}", str(value)] for key, value in device.provenance.items()),
    ]
    print_table((device.name, device.title), rows, caption=device.note)
    _sources_table(device.source)
    found = catalog.prices(device)
    if found:
        _prices_table(found)


def _link_page(link: Link) -> None:
    rows = [
        ["latency", seconds(link.latency_s)],
        ["bandwidth", f"{si(link.bandwidth_bytes_per_s, 'B/s', digits=4)} in each direction, per {link.per}"],
    ]
    print_table((link.name, link.title), rows, caption=link.note)
    _sources_table(link.source)


def _sources_table(sources: tuple[Source, ...]) -> None:
    rows = [[", ".join(s.of), s.tag, s.date, s.source] for s in sources]
    if rows:
        print_table(("figures", "tag", "read", "source"), rows)


def _tera(flops_per_s: float | None) -> str:
    return "–" if flops_per_s is None else f"{flops_per_s / 1e12:.4g}"


def _price_cell(device: Device) -> str:
    from chronograd.hardware import catalog

    price = catalog.price_of(device)
    if price is None:
        return "–"
    return dollars(price.usd_per_device_hour) + ("" if price.includes_host else "*")
