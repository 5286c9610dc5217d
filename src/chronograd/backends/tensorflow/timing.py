"""Timing of the steps of a TensorFlow rank, after a warm-up, part by part.

A step is one graph and cannot be stopped between its parts. So each step is followed by smaller graphs on the same
batch: forward and backward without all-reduce and update, forward alone, the update alone. Backward is the difference
of the first two. Exposed communication, as in chronograd.measure.result, is the time of the step beyond all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.measure import process
from chronograd.measure.result import Timing
from chronograd.rundir import Line, StepLine

T = TypeVar("T")
METHOD = (
    "host clock; graphs of forward alone and of the update alone, run after each step; backward is the rest of a step"
)


def time_steps(step: TensorFlowStep, timing: Timing, write: Callable[[Line], None]) -> None:
    """Run and time steps; lines as of chronograd.measure.steps, in modes `parts` and `no_exchange` in turn."""
    start = time.perf_counter()
    for index in range(timing.warmup):
        _round(step, index)
    round_s = (time.perf_counter() - start) / timing.warmup
    count = step.ranks.broadcast_from_rank0(max(1, min(timing.num_steps, math.floor(timing.seconds / round_s))))
    write(process.ready())
    line = 0
    for index in range(timing.warmup, timing.warmup + count):
        step_time_s, parts, apart = _round(step, index)
        line += 1
        write(StepLine(step=line, mode="parts", step_time_s=step_time_s, **parts))
        if apart is not None:
            line += 1
            write(StepLine(step=line, mode="no_exchange", **apart))


def _round(step: TensorFlowStep, index: int) -> tuple[float, dict[str, Any], dict[str, Any] | None]:
    """Return the step time, seconds by part, and with several replicas the parts without communication."""
    step.ranks.wait()  # as after a joint step, because the following parts run on each rank alone
    input_s, arrays = _timed(lambda: step.gather(index))
    transfer_s, batch = _timed(lambda: step.transfer(arrays))
    if step.ranks.device == "cpu":  # a copy within main memory
        input_s, transfer_s = input_s + transfer_s, 0.0
    before = {"input_s": input_s, "transfer_s": transfer_s}
    whole_s, _ = _timed(lambda: step.train(batch, index))
    apart_s = _timed(lambda: step.no_sync(batch))[0] if step.ranks.num_replicas > 1 else None
    forward_s, _ = _timed(lambda: step.forward(batch))
    update_s, _ = _timed(lambda: step.update_by_nothing(index))
    # Measured separately, the two may exceed the whole step.
    share = min(1.0, whole_s / (forward_s + update_s))
    forward_s, update_s = forward_s * share, update_s * share
    rest_s = max(0.0, whole_s - forward_s - update_s)
    parts = {**before, "forward_s": forward_s, "backward_s": rest_s, "update_s": update_s}
    step_time_s = input_s + transfer_s + whole_s
    if apart_s is None:
        return step_time_s, parts, None
    return (
        step_time_s,
        parts,
        {**before, "forward_s": forward_s, "backward_s": max(0.0, apart_s - forward_s), "update_s": 0.0},
    )


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result
