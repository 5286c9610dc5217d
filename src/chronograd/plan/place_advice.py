"""The text of a choice among clouds: what to rent and where, time, cost, the next best option, and the cost of moving data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chronograd.answer import Column, Section, Table, as_json
from chronograd.hardware.instances import catalogue, clouds
from chronograd.hardware.market import Kind
from chronograd.plan import rows as shown
from chronograd.plan.advice import (
    advice_lines,
    assumed_line,
    beyond_lines,
    change_section,
    condition,
    grounds,
    limits_of,
    short_time,
    title,
)
from chronograd.plan.goal import PlanResult
from chronograd.plan.places import Places
from chronograd.plan.renting import KINDS, Spot
from chronograd.plan.rows import GoalPlan, RunOption
from chronograd.units import chance, dollars, percent, quantity, seconds


def place_row(row: RunOption, choices: PlanResult, i: int) -> RunOption:
    """Return a row with its cloud, the platform for `launch`, and the cost of moving data."""
    cloud = row.vendor.lower()
    return replace(row, cloud=cloud, platform=clouds()[cloud], moving_usd=float(choices.columns["moving_usd"][i]))


def place_rows(choices: PlanResult, places: Places, kinds: Sequence[Kind]) -> list[int]:
    """Return the best row for each cloud and kind of price: first those that meet the goal, the best first."""
    columns, best_rows = choices.columns, []
    first = columns["hours" if choices.goal.is_for_speed else "dollars"]
    vendors = np.array([offer.vendor.lower() for offer in choices.offers] + [""])[columns["offer"]]
    for cloud in places.names:
        for kind in kinds:
            among = (vendors == cloud) & (columns["kind"] == KINDS.index(kind))
            best = choices.best(among)
            best_rows.append(choices.most_probable(among) if best is None else best)
    keeps = columns["probability"] >= choices.goal.confidence
    return sorted((i for i in best_rows if i is not None), key=lambda i: (not keeps[i], i != choices.chosen, first[i]))


def place_sections(
    what: str, choices: PlanResult, plan: GoalPlan[RunOption], places: Places, spot: Spot, assumed: Sequence[str]
) -> list[Section]:
    """Return the recommendation with the best option of each cloud and kind of price, and the limits that would change it."""
    chosen, rows = plan.chosen, plan.places or []
    is_promised = chosen is not None and choices.effort.reached is not None
    lines = _advice(choices, plan, places, spot, assumed) if is_promised else advice_lines(choices, plan, assumed)
    takeaway, *rest = (f"{line[0].upper()}{line[1:]}." for line in lines)
    table = Table.of(
        rows,
        (
            Column("at", lambda r: f"{r.cloud} {r.region or ''}".rstrip()),
            Column("rent", lambda r: f"{_nodes(r)}{' spot' * (r.prices == 'spot')}"),
            Column("devices", shown.devices),
            Column("time", "hours", format=short_time),
            Column("cost", "dollars", "usd"),
            Column("moving", lambda r: r.moving_usd or None, "usd"),
            Column("chance", lambda r: f"{chance(r.probability)}{' *' if r == chosen else ''}"),
        ),
        [
            *(["*: our recommendation."] if chosen else []),
            "Cost includes moving data. The table lists the best option of each cloud, on demand and as spot.",
        ],
        drop=("devices",),
    )
    heading = title(what, choices, f" at {', '.join(places.names)}")
    return [Section(heading, takeaway, lines=rest, table=table, data=as_json(rows)), *change_section(choices, plan)]


def not_planned(places: Places, kinds: Sequence[Kind]) -> list[str]:
    """Return a sentence on instance types without a price, if any."""
    parts = []
    for cloud, missing in places.without_price().items():
        known = sum(one.count > 0 for one in catalogue(clouds()[cloud]).instance)
        if all(len(missing[kind]) == known for kind in kinds):
            parts.append(f"all of {cloud}")
            continue
        for kind in kinds:
            count = "all" if len(missing[kind]) == known else str(len(missing[kind]))
            if missing[kind]:
                parts.append(f"{count} of {known} types of {cloud} {'as spot' if kind == 'spot' else kind}")
    return [f"Not considered, because no price is known: {'; '.join(parts)} (`--json` lists them)."] if parts else []


def _advice(
    choices: PlanResult, plan: GoalPlan[RunOption], places: Places, spot: Spot, assumed: Sequence[str]
) -> list[str]:
    chosen = plan.chosen
    assert chosen is not None
    others = [r for r in plan.places or [] if r != chosen and r.probability >= choices.goal.confidence]
    lines = [
        f"rent {_nodes(chosen)} ({shown.devices(chosen)}) of {_where(chosen)}, {shown.hourly(chosen)}, for "
        f"{seconds(3600 * chosen.hours)}: {dollars(chosen.dollars)} ({limits_of(chosen.dollars_interval, dollars)}); "
        f"{_moving(chosen, places)}; {beside(chosen, others)}",
        f"train at batch {chosen.batch_per_device} each in {shown.way(chosen)}; it takes "
        f"{limits_of(chosen.hours_interval, seconds, 3600)} and meets the goal with {chance(chosen.probability)}{condition(choices.effort)}",
        *beyond_lines(choices.effort),
        assumed_line(choices, plan, chosen, assumed),
    ]
    if chosen.prices == "spot":
        longer = float(spot.slow_down(chosen.machines)) - 1
        lines.append(
            f"assumed for spot: {spot.per_hour:g} interruptions per node and hour, a checkpoint every {spot.checkpoint_s / 60:g} min and "
            f"{spot.restart_s / 60:g} min to restart; together they add {percent(longer, 1)} to the time"
        )
    return [*lines, *grounds(choices, plan, chosen)]


def _moving(row: RunOption, places: Places) -> str:
    if places.data_in is None:
        return "this excludes moving data (--data-in)"
    if not row.moving_usd:
        return (
            f"moving costs nothing, as the data is in {places.data_in}"
            if row.cloud == places.data_in
            else "moving is free"
        )
    home = f"{places.data_in} {places.region}".rstrip()
    return (
        f"this includes {dollars(row.moving_usd)} to move {quantity(places.data_bytes, 'B')} from {home} and "
        f"{quantity(places.back_bytes, 'B')} of checkpoints back"
    )


def beside(chosen: RunOption, others: Sequence[RunOption]) -> str:
    """Return a sentence on an alternative that meets the goal: the cheapest if it costs less, else the next best."""
    if not others:
        return "no other option in these clouds meets the goal"
    cheapest = min(others, key=lambda row: float(row.dollars))
    is_cheaper = cheapest.dollars < chosen.dollars
    other = cheapest if is_cheaper else others[0]
    times = other.dollars / chosen.dollars
    more = (
        f"{percent(abs(times - 1), 0)} {'less' if is_cheaper else 'more'}"
        if times < 2
        else f"{times:.3g} times as much"
    )
    return (
        f"the {'cheapest in the table' if is_cheaper else 'next best'}, {_where(other)}, takes {short_time(other.hours)} and "
        f"costs {dollars(other.dollars)}, {more}"
    )


def _where(row: RunOption) -> str:
    region = f" in {row.region}" if row.region else ""
    return f"{row.cloud}{region}, {row.prices}"


def _nodes(row: RunOption) -> str:
    """Return the number and type of the nodes, with the device if the type does not imply it: `2 × n1-standard-16 + 2 t4`."""
    machine, sign, _ = row.instance.partition(":")
    with_device = f" + {row.count // row.machines} {row.device}" if sign else ""
    return f"{row.machines} × {machine}{with_device}"
