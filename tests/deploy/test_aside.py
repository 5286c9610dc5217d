"""Work in a separate thread: a limited queue, and no start without enough time left."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chronograd.deploy.aside import Aside
from chronograd.deploy.batching import QueueFull


def test_limits_of_running_and_waiting_work() -> None:
    async def check() -> None:
        aside, go = Aside(2, most_waiting=1), threading.Event()
        tasks = [asyncio.create_task(aside.run(go.wait, 20)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="3 requests are already waiting"):
            await aside.run(go.wait, 20)
        go.set()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert await aside.run(lambda: 7, 20) == 7

    asyncio.run(check())


def test_expired_work_does_not_start() -> None:
    begun: list[str] = []

    async def check() -> None:
        aside, go = Aside(1, most_waiting=1), threading.Event()
        with pytest.raises(TimeoutError):
            await aside.run(go.wait, 0.01)
        with pytest.raises(TimeoutError):  # the thread is still taken
            await aside.run(lambda: begun.append("late"), 0.01)
        task = asyncio.create_task(aside.run(lambda: begun.append("right"), 20))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await aside.run(lambda: begun.append("more"), 20)
        go.set()
        await task

    asyncio.run(check())
    assert begun == ["right"]
