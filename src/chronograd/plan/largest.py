"""The largest batch of a device, predicted; and the measured limit if batches are tried on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from chronograd import units
from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.figure import SERIES_COLORS, Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import WHOLE_BATCH, Job, changed
from chronograd.plan.settings import LargestBatch, largest_batch
from chronograd.predict.memory import Memory
from chronograd.trace import Trace
from chronograd.units import GIB
from chronograd.words import how_many, signed_percent

MAX_PROBES = 10
# The search ends when the smallest failed batch is at most this share above the largest that ran.
CLOSE_ENOUGH = 0.02
# In the order of the table; the last two are not parts of `Memory`.
_PARTS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer", "buffers": "buffers",
          "activations": "activations", "reserve": "reserve", "total": "total"}  # fmt: skip
_COLUMNS = (
    Column("batch", "batch", format="d"),
    *(
        Column(title, part, format=lambda size: f"{size / GIB:.2f}")
        for part, title in {**_PARTS, "parameters": "params"}.items()
    ),
    Column("fits", lambda row: "yes" if row.fits else "no"),
)


@dataclass(frozen=True)
class Probe:
    """One batch that was tried. `base_bytes` is the memory of the process after a step with one pair of samples.

    If it did not run, `reason` states how it ended: out of memory, or killed.
    """

    batch: int
    ran: bool
    peak_bytes: int | None = None
    base_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Edge:
    """The batches between which memory runs out. None if no probe reached that side."""

    largest_ran: int | None
    smallest_failed: int | None
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class BatchMemory:
    """Bytes of a rank at the peak of a step with a batch: by role, the reserve, the total, and whether it fits."""

    batch: int
    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int
    reserve: int
    total: int
    fits: bool


@dataclass(frozen=True)
class BatchPlan:
    """The result of `plan batch` for one device.

    Attributes:
        start_at: the batch to start with; nine of ten networks fit with it.
        capacity_bytes: memory of the device. `reserve_bytes`: the part for framework and context.
        memory: memory at several batches.
        confirmed: the limit measured in a trial; None without a trial.
    """

    device: str
    devices: int
    largest_batch_per_device: int
    start_at: int
    capacity_bytes: int
    reserve_bytes: int
    reserve_is: Literal["assumed", "measured"]
    zero_stage: int
    activation_checkpointing: str
    memory: list[BatchMemory]
    confirmed: Edge | None


@dataclass(frozen=True)
class Trial:
    """A trial of batches on a device: the memory of a process before its first batch, and the search from a predicted batch
    under a limit in bytes.
    """

    base_bytes: Callable[[Job], int]
    confirm: Callable[[Job, int, int], Edge]


def find_edge(try_batch: Callable[[int], Probe], start: int, max_probes: int = MAX_PROBES) -> Edge:
    """Bisect for the edge, starting at the predicted largest batch.

    Move from `start` in growing strides (an eighth, a quarter, a half, ...) until running changes to failing or back, then
    bisect.

    >>> edge = find_edge(lambda batch: Probe(batch, ran=batch <= 97), start=100)
    >>> edge.largest_ran, edge.smallest_failed, len(edge.probes)
    (97, 98, 5)
    """
    ran, failed = 0, 0
    probes: list[Probe] = []
    batch, stride = max(1, start), max(1, start // 8)
    while len(probes) < max_probes:
        probe = try_batch(batch)
        probes.append(probe)
        if probe.ran:
            ran = batch
        else:
            failed = batch
        if failed == 1 or (ran and failed and failed - ran <= max(1, CLOSE_ENOUGH * ran)):
            break
        if ran and failed:
            batch = (ran + failed) // 2
        else:
            batch = max(1, batch + stride if ran else batch - stride)
            stride *= 2
    return Edge(ran or None, failed or None, tuple(probes))


def largest_batches(
    trace: Trace, jobs: Sequence[Job], capacity_bytes: int | None = None, trial: Trial | None = None
) -> Answer[BatchPlan | list[BatchPlan]]:
    """Return the largest batch per device that fits the memory of each job's device.

    Args:
        capacity_bytes: instead of the devices' memory.
        trial: tries batches on the device; without it the reserve is assumed.

    Raises: InputError as `settings.largest_batch` does.
    """
    sections, plans = [], []
    for job in jobs:
        largest = largest_batch(trace, job, capacity_bytes, trial.base_bytes(job) if trial else None)
        edge = trial.confirm(job, max(largest.batch, 1), largest.capacity_bytes) if trial else None
        rows = [_memory(largest, batch, memory) for batch, memory in largest.rows]
        sections.append(_section(trace.network, largest, edge, rows))
        plans.append(
            BatchPlan(
                device=largest.device.name,
                devices=job.cluster.count,
                largest_batch_per_device=largest.batch,
                start_at=largest.start_at,
                capacity_bytes=largest.capacity_bytes,
                reserve_bytes=largest.reserve_bytes,
                reserve_is="assumed" if edge is None else "measured",
                zero_stage=job.training.zero_stage,
                activation_checkpointing=job.training.activation_checkpointing,
                memory=rows,
                confirmed=edge,
            )
        )
    result = plans if len(plans) > 1 else plans[0]
    return Answer(f"Largest batch of {trace.network}", sections=sections, result=result)


def with_fitting_batch(trace: Trace, job: Job) -> Job:
    """Return a job with its batch if that fits, else with the largest power of two per device that does, or one sample.

    The rule for every batch that the user did not state. It never changes a trace of one batch.
    """
    if trace.fixed_batch is not None:
        return job
    training, ranks = job.training, 1 if job.backend in WHOLE_BATCH else job.cluster.count
    most = largest_batch(trace, job).batch
    if -(-job.images_per_rank // training.accumulation) <= most:
        return job
    samples = 2 ** int(math.log2(max(most // training.augmentation.copies, 1)))
    return changed(job, [f"training.batch={samples * ranks * training.accumulation}"])


def fitting_words(job: Job) -> str:
    """Return the batch of `with_fitting_batch` in words."""
    training, count = job.training, job.cluster.count
    each = f" ({training.batch // count:,} per device)" if count > 1 else ""
    return f"batch {training.batch:,}{each}, the largest power of two that fits"


def _memory(largest: LargestBatch, batch: int, memory: Memory) -> BatchMemory:
    needed = largest.needed(memory)
    return BatchMemory(batch, **vars(memory), reserve=needed - memory.total, total=needed, fits=largest.fits(memory))


def gpu_of_memory(capacity_bytes: int) -> Device:
    """Return the GPU of the catalogue with the nearest memory size, the newest on a tie. It represents all GPUs of that size.

    >>> gpu_of_memory(24 * 10**9).name
    'l4'
    """
    gpus = [device for device in catalog.devices() if device.kind == "gpu"]
    return min(gpus, key=lambda device: (abs(device.memory_bytes - capacity_bytes), -(device.year or 0), device.name))


def _section(network: str, largest: LargestBatch, edge: Edge | None, rows: Sequence[BatchMemory]) -> Section:
    bars = [
        Bar(
            str(row.batch),
            "predicted",
            {_PARTS[p]: float(f"{getattr(row, p) / GIB:.6g}") for p in _PARTS if p != "total"},
        )
        for row in rows
    ]
    return Section(
        title=f"{network} on {largest.device.title}",
        takeaway=_takeaway(largest, rows),
        lines=[] if edge is None else _trial_lines(largest, edge),
        figure=Figure([Bars("memory of a rank, GiB", "batch", bars, dict(zip(_PARTS.values(), SERIES_COLORS, strict=False)))]),
        table=Table.of(
            rows,
            _COLUMNS,
            (
                "GiB at the peak of a step. Gradients and activations: only those in memory at the same time.",
                f"Reserve: framework and context ({'assumed' if edge is None else 'measured here'}), and the median overhead "
                f"of networks: {100 * (largest.overhead.median - 1):.0f} % of the tensors.",
            ),
        ),
        data=as_json(rows),
    )  # fmt: skip


def _takeaway(largest: LargestBatch, rows: Sequence[BatchMemory]) -> str:
    capacity = units.memory(largest.capacity_bytes)
    if not largest.batch:
        return f"Not even one sample fits in {capacity}: it would need {units.memory(rows[0].total)}."
    full = next(row for row in rows if row.batch == largest.batch)
    most = max((part for part in _PARTS if part != "total"), key=lambda part: getattr(full, part))
    start = f"Start at {how_many(largest.start_at, 'samples')} per device: " if largest.start_at else ""
    sure = (
        " Nine of ten networks fit at the first batch, half at the second."
        if start and largest.overhead.median > 1
        else ""
    )
    held = "is the reserve" if most == "reserve" else f"holds {_PARTS[most]}"
    return (
        f"{start}{'at' if start else 'At'} most {largest.batch:,} fit in {capacity}, with nothing to spare; {units.memory(getattr(full, most))} of "
        f"it {held}.{sure}"
    )


def _trial_lines(largest: LargestBatch, edge: Edge) -> list[str]:
    lines = []
    for probe in edge.probes:
        peak = f", peak {units.memory(probe.peak_bytes)} beyond the reserve" if probe.peak_bytes else ""
        lines.append(f"batch {probe.batch}: {'ran' if probe.ran else probe.reason}{peak}")
    ran, failed = edge.largest_ran, edge.smallest_failed
    error = (
        f"; predicted {largest.batch}, {signed_percent(largest.batch / ran - 1)} of the largest that ran" if ran else ""
    )
    return [
        f"limit: the largest batch that ran is {ran or 'none'}, the smallest that failed is {failed or 'none'}{error}",
        *lines,
    ]
