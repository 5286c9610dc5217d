"""The answer of `plan` for the training of a large model: devices, layout, time and cost, and both over numbers of devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.hardware import billing
from chronograd.large.layout_asking import AskedLayouts
from chronograd.large.search_answer import in_words
from chronograd.large.tokens import STATED, TrainingTokens, billions
from chronograd.plan import rows as shown
from chronograd.plan.advice import (
    change_section,
    enough_lines,
    few,
    front_figure,
    has_limits,
    limits_of,
    offer_in_words,
    options_line,
    price_lines,
    short_time,
    title,
)
from chronograd.plan.answer import low_prices, price_outliers
from chronograd.plan.goal import Goal, changes, missing
from chronograd.plan.large_runs import LargeRuns, large_runs
from chronograd.plan.renting import KINDS, RentalTerms
from chronograd.plan.rows import LargePlan, LargeRun, PlanChange, PlanOptions, RunsOfCount
from chronograd.record import Z80
from chronograd.units import chance, dollars, memory, percent, seconds, si
from chronograd.words import how_many, listed

LEFT_OUT = (
    "Left out: evaluation, failures of devices on demand, storage and traffic. We did not check whether the vendor has such nodes "
    "available, or how it joins them."
)


def plan_training(
    asked: Sequence[AskedLayouts], tokens: TrainingTokens | None, goal: Goal, terms: RentalTerms, most: int
) -> Answer[LargePlan]:
    """Return the run to rent for a goal, the front of time and cost, and the best run of each number of devices.

    Args:
        asked, tokens: see `large_runs`. most: maximum number of rows of the first table.
    Raises: as `large_runs`.
    """
    runs = large_runs(asked, tokens, goal, terms)
    plan = _plan(runs)
    name = asked[0].setting.job.network.name
    size = "" if tokens is None else f", {billions(tokens.tokens)}"
    sections = [_advice(f"{name}{size}", runs, plan, most), _counts(runs, plan)]
    sections += change_section(runs.choices, plan) if tokens else []
    refused = [f"Left out: {', '.join(plan.refused)}. No layout fits there."] if plan.refused else []
    notes = list(dict.fromkeys(note for run in runs.runs for note in run.notes))
    return Answer(
        f"Training of {name}",
        sections=sections,
        notes=[*notes, *refused, *low_prices(plan.outliers), LEFT_OUT],
        result=plan,
    )


def _plan(runs: LargeRuns) -> LargePlan:
    choices, is_open = runs.choices, runs.tokens is None

    def row(i: int | None) -> LargeRun | None:
        return None if i is None else _row(runs, i)

    options = (
        {}
        if is_open
        else {"fastest": choices.fastest(), "balanced": choices.balanced(), "cheapest": choices.cheapest()}
    )
    front = [_row(runs, i) for i in (_front_of_tokens(runs) if is_open else choices.pareto_front())]
    names = ("fastest", "balanced", "cheapest")
    return LargePlan(
        verdict="missed" if choices.chosen is None else "rent",
        tokens_source=None if runs.tokens is None else runs.tokens.source,
        goal=choices.goal,
        spot=runs.spot,
        chosen=row(choices.chosen),
        options=PlanOptions(**{name: row(options.get(name)) for name in names}),
        likeliest=None if is_open else row(choices.most_probable()),
        front=front,
        front_size=len(front),
        by_count=_by_count(runs),
        refused=dict(runs.refused),
        changes=[] if is_open else [PlanChange(one.what, one.value, row(one.row)) for one in changes(choices)],
        missing=missing(choices) if choices.chosen is None and not is_open else None,
        evaluated=len(runs.runs),
        candidates=int(choices.is_candidate.sum()),
        outliers=price_outliers(choices),
        assumed=[] if choices.taken is None else list(runs.run(choices.taken).assumed),
    )


def _row(runs: LargeRuns, i: int) -> LargeRun:
    columns, run = runs.choices.columns, runs.run(i)
    tokens, sigma = (
        (float(columns["tokens"][i]), float(columns["sigma_tokens"][i]))
        if runs.tokens is None
        else (runs.tokens.tokens, runs.tokens.sigma_log)
    )
    return LargeRun(
        device=run.device,
        count=run.count,
        **shown.offer_fields(columns, runs.choices.offers, i),
        **shown.run_fields(runs.choices, i),
        layout=run.option.degrees,
        layout_in_words=in_words(run.option),
        command=run.command,
        step_time_s=run.option.step_s,
        tokens_per_s=run.tokens_per_s,
        tokens=tokens,
        tokens_interval=[tokens * float(np.exp(z * sigma)) for z in (-Z80, Z80)],
        memory_bytes=run.option.used_bytes,
        fit_probability=run.option.fit,
    )


def _front_of_tokens(runs: LargeRuns) -> list[int]:
    """Return the rows that no other row beats in both time and tokens, the fastest first."""
    columns, rows = runs.choices.columns, np.flatnonzero(runs.choices.is_candidate)
    order = rows[np.lexsort((-columns["tokens"][rows], columns["hours"][rows]))]
    tokens = columns["tokens"][order]
    before = np.concatenate([[0.0], np.maximum.accumulate(tokens)[:-1]])
    return [int(row) for row in order[tokens > before * (1 + 1e-9)]]


def _by_count(runs: LargeRuns) -> list[RunsOfCount]:
    """Return the cheapest run of each number of devices and kind of price; without tokens, the one with the most."""
    columns, choices = runs.choices.columns, runs.choices
    worth = columns["dollars"] if runs.tokens else -columns["tokens"]

    def best(number: int, kind: int) -> LargeRun | None:
        rows = np.flatnonzero(choices.is_candidate & (columns["setting"] == number) & (columns["kind"] == kind))
        return _row(runs, int(rows[np.argmin(worth[rows])])) if len(rows) else None

    return [
        RunsOfCount(
            run.device,
            run.count,
            in_words(run.option),
            run.option.step_s,
            run.tokens_per_s,
            *(best(number, kind) for kind in range(len(KINDS))),
        )
        for number, run in enumerate(runs.runs)
    ]


def _advice(what: str, runs: LargeRuns, plan: LargePlan, most: int) -> Section:
    lines = _lines(runs, plan)
    takeaway, *lines = (f"{line[0].upper()}{line[1:]}." for line in lines)
    options = [row for row in vars(plan.options).values() if row]
    rows = few(plan.front, options, most)
    is_open, has_chance = runs.tokens is None, has_limits(runs.choices)
    signs = {"*": plan.chosen, "f": plan.options.fastest, "b": plan.options.balanced, "c": plan.options.cheapest}
    columns = [
        Column("rent", lambda row: f"{shown.devices(row)} {shown.vendor(row)}"),
        Column("price of", shown.price_month),
        Column("time", "hours", format=short_time),
        Column("cost", "dollars", "usd"),
        *([Column("tokens", "tokens", format=billions)] if is_open else []),
        *([Column("chance", "probability", format=chance)] if has_chance and not is_open else []),
        Column("layout", "layout_in_words"),
        Column("", lambda row: "".join(sign for sign, one in signs.items() if one is not None and row == one)),
    ]
    notes = ["*: our recommendation; f, b, c: the fastest, balanced and cheapest option that meets the goal."]
    return Section(
        title=title(what, runs.choices),
        takeaway=takeaway,
        lines=lines,
        table=Table.of(rows, columns, notes if plan.chosen and not is_open else [], drop=("price of", "layout"))
        if rows
        else None,
        figure=front_figure(rows, plan.chosen, *(("tokens", "tokens") if is_open else ())) if rows else None,
        data=as_json(plan.front),
    )


def _lines(runs: LargeRuns, plan: LargePlan) -> list[str]:
    """Return the recommendation, and everything that it assumes."""
    goal, chosen = plan.goal, plan.chosen
    best = chosen or plan.likeliest
    if best is None:
        return [
            "no offer has a price that includes the host and fits the limits; name other devices with --on, or state "
            "cluster.price_usd_per_hour"
        ]
    takes = (
        f"{seconds(3600 * best.hours)} ({limits_of(best.hours_interval, seconds, 3600)}) and {dollars(best.dollars)} "
        f"({limits_of(best.dollars_interval, dollars)})"
    )
    if runs.tokens is None:
        low, high = (billions(end, "") for end in best.tokens_interval)
        first = [
            f"{_limits(goal)} buys {billions(best.tokens)} ({low} … {high}) on {offer_in_words(best)}, in {seconds(3600 * best.hours)} "
            f"for {dollars(best.dollars)}: the most of {how_many(plan.candidates, 'offers')}"
        ]
        if goal.deadline_s is None:
            first.append("more devices are faster, but buy fewer tokens: see the table, or add --deadline")
    elif chosen is None:
        sure = percent(goal.confidence, 0)
        first = [
            f"no option meets the goal with {sure} probability; the most likely one is {offer_in_words(best)}, with {chance(best.probability)}",
            f"it takes {takes}",
            *enough_lines(plan.missing),
        ]
    else:
        why = "the fastest" if goal.is_for_speed else "the cheapest"
        goal_words = (
            f" option that meets your goal with at least {percent(goal.confidence, 0)} probability"
            if has_limits(runs.choices)
            else " option"
        )
        meets = f"; it meets the goal with {chance(best.probability)} probability" if has_limits(runs.choices) else ""
        first = [
            f"rent {offer_in_words(best)}: {why}{goal_words}",
            f"it takes {takes}{meets}",
            options_line(plan.options),
        ]
    return [
        *first,
        f"layout: {best.layout_in_words}: {seconds(best.step_time_s)} per step, {best.tokens_per_s:,.0f} tokens/s; "
        f"{memory(best.memory_bytes)} per device fit with {chance(best.fit_probability)}",
        *_assumed(runs, plan, best),
        *price_lines(best),
        f"its prediction: {best.command}",
    ]


def _limits(goal: Goal) -> str:
    limits = [dollars(goal.budget_usd)] if goal.budget_usd is not None else []
    return listed([*limits, *([seconds(goal.deadline_s)] if goal.deadline_s is not None else [])])


def _assumed(runs: LargeRuns, plan: LargePlan, best: LargeRun) -> list[str]:
    """Return lines on assumptions: the tokens, the job, the start, and interruptions of spot nodes."""
    parts = [f"{seconds(billing.STARTUP_S)} to start a machine"] if best.startup_s else []
    tokens = runs.tokens
    lines = (
        [] if tokens is None or tokens.source == STATED else [". ".join([f"tokens: {tokens.source}", *tokens.notes])]
    )
    lines.append(f"assumed: {'; '.join([*plan.assumed, *parts])}")
    if any(one.spot for one in plan.by_count):
        spot, nodes = plan.spot, best.machines
        slower = percent(float(spot.slow_down(nodes)) - 1)
        lines.append(
            f"assumed for spot: {spot.per_hour:g} interruptions of a node per hour (--interruptions). A checkpoint of "
            f"{si(spot.checkpoint_bytes, 'B')} is written every {spot.checkpoint_s / 60:g} min (--checkpoint-every) and read after an "
            f"interruption, in {seconds(float(spot.write_s(nodes)))} at {si(spot.node_bytes_per_s, 'B/s')} per node (--storage), and a restart "
            f"takes {seconds(spot.restart_s)}. On {how_many(nodes, 'nodes') if nodes > 1 else 'one node'} all this adds {slower} to the time"
        )
    return lines


def _counts(runs: LargeRuns, plan: LargePlan) -> Section:
    """Return the best runs of each number of devices, on demand and on spot nodes."""
    is_open = runs.tokens is None

    def cell(kind: str) -> Column:
        def text(row: RunsOfCount) -> str | None:
            run: LargeRun | None = getattr(row, kind)
            if run is None:
                return None
            amount = billions(run.tokens) if is_open else dollars(run.dollars)
            return f"{short_time(run.hours)}, {amount}"

        return Column(kind.replace("_", " "), text)

    columns = (
        Column("devices", lambda row: f"{row.count} × {row.device}"),
        Column("step", "step_time_s", "s"),
        Column("tokens/s", "tokens_per_s", format=",.0f"),
        cell("on_demand"),
        cell("spot"),
        Column("layout", "layout_in_words"),
    )
    fastest, slowest = plan.by_count[-1], plan.by_count[0]
    gain = fastest.tokens_per_s / slowest.tokens_per_s
    takeaway = (
        f"{fastest.count} × {fastest.device} are {gain:.3g} times as fast as {slowest.count} × {slowest.device}."
        if len(plan.by_count) > 1
        else f"{fastest.count} × {fastest.device} train {fastest.tokens_per_s:,.0f} tokens/s."
    )
    return Section("By number of devices", takeaway, table=Table.of(plan.by_count, columns, drop=("layout", "step")))
