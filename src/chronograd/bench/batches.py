"""Epochs with growing batches, as far as memory allows: the work and the answer of `measure batches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.errors import RunError
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.launch.jobs import PathLike
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.record import Record, Tables
from chronograd.rundir import RunDir
from chronograd.units import quantity, seconds

_UNITS = {
    "epoch_time_s": "s",
    "epoch_compute_time_s": "s",
    "throughput_samples_per_s": "sample/s",
    "memory_peak_bytes": "B",
}


def measure_batches(job: Job, batches: Sequence[int], out: PathLike | None = None, launcher: str | None = None,
                    timing: Timing | None = None) -> Answer:  # fmt: skip
    """Time an epoch at each batch, the smallest first, until one does not fit; runs lie below one run directory.

    Args:
        launcher, timing: see `jobs.measure`.

    Raises: as `jobs.measure`, except for full memory.
    """
    whole = RunDir.create(job, environment.environment(), out)
    rows: list[dict[str, Any]] = []
    last: Record | None = None
    for batch in sorted(batches):
        one = changed(job, [f"training.batch={batch}"])
        try:
            run = jobs.measure(one, timing, out=whole.path / f"batch-{batch}", with_epochs=True, launcher=launcher)
        except RunError as error:
            if "memory" not in error.message.lower():
                raise
            rows.append({"batch": batch, **dict.fromkeys(_UNITS), "reason": "memory is full"})
            break
        last = run.record()
        rows.append({"batch": batch, **{name: last[name].value for name in _UNITS}, "reason": ""})
    record = (last or Record(kind="measured", title="")).model_copy(update={"title": f"epochs of {job.network.name}"})
    record.tables = Tables(epochs=rows)
    whole.save_record(record)
    data = {"run": str(whole.path), **record.model_dump(mode="json")}
    return Answer(
        record.title,
        sections=[batches_section(record.title, rows, str(whole.path))],
        records={"epochs": record},
        data=data,
    )


def batches_section(title: str, rows: Sequence[dict[str, Any]], run: str) -> Section:
    """Return times of an epoch against the batch; a row without figures has a reason."""
    timed = [row for row in rows if row["epoch_time_s"] is not None]
    ending = f"; at {rows[-1]['batch']:,} {rows[-1]['reason']}" if rows[-1]["reason"] else ""
    takeaway = f"No epoch was timed{ending}."
    if timed:
        best = min(timed, key=lambda row: float(row["epoch_time_s"]))
        takeaway = f"An epoch is shortest at batch {best['batch']:,}, {seconds(best['epoch_time_s'])}{ending}."
    panel = Lines(
        "global batch",
        "seconds",
        [
            Series(label, "measured", [row["batch"] for row in timed], [row[name] for row in timed])
            for name, label in (("epoch_time_s", "with loading"), ("epoch_compute_time_s", "without"))
        ],
        log_x=True,
        from_zero=True,
    )
    return Section(
        title=f"{title}: the second epoch is timed; then one with the same batch throughout",
        takeaway=takeaway,
        lines=[f"run: {run}"],
        figure=Figure([panel]) if timed else None,
        table=Table(
            ("batch", "epoch, with loading", "epoch, without", "throughput", "memory", ""),
            [[str(r["batch"]), *(quantity(r[n], unit) for n, unit in _UNITS.items()), r["reason"]] for r in rows],
            set(range(5)),
        ),
        data=rows,
    )
