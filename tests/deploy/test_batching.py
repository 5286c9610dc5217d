"""Batched requests: each gets its own answer within the waiting limit, and a full queue returns an error."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.deploy import batching
from chronograd.deploy.batching import Batcher, Done, QueueFull, time_batches, why_not_merged
from chronograd.simulate.queueing import Server, best_rows, follow

Inputs = Mapping[str, Any]


class Doubling:
    """A model of two outputs that records its calls and can be paused."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, list[str]]] = []
        self.may_run = threading.Event()
        self.may_run.set()

    def __call__(self, inputs: Inputs, names: Sequence[str]) -> list[Any]:
        self.may_run.wait(10)
        self.runs.append((len(inputs["x"]), list(names)))
        if (inputs["x"] < 0).any():
            raise ValueError("a negative number")
        outputs = {"y": inputs["x"] * 2, "total": inputs["x"].sum(axis=1)}
        return [outputs[name] for name in names]


def rows(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, np.float32)[:, None]}


async def answers_while_busy(model: Doubling, asked: Sequence[tuple[Inputs, list[str]]], **options: Any) -> list[Any]:
    """Return the answers or exceptions of requests that arrive while the model is busy."""
    batcher = Batcher(model, **options)
    model.may_run.clear()
    first = asyncio.create_task(batcher.submit(rows(0), ["y"]))
    await asyncio.sleep(0.02)
    tasks = [asyncio.create_task(batcher.submit(inputs, names)) for inputs, names in asked]
    await asyncio.sleep(0.02)
    model.may_run.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    await batcher.close()
    return answers


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=5), st.sampled_from(["y", "total", "both"])), max_size=12), st.integers(2, 8))  # fmt: skip
def test_merged_requests_get_their_own_answers(asked: list[tuple[list[int], str]], most_rows: int) -> None:
    names = {"y": ["y"], "total": ["total"], "both": ["total", "y"]}
    model = Doubling()
    requests = [(rows(*values), names[which]) for values, which in asked]
    answers: list[Done] = asyncio.run(answers_while_busy(model, requests, most_rows=most_rows))
    for (values, which), done in zip(asked, answers, strict=True):
        assert list(done.outputs) == names[which]
        if "y" in done.outputs:
            assert done.outputs["y"].ravel().tolist() == [2 * v for v in values]
        if "total" in done.outputs:
            assert done.outputs["total"].tolist() == values
    assert max(count for count, _ in model.runs) <= max(most_rows, max((len(v) for v, _ in asked), default=1))


def test_waiting_requests_run_as_one_batch() -> None:
    model = Doubling()
    asyncio.run(answers_while_busy(model, [(rows(i), ["y"]) for i in range(6)], most_rows=8))
    assert [count for count, _ in model.runs] == [1, 6]


def test_requests_of_different_shapes_are_not_merged() -> None:
    model = Doubling()
    wide = {"x": np.ones((1, 3), np.float32)}
    answers = asyncio.run(answers_while_busy(model, [(rows(1), ["y"]), (wide, ["y"]), (rows(2), ["y"])], most_rows=8))
    assert [done.outputs["y"].tolist() for done in answers] == [[[2]], [[2, 2, 2]], [[4]]]
    assert [count for count, _ in model.runs] == [1, 2, 1]


def test_failing_request_does_not_fail_its_batch() -> None:
    model = Doubling()
    answers = asyncio.run(
        answers_while_busy(model, [(rows(1), ["y"]), (rows(-1), ["y"]), (rows(3), ["y"])], most_rows=8)
    )
    assert isinstance(answers[1], ValueError)
    assert [answers[i].outputs["y"].tolist() for i in (0, 2)] == [[[2]], [[6]]]


def test_model_with_other_output_rows_disables_batching() -> None:
    runs = []

    def pooled(inputs: Inputs, names: Sequence[str]) -> list[Any]:
        runs.append(len(inputs["x"]))
        return [inputs["x"].sum(axis=0)]

    async def go() -> tuple[list[Done], int]:
        batcher = Batcher(pooled, most_rows=8, wait_s=0.05)
        done = await asyncio.gather(*(batcher.submit(rows(i, i), ["y"]) for i in range(3)))
        await batcher.close()
        return done, batcher.most_rows

    done, most_rows = asyncio.run(go())
    assert [one.outputs["y"].tolist() for one in done] == [[0], [2], [4]]
    assert (runs, most_rows) == ([6, 2, 2, 2], 1)


