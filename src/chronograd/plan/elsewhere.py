"""Predicted time and dollars of a training run on other clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chronograd import job as jobs
from chronograd.answer import Section, Table
from chronograd.figure import SERIES_COLORS, Figure, Lines
from chronograd.hardware import catalog
from chronograd.job import Job, changed, resolved, steps_per_epoch
from chronograd.plan.settings import evaluate
from chronograd.predict.memory import reserve_bytes
from chronograd.predict.prediction import likely_by, put_run
from chronograd.quantities import series_of
from chronograd.record import DOES_NOT_FIT, Provenance, Quantity, Record, RecordedCluster
from chronograd.trace import Trace
from chronograd.units import dollars, quantity, seconds
from chronograd.words import device, interval, reasons, time_unit

ByDevice = dict[str, dict[int, Record]]
# An old GPU and three newer generations, from one device to two nodes.
DEVICES = ("k80-gk210", "v100", "a100-40", "h100")
COUNTS = (1, 2, 4, 8, 16)
# Twice the devices must give at least this speedup to count as faster.
_WORTH = 1.05


def elsewhere(
    trace: Trace, job: Job, samples: int, devices: Sequence[str] = DEVICES, counts: Sequence[int] = COUNTS
) -> list[Record]:
    """Return predicted records of a job at its global batch for each count of each device: time, memory and cost, without
    parts.

    Args:
        samples: training samples in an epoch.
        counts: device counts; those above the samples of a step are skipped. A job that does not fit in memory gets a reason
            and no time.

    Raises: InputError as `evaluate`, and for a batch larger than the number of samples.
    """
    fields = ["backend=ddp"] if job.backend == "single" else []
    shares = {
        n: changed(job, [f"cluster.count={n}", *fields]).images_per_rank for n in counts if n <= job.training.batch
    }
    batches = sorted(set(shares.values()))
    table = evaluate(trace, changed(job, ["cluster.count=1", *fields]), devices, list(shares), batches)
    records = []
    for row in np.flatnonzero([shares[n] == b for n, b in zip(table["count"], table["batch_per_rank"], strict=True)]):
        values = {name: column[row].item() for name, column in table.items()}
        name, count = devices[values["device"]], values["count"]
        cluster = [f"cluster.device={name}", f"cluster.count={count}", *(fields if count > 1 else ())]
        records.append(_record(trace, jobs.scaled(changed(job, cluster)), values, samples))
    return records


def _record(trace: Trace, job: Job, values: dict[str, float], samples: int) -> Record:
    device, step_s, memory = catalog.device(job.cluster.device), values["step_time_s"], values["memory_bytes"]
    likely = likely_by("calibration or datasheet", values["sigma_log"])
    record = Record(
        kind="predicted",
        title=f"{trace.network} on {job.cluster.count} × {device.title}",
        job=resolved(job),
        cluster=RecordedCluster(device=device.name, title=device.title, count=job.cluster.count),
        backend=job.backend,
        provenance=Provenance(predicted_from=f"trace of {trace.network}", sigma_log=values["sigma_log"]),
    )
    put_run(record, job, device, likely, steps_per_epoch(samples, job.training.batch), step_s)
    record.put("step_time_s", likely(step_s, "s"))
    record.put("throughput_samples_per_s", likely(job.training.images_per_step / step_s, "sample/s"))
    record.put("memory_peak_bytes", Quantity(value=memory, unit="B", source="lifetimes in the trace"))
    if memory + reserve_bytes(device) > device.usable_bytes:
        needed, reserve = quantity(memory, "B"), quantity(reserve_bytes(device), "B")
        why = f"{DOES_NOT_FIT}: a rank needs {needed} in addition to {reserve} for the framework"
        for name in ("epoch_time_s", "training_time_s", "cost_usd"):
            record.put(name, Quantity.missing(record[name].unit, why))
    return record


def plan_section(records: Sequence[Record]) -> Section:
    """Plot training time and cost against the number of devices, one line per device."""
    grouped = _by_device(records)
    unit, length = time_unit(r["training_time_s"].value for r in records)
    panels = [
        _panel(grouped, "training_time_s", f"training time, {unit}", length),
        _panel(grouped, "cost_usd", "cost, US dollars", 1.0),
    ]
    panels = [p for p in panels if any(v is not None for s in p.series for v in s.y)]
    return Section(
        title="Time and cost on other devices",
        intro="The same training run, with the same number of steps, predicted for other devices.",
        figure=Figure(panels) if panels else None,
        caption="Lines and bands: predicted, 80 % interval. Both axes are logarithmic.",
        table=_table(grouped),
        takeaway=_takeaway(records),
        data=[_data_row(r) for devices in grouped.values() for _, r in sorted(devices.items())],
    )


def _by_device(records: Sequence[Record]) -> ByDevice:
    grouped: ByDevice = {}
    for record in records:
        grouped.setdefault(record.device, {})[record.world] = record
    return grouped


def _panel(grouped: ByDevice, name: str, label: str, length: float) -> Lines:
    series = [
        series_of(by_count, name, device_name, "predicted", length, SERIES_COLORS[i % len(SERIES_COLORS)])
        for i, (device_name, by_count) in enumerate(grouped.items())
    ]
    ticks = sorted({float(n) for by_count in grouped.values() for n in by_count})
    return Lines("devices", label, series, log_x=True, log_y=True, x_ticks=ticks)


def _table(grouped: ByDevice) -> Table:
    counts = sorted({n for by_count in grouped.values() for n in by_count})
    rows = []
    for device_name, by_count in grouped.items():
        row = [device_name]
        for n in counts:
            record = by_count.get(n)
            time, cost = (record["training_time_s"].value, record["cost_usd"].value) if record else (None, None)
            row.append(f"{quantity(time, 's')}\n{quantity(cost, 'usd')}")
        rows.append(row)
    labelled = [(device(r), r) for by_count in grouped.values() for r in by_count.values()]
    notes = reasons(labelled, ("training_time_s", "cost_usd"))
    return Table(("device", *(f"{n} ×" for n in counts)), rows, set(range(1, len(counts) + 1)), notes)


def _data_row(record: Record) -> dict[str, str]:
    time, cost = record["training_time_s"], record["cost_usd"]
    return {
        "cluster": device(record),
        "training time": quantity(time.value, time.unit),
        "time, 80 % interval": interval(time),
        "cost": quantity(cost.value, cost.unit),
        "cost, 80 % interval": interval(cost),
        "price per hour": quantity(record["cost_usd_per_hour"].value, "usd"),
        "peak memory of a rank": quantity(record["memory_peak_bytes"].value, "B"),
    }


def _takeaway(records: Sequence[Record]) -> str:
    timed = [r for r in records if r["training_time_s"].value]
    if not timed:
        why = next((r["training_time_s"].reason for r in records), "no clusters were given")
        return f"No training time could be predicted ({why})."
    fastest = min(timed, key=lambda r: r.value("training_time_s"))
    fast_s = fastest.value("training_time_s")
    fast = f"{device(fastest)} is predicted fastest at {seconds(fast_s)}"
    priced = [r for r in timed if r["cost_usd"].value is not None]
    if not priced:
        return f"{fast}; no cluster has a price, so costs are not known{_useless(timed)}."
    cheapest = min(priced, key=lambda r: (r.value("cost_usd"), r.value("training_time_s")))
    cheap_s, cheap_usd = cheapest.value("training_time_s"), cheapest.value("cost_usd")
    fast_usd = fastest["cost_usd"].value
    if cheapest is fastest:
        return f"{fast} and also cheapest at {dollars(cheap_usd)}{_useless(timed)}."
    cheap = f"{device(cheapest)} is predicted cheapest at {dollars(cheap_usd)} and {seconds(cheap_s)}"
    if fast_usd is None:
        return f"{cheap}; {fast}, at an unknown price{_useless(timed)}."
    times = f", {cheap_s / fast_s:.3g} times the speed"
    money = f" for {fast_usd / cheap_usd:.3g} times the money ({dollars(fast_usd)})" if cheap_usd else ""
    return f"{cheap}; {fast}{times}{money}{_useless(timed)}."


def _useless(timed: Sequence[Record]) -> str:
    """Name the devices for which the largest count is no faster than a smaller one."""
    stalled = []
    for name, by_count in _by_device(timed).items():
        times = {n: r.value("training_time_s") for n, r in by_count.items()}
        last = max(times)
        enough = min((n for n in times if times[n] <= _WORTH * min(times.values())), default=last)
        if enough < last:
            stalled.append(f"{enough} {name}")
    return f"; more than {' or '.join(stalled)} would be no faster" if stalled else ""
