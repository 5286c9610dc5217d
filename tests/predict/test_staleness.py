"""The simulator against the rule itself, played out event by event."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.errors import InputError
from chronograd.predict.staleness import NS, Duration, Learner, Updates, of_pushes, simulate

FIXED = Duration("fixed", (0.0,))


def fixed(*seconds: float) -> list[Learner]:
    return [Learner(Duration("fixed", (s,))) for s in seconds]


def rows(found: Updates) -> list[tuple[int, int, int, int]]:
    columns = (found.learner, found.index, found.applied_ns, found.staleness)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_the_two_learner_exercise() -> None:
    found = of_pushes([[1, 2, 3, 4], [2.5, 5]])
    assert found.of_learner(1).tolist() == [0, 0, 1, 0]
    assert found.of_learner(2).tolist() == [2, 2]
    assert found.mean == pytest.approx(5 / 6)
    assert (found.applied_ns / NS).tolist() == [1, 2, 2.5, 3, 4, 5]
    # Learner 1 comes first where both push at 5.
    assert of_pushes([[1, 2, 3, 4, 5], [2.5, 5]]).of_learner(2).tolist() == [2, 3]
    assert of_pushes([[2.5, 5], [1, 2, 3, 4, 5]]).of_learner(1).tolist() == [2, 2]


def test_long_run_means_of_rates_1_and_2_5ths() -> None:
    found = simulate(fixed(1, 2.5), 70_000)
    assert found.of_learner(1).mean() == pytest.approx(0.4, abs=1e-3)
    assert found.of_learner(2).mean() == pytest.approx(2.5, abs=1e-3)
    assert found.mean == pytest.approx(1, abs=1e-3)
    assert found.updates_per_s == pytest.approx(1.4, rel=1e-3)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_alike_learners_are_n_minus_1_versions_late(count: int) -> None:
    random = [Learner(Duration("exponential", (1.0,))) for _ in range(count)]
    assert simulate(random, 50_000).mean == pytest.approx(count - 1, rel=0.01, abs=1e-9)
    assert simulate(fixed(*[1.0] * count), 5_000).staleness[count:].tolist() == [count - 1] * (5_000 - count)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_softsync_divides_staleness(n: int) -> None:
    """n-softsync of 8 learners: 8/n gradients to an update, versions 8/n times as slow."""
    alike = [Learner(Duration("exponential", (1.0,))) for _ in range(8)]
    found = simulate(alike, 20_000, gradients_per_update=8 // n)
    assert len(found.staleness) == 20_000 * 8 // n
    assert found.mean == pytest.approx((8 - 1) / (8 // n), rel=0.02)
    assert np.bincount(found.update)[1:].tolist() == [8 // n] * 20_000


def test_a_learner_that_does_not_wait_is_behind_itself() -> None:
    learner = Learner(Duration("fixed", (1.0,)), push=Duration("fixed", (2.5,)))
    assert set(simulate([learner], 100).staleness.tolist()) == {0}
    # Read at i - 1, applied at i + 2.5: the three gradients before it arrive between.
    assert simulate([learner], 100, waits=False).staleness.tolist()[3:] == [3] * 97


class Reference:
    """Learners that act one event after the other: version, pulls, pushes and a queue, nothing else."""

    def __init__(self, cycles: Sequence[Sequence[tuple[int, int, int]]], per_update: int, waits: bool) -> None:
        self.cycles, self.per_update, self.waits = cycles, per_update, waits

    def run(self, wanted: int) -> list[tuple[int, int, int, int]]:
        version, held, done = 0, list[tuple[int, int, int]](), list[tuple[int, int, int, int]]()
        read: dict[tuple[int, int], int] = {}
        queue: list[tuple[int, int, int, str]] = []  # at, learner, place in the learner's own order, what
        latest = [0] * len(self.cycles)
        for learner in range(len(self.cycles)):
            heapq.heappush(queue, (0, -1, learner, "first"))
        while len(done) < wanted:
            at, who, place, what = heapq.heappop(queue)
            learner, cycle = (place, 0) if what == "first" else (who, place // 2)
            if what in ("first", "pull"):
                read[learner, cycle] = version
                if cycle == len(self.cycles[learner]):
                    continue
                pull, compute, push = self.cycles[learner][cycle]
                sent = at + pull + compute
                arrives = latest[learner] = max(latest[learner], sent + push)
                heapq.heappush(queue, (arrives, learner, 2 * cycle + 1, "push"))
                next_pull = arrives if self.waits else sent
                heapq.heappush(queue, (next_pull, learner, 2 * (cycle + 1), "pull"))
            else:
                held.append((learner, cycle, version - read[learner, cycle]))
                if len(held) == self.per_update:
                    done += [(one + 1, its + 1, at, stale) for one, its, stale in self._late(held, version, read)]
                    version, held = version + 1, []
        return done[:wanted]

    @staticmethod
    def _late(held, version, read):
        return [(learner, cycle, version - read[learner, cycle]) for learner, cycle, _ in held]


cycle = st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 4))
schedule = st.lists(st.lists(cycle, min_size=12, max_size=12), min_size=1, max_size=4)


@settings(max_examples=1000, deadline=None)
@given(cycles=schedule, per_update=st.integers(1, 3), waits=st.booleans())
def test_a_thousand_random_schedules_are_exact(
    cycles: list[list[tuple[int, int, int]]], per_update: int, waits: bool
) -> None:
    """Small whole numbers, so that ties are many."""
    from chronograd.predict import staleness

    class Drawn(Duration):
        def draw_ns(self, count: int, random: np.random.Generator) -> np.ndarray:
            return np.array([int(v) for v in self.values][:count])

    clocks = []
    for of_one in cycles:
        parts = [Drawn("samples", tuple(float(v) for v in part)) for part in zip(*of_one, strict=True)]
        clock = staleness._Clock(Learner(parts[1], parts[0], parts[2]), (0, 0), waits)
        clock.go_on(len(of_one))
        clocks.append(clock)
    # Beyond the earliest end of a schedule learners would be missing.
    end = min(int(clock.pushed[-1]) for clock in clocks)
    wanted = sum(int((clock.pushed < end).sum()) for clock in clocks) // per_update * per_update
    found = staleness._ordered([c.pushed for c in clocks], [c.read for c in clocks], per_update, wanted)
    assert rows(found) == Reference(cycles, per_update, waits).run(wanted)


@settings(max_examples=100, deadline=None)
@given(periods=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1.1]), min_size=1, max_size=4))
def test_fixed_cycles_meet_at_the_same_instants(periods: list[float]) -> None:
    """0.1 + 0.2 is 0.3 here, and cycles may be asked for in parts."""
    found = simulate(fixed(*periods), 60)
    cycles = [[(0, round(p * NS), 0)] * 700 for p in periods]
    assert rows(found) == Reference(cycles, 1, True).run(60)


def test_what_is_drawn_does_not_depend_on_how_much_is_asked_for() -> None:
    learners = [Learner(Duration("exponential", (m,)), Duration("uniform", (0.0, m))) for m in (0.5, 1.0, 4.0)]
    assert rows(simulate(learners, 200, seed=3)) == rows(simulate(learners, 5000, seed=3))[:200]
    assert rows(simulate(learners, 200, seed=3)) != rows(simulate(learners, 200, seed=4))


def test_wrong_input_is_refused() -> None:
    for pushes in ([], [[2, 1]], [[0, 1]], [[1, float("nan")]]):
        with pytest.raises(InputError):
            of_pushes(pushes)
    for text in ("", "-1", "normal:1", "uniform:2:1", "gamma:1", "nan", "exponential:x"):
        with pytest.raises(InputError):
            Duration.parse(text)
    with pytest.raises(InputError, match="takes no time"):
        simulate([Learner(FIXED)], 10)
    with pytest.raises(InputError, match="1 to"):
        simulate(fixed(1), 0)
