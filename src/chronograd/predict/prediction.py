"""`predict`: a record of a step, an epoch and a run that have not happened yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from chronograd import __version__
from chronograd.errors import InputError
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed, resolved, scaled, steps_per_epoch
from chronograd.predict import paleo
from chronograd.predict.calibration import DATASHEET_SIGMA, from_datasheet, warmed
from chronograd.predict.carrying import Shown, way_of
from chronograd.predict.checkpointing import is_recomputed
from chronograd.predict.collectives import Amount
from chronograd.predict.compute import (
    average_seconds,
    by_kind,
    graph_input_seconds,
    operator_seconds,
    phase_seconds,
    share_of_host,
    sigma_log,
    update_seconds,
    without_basis,
)
from chronograd.predict.memory import Footprint, Memory, footprint_of_job
from chronograd.predict.notes import notes_of, of_network
from chronograd.predict.roofline import Roofline, roofline
from chronograd.predict.scaling import (
    Bucket,
    Communication,
    Packing,
    crowding,
    exchange,
    gather_exposed_s,
    input_stall_s,
    less,
    replicas_s,
    replicated_s,
    straggler_wait_s,
    traffic_factor,
    upkeep_s,
)
from chronograd.predict.setting import Setting, setting_of
from chronograd.predict.sharding import sent_bytes
from chronograd.record import (
    FORWARD_PARTS,
    QUANTITIES,
    ROUGH,
    STEP_PARTS,
    Z80,
    OperatorKind,
    Provenance,
    Quantity,
    Record,
    RecordedCluster,
)
from chronograd.trace import Trace
from chronograd.words import how_many

# A batch from data in memory is gathered sample by sample. Each byte is read and written once, at this share of the bandwidth
# of large copies.
_GATHER_SHARE = 0.25
HOROVOD_BUCKET_BYTES = 64 * 2**20
# From a job and its step time to the job, limited by its input if that is slower, and a note; None if neither time is known.
Pace = Callable[[Job, float], tuple[Job, str] | None]


@dataclass(frozen=True)
class StepModel:
    """The options for the prediction of a step.

    Attributes:
        algorithm: of the all-reduce; see `setting_of`.
        ppp: PALEO's percents of peak for computation and communication, to use its formulas.
        paced: returns the limit that loading data sets to the step, in addition to the devices.
        depth: of the modules in the table `layers`; see `roofline`.
    """

    algorithm: str | None = None
    ppp: tuple[float, float] | None = None
    paced: Pace | None = None
    depth: int | None = None


USUAL_MODEL = StepModel()


@dataclass(frozen=True)
class Step:
    """A predicted step: seconds by part, communication and memory of one rank.

    `straggler_wait_s` is part of the exposed communication, `input_stall_s` of the input. `sigma_log` is the spread. `rough`
    contains sentences on the parts that no measurement supports. `of_host` is the share of the time that the host sets.
    """

    parts: dict[str, float]
    communication: Communication
    memory: Memory
    flops: int
    kinds: list[OperatorKind]
    straggler_wait_s: float = 0.0
    input_stall_s: float = 0.0
    sigma_log: float = DATASHEET_SIGMA
    rough: tuple[str, ...] = ()
    of_host: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def predict_step(trace: Trace, setting: Setting, factor: float = 1.0) -> Step:
    """Return time, memory and work of one step on one rank, whose work takes `factor` times the calibrated time.

    Raises InputError for a trace of another batch.
    """
    batch = setting.batch_per_rank
    if trace.fixed_batch is not None and trace.fixed_batch != batch:
        raise InputError(
            f"the trace is valid for batch {trace.fixed_batch} only, but each rank has {batch}",
            f"set training.batch to {trace.fixed_batch * setting.count}, or count again with --fixed-batch {batch}",
        )
    times, alone = rank_work(trace, batch, setting)
    # Correct before adding the waits for other ranks and for input: longer work hides more of both.
    alone = _corrected(alone, factor)
    parts, communication, wait_s, stall_s = with_others(trace, times, alone, setting)
    return Step(
        {name: float(seconds) for name, seconds in parts.items()},
        communication,
        footprint_of(trace, setting).at(-(-batch // setting.job.training.accumulation)),
        trace.flops(batch),
        by_kind(trace, times, batch),
        float(wait_s),
        float(stall_s),
        sigma_log(trace, times, setting.calibration),
        tuple(without_basis(trace, times, setting.calibration)),
        share_of_host(trace, times, setting.calibration),
    )


def with_others(
    trace: Trace, times: np.ndarray, alone: dict[str, Amount], setting: Setting
) -> tuple[dict[str, Amount], Communication, Amount, Amount]:
    """Return seconds by part of a rank's step in a group, its communication, and its waits for stragglers and for input.

    Args:
        times, alone: of `rank_work`; of several batches with the shapes (batches, 1, operators) and (batches, 1).
        setting: the number of ranks in its topology is one number or an array, and so is each result. For several batches its
            batch is an array (batches, 1), and results have the shape (batches, numbers of ranks).
    """
    num_ranks, overlap = setting.topology.num_ranks, setting.calibration.overlap
    zero_stage, input_rate = setting.job.training.zero_stage, setting.job.cluster.input_samples_per_s
    communication, wait_s = Communication(), 0.0
    longer = crowding(setting.device, setting.job.cluster, setting.topology)
    if setting.after_wait > 1 or setting.alone < 1:
        longer = longer * np.where(np.asarray(num_ranks) > 1, setting.after_wait, setting.alone)
    alone = {name: seconds * longer for name, seconds in alone.items()}
    parts: dict[str, Amount] = dict(alone)
    if np.max(num_ranks) > 1 and trace.mode == "training":
        exchanged = _exchanged(trace, times, alone, setting)
        gather_s = gather_exposed_s(zero_stage, exchanged.total_s, alone["forward_s"], overlap)
        if setting.job.backend == "data_parallel":
            upkeep = replicas_s(trace, num_ranks, alone["forward_s"])
        else:
            upkeep = upkeep_s(
                trace, setting.exchange_tensor_s, setting.topology, setting.exchange_meeting_s, exchanged.num_buckets
            )
        communication = replace(
            exchanged,
            total_s=exchanged.total_s * traffic_factor(zero_stage) + upkeep,
            exposed_s=exchanged.exposed_s + gather_s + upkeep,
        )
        # The slowest rank is later in every part. Nobody waits for its delay while the link is busy.
        later = straggler_wait_s(1.0, num_ranks, setting.step_sigma_log)
        slowest = _exchanged(trace, times, alone, setting, 1 + later) if setting.step_sigma_log else exchanged
        wait_s = less(sum(alone.values()) * later + slowest.exposed_s, exchanged.exposed_s)
    elif np.max(num_ranks) > 1 and setting.job.backend == "data_parallel":
        copies_s = replicated_s(trace, setting.topology)
        parts["forward_s"] = alone["forward_s"] + replicas_s(trace, num_ranks, alone["forward_s"]) + copies_s
    parts["communication_exposed_s"] = communication.exposed_s + wait_s
    if zero_stage:
        parts["update_s"] = alone["update_s"] / num_ranks  # each rank updates its share
    on_node = setting.batch_per_rank * setting.topology.on_node
    stall_s = input_stall_s(sum(parts.values()), on_node, input_rate)
    parts["input_s"] = alone["input_s"] + stall_s
    return parts, communication, wait_s, stall_s


def _exchanged(
    trace: Trace, times: np.ndarray, alone: dict[str, Amount], setting: Setting, longer: Amount = 1.0
) -> Communication:
    """Return the exchange behind the last part of a batch, if a rank takes `longer` times the time it takes alone."""
    job, last_backward_s = setting.job, alone["backward_s"] / setting.job.training.accumulation
    return exchange(
        trace,
        times,
        longer * last_backward_s,
        setting.topology,
        setting.algorithm,
        setting.calibration.overlap,
        Packing(
            job.communication.bucket_bytes or (HOROVOD_BUCKET_BYTES if job.backend == "horovod" else None),
            0.5 if job.communication.compression == "fp16" else 1.0,
        ),
        rest_s=longer * (sum(alone.values()) - last_backward_s),
    )


def rank_work(trace: Trace, batch: int, setting: Setting) -> tuple[np.ndarray, dict[str, float]]:
    """Return the time of a rank alone with `batch` samples: seconds of each operator, and seconds by part of the step.

    With gradient accumulation, operators are those of one part of the batch, and the step runs each once per part.
    """
    calibration, device, training = setting.calibration, setting.device, setting.job.training
    if calibration.warm_update:
        # That of one rank: a setting may have several numbers of ranks, and only ZeRO divides the memory among them.
        calibration = warmed(calibration, footprint_of_job(trace, setting.job, 1).at(batch).total)
    times = operator_seconds(trace, -(-batch // training.accumulation), calibration)
    phases = phase_seconds(trace, times, calibration)
    is_training = trace.mode == "training"
    if is_training and training.activation_checkpointing != "none":
        again = np.where(is_recomputed(trace), times, 0.0)
        phases["backward"] += phase_seconds(trace, again, calibration)["forward"]
    input_bytes = sum(trace.storages[trace.tensors[i].storage].bytes.at(batch) for i in trace.inputs)
    phases["forward"] += graph_input_seconds(input_bytes / training.accumulation, calibration)
    average_s = average_seconds(trace, calibration) if training.ema_decay else 0.0
    is_gpu, host_link = device.kind == "gpu", device.node.host_link
    gather_s = 0.0 if is_gpu else 2 * input_bytes / (_GATHER_SHARE * calibration.bandwidth_bytes_per_s)
    return times, {
        "input_s": calibration.input_launch_s + gather_s,
        "transfer_s": input_bytes / catalog.link(host_link).bandwidth_bytes_per_s if is_gpu and host_link else 0.0,
        "forward_s": phases["forward"] * training.accumulation,
        "backward_s": phases["backward"] * training.accumulation,
        "communication_exposed_s": 0.0,
        "update_s": update_seconds(trace, training, calibration) + average_s if is_training else 0.0,
    }


def footprint_of(trace: Trace, setting: Setting) -> Footprint:
    """Return the memory of a rank in a setting, at any batch."""
    return footprint_of_job(trace, setting.job, setting.count)


def paleo_step(trace: Trace, setting: Setting, ppp: float, ppp_comm: float) -> Step:
    """Return the step by PALEO's formulas, on the slowest link in use. Raises InputError for a PPP outside (0, 1]."""
    link = setting.topology.slowest_link
    platform = paleo.platform_of(setting.device, link.bandwidth_bytes_per_s, ppp, ppp_comm)
    network = paleo.PaleoNetwork.of(trace)
    seconds = paleo.step_parts_s(network, setting.batch_per_rank, setting.count, platform, setting.algorithm)
    if trace.mode != "training":
        seconds |= dict.fromkeys(("backward", "update", "communication"), 0.0)
    exchanged_s = float(seconds["communication"])
    buckets = (Bucket(network.param_bytes, float(seconds["backward"]), exchanged_s),) if exchanged_s else ()
    parts = dict.fromkeys(STEP_PARTS, 0.0) | {f"{n}_s": float(s) for n, s in seconds.items() if n != "communication"}
    parts["communication_exposed_s"] = exchanged_s
    on_node, rate = setting.batch_per_rank * setting.topology.on_node, setting.job.cluster.input_samples_per_s
    stall_s = float(input_stall_s(sum(parts.values()), on_node, rate))
    parts["input_s"] += stall_s
    return Step(
        parts,
        Communication(exchanged_s, exchanged_s, buckets),
        footprint_of(trace, setting).at(setting.batch_per_rank),
        trace.flops(setting.batch_per_rank),
        [],
        input_stall_s=stall_s,
    )


