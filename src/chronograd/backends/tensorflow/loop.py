"""Training on TensorFlow: epochs of steps, then evaluation, then a checkpoint, as chronograd.train.loop does it."""

from __future__ import annotations

import math
import time

from chronograd.backends.tensorflow import checkpoint
from chronograd.backends.tensorflow.checkpoint import Progress
from chronograd.backends.tensorflow.prepared import Prepared
from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.rundir import RunDir, StepWriter


def train(step: TensorFlowStep, prepared: Prepared, run: RunDir, lines: StepWriter) -> Progress:
    """Train to the job's epochs or target accuracy, from the checkpoint that was found, if there was one."""
    progress = _resume(step, prepared, lines)
    training, is_first = step.training, step.ranks.is_first
    if prepared.loaded and is_first and progress.step == 0:
        lines.write(event="weights", step=0, text=prepared.loaded)
    while not progress.stopped:
        train_loss, epoch_time_s = _epoch(step, lines, progress)
        progress.step += step.steps_per_epoch
        progress.epoch += 1
        progress.training_time_s += epoch_time_s
        test_loss, test_accuracy = None, None
        is_last = progress.epoch >= training.epochs or not math.isfinite(train_loss)
        if is_last or progress.epoch % training.evaluate_every == 0:
            test_loss, test_accuracy = step.evaluate()
        if test_accuracy is not None and test_accuracy > (progress.best_accuracy or -1.0):
            progress.best_accuracy, progress.best_epoch = test_accuracy, progress.epoch
        progress.stopped = _why_stop(progress, training.epochs, training.target_accuracy, train_loss, test_accuracy)
        if not is_first:
            continue
        lines.write(
            event="epoch",
            step=progress.step,
            epoch=progress.epoch,
            seconds=progress.training_time_s,
            epoch_time_s=epoch_time_s,
            train_loss=train_loss,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )
        if progress.stopped or progress.epoch % training.checkpoint_every == 0:
            lines.sync()
            checkpoint.save(run.checkpoints, step, progress)
    return progress


def _resume(step: TensorFlowStep, prepared: Prepared, lines: StepWriter) -> Progress:
    if prepared.checkpoint is None:
        return Progress()
    progress, differences = checkpoint.restore(prepared.checkpoint, step)
    for note in (*prepared.checkpoint_notes, *differences):
        lines.write(event="note", step=progress.step, text=note)
    return progress


def _epoch(step: TensorFlowStep, lines: StepWriter, progress: Progress) -> tuple[float, float]:
    """The steps of one epoch. Returns the mean loss over ranks and steps, and seconds."""
    loss_sum, last_s = 0.0, 0.0
    start = time.perf_counter()
    for index in range(progress.step, progress.step + step.steps_per_epoch):
        step.run(index)
        seconds = time.perf_counter() - start
        lines.write(
            step=index + 1,
            epoch=progress.epoch + 1,
            seconds=progress.training_time_s + seconds,
            step_time_s=seconds - last_s,
            loss=step.loss,
            samples=step.rank_samples,
        )
        loss_sum += step.loss * step.rank_samples
        last_s = seconds
    epoch_time_s = time.perf_counter() - start
    samples = step.steps_per_epoch * step.training.batch
    return step.ranks.sum([loss_sum])[0] / samples, epoch_time_s


def _why_stop(
    progress: Progress, epochs: int, target_accuracy: float | None, train_loss: float, test_accuracy: float | None
) -> str:
    if target_accuracy is not None and test_accuracy is not None and test_accuracy >= target_accuracy:
        return "the target accuracy was reached"
    if not math.isfinite(train_loss):
        return f"the loss of epoch {progress.epoch} is not finite; a lower training.learning_rate may help"
    return "all epochs were trained" if progress.epoch >= epochs else ""
