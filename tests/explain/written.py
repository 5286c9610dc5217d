"""Runs of known figures: the files of a recorded loop, written without the loop.

A healthy step of two ranks takes 100 ms: 1 ms of input, 30 of forward, 61 of backward, and 8 of update. Backward includes 1 ms
of waiting for the other rank. `at` sets other times for a rank and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chronograd.rundir import RunDir
from chronograd.rundir.steps import End, PageFault, Ready, Start, StepLine, WhatIfBatch, WhatIfThreads, WorkLine

HEALTHY = {"input_s": 0.001, "forward_s": 0.03, "backward_s": 0.061, "update_s": 0.008, "exchange_wait_s": 0.001}
STEPS, WARMUP = 45, 5
STARTED = 1.8e9  # seconds since 1970
At = Callable[[int, int], dict[str, float]]


def as_usual(rank: int, step: int) -> dict[str, float]:
    return {}


def write_run(
    path: Path,
    at: At = as_usual,
    *,
    world: int = 2,
    steps: int = STEPS,
    queued: Sequence[float] = (0.02, 0.02),
    start_up_s: float = 0.05,
    start: dict[str, Any] | None = None,
    work: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    what_if_batch: tuple[float, float] = (0.09, 0.36),
    what_if_threads: tuple[float, float] | None = None,
    page_faults: tuple[int, float] | None = None,
    has_parts: bool = True,
) -> Path:
    """Write a run directory.

    Args:
        at: seconds that differ from HEALTHY, by rank (from 0) and step (from 1).
        queued: share of the time in which each rank waited for a CPU core.
        start_up_s: from the start of recording to the first step.
        start, work: changed fields of these events.
        what_if_batch: seconds of a rank's batch, and of one four times as large.
        what_if_threads: seconds with 16 threads, and with one.
        page_faults: the number in each step of a rank, and the seconds of one.
        has_parts: whether the loop marked its parts.
    """
    run = RunDir.create(environment=environment or {}, out=path)
    for rank in range(world):
        with run.step_writer(rank) as lines:
            _write_rank(
                lines.write, rank, at, steps, world, has_parts, start_up_s, queued[rank], start or {}, work or {},
                None if page_faults is None else page_faults[0],
            )  # fmt: skip
            small_s, large_s = what_if_batch
            lines.write(WhatIfBatch(step=0, times=4, seconds=small_s, larger_seconds=large_s))
            if page_faults is not None:
                lines.write(PageFault(step=0, seconds=page_faults[1]))
            if what_if_threads is not None:
                crowded_s, fair_s = what_if_threads
                lines.write(WhatIfThreads(step=0, threads=16, seconds=crowded_s, fair_threads=1, fair_seconds=fair_s))
    return run.path


def _write_rank(
    write: Callable[..., None], rank: int, at: At, steps: int, world: int, has_parts: bool, start_up_s: float,
    queued: float, start: dict[str, Any], work: dict[str, Any], faults: int | None,
) -> None:  # fmt: skip
    of_process = {"time": STARTED, "process_time": STARTED - 1, "busy_s": 1.0, "host": "a", "gpus_given": ""}
    own = {"device": "cpu", "device_name": "a processor", "threads": 1, "cores": 2}
    write(Start(step=0, **{**of_process, **own, **start}))
    now = STARTED + start_up_s
    write(Ready(step=0, time=now, queued_s=0.0))
    loader = {"dataset_samples": 1000, "rank_batch": 10, "steps_per_epoch": 100 // world, "workers": 0}
    write(WorkLine(step=0, **{**loader, "params": 100_000, "gradient_bytes": 400_000, **work}))
    for step in range(1, steps + 1):
        parts = {**HEALTHY, **at(rank, step)}
        wait_s = {"exchange_wait_s": parts.pop("exchange_wait_s")} if world > 1 else {}
        step_s = sum(parts.values())
        now += step_s
        told = parts if has_parts else {"input_s": parts["input_s"]}
        write(
            StepLine(
                step=step,
                mode="warmup" if step <= WARMUP else "parts",
                time=now,
                step_time_s=step_s,
                page_faults=faults,
                **told,
                **wait_s,
            )
        )
    write(End(step=steps, time=now, queued_s=queued * (now - STARTED - start_up_s)))