def lone_s(most_rows: int, wait_s: float) -> float:
    """Return the least latency of sequential requests: other work on the machine only adds to the others."""

    async def go() -> float:
        batcher = Batcher(Doubling(), most_rows=most_rows, wait_s=wait_s)
        times = []
        for _ in range(30):
            before = time.perf_counter()
            await batcher.submit(rows(1), ["y"])
            times.append(time.perf_counter() - before)
        await batcher.close()
        return min(times)

    return asyncio.run(go())


@pytest.mark.parametrize("wait_s", [0.0, 0.03])
def test_batching_delays_single_requests_within_the_limit(wait_s: float) -> None:
    without, with_batching = lone_s(1, wait_s), lone_s(32, wait_s)
    assert with_batching <= without + wait_s + 0.01
    assert with_batching >= wait_s  # the limit takes effect


def test_full_batch_does_not_wait() -> None:
    async def go() -> float:
        batcher = Batcher(Doubling(), most_rows=4, wait_s=5.0)
        before = time.perf_counter()
        await asyncio.gather(*(batcher.submit(rows(i), ["y"]) for i in range(4)))
        passed = time.perf_counter() - before
        await batcher.close()
        return passed

    assert asyncio.run(go()) < 2.0


def test_partial_batch_does_not_wait_behind_other_shapes() -> None:
    """A request does not wait to fill its batch while a request of another shape waits for the model."""

    async def go() -> float:
        batcher = Batcher(Doubling(), most_rows=4, wait_s=0.5)
        before = time.perf_counter()
        first = asyncio.create_task(batcher.submit(rows(1), ["y"]))
        await asyncio.sleep(0.02)
        other = asyncio.create_task(batcher.submit({"x": np.ones((1, 3), np.float32)}, ["y"]))
        await first
        passed = time.perf_counter() - before
        await other
        await batcher.close()
        return passed

    assert asyncio.run(go()) < 0.25


def test_full_queue_returns_a_retry_time() -> None:
    model = Doubling()
    waiting = [(rows(i), ["y"]) for i in range(5)]
    answers = asyncio.run(answers_while_busy(model, waiting, most_waiting=3))
    assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, False, True, True]
    assert answers[3].retry_after_s >= 1


def test_two_instances_halve_the_queueing_time() -> None:
    """Ten requests wait, all of equal duration, and two run at a time."""
    model, took = Doubling(), list[float]()

    async def go() -> int:
        batcher = Batcher(model, most_waiting=10, instances=2, observe=lambda rows, run_s: took.append(run_s))
        model.may_run.clear()
        first = asyncio.create_task(batcher.submit(rows(0), ["y"]))
        await asyncio.sleep(0.4)
        model.may_run.set()
        await first
        model.may_run.clear()
        tasks = [asyncio.create_task(batcher.submit(rows(i), ["y"])) for i in range(2)]
        await asyncio.sleep(0.02)
        tasks += [asyncio.create_task(batcher.submit(rows(i), ["y"])) for i in range(10)]
        await asyncio.sleep(0.02)
        with pytest.raises(QueueFull) as full:
            await batcher.submit(rows(1), ["y"])
        model.may_run.set()
        await asyncio.gather(*tasks)
        await batcher.close()
        return full.value.retry_after_s

    retry_after_s = asyncio.run(go())
    assert retry_after_s == math.ceil(10 * took[0] / 2) > 1


def test_cancelled_request_leaves_the_queue() -> None:
    """The model does not run it, and its place in the queue is free."""
    model = Doubling()

    async def go() -> None:
        batcher = Batcher(model, most_waiting=1)
        model.may_run.clear()
        first = asyncio.create_task(batcher.submit(rows(0), ["y"]))
        await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            await batcher.submit(rows(1), ["y"], timeout_s=0.02)
        last = asyncio.create_task(batcher.submit(rows(2), ["y"]))
        await asyncio.sleep(0.02)
        model.may_run.set()
        assert (await last).outputs["y"].tolist() == [[4]]
        await first
        await batcher.close()

    asyncio.run(go())
    assert len(model.runs) == 2


