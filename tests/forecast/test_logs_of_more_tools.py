"""Logs in the forms of further tools, with the right curve of each. All follow the two curves below."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.forecast import forecast_answer
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.pace import pace_of

NUM = 8
EPOCHS = range(1, NUM + 1)


def loss(epoch: float) -> float:
    return round(0.2 + 2 / (epoch + 1), 4)


def accuracy(epoch: float) -> float:
    return round(0.9 - 0.6 / (epoch + 1), 4)


def stamp(seconds: float) -> str:
    return f"{datetime(2026, 3, 1, 10) + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S},000"


def wenet() -> Iterable[str]:
    """`Batch 3/100` is batch 100 of epoch 3, and the words before cv_loss are not its name."""
    for e in range(NUM):
        yield f"{stamp(300 * e)} INFO Epoch {e} TRAIN info lr 0.002"
        for b in (0, 100):
            yield f"{stamp(300 * e)} DEBUG TRAIN Batch {e}/{b} loss {2 * loss(e):f} loss_att 9.1 lr 0.002 rank 0"
        yield f"{stamp(300 * e)} DEBUG CV Batch {e}/0 loss 9.5 loss_att 9.7 history loss 9.9 rank 0"
        yield f"{stamp(300 * e + 290)} INFO Epoch {e} CV info cv_loss {loss(e + 1)}"


def paddleocr() -> Iterable[str]:
    """The best so far is no point."""
    for e in EPOCHS:
        yield f"[2026/01/07 22:{e:02d}:00] ppocr INFO: epoch: [{e}/9], global_step: {9 * e}, lr: 0.1, acc: 0.99, loss: 3.1"
        yield "eval model:: 100%|██████████| 12/12 [00:02<00:00,  5.12it/s]"
        yield f"[2026/01/07 22:{e:02d}:03] ppocr INFO: cur metric, acc: {accuracy(e)}, norm_edit_dis: 0.9, fps: 1600.1"
        yield f"[2026/01/07 22:{e:02d}:03] ppocr INFO: best metric, acc: 0.95, norm_edit_dis: 0.9, best_epoch: 1"


def ml_agents() -> Iterable[str]:
    """A full stop follows the counter."""
    for e in EPOCHS:
        yield f"[INFO] Crawler. Step: {5000 * e}. Time Elapsed: {120 * e}.25 s. Mean Reward: {accuracy(e)}. Std of Reward: 0.5. Training."


def composer() -> Iterable[str]:
    """`time/epoch` counts epochs."""
    for e in EPOCHS:
        yield f"[epoch={e}][batch=1/390]:"
        for name, value in {"time/epoch": e - 1, "time/batch": 390 * e - 389, "time/sample": 128 * e}.items():
            yield f"\t Train {name}: {value}"
        yield f"\t Train metrics/train/MulticlassAccuracy: {accuracy(e) / 2}"
        yield "[Eval batch=79/79] Eval on eval data:"
        yield f"\t Eval metrics/eval/CrossEntropy: {loss(e)}"
        yield f"\t Eval metrics/eval/MulticlassAccuracy: {accuracy(e)}"


def sentence_transformers() -> Iterable[str]:
    """The step is -1 at the end of an epoch."""
    yield "epoch,steps,cosine_pearson,cosine_spearman"
    for row in EPOCHS:
        yield f"{(row - 1) // 2},{500 if row % 2 else -1},0.5,{accuracy(row)}"


def h2o() -> Iterable[str]:
    """The duration is since the start, and its unit changes."""
    yield ",duration,number_of_trees,training_rmse,validation_rmse"
    for e in EPOCHS:
        s = 25 * e
        yield f"{e}, {f'{s}.000 sec' if s < 60 else f'{s // 60} min {s % 60:02d}.000 sec'},{5 * e}.0,0.1,{loss(e)}"


def matlab() -> Iterable[str]:
    rule = "|" + "=" * 84 + "|"
    yield "Training on single GPU."
    yield rule
    yield "|  Epoch  |  Iteration  |  Time Elapsed  |  Mini-batch  |  Validation  |  Validation  |  Base Learning  |"
    yield "|         |             |   (hh:mm:ss)   |   Accuracy   |   Accuracy   |     Loss     |      Rate       |"
    yield rule
    for i in range(1, 2 * NUM + 1):
        held_out = f"{100 * accuracy(i // 2):.2f}% | {loss(i // 2)}" if i % 2 == 0 else " | "
        yield f"| {1 + i // 9} | {10 * i} | 00:{i:02d}:00 | 99.10% | {held_out} | 1.0000e-03 |"
    yield rule


def gaussian_splatting() -> Iterable[str]:
    """Time stamps of other lines do not show when a bar was drawn."""
    yield "Reading camera 185/185 [03/03 10:04:13]"
    for e in EPOCHS:
        yield f"\rTraining progress:  23%|██▎       | {100 * e}/30000 [00:{4 * e:02d}<13:10, 29.1it/s, Loss={loss(e)}]"
        if e == 4:
            yield "\n[ITER 400] Saving Gaussians [03/03 10:08:41]"


def pygcn() -> Iterable[str]:
    """`time` is the duration of each epoch."""
    for e in EPOCHS:
        yield f"Epoch: {e:04d} loss_train: 1.9 acc_train: 0.99 loss_val: 1.2 acc_val: {accuracy(e)} time: {0.0123 + 0.0001 * (e % 3):.4f}s"
    yield "Test set results: loss= 0.7412 accuracy= 0.8330"


def nnunet() -> Iterable[str]:
    for e in range(NUM):
        yield f"{stamp(90 * e)}: Epoch {e} "
        yield f"{stamp(90 * e)}: Current learning rate: {round(0.01 * (1 - e / 1000) ** 0.9, 5)} "
        yield f"{stamp(90 * e + 88)}: train_loss -0.9 "
        yield f"{stamp(90 * e + 88)}: val_loss {-accuracy(e + 1)} "
        yield f"{stamp(90 * e + 88)}: Epoch time: 88.50 s "
        yield f"{stamp(90 * e + 88)}: Yayy! New best EMA pseudo Dice: 0.5"


def object_detection() -> Iterable[str]:
    """A dictionary on several lines, printed twice."""
    for e in EPOCHS:
        yield f"INFO:tensorflow:Step {100 * e} per-step time 0.318s"
        for before in ("INFO:tensorflow:", "I0605 08:29:04.604903 139701982308224 model_lib_v2.py:701] "):
            yield f"{before}{{'Loss/box_loss': 0.12,\n 'Loss/total_loss': {loss(e)},\n 'learning_rate': 0.04}}"


def pytorch_cifar() -> Iterable[str]:
    """The count is written over the bar; the second bar of an epoch is that of the test."""
    for e in range(NUM):
        yield f"\nEpoch: {e}"
        for total, result in ((391, accuracy(e + 1) / 2), (100, accuracy(e + 1))):
            for count in (1, total // 2, total):
                at = f"{100 * result * (1 if count == total else 0.5)}% ({count}/{100 * total})"
                end = "\r" if count < total else ""
                yield f" [====>...]  Step: 38ms | Tot: {count // 8}s0ms | Loss: 0.5 | Acc: {at}       \b\b\b\b {count}/{total} {end}"


def pytorch_cifar100() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Training Epoch: {e} [128/50000]\tLoss: 0.7\tLR: 0.1"
        yield f"epoch {e} training time consumed: 32.00s"
        yield f"Test set: Epoch: {e}, Average loss: 0.0071, Accuracy: {accuracy(e)}, Time consumed:3.21s"


def ms_swift() -> Iterable[str]:
    """The loss is the result of a language model, not the accuracy of its tokens."""
    for e in EPOCHS:
        yield json.dumps(
            {"eval_loss": loss(e), "eval_token_acc": accuracy(e), "global_step/max_steps": f"{e}/9", "epoch": e}
        )


def mxnet() -> Iterable[str]:
    """The rate is printed when it drops."""
    for e in range(NUM):
        if e in (3, 6):
            yield f"INFO:root:Update[{390 * e + 1}]: Change learning rate to {5e-3 if e == 3 else 5e-4:.5e}"
        yield f"INFO:root:Epoch[{e}] Time cost=35.2"
        yield f"INFO:root:Epoch[{e}] Validation-accuracy={accuracy(e + 1)}"


def speeds_before_names() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Train Epoch: {e} 812.5/s, 812.5/s/gpu LR: 0.1 120 img/s loss: {loss(e)}"


def saved_after_evaluations() -> Iterable[str]:
    """A sentence repeats the iteration after each evaluation, and an epoch has 372 iterations."""
    for e in EPOCHS:
        for i in (400 * e - 200, 400 * e):
            yield f"{stamp(i)} [TRAIN] epoch: {1 + i // 372}, iter: {i}/4000, loss: 1.1"
        yield f"{stamp(400 * e)} [EVAL] #Images: 500 mIoU: {accuracy(e)} Kappa: 0.5"
        yield f"{stamp(400 * e)} [EVAL] The best model was saved at iter {400 * e}."


LOSS, ACCURACY = loss(NUM), accuracy(NUM)
# Name to ask for; column, unit, last step and value; seconds of a unit.
LOGS: dict[Callable[[], Iterable[str]], tuple[str | None, str, str, float, float, float | None]] = {
    wenet: ("cv_loss", "cv_loss", "epoch", NUM, LOSS, 300),
    paddleocr: ("eval/acc", "eval/acc", "epoch", NUM, ACCURACY, 60),
    ml_agents: ("Mean Reward", "Mean Reward", "step", 5000 * NUM, ACCURACY, 120 / 5000),
    composer: ("metrics/eval/MulticlassAccuracy", "metrics/eval/MulticlassAccuracy", "epoch", NUM, ACCURACY, None),
    sentence_transformers: ("cosine_spearman", "cosine_spearman", "row", NUM, ACCURACY, None),
    h2o: ("validation_rmse", "validation_rmse", "step", 5 * NUM, LOSS, 5),
    matlab: ("validation accuracy", "Validation Accuracy", "step", 20 * NUM, ACCURACY, 6),
    gaussian_splatting: ("loss", "Loss", "step", 100 * NUM, LOSS, 0.04),
    pygcn: ("acc_val", "acc_val", "epoch", NUM, ACCURACY, 0.0124),
    nnunet: ("val_loss", "val_loss", "epoch", NUM, -ACCURACY, 89.5),
    object_detection: ("Loss/total_loss", "Loss/total_loss", "step", 100 * NUM, LOSS, 0.318),
    pytorch_cifar: ("Acc", "test/Acc", "epoch", NUM, ACCURACY, 48),
    pytorch_cifar100: ("Accuracy", "Accuracy", "epoch", NUM, ACCURACY, 32),
    ms_swift: (None, "eval_loss", "epoch", NUM, LOSS, None),
    mxnet: ("Validation-accuracy", "Validation-accuracy", "epoch", NUM, ACCURACY, 35.2),
    saved_after_evaluations: ("mIoU", "mIoU", "step", 400 * NUM, ACCURACY, 1),
    speeds_before_names: (None, "loss", "epoch", NUM, LOSS, None),
}


def read(lines: Iterable[str], folder: Path, metric: str | None, to: str | None = None) -> LearningCurve:
    lines = list(lines)
    path = folder / ("log.csv" if "," in lines[0] and "{" not in lines[0] else "log.txt")
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return forecast_answer.read(path, metric, to)


@pytest.mark.parametrize("lines", LOGS, ids=lambda lines: lines.__name__)
def test_read_as_the_tool_means_it(lines: Callable[[], Iterable[str]], tmp_path: Path) -> None:
    metric, column, unit, last_step, last, each = LOGS[lines]
    curve = read(lines(), tmp_path, metric)
    assert (curve.column, curve.unit, len(curve.steps)) == (column, unit, NUM)
    assert curve.steps[-1] == pytest.approx(last_step)
    assert curve.shown(curve.values[-1]) == pytest.approx(last, abs=1e-6)
    pace = pace_of(curve.steps, curve.times, curve.steps[-1])
    assert (None if pace is None else pace.seconds) == (None if each is None else pytest.approx(each, rel=0.03))


def test_notes_state_the_assumptions(tmp_path: Path) -> None:
    assert (
        "steps is -1 in 4 rows, so the rows are numbered"
        in read(sentence_transformers(), tmp_path, "cosine_spearman").notes
    )
    assert "the second one is read as the test" in " ".join(read(pytorch_cifar(), tmp_path, "Acc").notes)
    assert (
        "acc is of training: --metric eval/acc forecasts the held-out data" in read(paddleocr(), tmp_path, "acc").notes
    )


def test_drops_that_are_printed_are_drops(tmp_path: Path) -> None:
    assert read(mxnet(), tmp_path, "Validation-accuracy").schedule.drops[:2] == (3, 6)


def test_single_values_with_time_stamps_are_of_one_epoch(tmp_path: Path) -> None:
    assert "from column Current learning rate" in read(nnunet(), tmp_path, "val_loss").schedule_told


def test_a_file_for_each_epoch(tmp_path: Path) -> None:
    for e in (*range(8, 12), *range(8)):  # in the order of their numbers, not of their names
        row = {
            "epoch": e,
            "training_duration": f"0:0{e + 1 if e < 9 else 9}:{0 if e < 9 else (e - 8) * 15:02d}.5",
            "validation_accuracy": accuracy(e + 1),
        }
        (tmp_path / f"metrics_epoch_{e}.json").write_text(json.dumps(row))
    (tmp_path / "metrics.json").write_text(json.dumps({"best_epoch": 1}))
    curve = forecast_answer.read(tmp_path, "validation_accuracy", None)
    assert curve.shown(curve.values).tolist() == pytest.approx([accuracy(e) for e in range(1, 13)])
    pace = pace_of(curve.steps[:8], None if curve.times is None else curve.times[:8], 8.0)
    assert pace is not None
    assert pace.seconds == pytest.approx(60, rel=0.02)


def test_a_folder_without_a_log_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(InputError) as refusal:
        forecast_answer.read(tmp_path, None, None)
    assert "progress.csv" in str(refusal.value.hint)


def test_a_rate_of_success_takes_a_percentage(tmp_path: Path) -> None:
    lines = ["step,eval_rewards/success,eval_rewards/accuracies"]
    lines += [f"{e},{accuracy(e)},{accuracy(e)}" for e in EPOCHS]
    for metric in ("eval_rewards/success", "eval_rewards/accuracies"):
        assert read(lines, tmp_path, metric, "85%").metric == "accuracy"
    with pytest.raises(InputError, match="a return of 85%"):
        forecast_answer.level("85%", "return")


def test_a_loss_below_zero_is_forecast(tmp_path: Path) -> None:
    """The curve -0.9 + 1 / (k + 1) reaches -0.88 at step 49 and goes on below the values so far."""
    lines = ["epoch,val_loss", *(f"{k},{-0.9 + 1 / (k + 1)}" for k in range(1, 31))]
    curve = read(lines, tmp_path, "val_loss")
    assert curve.shown(curve.values) == pytest.approx([-0.9 + 1 / (k + 1) for k in range(1, 31)])
    assert curve.fitted(curve.shown(curve.values)) == pytest.approx(curve.values)
    made = forecast(curve, family="inverse", target=forecast_answer.level("-0.88", curve.metric), at=[100])
    assert made.reached is not None
    assert made.reached.step == pytest.approx(49, abs=1)
    assert made.at[-1].value == pytest.approx(-0.9 + 1 / 101, abs=1e-3)
    assert np.isfinite([made.at[-1].low, made.at[-1].high]).all()
    with pytest.raises(InputError, match=r"a target loss of -0.1"):
        forecast(read(["epoch,loss", *(f"{k},{loss(k)}" for k in EPOCHS)], tmp_path, "loss"), target=-0.1)
