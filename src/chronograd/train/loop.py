"""The training loop of PyTorch: the steps of an epoch, within chronograd.train.epochs.

Written for one rank; `place.exchange` does nothing there. The training clock includes the one pass of a frozen trunk
whose features are stored, and excludes the measurement of the gradient noise scale.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from chronograd.data.datasets import Dataset
from chronograd.errors import FileFormatError
from chronograd.measure import process
from chronograd.rundir import RunDir, StepLine, StepWriter
from chronograd.rundir.steps import Features, NoteLine, Weights
from chronograd.train import checkpoint, checkpoint_folder, order
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.communicator import rank0_number, share_buffers
from chronograd.train.epochs import scores, train_epochs
from chronograd.train.inputs import in_chunks
from chronograd.train.noise_scale import GradientNoise
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep
from chronograd.train.watchdog import GRADIENTS, WATCHDOG

# On CUDA, reading a loss waits for the device, so losses are read and written together at this interval.
WRITE_EVERY_S = 0.5


# Returns loss and accuracy on the test split.
Evaluation = Callable[[TrainingStep, Dataset, RankContext], tuple[float, float]]


def train(
    step: TrainingStep,
    dataset: Dataset,
    place: RankContext,
    run: RunDir,
    lines: StepWriter,
    evaluation: Evaluation | None = None,
) -> Progress:
    """Train to the job's epochs or target accuracy, from the newest sound checkpoint if there is one.

    Args:
        evaluation: replaces the one of classifiers and language models.
    """
    test = evaluation or evaluate
    progress = _resume(step, place, run, lines)
    if step.loaded and place.is_rank_zero and progress.step == 0:
        lines.write(Weights(text=step.loaded))
    if step.has_features and place.is_rank_zero:
        lines.write(Features(step=progress.step, seconds=step.setup_s))
    if progress.step == 0:
        progress.training_time_s = step.setup_s
    if step.training.noise_scale_every:
        step.noise = GradientNoise(step)
    lines.write(process.ready(progress.step))
    train_epochs(
        progress,
        step.training,
        step.steps_per_epoch,
        lines if place.is_rank_zero else None,
        epoch=lambda: _epoch(step, place, lines, progress),
        evaluate=lambda: scores(*test(step, dataset, place), dataset.card.bytes_per_token),
        save=(lambda: checkpoint.save(run.checkpoints, step, progress))
        if place.is_rank_zero or place.exchange.is_sharded
        else None,
    )
    return progress


def _resume(step: TrainingStep, place: RankContext, run: RunDir, lines: StepWriter) -> Progress:
    """Restore the checkpoint that rank 0 chooses, on all ranks. Only the notes of rank 0 are stored."""
    newest, _, notes = checkpoint_folder.newest_sound(run.checkpoints if place.is_rank_zero else None)
    number = int(newest.name.removeprefix("step-")) if newest is not None else 0
    number = rank0_number(number, place)
    if number == 0:
        return Progress()
    chosen = run.checkpoints / f"step-{number:08d}"
    progress, differences = checkpoint.restore(chosen, step)
    for note in (*notes, *differences):
        lines.write(NoteLine(step=number, text=note))
    if progress.step != number or progress.step != progress.epoch * step.steps_per_epoch:
        raise FileFormatError(f"checkpoint {chosen} is not of this job: it is at step {progress.step}")
    return progress


def _epoch(step: TrainingStep, place: RankContext, lines: StepWriter, progress: Progress) -> tuple[float, float]:
    """Run the steps of one epoch. Return the mean loss over ranks and steps, and seconds."""
    seed_everything(order.random_seed(step.training.seed, progress.epoch, place.data_rank))
    log = _LossLog(lines, place, progress)
    start = time.perf_counter()
    for index in range(progress.step, progress.step + step.steps_per_epoch):
        parts = step.run(index)
        start += parts.get("noise_scale_s", 0.0)
        log.add(index + 1, step.loss.detach(), step.rank_samples, time.perf_counter() - start, parts)
    log.flush()
    epoch_time_s = time.perf_counter() - start
    WATCHDOG.at("end of the epoch", progress.step + step.steps_per_epoch)
    weighted = torch.tensor(log.loss_sum, dtype=torch.float64, device=place.device)
    samples = step.steps_per_epoch * step.training.batch
    return place.exchange.sum(weighted).item() / samples, epoch_time_s


@torch.no_grad()
def evaluate(step: TrainingStep, dataset: Dataset, place: RankContext) -> tuple[float, float]:
    """Return mean cross-entropy (without label smoothing) and accuracy, equal on every rank.

    All ranks use the running means of rank 0. Chunks go to the ranks in turn. If the job has a running mean of the
    weights, that is evaluated.
    """
    share_buffers(step.network if step.averaged is None else step.averaged, place)
    network = step.evaluated.eval()
    loss_sum, num_correct = 0.0, 0
    labels_N = dataset.test_labels_N
    samples = np.arange(len(labels_N))
    mine = samples[samples // step.chunk % place.data_ranks == place.data_rank]
    try:
        for chunk, seen in in_chunks(step.test_input, mine, place.device, step.chunk):
            targets_N = labels_N[torch.from_numpy(chunk)].to(place.device)
            with step.arithmetic(), _meeting(place):
                logits_NK = network(seen).float()
            if logits_NK.ndim == 3:
                logits_NK, targets_N = logits_NK.flatten(0, 1), targets_N.flatten()
            loss_sum += functional.cross_entropy(logits_NK, targets_N, reduction="sum").item()
            num_correct += int((logits_NK.argmax(dim=1) == targets_N).sum())
        if place.exchange.meets_in_forward:
            _run_as_often(step, network, len(mine), len(labels_N))
    finally:
        step.train_mode()
    counted = [loss_sum, num_correct] if place.is_counted else [0.0, 0.0]
    sums = torch.tensor(counted, dtype=torch.float64, device=place.device)
    loss_sum, correct = place.exchange.sum(sums).tolist()
    return loss_sum / labels_N.numel(), correct / labels_N.numel()


def _run_as_often(step: TrainingStep, network: torch.nn.Module, num_own: int, num_samples: int) -> None:
    """Run the network on one sample until this rank has run it as often as the rank with the most chunks."""
    place, chunk = step.place, step.chunk
    chunks, own = (math.ceil(count / chunk) for count in (num_samples, num_own))
    for _ in range(math.ceil(chunks / place.data_ranks) - own):
        _, seen = next(in_chunks(step.test_input, np.zeros(1, np.int64), place.device))
        with step.arithmetic(), _meeting(place):
            network(seen)


def _meeting(place: RankContext) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this rank waits for the others, if ranks exchange tensors in forward."""
    collective = place.exchange.meets_in_forward
    return WATCHDOG.waiting(collective) if collective else contextlib.nullcontext()


