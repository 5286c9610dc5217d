"""A job for the scheduler from what Chronograd predicts: its speed by size, its goodput, and the work until it is done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed, with_ranks
from chronograd.plan.effort import Effort, OutOfReach, Unknown
from chronograd.plan.settings import evaluate
from chronograd.predict.scaling import is_this_processor
from chronograd.predict.speed import NUM_COEFFICIENTS, SpeedModel
from chronograd.schedule.jobs import Allocation, Phase, Pool, ScheduledJob, Speeds, best_goodput
from chronograd.schedule.workload import JobLine
from chronograd.trace import Trace
from chronograd.words import how_many

MOST_ACCUMULATION = 64
# The most GPUs of a job, and the most workers and servers of one with servers: its speed is predicted for each size.
MOST_GPUS, MOST_TASKS = 4096, 256
# Batches that a job which adapts its batch may use, times its own.
ADAPTED = (0.5, 1.0, 2.0, 4.0, 8.0)


def requested(line: JobLine) -> Allocation:
    """Return the size that a line requests. Only a job with coefficients has servers."""
    return Allocation(line.gpus, line.servers if line.coefficients and not line.job else 0)


def check_size(line: JobLine, pool: Pool) -> None:
    """Raise InputError for a job that is larger than the cluster, or than a size whose speed is predicted."""
    size = requested(line)
    most = MOST_TASKS if size.servers else MOST_GPUS
    pool.check(line.name, size)
    if max(size) > most:
        raise InputError(f"{line.name} requests {max(size):,} GPUs or servers", f"request at most {most:,} of each")


def of_job(line: JobLine, job: Job, trace: Trace, effort: Effort, device: Device, pool: Pool) -> ScheduledJob:
    """Return the job of a line of a workload.

    Its global batch is fixed. A size whose batch does not fit into memory accumulates gradients over several parts. On more nodes than
    necessary it has the speed of one GPU in each node, at most that of packed GPUs.

    Args:
        effort: the work until its target, of `effort_of`.
    Raises: InputError if the work is unknown, or not one sample fits.
    """
    if isinstance(effort, Unknown | OutOfReach):
        raise InputError(f"{line.name}: {effort.reason}", "state the column epochs")
    batch = job.training.batch
    smallest = min([batch, *(b for _, b in line.batches)])
    enough = smallest // job.training.accumulation  # each GPU needs a sample for each part of the batch
    if line.gpus > enough:
        raise InputError(
            f"{line.name} requests {how_many(line.gpus, 'GPUs')}, and its batch of {smallest:,} is enough for {enough:,}",
            "request fewer, or give a larger batch",
        )
    most = min(pool.gpus, enough, MOST_GPUS)
    rates, sigma = throughputs(trace, job, device, most)
    spread: Sequence[float] = ()
    if pool.gpus > pool.gpus_per_node > 1 and most > 1 and job.backend != "data_parallel":  # which has one node
        apart, _ = throughputs(trace, changed(job, ["cluster.per_node=1"]), device, most)
        spread = [0.0, *np.minimum(rates, apart).tolist()]
    goodput: Sequence[float] = ()
    if line.noise_scale is not None:
        by_batch = {int(times * batch): () for times in ADAPTED if times * batch >= most}
        tables = {b: throughputs(trace, _at(job, b), device, most)[0] for b in by_batch}
        goodput = best_goodput(
            [{b: rates[w] for b, rates in tables.items()} for w in range(most)], batch, line.noise_scale
        )
    phases = [
        Phase(effort.samples * epoch / (line.epochs or 1), _speeds(throughputs(trace, _at(job, b), device, most)[0]))
        for epoch, b in line.batches
    ]
    return ScheduledJob(
        line.name,
        line.arrival_s,
        effort.samples,
        _speeds(rates),
        requested(line),
        goodput,
        work_sigma=effort.sigma_log,
        speed_sigma=sigma,
        deadline_s=line.deadline_s,
        spread=spread,
        phases=phases,
    )


def _at(job: Job, batch: int) -> Job:
    """Return a job at another global batch."""
    return changed(job, [f"training.batch={batch}"])


def _speeds(rates: np.ndarray) -> Speeds:
    """Return samples per second by workers, without servers."""
    return [[0.0], *([float(rate)] for rate in rates)]


def of_duration(line: JobLine) -> ScheduledJob:
    """Return the job of a line that states only its time at the requested size. Fewer GPUs take longer in proportion."""
    assert line.duration_s is not None
    size = requested(line)
    speeds = [[count / size.workers] for count in range(size.workers + 1)]
    return ScheduledJob(line.name, line.arrival_s, line.duration_s, speeds, size, deadline_s=line.deadline_s)


def beside_others(device: Device) -> Device:
    """Return this machine's CPU as a job finds it while other jobs use the other cores; any other device unchanged.

    Only the ways of running with the most ranks at once remain, without the speed of a core whose neighbours are idle.
    """
    if not is_this_processor(device) or not device.calibration:
        return device
    rows = [
        {**row, "provenance": {**row.get("provenance", {}), "alone_share": 1.0}}
        for row in device.calibration["settings"]
    ]
    most = max(row.get("processes") or 1 for row in rows)
    beside = [row for row in rows if (row.get("processes") or 1) == most]
    return device.model_copy(update={"calibration": {**device.calibration, "settings": beside}})


def of_coefficients(line: JobLine, pool: Pool) -> ScheduledJob:
    """Return the job of a line with the coefficients of Optimus' speed model. Raises InputError."""
    is_asynchronous = len(line.coefficients) == NUM_COEFFICIENTS["asynchronous"]
    model = SpeedModel("asynchronous" if is_asynchronous else "synchronous", line.coefficients, line.batch)
    assert line.steps is not None
    most = Allocation(min(pool.gpus, MOST_TASKS), min(max(1, pool.slots), MOST_TASKS))
    return ScheduledJob.of_model(
        line.name, line.arrival_s, line.steps, model, requested(line), most, deadline_s=line.deadline_s
    )


def throughputs(trace: Trace, job: Job, device: Device, most: int) -> tuple[np.ndarray, float]:
    """Return samples per second on 1 to `most` devices at the job's global batch, shape (most,), and the largest standard
    deviation of their logarithm.

    Raises: InputError if not one sample fits into the device's memory.
    """
    per_rank = {n: -(-job.training.batch // n) for n in range(1, most + 1)}
    found, sigma, accumulation = np.full(most, np.nan), 0.0, job.training.accumulation
    while accumulation <= MOST_ACCUMULATION:
        counts = [n for n, batch in per_rank.items() if np.isnan(found[n - 1]) and batch >= accumulation]
        if not counts:
            break
        fields = [
            f"cluster.device={device.name}",
            f"cluster.count={counts[-1]}",
            f"training.accumulation={accumulation}",
        ]
        table = evaluate(
            trace, with_ranks(changed(job, fields)), [device], counts, sorted({per_rank[n] for n in counts})
        )
        for n, rank_batch, fits, step_s, spread in zip(
            table["count"],
            table["batch_per_rank"],
            table["fits"],
            table["step_time_s"],
            table["sigma_log"],
            strict=True,
        ):
            if per_rank[n] == rank_batch and fits and np.isnan(found[n - 1]):
                found[n - 1], sigma = job.training.batch / step_s, max(sigma, float(spread))
        accumulation *= 2
    if np.isnan(found).any():
        raise InputError(
            f"{trace.network} with batch {job.training.batch} does not fit on {device.title}", "give a smaller batch"
        )
    return found, sigma
