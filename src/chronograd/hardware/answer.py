"""The answers about devices, links and prices, with the source of every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chronograd.answer import Answer, Column, Section, Table
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Device, Link, Precision, Price, Source
from chronograd.units import GIB, dollars, seconds, si
from chronograd.words import how_many

# fp64 is left to the page of one device: networks are not trained in it.
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
# Whose fastest device is named in a sentence.
LEADING: tuple[Precision, ...] = ("fp32", "bf16")
MOVED = (
    "US dollars an hour of the whole instance, including the host unless it says GPU only. †: older than a year. `--json` has the "
    "sources; `chronograd devices --prices --update FILE` takes newer ones."
)


def devices() -> Answer[list[Device]]:
    """List every device: memory, bandwidth, peaks and price."""
    known = catalog.devices()
    told = []
    for precision in LEADING:
        peak, first = max((d.peak_flops_per_s.get(precision, 0.0), d.name) for d in known)
        told.append(f"{first} has the highest {precision} peak, {si(peak, 'FLOP/s')}")
    section = Section(
        title="Devices",
        takeaway=f"{how_many(len(known), 'devices')}; {', '.join(told)}.",
        table=Table.of(known, _DEVICE),
        caption="Peaks in TFLOP/s. Device-hour: US dollars an hour of one device on demand, the price of its instance divided by its "
        "devices; * without the host machine, †: older than a year.\n`chronograd devices NAME` shows instances and sources.",
    )
    return Answer("Devices", sections=[section], result=known)


def device(name: str) -> Answer[Device]:
    """Describe one device, with its sources and prices. Raises as `catalog.device`."""
    d = catalog.device(name)
    rows = [
        ("kind", d.kind + (f", {d.year}" if d.year else "")),
        ("also called", ", ".join(d.aliases) or "–"),
        *((("chip", d.chip.upper()),) if d.chip else ()),
        ("memory", f"{d.memory_bytes / GIB:.1f} GiB, {si(d.bandwidth_bytes_per_s, 'B/s', digits=4)}"),
        ("usable memory", _usable(d)),
        ("last shared cache", f"{d.l2_bytes / 2**20:g} MiB"),
        ("units", str(d.num_units)),
        ("power limit", f"{d.tdp_w:g} W" if d.tdp_w else "–"),
        *((f"peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.peak_flops_per_s.items()),
        *((f"peak {p}", si(v, "OP/s", digits=4)) for p, v in d.peak_8bit_ops_per_s.items()),
        *((f"base-clock peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.base_peak_flops_per_s.items()),
        ("usual node", f"{how_many(d.node.devices_per_node, 'devices')} over {d.node.intra_link}"),
        *(
            [("between groups", f"{how_many(d.node.per_group, 'devices')} each, over {d.node.group_link}")]
            if d.node.group_link
            else []
        ),
        ("between nodes", _between_nodes(d)),
        ("to the host", d.node.host_link or "–"),
        ("calibration", ", ".join(d.calibration) if d.calibration else "none: figures are the datasheet's"),
        *((f"provenance: {key}", str(value)) for key, value in d.provenance.items()),
    ]
    precision: Precision = "fp32" if "fp32" in d.peak_flops_per_s else next(iter(d.peak_flops_per_s))
    section = Section(
        title=f"{d.name}: {d.title}",
        takeaway=f"Machine balance {d.machine_balance(precision):.1f} FLOP/byte ({precision}): work with fewer FLOPs per byte is "
        "bound by memory.",
        table=Table(("property", "value"), rows),
        caption=d.note,
    )
    sections = [section, *_sources(d.source), *([_prices(known, d)] if (known := catalog.prices(d)) else [])]
    return Answer(d.title, sections=sections, result=d)


def links() -> Answer[list[Link]]:
    """List every link: latency and bandwidth."""
    known = catalog.links()
    fastest = max(known, key=lambda k: k.bandwidth_bytes_per_s)
    rows = [[k.name, k.title, seconds(k.latency_s), _rate(k.bandwidth_bytes_per_s), k.per] for k in known]
    section = Section(
        title="Links",
        takeaway=f"{how_many(len(known), 'links')}; {fastest.name} has the highest bandwidth, "
        f"{si(fastest.bandwidth_bytes_per_s, 'B/s')} per {fastest.per}.",
        table=Table(("name", "link", "latency", "bandwidth", "per"), rows, {2, 3}),
        caption="Bandwidth in one direction, of one device or one node.",
    )
    return Answer("Links", sections=[section], result=known)


def link(name: str) -> Answer[Link]:
    """Describe one link, with its sources. Raises as `catalog.link`."""
    k: Link = catalog.link(name)
    rows = [
        ("latency", seconds(k.latency_s)),
        ("bandwidth", f"{si(k.bandwidth_bytes_per_s, 'B/s', digits=4)} in each direction, per {k.per}"),
    ]
    section = Section(
        title=f"{k.name}: {k.title}",
        takeaway=f"Messages below {si(k.latency_s * k.bandwidth_bytes_per_s, 'B')} spend more time on latency than on "
        "bandwidth.",
        table=Table(("property", "value"), rows),
        caption=k.note,
    )
    return Answer(k.title, sections=[section, *_sources(k.source)], result=k)


def prices(name: str | None = None) -> Answer[list[Price]]:
    """List prices of one device, or of all. Raises as `catalog.prices`."""
    known = catalog.prices(name)
    if name is None:
        known = sorted(known, key=lambda p: (p.device, p.kind, p.usd_per_device_hour))
    data = [
        {
            **p.model_dump(mode="json"),
            "usd_per_device_hour": p.usd_per_device_hour,
            "is_older_than_a_year": market.is_old(p),
        }
        for p in known
    ]
    if known:
        section = _prices(known, name)
        if name is None and (others := _without_price({p.device for p in known})):
            section = replace(section, lines=others)
    else:
        section = Section("Prices", f"No price of {name} is known; state one as cluster.price_usd_per_hour.")
    return Answer("Prices", sections=[section], data=data, result=known)


def _without_price(priced: set[str]) -> list[str]:
    """The devices that no row of the table names: priced as another, or not at all."""
    rest = [d for d in catalog.devices() if d.name not in priced]
    under = [f"{d.name} as {d.priced_as.count:g} x {d.priced_as.device}" for d in rest if d.priced_as]
    without = [d.name for d in rest if not d.priced_as]
    return [
        *([f"Priced as another: {', '.join(under)}."] if under else []),
        *([f"No price is known of: {', '.join(without)}."] if without else []),
    ]


def _prices(known: Sequence[Price], of: Device | str | None) -> Section:
    # In 80 columns: for one device all but its name, for many the columns that compare them.
    left_out = {"device"} if of is not None else {"vCPUs", "each"}
    table = Table.of(known, [column for column in _PRICE if column.name not in left_out])
    dates = sorted(p.date for p in known if p.date)
    between = f", of {dates[0]} to {dates[-1]}" if dates else ""
    told = f"{how_many(len(known), 'prices')} of {len({p.device for p in known})} devices{between}."
    if of is not None and (price := market.price_of(of)) is not None:
        several = f" ({dollars(price.price_usd_per_hour)} for {price.count:g} devices)" if price.count > 1 else ""
        told = (
            f"{dollars(price.usd_per_device_hour)} an hour on demand is the least for one device, {price.vendor} {price.instance}"
            f"{several} {'with' if price.includes_host else 'without'} the host, of {price.date or 'no known date'}."
        )
    return Section("Prices", told, table=table, caption=MOVED)


def updated(path: Path) -> Answer[list[Price]]:
    """Merge a price table into the user's own, and describe the result. Raises as `market.update_prices`."""
    rows, own = market.update_prices(path)
    latest = max(row.date for row in rows)
    section = _prices(rows, None)
    count = "1 price" if len(rows) == 1 else how_many(len(rows), "prices")
    told = f"Saved in {own}: {count} from {path}, the latest of {latest}. The latest price of each instance is used."
    return Answer("Prices", sections=[replace(section, title="Newer prices", takeaway=told)], result=list(rows))


