"""The work there is, and which kinds of operators take the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chronograd.answer import Section, Table
from chronograd.figure import SERIES_COLORS, Bar, Bars, Figure
from chronograd.record import OperatorKind, Record
from chronograd.units import percent, quantity, seconds, si
from chronograd.words import device, kind_name, listed, time_unit

_MOST_KINDS = 7  # more colours than this cannot be told apart; the rest is "other"
_COUNTED = {"params": "params", "macs": "MACs", "activations": "activations"}


def operators_section(record: Record) -> Section:
    """Time of a step by operator kind, from the record's table `by_kind`."""
    rows = sorted(record.tables.by_kind, key=lambda row: -row.time_s)
    total = sum(row.time_s for row in rows)
    unit, length = time_unit([rows[0].time_s] if rows else [])
    role = record.kind
    bars = [
        Bar(
            kind_name(row.kind),
            role,
            {"time": float(f"{row.time_s / length:.6g}")},
            note=f"{seconds(row.time_s)}, {percent(row.time_s / total, 0)}" if total else "",
        )
        for row in rows
    ]
    return Section(
        title="Which operators take the time",
        intro=f"One step on {device(record)}, {record.kind}. FLOPs are those of matrix work, 1 MAC = 2 FLOPs.",
        figure=Figure([Bars(f"time per step, {unit}", "operator kind", bars)]) if bars else None,
        caption=f"Operators of one step by kind, {record.kind}, longest first.",
        table=Table(
            ("operator kind", "time", "share", "FLOPs", "bytes", "rate", "FLOPs per byte"),
            [_kind_row(row, total) for row in rows],
            {1, 2, 3, 4, 5, 6},
        ),
        takeaway=_operators_takeaway(rows, total),
    )


def _kind_row(row: OperatorKind, total: float) -> list[str]:
    time, flops, size = row.time_s, row.flops, row.bytes
    return [
        kind_name(row.kind),
        seconds(time),
        percent(time / total) if total else "–",
        si(flops, "FLOP") if flops else "–",
        si(size, "B") if size else "–",
        si(flops / time, "FLOP/s") if flops and time else "–",
        f"{flops / size:.3g}" if flops and size else "–",
    ]


def _operators_takeaway(rows: Sequence[OperatorKind], total: float) -> str:
    if not rows or not total:
        return "The record has no time by operator kind, so nothing can be said about single operators."
    top = rows[0]
    flops = sum(row.flops for row in rows)
    of_flops = f" for {percent(top.flops / flops, 0)} of the FLOPs" if flops else ""
    idle = sum(row.time_s for row in rows if not row.flops)
    rest = f"; operators without matrix work take {percent(idle / total, 0)} of it" if idle and flops else ""
    return (
        f"{kind_name(top.kind).capitalize()} takes {percent(top.time_s / total, 0)} of the operators' "
        f"time{of_flops}{rest}."
    )


def counts_section(count: Mapping[str, Any]) -> Section:
    """Parameters, MACs and activations by kind of layer, from the JSON of `chronograd count`."""
    layers: Sequence[Mapping[str, Any]] = count.get("layers") or []
    by_kind = {title: _shares(layers, name) for name, title in _COUNTED.items()}
    kinds = _largest(by_kind)
    bars = [Bar(title, "measured", _percentages(shares, kinds)) for title, shares in by_kind.items() if shares]
    colors = {kind: SERIES_COLORS[i % len(SERIES_COLORS)] for i, kind in enumerate([*kinds, "other"])}
    return Section(
        title="The work there is",
        intro=f"Counted from the network itself, {_batch(count)}; 1 MAC = 2 FLOPs.",
        figure=Figure([Bars("share of the whole network, %", "amount", bars, colors)]) if bars else None,
        caption="Each bar is the whole network, split by kind of layer.",
        table=Table(("quantity", "value"), _count_rows(count), {1}),
        takeaway=_counts_takeaway(count, by_kind["MACs"]),
        data=[dict(layer) for layer in layers],
    )


def _batch(count: Mapping[str, Any]) -> str:
    batch = count.get("batch")
    return "for one sample" if batch in (None, 1) else f"for a batch of {batch}"


def _shares(layers: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Share of each kind of layer in a total; empty if the total is zero."""
    amounts: dict[str, float] = {}
    for layer in layers:
        kind = kind_name(str(layer.get("kind", "unknown")))
        amounts[kind] = amounts.get(kind, 0.0) + float(layer.get(name) or 0)
    total = sum(amounts.values())
    return {kind: value / total for kind, value in amounts.items()} if total else {}


def _largest(by_kind: Mapping[str, Mapping[str, float]]) -> list[str]:
    best: dict[str, float] = {}
    for shares in by_kind.values():
        for kind, share in shares.items():
            best[kind] = max(best.get(kind, 0.0), share)
    return sorted((k for k, share in best.items() if share > 0.005), key=lambda k: -best[k])[:_MOST_KINDS]


def _percentages(shares: Mapping[str, float], kinds: Sequence[str]) -> dict[str, float]:
    shown = {kind: round(100 * shares[kind], 3) for kind in kinds if shares.get(kind)}
    rest = 100 - sum(shown.values())
    return {**shown, "other": round(rest, 3)} if rest > 0.05 else shown


def _count_rows(count: Mapping[str, Any]) -> list[list[str]]:
    def whole(name: str) -> str:
        return "–" if count.get(name) is None else f"{count[name]:,}"

    share = count.get("conv_share")
    uncounted = count.get("uncounted") or {}
    return [
        ["params", whole("params")],
        ["MACs, forward", whole("macs")],
        ["convolutions' share of the MACs", "–" if share is None else percent(share, 3)],
        ["FLOPs, forward", whole("flops_forward")],
        ["FLOPs, backward", whole("flops_backward")],
        ["peak training memory", quantity(count.get("memory_bytes"), "B")],
        ["operators not counted", listed([f"{name} ({n}×)" for name, n in _pairs(uncounted)]) or "none"],
    ]


def _pairs(uncounted: Any) -> list[tuple[str, Any]]:
    return list(uncounted.items()) if isinstance(uncounted, Mapping) else [(str(name), 1) for name in uncounted]


def _counts_takeaway(count: Mapping[str, Any], mac_shares: Mapping[str, float]) -> str:
    params, macs = count.get("params"), count.get("macs")
    if params is None or macs is None:
        return "The network was not counted, so its work is not known."
    text = f"{si(params)} params need {si(macs)} MACs forward {_batch(count)}"
    if mac_shares:
        top = max(mac_shares, key=lambda kind: mac_shares[kind])
        text += f", {percent(mac_shares[top])} of them in layers of kind {top}"
    forward, backward = count.get("flops_forward"), count.get("flops_backward")
    if forward and backward:
        text += f"; backward takes {backward / forward:.2f} times the FLOPs of forward"
    uncounted = _pairs(count.get("uncounted") or {})
    if uncounted:
        text += f"; not counted: {listed([name for name, _ in uncounted])}"
    return f"{text}."
