"""The answer of `predict` for inference: latency and throughput by batch, on each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chronograd.answer import Answer, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, changed
from chronograd.predict.carrying import Shown
from chronograd.predict.prediction import predict
from chronograd.record import DOES_NOT_FIT, Record
from chronograd.trace import Trace
from chronograd.units import quantity
from chronograd.words import how_many, interval, listed, named, scaled, time_unit

# Used if no batch is given: a single sample, and the sizes at which devices fill.
USUAL_BATCHES = (1, 8, 32, 128)


def predict_batches(
    trace: Trace,
    jobs: Sequence[Job],
    batches: Sequence[int],
    shown_of: Callable[[Job], Shown | None] = lambda job: None,
) -> Answer[list[Record]]:
    """Return a predicted record of each job at each batch. Each job is one device or group of devices.

    Args:
        batches: over all devices of a job. shown_of: a measurement of the network on another device, as `predict` takes it.
    Raises: InputError as `predict`, and for a batch with less than one sample per device.
    """
    sections: list[Section] = []
    records: list[Record] = []
    for job in jobs:
        if min(batches) < job.cluster.count:
            raise InputError(
                f"batch {min(batches)} is less than the {how_many(job.cluster.count, 'devices')}: each needs a sample",
                f"give --batch {job.cluster.count} or more",
            )
        asked = [changed(job, [f"training.batch={batch}"]) for batch in sorted(set(batches))]
        of_job = [predict(trace, one, shown=shown_of(one)) for one in asked]
        sections.append(_section(of_job))
        records += of_job
    notes = [note for record in records for note in record.notes if not note.startswith(DOES_NOT_FIT)]
    return Answer(
        f"{trace.network} in inference",
        sections=sections,
        records=named((record.title, record) for record in records),
        result=records,
        notes=list(dict.fromkeys(notes)),
    )


def _section(records: Sequence[Record]) -> Section:
    """Return the section of one device, batch by batch."""
    first = records[0]
    device = first.device if first.world == 1 else f"{first.world} × {first.device}"
    columns = {
        "latency": "latency_s",
        "throughput": "throughput_samples_per_s",
        "in tokens": "throughput_tokens_per_s",
        "memory": "memory_peak_bytes",
        "per M samples": "cost_usd_per_million_samples",
        "per M tokens": "cost_usd_per_million_tokens",
    }
    columns = {title: name for title, name in columns.items() if any(r[name].value is not None for r in records)}
    rows = []
    for record in records:
        cells = [quantity(record[name].value, record[name].unit) for name in columns.values()]
        cells[1:1] = [interval(record["latency_s"])]
        rows.append([f"{record.global_batch:,}{'' if _fits(record) else ' †'}", *cells])
    names = ["batch", *columns]
    names[2:2] = ["80 % interval"]
    source = first["cost_usd_per_hour"].source
    notes = [f"price: {source}; devices never idle"] if source else []
    if not all(_fits(record) for record in records):
        notes.append("†: does not fit into the memory of the device")
    return Section(
        title=f"{first.title.partition(',')[0]}, inference in {first.provenance.precision}",
        takeaway=_takeaway(records, device),
        figure=_figure(records),
        caption="Latency of a batch and throughput of one batch after another, with 80 % intervals.",
        table=Table(names, rows, set(range(1, len(names))), notes, drop=(2,)),
        data=[
            {
                "device": first.device,
                "count": first.world,
                "batch": record.global_batch,
                "fits": _fits(record),
                **{name: record[name].value for name in columns.values()},
                "latency_low_s": record["latency_s"].low,
                "latency_high_s": record["latency_s"].high,
            }
            for record in records
        ],
    )


def _fits(record: Record) -> bool:
    return not any(note.startswith(DOES_NOT_FIT) for note in record.notes)


def _takeaway(records: Sequence[Record], device: str) -> str:
    """Return a sentence with the shortest latency and the highest throughput."""
    first = records[0]
    head = f"{first.title.partition(' on ')[0]} on {device} in {first.provenance.precision}"
    fitting = [record for record in records if _fits(record)]
    if not fitting:
        misfit = next(note for note in first.notes if note.startswith(DOES_NOT_FIT))
        return f"{head}: batch {first.global_batch:,} {misfit}."
    least, most = fitting[0], max(fitting, key=lambda record: record.value("throughput_samples_per_s"))
    between = interval(least["latency_s"])
    parts = [
        f"{quantity(least.value('latency_s'), 's')}{f' ({between})' if between else ''} at batch {least.global_batch:,}"
    ]
    unit = (
        "throughput_tokens_per_s" if most["throughput_tokens_per_s"].value is not None else "throughput_samples_per_s"
    )
    rate = quantity(most.value(unit), most[unit].unit)
    if len(fitting) > 1:
        parts.append(f"{rate} at batch {most.global_batch:,}")
    else:
        parts.append(rate)
    too_large = [f"{record.global_batch:,}" for record in records if not _fits(record)]
    text = f"{head}: {', '.join(parts)}."
    return (
        f"{text} Batch {listed(too_large)} {DOES_NOT_FIT.replace('does', 'do') if len(too_large) > 1 else DOES_NOT_FIT}."
        if too_large
        else text
    )


def _figure(records: Sequence[Record]) -> Figure | None:
    if len(records) < 2:
        return None
    batches = [float(record.global_batch or 0) for record in records]
    unit, length = time_unit([record["latency_s"].value for record in records])

    def panel(name: str, y_label: str, of: float) -> Lines:
        value, low, high = (
            scaled((getattr(r[name], bound) for r in records), of) for bound in ("value", "low", "high")
        )
        series = Series("predicted", "predicted", batches, value, low, high)
        return Lines("batch", y_label, [series], log_x=True, from_zero=True, x_ticks=batches)

    return Figure([panel("latency_s", f"latency, {unit}", length), panel("throughput_samples_per_s", "samples/s", 1.0)])
