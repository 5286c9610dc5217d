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
        aside, go, is_held = Aside(1, most_waiting=1), threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            go.wait()

        holding = asyncio.create_task(aside.run(hold, 20))
        await asyncio.to_thread(is_held.wait)
        with pytest.raises(TimeoutError):
            await aside.run(lambda: begun.append("late"), 0.01)
        task = asyncio.create_task(aside.run(lambda: begun.append("right"), 20))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await aside.run(lambda: begun.append("more"), 20)
        go.set()
        await asyncio.gather(holding, task)

    asyncio.run(check())
    assert begun == ["right"]


def test_running_work_that_takes_too_long_is_given_up() -> None:
    async def check() -> None:
        go = threading.Event()
        with pytest.raises(TimeoutError):
            await Aside(1, most_waiting=1).run(go.wait, 0.01)
        go.set()

    asyncio.run(check())
