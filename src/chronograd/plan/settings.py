"""Evaluation of many settings from one trace, and the largest batch that fits a device.

A setting is a device, a number of devices, a batch per device and an all-reduce algorithm. Operator times depend only on the
device and the batch, so each pair is computed once; all counts and batches are evaluated as one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job, steps_per_epoch
from chronograd.predict.calibration import Calibration, calibrations
from chronograd.predict.compute import sigma_log
from chronograd.predict.memory import Memory, Overhead, footprint_of_job, needed_bytes, overhead, reserve_bytes
from chronograd.predict.prediction import footprint_of, rank_work, with_others
from chronograd.predict.setting import Setting, setting_of
from chronograd.trace import Trace
from chronograd.words import how_many


def evaluate(
    trace: Trace,
    job: Job,
    devices: Sequence[str | Device],
    counts: Sequence[int],
    batches: Sequence[int],
    algorithms: Sequence[str] = ("ring",),
) -> dict[str, np.ndarray]:
    """Evaluate every combination of devices, counts, batches and algorithms; return columns with one row for each.

    Step times equal those of `predict_step` up to rounding.

    Args:
        job: training and cluster fields that apply to all settings; its own device, count and batch are not used.
        counts: numbers of devices.
        batches: samples per step of one device.

    Returns: `device` (index into devices), `count`, `batch_per_rank`, `algorithm` (index), `step_time_s` and `sigma_log`
    (standard deviation of its logarithm). Also `throughput_samples_per_s` (of all devices), `memory_bytes` (of one device) and `fits`. Rows
    are in the order of the arguments; algorithms change fastest.

    Raises: InputError for a trace of one batch, and as `setting_of`.
    """
    if trace.fixed_batch is not None:
        raise InputError(f"the trace holds for batch {trace.fixed_batch} only", "`predict` answers for that batch")
    shape = (len(devices), len(counts), len(batches), len(algorithms))
    count, batch = np.array(counts), np.array(batches)
    step_s, memory, fits = np.empty(shape), np.empty(shape[1:3]), np.empty(shape[:3], dtype=bool)
    spread = np.empty(shape[:3])
    for d, device in enumerate(catalog.device(x) if isinstance(x, str) else x for x in devices):
        base = replace(setting_of(job, algorithms[0], device), batch_per_rank=1)
        if d == 0:  # memory is the same on every device
            for n, same in _by_memory(counts, base):
                part = -(-batch // job.training.accumulation)
                memory[same] = footprint_of(trace, _with_count(base, n)).peak_bytes(part)
        fits[d] = needed_bytes(device, job.mode, memory)[0] <= device.usable_bytes
        for calibration, same in _by_calibration(base, job, counts):
            ranks = _with_count(replace(base, calibration=calibration, batch_per_rank=batch[:, None]), count[same])
            works = [rank_work(trace, samples, ranks) for samples in batches]
            spread[d, same, :] = [sigma_log(trace, times, calibration) for times, _ in works]
            times = np.array([times for times, _ in works])[:, None]
            alone = {part: np.array([parts[part] for _, parts in works])[:, None] for part in works[0][1]}
            for a, algorithm in enumerate(algorithms):
                parts = with_others(trace, times, alone, replace(ranks, algorithm=algorithm))[0]
                step_s[d, same, :, a] = np.transpose(sum(parts.values()))
    index = np.indices(shape)

    samples_per_step = count[index[1]] * batch[index[2]]
    return {
        "device": index[0].ravel(),
        "count": count[index[1]].ravel(),
        "batch_per_rank": batch[index[2]].ravel(),
        "algorithm": index[3].ravel(),
        "step_time_s": step_s.ravel(),
        "sigma_log": spread[index[0], index[1], index[2]].ravel(),
        "throughput_samples_per_s": (samples_per_step / step_s).ravel(),
        "memory_bytes": memory[index[1], index[2]].ravel(),
        "fits": fits[index[0], index[1], index[2]].ravel(),
    }


def with_whole_batches(table: Mapping[str, np.ndarray], samples: int) -> tuple[dict[str, np.ndarray], int]:
    """Return the rows of `evaluate` whose global batch is at most the training samples, and the number of other rows.

    Raises: InputError if there is no such row.
    """
    steps_per_epoch(samples, 1)  # raises if the number is unknown
    is_whole = table["count"] * table["batch_per_rank"] <= samples
    if not is_whole.any():
        least = int((table["count"] * table["batch_per_rank"]).min())
        raise InputError(
            f"the smallest global batch is {least:,}, more than the {how_many(samples, 'training samples')}, so no batch is full",
            "give smaller counts or batches, or more samples",
        )
    return {name: column[is_whole] for name, column in table.items()}, int((~is_whole).sum())


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch per device that is predicted to fit, and the parts of the prediction.

    Attributes:
        capacity_bytes: memory of the device, or the allowed part of it.
        reserve_bytes: the part that is not for tensors.
        batch: samples per step of one device, with the median overhead; 0 if not even one fits.
        start_at: a batch to begin with; nine of ten networks have a smaller overhead than it allows for.
        overhead: factors on the tensors' bytes.
        rows: memory by role at some batches, including the largest and the first that does not fit.
    """

    device: Device
    capacity_bytes: int
    reserve_bytes: int
    batch: int
    start_at: int
    overhead: Overhead
    rows: tuple[tuple[int, Memory], ...]

    def needed(self, memory: Memory) -> int:
        """Return the bytes with the median overhead and the reserve."""
        return int(self.overhead.median * memory.total) + self.reserve_bytes

    def fits(self, memory: Memory) -> bool:
        return self.needed(memory) <= self.capacity_bytes


