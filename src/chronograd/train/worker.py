"""The program of one rank: `python -m chronograd.train.worker RUN_DIR train|measure`.

Reads RANK, WORLD_SIZE, LOCAL_RANK and, with several ranks, MASTER_ADDR and MASTER_PORT. All results go into the run
directory; rank 0 writes the record once all ranks have synced their files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from chronograd.data import datasets
from chronograd.job import Job
from chronograd.measure import environment, process, result
from chronograd.measure.ablations import write_ablations
from chronograd.measure.instrumentation import parameter_bytes
from chronograd.measure.memory import PeakMemory, cpu_tensor_peak_bytes
from chronograd.measure.steps import time_epochs, time_steps
from chronograd.record import Quantity
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import Attempt, MemoryLine, WorkLine
from chronograd.train import detection, order
from chronograd.train.communicator import communicator_of, rank0_number
from chronograd.train.forward import ForwardStep
from chronograd.train.loop import seed_everything, train
from chronograd.train.rank_command import Measuring, run_rank
from chronograd.train.rank_context import Communicator, RankContext, rank_context_from_environment
from chronograd.train.result import measured_record, training_record
from chronograd.train.step import TrainingStep
from chronograd.train.watchdog import WATCHDOG


def main(
    argv: Sequence[str] | None = None, communicator_of: Callable[[Job, int], Communicator] = communicator_of
) -> int:
    """Run one rank. Return its exit status.

    `communicator_of` returns the communicator that averages a job's gradients.
    """

    def process_group(work: Callable[..., None], run: RunDir, job: Job, *asked: Measuring) -> None:
        place = rank_context_from_environment(job, communicator_of)
        with run.step_writer(place.rank) as lines:
            lines.write(Attempt())
            watch = WATCHDOG.watch(run, place.rank, place.world_size, job.cluster.timeout_s, lines)
            with watch, place.exchange.process_group(place):
                work(run, job, place, lines, *asked)

    return run_rank(argv, partial(process_group, _train), partial(process_group, _measure))


def _train(run: RunDir, job: Job, place: RankContext, lines: StepWriter) -> None:
    dataset = datasets.load(job.data, job.training.seed)
    memory = PeakMemory(place.device)
    step = _start(run, job, place, dataset, lines)
    evaluation = detection.evaluate if isinstance(step, detection.DetectionStep) else None
    progress = train(step, dataset, place, run, lines, evaluation)
    WATCHDOG.at("end", progress.step)
    _write_memory(lines, memory, progress.step)
    lines.write(process.end(progress.step))
    _write_what_if(step, place, lines)
    lines.sync()
    place.exchange.wait(place)
    if place.is_rank_zero:
        record = training_record(run, job, dataset.card, progress.stopped)
        record.put("trained_params", _trained_params(step))
        if isinstance(step, detection.DetectionStep):
            detection.put_precisions(record, step, dataset, place)
        record.notes += dataset.notes
        run.save_record(record)


def _measure_forward(run: RunDir, job: Job, place: RankContext, lines: StepWriter, asked: Measuring) -> None:
    """Time batches of inference; wait for each before the next begins."""
    dataset = datasets.load(job.data, job.training.seed)
    memory = PeakMemory(place.device)
    _write_start(place, lines)
    step = ForwardStep(job, dataset, place, run.initial_weights if run.initial_weights.exists() else None)
    seed_everything(order.random_seed(job.training.seed, 0, place.rank))
    _write_work(step.network, 0, step.order.steps_per_epoch, job, place, dataset, lines)
    time_steps(step, asked.timing, lines.write, lambda number: rank0_number(number, place), is_waited_for=True)
    if place.device.type == "cpu":
        held = [*step.network.parameters(), *step.network.buffers()]
        _write_tensor_peak(lines, cpu_tensor_peak_bytes(lambda: step.run(0), held))
    else:
        _write_memory(lines, memory, 0)
    lines.write(process.end(0))
    lines.sync()
    place.exchange.wait(place)
    if place.is_rank_zero:
        clock = "host clock" + (", CUDA synchronised after each batch" if place.device.type == "cuda" else "")
        method = result.Method(step_time=clock, parts=_method(place.device.type == "cuda").parts)
        run.save_record(measured_record(run, job, _ranks(place), method, asked))


def _measure(run: RunDir, job: Job, place: RankContext, lines: StepWriter, asked: Measuring) -> None:
    if job.mode == "inference":
        _measure_forward(run, job, place, lines, asked)
        return
    dataset = datasets.load(job.data, job.training.seed)
    memory = PeakMemory(place.device)
    step = _start(run, job, place, dataset, lines)
    time_steps(step, asked.timing, lines.write, lambda number: rank0_number(number, place))
    if asked.with_epochs:
        time_epochs(step, step.steps_per_epoch, lines.write)
    if place.device.type == "cpu":
        _write_tensor_memory(lines, step)
    else:
        _write_memory(lines, memory, 0)
    lines.write(process.end(0))
    _write_what_if(step, place, lines)
    lines.sync()
    place.exchange.wait(place)
    if place.is_rank_zero:
        run.save_record(measured_record(run, job, _ranks(place), _method(place.device.type == "cuda"), asked))


def _start(run: RunDir, job: Job, place: RankContext, dataset: datasets.Dataset, lines: StepWriter) -> TrainingStep:
    """Return the step of this rank, and write a line about its place."""
    _write_start(place, lines)
    weights = run.initial_weights if run.initial_weights.exists() else None
    step = (detection.DetectionStep if job.task == "detection" else TrainingStep)(job, dataset, place, weights)
    seed_everything(order.random_seed(job.training.seed, 0, place.rank))
    _write_work(step.network, parameter_bytes(step.network)[1], step.steps_per_epoch, job, place, dataset, lines)
    return step


def _write_start(place: RankContext, lines: StepWriter) -> None:
    is_cuda = place.device.type == "cuda"
    name = torch.cuda.get_device_name(place.device) if is_cuda else environment.processor_name()
    lines.write(process.start(str(place.device), name, torch.get_num_threads()))


def _write_work(
    network: torch.nn.Module,
    gradient_bytes: int,
    steps_per_epoch: int,
    job: Job,
    place: RankContext,
    dataset: datasets.Dataset,
    lines: StepWriter,
) -> None:
    lines.write(
        WorkLine(
            params=parameter_bytes(network)[0],
            gradient_bytes=gradient_bytes,
            dataset_samples=len(dataset.train_labels),
            rank_batch=job.training.batch / place.world_size,
            steps_per_epoch=steps_per_epoch,
        )
    )


def _ranks(place: RankContext) -> str:
    return "1 rank" if place.world_size == 1 else f"{place.world_size} ranks"


def _write_what_if(step: TrainingStep, place: RankContext, lines: StepWriter) -> None:
    """Time steps without averaging, after all steps are done and saved. Left out: communicators that count backward
    passes, and a run with nothing left to do.
    """
    if not place.exchange.is_repeatable or not step.rank_samples:
        return
    place.exchange.wait(place)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", place.world_size))
    with step.no_sync() or contextlib.nullcontext():
        write_ablations(step.again, place.device, ranks_here, lines.write)


def _trained_params(step: TrainingStep) -> Quantity:
    trained = sum(p.numel() for p in step.network.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in step.network.parameters())
    return Quantity(value=trained, unit="count", source=f"trained parameters, out of {whole:,}")


def _write_memory(lines: StepWriter, memory: PeakMemory, step: int) -> None:
    lines.write(MemoryLine(step=step, memory_peak_bytes=memory.peak_bytes(), source=memory.source))


def _write_tensor_memory(lines: StepWriter, step: TrainingStep) -> None:
    """Run one more step, outside the clock, and record the allocator's events."""
    state = [v for s in step.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    held = [*step.network.parameters(), *step.network.buffers(), *state]
    held += step.averaged.state_dict().values() if step.averaged is not None else []
    _write_tensor_peak(lines, cpu_tensor_peak_bytes(lambda: step.run(0), held))


def _write_tensor_peak(lines: StepWriter, peak: int) -> None:
    source = "tensors alive at once in one step, from the allocator's events; after the clock"
    lines.write(MemoryLine(memory_peak_bytes=peak, source=source))


def _method(is_cuda: bool) -> result.Method:
    if is_cuda:
        return result.Method(
            step_time="CUDA events at the ends of steps without inner synchronisation",
            parts="host clock, CUDA synchronised after each part; in separate steps",
        )
    return result.Method(step_time="host clock, sum of parts", parts="host clock")


if __name__ == "__main__":
    sys.exit(main())
