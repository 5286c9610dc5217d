"""Asynchronous SGD in time: when each gradient is applied, and its staleness.

The server's version V counts its updates. A learner reads V as it pulls, computes, and pushes. The staleness of its gradient is
the number of updates in between: V before its own update, minus V as read. With softsync, an update waits for the gradients of
several pushes; learners do not wait for it. A server that needs time for each gradient takes them one at a time, in order of
arrival.

Times are whole nanoseconds, so that equal times are equal. At one instant learners act in the order of their numbers, each
first with its push and then with its pull.

Source: Zhang, Gupta, Lian, Liu, Staleness-aware async-SGD, arXiv 1511.05950, for staleness and softsync.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from chronograd.errors import InputError
from chronograd.units import seconds
from chronograd.words import how_many

NS = 10**9
LONGEST_S = 1e9  # 30 years; in nanoseconds a ninth of the limit of 64 bits
MAX_UPDATES = 20_000_000
Array = np.ndarray
_BLOCK = 1024  # durations per draw


@dataclass(frozen=True)
class Duration:
    """The seconds of an activity: fixed, or drawn each time.

    Attributes:
        kind: `fixed`, `exponential`, `uniform`, `normal` (cut at 0), or `samples`, drawn with replacement.
        values: the seconds; the mean; minimum and maximum; mean and deviation; the samples.
    """

    kind: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        expected = {"fixed": 1, "exponential": 1, "uniform": 2, "normal": 2, "samples": len(self.values) or 1}
        is_known = self.kind in expected and len(self.values) == expected[self.kind]
        in_range = all(0 <= value <= LONGEST_S for value in self.values)  # nan is not
        if not (is_known and in_range and (self.kind != "uniform" or self.values[0] <= self.values[1])):
            raise InputError(
                f"{self.kind} {list(self.values[:9])} is not a duration",
                "give seconds from 0 on: 0.5, exponential:0.5, uniform:0.4:0.6 or normal:0.5:0.1",
            )

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse words such as `0.5`, `exponential:0.5`, `uniform:0.4:0.6`, `normal:0.5:0.1`. Raises InputError.

        >>> Duration.parse("uniform:0.4:0.6").mean_s
        0.5
        """
        kind, *values = text.split(":") if re.match("[a-z]", text) else ("fixed", text)
        try:
            return cls(kind, tuple(float(value) for value in values))
        except ValueError:
            raise InputError(f"cannot read the duration {text!r}", "write 0.5, or normal:0.5:0.1") from None

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.values)) if self.kind in ("uniform", "samples") else self.values[0]

    def draw_ns(self, count: int, random: np.random.Generator) -> Array:
        """Draw durations, shape (count,), int64."""
        first, second = (*self.values, 0.0)[:2]
        if self.kind == "fixed":
            return np.full(count, round(first * NS))
        if self.kind == "exponential":
            drawn = random.exponential(first, count)
        elif self.kind == "uniform":
            drawn = random.uniform(first, second, count)
        elif self.kind == "normal":
            drawn = np.maximum(0.0, random.normal(first, second, count))
        else:
            drawn = random.choice(np.array(self.values), count)
        return np.rint(drawn * NS).astype(np.int64)


NO_TIME = Duration("fixed", (0.0,))


@dataclass(frozen=True)
class Learner:
    """One learner's cycle.

    The server reads weights for it `request` after the last cycle. The learner has them `pull` later, has the gradient
    `compute` after that, and the server has the gradient `push` after that.
    """

    compute: Duration
    pull: Duration = NO_TIME
    push: Duration = NO_TIME
    request: Duration = NO_TIME

    @property
    def parts_s(self) -> tuple[float, ...]:
        """Return the mean times of its request, pull, computation and push."""
        return tuple(part.mean_s for part in (self.request, self.pull, self.compute, self.push))

    @property
    def cycle_s(self) -> float:
        return sum(self.parts_s)


@dataclass(frozen=True, eq=False)
class Updates:
    """Gradients in order of arrival, arrays of shape (num_gradients,); only those that an update used.

    Attributes:
        learner, index: number of the learner, and of the gradient among the learner's; from 1.
        read_ns, pulled_ns, computed_ns, pushed_ns, applied_ns: times when the server read the weights, when the learner had
            them, when it had the gradient, when that arrived, and of the update.
        update: number of its update, from 1: the version after it. `staleness`: versions.
        num_waiting: gradients that arrived, but whose update the run did not reach.
    """

    learner: Array
    index: Array
    read_ns: Array
    pulled_ns: Array
    computed_ns: Array
    pushed_ns: Array
    applied_ns: Array
    update: Array
    staleness: Array
    num_waiting: int

    @property
    def mean(self) -> float:
        return float(self.staleness.mean()) if len(self.staleness) else math.nan

    @property
    def updates_per_s(self) -> float:
        """Return the versions divided by the time of the last."""
        last_ns = int(self.applied_ns[-1]) if len(self.applied_ns) else 0
        return int(self.update[-1]) / (last_ns / NS) if last_ns else math.nan

    def distribution(self) -> list[tuple[int, int]]:
        """Return each staleness and its number of gradients."""
        values, counts = np.unique(self.staleness, return_counts=True)
        return list(zip(values.tolist(), counts.tolist(), strict=True))

    def of_learner(self, number: int) -> Array:
        """Return the staleness of one learner's gradients."""
        own: Array = self.staleness[self.learner == number]
        return own


