"""The epochs of a run, for every framework: steps, then evaluation, then a checkpoint. Never imports torch.

The training clock covers input, transfer, forward, backward and update, but not evaluation and checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from chronograd.job import Training
from chronograd.rundir.steps import Epoch, NoteLine, StepWriter
from chronograd.train.checkpoint_folder import ALL_EPOCHS, Progress
from chronograd.train.watchdog import WATCHDOG

Scores = tuple[float, float | None, float | None]


def scores(loss: float, accuracy: float, bytes_per_token: float | None) -> Scores:
    """Return loss, accuracy and bits per byte. Real text has the latter instead of an accuracy; others have no bytes per token."""
    if bytes_per_token is None:
        return loss, accuracy, None
    return loss, None, loss / math.log(2) / bytes_per_token


def train_epochs(
    progress: Progress,
    training: Training,
    steps_per_epoch: int,
    lines: StepWriter | None,
    *,
    epoch: Callable[[], tuple[float, float]],
    evaluate: Callable[[], Scores],
    save: Callable[[], object] | None,
) -> None:
    """Train to the job's epochs or its target, and update `progress`.

    Args:
        lines: where rank 0 writes the results of each epoch; None on other ranks.
        epoch: runs the steps of one epoch; returns the mean training loss over ranks and steps, and seconds.
        evaluate: returns the scores on the test split; see `scores`. `save`: writes a checkpoint, or
            this rank's part of one; None on ranks that write none.
    """
    note = progress.go_on(training.epochs)
    if note and lines is not None:
        lines.write(NoteLine(step=progress.step, text=note))
    while not progress.stopped:
        train_loss, epoch_time_s = epoch()
        progress.step += steps_per_epoch
        progress.epoch += 1
        progress.training_time_s += epoch_time_s
        test_loss, test_accuracy, bits = None, None, None
        is_last = progress.epoch >= training.epochs or not math.isfinite(train_loss)
        if is_last or progress.epoch % training.evaluate_every == 0:
            WATCHDOG.at("evaluation", progress.step)
            test_loss, test_accuracy, bits = evaluate()
        if test_accuracy is not None and test_accuracy > (progress.best_accuracy or -1.0):
            progress.best_accuracy, progress.best_epoch = test_accuracy, progress.epoch
        progress.stopped = _why_stop(progress, training, train_loss, test_accuracy, bits)
        if lines is not None:
            lines.write(
                Epoch(
                    step=progress.step,
                    epoch=progress.epoch,
                    seconds=progress.training_time_s,
                    epoch_time_s=epoch_time_s,
                    train_loss=train_loss,
                    test_loss=test_loss,
                    test_accuracy=test_accuracy,
                    bits_per_byte=bits,
                )
            )
            lines.sync()
        if save is not None and (progress.stopped or progress.epoch % training.checkpoint_every == 0):
            WATCHDOG.at("checkpoint", progress.step)
            save()


def _why_stop(
    progress: Progress, training: Training, train_loss: float, test_accuracy: float | None, bits: float | None
) -> str:
    target = training.target_accuracy
    if target is not None and test_accuracy is not None and test_accuracy >= target:
        return "the target accuracy was reached"
    if training.target_bits_per_byte is not None and bits is not None and bits <= training.target_bits_per_byte:
        return "the target of bits per byte was reached"
    if not math.isfinite(train_loss):
        return f"the loss of epoch {progress.epoch} is not finite; a lower training.learning_rate may help"
    return ALL_EPOCHS if progress.epoch >= training.epochs else ""
