"""An ONNX file with eight-bit weights: its size, its speed, and its cost in accuracy.

static    also activations, in ranges measured on training samples; for convolutions

dynamic   activations in the range of each batch; matrix products only, for language models
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from chronograd.data.datasets import Dataset
from chronograd.deploy.export import quiet, read_graph, require_onnx
from chronograd.deploy.parity import session
from chronograd.detect.metrics import average_precisions, mean_average_precision
from chronograd.detect.suppression import detections
from chronograd.errors import InputError
from chronograd.measure import environment
from chronograd.train.inputs import InputSplit
from chronograd.train.order import CHUNK

Array = np.ndarray[Any, Any]
How = Literal["static", "dynamic"]
# Training samples that determine the ranges of activations, the first of a fixed shuffle, and the batch size.
CALIBRATION, CALIBRATION_BATCH = 256, 32
# Operators that occur only in a graph with eight-bit arithmetic.
OF_INTEGERS = ("QuantizeLinear", "DynamicQuantizeLinear")
# Pairs of passes in turn: warm-up, minimum and maximum with the clock; no new pair starts after this number of seconds.
WARMUP = 3
MIN_PAIRS = 10
MAX_PAIRS = 200
SECONDS = 5.0


@dataclass(frozen=True)
class ModelScore:
    """Accuracy and mean cross-entropy over some samples; each token of text is a sample.

    For a detector: mean average precision by the 11-point metric, and no loss. `is_right_N`: which answers are right; empty for
    a detector.
    """

    accuracy: float
    loss: float | None
    num_samples: int
    is_right_N: Array = field(default_factory=lambda: np.zeros(0, bool), repr=False)


@dataclass(frozen=True)
class Speed:
    """Passes of two files in turn, in one process. `ratio` is the time of the second divided by the first, with its 80 %
    interval.
    """

    batch: int
    threads: int
    first_s: float
    second_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    num_pairs: int


def quantise(path: Path, out: Path, how: How, calibration: InputSplit | None = None, is_raw: bool = False) -> int:
    """Write a file with eight-bit weights, and return its number of eight-bit operators.

    Weights use seven of the eight bits, with one scale per channel. Processors without VNNI add pairs of products in sixteen
    bits, which would overflow with eight (ONNX Runtime, Quantize ONNX models).

    Args:
        calibration: training samples, for `static`. is_raw: the graph takes raw samples and prepares them itself.

    Raises: InputError for `static` without samples, and if there is nothing to quantise.
    """
    require_onnx()
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if how == "static" and calibration is None:
        raise InputError(
            "static quantisation needs samples of the training data, which is not available",
            "name a data set that is on disk, or write --int8 dynamic",
        )
    with quiet(), TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        if how == "dynamic":
            quantize_dynamic(str(prepared), str(out), op_types_to_quantize=["MatMul", "Gemm"], per_channel=True,
                             reduce_range=True, weight_type=QuantType.QInt8)  # fmt: skip
        else:
            assert calibration is not None
            reader = _Batches(session(path).get_inputs()[0].name, calibration, is_raw)
            quantize_static(str(prepared), str(out), reader, quant_format=QuantFormat.QDQ, per_channel=True,
                            reduce_range=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)  # fmt: skip
    operators = read_graph(out).operators
    count = sum(operators.get(name, 0) for name in OF_INTEGERS)
    if not count:
        out.unlink()
        raise InputError(
            f"nothing in {path.name} can be quantised with {how}: it has no product with constant weights",
            f"write --int8 {'static' if how == 'dynamic' else 'dynamic'}",
        )
    return count


def score(path: Path, samples: InputSplit, labels: Array, is_raw: bool = False, chunk: int = CHUNK) -> ModelScore:
    """Run a file over all labelled samples. `labels`: classes (N,), or the next token of each position (N, T)."""
    loss, is_right = 0.0, []
    for numbers, (outputs, *_) in _outputs(path, samples, is_raw, chunk):
        targets = labels[numbers].reshape(-1)
        rows = outputs.astype(np.float64).reshape(len(targets), -1)
        largest = rows.max(1, keepdims=True)
        log_sum = np.log(np.exp(rows - largest).sum(1)) + largest[:, 0]
        loss += float((log_sum - rows[np.arange(len(targets)), targets]).sum())
        is_right.append(rows.argmax(1) == targets)
    is_right_N = np.concatenate(is_right)
    return ModelScore(float(is_right_N.mean()), loss / len(is_right_N), len(is_right_N), is_right_N)


def precision(
    path: Path, samples: InputSplit, dataset: Dataset, is_raw: bool = False, chunk: int = CALIBRATION_BATCH
) -> ModelScore:
    """Run a detector's file over annotated pictures, then suppress boxes."""
    assert dataset.annotated is not None
    found = [
        detections(torch.from_numpy(scores), torch.from_numpy(boxes))
        for _, outputs in _outputs(path, samples, is_raw, chunk)
        for scores, boxes in zip(*outputs, strict=True)
    ]
    truths = [image.objects for image in dataset.annotated.test]
    precisions = average_precisions(found, truths, dataset.card.num_classes, "11-point")
    return ModelScore(mean_average_precision(precisions) or 0.0, None, len(truths))


