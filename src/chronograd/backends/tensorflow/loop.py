"""The training loop of TensorFlow: the steps of an epoch, within chronograd.train.epochs."""

from __future__ import annotations

import time

from chronograd.backends.tensorflow import checkpoint
from chronograd.backends.tensorflow.prepared import Prepared
from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.measure import process
from chronograd.rundir import RunDir, StepLine, StepWriter
from chronograd.rundir.steps import NoteLine, Weights
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.epochs import scores, train_epochs


def train(step: TensorFlowStep, prepared: Prepared, run: RunDir, lines: StepWriter) -> Progress:
    """Train to the job's epochs or target accuracy, from the prepared checkpoint if there is one."""
    progress = _resume(step, prepared, lines)
    if prepared.loaded and step.ranks.is_rank_zero and progress.step == 0:
        lines.write(Weights(text=prepared.loaded))
    lines.write(process.ready(progress.step))
    train_epochs(
        progress,
        step.training,
        step.steps_per_epoch,
        lines if step.ranks.is_rank_zero else None,
        epoch=lambda: _epoch(step, lines, progress),
        evaluate=lambda: scores(*step.evaluate(), None),
        save=(lambda: checkpoint.save(run.checkpoints, step, progress)) if step.ranks.is_rank_zero else None,
    )
    return progress


def _resume(step: TensorFlowStep, prepared: Prepared, lines: StepWriter) -> Progress:
    if prepared.checkpoint is None:
        return Progress()
    progress, differences = checkpoint.restore(prepared.checkpoint, step)
    for note in (*prepared.checkpoint_notes, *differences):
        lines.write(NoteLine(step=progress.step, text=note))
    return progress


def _epoch(step: TensorFlowStep, lines: StepWriter, progress: Progress) -> tuple[float, float]:
    """Run the steps of one epoch. Return the mean loss over ranks and steps, and seconds."""
    loss_sum, last_s = 0.0, 0.0
    start = time.perf_counter()
    for index in range(progress.step, progress.step + step.steps_per_epoch):
        step.run(index)
        seconds = time.perf_counter() - start
        lines.write(
            StepLine(
                step=index + 1,
                epoch=progress.epoch + 1,
                seconds=progress.training_time_s + seconds,
                step_time_s=seconds - last_s,
                loss=step.loss,
                samples=step.rank_samples,
            )
        )
        loss_sum += step.loss * step.rank_samples
        last_s = seconds
    epoch_time_s = time.perf_counter() - start
    samples = step.steps_per_epoch * step.training.batch
    return step.ranks.sum([loss_sum])[0] / samples, epoch_time_s
