"""`chronograd plan JOB --target-accuracy --budget --deadline`: the setting that reaches a goal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.hardware.catalog import Device
    from chronograd.job import Job
    from chronograd.plan.goal import Choices, Effort
    from chronograd.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])
_GOAL = ("target_accuracy", "budget", "deadline")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str) -> float:
    """
    >>> parse_seconds("6h"), parse_seconds("1.5 d"), parse_seconds("90m")
    (21600.0, 129600.0, 5400.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text.lower())
    if found is None or not 0 < float(found[1]) < 1e9:
        raise click.BadParameter(f"cannot read the time {text!r}; write 6h, 90m or 2d")
    return float(found[1]) * _SECONDS[found[2]]


def options(command: F) -> F:
    """The options of a goal."""
    for option in reversed((
        click.option("--target-accuracy", type=click.FloatRange(0, 1, min_open=True), help="To be reached, such as 0.92."),
        click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="USD", help="Dollars, at most."),
        click.option("--deadline", metavar="TIME", help="Wall time, at most, such as 6h or 2d."),
        click.option("--confidence", default=0.8, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
                     help="Of keeping budget and deadline."),
        click.option("--curve", type=click.Path(path_type=Path), metavar="RUN|FILE",
                     help="A run, or a log, of such a job: when it reached the target, or is forecast to."),
        click.option("--epochs-to-target", type=click.FloatRange(0, min_open=True), help="At the job's batch, if known."),
        click.option("--noise-scale", metavar="N", help="Gradient noise scale in samples, or LOW:HIGH; a run knows its own."),
        click.option("--prices", type=click.Choice(["on-demand", "spot", "both"]), default="both", show_default=True),
        click.option("--interruptions", default=0.05, show_default=True, type=click.FloatRange(0, 100),
                     help="Of a spot node per hour; each costs ten minutes."),
    )):  # fmt: skip
        command = option(command)
    return command


def is_asked(asked: Mapping[str, Any]) -> bool:
    return any(asked[name] is not None for name in _GOAL)


def devices_of(job: Job, places: Sequence[str]) -> list[Device]:
    """Those that were named; else all GPUs of the catalogue that have the job's precision."""
    from chronograd.hardware import catalog

    if places:
        return [catalog.device(name) for name in places]
    return [d for d in catalog.devices() if d.kind == "gpu" and job.training.precision in d.peak_flops_per_s]


def plan(trace: Trace, job: Job, places: Sequence[str], counts: Sequence[int], batches: Sequence[int],
         algorithms: Sequence[str], most: int, as_json: bool, **asked: Any) -> None:  # fmt: skip
    """Evaluate, choose, and tell."""
    from chronograd.data.datasets import card
    from chronograd.plan.goal import KINDS, Goal, Spot, choose
    from chronograd.plan.settings import evaluate, with_whole_batches

    devices = devices_of(job, places)
    effort = _effort(job, asked)
    goal = Goal(asked["budget"], parse_seconds(asked["deadline"]) if asked["deadline"] else None, asked["confidence"])
    kinds = KINDS if asked["prices"] == "both" else tuple(kind for kind in KINDS if kind == asked["prices"])
    samples = card(job.data).train_size
    evaluated = evaluate(trace, job, devices, counts, batches, algorithms)
    table, num_too_large = with_whole_batches(evaluated, samples)
    found = choose(table, devices, job, effort, goal, Spot(asked["interruptions"]), kinds)
    told = _data(found, devices, algorithms, most) | {"too_large_for_the_data": num_too_large}
    if as_json:
        common.print_json(told)
    else:
        _print(trace.network, told, found)
        if num_too_large:
            click.echo(of_too_large(num_too_large, samples))


def of_too_large(count: int, samples: int) -> str:
    """A sentence on settings that are left out; empty if none is."""
    if not count:
        return ""
    settings = "1 setting" if count == 1 else f"{count:,} settings"
    return f"Left out: {settings} of a global batch larger than the {samples:,} training samples."


