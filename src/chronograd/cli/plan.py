"""`chronograd plan JOB`: the largest batch that fits, or what many settings would take and cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common, plan_goal

if TYPE_CHECKING:
    from chronograd.job import Job
    from chronograd.plan.settings import LargestBatch
    from chronograd.predict.memory import Memory
    from chronograd.trace import Trace
    from chronograd.train.largest_batch import Edge

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """A size in bytes: GB is 1e9, GiB is 2**30.

    >>> parse_bytes("2GB"), parse_bytes("1.5 GiB")
    (2000000000, 1610612736)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]i?)?b?\s*", text.lower())
    try:
        assert found is not None
        return int(float(found[1]) * _UNITS[found[2] or ""])
    except (AssertionError, ValueError):
        raise click.BadParameter(f"cannot read the size {text!r}; write 16GB or 16GiB") from None


def _numbers(_: click.Context, option: click.Parameter, text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise click.BadParameter(f"cannot read {text!r}; write numbers above 0, like 1,2,4", param=option)
    numbers = [int(part) for part in text.split(",")]
    common.check_size(f"--{option.name}", numbers)
    return numbers


@click.command(
    epilog="\b\nchronograd plan examples/digits.yaml --largest-batch --on V100\n"
    "chronograd plan examples/digits.yaml --largest-batch --on local --memory 2GB --confirm\n"
    "chronograd plan examples/digits.yaml --on V100 --on A100 --counts 1,2,4,8 --batches 32,64\n"
    "chronograd plan examples/digits.yaml --target-accuracy 0.92 --budget 50 --deadline 6h --noise-scale 900"
)
@common.job_arguments
@click.option("--largest-batch", "is_largest", is_flag=True, help="The largest batch per device that fits its memory.")
@click.option("--on", "places", multiple=True, metavar="DEVICE", help="Device, instead of the job's; may be repeated.")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="A saved trace; needs no torch.")
@click.option("--memory", metavar="SIZE", help="With --largest-batch: memory allowed, such as 2GB; all by default.")
@click.option("--confirm", is_flag=True, help="With --largest-batch on this machine: try batches for real.")
@click.option("--probes", default=10, show_default=True, help="With --confirm: batches to try, at most.")
@click.option("--counts", default="1,2,4,8", show_default=True, callback=_numbers, help="Numbers of devices.")
@click.option("--batches", default="16,32,64,128", show_default=True, callback=_numbers, help="Batches per device.")
@click.option("--algorithm", "algorithms", multiple=True, default=("ring",), help="All-reduce; may be repeated.")
@click.option("--most", default=20, show_default=True, help="Settings to print.")
@plan_goal.options
@common.json_option
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, is_largest: bool, places: tuple[str, ...],
            trace_file: Path | None, memory: str | None, confirm: bool, probes: int, counts: list[int],
            batches: list[int], algorithms: tuple[str, ...], most: int, as_json: bool, **asked: Any) -> None:  # fmt: skip
    """Find the largest batch that fits, the setting that reaches a goal, or list settings by the price of a sample.

    With --target-accuracy, --budget or --deadline: hours and dollars to the target of every setting that no other beats in both,
    with their middle 80 %, how likely each keeps the goal, which to take, why, and what would change that.

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.data.trace_job import trace_job
    from chronograd.job import changed

    job = common.read_job(job_file, overrides, print_config)
    if not is_largest and (memory or confirm):
        raise click.UsageError("--memory and --confirm go with --largest-batch")
    if confirm and places not in ((), ("local",), ("cpu",)):
        raise click.UsageError(f"--confirm runs here: write --on local, not {' '.join(places)}")
    if is_largest and plan_goal.is_asked(asked):
        raise click.UsageError("--largest-batch and a goal are two questions: ask one at a time")
    trace = trace_job(job, trace_file)
    if plan_goal.is_asked(asked):
        plan_goal.plan(trace, job, places, counts, batches, algorithms, most, as_json, **asked)
        return
    if not is_largest:
        _plan_settings(trace, job, places, counts, batches, algorithms, most, as_json)
        return
    capacity = parse_bytes(memory) if memory else None
    jobs = [changed(job, [f"cluster.device={name.lower()}"]) for name in places] or [job]
    found = [_largest(trace, j, capacity, confirm, probes) for j in jobs]
    if as_json:
        data = [_as_data(*one) for one in found]
        common.print_json(data if len(data) > 1 else data[0])
        return
    for one in found:
        _print_largest(trace, *one)


def _largest(
    trace: Trace, job: Job, capacity: int | None, confirm: bool, probes: int
) -> tuple[Job, LargestBatch, Edge | None]:
    from chronograd.plan.settings import largest_batch

    if not confirm:
        return job, largest_batch(trace, job, capacity), None
    from chronograd.train.largest_batch import base_bytes
    from chronograd.train.largest_batch import confirm as confirm_here

    found = largest_batch(trace, job, capacity, base_bytes(job))
    return job, found, confirm_here(job, max(found.batch, 1), found.capacity_bytes, probes)


def _rows(found: LargestBatch) -> list[dict[str, Any]]:
    def row(batch: int, memory: Memory) -> dict[str, Any]:
        total = memory.total + found.reserve_bytes
        fits = found.fits(memory)
        return {"batch": batch, **asdict(memory), "reserve": found.reserve_bytes, "total": total, "fits": fits}

    return [row(*pair) for pair in found.rows]


def _as_data(job: Job, found: LargestBatch, edge: Edge | None) -> dict[str, Any]:
    return {
        "device": found.device.name,
        "devices": job.cluster.count,
        "largest_batch_per_device": found.batch,
        "capacity_bytes": found.capacity_bytes,
        "reserve_bytes": found.reserve_bytes,
        "reserve_is": "assumed" if edge is None else "measured",
        "zero_stage": job.training.zero_stage,
        "activation_checkpointing": job.training.activation_checkpointing,
        "memory": _rows(found),
        "confirmed": None if edge is None else asdict(edge),
    }


def _print_largest(trace: Trace, job: Job, found: LargestBatch, edge: Edge | None) -> None:
    from chronograd.units import si

    rows = [
        [str(row["batch"]), *(si(row[part], "B") for part in _PARTS), "yes" if row["fits"] else "no"]
        for row in _rows(found)
    ]
    common.print_table(
        ("batch", "parameters", "gradients", "optimizer", "buffers", "activations", "reserve", "total", "fits"),
        rows,
        title=f"{trace.network} on {found.device.title}: at most {found.batch} samples per device "
        f"in {si(found.capacity_bytes, 'B')}",
        right=range(8),
        caption="At the peak of a step: gradients and activations are those alive together.\n"
        f"Reserve: framework, context, workspaces; {'assumed' if edge is None else 'what a process here takes'}.",
    )
    if edge is None:
        return
    for probe in edge.probes:
        peak = f", peak {si(probe.peak_bytes, 'B')} beyond the reserve" if probe.peak_bytes else ""
        click.echo(f"batch {probe.batch}: {'ran' if probe.ran else probe.reason}{peak}")
    ran, failed = edge.largest_ran, edge.smallest_failed
    off = f"; predicted {found.batch}, {100 * (found.batch / ran - 1):+.1f} % of the largest that ran" if ran else ""
    click.echo(f"edge: the largest that ran is {ran or 'none'}, the smallest that failed {failed or 'none'}{off}")


_PARTS = ("parameters", "gradients", "optimizer_state", "buffers", "activations", "reserve", "total")


def _plan_settings(trace: Trace, job: Job, places: Sequence[str], counts: list[int], batches: list[int],
                   algorithms: Sequence[str], most: int, as_json: bool) -> None:  # fmt: skip
    """Settings that fit, the cheapest sample first; those without a price after them, the fastest first."""
    import numpy as np

    from chronograd.data.datasets import card
    from chronograd.plan.settings import evaluate, with_whole_batches
    from chronograd.units import dollars, quantity, seconds, si

    devices = plan_goal.devices_of(job, places)
    samples = card(job.data).train_size
    evaluated = evaluate(trace, job, devices, counts, batches, algorithms)
    table, num_too_large = with_whole_batches(evaluated, samples)
    per_sample = table["cost_usd_per_hour"] / 3600 / table["throughput_samples_per_s"]
    order = np.lexsort((-table["throughput_samples_per_s"], per_sample))
    chosen = order[table["fits"][order]][:most]
    rows = [
        {
            "device": devices[table["device"][i]].name,
            "count": int(table["count"][i]),
            "batch_per_device": int(table["batch_per_rank"][i]),
            "algorithm": algorithms[table["algorithm"][i]],
            "step_time_s": float(table["step_time_s"][i]),
            "throughput_samples_per_s": float(table["throughput_samples_per_s"][i]),
            "memory_bytes": float(table["memory_bytes"][i]),
            "usd_per_million_samples": None if np.isnan(per_sample[i]) else float(per_sample[i] * 1e6),
        }
        for i in chosen
    ]
    if as_json:
        data = {"evaluated": len(order), "fit": int(table["fits"].sum()), "too_large_for_the_data": num_too_large}
        common.print_json({"settings": rows, **data})
        return
    common.print_table(
        ("device", "count", "batch per device", "all-reduce", "step", "throughput", "memory", "per million samples"),
        [
            (r["device"], str(r["count"]), str(r["batch_per_device"]), r["algorithm"], seconds(r["step_time_s"]),
             quantity(r["throughput_samples_per_s"], "sample/s"), si(r["memory_bytes"], "B"),
             "–" if r["usd_per_million_samples"] is None else dollars(r["usd_per_million_samples"]))
            for r in rows
        ],
        title=f"{trace.network}: {len(rows)} of {int(table['fits'].sum())} settings that fit, of {len(order)}",
        right=(1, 2, 4, 5, 6, 7),
        caption=plan_goal.of_too_large(num_too_large, samples),
    )  # fmt: skip