def _outputs(path: Path, samples: InputSplit, is_raw: bool, chunk: int) -> Iterator[tuple[Array, list[Array]]]:
    """Yield the numbers of some samples, and a file's outputs for them, for all samples."""
    running = session(path)
    port = running.get_inputs()[0].name
    for start in range(0, len(samples), chunk):
        numbers = np.arange(start, min(start + chunk, len(samples)))
        yield numbers, running.run(None, {port: fed(samples, numbers, is_raw)})


def fed(samples: InputSplit, numbers: Array, is_raw: bool) -> Array:
    """Return the input of a graph for some samples."""
    raw = samples.gather(numbers)
    return np.asarray((raw if is_raw else samples.prepare(raw)).numpy())


def race(first: Path, second: Path, batch: Array, seconds: float = SECONDS) -> Speed:
    """Time two files in turn on one batch."""
    sessions = [session(first), session(second)]
    one, other = (partial(own.run, None, {own.get_inputs()[0].name: batch}) for own in sessions)
    first_s, second_s, *_ = in_turn(one, other, seconds)
    ratios = second_s / first_s
    low, middle, high = (float(np.quantile(ratios, share)) for share in (0.1, 0.5, 0.9))
    threads = sessions[0].get_session_options().intra_op_num_threads
    return Speed(
        len(batch), threads, float(np.median(first_s)), float(np.median(second_s)), middle, low, high, len(ratios)
    )


class Turns(NamedTuple):
    """Seconds of each call of two functions in turn, processor seconds of all its threads, and cores that other processes used."""

    first_s: Array
    second_s: Array
    first_cpu_s: Array
    second_cpu_s: Array
    others: float


def in_turn(first: Callable[[], Any], second: Callable[[], Any], seconds: float = SECONDS) -> Turns:
    """Time each call of two functions, called in turn; each pair reverses the order of the previous one.

    Threads that spin while they wait use processor time as if they worked. If other processes use the cores, the wall time is
    that of the slowest thread, and processor time is closer to the cost of a call.
    """
    calls = (first, second)
    times: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])

    def timed(which: int) -> tuple[float, float]:
        start, start_cpu = time.perf_counter(), time.process_time()
        calls[which]()
        return time.perf_counter() - start, time.process_time() - start_cpu

    for which in (0, 1) * WARMUP:
        timed(which)
    begun, own_s, (ticks, _) = time.perf_counter(), time.process_time(), environment.processor_ticks()
    while len(times[0]) < MIN_PAIRS or (len(times[0]) < MAX_PAIRS and time.perf_counter() - begun < seconds):
        for which in (0, 1) if len(times[0]) % 2 else (1, 0):
            wall_s, cpu_s = timed(which)
            times[which].append(wall_s)
            cpu[which].append(cpu_s)
    busy_s = (environment.processor_ticks()[0] - ticks) / os.sysconf("SC_CLK_TCK")
    others = max(0.0, busy_s - (time.process_time() - own_s)) / (time.perf_counter() - begun)
    return Turns(np.array(times[0]), np.array(times[1]), np.array(cpu[0]), np.array(cpu[1]), others)


class _Batches:
    """Batches of training samples in order, with the interface of ONNX Runtime's CalibrationDataReader."""

    def __init__(self, port: str, samples: InputSplit, is_raw: bool) -> None:
        chosen = np.random.RandomState(0).permutation(len(samples))[:CALIBRATION]
        parts = [np.sort(chosen[i : i + CALIBRATION_BATCH]) for i in range(0, len(chosen), CALIBRATION_BATCH)]
        self._batches = iter({port: fed(samples, part, is_raw)} for part in parts)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)