def test_closing_answers_waiting_requests() -> None:
    model = Doubling()

    async def go() -> list[Done]:
        batcher = Batcher(model, most_rows=2)
        model.may_run.clear()
        tasks = [asyncio.create_task(batcher.submit(rows(i), ["y"])) for i in range(9)]
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.02)
        with pytest.raises(RuntimeError):
            await batcher.submit(rows(0), ["y"])
        model.may_run.set()
        await closing
        return [task.result() for task in tasks]

    assert [done.outputs["y"].item() for done in asyncio.run(go())] == [2 * i for i in range(9)]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer and to the stated end of each batch."""

    def __init__(self, batch_s: Sequence[float]) -> None:
        super().__init__()
        self.now, self.batch_s = 0.0, batch_s

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, run: Any, batch: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        self.call_later(self.batch_s[len(batch) - 1], future.set_result, run(batch))
        return future


@pytest.mark.parametrize("wait_s", [0.0, 0.8])
@pytest.mark.parametrize("rate", [0.3, 1.5, 6.0])
def test_predicted_batching_matches_the_server(wait_s: float, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The queue model of `predict` answers or refuses each request at the same time."""
    server = Server({1: 1.0, 4: 1.6, 8: 2.0}, most_rows=8, wait_s=wait_s, most_waiting=12)
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / rate, 400))
    loop = VirtualTimeLoop(server.seconds)
    monkeypatch.setattr(batching.time, "perf_counter", loop.time)

    async def go() -> list[float]:
        batcher = Batcher(Doubling(), most_rows=8, wait_s=wait_s, most_waiting=12)

        async def ask(arrival: float) -> float:
            await asyncio.sleep(arrival - loop.time())
            try:
                await batcher.submit(rows(1), ["y"])
            except QueueFull:
                return float("nan")
            return loop.time() - arrival

        latencies = await asyncio.gather(*map(ask, arrivals.tolist()))
        await batcher.close()
        return latencies

    latencies = loop.run_until_complete(go())
    loop.close()
    predicted, _ = follow(server, arrivals, np.ones(400))
    np.testing.assert_allclose(latencies, predicted, atol=1e-6)
    assert np.isnan(predicted).any() == (rate == 6.0)


def test_batching_without_gain_is_disabled() -> None:
    assert best_rows({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}) == 1
    assert best_rows({1: 1.0, 2: 1.96, 4: 3.9}) == 1  # 2.5 % of a row's time
    assert best_rows({1: 1.0, 2: 1.1, 4: 1.3, 8: 2.0}) == 8
    assert best_rows({1: 1.0, 2: 1.8, 4: 3.5, 8: 7.0}) == 2  # larger batches save little more and take longer


def test_batches_are_timed_within_the_budget() -> None:
    times = time_batches(lambda count: time.sleep(0.01 * count), 64, budget_s=0.2)
    assert list(times)[:2] == [1, 2]
    assert 64 not in times
    assert times[1] >= 0.01


def model_of(change: Callable[[Any], Any]) -> Callable[[Inputs], list[Any]]:
    return lambda inputs: [change(inputs["x"])]


def test_rows_that_depend_on_each_other_are_not_merged() -> None:
    one, other = rows(1.0), rows(5.0)
    assert why_not_merged(model_of(lambda x: x * 2), one, other) == ""
    assert why_not_merged(model_of(lambda x: x * (1 + 1e-6 * len(x))), one, other) == ""  # rounding
    assert "depends on the other rows" in why_not_merged(model_of(lambda x: x - x.mean(axis=0)), one, other)
    assert "do not have a row for each row" in why_not_merged(model_of(lambda x: x.sum(axis=0)), one, other)
    assert "do not have a row for each row" in why_not_merged(model_of(lambda x: x.sum()), one, other)
