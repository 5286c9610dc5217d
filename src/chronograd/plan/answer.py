"""The answer of `plan`: settings by the price of a sample, or the setting that meets a goal and the limits that would change
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.errors import InputError
from chronograd.hardware import billing
from chronograd.job import Job
from chronograd.known import KnownResult
from chronograd.plan import rows as shown
from chronograd.plan.advice import goal_sections
from chronograd.plan.effort import Unknown
from chronograd.plan.goal import MAX_PROBABLE, Goal, PlanResult, SamplesToTarget, changes, choose, missing
from chronograd.plan.open_answer import ranked_by, unknown_sections, with_epochs
from chronograd.plan.place_advice import not_planned, place_row, place_rows, place_sections
from chronograd.plan.places import Places
from chronograd.plan.renting import ANY_TERMS, ON_DEMAND, RentalTerms, rent
from chronograd.plan.search import Search, SearchSpace, search
from chronograd.plan.settings import with_whole_batches
from chronograd.predict.notes import only_layout
from chronograd.trace import Trace
from chronograd.units import GIB, dollars, quantity
from chronograd.words import how_many, listed

MAX_SHOWN = 8  # rows of a table
NOT_COUNTED = (
    "Not included: evaluation and storage. We did not check whether the vendor has such an instance available."
)
NOT_COUNTED_AT_PLACES = (
    "Not included: the surcharge of SageMaker and Vertex AI, evaluation, storage, and the time to move data. We did not check whether "
    "such an instance is available."
)


def list_settings(
    traces: Trace | Sequence[Trace],
    job: Job,
    space: SearchSpace,
    terms: RentalTerms = ON_DEMAND,
    most: int = MAX_SHOWN,
) -> Answer[shown.SettingList]:
    """Return the setting with the cheapest sample for each device and device count. Settings without a price come last, the
    fastest first.

    Args:
        traces: see `search`.
        most: maximum number of settings in the list.
    """
    searched, num_too_large = _searched(traces, job, space)
    rented = rent(searched.columns, space.devices, job, terms)
    columns = rented.columns
    per_sample = columns["price_usd_per_hour"] / 3600 / columns["throughput_samples_per_s"]
    # If several settings wait for the same input, prefer the one with the fastest step. Ignore differences from rounding.
    own = columns["count"] * columns["batch_per_rank"] / columns["own_step_s"]
    order = np.lexsort(
        (-own, -np.round(np.log(columns["throughput_samples_per_s"]), 9), np.round(np.log(per_sample), 9))
    )
    fitting = order[(columns["fits"] & ~columns["is_outlier"])[order]]
    _, first = np.unique(np.stack([columns["device"], columns["count"]])[:, fitting], axis=1, return_index=True)
    best = fitting[np.sort(first)]

    def row(i: int) -> shown.PricedSetting:
        usd = None if np.isnan(per_sample[i]) else float(per_sample[i] * 1e6)
        return shown.PricedSetting(
            **shown.setting_row(searched, columns, rented.offers, i), usd_per_million_samples=usd
        )

    listed = [row(i) for i in best[:most]]
    fastest = max(fitting, key=lambda i: columns["throughput_samples_per_s"][i], default=None)
    num_fit = int(searched.columns["fits"].sum())
    rough = searched.rough(int(columns["setting"][best[0]])) if len(best) else []
    warnings = shown.warnings(listed[0], rough) if listed else []
    section = Section(
        title=f"{searched.network}: the cheapest setting for {len(listed)} of {how_many(len(best), 'combinations')} of device and count",
        takeaway=_settings_takeaway(listed, None if fastest is None else row(fastest)),
        lines=[*warnings, f"{num_fit:,} of {len(searched.columns['fits']):,} settings fit in memory."],
        table=_settings_table(listed),
        data=as_json(listed),
    )
    assumed = [*rough, *only_layout(job, searched.traces.values())]
    result = shown.SettingList(listed, len(searched.columns["fits"]), num_fit, num_too_large, assumed)
    notes = [*_left_out(num_too_large, space), *_not_searched(searched, job, rented.without_host)]
    return Answer(f"Settings for {searched.network}", sections=[section], notes=notes, result=result)


def _settings_table(rows: Sequence[shown.PricedSetting]) -> Table:
    notes = [*shown.notes(rows), "GiB: memory per device. Per M: dollars per million samples."]
    columns = (
        *shown.COLUMNS,
        Column("samples/s", "throughput_samples_per_s", format=",.0f"),
        Column("GiB", "memory_bytes", format=lambda size: f"{size / GIB:.1f}"),
        Column("per M", "usd_per_million_samples", "usd"),
    )
    return Table.of(rows, columns, notes)


def _searched(traces: Trace | Sequence[Trace], job: Job, space: SearchSpace) -> tuple[Search, int]:
    """Search, and drop settings whose global batch exceeds the number of samples; return the search and their number.

    Raises: InputError if no device count divides the stated global batch.
    """
    global_batch = space.global_batch
    if global_batch is not None:
        able = [count for count in space.counts if global_batch % count == 0]
        if not able:
            raise InputError(
                f"batch {global_batch} cannot be divided evenly among {listed([str(count) for count in space.counts], 'or')} devices",
                "choose other numbers with --counts, or another --batch",
            )
        space = replace(space, counts=able, batches=sorted({global_batch // count for count in able}))
    whole = search(traces, job, space)
    columns, num_too_large = whole.columns, 0
    if space.samples is not None:
        columns, num_too_large = with_whole_batches(columns, space.samples)
    if global_batch is not None:
        is_stated = columns["count"] * columns["batch_per_rank"] == global_batch
        columns, num_too_large = {name: column[is_stated] for name, column in columns.items()}, 0
    return replace(whole, columns=columns), num_too_large


def _settings_takeaway(rows: Sequence[shown.PricedSetting], fastest: shown.PricedSetting | None) -> str:
    if fastest is None:
        return "No setting fits in memory; try smaller batches, or other devices."

    def described(row: shown.PricedSetting) -> str:
        rate = quantity(row.throughput_samples_per_s, "sample/s")
        usd = row.usd_per_million_samples
        return f"{rate}, {'no price' if usd is None else f'{dollars(usd)} per million samples'}"

    if not rows or rows[0].usd_per_million_samples is None:
        return f"No setting that fits has a price; the fastest is {_name(fastest)}: {described(fastest)}."
    if rows[0] == fastest:
        return f"{_name(fastest)} is the cheapest and the fastest: {described(fastest)}."
    return f"The cheapest is {_name(rows[0])}: {described(rows[0])}; the fastest is {_name(fastest)}: {described(fastest)}."


def _name(row: shown.PlannedSetting) -> str:
    whose = f", {shown.vendor(row)}" if row.vendor else ""
    return f"{shown.devices(row)}, batch {row.batch_per_device} each, {shown.way(row).short}{whose}"


def reach_goal(
    traces: Trace | Sequence[Trace],
    job: Job,
    space: SearchSpace,
    effort: SamplesToTarget | Unknown,
    goal: Goal,
    terms: RentalTerms = ANY_TERMS,
    assumed: Sequence[str] = (),
    most: int = MAX_SHOWN,
) -> Answer[shown.GoalPlan[shown.RunOption] | shown.GoalPlan[shown.EpochOption]]:
    """Return the recommended setting for a goal, the Pareto front of hours and dollars, and limits that change the choice.

    If the number of epochs is unknown, return prices per epoch and no choice.

    Args:
        traces: see `search`. effort: training needed for the target. most: maximum number of rows of the table.
        assumed: job settings that the user did not state, in words.
    """
    places = terms.places
    searched, num_too_large = _searched(traces, job, space)
    rented = rent(searched.columns, space.devices, job, terms)
    limits = Goal(confidence=goal.confidence) if isinstance(effort, Unknown) else goal
    choices = choose(rented, ranked_by(effort) if isinstance(effort, Unknown) else effort, limits, terms.spot)
    row: Callable[[int], Any] = partial(_goal_row, searched, choices, places, effort)
    taken = choices.taken
    rough = [] if taken is None else searched.rough(int(choices.columns["setting"][taken]))
    warnings = [] if taken is None else shown.warnings(row(taken), rough)
    what = f"{searched.network} on {job.data.name.partition(':')[0]}"
    outliers = price_outliers(choices)
    among: dict[str, Any] = {}
    if places is not None:
        among = {"places": [row(i) for i in place_rows(choices, places, terms.kinds)], "not_planned": places.without_price(),
                 "network": job.network.name, "dataset": job.data.name, "moving": places}  # fmt: skip
    plan: shown.GoalPlan[Any] = shown.GoalPlan(
        **_choice_data(searched, choices, effort, row),
        goal=goal,
        effort=_effort_data(effort),
        other_recipes=[_recipe(one) for one in choices.effort.others],
        assumed=[*assumed, *rough, *only_layout(job, searched.traces.values())],
        decoding=terms.decoding,
        spot=terms.spot,
        too_large_for_the_data=num_too_large,
        outliers=outliers,
        **among,
    )
    notes = [
        *([effort.note] if isinstance(effort, SamplesToTarget) and effort.note else []),
        *_left_out(num_too_large, space),
        *low_prices(outliers),
        *_not_searched(searched, job, choices.without_host),
    ]
    if isinstance(effort, Unknown):
        sections = unknown_sections(what, effort, goal, plan, most, assumed)
    elif places is None:
        sections = goal_sections(what, choices, plan, most, assumed)
    else:
        notes += not_planned(places, terms.kinds)
        sections = place_sections(what, choices, plan, places, terms.spot, assumed)
    notes.append(NOT_COUNTED if places is None or isinstance(effort, Unknown) else NOT_COUNTED_AT_PLACES)
    return Answer(f"Goal of {searched.network}", sections=_warned(sections, warnings), notes=notes, result=plan)


def _goal_row(
    searched: Search, choices: PlanResult, places: Places | None, effort: SamplesToTarget | Unknown, i: int
) -> Any:
    plain: Any = _choice(searched, choices, i)
    plain = plain if places is None else place_row(plain, choices, i)
    return with_epochs(plain, choices, i, effort) if isinstance(effort, Unknown) else plain


def _choice_data(
    searched: Search, choices: PlanResult, effort: SamplesToTarget | Unknown, row: Callable[[int], Any]
) -> dict[str, Any]:
    """Return the choice, the alternatives, and the limits that would change the choice."""

    def maybe(i: int | None) -> Any:
        return None if i is None else row(i)

    is_unknown, chosen, taken = isinstance(effort, Unknown), choices.chosen, choices.taken
    options = {"fastest": choices.fastest(), "balanced": choices.balanced(), "cheapest": choices.cheapest()}
    front = [row(i) for i in choices.pareto_front()]
    other = [] if is_unknown else changes(choices)
    gains = [] if taken is None else searched.times_as_slow(int(choices.columns["setting"][taken]))
    return {
        "verdict": _verdict(effort, chosen),
        "evaluated": len(searched.columns["fits"]),
        "offers": len(choices.offers),
        "candidates": int(choices.is_candidate.sum()),
        "front": front,
        "front_size": len(front),
        "chosen": None if is_unknown else maybe(chosen),
        "options": shown.PlanOptions(**{name: maybe(i) for name, i in options.items()}),
        "likeliest": None if is_unknown else maybe(choices.most_probable()),
        "gains": [shown.WayGain(times, str(way), **vars(way)) for way, times in gains],
        "changes": [shown.PlanChange(c.what, c.value, maybe(c.row)) for c in other],
        "missing": missing(choices) if chosen is None else None,
    }


def _warned(sections: Sequence[Section], warnings: Sequence[str]) -> list[Section]:
    """Insert the warnings before the other lines of the first section."""
    first, *rest = sections
    return [replace(first, lines=[*warnings, *first.lines]), *rest]


def _verdict(effort: SamplesToTarget | Unknown, chosen: int | None) -> str:
    """Return the verdict: `unknown`, `missed`, `run` (no promise of accuracy) or `rent`."""
    if isinstance(effort, Unknown):
        return "unknown"
    if chosen is None:
        return "missed"
    return "run" if effort.reached is None else "rent"


def _effort_data(effort: SamplesToTarget | Unknown) -> shown.PlannedEffort | shown.UnknownEffort:
    if isinstance(effort, Unknown):
        return shown.UnknownEffort(
            None, effort.target, None, effort.reason, [_recipe(one) for one in effort.neighbours]
        )
    is_open = effort.reached is None or (effort.target is not None and effort.beyond)
    return shown.PlannedEffort(
        samples=effort.samples,
        batch=effort.reference_batch,
        sigma_log=effort.sigma_log,
        probability_of_target=None if is_open else min(effort.reached or 0.0, MAX_PROBABLE),
        target=effort.target,
        beyond=list(effort.beyond),
        noise_scale=None if effort.largest_batch else list(effort.noise_scale),
        largest_batch=effort.largest_batch,
        source=effort.source,
    )


def _recipe(result: KnownResult) -> shown.ListedRecipe:
    return shown.ListedRecipe(result.networks[0], result.name, result.epochs, result.accuracy, result.source)


def price_outliers(choices: PlanResult) -> list[shown.PriceOutlier]:
    """Return the offers whose price is far below that of similar offers."""
    columns = choices.columns
    numbers = sorted({int(i) for i in columns["offer"][columns["is_outlier"] & columns["fits"]]})
    return [
        shown.PriceOutlier(one.device, one.vendor, one.instance, one.kind, one.usd_per_device_hour, one.date, one.source,
                           billing.price_note(one))
        for one in (choices.offers[i] for i in numbers)
    ]  # fmt: skip


def low_prices(outliers: Sequence[shown.PriceOutlier]) -> list[str]:
    """Return notes on offers that are never recommended."""
    notes = [
        f"Not recommended because of the price per device and hour: {o.device} at {o.vendor} ({o.prices}). {o.reason}"
        for o in outliers[:3]
    ]
    return [*notes, *([f"Not recommended for the same reason: {len(outliers) - 3} more."] if len(outliers) > 3 else [])]


def _choice(searched: Search, choices: PlanResult, i: int) -> shown.RunOption:
    setting = shown.setting_row(searched, choices.columns, choices.offers, i)
    return shown.RunOption(**setting, **shown.run_fields(choices, i))


def _left_out(count: int, space: SearchSpace) -> list[str]:
    """Return a sentence on the number of settings left out, if any."""
    settings = "1 setting" if count == 1 else how_many(count, "settings")
    return (
        [f"Left out: {settings} with a global batch larger than the {how_many(space.samples, 'training samples')}."]
        if count and space.samples
        else []
    )


def _not_searched(searched: Search, job: Job, without_host: Sequence[str]) -> list[str]:
    """Return notes on options that a reader might expect in the search but that were not searched."""
    stated = job.training.model_fields_set
    notes = only_layout(job, searched.traces.values())
    if "compile" not in stated and not any(way.compile for way in searched.ways):
        notes.insert(0, "Not searched: torch.compile. We have no training times of compiled code on these devices.")
    if without_host:
        notes.append(f"Not offered: {', '.join(without_host)}. All known prices exclude the host.")
    return notes
