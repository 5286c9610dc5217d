"""`predict`: a record of a step, an epoch and a run that have not happened yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link
from chronograd.job import Job, resolved
from chronograd.predict.calibration import Z80, Calibration, calibration_for
from chronograd.predict.collectives import all_reduce
from chronograd.predict.compute import by_kind, operator_seconds, phase_seconds, update_seconds
from chronograd.predict.memory import Memory, optimizer_kind, peak_memory
from chronograd.predict.scaling import Communication, exchange, tier
from chronograd.record import QUANTITIES, STEP_PARTS, Quantity, Record
from chronograd.trace import Trace

# A batch kept in memory is gathered sample by sample: each byte is read and written once, at this share of
# the bandwidth that large copies reach.
_GATHER_SHARE = 0.25


@dataclass(frozen=True)
class Setting:
    """Everything a prediction depends on beside the trace."""

    device: Device
    calibration: Calibration
    count: int
    nodes: int
    link: Link | None
    algorithm: str
    batch_per_rank: int
    optimizer: str


@dataclass(frozen=True)
class Step:
    """A predicted step: seconds by part, communication and memory of one rank."""

    parts: dict[str, float]
    communication: Communication
    memory: Memory
    flops: int
    kinds: list[dict[str, float | str]]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def setting_of(job: Job, algorithm: str = "ring", device: Device | None = None) -> Setting:
    """The setting that a job describes. Raises NotFoundError and InputError for names and precisions."""
    cluster = job.cluster
    device = device or catalog.device(cluster.device)
    all_reduce(algorithm)
    calibration = calibration_for(device, job.training.precision, cluster.threads, cluster.count)
    nodes, link_name = tier(device, cluster.count, cluster.per_node)
    link = None
    if cluster.count > 1:
        link = _calibrated_link(device) if cluster.link is None and nodes == 1 else None
        link = link or catalog.link(cluster.link or link_name)
    return Setting(
        device,
        calibration,
        cluster.count,
        nodes,
        link,
        algorithm,
        -(-job.training.batch // cluster.count),
        optimizer_kind(job.training.optimizer, job.training.momentum),
    )


def predict_step(trace: Trace, setting: Setting) -> Step:
    """Time, memory and work of one step on one rank. Raises InputError for a trace of another batch."""
    batch, calibration = setting.batch_per_rank, setting.calibration
    if trace.fixed_batch is not None and trace.fixed_batch != batch:
        raise InputError(
            f"the trace holds for batch {trace.fixed_batch} only, and each rank has {batch}",
            f"set training.batch to {trace.fixed_batch * setting.count}, or count again with --fixed-batch {batch}",
        )
    times = operator_seconds(trace, batch, calibration)
    phases = phase_seconds(trace, times, calibration)
    communication = Communication(0.0, 0.0, 0, 0)
    if setting.link is not None and trace.mode == "training":
        algorithm = all_reduce(setting.algorithm)
        communication = exchange(
            trace, times, phases["backward"], setting.count, setting.link, algorithm, calibration.overlap
        )
    input_bytes = sum(trace.storages[trace.tensors[i].storage].bytes.at(batch) for i in trace.inputs)
    host_link = setting.device.node.host_link
    is_gpu = setting.device.kind == "gpu"
    gather_s = 0.0 if is_gpu else 2 * input_bytes / (_GATHER_SHARE * calibration.bandwidth_bytes_per_s)
    parts = {
        "input_s": calibration.input_launch_s + gather_s,
        "transfer_s": input_bytes / catalog.link(host_link).bandwidth_bytes_per_s if is_gpu and host_link else 0.0,
        "forward_s": phases["forward"],
        "backward_s": phases["backward"],
        "communication_exposed_s": communication.exposed_s,
        "update_s": update_seconds(trace, setting.optimizer, calibration) if trace.mode == "training" else 0.0,
    }
    return Step(
        parts,
        communication,
        peak_memory(trace, batch, setting.optimizer),
        trace.flops(batch),
        by_kind(trace, times, batch),
    )


def predict(
    trace: Trace, job: Job, *, samples: int | None = None, algorithm: str = "ring", device: Device | None = None
) -> Record:
    """A predicted record of a job.

    Args:
        trace: the job's network.
        samples: training samples in an epoch; without it epochs, run and cost are missing.
        algorithm: of the all-reduce.
        device: instead of the job's `cluster.device`.

    Intervals are the middle 80 % of a log-normal whose width is the calibration's. Left out: evaluation, saving,
    start-up and stragglers.
    """
    setting = setting_of(job, algorithm, device)
    step = predict_step(trace, setting)
    calibration = setting.calibration
    name = f"{setting.count} × {setting.device.title}" if setting.count > 1 else setting.device.title
    record = Record(
        kind="predicted",
        title=f"{trace.network} on {name}",
        job=resolved(job),
        cluster=_cluster(setting),
        backend=job.backend,
        versions={"chronograd": version("chronograd"), **trace.versions},
        provenance=_provenance(setting, step, trace),
        notes=list(trace.notes),
    )
    source = f"{calibration.origin} calibration"
    spread = math.exp(Z80 * calibration.sigma)

    def likely(value: float, unit: str, source: str = source) -> Quantity:
        low, high = value / spread, value * spread
        high = min(high, max(value, 1.0)) if unit == "1" else high
        return Quantity(value=value, unit=unit, low=low, high=high, source=source)

    for part in STEP_PARTS:
        record.put(part, likely(step.parts[part], "s"))
    seconds = step.seconds
    record.put("step_time_s", likely(seconds, "s"))
    record.put("communication_overlapped_s", likely(step.communication.overlapped_s, "s"))
    global_batch = setting.batch_per_rank * setting.count
    record.put("throughput_samples_per_s", likely(global_batch / seconds, "sample/s"))
    record.put("achieved_flops_per_s", likely(step.flops / seconds, "FLOP/s"))
    mfu = step.flops / seconds / calibration.peak_flops_per_s
    record.put("mfu", likely(mfu, "1", f"of {calibration.peak_flops_per_s:.3g} FLOP/s, {calibration.precision}"))
    memory = Quantity(value=step.memory.total, unit="B", source="lifetimes in the trace; no allocator, no workspace")
    record.put("memory_peak_bytes", memory)
    _put_run(record, job, setting, likely, samples, seconds)
    _check_memory(record, setting, step)
    record.tables["by_kind"] = step.kinds
    return record


def _put_run(record: Record, job: Job, setting: Setting, likely: Any, samples: int | None, step_s: float) -> None:
    """Epoch, run and cost: steps × step time, hours × price."""
    price = _price(job, setting)
    if price is not None:
        record.put("cost_usd_per_hour", Quantity(value=price[0], unit="usd", source=price[1]))
    if samples is None:
        reason = "the number of training samples is not known"
        for name in ("epoch_time_s", "training_time_s", "cost_usd"):
            record.put(name, Quantity.missing(QUANTITIES[name][1], reason))
        return
    steps = max(1, samples // (setting.batch_per_rank * setting.count))
    training = job.training.epochs * steps * step_s
    record.put("epoch_time_s", likely(steps * step_s, "s"))
    record.put("training_time_s", likely(training, "s"))
    record.put("epochs", Quantity(value=job.training.epochs, unit="count", source="the job"))
    if price is None:
        record.put("cost_usd", Quantity.missing("usd", f"no price is known for {setting.device.name}"))
    else:
        record.put("cost_usd", likely(training / 3600 * price[0], "usd"))


def _price(job: Job, setting: Setting) -> tuple[float, str] | None:
    """Dollars per hour of the cluster and where they come from."""
    if job.cluster.price_usd_per_hour is not None:
        return job.cluster.price_usd_per_hour * setting.count, "the job"
    found = catalog.price_of(setting.device) if setting.device.kind == "gpu" else None
    if found is None:
        return None
    host = "" if found.includes_host else ", host billed apart"
    return found.usd_per_device_hour * setting.count, f"{found.vendor} {found.instance} {found.date}{host}"


def _check_memory(record: Record, setting: Setting, step: Step) -> None:
    if step.memory.total > setting.device.memory_bytes:
        record.notes.append(
            f"does not fit: a rank needs {step.memory.total / 1e9:.1f} GB, {setting.device.name} has "
            f"{setting.device.memory_bytes / 1e9:.1f} GB"
        )


def _calibrated_link(device: Device) -> Link | None:
    table = (device.calibration or {}).get("link")
    return Link(**table) if table else None


def _cluster(setting: Setting) -> dict[str, Any]:
    return {
        "device": setting.device.name,
        "title": setting.device.title,
        "count": setting.count,
        "nodes": setting.nodes,
        "batch_per_rank": setting.batch_per_rank,
        "link": setting.link.name if setting.link else None,
        "all_reduce": setting.algorithm if setting.link else None,
        "threads": setting.calibration.threads,
    }


def _provenance(setting: Setting, step: Step, trace: Trace) -> dict[str, Any]:
    c = setting.calibration
    return {
        "predicted_from": f"trace of {trace.network} ({len(trace.operators)} operators), {c.origin} calibration of "
        f"{setting.device.name}",
        "calibration": c.provenance or {"origin": c.origin},
        "sigma_log": c.sigma,
        "interval": "middle 80 % of a log-normal",
        "peak_flops_per_s": c.peak_flops_per_s,
        "precision": c.precision,
        "flops_per_step_per_rank": step.flops,
        "gradient_bytes": step.communication.message_bytes,
        "buckets": step.communication.num_buckets,
        "left_out": "evaluation, saving, start-up, stragglers",
        "date": datetime.now(UTC).date().isoformat(),
    }
