"""`chronograd plan JOB`: the largest batch that fits, what many settings would take and cost, or the setting for a goal."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import click

from chronograd.cli import common

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int:
    """A size in bytes: GB is 1e9, GiB is 2**30.

    >>> parse_bytes("2GB"), parse_bytes("1.5 GiB")
    (2000000000, 1610612736)
    """
    size = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]i?)?b?\s*", text.lower())
    try:
        assert size is not None
        return int(float(size[1]) * _UNITS[size[2] or ""])
    except (AssertionError, ValueError):
        raise click.BadParameter(f"cannot read the size {text!r}; write 16GB or 16GiB") from None


def parse_seconds(text: str) -> float:
    """
    >>> parse_seconds("6h"), parse_seconds("1.5 d"), parse_seconds("90m")
    (21600.0, 129600.0, 5400.0)
    """
    time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text.lower())
    if time is None or not 0 < float(time[1]) < 1e9:
        raise click.BadParameter(f"cannot read the time {text!r}; write 6h, 90m or 2d")
    return float(time[1]) * _SECONDS[time[2]]


def _noise_scale(text: str | None) -> tuple[float, float, float] | None:
    """Low, middle, high. One number is taken as exact."""
    if text is None:
        return None
    parts = common.numbers("--noise-scale", text.replace(":", ","))
    if len(parts) not in (1, 2) or not 0 <= min(parts) <= max(parts) == parts[-1]:
        raise click.UsageError(f"--noise-scale takes samples, such as 900 or 500:2000, not {text}")
    return parts[0], (parts[0] * parts[-1]) ** 0.5, parts[-1]


@click.command(
    epilog="\b\nchronograd plan examples/digits.yaml --largest-batch --on V100\n"
    "chronograd plan examples/digits.yaml --largest-batch --on local --memory 2GB --confirm\n"
    "chronograd plan examples/digits.yaml --on V100 --on A100 --counts 1,2,4,8 --batches 32,64\n"
    "chronograd plan examples/digits.yaml --target-accuracy 0.92 --budget 50 --deadline 6h --noise-scale 900"
)
@common.job_arguments
@click.option("--largest-batch", "is_largest", is_flag=True, help="The largest batch per device that fits its memory.")
@click.option("--on", "places", multiple=True, metavar="DEVICE", help="Device, instead of the job's; may be repeated.")
@common.trace_option
@click.option("--memory", metavar="SIZE", help="With --largest-batch: memory allowed, such as 2GB; all by default.")
@click.option("--confirm", is_flag=True, help="With --largest-batch on this machine: try batches for real.")
@click.option("--probes", default=10, help="With --confirm: batches to try, at most.")
@click.option("--counts", default="1,2,4,8", callback=common.counts, help="Numbers of devices.")
@click.option("--batches", default="16,32,64,128", callback=common.counts, help="Batches per device.")
@click.option("--algorithm", "algorithms", multiple=True, default=("ring",), help="All-reduce; may be repeated.")
@click.option("--most", default=20, help="Settings to print.")
@click.option("--target-accuracy", type=click.FloatRange(0, 1, min_open=True), help="To be reached, such as 0.92.")
@click.option("--budget", type=common.ABOVE_0, metavar="USD", help="Dollars, at most.")
@click.option("--deadline", metavar="TIME", help="Wall time, at most, such as 6h or 2d.")
@click.option(
    "--confidence",
    default=0.8,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Of keeping budget and deadline.",
)
@click.option(
    "--curve",
    type=common.PATH,
    metavar="RUN|FILE",
    help="A run, or a log, of such a job: when it reached the target, or is forecast to.",
)
@click.option("--epochs-to-target", type=common.ABOVE_0, help="At the job's batch, if known.")
@click.option("--noise-scale", metavar="N", help="Gradient noise scale in samples, or LOW:HIGH; a run knows its own.")
@click.option("--prices", type=click.Choice(["on-demand", "spot", "both"]), default="both")
@click.option(
    "--interruptions",
    default=0.05,
    type=click.FloatRange(0, 100),
    help="Of a spot node per hour; each costs ten minutes.",
)
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, is_largest: bool, places: tuple[str, ...],
            trace_file: Path | None, memory: str | None, confirm: bool, probes: int, counts: list[int], batches: list[int],
            algorithms: tuple[str, ...], most: int, target_accuracy: float | None, budget: float | None,
            deadline: str | None, confidence: float, curve: Path | None, epochs_to_target: float | None,
            noise_scale: str | None, prices: str, interruptions: float, as_json: bool) -> None:  # fmt: skip
    """Find the largest batch that fits, the setting that reaches a goal, or list settings by the price of a sample.

    With --target-accuracy, --budget or --deadline: hours and dollars to the target of every setting that no other beats in both,
    with their 80 % interval, how likely each keeps the goal, which to take, why, and what would change that.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.data.datasets import card
    from chronograd.data.trace_job import trace_job
    from chronograd.job import changed
    from chronograd.plan.answer import devices_of, list_settings, reach_goal
    from chronograd.plan.effort import effort_of
    from chronograd.plan.goal import KINDS, Goal, Spot
    from chronograd.plan.largest import Trial, largest_batches

    job = common.read_job(job_file, overrides, print_config, target_accuracy)
    has_goal = any(asked is not None for asked in (target_accuracy, budget, deadline))
    if not is_largest and (memory or confirm):
        raise click.UsageError("--memory and --confirm go with --largest-batch")
    if confirm and places not in ((), ("local",), ("cpu",)):
        raise click.UsageError(f"--confirm runs here: write --on local, not {' '.join(places)}")
    if is_largest and has_goal:
        raise click.UsageError("--largest-batch and a goal are two questions: ask one at a time")
    trace = trace_job(job, trace_file)
    if is_largest:
        trial = None
        if confirm:
            from chronograd.train import largest_batch

            trial = Trial(largest_batch.base_bytes, partial(largest_batch.confirm, max_probes=probes))
        jobs = [changed(job, [f"cluster.device={name.lower()}"]) for name in places] or [job]
        common.show(largest_batches(trace, jobs, parse_bytes(memory) if memory else None, trial), as_json)
        return
    devices = devices_of(job, places)
    samples = card(job.data).train_size
    settings: dict[str, Any] = {"counts": counts, "batches": batches, "algorithms": algorithms, "most": most,
                                "samples": samples}  # fmt: skip
    if not has_goal:
        common.show(list_settings(trace, job, devices, **settings), as_json)
        return
    effort = effort_of(job, samples, target=target_accuracy, epochs=epochs_to_target, curve=curve,
                       noise=_noise_scale(noise_scale))  # fmt: skip
    goal = Goal(budget, parse_seconds(deadline) if deadline else None, confidence)
    kinds = [kind for kind in KINDS if prices in ("both", kind)]
    spot = Spot(interruptions)
    common.show(reach_goal(trace, job, devices, **settings, effort=effort, goal=goal, spot=spot, kinds=kinds), as_json)