def of_pushes(pushes_s: Sequence[Sequence[float]], gradients_per_update: int = 1) -> Updates:
    """Return the staleness of gradients that arrive at given times. Each learner pulls when it has pushed, and at first at time
    0.

    Args:
        pushes_s: by learner, seconds, ascending from above 0.
        gradients_per_update: of softsync.

    Raises: InputError for times that do not rise, and for no learner.

    >>> of_pushes([[1, 2, 3, 4], [2.5, 5]]).staleness.tolist()  # in order of time
    [0, 0, 2, 1, 0, 2]
    """
    pushes = [np.asarray(times, dtype=float) for times in pushes_s]
    for number, times in enumerate(pushes, 1):
        if times.ndim != 1 or not (np.isfinite(times).all() and (np.diff(times, prepend=0.0) > 0).all()):
            raise InputError(
                f"pushes of learner {number} are at {times[:9].tolist()} s", "times must rise from above 0"
            )
        if len(times) and times[-1] > LONGEST_S:
            raise InputError(f"learner {number} pushes at {times[-1]:g} s", f"the longest run is {LONGEST_S:g} s")
    pushed = [np.rint(times * NS).astype(np.int64) for times in pushes]
    read = [np.concatenate([[0], times[:-1]])[: len(times)] for times in pushed]
    return _ordered([_Times(r, r, p, p, p) for r, p in zip(read, pushed, strict=True)], gradients_per_update)


def simulate(
    learners: Sequence[Learner],
    num_updates: int,
    gradients_per_update: int = 1,
    waits: bool = True,
    seed: int = 0,
    serve: Duration = NO_TIME,
) -> Updates:
    """Simulate the first `num_updates` updates of learners that start together at time 0. Exact for the drawn durations.

    Args:
        gradients_per_update: 1 is plain asynchronous SGD; n-softsync with L learners has L/n.
        waits: whether a learner pulls after its push was applied, or already after sending it. Pushes of one learner never
            overtake each other.
        serve: the server's time for a gradient, after its arrival and the end of earlier ones.

    Left out: a server that is too busy to answer a pull at once.

    Raises: InputError for no learner, a cycle that takes no nanosecond, a count below 1 or above MAX_UPDATES, or a longer run than
        64 bits can count in nanoseconds.
    """
    if not learners or min(max(learner.parts_s) for learner in learners) < 1 / NS:
        raise InputError(
            f"{how_many(len(learners), 'learners')}, or one whose cycle takes no time",
            "give each a time to compute of at least a nanosecond",
        )
    if not 1 <= num_updates * gradients_per_update <= MAX_UPDATES or gradients_per_update < 1:
        raise InputError(
            f"{how_many(num_updates, 'updates')} of {how_many(gradients_per_update, 'gradients')}",
            f"ask for 1 to {MAX_UPDATES:,} gradients",
        )
    wanted = num_updates * gradients_per_update
    rate = sum(1 / learner.cycle_s for learner in learners)
    # The first draws go on for up to 11 cycles of the slowest learner; and random durations may be longer than their means.
    longest_s = max(wanted / rate, wanted * serve.mean_s, 11 * max(learner.cycle_s for learner in learners))
    if longest_s > LONGEST_S:
        raise InputError(
            f"a run of {how_many(num_updates, 'updates')} takes up to {seconds(longest_s)}",
            f"ask for fewer, or give shorter durations: the longest run has {seconds(LONGEST_S)}",
        )
    clocks = [_Clock(one, (seed, number), waits) for number, one in enumerate(learners)]
    if serve != NO_TIME:
        times = _served(clocks, wanted, serve, np.random.default_rng((seed, len(clocks))))
        return _ordered(times, gradients_per_update, wanted)
    horizon_s = 1.02 * wanted / rate
    while True:
        for clock in clocks:
            clock.go_on(math.ceil(horizon_s / clock.learner.cycle_s) + 10)
        until = min(int(clock.pushed[-1]) for clock in clocks)  # all events before this instant are known
        if sum(int(np.searchsorted(clock.pushed, until)) for clock in clocks) >= wanted:
            break
        horizon_s *= 1.25
    return _ordered([clock.times for clock in clocks], gradients_per_update, wanted)


@dataclass(frozen=True)
class _Times:
    """Times of each gradient of one learner, int64 nanoseconds, shape (num_gradients,).

    `pushed`: its arrival. `served`: the end of the server's work on it.
    """

    read: Array
    pulled: Array
    computed: Array
    pushed: Array
    served: Array


