"""Logs in the forms that other tools print, with the right curve of each. All follow the two curves below."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from chronograd.errors import InputError
from chronograd.forecast import forecast_answer
from chronograd.forecast.log_rows import MAX_LINES
from chronograd.forecast.pace import pace_of

NUM = 8
EPOCHS = range(1, NUM + 1)
BEGAN = datetime(2026, 3, 1, 10)
UNIX = 1_772_359_200


def loss(epoch: float) -> float:
    return round(0.2 + 2 / (epoch + 1), 4)


def accuracy(epoch: float) -> float:
    return round(0.9 - 0.6 / (epoch + 1), 4)


LOSS, ACCURACY = loss(NUM), accuracy(NUM)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Right:
    """The right curve: its column, the unit and place of its last point, its value there, and seconds of a unit if it has times."""

    column: str
    unit: str
    last_step: float
    last: float
    points: int = NUM
    seconds: float | None = None
    metric: str | None = None
    to: str | None = None
    note: str = ""
    rate: str = ""
    name: str = "log.txt"


LOGS: list[tuple[Callable[[], str], Right]] = []


def log(right: Right) -> Callable[[Callable[[], Iterable[str]]], Callable[[], Iterable[str]]]:
    """Register a function that yields the lines of a log."""

    def add(lines: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
        def text() -> str:
            return "\n".join(lines()) + "\n"

        text.__name__ = lines.__name__
        LOGS.append((text, right))
        return lines

    return add


# -- image classification --------------------------------------------------------------------------------------


@log(Right("test/Acc@1", "epoch", NUM, ACCURACY))
def imagenet_example() -> Iterable[str]:
    yield "=> creating model 'resnet18'"
    for e in EPOCHS:
        for i in (1, 2501, 5001):
            yield (
                f"Epoch: [{e - 1}][{i:4d}/5005]\tTime  0.310 (  0.320)\tData  0.001 (  0.010)\tLoss {loss(e):.4e} ({loss(e):.4e})\t"
                "Acc@1  47.68 ( 47.68)\tAcc@5  80.00 ( 80.00)"
            )
        yield "Test: [  1/196]\tTime  3.151 (  3.151)\tLoss 1.2e+00 (1.2e+00)\tAcc@1  12.00 ( 12.00)"
        yield f" *   Acc@1 {100 * accuracy(e):.3f} Acc@5 99.000"


@log(Right("val/Acc@1", "epoch", NUM, ACCURACY))
def imagenet_example_without_test_lines() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Epoch: [{e - 1}][10/5005]\tTime  0.310 (  0.320)\tLoss {loss(e):.4e} (6.0e+00)\tAcc@1  47.68 ( 47.68)"
        yield f"Epoch: [{e - 1}][2500/5005]\tTime  0.310 (  0.320)\tLoss {loss(e):.4e} (6.0e+00)\tAcc@1  47.68 ( 47.68)"
        yield f" * Acc@1 {100 * accuracy(e):.3f} Acc@5 99.000"


@log(Right("acc1", "epoch", NUM, ACCURACY))
def header_above_a_row_with_a_label() -> Iterable[str]:
    for e in EPOCHS:
        yield f"epoch {e}"
        yield "           acc1     acc5"
        yield f"validated  {accuracy(e):.4f}   0.9900"


@log(Right("test/Acc@1", "epoch", NUM, ACCURACY, seconds=1200))
def torchvision_references() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f"Epoch: [{e - 1}]  [   0/5005]  eta: 1:02:03  lr: 0.1  img/s: 12.31  loss: {loss(e)} ({loss(e)})  "
            "acc1: 3.1250 (3.1250)  acc5: 9.3750 (9.3750)  time: 0.7531  data: 0.5312  max mem: 3120"
        )
        yield f"Epoch: [{e - 1}] Total time: 0:20:00"
        yield "Test:   [  0/196]  eta: 0:01:00  loss: 1.2 (1.2)  acc1: 12.0 (12.0)  time: 0.3  data: 0.2  max mem: 3120"
        yield f"Test:  Acc@1 {100 * accuracy(e):.3f} Acc@5 99.000"


@log(Right("Acc@1", "epoch", NUM, ACCURACY))
def timm_console() -> Iterable[str]:
    for e in EPOCHS:
        for i in (0, 50):
            yield (
                f"Train: {e - 1} [{i:4d}/1251 (  4%)]  Loss: {loss(e):#.3g} ({loss(e):#.3g})  Time: 0.512s, 500.00/s  (0.512s,  500.00/s)  "
                "LR: 1.000e-02  Data: 0.010 (0.010)"
            )
        yield "Test: [   0/48]  Time: 1.1 (1.1)  Loss:   1.20 ( 1.20)  Acc@1:  12.00 ( 12.00)  Acc@5:  90.00 ( 90.00)"
        yield f"Test: [  48/48]  Time: 0.1 (0.2)  Loss:   1.20 ( 1.20)  Acc@1:  50.00 ({100 * accuracy(e):8.4f})  Acc@5:  90.00 ( 90.00)"


@log(Right("Accuracy", "epoch", NUM, ACCURACY))
def mnist_example() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Train Epoch: {e} [0/60000 (0%)]\tLoss: {loss(e - 1)}"
        yield f"Train Epoch: {e} [30000/60000 (50%)]\tLoss: {loss(e)}"
        yield f"\nTest set: Average loss: 0.0521, Accuracy: {round(10_000 * accuracy(e))}/10000 (98%)\n"


@log(Right("val/Acc", "epoch", NUM, ACCURACY))
def pytorch_tutorial() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Epoch {e - 1}/24"
        yield "----------"
        yield f"train Loss: {loss(e)} Acc: 0.5000"
        yield f"val Loss: 1.2000 Acc: {accuracy(e)}\n"
    yield "Training complete in 12m 3s"
    yield "Best val Acc: 0.999000"


# -- detection -------------------------------------------------------------------------------------------------


def yolo(train: str, classes: str, rows: Callable[[int], Iterable[str]]) -> Iterable[str]:
    for e in EPOCHS:
        yield train
        yield f"      {e}/50      2.61G      1.480      1.180      1.090         12        640: 100%|██████████| 62/62 [00:20<00:00,  3.1it/s]"
        yield f"{classes}: 100%|██████████| 4/4 [00:01<00:00,  3.2it/s]"
        yield from rows(e)


@log(Right("mAP50", "epoch", NUM, ACCURACY, seconds=20))
def yolov8_console() -> Iterable[str]:
    return yolo(
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)",
        lambda e: [
            f"                   all        128        929      0.640      0.537      {accuracy(e)}      0.061",
            "                person        128        254      0.640      0.537      0.999      0.999",
        ],
    )


@log(Right("mAP50", "epoch", NUM, ACCURACY, seconds=20))
def yolov5_console() -> Iterable[str]:
    return yolo(
        "     Epoch   gpu_mem       box       obj       cls    labels  img_size",
        "               Class     Images     Labels          P          R     mAP@.5 mAP@.5:.95",
        lambda e: [f"                 all        128        929      0.640      0.537      {accuracy(e)}      0.061"],
    )


@log(Right("loss", "step", NUM, LOSS, seconds=3.2))
def darknet() -> Iterable[str]:
    for e in EPOCHS:
        yield f" {e}: {loss(e)}, 3.123456 avg loss, 0.001000 rate, 3.200000 seconds, {64 * e} images, 12.1 hours left"
        yield "Loaded: 0.000054 seconds"


@log(Right("val/mAP", "epoch", NUM, ACCURACY, seconds=100))
def paddle_detection() -> Iterable[str]:
    for e in EPOCHS:
        for i in (0, 20):
            yield (
                f"[{at(100 * (e - 1) + i):%m/%d %H:%M:%S}] ppdet.engine INFO: Epoch: [{e - 1}] [{i:2d}/100] learning_rate: 0.001000 "
                f"loss: {loss(e):.6f} eta: 0:12:01 batch_cost: 0.3012 data_cost: 0.0102 ips: 26.6 images/s"
            )
        yield f" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = {accuracy(e)}"
        yield " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.999"


@log(Right("eval/top1", "epoch", NUM, ACCURACY))
def paddle_clas() -> Iterable[str]:
    for e in EPOCHS:
        yield f"[Train][Epoch {e}/120][Iter: 10/1252]lr(LinearWarmup): 0.00130000, top1: 0.10000, CELoss: {loss(e)}, loss: {loss(e)}"
        yield f"[Eval][Epoch {e}][Avg]CELoss: 5.00000, loss: 5.00000, top1: {accuracy(e)}, top5: 0.99000"


@log(Right("total_loss", "step", 20 * NUM - 1, LOSS, seconds=1, metric="total_loss"))
def detectron2_console() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f"[{at(20 * e):%m/%d %H:%M:%S} d2.utils.events]:  eta: 0:10:00  iter: {20 * e - 1}  total_loss: {loss(e)}  loss_cls: 0.9  "
            "time: 0.9971  data_time: 0.0123  lr: 0.00025  max_mem: 3120M"
        )


# -- text ------------------------------------------------------------------------------------------------------


@log(Right("valid/loss", "epoch", NUM, LOSS))
def fairseq_old() -> Iterable[str]:
    for e in EPOCHS:
        yield f"| epoch {e:03d} | loss 11.201 | nll_loss 10.1 | ppl 1100.2 | wps 12345 | ups 1.2 | wpb 3500 | num_updates {100 * e} | lr 0.0005"
        yield f"| epoch {e:03d} | valid on 'valid' subset | loss {loss(e)} | nll_loss 8.1 | ppl 274.4 | num_updates {100 * e}"


@log(Right("valid/loss", "epoch", NUM, LOSS, metric="valid/loss", seconds=60))
def fairseq() -> Iterable[str]:
    for e in EPOCHS:
        stamp = f"{at(60 * e):%Y-%m-%d %H:%M:%S} | INFO |"
        yield f"{stamp} train_inner | epoch {e:03d}:    50 / 100 loss=11.2, nll_loss=10.1, ppl=1100.2, wps=1234, ups=1.2, num_updates={100 * e - 50}, lr=0.0005"
        yield f"{stamp} valid | epoch {e:03d} | valid on 'valid' subset | loss {loss(e)} | nll_loss 8.1 | ppl 274.4 | num_updates {100 * e}"


@log(Right("valid/loss", "epoch", NUM, LOSS, seconds=60, rate="constant"))
def fairseq_with_means_of_epochs() -> Iterable[str]:
    for e in EPOCHS:
        stamp = f"{at(60 * e):%Y-%m-%d %H:%M:%S} | INFO |"
        for i in (25, 50, 75):
            yield f"{stamp} train_inner | epoch {e:03d}:    {i} / 100 loss=11.2, num_updates={100 * e - 100 + i}, lr=0.0005"
        yield f"{stamp} valid | epoch {e:03d} | valid on 'valid' subset | loss {loss(e)} | num_updates {100 * e} | best_loss 1"
        yield f"{stamp} train | epoch {e:03d} | loss 11.1 | num_updates {100 * e} | lr 0.0005 | train_wall 50"


@log(Right("valid/acc", "epoch", NUM, ACCURACY, metric="acc", seconds=4800))
def espnet() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f"[host] {at(4800 * e):%Y-%m-%d %H:%M:%S},450 (trainer:338) INFO: {e}epoch results: [train] loss_ctc=90.1, acc=0.111, loss=9.2, "
            f"time=1 hour, 19 minutes and 54.41 seconds, total_count={500 * e}, [valid] loss_ctc=88.2, acc={accuracy(e)}, loss=8.2, "
            "time=1 minute and 56.46 seconds, total_count=13, [att_plot] time=4.54 seconds, total_count=0"
        )


@log(Right("train/time", "epoch", NUM, 4794.41, metric="train/time", to="5000"))
def durations_with_and() -> Iterable[str]:
    for e in EPOCHS:
        yield f"{e}epoch results: [train] acc=0.1, time=1 hour, 19 minutes and 54.41 seconds, [valid] acc={accuracy(e)}, n=1"


@log(Right("validation/loss", "epoch", NUM, LOSS, seconds=600))
def icefall_with_ranks() -> Iterable[str]:
    for e in EPOCHS:
        for b in (0, 50):
            yield (
                f"{at(600 * e - 600 + b):%Y-%m-%d %H:%M:%S},123 INFO [train.py:850] (0/4) Epoch {e}, batch {b}, loss[loss=7.1, "
                "simple_loss=14.2, over 4821.00 frames. ], tot_loss[loss=7.0, simple_loss=14.1, over 9440.21 frames. ], batch size: 30, lr: 3.00e-03"
            )
        yield f"{at(600 * e):%Y-%m-%d %H:%M:%S},789 INFO [train.py:883] (0/4) Epoch {e}, validation: loss={loss(e)}, simple_loss=2.1, over 11.00 frames. "


@log(Right("tot_loss", "epoch", NUM - 0.5, LOSS, metric="tot_loss", points=2 * NUM))
def icefall_total() -> Iterable[str]:
    for e in EPOCHS:
        for b in (0, 50):
            yield f"INFO [train.py:850] (3/4) Epoch {e}, batch {b}, loss[loss=7.1, over 48.00 frames.], tot_loss[loss={loss(e)}, over 944.21 frames.]"


@log(Right("val/acc", "epoch", NUM, ACCURACY))
def both_splits_in_a_line() -> Iterable[str]:
    for e in EPOCHS:
        yield f"epoch {e} | train: loss 0.5, acc 0.8 | val: loss 0.6, acc {accuracy(e)}"


@log(Right("TAG_ACC", "step", 200 * NUM, ACCURACY))
def spacy() -> Iterable[str]:
    yield "ℹ Pipeline: ['tok2vec', 'tagger']"
    yield "ℹ Initial learn rate: 0.001"
    yield "E    #       LOSS TOK2VEC  LOSS TAGGER  TAG_ACC  SCORE "
    yield "---  ------  ------------  -----------  -------  ------"
    for e in EPOCHS:
        yield f"{e // 4:3d}  {200 * e:6d}  {loss(e):12.2f}  {45.8:11.2f}  {100 * accuracy(e):7.4f}  {0.99:6.2f}"


@log(Right("avg.loss", "row", NUM, LOSS, metric="loss", note="no column counts epochs or steps"))
def fasttext() -> Iterable[str]:
    yield "Read 10M words"
    yield "Number of words:  71290"
    for e in EPOCHS:
        yield f"\rProgress:  {10 * e:.1f}% words/sec/thread:   12345 lr:  0.045000 avg.loss:  {loss(e)} ETA:   0h 1m"


@log(Right("eval_loss", "epoch", NUM / 2, LOSS, points=NUM // 2, rate="linear", seconds=100))
def trainer_console() -> Iterable[str]:
    for e in EPOCHS:
        yield f" {10 * e}%|█         | {50 * e}/500 [{e * 50 // 60:02d}:{e * 50 % 60:02d}<08:10,  1.00it/s]"
        yield str(
            {
                "loss": f"{loss(e)}",
                "grad_norm": "1.2",
                "learning_rate": f"{1e-3 * (1 - e / 10):.2e}",
                "epoch": f"{e / 2}",
            }
        )
        if e % 2 == 0:
            yield "100%|██████████| 25/25 [00:03<00:00,  8.00it/s]"
            yield str({"eval_loss": f"{loss(e)}", "eval_runtime": "3.1", "epoch": f"{e / 2}"})


@log(Right("loss", "epoch", NUM / 30, LOSS, seconds=150, rate="linear", name="trainer_log.jsonl"))
def llama_factory() -> Iterable[str]:
    for e in EPOCHS:
        row = {"current_steps": 10 * e, "total_steps": 300, "loss": loss(e), "lr": 1e-4 * (1 - e / 30), "epoch": e / 30,
               "percentage": 3.33, "elapsed_time": f"0:00:{5 * e:02d}", "remaining_time": "0:02:20"}  # fmt: skip
        yield json.dumps(row)


@log(Right("loss", "epoch", NUM / 100, LOSS))
def axolotl() -> Iterable[str]:
    yield "[2026-03-01 09:59:00,000] [INFO] [axolotl.train.log:61] [PID:123] [RANK:0] Starting trainer..."
    for e in EPOCHS:
        yield str(
            {
                "loss": loss(e),
                "grad_norm": 0.5,
                "learning_rate": 2e-4,
                "ppl": 2.5,
                "memory/max_active (GiB)": 12.3,
                "epoch": e / 100,
            }
        )


@log(Right("loss", "epoch", NUM - 1, LOSS, points=2 * NUM - 1))
def icefall() -> Iterable[str]:
    """Batches have no total, and each epoch has two rows of 100 batches."""
    for e in range(1, NUM + 1):
        for batch in (0, 50)[: 1 + (e < NUM)]:
            yield f"Epoch {e}, batch {batch}, batch size: 30, loss[loss={loss(e)}, simple_loss=0.3, over 100 frames.], lr: 1.0e-03"


@log(Right("Loss", "epoch", NUM, LOSS, seconds=60))
def open_clip() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f"{at(60 * e):%Y-%m-%d,%H:%M:%S} | INFO | Train Epoch: {e - 1} [ 4096/4096 (100%)] Data (t): 0.103 Batch (t): 0.521, 2000/s "
            f"LR: 0.000500 Logit Scale: 14.200 Contrastive_loss: 3.0 (3.0) Loss: {loss(e)} ({loss(e)})"
        )


@log(Right("loss", "step", 10 * NUM, LOSS, seconds=0.989, rate=""))
def nanochat() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f"step {10 * e:05d}/21400 (0.05%) | loss: {loss(e):.6f} | lrm: 1.00 | dt: 989.44ms | tok/sec: 529,882 | mfu: 74.13 | "
            f"total time: {0.98944 * 10 * e / 60:.2f}m"
        )


@log(Right("lm loss", "step", 100 * NUM, LOSS, seconds=0.6, metric="loss"))
def megatron() -> Iterable[str]:
    for e in EPOCHS:
        yield (
            f" iteration {100 * e:8d}/  500000 | consumed samples: {25600 * e:12d} | elapsed time per iteration (ms): 600.1 | "
            f"learning rate: 6.000000E-05 | global batch size:   256 | lm loss: {loss(e):.6E} | loss scale: 1.0 |"
        )


@log(Right("loss", "step", 10 * NUM, LOSS, seconds=0.5, rate="constant"))
def deepspeed() -> Iterable[str]:
    for e in EPOCHS:
        yield f"[{at(5 * e):%Y-%m-%d %H:%M:%S},123] [INFO] [logging.py:96:log_dist] [Rank 0] step={10 * e}, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]"
        yield f"steps: {10 * e} loss: {loss(e)} iter time (s): 0.501 samples/sec: 12.345"


@log(Right("accuracy", "step", 100 * NUM, ACCURACY, seconds=0.3))
def clu_of_jax() -> Iterable[str]:
    for e in EPOCHS:
        yield f"I{at(30 * e):%m%d %H:%M:%S}.123456 140000 logging_writer.py:48] [{100 * e}] accuracy={accuracy(e)}, loss={loss(e)}"


# -- reinforcement learning --------------------------------------------------------------------------------------


@log(Right("Mean reward", "step", 10 * NUM, 10 * NUM, metric="return", seconds=1.26))
def rsl_rl() -> Iterable[str]:
    for e in EPOCHS:
        yield "#" * 80
        yield f"                      Learning iteration {10 * e}/1500                       \n"
        yield "                       Computation: 51234 steps/s (collection: 1.023s, learning 0.234s)"
        yield "             Mean action noise std: 0.92"
        yield f"                       Mean reward: {10 * e:.2f}"
        yield "               Mean episode length: 431.12"
        yield "-" * 80
        yield f"                   Total timesteps: {98304 * e}"
        yield "                    Iteration time: 1.26s"
        yield f"                        Total time: {12.6 * e:.2f}s"
        yield "                               ETA: 1234.5s\n"


@log(Right("rollout/ep_rew_mean", "step", 2048 * NUM, 10 * NUM, metric="return", seconds=1 / 2048))
def stable_baselines3_console() -> Iterable[str]:
    yield "Using cpu device"
    for e in EPOCHS:
        yield "-" * 35
        yield "| rollout/           |            |"
        yield "|    ep_len_mean     | 21.3       |"
        yield f"|    ep_rew_mean     | {10 * e:<10} |"
        yield "| time/              |            |"
        yield "|    fps             | 1234       |"
        yield f"|    iterations      | {e:<10} |"
        yield f"|    time_elapsed    | {e:<10} |"
        yield f"|    total_timesteps | {2048 * e:<10} |"
        yield "| train/             |            |"
        yield "|    loss            | 6.52       |"
        yield "-" * 35


@log(Right("rollout/ep_rew_mean", "step", 2048 * NUM, 10 * NUM, metric="return", seconds=2 / 2048, name="progress.csv"))
def stable_baselines3_csv() -> Iterable[str]:
    yield "time/iterations,time/fps,time/total_timesteps,time/time_elapsed,rollout/ep_len_mean,rollout/ep_rew_mean,train/loss"
    for e in EPOCHS:
        yield f"{e},1024,{2048 * e},{2 * e},21.3,{10.0 * e},{6.5 if e > 1 else ''}"


@log(Right("r", "episode", NUM, 20 * NUM, metric="r", to="200", seconds=0.5, name="monitor.csv"))
def stable_baselines3_monitor() -> Iterable[str]:
    yield '#{"t_start": 1767000000.5, "env_id": "CartPole-v1"}'
    yield "r,l,t"
    for e in EPOCHS:
        yield f"{20.0 * e},{20 * e},{0.5 * e:.6f}"


# -- log formats and other libraries --------------------------------------------------------------------------------


@log(Right("eval_accuracy", "epoch", 2 * NUM, ACCURACY, seconds=60))
def mlperf() -> Iterable[str]:
    yield ':::MLLOG {"namespace": "", "time_ms": 1767000000000, "event_type": "POINT_IN_TIME", "key": "seed", "value": 1, "metadata": {}}'
    for e in EPOCHS:
        line = {"namespace": "", "time_ms": 1767000000000 + 120_000 * e, "event_type": "POINT_IN_TIME", "key": "eval_accuracy",
                "value": accuracy(e), "metadata": {"file": "train.py", "lineno": 99, "epoch_num": 2 * e}}  # fmt: skip
        yield f":::MLLOG {json.dumps(line)}"


@log(Right("train.loss", "epoch", NUM, LOSS, points=2 * NUM, seconds=20))
def dllogger() -> Iterable[str]:
    yield 'DLLL {"timestamp": "1767000000.1", "elapsedtime": "0.1", "type": "LOG", "step": "PARAMETER", "data": {"lr": 0.1}}'
    for e in EPOCHS:
        for i in (100, 200):
            time = 20 * (e - 1) + i / 10
            line = {"timestamp": f"{UNIX + time}", "elapsedtime": f"{time}", "type": "LOG", "step": [e - 1, i],
                    "data": {"train.loss": loss(e - 1 + i / 200)}}  # fmt: skip
            yield f"DLLL {json.dumps(line)}"


@log(Right("accuracy", "step", 1000 * (NUM - 1), ACCURACY, seconds=0.06))
def caffe() -> Iterable[str]:
    def stamp(seconds: float, place: str) -> str:
        return f"I{at(seconds):%m%d %H:%M:%S}.123456 12345 {place}]"

    for e in EPOCHS:
        now = 60 * (e - 1)
        yield f"{stamp(now, 'solver.cpp:330')} Iteration {1000 * (e - 1)}, Testing net (#0)"
        yield f"{stamp(now, 'solver.cpp:397')}     Test net output #0: accuracy = {accuracy(e)}"
        yield f"{stamp(now, 'solver.cpp:397')}     Test net output #1: loss = 1.234 (* 1 = 1.234 loss)"
        yield f"{stamp(now, 'solver.cpp:218')} Iteration {1000 * (e - 1)} (16.6 iter/s, 6s/100 iters), loss = {loss(e)}"
        yield f"{stamp(now, 'solver.cpp:237')}     Train net output #0: loss = {loss(e)} (* 1 = {loss(e)} loss)"
        yield f"{stamp(now, 'sgd_solver.cpp:105')} Iteration {1000 * (e - 1)}, lr = 0.01"


@log(Right("TrainingLoss", "step", 100 * NUM, LOSS, seconds=0.37, rate="constant"))
def caffe_table() -> Iterable[str]:
    yield "#Iters Seconds TrainingLoss LearningRate"
    for e in EPOCHS:
        yield f"{100 * e:<7}{37.0 * e:.6f} {loss(e):.4f} 0.0001"


@log(Right("Validation-accuracy", "epoch", NUM, ACCURACY, seconds=12.3))
def mxnet() -> Iterable[str]:
    for e in EPOCHS:
        yield f"INFO:root:Epoch[{e - 1}] Batch [20]\tSpeed: 1234.50 samples/sec\taccuracy=0.120000"
        yield f"INFO:root:Epoch[{e - 1}] Train-accuracy=0.500000"
        yield f"INFO:root:Epoch[{e - 1}] Time cost=12.300"
        yield f"INFO:root:Epoch[{e - 1}] Validation-accuracy={accuracy(e):.6f}"


@log(Right("val_accuracy", "epoch", NUM, ACCURACY, seconds=12))
def keras_2_console() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Epoch {e}/20"
        yield (
            "  1/469 [..............................] - ETA: 4:00 - loss: 2.4000 - accuracy: 0.1000"
            + "\b" * 80
            + f"469/469 [==============================] - 12s 26ms/step - loss: {loss(e)} - accuracy: 0.1200 - val_loss: 0.9 - val_accuracy: {accuracy(e)}"
        )


@log(Right("val_accuracy", "epoch", NUM, ACCURACY, seconds=12))
def keras_3_console() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Epoch {e}/20"
        yield (
            "\x1b[1m100/469\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m9s\x1b[0m 25ms/step - accuracy: 0.1 - loss: 2.4"
            f"\r\x1b[1m469/469\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m12s\x1b[0m 26ms/step - accuracy: 0.12 - loss: {loss(e)} - "
            f"val_accuracy: {accuracy(e)} - val_loss: 0.9"
        )


@log(Right("val_acc", "epoch", NUM, ACCURACY, seconds=72))
def lightning_bar() -> Iterable[str]:
    for e in EPOCHS:
        yield f"Epoch {e - 1}:  50%|█████     | 250/500 [00:36<00:36,  6.9it/s, v_num=3, train_loss=0.9]"
        yield "Validation DataLoader 0: 100%|██████████| 20/20 [00:02<00:00,  9.1it/s]"
        yield f"Epoch {e - 1}: 100%|██████████| 500/500 [01:12<00:00,  6.9it/s, v_num=3, train_loss={loss(e)}, val_acc={accuracy(e)}]"


@log(Right("validation_1-logloss", "step", NUM - 1, LOSS, metric="validation_1-logloss"))
def xgboost() -> Iterable[str]:
    for e in EPOCHS:
        yield f"[{e - 1}]\tvalidation_0-logloss:0.68230\tvalidation_1-logloss:{loss(e):.5f}"


@log(Right("valid_0's auc", "step", 10 * NUM, ACCURACY, metric="valid_0's auc"))
def lightgbm() -> Iterable[str]:
    yield "Training until validation scores don't improve for 50 rounds"
    for e in EPOCHS:
        yield f"[{10 * e}]\tvalid_0's auc: {accuracy(e)}\tvalid_0's binary_logloss: 0.31"


@log(Right("test", "step", NUM - 1, LOSS, metric="test", to="0.3", seconds=0.01))
def catboost() -> Iterable[str]:
    for e in EPOCHS:
        yield f"{e - 1}:\tlearn: 0.6100000\ttest: {loss(e):.7f}\tbest: {loss(e):.7f} ({e - 1})\ttotal: {10 * e}ms\tremaining: 900ms"


@log(Right("test", "step", 25 * NUM - 25, LOSS, metric="test", to="0.3", seconds=4))
def catboost_with_units() -> Iterable[str]:
    for e in EPOCHS:
        s = 100 * e - 99.5
        total = "500ms" if s < 1 else f"{s // 60:.0f}m {s % 60:.0f}s" if s >= 60 else f"{s}s"
        yield f"{25 * e - 25}:\tlearn: 0.61\ttest: {loss(e):.7f}\tbest: {loss(e):.7f} ({e})\ttotal: {total}\tremaining: 1m 21s"


@log(Right("metrics/mAP50(B)", "epoch", NUM, ACCURACY, seconds=24.5, rate="linear", name="results.csv"))
def ultralytics_csv() -> Iterable[str]:
    yield "epoch,time,train/box_loss,metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,lr/pg0"
    for e in EPOCHS:
        yield f"{e},{24.5 * e},1.18,{accuracy(e)},0.146,1.05,{0.01 * (1 - e / 20)}"


@log(Right("sunny-1 - val_acc", "step", 50 * NUM, ACCURACY, name="wandb_export.csv"))
def wandb_export() -> Iterable[str]:
    yield '"Step","sunny-1 - val_acc","sunny-1 - val_acc__MIN","sunny-1 - val_acc__MAX"'
    for e in EPOCHS:
        yield f'"{50 * e}","{accuracy(e)}","{accuracy(e)}","{accuracy(e)}"'


@log(Right("loss", "step", 100 * NUM, LOSS, seconds=0.6, name="run-a-tag-loss.csv"))
def tensorboard_csv() -> Iterable[str]:
    yield "Wall time,Step,Value"
    for e in EPOCHS:
        yield f"{UNIX + 60 * e}.5,{100 * e},{loss(e)}"


# -- durations, repeats and words ------------------------------------------------------------------------------------


@log(Right("acc", "epoch", NUM, ACCURACY, seconds=900))
def elapsed_hours() -> Iterable[str]:
    for e in EPOCHS:
        yield f"epoch {e}/40 | loss {loss(e)} | acc {accuracy(e)} | elapsed {0.25 * e:.2f}h"


@log(Right("loss", "epoch", NUM, LOSS, seconds=5400))
def hours_and_minutes() -> Iterable[str]:
    for e in EPOCHS:
        yield f"epoch {e}: loss {loss(e)}, elapsed {3 * e // 2}h{30 * (3 * e % 2)}m"


@log(Right("loss", "step", 100 * NUM, LOSS))
def seconds_of_some_steps() -> Iterable[str]:
    """The seconds may be those of one step or of 100, so they are no time."""
    for e in EPOCHS:
        yield f"step {100 * e} loss {loss(e)} seconds: 3.201"


@log(Right("loss", "step", NUM, LOSS, seconds=3.201))
def seconds_of_each_step() -> Iterable[str]:
    for e in EPOCHS:
        yield f"step {e} loss {loss(e)} seconds: 3.201"


@log(Right("loss", "step", 10 * NUM, LOSS, note="acc is 0 at every point", metric=None))
def acc_is_accumulation() -> Iterable[str]:
    for e in EPOCHS:
        yield f"step: {10 * e}  acc: 0  loss: {loss(e)}  grad: 2.01e+01  mem: 80%"


@log(Right("loss", "epoch", 2, LOSS, points=NUM - 1, note="epoch 1 has several values", name="trainer_state.json"))
def evaluated_twice() -> Iterable[str]:
    rows = [
        {"epoch": e / 4 if e > 4 else (e - 1) / 3, "loss": loss(e), "step": 100 * e if e > 4 else 100 * (e - 1)}
        for e in range(2, 9)
    ]
    rows.insert(3, {**rows[2], "loss": 9.0, "step": 300})
    rows[2], rows[3] = rows[3], rows[2]
    yield json.dumps({"log_history": rows})


@log(Right("loss", "epoch", 0.8, LOSS, points=NUM, note="go back from 0.5 to 0.4", name="trainer_state.json"))
def restarted_in_an_epoch() -> Iterable[str]:
    places = [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    yield json.dumps({"log_history": [{"epoch": e / 10, "loss": loss(e), "step": 10 * e} for e in places]})


@log(Right("acc", "epoch", NUM, ACCURACY, metric="acc", seconds=42))
def bars_redrawn_with_means() -> Iterable[str]:
    for e in EPOCHS:
        for n in (0, 98, 391):
            value = accuracy(e) if n == 391 else 0.1
            yield f"Epoch {e - 1}: {n * 100 // 391:3d}%|███    | {n}/391 [00:{n * 42 // 391:02d}<00:10,  9.21it/s, loss=1.2, acc={value}]"


@log(Right("loss", "epoch", 4, LOSS, points=8, seconds=42))
def bars_of_few_epochs() -> Iterable[str]:
    for e in EPOCHS:
        n = 391 if e % 2 == 0 else 196
        yield f"Epoch {(e - 1) // 2}:   0%|       | 0/391 [00:00<?, ?it/s, loss=9.9]"
        yield f"Epoch {(e - 1) // 2}:  50%|███    | {n}/391 [00:21<00:21,  9.21it/s, loss={loss(e)}]"


@log(Right("val.top1", "epoch", NUM, ACCURACY, seconds=300, rate="constant", name="dllogger.json"))
def dllogger_with_settings_and_summary() -> Iterable[str]:
    def line(seconds: int, step: object, **data: float) -> str:
        return "DLLL " + json.dumps(
            {
                "timestamp": f"{UNIX + seconds}.0",
                "elapsedtime": f"{seconds}.0",
                "type": "LOG",
                "step": step,
                "data": data,
            }
        )

    yield line(0, "PARAMETER", lr=9.0, epochs=90)
    for e in EPOCHS:
        yield line(300 * e - 10, [e - 1, 99], **{"train.loss": 1.5, "lr": 0.1})
        yield line(300 * e, [e - 1], **{"val.top1": 100 * accuracy(e)})
    yield line(300 * NUM + 1, [], **{"val.top1": 1.0})


@log(Right("rollout/ep_rew_mean", "step", 2048 * NUM, 20 * NUM, metric="ep_rew_mean", to="200"))
def stable_baselines3_without_a_loss_at_first() -> Iterable[str]:
    for e in EPOCHS:
        yield "-" * 35
        yield "| rollout/           |            |"
        yield f"|    ep_rew_mean     | {20 * e:<10} |"
        yield "| time/              |            |"
        yield f"|    total_timesteps | {2048 * e:<10} |"
        if e > 1:
            yield "| train/             |            |"
            yield "|    loss            | 6.52       |"
        yield "-" * 35


@log(Right("eval/top1", "epoch", NUM, ACCURACY, metric="top1", name="log.csv"))
def name_without_its_group() -> Iterable[str]:
    yield "epoch,train/top1,eval/top1"
    for e in EPOCHS:
        yield f"{e},0.1,{accuracy(e)}"


@log(Right("total_loss", "step", NUM, LOSS, to="0.4", note="AP has 1 point", name="log.csv"))
def single_result_among_losses() -> Iterable[str]:
    yield "step,total_loss,AP"
    for e in EPOCHS:
        yield f"{e},{loss(e)},{0.3 if e == NUM else ''}"


@log(Right("eval_accuracy", "step", NUM, LOSS, metric="eval_accuracy", to="0.4", note="read as a loss", name="log.csv"))
def accuracy_that_is_a_loss() -> Iterable[str]:
    yield "step,eval_accuracy"
    for e in EPOCHS:
        yield f"{e},{loss(e)}"


@log(Right("avg_loss", "epoch", NUM, LOSS, metric="avg_loss", seconds=90))
def coqui() -> Iterable[str]:
    for e in EPOCHS:
        yield f"\x1b[1m > EPOCH: {e - 1}/1000\x1b[0m"
        yield f"\x1b[1m > TRAINING ({at(90 * e):%Y-%m-%d %H:%M:%S}) \x1b[0m"
        for i in (25, 50):
            yield f"\x1b[1m   --> TIME: {at(90 * e + i):%Y-%m-%d %H:%M:%S} -- STEP: {i}/64 -- GLOBAL_STEP: {64 * e - 64 + i}\x1b[0m"
            yield "     | > decoder_loss: 1.5  (1.5)"
            yield "     | > loss: 1.75  (1.8)"
        yield "\x1b[1m > EVALUATION \x1b[0m"
        yield "  \x1b[1m--> EVAL PERFORMANCE\x1b[0m"
        yield f"     | > avg_loss:\x1b[92m {loss(e)} \x1b[0m(-0.01)"


@log(Right("loss", "step", 64 * NUM - 14, LOSS, metric="loss", points=2 * NUM))
def coqui_training() -> Iterable[str]:
    for e in EPOCHS:
        yield f" > EPOCH: {e - 1}/1000"
        for i in (25, 50):
            yield f"   --> TIME: 2026-03-01 10:00:00 -- STEP: {i}/64 -- GLOBAL_STEP: {64 * e - 64 + i}"
            yield f"     | > loss: {loss(e)}  (1.8)"
        yield " > EVALUATION "
        yield "     | > avg_loss: 9.5 (-0.01)"


@log(Right("bleu", "step", 1000 * NUM, 40 * accuracy(NUM), metric="bleu", to="36", seconds=0.3))
def marian() -> Iterable[str]:
    for e in EPOCHS:
        stamp, place = f"[{at(300 * e):%Y-%m-%d %H:%M:%S}]", f"Ep. {1 + e // 2} : Up. {1000 * e}"
        yield f"{stamp} {place} : Sen. {64_000 * e:,} : Cost 5.12 * 51,234 @ 2,400 after {e}200,000 : Time 149.9s : 15203.22 words/s"
        yield f"{stamp} [valid] {place} : cross-entropy : {loss(e)} : new best"
        yield f"{stamp} [valid] {place} : bleu : {40 * accuracy(e):.4f} : new best"


@log(Right("loss", "epoch", NUM / 10, LOSS, points=NUM, seconds=540))
def bar_before_a_dictionary() -> Iterable[str]:
    for e in EPOCHS:
        bar = f"{e * 54 // 60:02d}:{e * 54 % 60:02d}"
        yield f"{e:4d}%|█   | {e}/100 [{bar}<10:00,  54.0s/it]{{'loss': '{loss(e)}', 'epoch': '{e / 10}'}}"


@log(Right("loss", "row", NUM, LOSS, note="no column counts epochs or steps", name="log.csv"))
def rows_without_a_counter() -> Iterable[str]:
    yield "loss,val_acc_of_nothing"
    for e in EPOCHS:
        yield f"{loss(e)},"


@log(Right("loss", "step", NUM, LOSS, metric="loss", note="--metric val_loss", name="log.csv"))
def exact_name_comes_first() -> Iterable[str]:
    yield "step,loss,val_loss"
    for e in EPOCHS:
        yield f"{e},{loss(e)},{9 if e in (3, 6) else ''}"


@log(Right("score", "step", NUM, 20 * NUM, metric="score", to="150", name="log.csv"))
def score_of_a_game() -> Iterable[str]:
    yield "step,score"
    for e in EPOCHS:
        yield f"{e},{20 * e}"


@log(Right("distance", "step", NUM, LOSS, metric="distance", to="0.3"))
def distance_in_metres() -> Iterable[str]:
    for e in EPOCHS:
        yield f"step {e} distance {loss(e)}m loss 1.0"


@log(Right("val loss", "step", 500 * NUM, LOSS, rate="from column lr"))
def llm_c() -> Iterable[str]:
    for e in EPOCHS:
        for i in (100, 200, 300, 400, 500):
            yield f"s:{500 * e - 500 + i} trl:{loss(e) + 0.1:.4f} lr:0.0006 norm:0.85"
        yield f"s:{500 * e} tel:{loss(e):.4f}"
        yield f"s:{500 * e} eval:0.2449"


@log(Right("loss", "step", 100 * NUM, LOSS, points=NUM + 1, seconds=0.123, metric="loss"))
def estimator_of_tensorflow() -> Iterable[str]:
    yield "INFO:tensorflow:loss = 2.3, step = 0"
    for e in EPOCHS:
        yield "INFO:tensorflow:global_step/sec: 8.13"
        yield f"INFO:tensorflow:loss = {loss(e)}, step = {100 * e} (12.300 sec)"
        if e % 2 == 0:
            yield f"INFO:tensorflow:Saving dict for global step {100 * e}: accuracy = 0.5, global_step = {100 * e}, loss = 9.5"


@log(Right("valid_objective", "step", NUM - 1, accuracy(NUM), seconds=91, metric="valid_objective"))
def kaldi_with_a_closing_line() -> Iterable[str]:
    """The words of the closing line are as many as the columns."""
    yield "%Iter\tduration\ttrain_objective\tvalid_objective\tdifference"
    for e in EPOCHS:
        yield f"{e - 1}\t91.0\t{accuracy(e) + 0.1:g}\t{accuracy(e):g}\t-0.1"
    yield "Total training time is 0:12:08"


@log(Right("val_accuracy", "step", 100 * NUM, ACCURACY, seconds=0.4, name="log.json"))
def comet() -> Iterable[str]:
    rows = [
        {"metricName": name, "metricValue": str(value), "timestamp": 1000 * UNIX + 40_000 * e, "step": 100 * e}
        for e in EPOCHS
        for name, value in (("train_loss", loss(e)), ("val_accuracy", accuracy(e)))
    ]
    yield json.dumps({"metrics": rows})


@log(Right("acc", "epoch", NUM, ACCURACY, seconds=500, metric="acc", note="earlier points are left out"))
def espnet_within_epochs() -> Iterable[str]:
    """The number before `epoch:train:` is no line of a source file."""
    for e in EPOCHS:
        for i in (1, 501):
            yield f"[a] {at(500 * e + i / 5)},0 (trainer:732) INFO: {e}epoch:train:{i}-{i + 499}batch: acc={accuracy(e)}, loss=1.0"


@log(Right("mIoU", "step", 500 * NUM, ACCURACY, seconds=0.3, metric="mIoU"))
def evaluations_between_iterations_of_all_epochs() -> Iterable[str]:
    """An epoch has 372 iterations, and there is an evaluation every 500."""
    for i in range(50, 500 * NUM + 1, 50):
        yield f"{at(0.3 * i)} [INFO] [TRAIN] epoch: {1 + i // 372}, iter: {i}/{500 * NUM}, loss: {loss(i / 500):.4f}"
        if i % 500 == 0:
            yield f"{at(0.3 * i)} [INFO] [EVAL] #Images: 500 mIoU: {accuracy(i // 500)} Acc: 0.5"


@log(Right("mIoU", "step", 500 * NUM, ACCURACY, seconds=0.4, metric="mIoU", name="log.json"))
def evaluations_that_count_their_batches() -> Iterable[str]:
    for i in range(50, 500 * NUM + 1, 50):
        place = {"epoch": 1 + i // 372, "lr": 0.01}
        yield json.dumps({"mode": "train", **place, "iter": i, "data_time": 0.01, "loss": loss(i / 500), "time": 0.4})
        if i % 500 == 0:
            yield json.dumps({"mode": "val", **place, "iter": 250, "mIoU": accuracy(i // 500)})


@log(Right("accuracy", "epoch", NUM, ACCURACY, points=4 * NUM, seconds=580))
def durations_after_several_points() -> Iterable[str]:
    """An epoch has four points, and its duration comes after them."""
    for e in EPOCHS:
        for i in (50, 100, 150, 200):
            yield f"INFO:root:Epoch[{e - 1}] Batch [{i}]\tSpeed: 2210.5 samples/sec\taccuracy={accuracy(e)}\tlr=0.1"
        yield f"INFO:root:[Epoch {e - 1}] speed: 2209 samples/sec\ttime cost: 580.0"
        yield f"INFO:root:[Epoch {e - 1}] validation: err-top1=0.5"


@pytest.mark.parametrize(("text", "right"), LOGS, ids=lambda part: getattr(part, "__name__", ""))
def test_read_as_the_tool_means_it(text: Callable[[], str], right: Right, tmp_path: Path) -> None:
    path = tmp_path / right.name
    path.write_text(text())
    curve = forecast_answer.read(path, right.metric, right.to)
    assert (curve.column, curve.unit, len(curve.steps)) == (right.column, right.unit, right.points)
    assert curve.steps[-1] == pytest.approx(right.last_step)
    assert curve.shown(curve.values[-1]) == pytest.approx(right.last, abs=1e-6)
    assert right.note in " ".join(curve.notes)
    assert right.rate in curve.schedule_told
    pace = pace_of(curve.steps, curve.times, curve.steps[-1])
    assert (None if pace is None else pace.seconds) == (
        None if right.seconds is None else pytest.approx(right.seconds, rel=0.03)
    )


REFUSED = {
    "wider rows": ("epoch,loss\n1,2\n2,1,5\n3,1,5\n4,1,5\n", "3 of 4 rows of .* have 3 cells, and its header has 2"),
    "shorter rows": ("epoch,time,loss\n1,2\n2,1\n3,1\n4,1\n", "4 of 4 rows of .* have 2 cells, and its header has 3"),
    "no header": ("1,10,2.5\n2,20,2.4\n3,30,2.3\n", "the first line of .* is numbers"),
    "brackets": ("[10:00] Loading the data.\n[10:01] Training starts.\n", "none of its 2 lines names a metric"),
    "no result": ("| time/ | |\n|    total_timesteps | 2048 |\n", "columns time/total_timesteps, none of them"),
    "prose": ("Loading the data.\nTraining starts now.\n", "none of its 2 lines names a metric"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_for_the_true_reason(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError, match=reason) as refusal:
        forecast_answer.read(tmp_path / "log.csv", None, None)
    assert "--column" not in refusal.value.hint


def test_a_log_has_a_limit_of_lines(tmp_path: Path) -> None:
    for end in ("\n", "\r"):
        (tmp_path / "log.txt").write_text(f"epoch 1 loss 2{end}" * (MAX_LINES + 1))
        with pytest.raises(InputError, match=r"500,00[12] lines"):
            forecast_answer.read(tmp_path / "log.txt", None, None)


def test_returns_need_no_metric(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,ep_rew_mean,loss\n" + "".join(f"{e},{20 * e},1\n" for e in EPOCHS))
    assert forecast_answer.read(tmp_path / "log.csv", None, "150").metric == "return"


def test_an_advised_option_exists(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("epoch,speed\n1,2\n")
    with pytest.raises(InputError) as refusal:
        forecast_answer.read(tmp_path / "log.csv", None, None)
    assert "--metric" in refusal.value.hint


@pytest.mark.parametrize("first", [0, 5])
def test_times_near_1970_are_none(first: int, tmp_path: Path) -> None:
    """MLflow stores milliseconds since 1970; a writer that gives its step instead has no times."""
    (tmp_path / "meta.yaml").write_text("run_id: abc\n")
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "loss").write_text("".join(f"{first + e} {loss(e)} {e}\n" for e in EPOCHS))
    assert forecast_answer.read(tmp_path, None, None).times is None
    (tmp_path / "log.csv").write_text(
        "key,value,step,timestamp\n" + "".join(f"loss,{loss(e)},{e},{e}\n" for e in EPOCHS)
    )
    assert forecast_answer.read(tmp_path / "log.csv", None, None).times is None


def test_a_counter_that_no_float_holds(tmp_path: Path) -> None:
    rows = [{"epoch": 10**400 + e, "loss": loss(e)} for e in EPOCHS]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    curve = forecast_answer.read(tmp_path / "trainer_state.json", None, None)
    assert (curve.unit, curve.steps[-1]) == ("row", NUM)
    assert "not every epoch is a number" in curve.notes[0]