def largest_batch(
    trace: Trace, job: Job, capacity_bytes: int | None = None, reserve: int | None = None
) -> LargestBatch:
    """Return the largest batch that fits one device of a job, whatever the job's own batch.

    Args:
        capacity_bytes: instead of the device's memory.
        reserve: bytes that are not for tensors, instead of `reserve_bytes`.

    Raises: InputError for a trace of one batch, and if memory does not grow with the batch.
    """
    device = catalog.device(job.cluster.device)
    lines = footprint_of_job(trace, job)
    capacity = device.usable_bytes if capacity_bytes is None else capacity_bytes
    kept = reserve_bytes(device) if reserve is None else reserve
    more = overhead(device, job.mode)
    batch = lines.largest_batch((capacity - kept) / more.median)
    safe = lines.largest_batch((capacity - kept) / more.high)
    start_at = safe // 8 * 8 or safe
    around = sorted({max(1, b) for b in (1, batch // 4, batch // 2, start_at, batch, batch + 1, 2 * batch)})
    return LargestBatch(device, capacity, kept, batch, start_at, more, tuple((b, lines.at(b)) for b in around))


def _with_count(setting: Setting, count: int | np.ndarray) -> Setting:
    return replace(setting, topology=replace(setting.topology, num_ranks=count))


def _by_memory(counts: Sequence[int], setting: Setting) -> Iterator[tuple[int, list[int]]]:
    """Yield groups of counts with the same memory per rank: all counts, unless ZeRO shards it."""
    if setting.job.training.zero_stage == 0:
        yield 1, list(range(len(counts)))
    else:
        yield from ((n, [i]) for i, n in enumerate(counts))


def _by_calibration(base: Setting, job: Job, counts: Sequence[int]) -> Iterator[tuple[Calibration, list[int]]]:
    """Yield groups of counts that share a calibration: all counts, unless the device was calibrated with several process
    counts.
    """
    if len({c.processes for c in calibrations(base.device)}) <= 1:
        yield base.calibration, list(range(len(counts)))
        return
    groups: list[tuple[Calibration, list[int]]] = []
    for i, n in enumerate(counts):
        cluster = job.cluster.model_copy(update={"count": n})
        fitting = setting_of(job.model_copy(update={"cluster": cluster}), device=base.device).calibration
        if all(fitting != known for known, _ in groups):
            groups.append((fitting, []))
        next(same for known, same in groups if known == fitting).append(i)
    yield from groups
