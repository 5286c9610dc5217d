"""The answers of `plan` without advice to rent: no number of epochs has a basis, or no training comes near the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.plan import rows as shown
from chronograd.plan.advice import recipe, short_time
from chronograd.plan.effort import OutOfReach, Unknown
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget
from chronograd.plan.renting import billed
from chronograd.plan.rows import Row
from chronograd.units import dollars, seconds
from chronograd.words import listed

# Published recipes of classifiers take this many epochs, from short to long.
FEW, MANY = 30, 300


def ranked_by(effort: Unknown) -> SamplesToTarget:
    """The effort by which offers are compared while the epochs are unknown: between few and many."""
    return SamplesToTarget(math.sqrt(FEW * MANY) * effort.samples, effort.batch, reached=None, target=effort.target)


def out_of_reach(what: str, effort: OutOfReach, goal: Goal) -> Answer:
    """The answer "no" to a target, with its reason."""
    section = Section(
        title=f"{what} to {100 * effort.target:.4g} %",
        takeaway=f"No: {100 * effort.target:.4g} % is out of reach, whatever you rent; {effort.reason}.",
        lines=["If you know a training that reaches it, state its epochs: --epochs-to-target N."],
    )
    data = {
        "verdict": "out of reach",
        "chosen": None,
        "goal": vars(goal),
        "effort": {"samples": None, "target": effort.target, "probability_of_target": 0.0, "source": effort.reason},
    }
    return Answer(f"Goal of {what}", sections=[section], data=data)


def with_epochs(row: Row, choices: PlanResult, i: int, effort: Unknown) -> Row:
    """A row with the time and cost of an epoch, and of few and many epochs with start-up, in place of those of a run."""
    one = {name: column[i] for name, column in choices.columns.items()}
    epoch_h = float(one["step_time_s"] * math.ceil(effort.samples / (one["count"] * one["batch_per_rank"])) / 3600)
    slow = float(one["train_hours"] * 3600 / (one["steps"] * one["step_time_s"]))
    epoch_h *= slow
    price = float(one["price_usd_per_hour"])

    def run(epochs: int) -> dict[str, float]:
        hours = epochs * epoch_h
        whole = float(one["startup_h"]) + hours
        return {"hours": whole, "dollars": price * float(billed(whole, one))}

    kept = {key: value for key, value in row.items() if key not in RUN_FIELDS}
    return {
        **kept,
        "epoch_hours": epoch_h,
        "epoch_dollars": price * epoch_h,
        f"epochs_{FEW}": run(FEW),
        f"epochs_{MANY}": run(MANY),
    }


RUN_FIELDS = ("steps", "hours", "hours_interval", "dollars", "dollars_interval", "probability")


def unknown_sections(
    what: str, effort: Unknown, goal: Goal, data: dict[str, Any], most: int, assumed: Sequence[str]
) -> list[Section]:
    """Time and price of an epoch, a range for few to many epochs, near networks with recipes, and how to state the epochs.

    Args:
        data: of the answer; at most `most` rows of its `front` are in the table.
    """
    options, front = data["options"], data["front"]
    rows = front[:: max(1, -(-len(front) // most))]
    to = "" if effort.target is None else f" to {100 * effort.target:.4g} %"
    lines = []
    if rows:
        cheapest, fastest = options["cheapest"], options["fastest"]
        lines.append(
            f"an epoch takes {_epoch(fastest)} at the fastest, and {_epoch(cheapest)} at the cheapest"
            if cheapest != fastest
            else f"an epoch takes {_epoch(cheapest)}"
        )
        few, many = cheapest[f"epochs_{FEW}"], cheapest[f"epochs_{MANY}"]
        lines.append(
            f"{FEW} to {MANY} epochs there take {short_time(few['hours'])} to {short_time(many['hours'])} and cost "
            f"{dollars(few['dollars'])} to {dollars(many['dollars'])}"
        )
        lines += [_within(goal, cheapest, fastest)] if goal.budget_usd or goal.deadline_s else []
    if assumed:
        lines.append(f"assumed: {'; '.join(assumed)}")
    if effort.neighbours:
        lines.append(
            f"known recipes of near networks: {listed([f'{one.networks[0]} by {recipe(one)}' for one in effort.neighbours])}"
        )
    lines.append("state the epochs with --epochs-to-target N, or give a log of yours with --curve FILE")
    table = Table(
        (*shown.CELLS, "epoch", "cost", f"{FEW} epochs", f"{MANY} epochs"),
        [
            (
                *shown.cells(r),
                short_time(r["epoch_hours"]),
                dollars(r["epoch_dollars"]),
                *(
                    f"{short_time(r[k]['hours'])}, {dollars(r[k]['dollars'])}"
                    for k in (f"epochs_{FEW}", f"epochs_{MANY}")
                ),
            )
            for r in rows
        ],
        {3, 4, 5, 6},
        shown.notes(rows),
        drop=(1, 5),
    )
    return [
        Section(
            title=f"{what}{to}",
            takeaway=f"Unknown: {effort.reason}. Nothing is recommended; prices per epoch follow.",
            lines=[f"{line[0].upper()}{line[1:]}." for line in lines],
            table=table if rows else None,
            data=front,
        )
    ]


def _epoch(row: Row) -> str:
    return f"{seconds(3600 * row['epoch_hours'])} and {dollars(row['epoch_dollars'])} on {shown.devices(row)} {shown.vendor(row)}"


def _within(goal: Goal, cheapest: Row, fastest: Row) -> str:
    """State the number of epochs that the budget and the deadline allow."""
    parts = []
    if goal.budget_usd is not None:
        rest = goal.budget_usd - cheapest["startup_s"] / 3600 * cheapest["usd_per_hour"]
        parts.append(
            f"{dollars(goal.budget_usd)} pay for {max(0, int(rest / cheapest['epoch_dollars'])):,} epochs at the cheapest"
        )
    if goal.deadline_s is not None:
        rest_h = (goal.deadline_s - fastest["startup_s"]) / 3600
        parts.append(
            f"{seconds(goal.deadline_s)} are enough for {max(0, int(rest_h / fastest['epoch_hours'])):,} epochs at the fastest"
        )
    return "; ".join(parts)
