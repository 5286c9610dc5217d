"""The text of a recommendation for a goal: what to rent, how to train, time, cost, probability, and changes of the choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chronograd.answer import Column, Section, Table, as_json
from chronograd.figure import Figure, Lines, Series
from chronograd.known import KnownResult
from chronograd.plan import rows as shown
from chronograd.plan.goal import PlanResult, SamplesToTarget
from chronograd.plan.renting import OWN, VCPUS_PER_DEVICE
from chronograd.plan.rows import AnyRun, GoalPlan, LargePlan, PlanOptions, RentedRun, RunOption
from chronograd.units import chance, dollars, number, percent, seconds
from chronograd.words import how_many, listed


def goal_sections(
    what: str, choices: PlanResult, plan: GoalPlan[RunOption], most: int, assumed: Sequence[str]
) -> list[Section]:
    """Return the recommendation with a table of at most `most` settings, and the limits that would change it.

    Args:
        what: the network and its data.
        assumed: assumptions about the job, in words.
    """
    chosen = plan.chosen
    takeaway, *lines = (f"{line[0].upper()}{line[1:]}." for line in advice_lines(choices, plan, assumed))
    rows = few(plan.front, [row for row in vars(plan.options).values() if row], most)
    has_chance = has_limits(choices)
    signs = {
        "*": chosen,
        "f": plan.options.fastest,
        "b": plan.options.balanced,
        "c": plan.options.cheapest,
    }
    advice = Section(
        title=title(what, choices),
        takeaway=takeaway,
        lines=lines,
        figure=front_figure(plan.front, chosen) if rows else None,
        table=Table.of(
            rows,
            (
                *shown.COLUMNS,
                Column("time", "hours", format=short_time),
                Column("cost", "dollars", "usd"),
                *([Column("chance", "probability", format=chance)] if has_chance else []),
                Column("", lambda r: "".join(sign for sign, one in signs.items() if one is not None and r == one)),
            ),
            [
                *(
                    ["*: our recommendation; f, b, c: the fastest, balanced and cheapest option that meets the goal."]
                    if chosen
                    else []
                ),
                *(
                    [f"Chance: probability of meeting the goal{condition(choices.effort)}."]
                    if has_chance and condition(choices.effort)
                    else []
                ),
                *shown.notes(rows),
            ],
        ),
        data=as_json(plan.front),
    )
    return [advice, *change_section(choices, plan)]


def title(what: str, choices: PlanResult, where: str = "") -> str:
    """Return the heading: network, data, target and limits."""
    goal, target = choices.goal, choices.effort.target
    limits = [f"at most {dollars(goal.budget_usd)}"] if goal.budget_usd is not None else []
    limits += [f"in {seconds(goal.deadline_s)}"] if goal.deadline_s is not None else []
    to = "" if target is None else f" to {100 * target:.4g} %"
    return f"{what}{to}{where}: {', '.join(limits) or 'no limit'}"


def has_limits(choices: PlanResult) -> bool:
    """Return whether a goal can be missed: a budget, a deadline, or an accuracy with a known probability."""
    goal, effort = choices.goal, choices.effort
    is_known = effort.target is not None and effort.reached is not None and not effort.beyond
    return not goal.budget_usd is goal.deadline_s is None or is_known


def condition(effort: SamplesToTarget) -> str:
    """Return the condition on every probability if a job cannot state the whole recipe; else ""."""
    return " if the run reaches the published accuracy" if effort.beyond and effort.target is not None else ""


def beyond_lines(effort: SamplesToTarget) -> list[str]:
    """Name the parts of the recipe that a job cannot state."""
    if not effort.beyond:
        return []
    end = "lower" if effort.target is None else f"below {100 * effort.target:.4g} %"
    return [
        f"the published run includes {listed(effort.beyond)}, which a job cannot state: a run without them may end {end}"
    ]


def change_section(choices: PlanResult, plan: GoalPlan[Any] | LargePlan) -> list[Section]:
    """Return the section on limits that would change the choice, if there are any."""
    changed = [f"{line[0].upper()}{line[1:]}." for line in _changes(choices, plan)]
    if not changed:
        return []
    count = (
        f"We compared {how_many(plan.candidates, 'offers')} in {how_many(plan.evaluated, 'settings')}. For {plan.front_size} of them, no other "
        "offer is both faster and cheaper."
    )
    return [Section("What would change it", changed[0], lines=[*changed[1:], count])]


def few(front: Sequence[AnyRun], options: Sequence[AnyRun], most: int) -> list[AnyRun]:
    """Return at most `most` evenly spaced rows of the front with its two ends, plus the options, even those that are not on the
    front.
    """
    step = max(1, -(-(len(front) - 1) // max(most - 2 - len(options), 1)))
    some = [row for i, row in enumerate(front) if i % step == 0 or i == len(front) - 1]
    for row in options:
        if row not in some:
            some.append(row)
    return sorted(some, key=lambda row: row.hours)


def front_figure(
    rows: Sequence[RentedRun], chosen: RentedRun | None, what: str = "dollars", axis: str = "US dollars"
) -> Figure:
    """Plot dollars, or another field, against hours for the Pareto front and the recommended setting."""
    groups = [
        ("no other is both faster and cheaper" if what == "dollars" else "no other is better in both", rows, ""),
        ("recommended", [chosen] if chosen else [], "vermilion"),
    ]
    series = [
        Series(
            label, "predicted", [r.hours for r in own], [getattr(r, what) for r in own], color=color, is_scatter=True
        )
        for label, own, color in groups
        if own and all(math.isfinite(r.hours) for r in own)
    ]
    return Figure([Lines("hours", axis, series, log_x=True, log_y=True)])


def advice_lines(choices: PlanResult, plan: GoalPlan[RunOption], assumed: Sequence[str]) -> list[str]:
    """Return the recommendation with its time, cost, alternatives and assumptions; or by how much the goal is missed."""
    goal, chosen, best = choices.goal, plan.chosen, plan.likeliest
    sure = percent(goal.confidence, 0)
    if best is None:
        return [
            "no setting fits in memory and has a price of the requested kind that includes the host; name other "
            "devices with --on, or state a price in the job"
        ]
    if chosen is None:
        return _missed(choices, plan, assumed)
    why = "the fastest" if goal.is_for_speed else "the cheapest"
    takes = (
        f"{seconds(3600 * chosen.hours)} ({limits_of(chosen.hours_interval, seconds, 3600)}) and "
        f"{dollars(chosen.dollars)} ({limits_of(chosen.dollars_interval, dollars)})"
    )
    reduced = "" if chosen.algorithm == "ring" else f" with {chosen.algorithm.replace('_', ' ')} all-reduce"
    how = f"{offer_in_words(chosen)}, at batch {chosen.batch_per_device} each in {shown.way(chosen)}{reduced}"
    probability = f"{chance(chosen.probability)} probability" if has_limits(choices) else ""
    if choices.effort.reached is None:
        first = [
            f"we cannot promise the accuracy: it is unknown whether {choices.effort.source} reach {100 * (choices.effort.target or 0):.4g} %",
            f"the run itself takes {takes} on {how}: {why} option{f'; it stays within the limits with {probability}' if probability else ''}",
        ]
    else:
        first = [
            f"rent {how}: {short_time(chosen.hours)} and {dollars(chosen.dollars)}, {why} option that meets your goal with at least {sure} "
            f"probability{condition(choices.effort)}{_idle(chosen)}",
            f"it takes {takes}{f'; it meets the goal with {probability}' if probability else ''}",
            *beyond_lines(choices.effort),
        ]
    return [
        *first,
        options_line(plan.options),
        assumed_line(choices, plan, chosen, assumed),
        *grounds(choices, plan, chosen),
    ]


def _idle(row: RunOption) -> str:
    """Return a sentence if some of the rented GPUs do not work, with the reason if decoding is the limit."""
    rented = row.machines * row.price.devices_of_instance
    if rented <= row.count:
        return ""
    return f". {'Decoding limits the speed, so o' if row.is_input_bound else 'O'}nly {row.count} of {rented:g} GPUs run"


def _missed(choices: PlanResult, plan: GoalPlan[RunOption], assumed: Sequence[str]) -> list[str]:
    goal, best, effort = choices.goal, plan.likeliest, choices.effort
    assert best is not None
    if effort.reached is not None and effort.reached < goal.confidence:
        most = "at most " if effort.beyond else ""
        return [
            f"whatever you rent, the probability of reaching the target is {most}{chance(effort.reached)}",
            *beyond_lines(effort),
            assumed_line(choices, plan, best, assumed),
            *(line for line in grounds(choices, plan, best) if line.startswith("to the target")),
        ]
    lines = [
        f"no option meets the goal with {percent(goal.confidence, 0)} probability; the most likely one is {offer_in_words(best)}, with "
        f"{chance(best.probability)}{condition(effort)}",
        *beyond_lines(effort),
    ]
    return [
        *lines,
        *enough_lines(plan.missing),
        assumed_line(choices, plan, best, assumed),
        *grounds(choices, plan, best),
    ]


def enough_lines(missing: Mapping[str, float | None] | None) -> list[str]:
    """Return lines on the least deadline and budget that an option meets; see `goal.missing`."""
    deadline_h, budget = (missing or {}).get("deadline_h"), (missing or {}).get("budget_usd")
    limits = [f"deadline of {seconds(3600 * deadline_h)}"] if deadline_h is not None else []
    limits += [f"budget of {dollars(budget)}"] if budget is not None else []
    return [f"a {limit} would be enough, with the other limit unchanged" for limit in limits]


def options_line(options: PlanOptions[Any]) -> str:
    """Return one line with the fastest, the balanced and the cheapest option that meets the goal."""
    named: dict[str, list[str]] = {}
    for name, row in vars(options).items():
        if row is not None:
            text = f"{shown.devices(row)} {shown.vendor(row)}, {short_time(row.hours)}, {dollars(row.dollars)}"
            named.setdefault(text, []).append(name)
    return "; ".join(f"{listed(names)}: {text}" for text, names in named.items())


def assumed_line(choices: PlanResult, plan: GoalPlan[RunOption], row: RunOption, assumed: Sequence[str]) -> str:
    """Return a line with all assumptions behind the answer."""
    parts = list(assumed)
    if row.startup_s:
        parts.append(f"{seconds(row.startup_s)} to start a machine")
    decoding, price = plan.decoding, row.price
    if decoding is not None:
        cores = "" if price.vcpus_of_instance else f", {VCPUS_PER_DEVICE:g} virtual CPUs a device"
        parts.append(f"{decoding.per_vcpu:g} images/s decoded by each virtual CPU{cores}")
    if row.prices == "spot":
        parts.append(f"{plan.spot.per_hour:g} interruptions of a spot node per hour")
    if choices.effort.largest_batch is None:
        parts.append(_by_batch(choices.effort))
    return f"assumed: {'; '.join(parts)}" if parts else "no assumptions"


def grounds(choices: PlanResult, plan: GoalPlan[RunOption], row: RunOption) -> list[str]:
    """Return lines on the source of the price, speed against other precisions, an input limit, and the epochs to the target."""
    lines = price_lines(row)
    gains = [f"{gain.times_as_fast:.1f} times as fast as in {gain.than}" for gain in plan.gains
             if gain.times_as_fast >= 1.05]  # fmt: skip
    if gains:
        lines.append(f"in {shown.way(row)} the devices are {listed(gains)}")
    faster = min(plan.gains, key=lambda gain: gain.times_as_fast, default=None)
    if faster is not None and faster.times_as_fast < 0.8 and faster.precision != row.precision:
        lines.append(
            f"in {faster.than} the devices would be {1 / faster.times_as_fast:.1f} times as fast: search it with --precisions"
        )
    if row.is_input_bound:
        lines.append(
            f"decoding on the host limits the speed to {row.throughput_samples_per_s:,.0f} images/s: decode on the GPU, or store "
            "smaller images (--decode 0 leaves it out)"
        )
    lines.append(f"to the target: {choices.effort.source}; {_by_batch(choices.effort)}")
    if choices.effort.others:
        lines.append(
            f"other known recipes that reach the target: {listed([recipe(one) for one in choices.effort.others])}"
        )
    return lines


def price_lines(row: RentedRun) -> list[str]:
    """Return a line on the date and source of the price; none for the job's own price."""
    price = row.price
    old = ", more than a year ago; check it" if price.is_older_than_a_year else ""
    source = price.source.partition(";")[0].partition(", as read")[0]
    dated = f"from {price.date or 'an unknown date'}{old} ({source}; {price.tag})"
    return [] if row.vendor == OWN else [f"the price is {dated}"]


