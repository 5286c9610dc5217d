"""Queues, compared with formulas if they exist and otherwise with an event-by-event simulation."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from chronograd.simulate.queueing import Server, at_rate, follow, knee, most_within

MANY = 200_000
# Quantiles of the exponential distribution with mean 1: drawing from them approximates it.
_MIDDLES = -np.log(1 - (np.arange(4000) + 0.5) / 4000)
EXPONENTIAL = tuple(_MIDDLES / _MIDDLES.mean())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_m_1(load: float) -> None:
    """Times in the system are exponential; their rate is the service rate minus the arrival rate."""
    found = at_rate(Server({1: 1.0}, most_waiting=10**6, factors=EXPONENTIAL), load, MANY)
    assert found.mean_s == pytest.approx(1 / (1 - load), rel=0.05)
    for share in (0.5, 0.95, 0.99):
        assert found.percentile_s(share) == pytest.approx(-math.log(1 - share) / (1 - load), rel=0.06)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is ρ/(2(1-ρ)) of the service, and a share 1-ρ does not wait."""
    found = at_rate(Server({1: 0.01}, most_waiting=10**6), load / 0.01, MANY)
    assert found.mean_s == pytest.approx(0.01 * (1 + load / (2 * (1 - load))), rel=0.03)
    assert (found.seconds <= 0.01 + 1e-9).mean() == pytest.approx(1 - load, abs=0.01)


@pytest.mark.parametrize("load", [0.2, 0.7])
def test_longer_first_service(load: float) -> None:
    """Welch 1964: M/D/1 whose first service after any idle time takes 50 % longer."""
    found = at_rate(Server({1: 1.0}, most_waiting=10**6, wake_s={1e-12: 0.5}), load, MANY)
    idle = (1 - load) / (1 + 0.5 * load)  # share of requests that find an idle server
    waits = load / (2 * (1 - load)) + load * (1.5**2 - 1) / (2 * (1 + 0.5 * load))
    assert found.mean_s == pytest.approx(1 + 0.5 * idle + waits, rel=0.03)


def test_wakeup_cost_depends_on_the_pause() -> None:
    """The third request meets the second; the others arrive 2, 2 and 0.5 s after the previous one ended."""
    server = Server({1: 1.0}, wake_s={1.0: 0.4, 3.0: 0.8})
    latencies, _ = follow(server, np.array([2.0, 5.6, 7.1, 8.7]), np.ones(4))
    assert latencies.tolist() == pytest.approx([1.6, 1.6, 1.1, 1.2])


def test_m_m_c() -> None:
    """Erlang's C for three servers at a load of two."""
    found = at_rate(Server({1: 1.0}, instances=3, most_waiting=10**6, factors=EXPONENTIAL), 2.0, MANY)
    waits = (2**3 / 6) * 3 / ((1 + 2 + 2) + (2**3 / 6) * 3)
    assert found.mean_s == pytest.approx(1 + waits / (3 - 2), rel=0.03)


def test_bounded_queue_rejections_match_erlang() -> None:
    """M/M/1/K with one in service and four waiting, at a load of 1: all six states are equally likely."""
    found = at_rate(Server({1: 1.0}, most_waiting=4, factors=EXPONENTIAL), 1.0, MANY)
    assert found.refused_share == pytest.approx(1 / 6, rel=0.04)


def test_batch_sizes_match_a_markov_chain() -> None:
    """The queue length at the end of a batch is a Markov chain: at most four leave, and arrivals of time 1 join."""
    rate, most = 3.0, 4
    states = np.arange(60)
    poisson = np.exp(-rate + states * math.log(rate) - [math.lgamma(n + 1) for n in states])
    moves = np.zeros((60, 60))
    for n in states:
        left = max(n - most, 0)
        moves[n, left:] = poisson[: 60 - left]
    stationary = np.linalg.matrix_power(moves / moves.sum(axis=1, keepdims=True), 4096)[0]
    rows = stationary @ np.clip(states, 1, most)  # if none waits, the next request is a batch
    found = at_rate(Server(dict.fromkeys(range(1, 5), 1.0), most_rows=most, most_waiting=10**6), rate, MANY)
    assert found.rows == pytest.approx(rows, rel=0.01)


def _event_by_event(server: Server, arrivals: np.ndarray, factors: np.ndarray) -> list[float]:
    """Return the latencies of `follow` for one instance by events in time order: plain and slow."""
    events = [(float(at), 0, "arrival", number) for number, at in enumerate(arrivals)]
    heapq.heapify(events)
    latencies = [math.nan] * len(arrivals)
    reading: list[int] = []
    queue: list[tuple[float, int]] = []
    drawn = iter(factors)
    is_busy, loop_free = False, 0.0

    def start(now: float) -> None:
        nonlocal is_busy
        batch = [queue.pop(0)[1] for _ in range(min(len(queue), server.most_rows))]
        is_busy = True
        end = now + server.seconds[len(batch) - 1] * next(drawn)
        heapq.heappush(events, (end, 1, "end", 0))
        for number in batch:
            latencies[number] = end - arrivals[number] + server.travel_s

    def consider(now: float) -> None:
        if is_busy or not queue:
            return
        open_until = queue[0][0] + server.wait_s
        if len(queue) >= server.most_rows or now >= open_until:
            start(now)
        else:
            heapq.heappush(events, (open_until, 2, "deadline", 0))

    while events:
        now, _, kind, number = heapq.heappop(events)
        if kind == "arrival":
            loop_free = max(loop_free, now) + server.loop_s
            heapq.heappush(events, (loop_free, 0, "read", number))
            reading.append(number)
        elif kind == "read":
            if len(queue) < server.most_waiting:
                queue.append((now, number))
        elif kind == "end":
            is_busy = False
        consider(now)
    return latencies


