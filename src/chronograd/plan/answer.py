"""What `plan` says: settings by the price of a sample, or the one to take for a goal, and what would change that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.plan.goal import KINDS, Goal, Kind, PlanResult, SamplesToTarget, Spot, changes, choose, missing
from chronograd.plan.settings import evaluate, with_whole_batches
from chronograd.trace import Trace
from chronograd.units import dollars, percent, quantity, seconds, si

Row = dict[str, Any]


def devices_of(job: Job, names: Sequence[str]) -> list[Device]:
    """Those that were named; else all GPUs of the catalogue that have the job's precision."""
    if names:
        return [catalog.device(name) for name in names]
    return [d for d in catalog.devices() if d.kind == "gpu" and job.training.precision in d.peak_flops_per_s]


# -- settings --------------------------------------------------------------------------------------


def list_settings(
    trace: Trace,
    job: Job,
    devices: Sequence[Device],
    counts: Sequence[int],
    batches: Sequence[int],
    algorithms: Sequence[str] = ("ring",),
    most: int = 20,
    *,
    samples: int,
) -> Answer:
    """Settings that fit, the cheapest sample first; those without a price after them, the fastest first.

    Args:
        devices, counts, batches, algorithms: see `evaluate`. most: settings to list.
        samples: training samples in an epoch; settings of a larger global batch are left out.
    """
    table, num_too_large = with_whole_batches(evaluate(trace, job, devices, counts, batches, algorithms), samples)
    per_sample = table["cost_usd_per_hour"] / 3600 / table["throughput_samples_per_s"]
    order = np.lexsort((-table["throughput_samples_per_s"], per_sample))
    fitting = order[table["fits"][order]]
    columns = {**table, "per_sample": per_sample}
    rows = [_setting(columns, devices, algorithms, i) for i in fitting[:most]]
    fastest = max(fitting, key=lambda i: table["throughput_samples_per_s"][i], default=None)
    section = Section(
        title=f"{trace.network}: {len(rows)} of {len(fitting)} settings that fit, of {len(order)}",
        takeaway=_settings_takeaway(rows, None if fastest is None else _setting(columns, devices, algorithms, fastest)),
        table=Table(
            ("device", "count", "batch per device", "all-reduce", "step", "throughput", "memory", "per million samples"),
            [
                (r["device"], str(r["count"]), str(r["batch_per_device"]), r["algorithm"], seconds(r["step_time_s"]),
                 quantity(r["throughput_samples_per_s"], "sample/s"), si(r["memory_bytes"], "B"),
                 quantity(r["usd_per_million_samples"], "usd"))
                for r in rows
            ],
            {1, 2, 4, 5, 6, 7},
        ),
        data=rows,
    )  # fmt: skip
    data = {
        "settings": rows,
        "evaluated": len(order),
        "fit": len(fitting),
        "too_large_for_the_data": num_too_large,
    }
    notes = _left_out(num_too_large, samples)
    return Answer(f"Settings for {trace.network}", sections=[section], data=data, notes=notes)


def _setting(columns: Mapping[str, np.ndarray], devices: Sequence[Device], algorithms: Sequence[str], i: int) -> Row:
    per_sample = columns["per_sample"][i]
    return {
        "device": devices[columns["device"][i]].name,
        "count": int(columns["count"][i]),
        "batch_per_device": int(columns["batch_per_rank"][i]),
        "algorithm": algorithms[columns["algorithm"][i]],
        "step_time_s": float(columns["step_time_s"][i]),
        "throughput_samples_per_s": float(columns["throughput_samples_per_s"][i]),
        "memory_bytes": float(columns["memory_bytes"][i]),
        "usd_per_million_samples": None if np.isnan(per_sample) else float(per_sample * 1e6),
    }


def _settings_takeaway(rows: Sequence[Row], fastest: Row | None) -> str:
    if fastest is None:
        return "No setting fits in memory; try smaller batches, or other devices."

    def told(row: Row) -> str:
        rate = quantity(row["throughput_samples_per_s"], "sample/s")
        usd = row["usd_per_million_samples"]
        return f"{rate}, {'no price' if usd is None else f'{dollars(usd)} per million samples'}"

    if not rows or rows[0]["usd_per_million_samples"] is None:
        return f"No setting that fits has a price; the fastest is {_name(fastest)}: {told(fastest)}."
    if rows[0] == fastest:
        return f"{_name(fastest)} is the cheapest and the fastest: {told(fastest)}."
    return f"The cheapest is {_name(rows[0])}: {told(rows[0])}; the fastest is {_name(fastest)}: {told(fastest)}."