def recipe(result: KnownResult) -> str:
    """Return a published recipe with its epochs and accuracy."""
    return f"{result.short} ({how_many(result.epochs, 'epochs')}, {percent(result.accuracy)})"


def _by_batch(effort: SamplesToTarget) -> str:
    """State how the number of samples grows with the batch."""
    if effort.largest_batch is not None:
        return f"batches up to {effort.largest_batch:,} need no extra epochs"
    low, middle, high = effort.noise_scale
    scale = number(middle) if low == high else f"{number(middle)} ({number(low)} … {number(high)})"
    return f"gradient noise scale {scale} samples"


def _changes(choices: PlanResult, plan: GoalPlan[Any] | LargePlan) -> list[str]:
    lines = []
    for at, change in enumerate(plan.changes):
        what, value, then = change.what, change.value, change.then
        if what == "steps":
            lines.append(f"the limits still allow {value:,.{2 if value < 10 else 0}f} times the training steps")
            continue
        limit = seconds(3600 * value) if what == "deadline" else dollars(value)
        if what == "budget" and value < 0.01:
            continue  # a budget below one cent helps nobody
        side = "from" if what == "deadline" and at else "below"  # the first deadline is the tighter one
        other = (
            f"no option is likely to meet it ({percent(choices.goal.confidence, 0)})"
            if then is None
            else f"then {offer_in_words(then)}, {seconds(3600 * then.hours)}, {dollars(then.dollars)}"
        )
        lines.append(f"a {what} {side} {limit}: {other}")
    return lines


def offer_in_words(row: RentedRun) -> str:
    """Return the offer in words: devices, vendor, instance, kind of price and dollars per hour."""
    if row.vendor == OWN:
        return f"{shown.devices(row)} at the job's {dollars(row.usd_per_hour)} an hour"
    machines = f"{row.machines} × " if row.machines > 1 else ""
    region = f" in {row.region}" if row.region else ""
    return (
        f"{shown.devices(row)} from {row.vendor} ({machines}{row.instance}{region}, {row.prices}, {shown.hourly(row)})"
    )


def short_time(hours: float) -> str:
    """Return a time in few characters.

    >>> short_time(0.5), short_time(13.25), short_time(75.0)
    ('30 min', '13.2 h', '3.1 d')
    """
    if hours < 1:
        return f"{60 * hours:.0f} min" if hours >= 1 / 60 else seconds(3600 * hours, 2)
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def limits_of(pair: Sequence[float], unit: Callable[[float], str], scale: float = 1.0) -> str:
    return " … ".join(dict.fromkeys(unit(scale * value) for value in pair))
