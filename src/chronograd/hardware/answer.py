"""The answers about devices, links and prices, with the source of every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chronograd.answer import Answer, Section, Table
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Device, Link, Precision, Price, Source
from chronograd.units import GIB, dollars, seconds, si
from chronograd.words import how_many

# fp64 is only on the page of one device: networks are not trained in it.
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
# A sentence names the fastest device in these.
LEADING: tuple[Precision, ...] = ("fp32", "bf16")
MOVED = (
    "US dollars an hour of the whole instance, including the host unless it says GPU only. †: older than a year. `--json` has the "
    "sources; `chronograd devices --prices --update FILE` takes newer ones."
)


def devices() -> Answer:
    """List every device: memory, bandwidth, peaks and price."""
    known = catalog.devices()
    told = []
    for precision in LEADING:
        peak, first = max((d.peak_flops_per_s.get(precision, 0.0), d.name) for d in known)
        told.append(f"{first} has the highest {precision} peak, {si(peak, 'FLOP/s')}")
    rows = [
        [
            d.name,
            f"{d.memory_bytes / GIB:.0f} GiB",
            si(d.bandwidth_bytes_per_s, "B/s", digits=4),
            *(_tera(d.peak_flops_per_s.get(precision)) for precision in PRECISIONS),
            _price_cell(d),
            d.title,
        ]
        for d in known
    ]
    section = Section(
        title="Devices",
        takeaway=f"{how_many(len(known), 'devices')}; {', '.join(told)}.",
        table=Table(("name", "memory", "bandwidth", *PRECISIONS, "per hour", "device"), rows, set(range(1, 8))),
        caption="Peaks in TFLOP/s. Price: the lowest for one device on demand, in whole instances; * without the host machine.\n"
        "`chronograd devices NAME` shows sources and dates.",
    )
    return Answer("Devices", sections=[section], data=[d.model_dump(mode="json") for d in known])


def device(name: str) -> Answer:
    """Describe one device, with its sources and prices. Raises as `catalog.device`."""
    d = catalog.device(name)
    rows = [
        ("kind", d.kind + (f", {d.year}" if d.year else "")),
        ("also called", ", ".join(d.aliases) or "–"),
        *((("chip", d.chip.upper()),) if d.chip else ()),
        ("memory", f"{d.memory_bytes / GIB:.1f} GiB, {si(d.bandwidth_bytes_per_s, 'B/s', digits=4)}"),
        ("last shared cache", f"{d.l2_bytes / 2**20:g} MiB"),
        ("units", str(d.num_units)),
        ("power limit", f"{d.tdp_w:g} W" if d.tdp_w else "–"),
        *((f"peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.peak_flops_per_s.items()),
        *((f"base-clock peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.base_peak_flops_per_s.items()),
        ("usual node", f"{how_many(d.node.devices_per_node, 'devices')} over {d.node.intra_link}"),
        *(
            [("between groups", f"{how_many(d.node.per_group, 'devices')} each, over {d.node.group_link}")]
            if d.node.group_link
            else []
        ),
        ("between nodes", d.node.inter_link),
        ("to the host", d.node.host_link or "–"),
        ("calibration", ", ".join(d.calibration) if d.calibration else "none: figures are the datasheet's"),
        *((f"provenance: {key}", str(value)) for key, value in d.provenance.items()),
    ]
    section = Section(
        title=f"{d.name}: {d.title}",
        takeaway=f"Machine balance {d.machine_balance():.1f} FLOP/byte (fp32): work with fewer FLOPs per byte is bound by "
        "memory.",
        table=Table(("property", "value"), rows),
        caption=d.note,
    )
    sections = [section, *_sources(d.source), *([_prices(known, d)] if (known := catalog.prices(d)) else [])]
    return Answer(d.title, sections=sections, data=d.model_dump(mode="json"))


def links() -> Answer:
    """List every link: latency and bandwidth."""
    known = catalog.links()
    fastest = max(known, key=lambda k: k.bandwidth_bytes_per_s)
    rows = [[k.name, k.title, seconds(k.latency_s), si(k.bandwidth_bytes_per_s, "B/s", digits=4), k.per] for k in known]
    section = Section(
        title="Links",
        takeaway=f"{how_many(len(known), 'links')}; {fastest.name} has the highest bandwidth, "
        f"{si(fastest.bandwidth_bytes_per_s, 'B/s')} per {fastest.per}.",
        table=Table(("name", "link", "latency", "bandwidth", "per"), rows, {2, 3}),
        caption="Bandwidth in one direction, of one device or one node.",
    )
    return Answer("Links", sections=[section], data=[k.model_dump(mode="json") for k in known])


def link(name: str) -> Answer:
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
    return Answer(k.title, sections=[section, *_sources(k.source)], data=k.model_dump(mode="json"))


def prices(name: str | None = None) -> Answer:
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
    return Answer("Prices", sections=[section], data=data)


def _without_price(priced: set[str]) -> list[str]:
    """Describe the devices without a row in the table: priced under another name, or not at all."""
    rest = [d for d in catalog.devices() if d.name not in priced]
    under = [f"{d.name} as {d.priced_as.count:g} x {d.priced_as.device}" for d in rest if d.priced_as]
    without = [d.name for d in rest if not d.priced_as]
    return [
        *([f"Priced under another name: {', '.join(under)}."] if under else []),
        *([f"No price is known for: {', '.join(without)}."] if without else []),
    ]


def _prices(known: Sequence[Price], of: Device | str | None) -> Section:
    rows = [
        [
            p.device,
            f"{p.vendor} {p.instance}{f', {p.region}' if p.region else ''}{', spot' * (p.kind == 'spot')}"
            f"{'' if p.includes_host else ', GPU only'}",
            f"{p.count:g}" + (f" to {p.most_devices:g}" if p.most_devices > p.count else ""),
            "–" if p.vcpus is None else f"{p.vcpus:g}",
            *(dollars(p.price_usd_per_hour), dollars(p.usd_per_device_hour)),
            (p.date[:7] or "unknown") + ("†" if market.is_old(p) else ""),
        ]
        for p in known
    ]
    columns = ("device", "instance", "devices", "vCPUs", "hour", "each", "price of")
    # In 80 columns: for one device all but its name, for many the columns that compare them.
    told_of = (1, 2, 3, 4, 5, 6) if of is not None else (0, 1, 2, 4, 6)
    table = Table(
        [columns[i] for i in told_of],
        [[row[i] for i in told_of] for row in rows],
        {j for j, i in enumerate(told_of) if i in (2, 3, 4, 5)},
    )
    dates = sorted(p.date for p in known if p.date)
    between = f", of {dates[0]} to {dates[-1]}" if dates else ""
    told = f"{how_many(len(known), 'prices')} of {len({p.device for p in known})} devices{between}."
    if of is not None and (price := market.price_of(of)) is not None:
        told = (
            f"{dollars(float(price.usd_per_hour(1)))} an hour on demand is the least for one device, {price.vendor} "
            f"{price.instance} {'with' if price.includes_host else 'without'} the host, of {price.date or 'no known date'}."
        )
    return Section("Prices", told, table=table, caption=MOVED)


def updated(path: Path) -> Answer:
    """Merge a price table into the user's own, and describe the result. Raises as `market.update_prices`."""
    rows, own = market.update_prices(path)
    latest = max(row.date for row in rows)
    section = _prices(rows, None)
    count = "1 price" if len(rows) == 1 else how_many(len(rows), "prices")
    told = f"Saved in {own}: {count} from {path}, the latest of {latest}. The latest price of each instance is used."
    data = [row.model_dump(mode="json") for row in rows]
    return Answer("Prices", sections=[replace(section, title="Newer prices", takeaway=told)], data=data)


def _sources(sources: Sequence[Source]) -> list[Section]:
    """Return a section with the sources of figures; nothing if there is no source."""
    if not sources:
        return []
    rows = [[", ".join(s.of), s.tag, s.date, s.source] for s in sources]
    tags = [s.tag for s in sources for _ in s.of]
    counts = ", ".join(f"{tags.count(tag)} {tag}" for tag in dict.fromkeys(tags))
    return [
        Section("Sources", f"{len(tags)} figures: {counts}.", table=Table(("figures", "tag", "read", "source"), rows))
    ]


def _tera(flops_per_s: float | None) -> str:
    return "–" if flops_per_s is None else f"{flops_per_s / 1e12:.4g}"


def _price_cell(d: Device) -> str:
    price = market.price_of(d)
    return "–" if price is None else dollars(float(price.usd_per_hour(1))) + ("" if price.includes_host else "*")
