"""Layers under the roof that the device's peak and bandwidth form."""

from __future__ import annotations

from collections.abc import Sequence

from chronograd.answer import Column, Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.record import Layer, Record
from chronograd.units import percent, quantity, seconds, si, whole_percent
from chronograd.words import device, listed

_TERA = 1e12
_COLORS = {"compute": "accent", "memory": "orange", "launch": "purple"}
_WHAT = {"compute": "arithmetic", "memory": "memory traffic", "launch": "launches"}


def roofline_section(record: Record, measured: Record | None = None) -> Section:
    """Return a section with each layer of the record's table `layers`, and the measured step if there is one."""
    layers = record.tables.layers
    peak, bandwidth = record.provenance.peak_flops_per_s or 0.0, record.provenance.bandwidth_bytes_per_s or 0.0
    points = [row for row in layers if row.flops and row.bytes]
    return Section(
        title="Roofline: how close each layer comes to the limits of the device",
        intro=f"Forward and backward on {device(record)}, under a peak of {si(peak, 'FLOP/s')} and a bandwidth of "
        f"{si(bandwidth, 'B/s')}: {_where_from(record)}. {_conventions(record)}",
        figure=Figure([_plot(points, layers, peak, bandwidth, measured)]) if points and peak and bandwidth else None,
        caption="Each point is a layer, coloured by what takes longest at the peak rates. The dashed line is the roof: "
        "bandwidth × FLOPs per byte, at most the peak. Both axes are logarithmic.",
        table=Table.of(
            sorted(layers, key=lambda r: -r.time_to_win_s), _LAYER, drop=("bytes", "FLOPs per byte", "FLOPs", "kind")
        ),
        takeaway=_takeaway(record, layers),
    )


def _where_from(record: Record) -> str:
    is_datasheet = record.provenance.calibration.get("origin") == "datasheet"
    return "those of the data sheet" if is_datasheet else "those of the calibration"


def _conventions(record: Record) -> str:
    mfu, ppp = (quantity(record[name].value, "1") for name in ("mfu", "ppp"))
    return (
        f"MFU is {mfu}: matrix FLOPs of a step (1 MAC = 2 FLOPs) over its time, as a share of the dense peak "
        f"in this precision. PPP is {ppp}: FLOPs / peak + bytes / bandwidth, over the time of both passes, as in PALEO."
    )


def _plot(
    points: Sequence[Layer],
    layers: Sequence[Layer],
    peak: float,
    bandwidth: float,
    measured: Record | None,
) -> Lines:
    intensities = [row.intensity_flops_per_byte for row in points]
    ridge = peak / bandwidth
    ends = min([*intensities, ridge]) / 1.5, max([*intensities, ridge]) * 2
    roof_x = [ends[0], ridge, ends[1]]
    series = [Series("roof", "reference", roof_x, [min(peak, bandwidth * x) / _TERA for x in roof_x])]
    for bound, color in _COLORS.items():
        mine = [row for row in points if row.bound == bound]
        if mine:
            x = [row.intensity_flops_per_byte for row in mine]
            y: list[float | None] = [float(f"{row.achieved_flops_per_s / _TERA:.6g}") for row in mine]
            series.append(Series(f"bound by {_WHAT[bound]}", "predicted", x, y, color=color, is_scatter=True))
    achieved = measured["achieved_flops_per_s"].value if measured is not None else None
    if achieved:
        total = sum(row.flops for row in layers) / sum(row.bytes for row in layers)
        series.append(Series("whole step, measured", "measured", [total], [achieved / _TERA]))
    return Lines("FLOPs per byte", "TFLOP/s", series, log_x=True, log_y=True)


_LAYER = (
    Column("layer", "name"),
    Column("kind", "kind"),
    Column("FLOPs", "flops", "FLOP"),
    Column("bytes", "bytes", format=lambda size: si(size, "B")),
    Column("FLOPs per byte", "intensity_flops_per_byte", format=".3g"),
    Column("ceiling", "ceiling_s", "s"),
    Column("predicted", "time_s", "s"),
    Column("share of ceiling", "share_of_ceiling", format=whole_percent),
    Column("bound", "bound"),
    Column("time to win", "time_to_win_s", "s"),
)


def _takeaway(record: Record, layers: Sequence[Layer]) -> str:
    total = sum(row.time_s for row in layers)
    if not total:
        return "The record has no times of layers, so their ceilings are unknown."
    best = record.tables.most_to_win or sorted(layers, key=lambda r: -r.time_to_win_s)[:3]
    won = sum(row.time_to_win_s for row in best)
    ceiling = sum(row.ceiling_s for row in layers)
    names = listed([f"{row.name} ({seconds(row.time_to_win_s)})" for row in best])
    return (
        f"Forward and backward run at {percent(ceiling / total, 0)} of their ceiling; the most time to win is in {names}, "
        f"together {percent(won / total, 0)} of the two passes."
    )