def _name(row: Row) -> str:
    return f"{row['count']} × {row['device']}, batch {row['batch_per_device']} each"


# -- goals -----------------------------------------------------------------------------------------


def reach_goal(
    trace: Trace,
    job: Job,
    devices: Sequence[Device],
    counts: Sequence[int],
    batches: Sequence[int],
    algorithms: Sequence[str] = ("ring",),
    *,
    samples: int,
    effort: SamplesToTarget,
    goal: Goal,
    spot: Spot | None = None,
    kinds: Sequence[Kind] = KINDS,
    most: int = 20,
) -> Answer:
    """The setting to take for a goal: hours and dollars of every setting that no other beats in both, and what would change
    the choice.

    Args:
        devices, counts, batches, algorithms: see `evaluate`. most: settings to list, about.
        samples: training samples in an epoch; settings of a larger global batch are left out.
        effort: what the target takes. spot: interruptions. kinds: of prices.
    """
    table, num_too_large = with_whole_batches(evaluate(trace, job, devices, counts, batches, algorithms), samples)
    choices = choose(table, devices, job, effort, goal, spot or Spot(), kinds)

    def row(i: int) -> Row:
        return _choice(choices, devices, algorithms, i)

    pareto_front = choices.pareto_front()
    shown = (
        pareto_front
        if len(pareto_front) <= most
        else sorted({*pareto_front[:: -(-len(pareto_front) // most)], pareto_front[-1]}, key=pareto_front.index)
    )
    most_probable = choices.most_probable()
    data = {
        "evaluated": len(choices.is_candidate),
        "candidates": int(choices.is_candidate.sum()),
        "front": [row(i) for i in shown],
        "front_size": len(pareto_front),
        "chosen": None if choices.chosen is None else row(choices.chosen),
        "likeliest": None if most_probable is None else row(most_probable),
        "changes": [
            {"what": c.what, "value": c.value, "then": None if c.row is None else row(c.row)} for c in changes(choices)
        ],
        "missing": None if choices.chosen is not None else missing(choices),
        "goal": {"budget_usd": goal.budget_usd, "deadline_s": goal.deadline_s, "confidence": goal.confidence},
        "effort": {
            "samples": effort.samples,
            "batch": effort.reference_batch,
            "sigma_log": effort.sigma_log,
            "probability_of_target": effort.reached,
            "noise_scale": list(effort.noise_scale),
            "source": effort.source,
        },
        "too_large_for_the_data": num_too_large,
    }
    section = _goal_section(trace.network, choices, data)
    notes = [*([effort.note] if effort.note else []), *_left_out(num_too_large, samples)]
    return Answer(f"Goal of {trace.network}", sections=[section], data=data, notes=notes)


def _left_out(count: int, samples: int) -> list[str]:
    """A sentence on settings that are left out, where there are any."""
    settings = "1 setting" if count == 1 else f"{count:,} settings"
    return [f"Left out: {settings} of a global batch larger than the {samples:,} training samples."] if count else []


def _choice(choices: PlanResult, devices: Sequence[Device], algorithms: Sequence[str], i: int) -> Row:
    c = choices.columns
    return {
        "device": devices[c["device"][i]].name,
        "count": int(c["count"][i]),
        "batch_per_device": int(c["batch_per_rank"][i]),
        "algorithm": algorithms[c["algorithm"][i]],
        "prices": KINDS[c["kind"][i]],
        "step_time_s": float(c["step_time_s"][i]),
        "steps": float(c["steps"][i]),
        "hours": float(c["hours"][i]),
        "hours_interval": list(choices.interval("hours", i)),
        "dollars": float(c["dollars"][i]),
        "dollars_interval": list(choices.interval("dollars", i)),
        "probability": float(c["probability"][i]),
    }


def _goal_section(network: str, choices: PlanResult, data: Mapping[str, Any]) -> Section:
    goal, chosen = choices.goal, data["chosen"]
    limits = [f"at most {dollars(goal.budget_usd)}"] if goal.budget_usd is not None else []
    limits += [f"in {seconds(goal.deadline_s)}"] if goal.deadline_s is not None else []
    # A choice that is not on the front is cheaper than one there, and less sure.
    rows = sorted(
        [*data["front"], *([chosen] if chosen not in (None, *data["front"]) else [])], key=lambda r: r["hours"]
    )
    takeaway, *lines = (f"{line[0].upper()}{line[1:]}." for line in _sentences(choices, data))
    return Section(
        title=f"{network}: {', '.join(limits) or 'no limit'}",
        takeaway=takeaway,
        lines=[
            *lines,
            f"{data['front_size']} settings that none beats in time and cost, of {data['candidates']:,} that fit and have a "
            f"price, of {data['evaluated']:,}.",
        ],
        figure=_front_figure(rows, chosen) if rows else None,
        table=Table(
            ("device", "count", "batch each", "prices", "steps", "time", "80 % interval", "cost", "80 % interval", "keeps it"),
            [
                (r["device"], str(r["count"]), str(r["batch_per_device"]), r["prices"], f"{r['steps']:,.0f}",
                 seconds(3600 * r["hours"]), _limits(r["hours_interval"], seconds, 3600), dollars(r["dollars"]),
                 _limits(r["dollars_interval"], dollars), percent(r["probability"]) + (" *" if r == chosen else ""))
                for r in rows
            ],
            {1, 2, 4, 5, 6, 7, 8, 9},
            (
                f"To the target: {choices.effort.source}.",
                f"Gradient noise scale {_scale(choices.effort.noise_scale)} samples.",
            ),
        ),
        data=rows,
    )  # fmt: skip


def _limits(pair: Sequence[float], unit: Callable[[float], str], scale: float = 1.0) -> str:
    return " … ".join(unit(scale * value) for value in pair)


def _scale(noise: Sequence[float]) -> str:
    return f"{noise[1]:,.4g}" if noise[0] == noise[2] else f"{noise[1]:,.4g} ({noise[0]:,.4g} … {noise[2]:,.4g})"


def _front_figure(rows: Sequence[Row], chosen: Row | None) -> Figure:
    """Dollars against hours: settings that none beats in both, and the one to take."""
    groups = [("none is faster and cheaper", rows, ""), ("taken", [chosen] if chosen else [], "vermilion")]
    series = [
        Series(label, "predicted", [r["hours"] for r in own], [r["dollars"] for r in own], color=color, is_scatter=True)
        for label, own, color in groups
        if own and all(math.isfinite(r["hours"]) for r in own)
    ]
    return Figure([Lines("hours", "US dollars", series, log_x=True, log_y=True)])


def _sentences(choices: PlanResult, data: Mapping[str, Any]) -> list[str]:
    """What to take and why, then what would change that; or by how much the goal is missed."""

    def name(row: Row) -> str:
        return f"{_name(row)}, {row['prices']}"

    goal, chosen, best = choices.goal, data["chosen"], data["likeliest"]
    sure = percent(goal.confidence, 0)
    if best is None:
        return [
            "nothing fits: no setting fits in memory and has a price; name other devices with --on, or a price in the job"
        ]
    if chosen is None:
        lines = [f"nothing fits with {sure}: the likeliest is {name(best)}, {percent(best['probability'])}"]
        if choices.effort.reached < goal.confidence:
            lines.append(
                f"that the target is reached at all has a probability of {percent(choices.effort.reached)} only"
            )
        deadline_h, budget = data["missing"]["deadline_h"], data["missing"]["budget_usd"]
        limits = [f"deadline of {seconds(3600 * deadline_h)}"] if deadline_h is not None else []
        limits += [f"budget of {dollars(budget)}"] if budget is not None else []
        return lines + [f"it would take a {limit}, with the other limit as it is" for limit in limits]
    why = "the cheapest" if goal.deadline_s is not None or goal.budget_usd is None else "the fastest"
    lines = [f"take {name(chosen)}: {why} that keeps the goal with at least {sure} ({percent(chosen['probability'])})"]
    for number, change in enumerate(data["changes"]):
        what, value, then = change["what"], change["value"], change["then"]
        if what == "steps":
            lines.append(f"it bears {value:.2f} times the steps to the target")
            continue
        limit = seconds(3600 * value) if what == "deadline" else dollars(value)
        side = "from" if what == "deadline" and number else "below"  # the first deadline is the tighter one
        other = "nothing fits" if then is None else f"then {name(then)}, {dollars(then['dollars'])}"
        lines.append(f"a {what} {side} {limit}: {other}")
    return lines
