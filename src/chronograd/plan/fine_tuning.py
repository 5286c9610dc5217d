"""The cost of fine-tuning a large model to an accuracy, by method, from published curves of accuracy and time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chronograd.answer import Answer, Column, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.forecast.fine_tuning import (
    DEVICE,
    MODEL,
    SEQUENCES,
    SOURCE,
    TASK,
    TESTED,
    VALIDATED,
    AccuracyReached,
    FineTuningRun,
    published_runs,
)
from chronograd.hardware import catalog
from chronograd.job import Job
from chronograd.plan import rows as shown
from chronograd.plan.advice import limits_of, offer_in_words, price_lines
from chronograd.plan.goal import Goal, PlanResult, SamplesToTarget, choose
from chronograd.plan.renting import RentalTerms, rent
from chronograd.plan.rows import FineTuningOption, FineTuningPlan
from chronograd.record import Z80
from chronograd.units import chance, dollars, memory, percent, seconds
from chronograd.words import how_many

LEFT_OUT = "Left out: evaluation, loading the model, and storage."
Able = Sequence[tuple[FineTuningRun, AccuracyReached]]


def check(job: Job) -> None:
    """Raise InputError for a model or a device without published curves."""
    name, device = job.network.name.lower().removeprefix("hf:meta-llama/"), job.cluster.device
    if name != MODEL or device != DEVICE:
        raise InputError(
            f"no published curve gives the accuracy of fine-tuning {job.network.name} on {device}: those that we have are of {MODEL} on "
            f"{DEVICE} ({TASK})",
            f"write {MODEL} --on {DEVICE}, or give the tokens with --tokens, or a loss with --target-loss",
        )


def plan_fine_tuning(job: Job, target: float, goal: Goal, terms: RentalTerms, most: int) -> Answer[FineTuningPlan]:
    """Return the cheapest published way to fine-tune to an accuracy, and the other ways with their time and cost.

    Args:
        most: maximum number of ways to show.
    Raises: InputError as `check`.
    """
    check(job)
    runs = published_runs()
    able = [(run, reached) for run in runs if (reached := run.reaches(target)) is not None]
    best = max(runs, key=lambda run: run.test_accuracy)
    options = _options(job, able, goal, terms) if able else []
    chosen = next((one for one in options if one.probability >= goal.confidence), None)
    verdict = "out of reach" if not able else "missed" if chosen is None else "rent"
    plan = FineTuningPlan(verdict, target, goal, chosen, options, best.test_accuracy, SOURCE)
    return Answer(
        f"Fine-tuning of {MODEL}",
        sections=[_section(plan, best, most), _curves(able, runs, target)],
        notes=[
            "No published run of this table trains all parameters, so the cost of full fine-tuning to an accuracy is unknown. `predict` gives "
            "its time per step and memory.",
            LEFT_OUT,
        ],
        result=plan,
    )


def _options(job: Job, able: Able, goal: Goal, terms: RentalTerms) -> list[FineTuningOption]:
    """Return each way on its cheapest offer, the cheapest first. A way is one step of the time that it takes to the target."""
    device = catalog.device(DEVICE)
    size = len(able)
    spread = [math.log(np.divide(*reached.seconds_interval[::-1])) / (2 * Z80) for _, reached in able]
    table = {
        "device": np.zeros(size, dtype=int),
        "count": np.ones(size, dtype=int),
        "batch_per_rank": np.ones(size),
        "step_time_s": np.array([reached.seconds for _, reached in able]),
        "sigma_log": np.array(spread),
        "fits": np.full(size, True),
    }
    rented = rent(table, [device], job, terms)
    choices = choose(rented, SamplesToTarget(1, 1, sigma_log=0.0, largest_batch=1, target=None), goal, terms.spot)
    is_priced = np.isfinite(choices.columns["dollars"]) & ~choices.columns["is_outlier"]
    found = []
    for number, (run, reached) in enumerate(able):
        rows = np.flatnonzero(is_priced & (choices.columns["setting"] == number))
        if len(rows):
            row = int(rows[np.lexsort((choices.columns["hours"][rows], choices.columns["dollars"][rows]))[0]])
            found.append(_option(choices, row, run, reached))
    return sorted(found, key=lambda one: (one.dollars, one.hours))


def _option(choices: PlanResult, row: int, run: FineTuningRun, reached: AccuracyReached) -> FineTuningOption:
    fields = shown.run_fields(choices, row) | {"steps": reached.step}
    fields["probability"] *= reached.probability
    return FineTuningOption(
        device=DEVICE,
        count=1,
        **shown.offer_fields(choices.columns, choices.offers, row),
        **fields,
        method=run.name,
        final_accuracy=run.test_accuracy,
        memory_bytes=run.memory_bytes,
    )


def _section(plan: FineTuningPlan, best: FineTuningRun, most: int) -> Section:
    target, chosen = percent(plan.target), plan.chosen
    ground = (
        f"published curves of {MODEL} on {TASK}: {SOURCE}. A step has {SEQUENCES} sequences of up to 768 tokens. Accuracies of "
        f"{VALIDATED} questions are smoothed to a curve that never falls and ends at the test of {TESTED:,}"
    )
    if not plan.options:
        takeaway = f"no: the best published way, {best.name}, ends at {percent(best.test_accuracy)}, below {target}"
        lines = [ground]
    elif chosen is None:
        first = plan.options[0]
        takeaway = (
            f"no way meets the goal with {percent(plan.goal.confidence, 0)} probability; the cheapest that may reach {target} is "
            f"{first.method}, with {chance(first.probability)}"
        )
        lines = [ground, *price_lines(first)]
    else:
        takeaway = (
            f"{chosen.method} reaches {target} after {chosen.steps:,.0f} steps, in {seconds(3600 * chosen.hours)} "
            f"({limits_of(chosen.hours_interval, seconds, 3600)}) and for {dollars(chosen.dollars)} on {offer_in_words(chosen)}: the cheapest of "
            f"{how_many(len(plan.options), 'published ways')}"
        )
        lines = [
            f"assumed: {ground}; {seconds(chosen.startup_s)} to start a machine, which time and cost include",
            f"the probability that it reaches the accuracy within your limits is {chance(chosen.probability)}",
            *price_lines(chosen),
        ]
    columns = (
        Column("method", "method"),
        Column("steps", "steps", format=",.0f"),
        Column("time", lambda row: 3600 * row.hours, "s"),
        Column("cost", "dollars", "usd"),
        Column("chance", "probability", format=chance),
        Column("in the end", "final_accuracy", format=percent),
        Column("memory", "memory_bytes", format=memory),
    )
    text = [f"{line[0].upper()}{line[1:]}." for line in (takeaway, *lines)]
    return Section(
        f"{MODEL} to {target}",
        text[0],
        lines=text[1:],
        table=Table.of(plan.options[:most], columns, drop=("memory",)) if plan.options else None,
    )


def _curves(able: Able, runs: Sequence[FineTuningRun], target: float) -> Section:
    """Draw the curves of the ways that reach the target, else those of the three best."""
    best = sorted(runs, key=lambda run: -run.test_accuracy)[:3]
    drawn = [run for run, _ in sorted(able, key=lambda pair: pair[1].seconds)[:3]] or best
    series = [
        Series(run.name, "measured", (run.times / 60).tolist(), (100 * run.curve).tolist(), is_joined=True)
        for run in drawn
    ]
    return Section(
        "Accuracy against time",
        f"{how_many(len(able), 'published ways')} of {len(runs)} reach {percent(target)}.",
        figure=Figure([Lines(f"minutes of steps on {DEVICE}", "%", series)]),
    )
