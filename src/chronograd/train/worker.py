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
from chronograd.measure import process, result
from chronograd.measure.ablations import write_ablations
from chronograd.measure.instrumentation import parameter_bytes
from chronograd.measure.memory import PeakMemory, cpu_tensor_peak_bytes
from chronograd.measure.steps import time_epochs, time_steps
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import Attempt, MemoryLine, TrafficLine, WorkLine
from chronograd.train import detection, order
from chronograd.train.communicator import communicator_of, rank0_number
from chronograd.train.forward import ForwardStep
from chronograd.train.loop import seed_everything, train
from chronograd.train.rank_command import Measuring, run_rank
from chronograd.train.rank_context import Communicator, RankContext, rank_context_from_environment
from chronograd.train.result import measured_record, trained_params, training_record
from chronograd.train.shards import own_part
from chronograd.train.step import TrainingStep
from chronograd.train.watchdog import WATCHDOG
from chronograd.words import how_many

# The most steps whose memory events are read.
MEMORY_STEPS = 40


def main(
    argv: Sequence[str] | None = None, communicator_of: Callable[[Job, int], Communicator] = communicator_of
) -> int:
    """Run one rank. Return its exit status. `communicator_of` returns the communicator that averages a job's gradients."""

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
    assert isinstance(step, TrainingStep)
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
        record.put("trained_params", trained_params(step.network))
        if isinstance(step, detection.DetectionStep):
            detection.put_precisions(record, step, dataset, place)
        record.notes += dataset.notes
        run.save_record(record)


def _measure(run: RunDir, job: Job, place: RankContext, lines: StepWriter, asked: Measuring) -> None:
    """Time steps of training, or batches of inference: wait for each of these before the next begins."""
    is_training, is_cuda = job.mode == "training", place.device.type == "cuda"
    dataset = datasets.load(job.data, job.training.seed)
    memory = PeakMemory(place.device)
    step = _start(run, job, place, dataset, lines)
    agree = partial(rank0_number, place=place)
    time_steps(step, asked.timing, lines.write, agree, is_waited_for=not is_training)
    if asked.with_epochs and is_training:
        time_epochs(step, step.steps_per_epoch, lines.write)
    if is_cuda:
        _write_memory(lines, memory, 0)
    else:
        _write_tensor_memory(lines, step)
    if place.exchange.is_sharded:
        _write_traffic(lines, step, place)
    lines.write(process.end(0))
    if isinstance(step, TrainingStep):
        _write_what_if(step, place, lines)
    lines.sync()
    place.exchange.wait(place)
    if place.is_rank_zero:
        method = _method(is_training, is_cuda)
        run.save_record(measured_record(run, job, how_many(place.world_size, "ranks"), method, asked))


def _start(
    run: RunDir, job: Job, place: RankContext, dataset: datasets.Dataset, lines: StepWriter
) -> TrainingStep | ForwardStep:
    """Return the step of this rank, and write lines about its place and its work."""
    lines.write(place.start_line())
    of_task = detection.DetectionStep if job.task == "detection" else TrainingStep
    step = (ForwardStep if job.mode == "inference" else of_task)(job, dataset, place, run.given_weights)
    seed_everything(order.random_seed(job.training.seed, 0, place.data_rank))
    params, gradient_bytes = parameter_bytes(step.network)
    lines.write(
        WorkLine(
            params=params,
            gradient_bytes=gradient_bytes,
            dataset_samples=min(dataset.card.train_size, len(dataset.train_labels)),
            rank_batch=job.training.batch / place.data_ranks,
            steps_per_epoch=step.steps_per_epoch,
        )
    )
    return step


def _write_what_if(step: TrainingStep, place: RankContext, lines: StepWriter) -> None:
    """Time steps without averaging, after all are done and saved, if the communicator can repeat a backward pass."""
    if not place.exchange.is_repeatable or not step.rank_samples:
        return
    place.exchange.wait(place)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", place.world_size))
    with step.no_sync() or contextlib.nullcontext():
        write_ablations(step.again, place.device, ranks_here, lines.write)


def _write_memory(lines: StepWriter, memory: PeakMemory, step: int) -> None:
    lines.write(MemoryLine(step=step, memory_peak_bytes=memory.peak_bytes(), source=memory.source))


def _write_tensor_memory(lines: StepWriter, step: TrainingStep | ForwardStep) -> None:
    """Run one more step, outside the clock, and record the allocator's events."""
    held = [*step.network.parameters(), *step.network.buffers()]
    if isinstance(step, TrainingStep):
        held += [v for s in step.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        held += step.averaged.state_dict().values() if step.averaged is not None else []
    is_done = _FreedOnAllRanks(step.place) if step.place.exchange.is_sharded else lambda is_freed: True
    peak = cpu_tensor_peak_bytes(lambda: step.run(0), [own_part(tensor)[0] for tensor in held], is_done)
    source = "tensors alive at once in one step, from the allocator's events; after the clock"
    lines.write(MemoryLine(memory_peak_bytes=peak, source=source))


class _FreedOnAllRanks:
    """A question: has each rank had a step that freed all that it allocated, or have MEMORY_STEPS steps passed?"""

    def __init__(self, place: RankContext) -> None:
        self._place, self._has_freed, self._left = place, False, MEMORY_STEPS

    def __call__(self, is_freed: bool) -> bool:
        self._has_freed |= is_freed
        self._left -= 1
        ranks = self._place.exchange.sum(torch.tensor(float(self._has_freed), device=self._place.device))
        return self._left == 0 or int(ranks) == self._place.world_size


def _write_traffic(lines: StepWriter, step: TrainingStep | ForwardStep, place: RankContext) -> None:
    """Run one more step, outside the clock, and record the sizes given to collectives."""
    from chronograd.measure.traffic import SentBytes  # imports torch.distributed.tensor

    with SentBytes(place.world_size) as traffic:
        step.run(0)
    source = "sizes given to the collectives of one step, each as a ring; after the clock"
    lines.write(TrafficLine(sent_bytes=traffic.total, source=source))


def _method(is_training: bool, is_cuda: bool) -> result.Method:
    step_time = "host clock, sum of parts" if is_training else "host clock"
    if not is_cuda:
        return result.Method(step_time=step_time, parts="host clock")
    return result.Method(
        step_time="CUDA events at the ends of steps without inner synchronisation"
        if is_training
        else "host clock, CUDA synchronised after each batch",
        parts="host clock, CUDA synchronised after each part; in separate steps",
    )


if __name__ == "__main__":
    sys.exit(main())