def _effort(job: Job, asked: Mapping[str, Any]) -> Effort:
    """From what was told, else from a learning curve, else from the job's own epochs."""
    from chronograd.data.datasets import card
    from chronograd.errors import InputError
    from chronograd.plan.effort import of_curve, of_epochs, of_job

    samples = card(job.data).train_size
    if not samples:
        raise InputError("the number of training samples is not known", "set data.samples")
    noise = _noise_scale(asked["noise_scale"])
    if asked["epochs_to_target"] is not None:
        return of_epochs(asked["epochs_to_target"], samples, job.training.batch, noise)
    target = asked["target_accuracy"] or job.training.target_accuracy
    if asked["curve"] is None:
        return of_job(job, samples, target, noise)
    if target is None:
        raise click.UsageError("--curve needs --target-accuracy, to tell when it is reached")
    return of_curve(asked["curve"], job, samples, target, noise)


def _noise_scale(text: str | None) -> tuple[float, float, float] | None:
    """Low, middle, high. One number is taken as exact."""
    if text is None:
        return None
    parts = common.numbers("--noise-scale", text.replace(":", ","))
    if len(parts) not in (1, 2) or not 0 <= min(parts) <= max(parts) == parts[-1]:
        raise click.UsageError(f"--noise-scale takes samples, such as 900 or 500:2000, not {text}")
    return parts[0], (parts[0] * parts[-1]) ** 0.5, parts[-1]