@dataclass
class _Clock:
    """Times of one learner, as far as they were needed so far."""

    learner: Learner
    seed: tuple[int, int]
    waits: bool
    times: _Times = field(default_factory=lambda: _Times(*np.zeros((5, 0), dtype=np.int64)))
    _free: int = 0  # start of the next cycle

    def __post_init__(self) -> None:
        # One for each part, so that draws do not depend on the number drawn at once.
        self._random = [np.random.default_rng((*self.seed, part)) for part in range(4)]

    @property
    def pushed(self) -> Array:
        return self.times.pushed

    def go_on(self, total: int) -> None:
        count = total - len(self.pushed)
        if count <= 0:
            return
        pull, compute, push, request = self._draw(count)
        done = self._free + np.cumsum(request + pull + compute + (push if self.waits else 0))
        read = np.concatenate([[self._free], done[:-1]]) + request
        computed = read + pull + compute
        last = int(self.pushed[-1]) if len(self.pushed) else 0
        pushed = done if self.waits else np.maximum.accumulate(np.maximum(done + push, last))
        self._free = int(done[-1])
        new = (read, read + pull, computed, pushed, pushed)
        old = (self.times.read, self.times.pulled, self.times.computed, self.times.pushed, self.times.served)
        self.times = _Times(*(np.concatenate(pair) for pair in zip(old, new, strict=True)))

    def cycles(self) -> Iterator[list[int]]:
        """Yield pull, compute, push and request of one cycle after another, without end."""
        while True:
            yield from np.stack(self._draw(_BLOCK), axis=1).tolist()

    def _draw(self, count: int) -> list[Array]:
        own = self.learner
        durations = zip((own.pull, own.compute, own.push, own.request), self._random, strict=True)
        return [duration.draw_ns(count, random) for duration, random in durations]


def _served(clocks: list[_Clock], wanted: int, serve: Duration, random: np.random.Generator) -> list[_Times]:
    """Return the times of gradients that queue for the server, up to the last wanted update."""
    cycles = [clock.cycles() for clock in clocks]
    services = (time for _ in itertools.count() for time in serve.draw_ns(_BLOCK, random).tolist())
    rows = [array("q") for _ in clocks]  # five times for each gradient
    # The next gradient of each learner: arrival, learner, read, pulled, computed.
    coming: list[tuple[int, int, int, int, int]] = []
    for number, own in enumerate(cycles):
        pull, compute, push, request = next(own)
        coming.append((request + pull + compute + push, number, request, request + pull, request + pull + compute))
    heapq.heapify(coming)
    free = count = 0
    while True:
        arrived, number, read, pulled, computed = coming[0]
        served = max(arrived, free) + next(services)
        if count >= wanted and served > free:
            break
        free, count = served, count + 1
        rows[number].extend((read, pulled, computed, arrived, served))
        pull, compute, push, request = next(cycles[number])
        read = (served if clocks[number].waits else computed) + request
        computed = read + pull + compute
        heapq.heapreplace(coming, (max(computed + push, arrived), number, read, read + pull, computed))
    return [_Times(*np.frombuffer(own, dtype=np.int64).reshape(-1, 5).T) for own in rows]


def _ordered(times: list[_Times], per_update: int, wanted: int | None = None) -> Updates:
    """Put all events in the order of the tie rule, and count versions along it."""
    if not times or per_update < 1:
        raise InputError(
            f"{how_many(len(times), 'learners')}, {per_update} gradients per update", "give at least 1 of each"
        )
    sizes = [len(own.pushed) for own in times]
    learner = np.repeat(np.arange(1, len(times) + 1), sizes)
    index = np.concatenate([np.arange(1, size + 1) for size in sizes])
    reads, pulled, computed, pushed, served = (
        np.concatenate([getattr(own, column.name) for own in times]) for column in fields(_Times)
    )
    number = len(learner)
    # By time, then learner, then sequence: pull 1, push 1, pull 2. First pulls at time 0 come before everything.
    time = np.concatenate([served, reads])
    is_read = np.repeat([False, True], number)
    who = np.concatenate([learner, np.where((index == 1) & (reads == 0), 0, learner)])
    order = np.lexsort((np.concatenate([2 * index + 1, 2 * index]), who, time))
    arrived = np.cumsum(~is_read[order])
    seen = np.empty(2 * number, dtype=np.int64)
    seen[order] = arrived  # gradients that arrived until each event, itself included
    rank, before_read = seen[:number] - 1, seen[number:]
    inward = np.argsort(rank)
    count = number if wanted is None else min(wanted, number)
    whole = count // per_update * per_update
    chosen = inward[:whole]
    update = rank[chosen] // per_update + 1
    applied = served[chosen].reshape(-1, per_update)[:, -1].repeat(per_update)
    return Updates(
        learner[chosen],
        index[chosen],
        reads[chosen],
        pulled[chosen],
        computed[chosen],
        pushed[chosen],
        applied,
        update,
        update - 1 - before_read[chosen] // per_update,
        count - whole,
    )
