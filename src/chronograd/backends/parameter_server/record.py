"""The record of a run of asynchronous SGD, from the lines of its learners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chronograd.data.datasets import Dataset
from chronograd.job import Job
from chronograd.measure import environment, result
from chronograd.measure.result import Timing
from chronograd.measure.utilisation import put_utilisation
from chronograd.record import STEP_PARTS, Curve, Quantity, Record
from chronograd.rundir import RunDir, StepLine, StepLog
from chronograd.rundir.steps import Start, merged
from chronograd.train.result import WITHOUT_WARMUP, header, loss_columns, settled, training_record
from chronograd.words import how_many

PARTS = {
    "pull_s": "a learner's wait for the parameters of all servers",
    "compute_s": "input to gradient of one minibatch on a learner, and copying the gradient from the device",
    "push_s": "a learner's wait until all servers have applied its gradient",
}
STALENESS = "updates by others between a learner's pull and its own update, counted by server 0"
LEARNER_PARTS = "an update is made of pull_s, compute_s and push_s of one learner, while the others work on theirs"


def of_training(run: RunDir, job: Job, dataset: Dataset, stopped: str, trained: Quantity) -> Record:
    """Return a record like chronograd.train.result, with the figures of updates."""
    logs = run.logs()
    log = merged(logs.values())
    record = training_record(run, job, dataset.card, stopped, logs, log)
    lines, later = log.steps, settled(log.steps)
    record.curves["loss"] = Curve(
        columns=loss_columns({line.step: line.needed("loss") for line in lines}),
        units={"step": "count", "loss": ""},
        source="training loss of each update's minibatch, on the parameters that its learner had pulled",
    )
    told = f"time between updates, as the driver receives them, {WITHOUT_WARMUP}"
    record.put("step_time_s", Quantity.of_samples([line.needed("step_time_s") for line in later], "s", told))
    record.put("trained_params", trained)
    _put_own(record, logs, job, lines, later)
    record.notes += dataset.notes
    return record


def of_measurement(run: RunDir, job: Job, timing: Timing, flops_per_step: float | None) -> Record:
    logs = run.logs()
    lines = [line for line in merged(logs.values()).last_attempt() if line.mode is not None]
    record = header(run, job, logs[0], f"updates of {job.network.name} on {job.data.name}, {_group(job)}")
    method = "time from one update to the next on the clock of server 0; the mean is elapsed time divided by updates"
    step_time = Quantity.of_samples([line.needed("step_time_s") for line in lines], "s", method)
    record.put("step_time_s", step_time)
    for name in STEP_PARTS:
        record.put(name, Quantity.missing("s", LEARNER_PARTS))
    for name, reason in result.NOT_MEASURED.items():
        record.put(name, Quantity.missing("s" if name.endswith("_s") else "1", reason))
    rate = None if not step_time.value else job.training.images_per_step / step_time.value
    source = "minibatch divided by the time per update of all learners"
    record.put("throughput_samples_per_s", Quantity(value=rate, unit="sample/s", n=step_time.n, source=source))
    record.quantities |= result.memory_quantities(logs)
    _put_own(record, logs, job, lines, lines)
    put_utilisation(record, record["compute_s"], flops_per_step, logs[0].last(Start), job.training.precision)
    record.provenance.method = f"{timing.warmup} updates of every learner outside the clock; {method}"
    return record


def _put_own(
    record: Record, logs: Mapping[int, StepLog], job: Job, lines: Sequence[StepLine], settled: Sequence[StepLine]
) -> None:
    """Add the staleness of all updates, the parts of the settled ones, and notes on them."""
    staleness = [int(line.needed("staleness")) for line in lines]
    record.put("staleness", Quantity.of_samples(staleness, "update", STALENESS))
    for name, what in PARTS.items():
        record.put(name, Quantity.of_samples([line.needed(name) for line in settled], "s", what))
    record.tables.staleness = staleness_rows(staleness)
    record.cluster.servers = job.communication.servers
    record.notes.append(f"{_group(job)}; a step is one update by one learner, of a minibatch of {job.training.batch}")
    cores, threads = environment.cores(), record.cluster.threads or 1
    start = logs[0].last(Start)
    if start is not None and start.device == "cpu" and job.cluster.count * threads > cores:
        record.notes.append(f"{job.cluster.count} learners of {threads} threads share {cores} cores with the servers")


def staleness_rows(staleness: Sequence[int]) -> list[dict[str, Any]]:
    """Return the number of updates of each staleness."""
    counts = sorted(Counter(staleness).items())
    return [{"staleness": value, "updates": n, "share": n / len(staleness)} for value, n in counts]


def _group(job: Job) -> str:
    learners, servers = job.cluster.count, job.communication.servers
    return f"{how_many(learners, 'learners')} and {how_many(servers, 'parameter servers')}"