def _sources(sources: Sequence[Source]) -> list[Section]:
    """Return a section with the sources of figures; nothing if there is no source."""
    if not sources:
        return []
    tags = [s.tag for s in sources for _ in s.of]
    counts = ", ".join(f"{tags.count(tag)} {tag}" for tag in dict.fromkeys(tags))
    table = Table(("figures", "tag", "read", "source"), [[", ".join(s.of), s.tag, s.date, s.source] for s in sources])
    return [Section("Sources", f"{len(tags)} figures: {counts}.", table=table)]


def _usable(d: Device) -> str:
    if d.reported_bytes is None:
        return f"{d.memory_bytes / GIB:.1f} GiB: as sold, because no report of its driver is listed"
    return f"{d.reported_bytes / GIB:.1f} GiB ({d.reported_bytes / 2**20:,.0f} MiB), as its driver reports"


def _between_nodes(d: Device) -> str:
    k = catalog.link(d.node.inter_link)
    return f"{k.name}: {_rate(k.bandwidth_bytes_per_s)} per {k.per}"


def _rate(bytes_per_s: float) -> str:
    return si(bytes_per_s, "B/s", digits=4)


def _price_cell(d: Device) -> str | None:
    if (price := market.price_of(d)) is None:
        return None
    return dollars(price.usd_per_device_hour) + "*" * (not price.includes_host) + "†" * market.is_old(price)


def _price_source(d: Device) -> str | None:
    price = market.price_of(d)
    return None if price is None else f"{price.vendor}, {price.date or 'no date'}"


def _instance(p: Price) -> str:
    signs = (
        f"{f', {p.region}' if p.region else ''}{', spot' * (p.kind == 'spot')}{'' if p.includes_host else ', GPU only'}"
    )
    return f"{p.vendor} {p.instance}{signs}"


def _peak(precision: Precision) -> Column:
    return Column(
        precision, lambda d: d.peak_flops_per_s.get(precision), format=lambda peak: f"{round(peak / 1e12, 2):.4g}"
    )


_DEVICE = (
    Column("name", "name"),
    Column("memory", "memory_bytes", format=lambda size: f"{size / GIB:.0f} GiB"),
    Column("bandwidth", "bandwidth_bytes_per_s", format=_rate),
    *map(_peak, PRECISIONS),
    Column("device-hour", _price_cell, format=str),
    Column("price of", _price_source, format=str),
    Column("device", "title"),
)
_PRICE = (
    Column("device", "device"),
    Column("instance", _instance),
    Column(
        "devices",
        lambda p: f"{p.count:g}" + (f" to {p.most_devices:g}" if p.most_devices > p.count else ""),
        format=str,
    ),
    Column("vCPUs", "vcpus", format="g"),
    Column("hour", "price_usd_per_hour", "usd"),
    Column("each", "usd_per_device_hour", "usd"),
    Column("price of", lambda p: (p.date[:7] or "unknown") + ("†" if market.is_old(p) else "")),
)
