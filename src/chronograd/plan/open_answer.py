"""Answers of `plan` without a recommendation: the number of epochs is unknown, or the target is out of reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.plan import rows as shown
from chronograd.plan.advice import recipe, short_time
from chronograd.plan.effort import OutOfReach, Unknown
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget
from chronograd.plan.renting import billed
from chronograd.plan.rows import EpochOption, GoalPlan, NoPlan, RunOption, RunTime, UnknownEffort
from chronograd.units import dollars, seconds
from chronograd.words import listed

# Published recipes of classifiers take this many epochs, from short to long.
FEW, MANY = 30, 300


def ranked_by(effort: Unknown) -> SamplesToTarget:
    """Return the effort used to rank offers while the epochs are unknown: between few and many epochs."""
    return SamplesToTarget(math.sqrt(FEW * MANY) * effort.samples, effort.batch, reached=None, target=effort.target)


def out_of_reach(what: str, effort: OutOfReach, goal: Goal) -> Answer[NoPlan]:
    """Return the answer "no" to a target, with its reason."""
    section = Section(
        title=f"{what} to {100 * effort.target:.4g} %",
        takeaway=f"No: {100 * effort.target:.4g} % is out of reach, whatever you rent; {effort.reason}.",
        lines=["If you know a training run that reaches it, state its epochs: --epochs-to-target N."],
    )
    result = NoPlan("out of reach", None, goal, UnknownEffort(None, effort.target, 0.0, effort.reason))
    return Answer(f"Goal of {what}", sections=[section], result=result)


def with_epochs(row: RunOption, choices: PlanResult, i: int, effort: Unknown) -> EpochOption:
    """Return a row with the time and cost of an epoch, and of few and many epochs with start-up, instead of those of a run."""
    one = {name: column[i] for name, column in choices.columns.items()}
    epoch_h = float(one["step_time_s"] * math.ceil(effort.samples / (one["count"] * one["batch_per_rank"])) / 3600)
    slow = float(one["train_hours"] * 3600 / (one["steps"] * one["step_time_s"]))
    epoch_h *= slow
    price = float(one["price_usd_per_hour"])

    def run(epochs: int) -> RunTime:
        hours = epochs * epoch_h
        whole = float(one["startup_h"]) + hours
        return RunTime(whole, price * float(billed(whole, one)))

    names = {own.name for own in fields(EpochOption)}
    same = {name: value for name, value in vars(row).items() if name in names}
    return EpochOption(
        **same, epoch_hours=epoch_h, epoch_dollars=price * epoch_h, epochs_30=run(FEW), epochs_300=run(MANY)
    )


def unknown_sections(
    what: str, effort: Unknown, goal: Goal, plan: GoalPlan[EpochOption], most: int, assumed: Sequence[str]
) -> list[Section]:
    """Return time and price of an epoch, a range for few to many epochs, recipes of similar networks, and how to state the
    epochs.

    Args:
        plan: the answer's data; the table has at most `most` rows of its `front`.
    """
    options, front = plan.options, plan.front
    rows = front[:: max(1, -(-len(front) // most))]
    to = "" if effort.target is None else f" to {100 * effort.target:.4g} %"
    lines = []
    cheapest, fastest = options.cheapest, options.fastest
    if cheapest is not None and fastest is not None:
        lines.append(
            f"an epoch takes {_epoch(fastest)} (fastest), or {_epoch(cheapest)} (cheapest)"
            if cheapest != fastest
            else f"an epoch takes {_epoch(cheapest)}"
        )
        few, many = cheapest.epochs_30, cheapest.epochs_300
        lines.append(
            f"{FEW} to {MANY} epochs on the cheapest option take {short_time(few.hours)} to {short_time(many.hours)} and cost "
            f"{dollars(few.dollars)} to {dollars(many.dollars)}"
        )
        lines += [_within(goal, cheapest, fastest)] if goal.budget_usd or goal.deadline_s else []
    if assumed:
        lines.append(f"assumed: {'; '.join(assumed)}")
    if effort.neighbours:
        lines.append(
            f"known recipes of similar networks: {listed([f'{one.networks[0]} by {recipe(one)}' for one in effort.neighbours])}"
        )
    lines.append("state the epochs with --epochs-to-target N, or give your training log with --curve FILE")
    table = Table.of(
        rows,
        (
            *shown.COLUMNS,
            Column("epoch", "epoch_hours", format=short_time),
            Column("cost", "epoch_dollars", "usd"),
            Column(f"{FEW} epochs", "epochs_30", format=_run),
            Column(f"{MANY} epochs", "epochs_300", format=_run),
        ),
        shown.notes(rows),
        drop=("price of", f"{FEW} epochs"),
    )
    return [
        Section(
            title=f"{what}{to}",
            takeaway=f"Unknown: {effort.reason}. Nothing is recommended; prices per epoch follow.",
            lines=[f"{line[0].upper()}{line[1:]}." for line in lines],
            table=table if rows else None,
            data=as_json(front),
        )
    ]


def _run(run: RunTime) -> str:
    return f"{short_time(run.hours)}, {dollars(run.dollars)}"


def _epoch(row: EpochOption) -> str:
    return f"{seconds(3600 * row.epoch_hours)} and {dollars(row.epoch_dollars)} on {shown.devices(row)} {shown.vendor(row)}"


def _within(goal: Goal, cheapest: EpochOption, fastest: EpochOption) -> str:
    """State the number of epochs that the budget and the deadline allow."""
    parts = []
    if goal.budget_usd is not None:
        rest = goal.budget_usd - cheapest.startup_s / 3600 * cheapest.usd_per_hour
        parts.append(
            f"{dollars(goal.budget_usd)} pays for {max(0, int(rest / cheapest.epoch_dollars)):,} epochs on the cheapest option"
        )
    if goal.deadline_s is not None:
        rest_h = (goal.deadline_s - fastest.startup_s) / 3600
        parts.append(
            f"{seconds(goal.deadline_s)} is enough for {max(0, int(rest_h / fastest.epoch_hours)):,} epochs on the fastest option"
        )
    return "; ".join(parts)
