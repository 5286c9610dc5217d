"""The record of a training run, from its steps files. Pure: the same for every backend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.data.published import DatasetCard
from chronograd.errors import RunError
from chronograd.fit.noise_scale import NoiseLog
from chronograd.job import SHARDED, Job
from chronograd.measure import result
from chronograd.measure.utilisation import put_utilisation
from chronograd.record import WARMUP, Curve, Provenance, Quantity, Record, RecordedCluster
from chronograd.rundir import RunDir, StepLine, StepLog
from chronograd.rundir.stalls import Stalls, stalls_of
from chronograd.rundir.steps import Epoch, Features, NoteLine, Start, Weights, WorkLine
from chronograd.train.interruptions import Interruptions, interruptions
from chronograd.train.rank_command import Measuring
from chronograd.units import seconds
from chronograd.words import how_many

if TYPE_CHECKING:
    from torch import nn

CLOCK = "training clock: input to update of every step; without evaluation and checkpoints"
# If another node continues a run, the clocks of the two may differ by less.
MIN_SET_BACK_S = 1.0
WITHOUT_WARMUP = f"without the first {WARMUP} steps of each start"
NOT_ASKED = Quantity.missing("sample", "training.noise_scale_every is 0")


def training_record(
    run: RunDir,
    job: Job,
    card: DatasetCard,
    stopped: str,
    logs: Mapping[int, StepLog] | None = None,
    updates: StepLog | None = None,
) -> Record:
    """Return quantities and curves of a run whose ranks have written their steps.

    Args:
        logs: of every rank, if they were read already.
        updates: of all together, if each step is done by one of them.
    """
    logs = logs or run.logs()
    first = logs.get(0, StepLog())
    epochs = first.of(Epoch)
    if not epochs:
        raise RunError(f"{run.path} is damaged: rank 0 did not finish an epoch", "resume it, or train it again")
    # A rank that was killed a moment earlier than another repeats one step less, or has not begun its file.
    stalls = stalls_of(logs) if updates is None else Stalls()
    interrupted = interruptions(updates or max(logs.values(), key=lambda log: (log.redone, log.attempts)))
    record = header(run, job, first, f"training of {job.network.name} on {job.data.name}")
    record.notes = [*_notes(first, interrupted, stopped), *stalls.sentences()]
    record.provenance.method = CLOCK
    record.provenance.stopped = stopped
    record.provenance.attempts = interrupted.starts
    record.curves = {"training": _training_curve(epochs), "loss": _loss_curve(logs, job.training.batch)}
    for name, quantity in {**_quantities(epochs, first, job, card, stalls), **stalls.quantities()}.items():
        record.put(name, quantity)
    _put_tokens(record, job)
    noise = _noise(logs, job, first)
    record.put("gradient_noise_scale", noise.quantity() if job.training.noise_scale_every else NOT_ASKED)
    if record["gradient_noise_scale"].n:
        record.curves["gradient_noise_scale"] = noise.curve()
    record.quantities |= result.memory_quantities(logs)
    record.put("wall_time_s", wall_time(first))
    if interrupted.starts > 1:
        for name, quantity in interrupted.quantities().items():
            record.put(name, quantity)
    return record


def measured_record(run: RunDir, job: Job, ranks: str, method: result.Method, asked: Measuring) -> Record:
    """Return quantities of a run whose ranks have timed steps. `ranks`: their number and kind, in words."""
    logs = run.logs()
    is_training = job.mode == "training"
    batch = job.training.images_per_step
    what = "steps" if is_training else "inference"
    of = f"{job.network.name} on {job.data.name}" + ("" if is_training else f" at batch {batch}")
    record = header(run, job, logs[0], f"{what} of {of}, {ranks}")
    quantities_of = result.step_quantities if is_training else result.latency_quantities
    stalls = stalls_of(logs)
    steps = quantities_of(result.lines_of_ranks(logs), batch, method, stalls)
    for name, quantity in {**steps, **result.epoch_quantities(logs), **stalls.quantities()}.items():
        record.put(name, quantity)
    record.notes += stalls.sentences()
    _put_tokens(record, job)
    record.quantities |= result.memory_quantities(logs)
    if job.backend in SHARDED:
        record.put("sent_bytes", result.traffic_quantity(logs))
    put_utilisation(record, record["step_time_s"], asked.flops_per_step, logs[0].last(Start), job.training.precision)
    record.provenance.method = (
        f"{how_many(asked.timing.warmup, 'steps')} of warm-up outside the clock; {method.step_time}"
    )
    return record


def _put_tokens(record: Record, job: Job) -> None:
    if job.is_text:
        (length,) = datasets.card(job.data).shape
        record.put("throughput_tokens_per_s", result.in_tokens(record["throughput_samples_per_s"], length))


def header(run: RunDir, job: Job, first: StepLog, title: str) -> Record:
    """Return a measured record without quantities: the job, and what rank 0 and the environment report."""
    environment = run.environment()
    start = first.last(Start)
    return Record(
        kind="measured",
        title=title,
        job=jobs.resolved(job),
        cluster=RecordedCluster(
            device=job.cluster.device,
            count=job.cluster.count,
            ran_on="" if start is None else start.device_name or "",
            threads=None if start is None else start.threads,
        ),
        backend=job.backend,
        versions=environment.get("versions", {}),
        provenance=Provenance(environment=environment, run=run.path.name, precision=job.training.precision),
    )


def _quantities(
    epochs: list[Epoch], first: StepLog, job: Job, card: DatasetCard, stalls: Stalls
) -> dict[str, Quantity]:
    """Return quantities. Step time, epoch time and throughput exclude stalls; training time includes them."""
    last = epochs[-1]
    images = last.step * job.training.images_per_step
    step_times = [line.needed("step_time_s") for line in settled(first.steps) if line.step not in stalls.steps]
    ends = [0, *(e.step for e in epochs)]
    epoch_times = [
        max(0.0, e.epoch_time_s - stalls.between(before + 1, e.step)) for before, e in zip(ends, epochs, strict=False)
    ]
    without = f", without {seconds(stalls.in_steps_s)} of stalls (stall_s)" if stalls.steps else ""
    return {
        "epoch_time_s": Quantity.of_samples(epoch_times, "s", CLOCK + without),
        "training_time_s": Quantity(value=last.seconds, unit="s", source=CLOCK),
        **_scores(epochs, job, card),
        "epochs": Quantity(value=last.epoch, unit="count", source="epochs trained"),
        "step_time_s": Quantity.of_samples(step_times, "s", f"rank 0, host clock, {WITHOUT_WARMUP}{stalls.without}"),
        "throughput_samples_per_s": Quantity(
            value=images / max(last.seconds - stalls.in_steps_s, sum(step_times)),
            unit="sample/s",
            source=f"all images of the run, including copies, divided by its training time{without}",
        ),
    }


def _scores(epochs: list[Epoch], job: Job, card: DatasetCard) -> dict[str, Quantity]:
    """Return the last score on the test split and the time to its target: bits per byte of real text, else the accuracy."""
    last, training = epochs[-1], job.training
    sort = "rows of test tokens" if job.is_text else "test images"
    source = f"all {card.test_size:,} {sort} after epoch {last.epoch}"
    if card.bytes_per_token is None:
        return {
            "test_accuracy": Quantity(value=last.test_accuracy, unit="1", n=card.test_size, source=source),
            "time_to_accuracy_s": _time_to_accuracy(epochs, training.target_accuracy),
        }
    source = f"{source}, {card.bytes_per_token:.4g} bytes per token; text {card.digest}"
    return {
        "bits_per_byte": Quantity(value=last.bits_per_byte, unit="", n=card.test_size, source=source),
        "time_to_bits_per_byte_s": _time_to_bits(epochs, training.target_bits_per_byte),
    }


def settled(lines: Sequence[StepLine]) -> list[StepLine]:
    """Return steps without the first one after every start; if there are no others, the last one."""
    own: Counter[int] = Counter()
    kept = []
    for line in lines:
        own[line.attempt] += 1
        if own[line.attempt] > WARMUP:
            kept.append(line)
    return kept or list(lines[-1:])


def trained_params(network: nn.Module) -> Quantity:
    """Return the number of parameters that training changes."""
    counts = [(p.numel(), p.requires_grad) for p in network.parameters()]
    source = f"trained parameters, out of {sum(n for n, _ in counts):,}"
    return Quantity(value=sum(n for n, is_trained in counts if is_trained), unit="count", source=source)


def wall_time(first: StepLog) -> Quantity:
    wall_s = first.ended - min(first.starts.values(), default=math.nan)
    if not math.isfinite(wall_s):
        return Quantity.missing("s", "the lines of the steps file have no times")
    return Quantity(
        value=wall_s, unit="s", source="rank 0, from its first line to its last, including evaluation and pauses"
    )


def _noise(logs: Mapping[int, StepLog], job: Job, first: StepLog) -> NoiseLog:
    """Return the measured noise. Randomly augmented images, or images that repeat unequally, count as infinitely many."""
    work = first.last(WorkLine)
    is_finite = job.training.augmentation.is_none and job.data.resampling == "natural"
    population = work.dataset_samples if work is not None and is_finite else None
    return NoiseLog.of_lines((log.steps for log in logs.values()), population)


def _time_to_accuracy(epochs: list[Epoch], target: float | None) -> Quantity:
    if target is None:
        return Quantity.missing("s", "the job has no training.target_accuracy")
    for epoch in epochs:
        if (epoch.test_accuracy or 0.0) >= target:
            source = f"training time until the test accuracy was {target:g}, checked after each epoch"
            return Quantity(value=epoch.seconds, unit="s", source=source)
    best = max(e.test_accuracy for e in epochs if e.test_accuracy is not None)
    return Quantity.missing("s", f"test accuracy {target:g} was not reached; the best was {best:.4f}")


def _time_to_bits(epochs: list[Epoch], target: float | None) -> Quantity:
    if target is None:
        return Quantity.missing("s", "the job has no training.target_bits_per_byte")
    tested = [epoch for epoch in epochs if epoch.bits_per_byte is not None]
    for epoch in tested:
        if (epoch.bits_per_byte or 0.0) <= target:
            source = f"training time until the test split took {target:g} bits per byte, checked after each epoch"
            return Quantity(value=epoch.seconds, unit="s", source=source)
    best = min(epoch.bits_per_byte or 0.0 for epoch in tested)
    return Quantity.missing("s", f"{target:g} bits per byte were not reached; the best were {best:.4f}")


def _training_curve(epochs: list[Epoch]) -> Curve:
    units = {
        "epoch": "count",
        "step": "count",
        "seconds": "s",
        "train_loss": "",
        "test_loss": "",
        "test_accuracy": "1",
    }
    if epochs[-1].bits_per_byte is not None:
        units = {**{name: unit for name, unit in units.items() if name != "test_accuracy"}, "bits_per_byte": ""}
    return Curve(columns={name: [getattr(e, name) for e in epochs] for name in units}, units=units, source=CLOCK)


def _loss_curve(logs: Mapping[int, StepLog], batch: int) -> Curve:
    """Return the loss of every step: the mean over the global batch, from the shares of all ranks."""
    sums: dict[int, float] = {}
    for log in logs.values():
        for line in log.steps:
            share = line.needed("loss") * line.needed("samples") / batch
            sums[line.step] = sums.get(line.step, 0.0) + share
    return Curve(
        columns=loss_columns(sums),
        units={"step": "count", "loss": ""},
        source="training loss of each step before its update, averaged over the global batch",
    )


def loss_columns(losses: Mapping[int, float]) -> dict[str, list[float | None]]:
    """Return losses by step as columns of a curve."""
    steps = sorted(losses)
    return {"step": [float(step) for step in steps], "loss": [losses[step] for step in steps]}


def _notes(first: StepLog, interrupted: Interruptions, stopped: str) -> list[str]:
    notes = [event.text for event in first.events if isinstance(event, NoteLine | Weights)]
    for made in first.of(Features):
        notes.append(f"the frozen trunk ran once over all images, {made.seconds:.2f} s of the training time")
    if interrupted.starts > 1:
        notes.append(interrupted.note)
    if first.set_back_s >= MIN_SET_BACK_S:
        back = seconds(first.set_back_s)
        notes.append(
            f"the clock was set back by {back} or more between two starts: the pause between them counts as zero"
        )
    if "not finite" in stopped:
        notes.append(f"stopped early: {stopped}")
    return notes
