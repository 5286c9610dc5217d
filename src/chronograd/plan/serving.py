"""Offers for inference: the device and batch that stay within a latency at the lowest cost per sample.

    probability = P(latency of a batch ≤ bound), the latency log-normal around the prediction
    dollars per sample = price per hour of whole instances / 3600 / samples per second, the devices never idle

With several devices, each one answers its own batches.
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
from chronograd.plan.renting import RentalTerms, Rented, rent
from chronograd.plan.rows import PlannedSetting, setting_row
from chronograd.plan.search import Search, SearchSpace, search
from chronograd.predict.notes import only_layout
from chronograd.predict.prediction import tokens_of_sample
from chronograd.record import Z80, normal_probability
from chronograd.trace import Trace
from chronograd.units import chance, dollars, percent, quantity, seconds

NOT_COUNTED = "Not included: the network between client and device, queues, decoding, and hours without requests."
MAX_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class ServingSetting(PlannedSetting):
    """A setting that answers batches: their latency with the 80 % interval, and the probability of staying within the bound."""

    latency_s: float
    latency_interval_s: list[float]
    probability: float
    usd_per_million_samples: float | None
    usd_per_million_tokens: float | None


@dataclass(frozen=True)
class ServingPlan:
    """The result of `plan inference`: the cheapest setting within the latency for each device and count.

    Attributes:
        fit: number of settings that fit in memory, of all `evaluated` ones. `kept`: number of settings that stay within the latency.
        fastest: the setting with the lowest latency at any cost.
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
    """Return the cheapest setting per sample that stays within the latency, for each device and count, the cheapest first.

    Args:
        traces: see `search`; devices do not reduce anything between them.
        kinds: see `rent`.
        latency_s: maximum latency of a batch; None for no limit.
        confidence: required probability of staying within it.
        most: maximum number of settings in the list.
    """
    searched = search(traces, job, replace(space, algorithms=("ring",)))
    rented = rent(searched.columns, space.devices, job, RentalTerms(kinds))
    columns = rented.columns
    step_s, rate, price = (columns[n] for n in ("step_time_s", "throughput_samples_per_s", "price_usd_per_hour"))
    bound = math.inf if latency_s is None else latency_s
    probability = normal_probability((np.log(bound) - np.log(step_s)) / np.maximum(columns["sigma_log"], 1e-9))
    per_sample = price / 3600 / rate
    is_kept = columns["fits"] & ~columns["is_outlier"] & (probability >= confidence)
    # Settings without a price come last; on equal prices per sample, the lower latency comes first.
    order = np.lexsort((step_s, np.round(np.log(np.where(np.isnan(per_sample), np.inf, per_sample)), 9)))
    kept = order[is_kept[order]]
    _, first = np.unique(np.stack([columns["device"], columns["count"]])[:, kept], axis=1, return_index=True)
    best = kept[np.sort(first)]
    columns |= {"probability": probability, "usd_per_sample": per_sample}
    tokens = tokens_of_sample(next(iter(searched.traces.values())))

    listed = [_row(searched, rented, i, tokens) for i in best[:most]]
    fitting = np.flatnonzero(columns["fits"])
    soonest = _row(searched, rented, int(fitting[np.argmin(step_s[fitting])]), tokens) if len(fitting) else None
    rough = searched.rough(int(columns["setting"][best[0]])) if len(best) else []
    one_layout = only_layout(job, searched.traces.values())
    result = ServingPlan(
        settings=listed,
        evaluated=len(searched.columns["fits"]),
        fit=int(searched.columns["fits"].sum()),
        kept=len(np.unique(columns["setting"][kept])),
        latency_s=latency_s,
        confidence=confidence,
        fastest=soonest,
        assumed=[*rough, *one_layout],
    )
    without = [f"Not offered: {', '.join(rented.without_host)}. All known prices exclude the host."]
    return Answer(
        f"Inference of {searched.network}",
        sections=[_section(searched, result, rough, tokens)],
        notes=[*one_layout, *(without if rented.without_host else []), NOT_COUNTED],
        result=result,
    )


def _row(searched: Search, rented: Rented, i: int, tokens: int | None) -> ServingSetting:
    columns = rented.columns
    latency_s, spread = float(columns["step_time_s"][i]), math.exp(Z80 * columns["sigma_log"][i])
    usd = float(columns["usd_per_sample"][i] * 1e6)
    return ServingSetting(
        **setting_row(searched, columns, rented.offers, i),
        latency_s=latency_s,
        latency_interval_s=[latency_s / spread, latency_s * spread],
        probability=min(float(columns["probability"][i]), MAX_PROBABLE),
        usd_per_million_samples=None if math.isnan(usd) else usd,
        usd_per_million_tokens=None if math.isnan(usd) or tokens is None else usd / tokens,
    )


def _section(searched: Search, plan: ServingPlan, rough: Sequence[str], tokens: int | None) -> Section:
    rows, bound = plan.settings, plan.latency_s
    limit = "any latency" if bound is None else f"an answer within {seconds(bound)}"
    unit = "token" if tokens is not None else "sample"
    cost = f"usd_per_million_{unit}s"
    return Section(
        title=f"{searched.network}: {limit}",
        takeaway=_takeaway(plan, unit),
        lines=[
            *(shown.warnings(rows[0], rough) if rows else []),
            f"We evaluated {plan.evaluated:,} settings: {plan.fit:,} fit in memory, {plan.kept:,} stay within the latency."
            if bound is not None
            else f"{plan.fit:,} of {plan.evaluated:,} settings fit in memory.",
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
            [
                *shown.notes(rows),
                f"Per M: dollars per million {unit}s. Chance: probability that a batch is answered in time.",
            ],
        ),
        data=as_json(rows),
    )


def _takeaway(plan: ServingPlan, unit: str) -> str:
    def described(row: ServingSetting) -> str:
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
        return f"Nothing is recommended: every price is far below those of similar offers; the fastest is {described(soonest)}."
    if not plan.settings:
        return (
            f"No setting answers within {seconds(bound or 0.0)} with {percent(plan.confidence, 0)} probability; the fastest is "
            f"{described(soonest)}, which does so with {chance(soonest.probability)} probability."
        )
    best = plan.settings[0]
    sure = "" if bound is None else f"; it answers within {seconds(bound)} with {chance(best.probability)} probability"
    return f"The cheapest is {described(best)}{sure}."
