"""What to rent for inference: the device and the batch that keep a latency and cost least per sample.

    probability = P(latency of a batch ≤ bound), the latency log-normal about what is predicted
    dollars per sample = price per hour of whole instances / 3600 / samples per second, the devices never idle

Several devices are so many of one, each with batches of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.hardware.market import Kind
from chronograd.job import Job
from chronograd.plan import rows as shown
from chronograd.plan.goal import MAX_PROBABLE
from chronograd.plan.renting import Rented, rent
from chronograd.plan.rows import PlannedSetting, setting_row
from chronograd.plan.search import Search, SearchSpace, search
from chronograd.predict.notes import only_layout
from chronograd.predict.prediction import tokens_of_sample
from chronograd.record import Z80, normal_probability
from chronograd.trace import Trace
from chronograd.units import chance, dollars, percent, quantity, seconds

NOT_COUNTED = (
    "Not counted: the network between who asks and the device, queues, decoding, and hours in which nobody asks."
)
MAX_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class ServingSetting(PlannedSetting):
    """A setting that answers batches: their latency with the 80 % interval, and the probability that the bound is kept."""

    latency_s: float
    latency_interval_s: list[float]
    probability: float
    usd_per_million_samples: float | None
    usd_per_million_tokens: float | None


@dataclass(frozen=True)
class ServingPlan:
    """The result of `plan inference`: the cheapest setting of each number of each device that keeps the latency.

    Attributes:
        fit: settings that fit in memory, of all that were `evaluated`. `kept`: those that keep the latency.
        fastest: the setting with the least latency, whatever it costs.
    """

    settings: list[ServingSetting]
    evaluated: int
    fit: int
    kept: int
    latency_s: float | None
    confidence: float
    fastest: ServingSetting | None
    assumed: list[str]


def serve(
    traces: Trace | Sequence[Trace],
    job: Job,
    space: SearchSpace,
    kinds: Sequence[Kind] = ("on-demand",),
    *,
    latency_s: float | None = None,
    confidence: float = 0.8,
    most: int = MAX_SHOWN,
) -> Answer[ServingPlan]:
    """Of every number of every device the cheapest setting per sample that keeps the latency, the cheapest first.

    Args:
        traces: see `search`; nothing is reduced between the devices of the space. kinds: see `rent`.
        latency_s: of a batch, at most; None where any will do. confidence: how surely it is to be kept.
        most: settings to list.
    """
    found = search(traces, job, replace(space, algorithms=("ring",)))
    rented = rent(found.columns, space.devices, job, kinds)
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
    result = ServingPlan(
        settings=listed,
        evaluated=len(found.columns["fits"]),
        fit=int(found.columns["fits"].sum()),
        kept=len(np.unique(columns["setting"][kept])),
        latency_s=latency_s,
        confidence=confidence,
        fastest=soonest,
        assumed=[*rough, *one_layout],
    )
    without = [f"Not offered: {', '.join(rented.without_host)}, of which only prices without the host are known."]
    return Answer(
        f"Inference of {found.network}",
        sections=[_section(found, result, rough, tokens)],
        notes=[*one_layout, *(without if rented.without_host else []), NOT_COUNTED],
        result=result,
    )


def _row(found: Search, rented: Rented, i: int, tokens: int | None) -> ServingSetting:
    columns = rented.columns
    latency_s, spread = float(columns["step_time_s"][i]), math.exp(Z80 * columns["sigma_log"][i])
    usd = float(columns["usd_per_sample"][i] * 1e6)
    return ServingSetting(
        **setting_row(found, columns, rented.offers, i),
        latency_s=latency_s,
        latency_interval_s=[latency_s / spread, latency_s * spread],
        probability=min(float(columns["probability"][i]), MAX_PROBABLE),
        usd_per_million_samples=None if math.isnan(usd) else usd,
        usd_per_million_tokens=None if math.isnan(usd) or tokens is None else usd / tokens,
    )


def _section(found: Search, plan: ServingPlan, rough: Sequence[str], tokens: int | None) -> Section:
    rows, bound = plan.settings, plan.latency_s
    limit = "any latency" if bound is None else f"an answer within {seconds(bound)}"
    unit = "token" if tokens is not None else "sample"
    cost = f"usd_per_million_{unit}s"
    return Section(
        title=f"{found.network}: {limit}",
        takeaway=_takeaway(plan, unit),
        lines=[
            *(shown.warnings(rows[0], rough) if rows else []),
            f"{plan.kept:,} settings keep it, of {plan.fit:,} that fit and {plan.evaluated:,} in all."
            if bound is not None
            else f"{plan.fit:,} settings fit, of {plan.evaluated:,}.",
        ],
        table=Table.of(
            rows,
            (
                *shown.COLUMNS,
                Column("latency", "latency_s", "s"),
                Column("samples/s", "throughput_samples_per_s", format=",.0f"),
                Column("chance", "probability", format=chance),
                Column("per M", cost, "usd"),
            ),
            [*shown.notes(rows), f"Per M: dollars for a million {unit}s. Chance: that a batch is answered in time."],
        ),
        data=as_json(rows),
    )


def _takeaway(plan: ServingPlan, unit: str) -> str:
    def told(row: ServingSetting) -> str:
        low, high = row.latency_interval_s
        usd = getattr(row, f"usd_per_million_{unit}s")
        whose = f", {shown.vendor(row)}" if row.vendor else ""
        return (
            f"{shown.devices(row)}, batch {row.batch_per_device} each, {shown.way(row).short}{whose}: "
            f"{seconds(row.latency_s)} ({seconds(low)} … {seconds(high)}), "
            f"{quantity(row.throughput_samples_per_s, 'sample/s')}, "
            f"{'no price' if usd is None else f'{dollars(usd)} per million {unit}s'}"
        )

    bound, soonest = plan.latency_s, plan.fastest
    if soonest is None:
        return "No setting fits in memory; try smaller batches, or other devices."
    if not plan.settings and bound is None:
        return f"Nothing is recommended: every price is far below those of its peers; the fastest is {told(soonest)}."
    if not plan.settings:
        return (
            f"Nothing answers within {seconds(bound or 0.0)} with {percent(plan.confidence, 0)} probability; the fastest is "
            f"{told(soonest)}, which keeps it with {chance(soonest.probability)}."
        )
    best = plan.settings[0]
    sure = "" if bound is None else f"; it answers within {seconds(bound)} with {chance(best.probability)} probability"
    return f"The cheapest is {told(best)}{sure}."
