"""Dynamic batching: requests that wait for a model run together, and each gets its own rows back.

When the model becomes free, the waiting requests form a batch, so a single request runs at once. With `wait_s` the first
request of a batch waits up to that time for others. This module does not know HTTP or ONNX Runtime: a model is a function of
arrays.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from chronograd.deploy.protocol import Array
from chronograd.simulate.queueing import batch_sizes

# Inputs by name, names of outputs → those outputs, in that order. Blocking; runs in a thread.
Run = Callable[[Mapping[str, Array], Sequence[str]], Sequence[Array]]

PROBE_S = 3.0  # approximate time for timing batches of growing size
_SMOOTHING = 0.1  # weight of the newest batch in the mean time per request, for Retry-After


class QueueFull(Exception):
    """The queue is full. `retry_after_s`: estimated time until it has room."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} requests are already waiting")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Done:
    """Outputs of one request; its waiting time, and the time and rows of its batch."""

    outputs: dict[str, Array]
    queue_s: float
    run_s: float
    rows: int


@dataclass(eq=False)
class _Item:
    inputs: Mapping[str, Array]
    names: Sequence[str]
    rows: int
    form: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes without rows, which must agree in a batch
    future: asyncio.Future[Done]
    arrived: float


class Batcher:
    """The queue before one model, and the tasks that empty it.

    Args:
        most_rows: of a batch; 1 to run requests individually. A request with more rows runs alone.
        wait_s: maximum time that a request waits for others while the model is free.
        most_waiting: maximum number of requests in the queue; one more raises QueueFull.
        instances: batches that run at the same time.
        observe: called after each batch with its rows and seconds.
    """

    def __init__(self, run: Run, *, most_rows: int = 1, wait_s: float = 0.0, most_waiting: int = 256, instances: int = 1,
                 observe: Callable[[int, float], None] = lambda rows, run_s: None) -> None:  # fmt: skip
        self._run = run
        self.most_rows = most_rows
        self.wait_s = wait_s
        self._most_waiting = most_waiting
        self._observe = observe
        self._waiting: deque[_Item] = deque()
        self._news = asyncio.Event()
        self._is_closing = False
        self._request_s = 0.0
        self._pool = ThreadPoolExecutor(instances, "model")
        self._instances = instances
        self._tasks = [asyncio.create_task(self._work()) for _ in range(instances)]

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    async def submit(self, inputs: Mapping[str, Array], names: Sequence[str], timeout_s: float | None = None) -> Done:
        """Return the outputs of these names. Raises QueueFull, TimeoutError, and the model's errors."""
        if self._is_closing:
            raise RuntimeError("this model is being unloaded")
        if len(self._waiting) >= self._most_waiting:
            self._forget_cancelled()
        if len(self._waiting) >= self._most_waiting:
            left_s = len(self._waiting) * self._request_s / self._instances
            raise QueueFull(len(self._waiting), max(1, math.ceil(left_s)))
        rows = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
        # Inputs with different numbers of rows run alone, and the model judges them.
        count = rows.pop() if len(rows) == 1 else 0
        form = tuple(sorted((name, array.shape[1:]) for name, array in inputs.items()))
        item = _Item(inputs, names, count, form, asyncio.get_running_loop().create_future(), time.perf_counter())
        self._waiting.append(item)
        self._news.set()
        async with asyncio.timeout(timeout_s):
            return await item.future

    async def close(self) -> None:
        """Answer all waiting requests, then end; later submissions raise RuntimeError."""
        self._is_closing = True
        self._news.set()
        await asyncio.gather(*self._tasks)
        self._pool.shutdown()

    def _forget_cancelled(self) -> None:
        """Remove requests of clients that have given up from the queue."""
        alive = [item for item in self._waiting if not item.future.done()]
        self._waiting.clear()
        self._waiting.extend(alive)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                if self._is_closing:
                    return
                self._news.clear()
                await self._news.wait()
            batch = [self._waiting.popleft()]
            if batch[0].future.done():  # its client has given up
                continue
            self._add_fitting(batch)
            if self.wait_s > 0 and batch[0].rows:
                await self._wait_for_company(batch)
            started = time.perf_counter()
            try:
                results = await loop.run_in_executor(self._pool, self._run_batch, batch)
            except Exception as error:  # our fault: the waiting requests must get an error, and the next batch must run
                results = [error] * len(batch)
            run_s = time.perf_counter() - started
            rows = sum(item.rows for item in batch)
            self._observe(rows, run_s)
            each_s = run_s / len(batch)
            self._request_s += (each_s - self._request_s) * (_SMOOTHING if self._request_s else 1)
            for item, result in zip(batch, results, strict=True):
                if item.future.done():  # its client has given up
                    continue
                if isinstance(result, Exception):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(Done(result, started - item.arrived, run_s, rows))

    def _add_fitting(self, batch: list[_Item]) -> None:
        """Move the waiting requests that fit into a batch to it, in order."""
        rows, form = sum(item.rows for item in batch), batch[0].form
        if not batch[0].rows or rows >= self.most_rows or not self._waiting:
            return
        others: list[_Item] = []
        while self._waiting and rows < self.most_rows:
            item = self._waiting.popleft()
            if item.future.done():
                continue
            if item.form == form and 0 < item.rows <= self.most_rows - rows:
                batch.append(item)
                rows += item.rows
            else:
                others.append(item)
        self._waiting.extendleft(reversed(others))

    async def _wait_for_company(self, batch: list[_Item]) -> None:
        until = batch[0].arrived + self.wait_s
        # If the queue has requests that do not fit, waiting would only delay them.
        while sum(item.rows for item in batch) < self.most_rows and not self._is_closing and not self._waiting:
            left_s = until - time.perf_counter()
            if left_s <= 0:
                return
            self._news.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                return
            self._add_fitting(batch)

    def _run_batch(self, batch: list[_Item]) -> list[dict[str, Array] | Exception]:
        """Return the outputs of each request, or its error. Runs in a thread."""
        if len(batch) > 1:
            merged = self._run_merged(batch)
            if merged is not None:
                return merged
        return [self._run_alone(item) for item in batch]

    def _run_alone(self, item: _Item) -> dict[str, Array] | Exception:
        try:
            return dict(zip(item.names, self._run(item.inputs, item.names), strict=True))
        except Exception as error:
            return error

    def _run_merged(self, batch: list[_Item]) -> list[dict[str, Array] | Exception] | None:
        """Run all requests together as `_run_batch`; return None if that fails, so that each runs alone."""
        names = list(dict.fromkeys(name for item in batch for name in item.names))
        starts = np.cumsum([0, *(item.rows for item in batch)])
        try:
            inputs = {name: np.concatenate([item.inputs[name] for item in batch]) for name in batch[0].inputs}
            outputs = dict(zip(names, self._run(inputs, names), strict=True))
        except Exception:
            return None
        if any(not array.ndim or len(array) != starts[-1] for array in outputs.values()):
            self.most_rows = 1  # the output rows do not match the input rows, so never merge again
            return None
        return [
            {name: outputs[name][start:end] for name in item.names}
            for item, (start, end) in zip(batch, pairwise(starts), strict=True)
        ]


