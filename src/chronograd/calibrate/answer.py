"""Answers of `calibrate` and `validate`: this machine as a device, its links, and the prediction errors on a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Column, Section, Table
from chronograd.calibrate import link_rows, links, machine
from chronograd.calibrate.scoring import score_shipped, with_time_left
from chronograd.calibrate.tables import validate as validate_table
from chronograd.calibrate.workers import Progress
from chronograd.figure import Figure, Lines, Series
from chronograd.fit.tables import ThroughputTable as Throughputs
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link
from chronograd.launch import hosts as host_list
from chronograd.units import percent, seconds, si
from chronograd.words import how_many, signed_percent

# Families of networks shown in a terminal.
MAX_FAMILIES = 15


def calibrate(
    precisions: Sequence[str] = ("fp32",),
    *,
    layouts: Sequence[str] = ("nchw",),
    out: Path | None = None,
    progress: Progress = lambda share, text: None,
) -> Answer[Device]:
    """Measure this machine and save it as the device `local`; for a CPU, save its loopback link too.

    Args:
        layouts: memory layouts of images: nchw, nhwc (channels last) or both.
        out: also save the device file (.toml) here.
    """
    setups = [setup for layout in layouts for setup in machine.default_setups(channels_last=layout == "nhwc")]
    device = machine.calibrate_all(precisions, progress, setups)
    if out is not None:
        device.save(out)
    return calibrated(device)


def calibrated(device: Device) -> Answer[Device]:
    """Return the measured values of a device, for each way of running."""
    settings: list[dict[str, Any]] = (device.calibration or {})["settings"]
    best = max(settings, key=lambda s: float(s["peak_flops_per_s"]))
    worst = max(float(s["provenance"]["error_left_out"]) for s in settings)
    section = Section(
        title=f"local: {device.title}",
        takeaway=f"{si(best['peak_flops_per_s'], 'FLOP/s')} measured in {best['precision']} on {how_many(best['threads'], 'threads')}; times "
        f"of blocks that were left out of the fit deviate by {percent(worst)} at most.",
        table=Table.of(settings, _SETTING),
        caption=f"saved to {catalog.user_device_path('local')}",
    )
    return Answer("This machine", sections=[section], result=device)


@dataclass(frozen=True)
class MeasuredLinks:
    """The result of `calibrate links`: every timed collective, the fit of each, and the link from the all-reduces."""

    rows: list[links.TimedCollective]
    fits: list[links.Fit]
    link: Link | None


@dataclass(frozen=True)
class ReadLink:
    """The result of `calibrate links FILE`: a link from measured rows, and its median relative error on them."""

    link: Link
    rows: int
    kind: str
    error: float


def calibrate_links(
    worlds: Sequence[int] = (2,),
    collectives: Sequence[str] = links.COLLECTIVES,
    *,
    seconds_each: float = 0.4,
    hosts: str | None = None,
    name: str = links.LOOPBACK,
    progress: Progress = lambda share, text: None,
) -> Answer[MeasuredLinks]:
    """Time collectives between processes, and save the fit of the all-reduces as a link.

    Args:
        worlds: numbers of processes of this machine; ignored with hosts, which run one process each.
        hosts: blocks of host names as `launch.hosts.parse` reads them.
        name: name of the link.
    Raises: InputError for an invalid link name; the errors of `measure_links`.
    """
    counts, seats = list(worlds), []
    if hosts is not None:
        links.check_name(name)
        link_rows.check_not_shipped(name)
        places = host_list.parse(hosts)
        counts, seats = [len(places)], host_list.seats(len(places), places)
    rows = links.measure_links(counts, collectives, seconds_each=seconds_each, progress=progress, seats=seats)
    fits = [
        links.fit(rows, collective, has_burst=bool(seats))
        for collective in links.COLLECTIVES
        if any(row.collective == collective for row in rows)
    ]
    reduced = next((fit for fit in fits if fit.collective == "all_reduce"), None)
    link = None if reduced is None else links.link_of(reduced, counts, name, [seat.host.name for seat in seats])
    saved = "" if link is None else f"saved to {links.save(link)}: the link {link.name}, from all-reduces"
    return Answer(
        title="Links of this machine" if hosts is None else f"Link {name}",
        sections=[_fits_section(fits, saved), _timed_section(rows)],
        result=MeasuredLinks(rows, fits, link),
    )


def link_from_rows(path: Path, name: str, like: str = link_rows.LIKE) -> Answer[ReadLink]:
    """Fit a link to the measured rows of a file and save it under its name.

    Raises: InputError for a name of the catalogue; the errors of `link_rows.link_from` and `links.check_name`.
    """
    links.check_name(name)
    link_rows.check_not_shipped(name)
    found = link_rows.link_from(path, name, like)
    link, saved = found.link, links.save(found.link)
    section = Section(
        title=f"Link {name}",
        takeaway=f"{seconds(link.latency_s)} per message and {si(link.bandwidth_bytes_per_s, 'B/s')}, from {found.rows} "
        f"{found.kind}. Its median error on them is {percent(found.error)}.",
        table=Table.of([link], _LINK),
        caption=f"{link.source[0].source}\nsaved to {saved}: use cluster.intra_link={name} within a machine, cluster.link={name} between machines",
    )
    result = ReadLink(link, found.rows, found.kind, found.error)
    notes = [] if found.message_bytes is None else [
        f"all rows have {si(found.message_bytes, 'B')}. In DeepBench's all-reduces, predictions for messages of a quarter to four times a row's size were "
        "9 % off on average, all others 16 %. DistributedDataParallel sends 26 MB at a time"
    ]  # fmt: skip
    return Answer(f"Link {name}", sections=[section], notes=notes, result=result)


def _fits_section(fits: Sequence[links.Fit], saved: str) -> Section:
    first = next((fit for fit in fits if fit.collective == "all_reduce"), fits[0])
    return Section(
        title="Links",
        takeaway=f"{first.collective}: {seconds(first.latency_s)} per message and {si(first.bandwidth_bytes_per_s, 'B/s')}, "
        f"with a median error of {percent(first.error)}.",
        table=Table.of(fits, _FIT),
        caption=saved,
    )


def _timed_section(rows: Sequence[links.TimedCollective]) -> Section:
    fastest = max(rows, key=lambda row: row.busbw)
    series = []
    for collective, world in dict.fromkeys((row.collective, row.world) for row in rows):
        own = [row for row in rows if (row.collective, row.world) == (collective, world)]
        times = ([row.seconds for row in own], [row.low for row in own], [row.high for row in own])
        series.append(
            Series(f"{collective}, {how_many(world, 'processes')}", "measured", [row.bytes for row in own], *times)
        )
    return Section(
        title="Collectives",
        takeaway=f"The highest bus bandwidth is {si(fastest.busbw, 'B/s')}: {fastest.collective} with {si(fastest.bytes, 'B')} "
        f"over {how_many(fastest.world, 'processes')}.",
        figure=Figure([Lines("bytes", "seconds", series, log_x=True, log_y=True)]),
        table=Table.of(rows, _TIMED),
    )


_SETTING = (
    Column("precision", "precision"),
    Column("layout", lambda s: "nhwc" if s.get("channels_last") else "nchw"),
    Column("mode", "mode"),
    Column("ranks", "processes", format="d"),
    Column("threads", "threads", format="d"),
    Column("peak reached", "peak_flops_per_s", "FLOP/s"),
    Column("bandwidth reached", "bandwidth_bytes_per_s", "B/s"),
    Column("per operator", lambda s: _launch_s(s), format=lambda launch_s: f"{1e6 * launch_s:.1f} µs"),
    Column("error, fitted blocks", lambda s: s["provenance"]["error_in_sample"], "1"),
    Column("error, blocks left out", lambda s: s["provenance"]["error_left_out"], "1"),
)
_LINK = (
    Column("link", "name"),
    Column("latency α", "latency_s", "s"),
    Column("bandwidth 1/β", "bandwidth_bytes_per_s", format=lambda rate: si(rate, "B/s", digits=4)),
)
_FIT = (
    Column("fitted", "collective"),
    Column("latency α", "latency_s", "s"),
    Column("bandwidth 1/β", "bandwidth_bytes_per_s", "B/s"),
    Column("at once", "burst_bytes", format=lambda size: si(size, "B")),
    Column("median error", "error", "1"),
)
_TIMED = (
    Column("collective", "collective"),
    Column("processes", "world", format="d"),
    Column("size", "bytes", format=lambda size: si(size, "B")),
    Column("time", "seconds", "s"),
    Column("80 % interval", lambda row: f"{seconds(row.low)} … {seconds(row.high)}", format=str),
    Column("n", "n", format="d"),
    Column("algbw", "algbw", "B/s"),
    Column("busbw", "busbw", "B/s"),
)


def _launch_s(setting: dict[str, Any]) -> float:
    """Return the minimum time of an operator: device time plus host time."""
    device_s = setting["classes"]["elementwise.forward"][setting["rates"].index("launch_s")]
    return float(device_s + setting["host_launch_s"])


def validate(table: Throughputs, device: Device, *, shipped: bool = False, **options: Any) -> Answer:
    """Fit a device to a few rows of a table of throughputs and report the prediction errors on the others.

    With `shipped`, predict without a fit. Options and errors are those of `tables.validate`, or of `score_shipped` with
    `shipped`.
    """
    if shipped:
        scores = score_shipped(table, device, **options)
        carried, own = scores["measured_on"], scores["fitted_to"]
        how = f"no fit: the shipped calibration of {device.name}, {'fitted to ' + own if own else 'from ' + scores['prior']}"
        how += f"; carried over from {carried['table']} on {carried['device']}" if carried else ""
        how += f"; {scores['n']} rows predicted"
    else:
        calibrate, limit = options.get("calibrate", 25), options.get("limit")
        wanted = None if limit is None else calibrate + limit
        progress = with_time_left(options.pop("progress", lambda share, text: None), wanted, len(table.rows))
        scores = validate_table(table, device, progress=progress, **options)
        how = (
            f"fitted to {how_many(len(scores['calibrated_on']), 'rows')} of seed {scores['seed']}, starting from {scores['prior']}; "
            f"{scores['n']} others predicted"
        )
    left_out = len(scores["left_out"])
    notes = [
        *table.notes,
        *(
            [f"{left_out} rows were left out: their networks could not be traced, or differ from the table's"]
            if left_out
            else []
        ),
    ]
    if shipped and scores["fitted_to"] == table.name:
        notes.append("the shipped calibration was fitted to a table of this name, so this is not a test of it")
    return Answer(
        f"Validation of {table.name}", sections=_validation_sections(table.name, how, scores), data=scores, notes=notes
    )


def _validation_sections(name: str, how: str, scores: dict[str, Any]) -> list[Section]:
    """Return the sections on all rows, on families and on the worst predictions. `how` describes the fit in the first section."""
    families = sorted(scores["families"].items(), key=lambda item: -item[1]["n"])[:MAX_FAMILIES]
    largest, worst = families[0], scores["worst_rows"][0]
    return [
        Section(
            title=name,
            takeaway=f"Predicted times are off by {percent(scores['mape'])} on average (bias {signed_percent(scores['bias'])}) and "
            f"{percent(scores['median_ape'])} in the median.",
            lines=[how],
            table=Table.of([scores], _SCORES),
            caption="Errors are |predicted - measured| / measured time. The bias is the mean with its sign.",
        ),
        Section(
            title="By family",
            takeaway=f"{largest[0]}, the largest family, is off by {percent(largest[1]['mape'])} on average "
            f"(bias {signed_percent(largest[1]['bias'])}).",
            table=Table.of([{"family": name} | family for name, family in families], _FAMILY),
        ),
        Section(
            title="Furthest off",
            takeaway=f"{worst['model']} at {worst['image_size']} is predicted to take {worst['predicted_over_measured']:.2f} "
            "times as long as measured.",
            table=Table.of(scores["worst_rows"], _WORST),
        ),
    ]


_ERROR = (Column("mean error", "mape", "1"), Column("bias", "bias", format=signed_percent))
_SCORES = (
    *_ERROR,
    Column("median", "median_ape", "1"),
    Column("90 % are below", "p90_ape", "1"),
    Column("worst", "worst", "1"),
    Column("80 % interval covers", "coverage80", "1"),
)
_FAMILY = (Column("family", "family"), Column("rows", "n", format="d"), *_ERROR)
_WORST = (
    Column("furthest off", "model"),
    Column("size", "image_size", format="d"),
    Column("predicted / measured", "predicted_over_measured", format=".2f"),
    Column(
        "time by operator",
        lambda row: ", ".join(f"{kind} {percent(share)}" for kind, share in row["share_by_family"].items()),
    ),
)
