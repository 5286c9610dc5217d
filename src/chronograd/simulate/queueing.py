"""A server as a queue: how long requests wait and how they are batched, by the rate at which they come.

Requests come at random, as a Poisson process, and pass

    one thread, which reads requests and writes answers, one after the other     loop_s each
    the queue of a model, from which whatever waits is run together, at most so many rows; a batch may be held open
    the model, which takes longer for a batch that finds it idle
    what nobody else waits for: the way there and back                           travel_s each

Where that thread and the model have one core between them, they take turns: a batch that has had the core for a slice of the
scheduler stands still while requests are read, and the next one waits until the answers of the last are written.
Every request is followed, some ten thousand of them: no formula holds with batches, a delay bound and a bounded queue. Where there
is one (a batch of 1), this gives what M/M/1, M/D/1 and M/M/c say. The same random numbers serve every rate, so that what is
asked of a rate changes with the rate alone.

The knee is the rate at which the mean latency is twice that of a lone request. The most that a server can do is the rate at which
full batches follow each other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

REQUESTS = 25_000  # that are followed at each rate; the first tenth of them finds an emptier server, and is left out
KNEE = 2.0  # times the latency of a lone request
SHARE = 0.99  # of requests that are to be answered within a bound
GAIN = 0.05  # of the time per row that a batch must save to be worth it, above the noise of the clock
_PRECISION = 0.01  # of a rate that is searched for
_TRIED = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.001)  # shares of the most that a server can do, before that


def batch_sizes(most_rows: int) -> list[int]:
    """1, 2, 4 and so on, and the most.

    >>> batch_sizes(12)
    [1, 2, 4, 8, 12]
    """
    sizes = [1]
    while sizes[-1] * 2 < most_rows:
        sizes.append(sizes[-1] * 2)
    return [*sizes, most_rows] if most_rows > 1 else sizes


def best_rows(times: Mapping[int, float], gain: float = GAIN) -> int:
    """The smallest batch that takes at most `gain` more time per row than the best; 1 where none saves as much.

    >>> best_rows({1: 1.0, 2: 1.2, 4: 2.0, 8: 3.9}), best_rows({1: 1.0, 2: 2.0, 4: 3.9})
    (4, 1)
    """
    per_row = {rows: seconds / rows for rows, seconds in times.items()}
    least = min(per_row.values())
    if least > (1 - gain) * per_row[1]:
        return 1
    return min(rows for rows, seconds in per_row.items() if seconds <= (1 + gain) * least)


@dataclass(frozen=True)
class Server:
    """A server of one model. Requests have one row each.

    Attributes:
        batch_s: seconds of a batch by its rows; between these sizes times lie on straight lines.
        most_rows: of a batch.
        wait_s, most_waiting, instances: the longest that the first of a batch waits for others while the model is free;
            requests in the queue, beyond which one is refused; batches that are run at a time.
        loop_s, travel_s: of each request; see above.
        has_one_core: for that thread and one model.
        answer_s, slice_s: with one core. Of `loop_s`, that which comes after the batch; and the time that a batch keeps the core for
            though requests come.
        factors: of the time of a batch, one of which is drawn for each: how times of the same batch differ.
        wake_s: more seconds of a batch that finds all idle, by the seconds since the last one ended: caches hold other things, cores
            and threads are asleep. Between these times on straight lines, from 0 at once; behind the last as there.
    """

    batch_s: Mapping[int, float]
    most_rows: int = 1
    wait_s: float = 0.0
    most_waiting: int = 256
    instances: int = 1
    loop_s: float = 0.0
    travel_s: float = 0.0
    has_one_core: bool = False
    answer_s: float = 0.0
    slice_s: float = 0.0
    factors: Sequence[float] = (1.0,)
    wake_s: Mapping[float, float] = field(default_factory=dict)

    @cached_property
    def seconds(self) -> list[float]:
        """Of a batch of 1, 2, … rows."""
        sizes = sorted(self.batch_s)
        return [float(s) for s in np.interp(range(1, self.most_rows + 1), sizes, [self.batch_s[n] for n in sizes])]

    @property
    def lone_s(self) -> float:
        """The mean latency of a request that meets no other."""
        held_s = self.wait_s if self.most_rows > 1 else 0.0
        one_s = self.seconds[0] * float(np.mean(self.factors)) + self.woken_s(np.inf)
        return self.loop_s + held_s + one_s + self.travel_s

    @property
    def most_per_s(self) -> float:
        """Requests per second, full batch after full batch."""
        least_s = min(s / rows for rows, s in enumerate(self.seconds, 1)) * float(np.mean(self.factors))
        if self.has_one_core:
            return 1 / (least_s + self.loop_s)
        return 1 / max(least_s / self.instances, self.loop_s)

    def slower(self, factor: float) -> Server:
        """The same with a model that takes so many times longer."""
        return replace(self, batch_s={rows: s * factor for rows, s in self.batch_s.items()})

    def woken_s(self, idle_s: float) -> float:
        """More seconds of a batch that begins so long after the last one has ended.

        >>> [round(Server({1: 1.0}, wake_s={0.1: 0.2, 0.3: 0.6}).woken_s(idle_s), 3) for idle_s in (0, 0.05, 0.2, 9)]
        [0.0, 0.1, 0.4, 0.6]
        """
        before_s = before = 0.0
        for at_s, more_s in self.wake_s.items():
            if idle_s < at_s:
                return before + (more_s - before) * (idle_s - before_s) / (at_s - before_s)
            before_s, before = at_s, more_s
        return before


@dataclass(frozen=True)
class Latencies:
    """What became of requests at a rate.

    Attributes:
        seconds: from each request to its answer, in ascending order, of those that were answered.
        refused: requests that found the queue full. `rows`: the mean batch.
    """

    rate: float
    seconds: Array
    refused: int
    rows: float

    @property
    def mean_s(self) -> float:
        return float(self.seconds.mean())

    def percentile_s(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))

    @property
    def refused_share(self) -> float:
        return self.refused / (self.refused + len(self.seconds))

    def holds(self, bound_s: float, share: float = SHARE) -> bool:
        """Whether such a share of all requests, refused ones among them, is answered within the bound."""
        answered = np.searchsorted(self.seconds, bound_s, side="right")
        return bool(answered >= share * (self.refused + len(self.seconds)))


def at_rate(server: Server, rate: float, requests: int = REQUESTS, seed: int = 0) -> Latencies:
    """Latencies where so many requests come each second."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1.0, requests)) / rate
    factors = (
        random.choice(server.factors, requests) if len(server.factors) > 1 else np.full(requests, server.factors[0])
    )
    latencies, num_batches = follow(server, arrivals, factors)
    later = latencies[requests // 10 :]
    answered = np.sort(later[~np.isnan(later)])
    rows = float((~np.isnan(latencies)).sum() / num_batches)
    return Latencies(rate, answered, len(later) - len(answered), rows)


def follow(server: Server, arrivals: Array, factors: Array) -> tuple[Array, int]:
    """Seconds from each of the arrivals, in ascending order, to its answer, NaN where it is refused; and how many batches.

    Args:
        factors: of the time of the first, second … batch; as many as arrivals are enough.
    With several instances, a batch that is held open is not shared with an instance that becomes free meanwhile.
    """
    if server.has_one_core:
        return _follow_on_one_core(server, arrivals, factors)
    # What one thread does one after another: the end of each is that of the last, or its own arrival, and its own time.
    own = server.loop_s * np.arange(len(arrivals))
    ready = (np.maximum.accumulate(arrivals - own) + own + server.loop_s).tolist()
    free = [0.0] * server.instances
    batch_s, most_rows, wait_s = server.seconds, server.most_rows, server.wait_s
    drawn = iter(factors.tolist())
    accepted: list[
        int
    ] = []  # requests that were not refused, in their order; of these the first `taken` are in batches
    taken = following = 0
    ends: list[float] = []
    sizes: list[int] = []
    while taken < len(accepted) or following < len(ready):
        now = heappop(free)
        woken_s = 0.0
        if taken == len(accepted):
            woken_s = server.woken_s(ready[following] - now) if server.wake_s and ready[following] > now else 0.0
            now = max(now, ready[following])
        come = bisect_right(ready, now, following)
        room = server.most_waiting - (len(accepted) - taken)
        accepted.extend(range(following, min(come, following + room)))
        following = come
        rows = min(len(accepted) - taken, most_rows)
        if wait_s and rows < most_rows:
            until = ready[accepted[taken]] + wait_s
            come = min(bisect_right(ready, until, following), following + most_rows - rows)
            rows += come - following
            now = max(now, ready[come - 1] if rows == most_rows else until)
            accepted.extend(range(following, come))
            following = come
        ends.append(now + batch_s[rows - 1] * next(drawn) + woken_s)
        sizes.append(rows)
        taken += rows
        heappush(free, ends[-1])
    latencies = np.full(len(ready), np.nan)
    latencies[accepted] = np.repeat(ends, sizes) - arrivals[accepted] + server.travel_s
    return latencies, len(ends)


def _follow_on_one_core(server: Server, arrivals: Array, factors: Array) -> tuple[Array, int]:
    """`follow` where reading, one batch at a time and answering take turns on one core.

    >>> server = Server({1: 3.0}, loop_s=1.0, answer_s=0.25, has_one_core=True)
    >>> follow(server, np.array([0.0, 2.0]), np.ones(2))[0]  # the second is read while the first's batch stands still
    array([4.75, 6.  ])
    >>> follow(replace(server, slice_s=9.0), np.array([0.0, 2.0]), np.ones(2))[0]  # and here after it
    array([4., 6.])
    """
    due = [*arrivals.tolist(), math.inf]
    batch_s, drawn = server.seconds, iter(factors.tolist())
    read_s = server.loop_s - server.answer_s
    latencies = np.full(len(arrivals), np.nan)
    waiting: deque[tuple[float, int]] = deque()  # when each was read, and its number
    now = ended = 0.0
    following = num_batches = 0

    def read() -> None:
        nonlocal now, following
        now += read_s
        if len(waiting) < server.most_waiting:
            waiting.append((now, following))
        following += 1

    while waiting or following < len(arrivals):
        is_idle = not waiting
        if is_idle:
            now = max(now, due[following])
            read()
        while len(waiting) < server.most_rows and now < (until := waiting[0][0] + server.wait_s):
            now = min(until, max(due[following], now))
            if due[following] <= now:
                read()
        batch = [waiting.popleft()[1] for _ in range(min(len(waiting), server.most_rows))]
        left_s = batch_s[len(batch) - 1] * next(drawn)
        if is_idle and server.wake_s:
            left_s += server.woken_s(now - ended)
        while left_s > 0:
            while due[following] <= now:
                read()
            run_s = min(left_s, max(server.slice_s, due[following] - now))
            left_s -= run_s
            now += run_s
        for number in batch:
            now += server.answer_s
            latencies[number] = now - due[number] + server.travel_s
        ended = now
        num_batches += 1
    return latencies, num_batches


def knee(server: Server) -> float:
    """The rate at which the mean latency is KNEE times that of a lone request."""
    limit_s = KNEE * server.lone_s
    return _highest(server, lambda latencies: latencies.mean_s <= limit_s)


def most_within(server: Server, bound_s: float, share: float = SHARE) -> float:
    """The highest rate at which such a share of requests is answered within the bound; 0 where a lone one is not."""
    return _highest(server, lambda latencies: latencies.holds(bound_s, share))


def _highest(server: Server, is_kept: Callable[[Latencies], bool]) -> float:
    """The highest rate, up to the most that the server can do, at which something is kept; 0 where it is at none."""
    above = most = server.most_per_s
    # From above, as few requests may have to wait longer for company than many have to wait for each other.
    for low in (share * most for share in _TRIED):
        if is_kept(at_rate(server, low)):
            break
        above = low
    else:
        return 0.0
    while above - low > _PRECISION * above:
        middle = (low + above) / 2
        low, above = (middle, above) if is_kept(at_rate(server, middle)) else (low, middle)
    return low
