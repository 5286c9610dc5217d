"""Timing the steps of a job: warm-up outside the clock, then every part of every step.

A step is anything with the parts of `StepInParts`. On the CPU, the same step gives its time and that of its parts. On CUDA,
timing the parts needs a synchronisation between them, which slows a step down. So step times come from steps without
synchronisation (CUDA events at their ends), and parts from other, instrumented steps.

If ranks exchange gradients, each instrumented step is followed by one without exchange and update. The difference between the
two, in forward and backward together (forward broadcasts buffers), is the exposed communication. It includes waiting for a
slower rank.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from chronograd.measure import process
from chronograd.measure.result import Timing
from chronograd.rundir.steps import EpochTiming, Line, StepLine


class StepInParts(Protocol):
    """One training step in its parts."""

    device: torch.device

    def parts(self, index: int, is_updated: bool = True) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield name (one of PARTS) and call of each part of step `index`, counted from 0, in order.

        A name may occur more than once. Without the update, gradients are dropped instead.
        """

    def no_sync(self) -> AbstractContextManager[None] | None:
        """Return a context in which ranks exchange nothing; None if they never do."""

    @property
    def waited_s(self) -> float | None:
        """Return the seconds of the last backward in which this rank waited for the others; None if unknown."""


PARTS = ("input", "transfer", "forward", "backward", "update")


def time_steps(
    step: StepInParts,
    timing: Timing,
    write: Callable[[Line], None],
    agree: Callable[[int], int] = lambda number: number,
    is_waited_for: bool = False,
) -> None:
    """Run and time steps; one call of `write` per timed step.

    A line has `step`, `mode` and times in seconds. Modes are `plain` (step_time_s only), `parts` (each part; on the CPU step_time_s as
    well) or `no_exchange` (each part; follows the `parts` step for comparison).

    Args:
        agree: returns rank 0's number on every rank, so that all run the same number of steps.
        is_waited_for: on CUDA, wait for each step before the next begins, as a client waits for an answer.
    """
    now = clock(step.device)
    start = now()
    for index in range(timing.warmup):
        _run(step, index, now)
        _run_without_exchange(step, index, now)
    step_s = (now() - start) / timing.warmup
    write(process.ready(timing.warmup))
    count = agree(max(1, min(timing.num_steps, math.floor(timing.seconds / step_s))))
    index = timing.warmup
    is_cuda = step.device.type == "cuda"
    if is_cuda:
        plain = (
            _waited_step_times_s(step, index, count, now) if is_waited_for else _plain_step_times_s(step, index, count)
        )
        for step_time_s in plain:
            write(StepLine(step=index + 1, mode="plain", step_time_s=step_time_s))
            index += 1
    for _ in range(count):
        parts = _run(step, index, now)
        whole_s = None if is_cuda else sum(parts[f"{name}_s"] for name in PARTS)
        write(StepLine(step=index + 1, mode="parts", step_time_s=whole_s, **parts))
        index += 1
        apart = _run_without_exchange(step, index, now)
        if apart is not None:
            write(StepLine(step=index + 1, mode="no_exchange", **apart))
            index += 1


def time_epochs(step: StepInParts, num_steps: int, write: Callable[[Line], None]) -> None:
    """Time an epoch: the first warms up, the second is timed, and a third runs without loading data.

    The third uses the last batch repeatedly: its parts are forward, backward and update alone. Writes one line, EpochTiming.
    """
    now = clock(step.device)

    def epoch(first: int, left_out: tuple[str, ...] = ()) -> float:
        start = now()
        for index in range(first, first + num_steps):
            for name, call in step.parts(index):
                if name not in left_out:
                    call()
        return now() - start

    epoch(0)
    whole_s = epoch(num_steps)
    compute_s = epoch(2 * num_steps, ("input", "transfer"))
    write(EpochTiming(step=2 * num_steps, num_steps=num_steps, epoch_time_s=whole_s, epoch_compute_time_s=compute_s))


class GradientClock:
    """A clock for the wait of a rank for the others on the CPU: from its own last gradient to the end of its backward.

    The rank that waits least is the slowest. The shortest wait is the part of the exchange that backward does not hide.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._last_s = self._waited_s = 0.0
        self._in_backward = self._has_waited = False
        trained: list[Any] = [p for p in parameters if p.requires_grad]
        self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in trained]

    def take_s(self) -> float | None:
        """Return the seconds waited in backward passes since the last call; None without a backward pass."""
        waited_s = self._waited_s if self._has_waited else None
        self._waited_s, self._has_waited = 0.0, False
        return waited_s

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(self, parameter: torch.Tensor) -> None:
        self._last_s = time.perf_counter()
        if not self._in_backward:
            self._in_backward = True
            self._queue(self._go_last)

    def _go_last(self) -> None:
        """Queue the callback after all others: averages are awaited in callbacks such as this."""
        self._queue(self._end)

    def _end(self) -> None:
        self._waited_s += time.perf_counter() - self._last_s
        self._in_backward, self._has_waited = False, True

    @staticmethod
    def _queue(call: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(call)


def _run(step: StepInParts, index: int, now: Callable[[], float], update: bool = True) -> dict[str, Any]:
    """Run one instrumented step; return seconds by part. Time between two parts belongs to the later one."""
    times = {f"{name}_s": 0.0 for name in PARTS}
    last = now()
    for name, call in step.parts(index, update):
        call()
        this = now()
        times[f"{name}_s"] += this - last
        last = this
    return times if step.waited_s is None else {**times, "exchange_wait_s": step.waited_s}


def _run_without_exchange(step: StepInParts, index: int, now: Callable[[], float]) -> dict[str, Any] | None:
    apart = step.no_sync()
    if apart is None:
        return None
    with apart:
        return _run(step, index, now, update=False)


def _plain_step_times_s(step: StepInParts, first: int, count: int) -> list[float]:
    """Return the device time from the end of one step to the end of the next, while the host runs ahead as usual."""
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    with torch.cuda.device(step.device):
        ends[0].record()
        for number in range(count):
            for _, call in step.parts(first + number):
                call()
            ends[number + 1].record()
        torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(ends)]


def _waited_step_times_s(step: StepInParts, first: int, count: int, now: Callable[[], float]) -> list[float]:
    """Return the host time of each step, from its start to the end of all its launched work."""
    ends = [now()]
    for number in range(count):
        for _, call in step.parts(first + number):
            call()
        ends.append(now())
    return [b - a for a, b in itertools.pairwise(ends)]


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds; on CUDA it waits until all launched work has finished."""
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
