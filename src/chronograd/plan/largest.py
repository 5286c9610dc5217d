"""The largest batch of a device: predicted, and where it is tried for real, between which batches memory ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chronograd import units
from chronograd.answer import Answer, Section, Table
from chronograd.figure import SERIES_COLORS, Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.plan.settings import LargestBatch, largest_batch
from chronograd.trace import Trace
from chronograd.units import GIB
from chronograd.words import how_many, signed_percent

MAX_PROBES = 10
# The search ends where the smallest batch that failed is no further than this above the largest that ran.
CLOSE_ENOUGH = 0.02
# In the order of the table; the last two are not of `Memory`.
_PARTS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer", "buffers": "buffers",
          "activations": "activations", "reserve": "reserve", "total": "total"}  # fmt: skip
_COLUMNS = {**_PARTS, "parameters": "params"}


@dataclass(frozen=True)
class Probe:
    """One batch tried. `base_bytes` is what the process held after a step with a single pair of samples.

    `reason` says how it ended where it did not run: out of memory, or killed.
    """

    batch: int
    ran: bool
    peak_bytes: int | None = None
    base_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Edge:
    """Between which batches memory ends. None where no probe found that side."""

    largest_ran: int | None
    smallest_failed: int | None
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Trial:
    """How batches are tried for real: what a process holds before its first batch, and the search from a predicted batch
    under a limit in bytes."""

    base_bytes: Callable[[Job], int]
    confirm: Callable[[Job, int, int], Edge]


def find_edge(try_batch: Callable[[int], Probe], start: int, max_probes: int = MAX_PROBES) -> Edge:
    """Bisect for the edge, from a predicted largest batch.

    From `start` in growing strides (an eighth, a quarter, a half, ...) to the first change between running and failing,
    then halving.

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
) -> Answer:
    """The largest batch per device that fits the memory of each job's device.

    Args:
        capacity_bytes: instead of the devices' memory.
        trial: to try batches for real; without it the reserve is assumed.
    Raises: InputError as `settings.largest_batch` does.
    """
    sections, data = [], []
    for job in jobs:
        largest = largest_batch(trace, job, capacity_bytes, trial.base_bytes(job) if trial else None)
        edge = trial.confirm(job, max(largest.batch, 1), largest.capacity_bytes) if trial else None
        rows = [
            {
                "batch": batch,
                **asdict(memory),
                "reserve": largest.needed(memory) - memory.total,
                "total": largest.needed(memory),
                "fits": largest.fits(memory),
            }
            for batch, memory in largest.rows
        ]
        sections.append(_section(trace.network, largest, edge, rows))
        data.append(
            {
                "device": largest.device.name,
                "devices": job.cluster.count,
                "largest_batch_per_device": largest.batch,
                "start_at": largest.start_at,
                "capacity_bytes": largest.capacity_bytes,
                "reserve_bytes": largest.reserve_bytes,
                "reserve_is": "assumed" if edge is None else "measured",
                "zero_stage": job.training.zero_stage,
                "activation_checkpointing": job.training.activation_checkpointing,
                "memory": rows,
                "confirmed": None if edge is None else asdict(edge),
            }
        )
    return Answer(f"Largest batch of {trace.network}", sections=sections, data=data if len(data) > 1 else data[0])


def gpu_of_memory(capacity_bytes: int) -> Device:
    """The GPU of the catalogue whose memory is nearest to a size, the newest of several: it stands for any of that size.

    >>> gpu_of_memory(24 * 10**9).name
    'l4'
    """
    gpus = [device for device in catalog.devices() if device.kind == "gpu"]
    return min(gpus, key=lambda device: (abs(device.memory_bytes - capacity_bytes), -(device.year or 0), device.name))


def _section(network: str, largest: LargestBatch, edge: Edge | None, rows: Sequence[dict[str, Any]]) -> Section:
    bars = [
        Bar(str(row["batch"]), "predicted", {_PARTS[p]: float(f"{row[p] / GIB:.6g}") for p in _PARTS if p != "total"})
        for row in rows
    ]
    return Section(
        title=f"{network} on {largest.device.title}",
        takeaway=_takeaway(largest, rows),
        lines=[] if edge is None else _trial_lines(largest, edge),
        figure=Figure([Bars("memory of a rank, GiB", "batch", bars, dict(zip(_PARTS.values(), SERIES_COLORS, strict=False)))]),
        table=Table(
            ("batch", *_COLUMNS.values(), "fits"),
            [[str(r["batch"]), *(f"{r[p] / GIB:.2f}" for p in _COLUMNS), "yes" if r["fits"] else "no"] for r in rows],
            set(range(8)),
            (
                "GiB at the peak of a step: gradients and activations are those alive together.",
                f"Reserve: framework and context ({'assumed' if edge is None else 'measured here'}), and what half of the networks "
                f"need beside tensors: {100 * (largest.overhead.median - 1):.0f} % of them.",
            ),
        ),
        data=rows,
    )  # fmt: skip


def _takeaway(largest: LargestBatch, rows: Sequence[dict[str, Any]]) -> str:
    capacity = units.memory(largest.capacity_bytes)
    if not largest.batch:
        return f"Not even one sample fits in {capacity}: it would need {units.memory(rows[0]['total'])}."
    full = next(row for row in rows if row["batch"] == largest.batch)
    most = max((part for part in _PARTS if part != "total"), key=lambda part: full[part])
    start = f"Start at {how_many(largest.start_at, 'samples')} per device: " if largest.start_at else ""
    sure = (
        " Nine of ten networks fit with the first, half with the second."
        if start and largest.overhead.median > 1
        else ""
    )
    held = "is the reserve" if most == "reserve" else f"holds {_PARTS[most]}"
    return (
        f"{start}{'at' if start else 'At'} most {largest.batch:,} fit in {capacity}, with nothing to spare; {units.memory(full[most])} of "
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
        f"edge: the largest that ran is {ran or 'none'}, the smallest that failed {failed or 'none'}{error}",
        *lines,
    ]