def seed_everything(seed: int) -> None:
    """Seed the generators of torch, NumPy and Python, because a network may use any of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class _LossLog:
    """A writer of one line per step: its loss on this rank, the training clock at its end, and its parts.

    On CUDA the clock is the host's, which runs ahead of the device within a group of steps.
    """

    def __init__(self, lines: StepWriter, place: RankContext, progress: Progress) -> None:
        self.loss_sum = 0.0
        self._lines, self._progress = lines, progress
        self._is_cuda = place.device.type == "cuda"
        self._pending: list[tuple[int, torch.Tensor, int, float, dict[str, Any]]] = []
        self._last_s = self._written_s = 0.0

    def add(self, step: int, loss: torch.Tensor, samples: int, seconds: float, parts: dict[str, Any]) -> None:
        self._pending.append((step, loss, samples, seconds, parts))
        if not self._is_cuda or seconds - self._written_s > WRITE_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Read and write the losses since the last flush. On CUDA this waits for them."""
        waiting = WATCHDOG.waiting(GRADIENTS, is_counted=False) if self._is_cuda else contextlib.nullcontext()
        with waiting:
            losses = torch.stack([loss for _, loss, *_ in self._pending]).tolist() if self._pending else []
        for (step, _, samples, seconds, parts), loss in zip(self._pending, losses, strict=True):
            self.loss_sum += loss * samples
            self._lines.write(
                StepLine(
                    step=step,
                    epoch=self._progress.epoch + 1,
                    seconds=self._progress.training_time_s + seconds,
                    step_time_s=seconds - self._last_s,
                    loss=loss,
                    samples=samples,
                    **parts,
                )
            )
            self._last_s = self._written_s = seconds
        self._pending.clear()
