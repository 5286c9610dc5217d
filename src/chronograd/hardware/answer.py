"""What the catalogue says of devices, links and prices, with the source of every figure."""

from __future__ import annotations

from collections.abc import Sequence

from chronograd.answer import Answer, Section, Table
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link, Precision, Price, Source
from chronograd.units import GIB, dollars, seconds, si

# fp64 is left to the page of one device: networks are not trained in it.
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
# Whose fastest device is named in a sentence.
LEADING: tuple[Precision, ...] = ("fp32", "bf16")
MOVED = "US dollars. Prices moved a lot: use them only with their date. `--json` has the source of each."


def devices() -> Answer:
    """Every device: memory, bandwidth, peaks and price."""
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
        takeaway=f"{len(known)} devices; {', '.join(told)}.",
        table=Table(("name", "memory", "bandwidth", *PRECISIONS, "per hour", "device"), rows, set(range(1, 8))),
        caption="Peaks in TFLOP/s. Price: least of the latest on-demand prices, * without the host machine.\n"
        "`chronograd devices NAME` shows sources and dates.",
    )
    return Answer("Devices", sections=[section], data=[d.model_dump(mode="json") for d in known])


def device(name: str) -> Answer:
    """One device, with its sources and prices. Raises as `catalog.device`."""
    d = catalog.device(name)
    rows = [
        ("kind", d.kind + (f", {d.year}" if d.year else "")),
        ("also called", ", ".join(d.aliases) or "–"),
        ("memory", f"{d.memory_bytes / GIB:.1f} GiB, {si(d.bandwidth_bytes_per_s, 'B/s', digits=4)}"),
        ("last shared cache", f"{d.l2_bytes / 2**20:g} MiB"),
        ("units", str(d.num_units)),
        ("power limit", f"{d.tdp_w:g} W" if d.tdp_w else "–"),
        *((f"peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.peak_flops_per_s.items()),
        *((f"base-clock peak {p}", si(v, "FLOP/s", digits=4)) for p, v in d.base_peak_flops_per_s.items()),
        ("usual node", f"{d.node.devices_per_node} devices over {d.node.intra_link}"),
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
    """Every link: latency and bandwidth."""
    known = catalog.links()
    fastest = max(known, key=lambda k: k.bandwidth_bytes_per_s)
    rows = [[k.name, k.title, seconds(k.latency_s), si(k.bandwidth_bytes_per_s, "B/s", digits=4), k.per] for k in known]
    section = Section(
        title="Links",
        takeaway=f"{len(known)} links; {fastest.name} has the highest bandwidth, "
        f"{si(fastest.bandwidth_bytes_per_s, 'B/s')} per {fastest.per}.",
        table=Table(("name", "link", "latency", "bandwidth", "per"), rows, {2, 3}),
        caption="Bandwidth in one direction, of one device or one node.",
    )
    return Answer("Links", sections=[section], data=[k.model_dump(mode="json") for k in known])


def link(name: str) -> Answer:
    """One link, with its sources. Raises as `catalog.link`."""
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
    """Prices of one device, or all of them. Raises as `catalog.prices`."""
    known = catalog.prices(name)
    data = [{**p.model_dump(mode="json"), "usd_per_device_hour": p.usd_per_device_hour} for p in known]
    if known:
        section = _prices(known, name)
    else:
        section = Section("Prices", f"No price of {name} is known; state one as cluster.price_usd_per_hour.")
    return Answer("Prices", sections=[section], data=data)


def _prices(known: Sequence[Price], of: Device | str | None) -> Section:
    rows = [
        [
            *(p.vendor, p.instance, p.device, f"{p.count:g}"),
            *(dollars(p.price_usd_per_hour), dollars(p.usd_per_device_hour)),
            *(p.kind, "with host" if p.includes_host else "device only", p.date or "unknown", p.tag),
        ]
        for p in known
    ]
    columns = ("vendor", "instance", "device", "count", "per hour", "per device", "kind", "covers", "date", "tag")
    dates = sorted(p.date for p in known if p.date)
    between = f", of {dates[0]} to {dates[-1]}" if dates else ""
    told = f"{len(known)} prices of {len({p.device for p in known})} devices{between}."
    if of is not None and (price := catalog.price_of(of)) is not None:
        told = (
            f"{dollars(price.usd_per_device_hour)} per device and hour on demand is the least of the latest, "
            f"{price.vendor} {price.instance} {'with' if price.includes_host else 'without'} the host."
        )
    return Section("Prices", told, table=Table(columns, rows, {3, 4, 5}), caption=MOVED)


def _sources(sources: Sequence[Source]) -> list[Section]:
    """Where figures are from; nothing where nothing is said of that."""
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
    price = catalog.price_of(d)
    return "–" if price is None else dollars(price.usd_per_device_hour) + ("" if price.includes_host else "*")
