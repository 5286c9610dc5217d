"""What to rent for inference: the device and the batch that keep a latency and cost least per sample.

    probability = P(latency of a batch ≤ bound), the latency log-normal about what is predicted
    dollars per sample = price per hour of whole instances / 3600 / samples per second, the devices never idle

Several devices are so many of one, each with batches of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section, Table
from chronograd.hardware.catalog import Device, Precision
from chronograd.hardware.market import Kind
from chronograd.job import Job
from chronograd.plan import rows as shown
from chronograd.plan.goal import MAX_PROBABLE
from chronograd.plan.renting import Rented, rent
from chronograd.plan.rows import Row, setting_row
from chronograd.plan.search import Search, search
from chronograd.predict.notes import only_layout
from chronograd.predict.prediction import tokens_of_sample
from chronograd.record import Z80, normal_probability
from chronograd.trace import Trace
from chronograd.units import chance, dollars, percent, quantity, seconds

NOT_COUNTED = (
    "Not counted: the network between who asks and the device, queues, decoding, and hours in which nobody asks."
)
MAX_SHOWN = 8


def serve(
    traces: Trace | Sequence[Trace],
    job: Job,
    devices: Sequence[Device],
    counts: Sequence[int],
    batches: Sequence[int],
    *,
    latency_s: float | None = None,
    confidence: float = 0.8,
    most: int = MAX_SHOWN,
    precisions: Sequence[Precision] = (),
    kinds: Sequence[Kind] = ("on-demand",),
) -> Answer:
    """Of every number of every device the cheapest setting per sample that keeps the latency, the cheapest first.

    Args:
        traces, devices, counts, batches, precisions: see `search`; batches are those of one device. kinds: see `rent`.
        latency_s: of a batch, at most; None where any will do. confidence: how surely it is to be kept.
        most: settings to list.
    """
    found = search(traces, job, devices, counts, batches, ("ring",), precisions)
    rented = rent(found.columns, devices, job, kinds)
    columns = rented.columns
    step_s, rate, price = (columns[n] for n in ("step_time_s", "throughput_samples_per_s", "price_usd_per_hour"))
    bound = math.inf if latency_s is None else latency_s
    probability = normal_probability((np.log(bound) - np.log(step_s)) / np.maximum(columns["sigma_log"], 1e-9))
    per_sample = price / 3600 / rate
    is_kept = columns["fits"] & ~columns["is_outlier"] & (probability >= confidence)
    # What has no price comes last; of equal prices per sample what answers sooner.
    order = np.lexsort((step_s, np.round(np.log(np.where(np.isnan(per_sample), np.inf, per_sample)), 9)))
    kept = order[is_kept[order]]
    _, first = np.unique(np.stack([columns["device"], columns["count"]])[:, kept], axis=1, return_index=True)
    best = kept[np.sort(first)]
    columns |= {"probability": probability, "usd_per_sample": per_sample}
    tokens = tokens_of_sample(next(iter(found.traces.values())))

    listed = [_row(found, rented, i, tokens) for i in best[:most]]
    fitting = np.flatnonzero(columns["fits"])
    soonest = _row(found, rented, int(fitting[np.argmin(step_s[fitting])]), tokens) if len(fitting) else None
    rough = found.rough(int(columns["setting"][best[0]])) if len(best) else []
    one_layout = only_layout(job, found.traces.values())
    data: dict[str, Any] = {
        "settings": listed,
        "evaluated": len(found.columns["fits"]),
        "fit": int(found.columns["fits"].sum()),
        "kept": len(np.unique(columns["setting"][kept])),
        "latency_s": latency_s,
        "confidence": confidence,
        "fastest": soonest,
        "assumed": [*rough, *one_layout],
    }
    without = [f"Not offered: {', '.join(rented.without_host)}, of which only prices without the host are known."]
    return Answer(
        f"Inference of {found.network}",
        sections=[_section(found, data, rough, tokens)],
        data=data,
        notes=[*one_layout, *(without if rented.without_host else []), NOT_COUNTED],
    )


def _row(found: Search, rented: Rented, i: int, tokens: int | None) -> Row:
    columns = rented.columns
    latency_s, spread = float(columns["step_time_s"][i]), math.exp(Z80 * columns["sigma_log"][i])
    usd = float(columns["usd_per_sample"][i] * 1e6)
    return {
        **setting_row(found, columns, rented.offers, i),
        "latency_s": latency_s,
        "latency_interval_s": [latency_s / spread, latency_s * spread],
        "probability": min(float(columns["probability"][i]), MAX_PROBABLE),
        "usd_per_million_samples": None if math.isnan(usd) else usd,
        "usd_per_million_tokens": None if math.isnan(usd) or tokens is None else usd / tokens,
    }


def _section(found: Search, data: dict[str, Any], rough: Sequence[str], tokens: int | None) -> Section:
    rows, bound = data["settings"], data["latency_s"]
    limit = "any latency" if bound is None else f"an answer within {seconds(bound)}"
    unit = "token" if tokens is not None else "sample"
    cost = f"usd_per_million_{unit}s"
    return Section(
        title=f"{found.network}: {limit}",
        takeaway=_takeaway(data, unit),
        lines=[
            *(shown.warnings(rows[0], rough) if rows else []),
            f"{data['kept']:,} settings keep it, of {data['fit']:,} that fit and {data['evaluated']:,} in all."
            if bound is not None
            else f"{data['fit']:,} settings fit, of {data['evaluated']:,}.",
        ],
        table=Table(
            (*shown.CELLS, "latency", "samples/s", "chance", "per M"),
            [
                (
                    *shown.cells(r),
                    seconds(r["latency_s"]),
                    f"{r['throughput_samples_per_s']:,.0f}",
                    chance(r["probability"]),
                    "–" if r[cost] is None else dollars(r[cost]),
                )
                for r in rows
            ],
            {3, 4, 5, 6},
            [*shown.notes(rows), f"Per M: dollars for a million {unit}s. Chance: that a batch is answered in time."],
        ),
        data=rows,
    )


def _takeaway(data: dict[str, Any], unit: str) -> str:
    def told(row: Row) -> str:
        low, high = row["latency_interval_s"]
        usd = row[f"usd_per_million_{unit}s"]
        whose = f", {shown.vendor(row)}" if row["vendor"] else ""
        return (
            f"{shown.devices(row)}, batch {row['batch_per_device']} each, {shown.way(row).short}{whose}: "
            f"{seconds(row['latency_s'])} ({seconds(low)} … {seconds(high)}), "
            f"{quantity(row['throughput_samples_per_s'], 'sample/s')}, "
            f"{'no price' if usd is None else f'{dollars(usd)} per million {unit}s'}"
        )

    bound, soonest = data["latency_s"], data["fastest"]
    if soonest is None:
        return "No setting fits in memory; try smaller batches, or other devices."
    if not data["settings"]:
        return (
            f"Nothing answers within {seconds(bound)} with {percent(data['confidence'], 0)} probability; the fastest is "
            f"{told(soonest)}, which keeps it with {chance(soonest['probability'])}."
        )
    best = data["settings"][0]
    sure = (
        "" if bound is None else f"; it answers within {seconds(bound)} with {chance(best['probability'])} probability"
    )
    return f"The cheapest is {told(best)}{sure}."