@pytest.mark.parametrize("wait_s", [0.0, 0.8])
@pytest.mark.parametrize("rate", [0.3, 1.5, 6.0])
@pytest.mark.parametrize("loop_s", [0.0, 0.1])
def test_answer_times_match_a_plain_simulation(wait_s: float, rate: float, loop_s: float) -> None:
    """Test single requests, batches and a full queue, with and without waiting for others."""
    server = Server({1: 1.0, 4: 1.6, 8: 2.0}, most_rows=8, wait_s=wait_s, most_waiting=12, loop_s=loop_s, travel_s=0.05)
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(1 / rate, 3000))
    factors = random.uniform(0.8, 1.4, 3000)
    latencies, _ = follow(server, arrivals, factors)
    np.testing.assert_allclose(latencies, _event_by_event(server, arrivals, factors), rtol=1e-9, atol=1e-9)
    assert np.isnan(latencies).any() == (rate == 6.0)


def _tick_by_tick(arrivals: list[int], read: int, answer: int, slice_: int, run_of: list[int]) -> list[int]:
    """Return the ends of requests on one core, in integer ticks. It answers finished batches first, then reads
    arrivals, unless a batch is within its slice; otherwise it continues the batch. Plain and slow.
    """
    come, queue, batch, ends = list(enumerate(arrivals)), list[int](), list[int](), [0] * len(arrivals)
    answering = list[int]()
    reading, left_to_read, left_to_run, left_to_answer, had, now = -1, 0, 0, 0, 0, 0
    while come or reading >= 0 or queue or batch or answering:
        if not batch and not answering and queue:
            batch = [queue.pop(0) for _ in range(min(len(queue), len(run_of)))]
            left_to_run, had = run_of[len(batch) - 1], 0
        may_read = not answering and (not batch or had == 0 or had >= slice_)
        if reading < 0 and may_read and come and come[0][1] <= now:
            (reading, _), left_to_read, had = come.pop(0), read, 0
        now += 1
        if answering:
            left_to_answer -= 1
            if not left_to_answer:
                ends[answering.pop(0)], left_to_answer = now, answer
        elif reading >= 0:
            left_to_read -= 1
            if not left_to_read:
                queue.append(reading)
                reading = -1
        elif batch:
            left_to_run, had = left_to_run - 1, had + 1
            if not left_to_run:
                answering, left_to_answer, batch = batch, answer, []
                if not answer:
                    for number in answering:
                        ends[number] = now
                    answering = []
    return ends


@pytest.mark.parametrize("most_rows", [1, 3])
@pytest.mark.parametrize("pause", [2.5, 14.5, 40.5])
@pytest.mark.parametrize(("answer", "slice_"), [(0, 0), (10, 0), (0, 70), (10, 70), (10, 1000)])
def test_single_core_alternates_reading_batches_and_answers(most_rows: int, pause: float, answer: int, slice_: int) -> None:  # fmt: skip
    """Include a rate beyond the capacity. No two events share a tick, where the order is undefined."""
    loop, run_of = 30, [110, 130, 170][:most_rows]
    arrivals = np.cumsum(np.random.default_rng(5).exponential(10 * pause, 400)).astype(int) * 2 + np.arange(400)
    server = Server(
        {rows: float(s) for rows, s in enumerate(run_of, 1)},
        most_rows=most_rows,
        most_waiting=10**6,
        loop_s=loop,
        answer_s=answer,
        slice_s=slice_,
        has_one_core=True,
    )
    latencies, _ = follow(server, arrivals.astype(float), np.ones(400))
    expected = np.array(_tick_by_tick(arrivals.tolist(), loop - answer, answer, slice_, run_of)) - arrivals
    np.testing.assert_allclose(latencies, expected, atol=1e-6)


def test_single_core_reading_takes_time_from_the_model() -> None:
    server = Server({1: 1.0, 4: 2.0}, most_rows=4, loop_s=0.5, has_one_core=True)
    assert server.most_per_s == pytest.approx(1.0)
    assert server.lone_s == pytest.approx(1.5)
    assert Server({1: 1.0, 4: 2.0}, most_rows=4, loop_s=0.5).most_per_s == pytest.approx(2.0)
    assert knee(server) < knee(Server({1: 1.0, 4: 2.0}, most_rows=4, loop_s=0.5))


def test_knee() -> None:
    """M/M/1 at half of its capacity, M/D/1 at two thirds, and later with batches."""
    long = 10**6
    assert knee(Server({1: 1.0}, most_waiting=long, factors=EXPONENTIAL)) == pytest.approx(1 / 2, rel=0.04)
    assert knee(Server({1: 1.0}, most_waiting=long)) == pytest.approx(2 / 3, rel=0.03)
    batched = Server({1: 1.0, 16: 2.0}, most_rows=16)
    assert batched.most_per_s == pytest.approx(8)
    assert 2 < knee(batched) < 8


def test_maximum_rate_within_a_bound() -> None:
    server = Server({1: 1.0, 16: 2.0}, most_rows=16, travel_s=0.1)
    most = most_within(server, 3.0)
    assert at_rate(server, most).holds(3.0)
    assert not at_rate(server, 1.03 * most).holds(3.0)
    assert most_within(server, 1.05) == 0.0
    # A batch held open for 2 s delays few requests within 2.5 s at a low rate; at a high rate they are faster together.
    held = Server({1: 1.0, 4: 1.0}, most_rows=4, wait_s=2.0)
    assert not at_rate(held, 0.1).holds(2.5)
    assert held.lone_s == pytest.approx(3.0)
