"""Strong and weak scaling: one job on growing numbers of devices, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.errors import InputError
from chronograd.job import Job, changed
from chronograd.predict.prediction import predict
from chronograd.trace import Trace

MODES = ("strong", "weak")


def scaling_table(
    trace: Trace, job: Job, counts: Sequence[int], mode: str = "strong", **options: Any
) -> list[dict[str, Any]]:
    """A row per count: `count`, `nodes`, `batch_per_rank`, `step_time_s`, `throughput_samples_per_s`, `speed_up`,
    `efficiency`, `communication_exposed_s`, `usd_per_million_samples` (None without a price).

    Speed-up is the throughput over that of one device, efficiency the speed-up over the count.

    Args:
        counts: numbers of devices, each at least 1.
        mode: `strong` keeps the job's global batch B, so a rank has ⌈B/n⌉ samples; `weak` keeps the batch of a rank,
            which is the job's batch over its count of devices.
        options: of `predict`, such as `algorithm`.
    Raises: InputError for another mode or no counts; JobError where a rank would have no sample.
    """
    if mode not in MODES or not counts or min(counts) < 1:
        raise InputError(
            f"{mode} scaling to {list(counts)}", "choose strong or weak, and one or more counts, such as 1,2,4,8"
        )
    per_rank = -(-job.training.batch // job.cluster.count)

    def row(count: int) -> dict[str, Any]:
        batch = job.training.batch if mode == "strong" else per_rank * count
        record = predict(trace, changed(job, [f"cluster.count={count}", f"training.batch={batch}"]), **options)
        throughput = record.value("throughput_samples_per_s")
        price = record["cost_usd_per_hour"].value
        return {
            "count": count,
            "nodes": record.cluster["nodes"],
            "batch_per_rank": record.cluster["batch_per_rank"],
            "step_time_s": record.value("step_time_s"),
            "throughput_samples_per_s": throughput,
            "communication_exposed_s": record.value("communication_exposed_s"),
            "usd_per_million_samples": None if price is None else price / 3600 / throughput * 1e6,
        }

    alone = row(1)["throughput_samples_per_s"]
    return [
        found | {"speed_up": (speed_up := found["throughput_samples_per_s"] / alone), "efficiency": speed_up / count}
        for count, found in zip(counts, map(row, counts), strict=True)
    ]