def predict(
    trace: Trace,
    job: Job,
    model: StepModel = USUAL_MODEL,
    *,
    samples: int | None = None,
    device: Device | None = None,
    shown: Shown | None = None,
    has_epochs: bool = True,
) -> Record:
    """Return a predicted record of a job.

    Args:
        trace: the job's network.
        samples: training samples in an epoch; without it epochs, run and cost are missing.
        device: instead of the job's `cluster.device`.
        shown: a measurement of the network, used as a correction here.
        has_epochs: whether the number of epochs is known; if not, run and cost are missing.

    Intervals are the 80 % intervals of a log-normal whose width is `sigma_log`. Left out: evaluation, saving, start-up,
    stragglers and measurement of the noise scale.

    Raises InputError as `setting_of` and `predict_step`, and for a batch larger than the training samples.
    """
    job = in_mode(scaled(job), trace.mode)
    is_training = job.mode == "training"
    setting = setting_of(job, model.algorithm, device)
    steps = None if samples is None or not is_training else steps_per_epoch(samples, job.training.batch)
    setting, step, factor = _step_by(model, trace, setting, shown)
    if model.paced is not None and (found := model.paced(job, step.seconds)) is not None:
        alone = replace(model, paced=None)
        record = predict(trace, found[0], alone, samples=samples, device=device, shown=shown, has_epochs=has_epochs)
        record.notes.append(found[1])
        return record
    # If the batch is not divisible by the number of ranks, the largest share decides the time.
    images = job.training.images_per_step
    step = replace(step, flops=step.flops * images // (setting.batch_per_rank * setting.count))
    record = _without_quantities(trace, job, setting, step)
    likely = likely_by(f"{setting.calibration.origin} calibration", step.sigma_log)
    _put_step(record, setting, step, likely, images)
    if is_training and job.cluster.count > 1 and (sent := sent_bytes(trace, job)) is not None:
        source = "sizes of the collectives in the trace, each as a ring"
        record.put("sent_bytes", Quantity(value=sent, unit="B", source=source))
    tokens = tokens_of_sample(trace)
    if tokens is not None:
        record.put("throughput_tokens_per_s", likely(tokens * images / step.seconds, "token/s"))
    if is_training:
        put_run(record, job, setting.device, likely, steps, step.seconds, has_epochs)
    else:
        _put_cost_of_answers(record, job, setting.device, likely, images / step.seconds, tokens)
    record.notes += [f"{ROUGH}: {text}" for text in step.rough]
    record.notes += notes_of(setting, step.memory, shown, factor, record.value("mfu"), step.of_host)
    record.notes += of_network(setting, step.parts)
    if step.kinds:
        record.tables.by_kind = step.kinds
        _put_roofline(record, roofline(trace, setting.batch_per_rank, setting.calibration, model.depth))
    return record


def _without_quantities(trace: Trace, job: Job, setting: Setting, step: Step) -> Record:
    """Return the record of a predicted step, before its quantities are filled in."""
    name = f"{setting.count} × {setting.device.title}" if setting.count > 1 else setting.device.title
    of_inference = f", inference at batch {job.training.images_per_step}" if job.mode == "inference" else ""
    return Record(
        kind="predicted",
        title=f"{trace.network} on {name}{of_inference}",
        job=resolved(job),
        cluster=_cluster(setting),
        backend=job.backend,
        versions={"chronograd": __version__, **trace.versions},
        provenance=_provenance(setting, step, trace),
        notes=list(trace.notes),
    )


def _step_by(model: StepModel, trace: Trace, setting: Setting, shown: Shown | None) -> tuple[Setting, Step, float]:
    """Return the setting (adapted to PALEO if that is used), the step corrected by a measurement of the network, and the
    correction.
    """
    ppp, way = model.ppp, way_of(setting.job, setting.device)
    if ppp is None:
        step = predict_step(trace, setting)
    else:
        assumed = replace(from_datasheet(setting.device), origin=f"PALEO (PPP {ppp[0]:g} and {ppp[1]:g}), no")
        in_fp32 = changed(setting.job, ["training.precision=fp32"])
        setting = replace(setting, calibration=assumed, job=in_fp32, step_sigma_log=0.0)
        step = paleo_step(trace, setting, *ppp)
    if shown is None:
        return setting, step, 1.0
    factor, sigma = shown.onto(step.sigma_log, way)
    if ppp is not None:
        step = replace(step, parts=_corrected(step.parts, factor))
    elif factor != 1:
        step = predict_step(trace, setting, factor)
    return setting, replace(step, sigma_log=sigma), factor


def _corrected(parts: dict[str, float], factor: float) -> dict[str, float]:
    own = ("forward_s", "backward_s", "update_s")
    return {name: s * factor if name in own else s for name, s in parts.items()}


def likely_by(source: str, sigma: float) -> Callable[..., Quantity]:
    """Return a function that creates quantities whose interval is the 80 % interval of a log-normal."""
    spread = math.exp(Z80 * sigma)

    def likely(value: float, unit: str, source: str = source) -> Quantity:
        low, high = value / spread, value * spread
        if unit == "1" and value <= 1:  # a share; an MFU may exceed 1, see `notes.py`
            high = min(high, 1.0)
        return Quantity(value=value, unit=unit, low=low, high=high, source=source)

    return likely


def _put_step(record: Record, setting: Setting, step: Step, likely: Callable[..., Quantity], images: int) -> None:
    """Fill in the quantities of one step, in which all ranks together train `images`."""
    is_training = setting.job.mode == "training"
    for part in STEP_PARTS if is_training else FORWARD_PARTS:
        record.put(part, likely(step.parts[part], "s"))
    record.put("step_time_s", likely(step.seconds, "s"))
    if is_training:
        record.put("communication_overlapped_s", likely(step.communication.overlapped_s, "s"))
    else:
        record.put("latency_s", likely(step.seconds, "s"))
    if is_training and setting.spread:
        record.put("straggler_wait_s", likely(step.straggler_wait_s, "s"))
    if setting.job.cluster.input_samples_per_s:
        record.put("input_stall_s", likely(step.input_stall_s, "s"))
    calibration = setting.calibration
    record.put("throughput_samples_per_s", likely(images / step.seconds, "sample/s"))
    achieved = step.flops / step.seconds
    record.put("achieved_flops_per_s", likely(achieved, "FLOP/s"))
    convention = f"of {calibration.peak_flops_per_s:.3g} FLOP/s, {calibration.precision}"
    record.put("mfu", likely(achieved / calibration.peak_flops_per_s, "1", convention))
    peak = Quantity(value=step.memory.total, unit="B", source="lifetimes in the trace; no allocator, no workspace")
    record.put("memory_peak_bytes", peak)


def _put_roofline(record: Record, roof: Roofline) -> None:
    passes = "the forward pass" if record.job.mode == "inference" else "forward and backward"
    source = f"(matrix FLOPs / peak + bytes / bandwidth) / time of {passes}"
    record.put("ppp", Quantity(value=roof.ppp, unit="1", source=source))
    record.provenance.bandwidth_bytes_per_s = roof.bandwidth_bytes_per_s
    record.tables.layers = list(roof.layers)
    record.tables.most_to_win = roof.most_to_win()


def put_run(
    record: Record,
    job: Job,
    device: Device,
    likely: Callable[..., Quantity],
    steps: int | None,
    step_s: float,
    has_epochs: bool = True,
) -> None:
    """Fill in epoch, run and cost on the job's number of devices: steps × step time, hours × price.

    Args:
        likely: of `likely_by`. steps: of an epoch; None if the number of training samples is unknown.
        has_epochs: False if the number of epochs is unknown.
    """
    unit = price_of(job, device)
    price = None if unit is None else (unit[0] * job.cluster.count, unit[1])
    if price is not None:
        record.put("cost_usd_per_hour", Quantity(value=price[0], unit="usd", source=price[1]))
    if steps is None:
        reason = "the number of training samples is unknown: state --data, or data.samples=N"
        for name in ("epoch_time_s", "training_time_s", "cost_usd"):
            record.put(name, Quantity.missing(QUANTITIES[name][1], reason))
        return
    record.put("epoch_time_s", likely(steps * step_s, "s"))
    if not has_epochs:
        for name in ("training_time_s", "cost_usd"):
            reason = "the number of epochs is not known: state training.epochs=N"
            record.put(name, Quantity.missing(QUANTITIES[name][1], reason))
        return
    training = job.training.epochs * steps * step_s
    record.put("training_time_s", likely(training, "s"))
    record.put("epochs", Quantity(value=job.training.epochs, unit="count", source="the job"))
    if price is None:
        record.put("cost_usd", Quantity.missing("usd", f"no price is known for {device.name}"))
    else:
        record.put("cost_usd", likely(training / 3600 * price[0], "usd"))


def _put_cost_of_answers(
    record: Record,
    job: Job,
    device: Device,
    likely: Callable[..., Quantity],
    samples_per_s: float,
    tokens: int | None,
) -> None:
    """Fill in the inference costs of an hour, a million samples and a million tokens, for devices that are never idle."""
    unit = price_of(job, device)
    names = ("cost_usd_per_million_samples", *(("cost_usd_per_million_tokens",) if tokens is not None else ()))
    if unit is None:
        for name in names:
            record.put(name, Quantity.missing("usd", f"no price is known for {device.name}"))
        return
    per_hour, source = unit[0] * job.cluster.count, unit[1]
    record.put("cost_usd_per_hour", Quantity(value=per_hour, unit="usd", source=source))
    of_a_sample = per_hour / 3600 / samples_per_s
    for name, amount in zip(names, (of_a_sample, of_a_sample / (tokens or 1)), strict=False):
        record.put(name, likely(1e6 * amount, "usd"))


def in_mode(job: Job, mode: str) -> Job:
    """Return the job in the mode of a trace: a forward pass alone is predicted as inference."""
    return job if job.mode == mode else job.model_copy(update={"mode": mode})


def tokens_of_sample(trace: Trace) -> int | None:
    """Return the tokens of a sample if the network takes rows of integers, else None."""
    first = trace.tensors[trace.inputs[0]] if trace.inputs else None
    if first is None or first.dtype not in ("int64", "int32") or len(first.shape) != 2:
        return None
    return first.shape[1].const


def price_of(job: Job, device: Device) -> tuple[float, str] | None:
    """Return dollars per hour of one device of the job, in whole instances, and the source; None if no price is known."""
    if job.cluster.price_usd_per_hour is not None:
        return job.cluster.price_usd_per_hour, "the job"
    count = job.cluster.count
    price = market.price_of(device, count=count) if device.kind == "gpu" else None
    if price is None:
        return None
    host = "" if price.includes_host else ", host billed separately"
    return float(price.usd_per_hour(count)) / count, f"{price.vendor} {price.instance} {price.date}{host}"


def _cluster(setting: Setting) -> RecordedCluster:
    return RecordedCluster(
        device=setting.device.name,
        title=setting.device.title,
        count=setting.count,
        nodes=setting.nodes,
        batch_per_rank=setting.batch_per_rank,
        link=setting.link.name if setting.link else None,
        per_node=setting.topology.per_node,
        all_reduce=setting.algorithm if setting.link else None,
        threads=setting.calibration.threads,
    )


def _provenance(setting: Setting, step: Step, trace: Trace) -> Provenance:
    c = setting.calibration
    return Provenance(
        predicted_from=f"trace of {trace.network} ({how_many(len(trace.operators), 'operators')}), {c.origin} calibration of "
        f"{setting.device.name}",
        calibration=c.provenance or {"origin": c.origin},
        sigma_log=step.sigma_log,
        interval="80 % interval of a log-normal",
        peak_flops_per_s=c.peak_flops_per_s,
        precision=c.precision,
        flops_per_step_per_rank=step.flops,
        gradient_bytes=step.communication.message_bytes,
        activation_checkpointing=setting.job.training.activation_checkpointing,
        zero_stage=setting.job.training.zero_stage,
        buckets=step.communication.num_buckets,
        step_sigma_log=setting.spread,
        left_out="evaluation, saving, start-up" + ("" if setting.spread else ", stragglers"),
        date=datetime.now(UTC).date().isoformat(),
    )
