"""`chronograd plan JOB`: the largest batch that fits, what many settings would take and cost, or the setting for a goal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Job
    from chronograd.plan.places import Places

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


def _placed(job: Job, place: str) -> Job:
    """The job on a device, such as v100, or on several, such as 8xv100; how many is as the job says unless stated."""
    from chronograd.job import changed, parse_on, with_ranks

    count, device = parse_on(place)
    there = changed(job, [f"cluster.device={device}"])
    is_counted = re.match(r"\s*\d+\s*[x×]", place) is not None
    return with_ranks(changed(there, [f"cluster.count={count}"])) if is_counted else there


def parse_place(text: str) -> tuple[str, str]:
    """A cloud and a region of it.

    >>> parse_place("aws"), parse_place("gcp:us-central1")
    (('aws', ''), ('gcp', 'us-central1'))
    """
    cloud, _, region = text.strip().partition(":")
    return cloud.lower(), region


def parse_seconds(text: str) -> float:
    """
    >>> parse_seconds("6h"), parse_seconds("1.5 d"), parse_seconds("90m")
    (21600.0, 129600.0, 5400.0)
    """
    time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text.lower())
    if time is None or not 0 < float(time[1]) < 1e9:
        raise click.BadParameter(f"cannot read the time {text!r}; write 6h, 90m or 2d")
    return float(time[1]) * _SECONDS[time[2]]


def parse_latency(text: str) -> float:
    """
    >>> parse_latency("20ms"), parse_latency("0.5 s")
    (0.02, 0.5)
    """
    time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s)\s*", text.lower())
    if time is None or not 0 < float(time[1]) < 1e9:
        raise click.BadParameter(f"cannot read the latency {text!r}; write 20ms or 0.5s")
    return float(time[1]) * {"s": 1.0, "ms": 1e-3}.get(time[2], 1e-6)


def parse_share(text: str) -> float:
    """A share of 1: 75%, 75 and 0.75 are the same; up to 1 a number is a share, above it is per cent.

    >>> [parse_share(text) for text in ("75%", "75", "0.75", "0.5 %")]
    [0.75, 0.75, 0.75, 0.005]
    """
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        raise click.BadParameter(f"cannot read {text!r}; write 75% or 0.75") from None
    share = number / 100 if text.strip().endswith("%") or number > 1 else number
    if not 0 < share <= 1:
        raise click.BadParameter(f"{text} is not above 0 and at most 100 %")
    return share


def parse_dollars(text: str) -> float:
    """
    >>> [parse_dollars(text) for text in ("$50", "50", "$1,000.50")]
    [50.0, 50.0, 1000.5]
    """
    try:
        amount = float(text.strip().removeprefix("$").replace(",", ""))
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise click.BadParameter(f"cannot read the amount {text!r}; write '$50' or 50")
    return amount


def _read_by(parse: Callable[[str], float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback of an option whose text is parsed."""
    return lambda _, __, text: None if text is None else parse(text)


def _precisions(_: click.Context, __: click.Parameter, text: str | None) -> list[Any]:
    """The precisions of an option such as `--precisions bf16,fp32`."""
    from typing import get_args

    from chronograd.job import Training

    known = get_args(Training.model_fields["precision"].annotation)
    words = [word.strip().lower() for word in text.split(",")] if text else []
    unknown = [word for word in words if word not in known]
    if unknown:
        raise click.BadParameter(f"unknown precision {unknown[0]!r}; known: {', '.join(known)}")
    return words


def _clouds(job: Job, platforms: str | None, data_in: str | None, data_size: str | None) -> Places | None:
    """Where to choose, and how much data has to come from where."""
    from chronograd.data.datasets import training_bytes
    from chronograd.plan.places import Places

    if platforms is None:
        if data_in or data_size:
            raise click.UsageError("--data-in and --data-size go with --platforms")
        return None
    if job.cluster.price_usd_per_hour is not None:
        raise click.UsageError("--platforms has prices of its own: leave cluster.price_usd_per_hour out")
    if data_size and not data_in:
        raise click.UsageError("--data-size goes with --data-in")
    names = tuple(dict.fromkeys(word.strip().lower() for word in platforms.split(",")))
    if data_in is None:
        return Places(names)
    home, region = parse_place(data_in)
    known = Places(names, home, region)  # complains of names before the data is looked for
    return replace(known, data_bytes=parse_bytes(data_size) if data_size else training_bytes(job.data))