def _data(found: Choices, devices: Sequence[Device], algorithms: Sequence[str], most: int) -> dict[str, Any]:
    from chronograd.plan.goal import changes, missing

    def row(i: int) -> dict[str, Any]:
        return _row(found, devices, algorithms, i)

    front = found.front()
    shown = front if len(front) <= most else sorted({*front[:: -(-len(front) // most)], front[-1]}, key=front.index)
    likeliest = found.likeliest()
    effort = found.effort
    return {
        "evaluated": len(found.is_candidate),
        "candidates": int(found.is_candidate.sum()),
        "front": [row(i) for i in shown],
        "front_size": len(front),
        "chosen": None if found.chosen is None else row(found.chosen),
        "likeliest": None if likeliest is None else row(likeliest),
        "changes": [
            {"what": c.what, "value": c.value, "then": None if c.row is None else row(c.row)} for c in changes(found)
        ],
        "missing": None if found.chosen is not None else missing(found),
        "goal": {
            "budget_usd": found.goal.budget_usd,
            "deadline_s": found.goal.deadline_s,
            "confidence": found.goal.confidence,
        },
        "effort": {
            "samples": effort.samples,
            "batch": effort.reference_batch,
            "sigma_log": effort.sigma_log,
            "probability_of_target": effort.reached,
            "noise_scale": list(effort.noise_scale),
            "source": effort.source,
        },
    }


def _row(found: Choices, devices: Sequence[Device], algorithms: Sequence[str], i: int) -> dict[str, Any]:
    from chronograd.plan.goal import KINDS

    c = found.columns
    return {
        "device": devices[c["device"][i]].name,
        "count": int(c["count"][i]),
        "batch_per_device": int(c["batch_per_rank"][i]),
        "algorithm": algorithms[c["algorithm"][i]],
        "prices": KINDS[c["kind"][i]],
        "step_time_s": float(c["step_time_s"][i]),
        "steps": float(c["steps"][i]),
        "hours": float(c["hours"][i]),
        "hours_interval": list(found.interval("hours", i)),
        "dollars": float(c["dollars"][i]),
        "dollars_interval": list(found.interval("dollars", i)),
        "probability": float(c["probability"][i]),
    }


def _print(network: str, told: Mapping[str, Any], found: Choices) -> None:
    from chronograd.units import dollars, percent, seconds

    def limits(pair: Sequence[float], unit: Callable[[float], str], scale: float = 1.0) -> str:
        return " … ".join(unit(scale * value) for value in pair)

    goal, effort = found.goal, told["effort"]
    asked = [f"at most {dollars(goal.budget_usd)}"] if goal.budget_usd is not None else []
    asked += [f"in {seconds(goal.deadline_s)}"] if goal.deadline_s is not None else []
    common.print_table(
        ("device", "count", "batch each", "prices", "steps", "time", "middle 80 %", "cost", "middle 80 %", "keeps it"),
        [
            (r["device"], str(r["count"]), str(r["batch_per_device"]), r["prices"], f"{r['steps']:,.0f}",
             seconds(3600 * r["hours"]), limits(r["hours_interval"], seconds, 3600), dollars(r["dollars"]),
             limits(r["dollars_interval"], dollars), percent(r["probability"]) + (" *" if r == told["chosen"] else ""))
            for r in _with_chosen(told)
        ],
        right=(1, 2, 4, 5, 6, 7, 8, 9),
        title=f"{network}: {', '.join(asked) or 'no limit'}; {told['front_size']} settings that none beats in time and cost, "
        f"of {told['candidates']:,} that fit and have a price, of {told['evaluated']:,}",
        caption=f"To the target: {effort['source']}.\nGradient noise scale {_range(effort['noise_scale'])} samples.",
    )  # fmt: skip
    for line in _lines(told, found):
        click.echo(line)


def _range(scale: Sequence[float]) -> str:
    return f"{scale[1]:,.4g}" if scale[0] == scale[2] else f"{scale[1]:,.4g} ({scale[0]:,.4g} … {scale[2]:,.4g})"


def _with_chosen(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The front, and the choice where it is not on it: a cheaper one may be less sure."""
    rows = list(told["front"])
    if told["chosen"] is not None and told["chosen"] not in rows:
        rows.append(told["chosen"])
    return sorted(rows, key=lambda row: float(row["hours"]))


def _lines(told: Mapping[str, Any], found: Choices) -> list[str]:
    from chronograd.units import dollars, percent, seconds

    def name(row: Mapping[str, Any]) -> str:
        return f"{row['count']} × {row['device']}, batch {row['batch_per_device']} each, {row['prices']}"

    goal, chosen, sure = found.goal, told["chosen"], percent(found.goal.confidence, 0)
    if chosen is None:
        best = told["likeliest"]
        if best is None:
            return [
                "nothing fits: no setting fits in memory and has a price; name other devices with --on, or a price in the job"
            ]
        lines = [f"nothing fits with {sure}: the likeliest is {name(best)}, {percent(best['probability'])}"]
        if found.effort.reached < goal.confidence:
            lines.append(f"that the target is reached at all has a probability of {percent(found.effort.reached)} only")
        for what, unit, scale in (("deadline_h", seconds, 3600.0), ("budget_usd", dollars, 1.0)):
            if (value := told["missing"][what]) is not None:
                limit = "deadline" if what == "deadline_h" else "budget"
                lines.append(f"it would take a {limit} of {unit(scale * value)}, with the other limit as it is")
        return lines
    why = "the cheapest" if goal.deadline_s is not None or goal.budget_usd is None else "the fastest"
    lines = [f"take {name(chosen)}: {why} that keeps the goal with at least {sure} ({percent(chosen['probability'])})"]
    for change in told["changes"]:
        then = (
            "nothing fits"
            if change["then"] is None
            else f"then {name(change['then'])}, {dollars(change['then']['dollars'])}"
        )
        if change["what"] == "steps":
            lines.append(f"it bears {change['value']:.2f} times the steps to the target")
        else:
            value = seconds(3600 * change["value"]) if change["what"] == "deadline" else dollars(change["value"])
            is_looser = change["what"] == "deadline" and change is not told["changes"][0]
            lines.append(f"a {change['what']} {'from' if is_looser else 'below'} {value}: {then}")
    return lines
