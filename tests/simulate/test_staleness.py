"""The simulator compared with the rule itself, event by event."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.errors import InputError
from chronograd.simulate import staleness
from chronograd.simulate.staleness import NS, Duration, Learner, Updates, of_pushes, simulate

FIXED = Duration("fixed", (0.0,))


def fixed(*seconds: float) -> list[Learner]:
    return [Learner(Duration("fixed", (s,))) for s in seconds]


def rows(found: Updates) -> list[tuple[int, int, int, int]]:
    columns = (found.learner, found.index, found.applied_ns, found.staleness)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_two_learner_exercise() -> None:
    found = of_pushes([[1, 2, 3, 4], [2.5, 5]])
    assert found.of_learner(1).tolist() == [0, 0, 1, 0]
    assert found.of_learner(2).tolist() == [2, 2]
    assert found.mean == pytest.approx(5 / 6)
    assert (found.applied_ns / NS).tolist() == [1, 2, 2.5, 3, 4, 5]
    # Learner 1 is first if both push at 5.
    assert of_pushes([[1, 2, 3, 4, 5], [2.5, 5]]).of_learner(2).tolist() == [2, 3]
    assert of_pushes([[2.5, 5], [1, 2, 3, 4, 5]]).of_learner(1).tolist() == [2, 2]


def test_long_run_means_of_two_rates() -> None:
    found = simulate(fixed(1, 2.5), 70_000)
    assert found.of_learner(1).mean() == pytest.approx(0.4, abs=1e-3)
    assert found.of_learner(2).mean() == pytest.approx(2.5, abs=1e-3)
    assert found.mean == pytest.approx(1, abs=1e-3)
    assert found.updates_per_s == pytest.approx(1.4, rel=1e-3)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_equal_learners_have_staleness_n_minus_1(count: int) -> None:
    random = [Learner(Duration("exponential", (1.0,))) for _ in range(count)]
    assert simulate(random, 50_000).mean == pytest.approx(count - 1, rel=0.01, abs=1e-9)
    assert simulate(fixed(*[1.0] * count), 5_000).staleness[count:].tolist() == [count - 1] * (5_000 - count)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_softsync_divides_staleness(n: int) -> None:
    """n-softsync of 8 learners: 8/n gradients per update, so versions advance 8/n times as slowly."""
    alike = [Learner(Duration("exponential", (1.0,))) for _ in range(8)]
    found = simulate(alike, 20_000, gradients_per_update=8 // n)
    assert len(found.staleness) == 20_000 * 8 // n
    assert found.mean == pytest.approx((8 - 1) / (8 // n), rel=0.02)
    assert np.bincount(found.update)[1:].tolist() == [8 // n] * 20_000


def test_asynchronous_learner_is_behind_itself() -> None:
    learner = Learner(Duration("fixed", (1.0,)), push=Duration("fixed", (2.5,)))
    assert set(simulate([learner], 100).staleness.tolist()) == {0}
    # Read at i - 1 and applied at i + 2.5, after the three previous gradients.
    assert simulate([learner], 100, waits=False).staleness.tolist()[3:] == [3] * 97


def test_parts_of_a_cycle_are_sequential() -> None:
    parts = (Duration("fixed", (s,)) for s in (1.0, 0.25, 0.5, 0.125))
    found = simulate([Learner(*parts)], 2)
    assert (found.read_ns / NS).tolist() == [0.125, 2.0]
    assert (found.pulled_ns / NS).tolist() == [0.375, 2.25]
    assert (found.computed_ns / NS).tolist() == [1.375, 3.25]
    assert found.pushed_ns.tolist() == found.applied_ns.tolist() == [round(1.875 * NS), round(3.75 * NS)]


def test_time_before_the_read_is_not_stale() -> None:
    """Others update during a whole cycle; only the 0.8 s between read and update of 1 s count."""
    parts = (Duration("exponential", (s,)) for s in (0.6, 0.1, 0.1, 0.2))
    alike = [Learner(*parts)] * 4
    assert simulate(alike, 50_000).mean == pytest.approx(0.8 * (4 - 1), rel=0.01)


class Reference:
    """Learners that act event by event: version, pulls, pushes and a queue. A cycle is its pull, compute, push, and
    request.
    """

    def __init__(
        self,
        cycles: Sequence[Sequence[tuple[int, int, int, int]]],
        per_update: int,
        waits: bool,
        serves: Sequence[int] = (0,),
    ) -> None:
        self.cycles, self.per_update, self.waits = cycles, per_update, waits
        self.serves = itertools.cycle(serves)

    def run(self, wanted: int) -> list[tuple[int, int, int, int]]:
        version, held, done = 0, list[tuple[int, int, int]](), list[tuple[int, int, int, int]]()
        read: dict[tuple[int, int], int] = {}
        free = 0
        queue: list[tuple[int, int, int, str]] = []  # time, learner, place in the learner's order, event
        latest = [0] * len(self.cycles)
        for learner in range(len(self.cycles)):
            request = self.cycles[learner][0][3]
            heapq.heappush(queue, (request, learner, 0, "pull") if request else (0, -1, learner, "first"))
        while len(done) < wanted:
            at, who, place, what = heapq.heappop(queue)
            learner, cycle = (place, 0) if what == "first" else (who, place // 3)
            if what in ("first", "pull"):
                read[learner, cycle] = version
                if cycle == len(self.cycles[learner]):
                    continue
                pull, compute, push, _ = self.cycles[learner][cycle]
                sent = at + pull + compute
                latest[learner] = max(latest[learner], sent + push)
                heapq.heappush(queue, (latest[learner], learner, 3 * cycle + 1, "arrival"))
                if not self.waits:
                    heapq.heappush(queue, (sent + self._request(learner, cycle + 1), learner, 3 * (cycle + 1), "pull"))
            elif what == "arrival":
                free = max(free, at) + next(self.serves)
                heapq.heappush(queue, (free, learner, 3 * cycle + 2, "push"))
            else:
                if self.waits:
                    heapq.heappush(queue, (at + self._request(learner, cycle + 1), learner, 3 * (cycle + 1), "pull"))
                held.append((learner, cycle, version - read[learner, cycle]))
                if len(held) == self.per_update:
                    done += [(one + 1, its + 1, at, stale) for one, its, stale in self._late(held, version, read)]
                    version, held = version + 1, []
        return done[:wanted]

    def _request(self, learner: int, cycle: int) -> int:
        return self.cycles[learner][cycle][3] if cycle < len(self.cycles[learner]) else 0

    @staticmethod
    def _late(held, version, read):
        return [(learner, cycle, version - read[learner, cycle]) for learner, cycle, _ in held]


cycle = st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 4), st.integers(0, 2))
schedule = st.lists(st.lists(cycle, min_size=12, max_size=12), min_size=1, max_size=4)


class Drawn(Duration):
    """Values in their order, repeated."""

    def draw_ns(self, count: int, random: np.random.Generator) -> np.ndarray:
        return np.array([int(v) for v in self.values][:count])


def clock_of(cycles: Sequence[tuple[int, int, int, int]], waits: bool) -> staleness._Clock:
    pull, compute, push, request = (Drawn("samples", tuple(map(float, part))) for part in zip(*cycles, strict=True))
    return staleness._Clock(Learner(compute, pull, push, request), (0, 0), waits)


@settings(max_examples=1000, deadline=None)
@given(cycles=schedule, per_update=st.integers(1, 3), waits=st.booleans())
@pytest.mark.slow
def test_random_schedules_are_exact(
    cycles: list[list[tuple[int, int, int, int]]], per_update: int, waits: bool
) -> None:
    """Use small integers, so that ties are frequent."""
    clocks = [clock_of(of_one, waits) for of_one in cycles]
    for clock in clocks:
        clock.go_on(len(cycles[0]))
    # Beyond the earliest end of a schedule, learners would be missing.
    end = min(int(clock.pushed[-1]) for clock in clocks)
    wanted = sum(int((clock.pushed < end).sum()) for clock in clocks) // per_update * per_update
    found = staleness._ordered([c.times for c in clocks], per_update, wanted)
    assert rows(found) == Reference(cycles, per_update, waits).run(wanted)


@settings(max_examples=300, deadline=None)
@given(
    cycles=schedule,
    per_update=st.integers(1, 3),
    waits=st.booleans(),
    serves=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_busy_server_is_exact(
    cycles: list[list[tuple[int, int, int, int]]], per_update: int, waits: bool, serves: list[int]
) -> None:
    """Repeat twelve cycles, also with a server that takes no time."""
    serve = Drawn("samples", tuple(map(float, serves)))
    clocks = [clock_of(of_one, waits) for of_one in cycles]
    wanted = 30 * per_update
    times = staleness._served(clocks, wanted, serve, np.random.default_rng(0))
    found = staleness._ordered(times, per_update, wanted)
    expected = Reference([of_one * 8 for of_one in cycles], per_update, waits, serves).run(wanted)
    assert rows(found) == expected


def test_server_limits_updates_but_not_staleness() -> None:
    """Eight learners compute for 1 s and the server takes 0.25 s: it is always busy, and they take turns."""
    found = simulate(fixed(*[1.0] * 8), 4000, serve=Duration("fixed", (0.25,)))
    assert found.updates_per_s == pytest.approx(1 / 0.25, rel=2e-3)
    assert set(found.staleness[8:].tolist()) == {7}
    alone = simulate(fixed(1.0), 100, serve=Duration("fixed", (0.25,)))
    assert (alone.applied_ns / NS).tolist() == [1.25 * k for k in range(1, 101)]


@settings(max_examples=100, deadline=None)
@given(periods=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1.1]), min_size=1, max_size=4))
def test_fixed_cycles_coincide_exactly(periods: list[float]) -> None:
    """Integer time makes 0.1 + 0.2 equal 0.3, and cycles can be drawn in parts."""
    found = simulate(fixed(*periods), 60)
    cycles = [[(0, round(p * NS), 0, 0)] * 700 for p in periods]
    assert rows(found) == Reference(cycles, 1, True).run(60)


def test_draws_do_not_depend_on_their_number() -> None:
    learners = [Learner(Duration("exponential", (m,)), Duration("uniform", (0.0, m))) for m in (0.5, 1.0, 4.0)]
    assert rows(simulate(learners, 200, seed=3)) == rows(simulate(learners, 5000, seed=3))[:200]
    assert rows(simulate(learners, 200, seed=3)) != rows(simulate(learners, 200, seed=4))


def test_invalid_input() -> None:
    for pushes in ([], [[2, 1]], [[0, 1]], [[1, float("nan")]]):
        with pytest.raises(InputError):
            of_pushes(pushes)
    for text in ("", "-1", "normal:1", "uniform:2:1", "gamma:1", "nan", "exponential:x"):
        with pytest.raises(InputError):
            Duration.parse(text)
    with pytest.raises(InputError, match="takes no time"):
        simulate([Learner(FIXED)], 10)
    with pytest.raises(InputError, match="takes no time"):  # each part rounds to 0 ns, so that no time would pass
        simulate([Learner(Duration("fixed", (4e-10,)), *[Duration("fixed", (4e-10,))] * 3)], 10)
    with pytest.raises(InputError, match="takes up to 38,194 d"):
        simulate(fixed(3e8), 1)
    with pytest.raises(InputError, match="takes up to 23,148 d"):
        simulate(fixed(1.0), 20_000_000, serve=Duration("fixed", (100.0,)))
    with pytest.raises(InputError, match="1 to"):
        simulate(fixed(1), 0)