def _noise_scale(text: str | None) -> tuple[float, float, float] | None:
    """Low, middle, high. One number is taken as exact."""
    if text is None:
        return None
    parts = common.numbers("--noise-scale", text.replace(":", ","))
    if len(parts) not in (1, 2) or not 0 <= min(parts) <= max(parts) == parts[-1]:
        raise click.UsageError(f"--noise-scale takes samples, such as 900 or 500:2000, not {text}")
    return parts[0], (parts[0] * parts[-1]) ** 0.5, parts[-1]


@click.command(
    epilog="\b\nchronograd plan resnet50 --data imagenet --to 75% --budget '$50'\n"
    "chronograd plan job.yaml --to 75% --deadline 6h --prices spot\n"
    "chronograd plan resnet50 --data imagenet --to 75% --platforms aws,gcp,azure,ibm --data-in aws\n"
    "chronograd plan resnet50 --inference --latency 20ms\n"
    "chronograd plan job.yaml --on v100 --on a100 --precisions fp32,fp16\n"
    "chronograd plan resnet50 --data imagenet --precision bf16 --largest-batch --on rtx4090\n"
    "chronograd plan job.yaml --largest-batch --on local --memory 2GiB --confirm"
)
@common.job_arguments
@click.option("--largest-batch", "is_largest", is_flag=True, help="The largest batch per device that fits its memory.")
@click.option(
    "--on",
    "places",
    multiple=True,
    metavar="DEVICE",
    shell_complete=common.complete_devices,
    help="Device, instead of all GPUs that are rented out; may be repeated. With --largest-batch also 8xv100.",
)
@common.trace_option
@click.option(
    "--memory",
    metavar="SIZE",
    help="With --largest-batch: memory allowed, such as 2GiB, of a GPU unless --on names a device; all by default.",
)
@click.option("--confirm", is_flag=True, help="With --largest-batch on this machine: try batches for real.")
@click.option("--probes", default=10, type=click.IntRange(1), help="With --confirm: batches to try, at most.")
@click.option("--counts", default="1,2,4,8", callback=common.counts, help="Numbers of devices.")
@click.option(
    "--batches",
    callback=common.counts,
    metavar="LIST",
    help="Batches per device: 16,32,64,128,256,512 by default, in inference 1,2,4 … 256.",
)
@click.option("--latency", metavar="TIME", help="In inference: of a batch, at most, such as 20ms.")
@click.option(
    "--precisions",
    callback=_precisions,
    metavar="LIST",
    help="To search, such as bf16,fp32; by default the job's, else what autocast would use on each device, and fp32.",
)
@click.option("--algorithm", "algorithms", multiple=True, default=("ring", "tree"), help="All-reduce; may be repeated.")
@click.option("--most", default=8, type=click.IntRange(1), help="Settings to print.")
@click.option(
    "--to",
    "--target-accuracy",
    "target_accuracy",
    callback=_read_by(parse_share),
    metavar="ACCURACY",
    help="To be reached, such as 75%.",
)
@click.option("--budget", callback=_read_by(parse_dollars), metavar="USD", help="Dollars, at most.")
@click.option("--deadline", metavar="TIME", help="Wall time, at most, such as 6h or 2d.")
@click.option(
    "--confidence",
    default=0.8,
    type=click.FloatRange(0, 0.95, min_open=True),
    help="Of keeping budget and deadline; at most 0.95, as a plan rests on assumptions.",
)
@click.option(
    "--curve",
    type=common.PATH,
    metavar="RUN|FILE",
    help="A run, or a log, of such a job: when it reached the target, or is forecast to.",
)
@click.option(
    "--epochs-to-target",
    type=common.ABOVE_0,
    metavar="N",
    help="Epochs until the target, at the job's batch, where you know them.",
)
@click.option("--noise-scale", metavar="N", help="Gradient noise scale in samples, or LOW:HIGH; a run knows its own.")
@click.option(
    "--prices", type=click.Choice(["on-demand", "spot", "both"]), help="By default both, without a goal on-demand."
)
@click.option(
    "--interruptions",
    default=0.05,
    type=click.FloatRange(0, 100),
    help="Of a spot node per hour; assumed.",
)
@click.option(
    "--checkpoint-every",
    default=10.0,
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="On spot nodes: an interruption loses half of it, and five minutes to start again.",
)
@click.option(
    "--platforms",
    metavar="LIST",
    help="Choose among instances of these clouds, by the node and the region: aws,gcp,azure,ibm.",
)
@click.option("--data-in", metavar="CLOUD[:REGION]", help="With --platforms: where the data lies; moving it is paid.")
@click.option("--data-size", metavar="SIZE", help="With --data-in: of the data set, such as 150GB, if not known here.")
@click.option(
    "--checkpoints-back", default=1, type=click.IntRange(0), help="With --data-in: how many are brought back there."
)
@click.option(
    "--decode",
    "per_vcpu",
    type=click.FloatRange(0),
    metavar="N",
    help="Images/s that a virtual CPU of the host decodes; 0 leaves it out.",
)
@common.answer_options
def command(job_file: str, overrides: tuple[str, ...], print_config: bool, is_largest: bool, places: tuple[str, ...],
            trace_file: Path | None, memory: str | None, confirm: bool, probes: int, counts: list[int],
            batches: list[int] | None, latency: str | None,
            precisions: list[Any], algorithms: tuple[str, ...], most: int, target_accuracy: float | None, budget: float | None,
            deadline: str | None, confidence: float, curve: Path | None, epochs_to_target: float | None,
            noise_scale: str | None, prices: str | None, interruptions: float, checkpoint_every: float,
            platforms: str | None, data_in: str | None, data_size: str | None, checkpoints_back: int, per_vcpu: float | None,
            as_json: bool) -> None:  # fmt: skip
    """Find what to rent for a goal, the largest batch that fits, or list settings by the price of a sample.

    With --to, --budget or --deadline: what to rent, how long and how much it takes, how sure that is, and what would change it.
    With --platforms: at which cloud, and what moving the data there costs; `launch --plan FILE` takes the answer of --save FILE.
    With --inference: the device and batch that keep --latency and cost least per sample.

    Searched are devices, counts, batches, precision, memory layout, checkpointing and all-reduce; a field that the job states has
    its value. Prices are those of whole instances with their host (`chronograd devices --prices`).

    Without torch, give a trace saved by `chronograd count JOB --out FILE`.
    """
    from chronograd.ask import name_of
    from chronograd.data.datasets import card
    from chronograd.data.decoding import decoding_of
    from chronograd.data.trace_job import trace_job, trace_layouts
    from chronograd.plan.answer import devices_of, list_settings, reach_goal
    from chronograd.plan.effort import OutOfReach, effort_of
    from chronograd.plan.goal import Goal, Spot
    from chronograd.plan.largest import Trial, gpu_of_memory, largest_batches
    from chronograd.plan.open_answer import out_of_reach
    from chronograd.plan.renting import KINDS
    from chronograd.predict.memory import checkpoint_bytes

    asked = common.read_asked(job_file, overrides, print_config, target=target_accuracy, can_download=True,
                              is_counted=trace_file is not None)  # fmt: skip
    job = asked.job
    has_goal = any(limit is not None for limit in (target_accuracy, budget, deadline))
    if platforms is not None and (is_largest or job.mode == "inference"):
        raise click.UsageError("--platforms is of training for a goal: leave --largest-batch and --inference out")
    if job.mode == "inference" and (has_goal or curve or epochs_to_target or noise_scale):
        raise click.UsageError("in inference nothing is trained: ask for a --latency instead of a goal")
    if confirm and job.mode == "inference":
        raise click.UsageError("--confirm tries steps of training: leave --inference out")
    if latency is not None and job.mode == "training":
        raise click.UsageError("--latency is of inference; add --inference")
    if not is_largest and (memory or confirm):
        raise click.UsageError("--memory and --confirm go with --largest-batch")
    if confirm and places not in ((), ("local",), ("cpu",)):
        raise click.UsageError(f"--confirm runs here: write --on local, not {' '.join(places)}")
    if is_largest and has_goal:
        raise click.UsageError("--largest-batch and a goal are two questions: ask one at a time")
    global_batch = job.training.batch if batches is None and "training.batch" in asked.stated else None
    if batches is None:
        batches = [2**k for k in range(9)] if job.mode == "inference" else [16, 32, 64, 128, 256, 512]
    if is_largest:
        trial = None
        if confirm:
            from chronograd.train import largest_batch

            trial = Trial(largest_batch.base_bytes, partial(largest_batch.confirm, max_probes=probes))
        capacity = parse_bytes(memory) if memory else None
        if capacity is not None and not (places or confirm or "device" in job.cluster.model_fields_set):
            places = (gpu_of_memory(capacity).name,)
        jobs = [_placed(job, place) for place in places] or [job]
        with common.waiting("trying batches" if confirm else "counting the work of the network"):
            answer = largest_batches(trace_job(job, trace_file), jobs, capacity, trial)
        common.show(answer, as_json)
        return
    devices = devices_of(job, places, precisions)
    if job.mode == "inference":
        from chronograd.plan.serving import serve

        bound = parse_latency(latency) if latency else None
        offered: list[Any] = [kind for kind in KINDS if prices in ("both", kind)] or ["on-demand"]
        with common.waiting("counting the work of the network") as say:
            traces = trace_layouts(job, trace_file)
            say("trying settings")
            answer = serve(traces, job, devices, counts, batches, latency_s=bound, confidence=confidence, most=most,
                           precisions=precisions, kinds=offered)  # fmt: skip
        common.show(answer, as_json)
        return
    samples, name = card(job.data).train_size, name_of(job.network.name)
    has_goal = has_goal or platforms is not None
    kinds = [kind for kind in KINDS if prices in ("both", kind)] or (list(KINDS) if has_goal else ["on-demand"])
    clouds = _clouds(job, platforms, data_in, data_size)
    if clouds is not None:
        devices = clouds.of_devices(devices)
    settings: dict[str, Any] = {
        "counts": counts, "batches": batches, "algorithms": algorithms, "most": most, "samples": samples,
        "precisions": precisions, "kinds": kinds, "decoding": decoding_of(job, per_vcpu), "global_batch": global_batch,
    }  # fmt: skip
    goal = Goal(budget, parse_seconds(deadline) if deadline else None, confidence)
    effort: Any = None
    if has_goal:
        effort = effort_of(job, samples, target=target_accuracy, epochs=epochs_to_target, curve=curve,
                           noise=_noise_scale(noise_scale), network=name, has_epochs=asked.has_epochs)  # fmt: skip
        if isinstance(effort, OutOfReach):
            common.show(out_of_reach(f"{name} on {job.data.name.partition(':')[0]}", effort, goal), as_json)
            return
    with common.waiting("counting the work of the network") as say:
        traces = trace_layouts(job, trace_file)
        say("trying settings")
        if not has_goal:
            answer = list_settings(traces, job, devices, **settings)
        else:
            assert not isinstance(effort, OutOfReach)
            spot = Spot(interruptions, 60 * checkpoint_every)
            if clouds is not None:
                clouds = replace(clouds, back_bytes=checkpoints_back * checkpoint_bytes(traces[0], job))
            answer = reach_goal(traces, job, devices, **settings, effort=effort, goal=goal, spot=spot, places=clouds,
                                assumed=asked.for_a_plan(has_epochs=bool(epochs_to_target or curve)))  # fmt: skip
    common.show(answer, as_json)
