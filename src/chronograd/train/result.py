"""From the steps files of a training run to its record. Pure: the same for every backend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from chronograd import job as jobs
from chronograd.data.datasets import DatasetCard
from chronograd.errors import RunError
from chronograd.fit.noise_scale import NoiseLog
from chronograd.job import Job
from chronograd.measure import result
from chronograd.record import WARMUP, Cluster, Curve, Provenance, Quantity, Record
from chronograd.rundir import RunDir, StepLog
from chronograd.train.interruptions import Interruptions, interruptions
from chronograd.units import seconds

CLOCK = "training clock: input to update of every step; evaluation and checkpoints apart"
# Clocks of two nodes, of which the second goes on with a run, may differ by less.
LEAST_SET_BACK_S = 1.0
WITHOUT_WARMUP = f"without the first {WARMUP} steps of each start"
NOT_ASKED = Quantity.missing("sample", "training.noise_scale_every is 0")


def training_record(run: RunDir, job: Job, card: DatasetCard, stopped: str, updates: StepLog | None = None) -> Record:
    """Quantities and curves of a run whose ranks have written their steps.

    Args:
        updates: the log of all ranks together, where each step is done by one of them.
    """
    logs = {rank: run.read_steps(rank) for rank in run.ranks()}
    first = run.read_steps(0)
    if not any(e["event"] == "epoch" for e in first.events):
        raise RunError(f"{run.path} is damaged: rank 0 wrote no end of an epoch", "resume it, or train it again")
    # A rank that was killed a moment before another has a step less to do again, or has not begun its file.
    interrupted = interruptions(updates or max(logs.values(), key=lambda log: (log.redone, log.attempts)))
    epochs = [e for e in first.events if e["event"] == "epoch"]
    record = header(run, job, f"training of {job.network.name} on {job.data.name}")
    record.notes = _notes(first, interrupted, stopped)
    record.provenance.method = CLOCK
    record.provenance.stopped = stopped
    record.provenance.attempts = interrupted.starts
    record.curves = {"training": _training_curve(epochs), "loss": _loss_curve(logs, job.training.batch)}
    for name, quantity in _quantities(epochs, first, job, card).items():
        record.put(name, quantity)
    noise = _noise(logs, job, first)
    record.put("gradient_noise_scale", noise.quantity() if job.training.noise_scale_every else NOT_ASKED)
    if record["gradient_noise_scale"].n:
        record.curves["gradient_noise_scale"] = noise.curve()
    record.put("memory_peak_bytes", result.memory_quantity(run))
    record.put("wall_time_s", _wall_time(first))
    if interrupted.starts > 1:
        for name, quantity in interrupted.quantities().items():
            record.put(name, quantity)
    return record


def header(run: RunDir, job: Job, title: str) -> Record:
    """A measured record without quantities: the job, and what it ran on as rank 0 and the environment tell."""
    environment = run.environment()
    starts = [e for e in run.read_steps(0).events if e["event"] == "start"]
    place: dict[str, Any] = starts[-1] if starts else {}
    return Record(
        kind="measured",
        title=title,
        job=jobs.resolved(job),
        cluster=Cluster(
            device=job.cluster.device,
            count=job.cluster.count,
            ran_on=place.get("device_name", ""),
            threads=place.get("threads"),
        ),
        backend=job.backend,
        versions=environment.get("versions", {}),
        provenance=Provenance(environment=environment, run=run.path.name, precision=job.training.precision),
    )


def _quantities(epochs: list[result.Line], first: StepLog, job: Job, card: DatasetCard) -> dict[str, Quantity]:
    last = epochs[-1]
    total_s = float(last["seconds"])
    images = last["step"] * job.training.images_per_step
    step_times = [line["step_time_s"] for line in settled(first.steps)]
    accuracy_source = f"all {card.test_size:,} test images after epoch {last['epoch']}"
    return {
        "epoch_time_s": Quantity.of_samples([e["epoch_time_s"] for e in epochs], "s", CLOCK),
        "training_time_s": Quantity(value=total_s, unit="s", source=CLOCK),
        "test_accuracy": Quantity(value=last["test_accuracy"], unit="1", n=card.test_size, source=accuracy_source),
        "time_to_accuracy_s": _time_to_accuracy(epochs, job.training.target_accuracy),
        "epochs": Quantity(value=last["epoch"], unit="count", source="epochs trained"),
        "step_time_s": Quantity.of_samples(step_times, "s", f"rank 0, host clock, {WITHOUT_WARMUP}"),
        "throughput_samples_per_s": Quantity(
            value=images / total_s, unit="sample/s", source="all images of the run, copies too, over its training time"
        ),
    }


def settled(lines: Sequence[result.Line]) -> list[result.Line]:
    """Steps without the first of every start; the last one, where there are no others."""
    own: Counter[int] = Counter()
    kept = []
    for line in lines:
        own[line["attempt"]] += 1
        if own[line["attempt"]] > WARMUP:
            kept.append(line)
    return kept or list(lines[-1:])


def _wall_time(first: StepLog) -> Quantity:
    wall_s = first.ended - min(first.starts.values(), default=math.nan)
    if not math.isfinite(wall_s):
        return Quantity.missing("s", "the steps file does not say when its lines were written")
    return Quantity(value=wall_s, unit="s", source="rank 0, from its first line to its last, evaluation and pauses too")


def _noise(logs: dict[int, StepLog], job: Job, first: StepLog) -> NoiseLog:
    """What steps measured. Images that are drawn anew, or some of them more often than others, have no end."""
    sizes = [float(e["dataset_samples"]) for e in first.events if e["event"] == "work"]
    is_finite = job.training.augmentation.is_none and job.data.resampling == "natural"
    return NoiseLog.of_lines((log.steps for log in logs.values()), sizes[-1] if sizes and is_finite else None)


def _time_to_accuracy(epochs: list[result.Line], target: float | None) -> Quantity:
    if target is None:
        return Quantity.missing("s", "the job names no training.target_accuracy")
    for epoch in epochs:
        if (epoch["test_accuracy"] or 0.0) >= target:
            source = f"training time until the test accuracy was {target:g}, looked at after epochs"
            return Quantity(value=epoch["seconds"], unit="s", source=source)
    best = max(e["test_accuracy"] for e in epochs if e["test_accuracy"] is not None)
    return Quantity.missing("s", f"test accuracy {target:g} was not reached; the best was {best:.4f}")


def _training_curve(epochs: list[result.Line]) -> Curve:
    units = {
        "epoch": "count",
        "step": "count",
        "seconds": "s",
        "train_loss": "",
        "test_loss": "",
        "test_accuracy": "1",
    }
    return Curve(columns={name: [e[name] for e in epochs] for name in units}, units=units, source=CLOCK)


def _loss_curve(logs: dict[int, StepLog], batch: int) -> Curve:
    """Loss of every step: the mean over the global batch, from the shares of all ranks."""
    sums: dict[int, float | None] = {}
    for log in logs.values():
        for line in log.steps:
            before, loss = sums.get(line["step"], 0.0), line["loss"]
            is_known = before is not None and loss is not None
            sums[line["step"]] = before + loss * line["samples"] / batch if is_known else None
    steps = sorted(sums)
    return Curve(
        columns={"step": [float(s) for s in steps], "loss": [sums[s] for s in steps]},
        units={"step": "count", "loss": ""},
        source="training loss of each step before its update, mean over the global batch",
    )


def _notes(first: StepLog, interrupted: Interruptions, stopped: str) -> list[str]:
    notes = [str(e["text"]) for e in first.events if e["event"] in ("note", "weights")]
    for event in first.events:
        if event["event"] == "features":
            notes.append(f"the frozen trunk ran once over all images, {event['seconds']:.2f} s of the training time")
    if interrupted.starts > 1:
        notes.append(interrupted.note)
    if first.set_back_s >= LEAST_SET_BACK_S:
        back = seconds(first.set_back_s)
        notes.append(
            f"the clock was set back by {back} or more between two starts: the pause between them counts as none"
        )
    if "not finite" in stopped:
        notes.append(f"stopped early: {stopped}")
    return notes
