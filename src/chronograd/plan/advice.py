"""The words for a goal: what to rent and how to train on it, how long, how much, how sure, and what would change that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chronograd.answer import Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.plan import rows as shown
from chronograd.plan.goal import PlanResult, SamplesToTarget
from chronograd.plan.renting import VCPUS_PER_DEVICE
from chronograd.plan.rows import Row
from chronograd.units import dollars, percent, seconds
from chronograd.words import listed


def goal_sections(what: str, choices: PlanResult, data: Mapping[str, Any], most: int) -> list[Section]:
    """The advice with a table of at most so many settings, and what would change it.

    Args:
        what: the network and its data.
    """
    goal, chosen = choices.goal, data["chosen"]
    target = "" if choices.effort.target is None else f" to {100 * choices.effort.target:.4g} %"
    limits = [f"at most {dollars(goal.budget_usd)}"] if goal.budget_usd is not None else []
    limits += [f"in {seconds(goal.deadline_s)}"] if goal.deadline_s is not None else []
    takeaway, *lines = (f"{line[0].upper()}{line[1:]}." for line in advice_lines(choices, data))
    rows = _few(data["front"], chosen, most)
    advice = Section(
        title=f"{what}{target}: {', '.join(limits) or 'no limit'}",
        takeaway=takeaway,
        lines=lines,
        figure=_front_figure(data["front"], chosen) if rows else None,
        table=Table(
            (*shown.CELLS, "time", "cost", "sure"),
            [
                (*shown.cells(r), short_time(r["hours"]), dollars(r["dollars"]), f"{100 * r['probability']:.0f} %{' *' if r == chosen else ''}")
                for r in rows
            ],
            {3, 4},
            [*(["*: the advice."] if chosen else []), *shown.notes(rows)],
        ),
        data=data["front"],
    )  # fmt: skip
    return [advice, *change_section(choices, data)]


def change_section(choices: PlanResult, data: Mapping[str, Any]) -> list[Section]:
    """What would change the choice, if there is one."""
    changed = [f"{line[0].upper()}{line[1:]}." for line in _changes(choices, data)]
    if not changed:
        return []
    count = (
        f"Of {data['candidates']:,} things to rent, each run its fastest way, {data['front_size']} are beaten by none in time and "
        f"cost; {data['evaluated']:,} settings were evaluated."
    )
    return [Section("What would change it", changed[0], lines=[*changed[1:], count])]


def _few(front: Sequence[Row], chosen: Row | None, most: int) -> list[Row]:
    """At most so many rows of the front, evenly, with its ends and the choice; a choice that is not on it lies between."""
    step = max(1, -(-(len(front) - 1) // max(most - 2, 1)))
    some = [row for i, row in enumerate(front) if i % step == 0 or i == len(front) - 1]
    if chosen is not None and chosen not in some:
        some.append(chosen)
    return sorted(some, key=lambda row: row["hours"])


def _front_figure(rows: Sequence[Row], chosen: Row | None) -> Figure:
    """Dollars against hours: settings that none beats in both, and the one to take."""
    groups = [("none is faster and cheaper", rows, ""), ("taken", [chosen] if chosen else [], "vermilion")]
    series = [
        Series(label, "predicted", [r["hours"] for r in own], [r["dollars"] for r in own], color=color, is_scatter=True)
        for label, own, color in groups
        if own and all(math.isfinite(r["hours"]) for r in own)
    ]
    return Figure([Lines("hours", "US dollars", series, log_x=True, log_y=True)])


def advice_lines(choices: PlanResult, data: Mapping[str, Any]) -> list[str]:
    """What to take and why, what it takes, what it rests on; or by how much the goal is missed."""
    goal, chosen, best = choices.goal, data["chosen"], data["likeliest"]
    sure = percent(goal.confidence, 0)
    if best is None:
        return [
            "nothing fits: no setting fits in memory and has a price, of the kind asked for and with its host; name other devices "
            "with --on, or a price in the job"
        ]
    if chosen is None:
        if choices.effort.reached < goal.confidence:
            chance = percent(choices.effort.reached)
            return [
                f"whatever is rented, that the target is reached at all has a probability of {chance} only",
                grounds(choices, data, best)[-1],
            ]
        lines = [f"nothing fits with {sure}: the likeliest is {_name(best)}, {percent(best['probability'])}"]
        deadline_h, budget = data["missing"]["deadline_h"], data["missing"]["budget_usd"]
        limits = [f"deadline of {seconds(3600 * deadline_h)}"] if deadline_h is not None else []
        limits += [f"budget of {dollars(budget)}"] if budget is not None else []
        lines += [f"it would take a {limit}, with the other limit as it is" for limit in limits]
        return [*lines, *grounds(choices, data, best)]
    reduced = "" if chosen["algorithm"] == "ring" else f"; its all-reduce is {chosen['algorithm'].replace('_', ' ')}"
    why = "the cheapest" if goal.deadline_s is not None or goal.budget_usd is None else "the fastest"
    return [
        f"rent {_name(chosen)}, and train at batch {chosen['batch_per_device']} each in {shown.way(chosen)}: {why} that keeps the goal "
        f"with at least {sure}{reduced}",
        f"it takes {seconds(3600 * chosen['hours'])} ({limits_of(chosen['hours_interval'], seconds, 3600)}) and "
        f"{dollars(chosen['dollars'])} ({limits_of(chosen['dollars_interval'], dollars)}); it keeps the goal with "
        f"{percent(chosen['probability'], 0)}",
        *grounds(choices, data, chosen),
    ]


def grounds(choices: PlanResult, data: Mapping[str, Any], row: Row) -> list[str]:
    """Where the price is from, what the way of running gains, whether the input binds, what the target takes."""
    price = row["price"]
    old = ", more than a year old: ask again" if price["is_older_than_a_year"] else ""
    source = price["source"].partition(";")[0].partition(", as read")[0]
    dated = f"of {price['date'] or 'no known date'}{old} ({source}; {price['tag']})"
    lines = [] if row["vendor"] == "the job" else [f"the price is {dated}"]
    gains = [f"{gain['times_as_fast']:.1f} times as fast as in {gain['than']}" for gain in data["gains"]
             if gain["times_as_fast"] >= 1.05]  # fmt: skip
    if gains:
        lines.append(f"in {shown.way(row)} the devices are {listed(gains)}")
    faster = min(data["gains"], key=lambda gain: gain["times_as_fast"], default=None)
    if faster is not None and faster["times_as_fast"] < 0.8 and faster["precision"] != row["precision"]:
        lines.append(
            f"in {faster['than']} the devices would be {1 / faster['times_as_fast']:.1f} times as fast: search it with --precisions"
        )
    if row["is_input_bound"]:
        assumed = f", with {VCPUS_PER_DEVICE:g} virtual CPUs a device assumed"
        cores = "" if price["vcpus_of_instance"] else assumed
        lines.append(
            f"the host's decoding sets the pace, {row['throughput_samples_per_s']:,.0f} images/s, not the network{cores}: decode "
            "on the GPU, or store smaller images (--decode 0 leaves it out)"
        )
    return [*lines, f"to the target: {choices.effort.source}; {_by_batch(choices.effort)}"]


def _by_batch(effort: SamplesToTarget) -> str:
    """What decides how many samples a larger batch takes."""
    if effort.largest_batch is not None:
        return f"up to batch {effort.largest_batch:,} a larger one takes no more"
    low, middle, high = effort.noise_scale
    scale = f"{middle:,.4g}" if low == high else f"{middle:,.4g} ({low:,.4g} … {high:,.4g})"
    return f"gradient noise scale {scale} samples"


def _changes(choices: PlanResult, data: Mapping[str, Any]) -> list[str]:
    lines = []
    for number, change in enumerate(data["changes"]):
        what, value, then = change["what"], change["value"], change["then"]
        if what == "steps":
            lines.append(f"it bears {value:,.{2 if value < 10 else 0}f} times the steps to the target")
            continue
        limit = seconds(3600 * value) if what == "deadline" else dollars(value)
        if what == "budget" and value < 0.01:
            continue  # nobody has one of less than a cent
        side = "from" if what == "deadline" and number else "below"  # the first deadline is the tighter one
        other = (
            f"no setting keeps it with {percent(choices.goal.confidence, 0)}"
            if then is None
            else f"then {_name(then)}, {seconds(3600 * then['hours'])}, {dollars(then['dollars'])}"
        )
        lines.append(f"a {what} {side} {limit}: {other}")
    return lines


def _name(row: Row) -> str:
    """What is rented: devices, vendor, instance, kind of price and dollars an hour."""
    if row["vendor"] == "the job":
        return f"{shown.devices(row)} at the job's {dollars(row['usd_per_hour'])} an hour"
    machines = f"{row['machines']} × " if row["machines"] > 1 else ""
    region = f" in {row['region']}" if row["region"] else ""
    return (
        f"{shown.devices(row)} from {row['vendor']} ({machines}{row['instance']}{region}, {row['prices']}, "
        f"{dollars(row['usd_per_hour'])} an hour)"
    )


def short_time(hours: float) -> str:
    """A time in few characters.

    >>> short_time(0.5), short_time(13.25), short_time(75.0)
    ('30 min', '13.2 h', '3.1 d')
    """
    if hours < 1:
        return f"{60 * hours:.0f} min" if hours >= 1 / 60 else seconds(3600 * hours, 2)
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def limits_of(pair: Sequence[float], unit: Callable[[float], str], scale: float = 1.0) -> str:
    return " … ".join(dict.fromkeys(unit(scale * value) for value in pair))