def time_batches(run: Callable[[int], Any], most_rows: int, budget_s: float = PROBE_S) -> dict[int, float]:
    """Return the seconds of a batch by its rows: the least of up to five after one warm-up, for the sizes within the budget.

    Other processes only add to a time, so the least depends on them the least.
    """
    times: dict[int, float] = {}
    sizes = batch_sizes(most_rows)
    started = time.perf_counter()
    for rows in sizes:
        begun = time.perf_counter()
        if times and begun - started > budget_s:
            break
        run(rows)
        samples: list[float] = []
        while not samples or (len(samples) < 5 and 5 * min(samples) < budget_s / len(sizes)):
            before = time.perf_counter()
            run(rows)
            samples.append(time.perf_counter() - before)
        times[rows] = min(samples)
    return times


def why_not_merged(
    run: Callable[[Mapping[str, Array]], Sequence[Array]], one: Mapping[str, Array], other: Mapping[str, Array]
) -> str:
    """Run two different rows alone and together; return why their answers differ, or an empty text if they agree.

    Rounding may differ, because kernels for other sizes sum in another order.
    """
    merged = {name: np.concatenate([one[name], other[name]]) for name in one}
    apart, together = [run(one), run(other)], run(merged)
    for i, whole in enumerate(together):
        rows = [alone[i] for alone in apart]
        if whole.ndim == 0 or len(whole) != 2 or any(row.shape != (1, *whole.shape[1:]) for row in rows):
            return "its outputs do not have a row for each row of its inputs"
        if not _is_close(whole, np.concatenate(rows)):
            return "its answer to a row depends on the other rows"
    return ""


def _is_close(a: Array, b: Array) -> bool:
    if a.dtype.kind != "f":
        return bool((a == b).all())
    scale = float(np.nanmax(np.abs(b[np.isfinite(b)]), initial=0.0)) or 1.0
    tolerance = 1e-2 if a.dtype == np.float16 else 1e-4
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
