"""Threads for work that would block the thread of all answers; the amount of waiting work is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from chronograd.deploy.batching import QueueFull

T = TypeVar("T")
RETRY_S = 1


class Aside:
    """Threads, and the work that waits for them.

    Args:
        most_waiting: maximum number of waiting pieces of work; one more raises QueueFull.
    """

    def __init__(self, threads: int, most_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "aside")
        self._most = threads + most_waiting
        self._count, self._lock = 0, Lock()

    async def run(self, work: Callable[[], T], timeout_s: float) -> T:
        """Return the result of the work. Work with no time left does not start. Raises QueueFull, TimeoutError, and the work's
        errors.
        """
        if self._count >= self._most:
            raise QueueFull(self._count, RETRY_S)
        until = time.monotonic() + timeout_s

        def timed() -> T:
            if time.monotonic() > until:
                raise TimeoutError
            return work()

        self._add(1)
        future = self._pool.submit(timed)
        future.add_done_callback(lambda _: self._add(-1))  # perhaps long after a timeout: a thread cannot be stopped
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def _add(self, count: int) -> None:
        with self._lock:
            self._count += count
