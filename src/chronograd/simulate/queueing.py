"""A server as a queue: waiting times and batches of requests, by their rate.

Requests come at random, as a Poisson process, and pass

    one thread, which reads requests and writes answers one at a time            loop_s each
    the queue of a model: waiting requests run as a batch, which may wait for more
    the model, which takes longer for a batch that meets an idle model
    the way there and back, for which nobody else waits                          travel_s each

If that thread and the model share one core, they take turns. A batch that has used the core for a slice of the scheduler pauses
while requests are read. The next batch waits until the answers of the last are written.

The simulation follows some ten thousand requests, because no formula covers batches, a delay bound and a bounded queue. Where a
formula exists (a batch of 1), it agrees with M/M/1, M/D/1 and M/M/c. Every rate uses the same random numbers, so that answers
differ by the rate alone.

The knee is the rate at which the mean latency is twice that of a lone request. The maximum of a server is the rate at which
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

REQUESTS = 25_000  # followed at each rate; the first tenth meets an emptier server and is left out
KNEE = 2.0  # times the latency of a lone request
SHARE = 0.99  # of requests that have to be answered within a bound
GAIN = 0.05  # minimum saving of time per row for a larger batch, above the noise of the clock
_PRECISION = 0.01  # of a rate that is searched for
_TRIED = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.001)  # shares of the server's maximum to try before the search


def batch_sizes(most_rows: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the maximum.

    >>> batch_sizes(12)
    [1, 2, 4, 8, 12]
    """
    sizes = [1]
    while sizes[-1] * 2 < most_rows:
        sizes.append(sizes[-1] * 2)
    return [*sizes, most_rows] if most_rows > 1 else sizes


def best_rows(times: Mapping[int, float]) -> int:
    """Return the smallest batch that takes at most GAIN more time per row than the best; 1 if none saves that much.

    >>> best_rows({1: 1.0, 2: 1.2, 4: 2.0, 8: 3.9}), best_rows({1: 1.0, 2: 2.0, 4: 3.9})
    (4, 1)
    """
    per_row = {rows: seconds / rows for rows, seconds in times.items()}
    least = min(per_row.values())
    if least > (1 - GAIN) * per_row[1]:
        return 1
    return min(rows for rows, seconds in per_row.items() if seconds <= (1 + GAIN) * least)


@dataclass(frozen=True)
class Server:
    """A server of one model. Requests have one row each.

    Attributes:
        batch_s: seconds of a batch by its rows, linear between these sizes.
        most_rows: of a batch.
        wait_s: maximum time that the first of a batch waits for others while the model is free.
        most_waiting: maximum number of requests in the queue. instances: batches that run at a time.
        loop_s, travel_s: of each request; see above.
        has_one_core: that thread and one model share a core.
        answer_s, slice_s: with one core. The part of `loop_s` after the batch; and the time that a batch keeps the core
            although requests come.
        factors: spread of the time of a batch; each batch draws one.
        wake_s: additional seconds of a batch that meets an idle server, by the seconds since the last batch: caches hold other
            data, cores and threads sleep. Linear between these times, from 0 at once; constant after the last.
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
        """Return the seconds of a batch of 1, 2, … rows."""
        sizes = sorted(self.batch_s)
        return [float(s) for s in np.interp(range(1, self.most_rows + 1), sizes, [self.batch_s[n] for n in sizes])]

    @property
    def lone_s(self) -> float:
        """Return the mean latency of a request that meets no other."""
        held_s = self.wait_s if self.most_rows > 1 else 0.0
        one_s = self.seconds[0] * float(np.mean(self.factors)) + self.woken_s(np.inf)
        return self.loop_s + held_s + one_s + self.travel_s

    @property
    def most_per_s(self) -> float:
        """Return the requests per second of full batches one after another."""
        least_s = min(s / rows for rows, s in enumerate(self.seconds, 1)) * float(np.mean(self.factors))
        if self.has_one_core:
            return 1 / (least_s + self.loop_s)
        return 1 / max(least_s / self.instances, self.loop_s)

    def slower(self, factor: float) -> Server:
        """Return the same server with a model that takes `factor` times as long."""
        return replace(self, batch_s={rows: s * factor for rows, s in self.batch_s.items()})

    def woken_s(self, idle_s: float) -> float:
        """Return the additional seconds of a batch that begins `idle_s` after the end of the last one.

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
    """The outcome of requests at a rate.

    Attributes:
        seconds: from request to answer, ascending, of the answered requests.
        refused: requests that met a full queue. `rows`: the mean batch.
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

    def holds(self, bound_s: float) -> bool:
        """Return whether 99 % of all requests, including refused ones, is answered within the bound."""
        answered = np.searchsorted(self.seconds, bound_s, side="right")
        return bool(answered >= SHARE * (self.refused + len(self.seconds)))


def at_rate(server: Server, rate: float, requests: int = REQUESTS) -> Latencies:
    """Return the latencies at a number of requests per second."""
    random = np.random.default_rng(0)
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
    """Return the seconds from each arrival to its answer, NaN if it is refused; and the number of batches.

    Args:
        arrivals: in ascending order.
        factors: of the time of the first, second … batch; one for each arrival is enough.

    With several instances, a waiting batch is not shared with an instance that becomes free in the meantime.
    """
    if server.has_one_core:
        return _follow_on_one_core(server, arrivals, factors)
    # The thread does one request at a time: each ends at the later of the last end and its own arrival, plus its own time.
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
    """Return the same as `follow` if reading, one batch at a time and answering take turns on one core.

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
    waiting: deque[tuple[float, int]] = deque()  # the time when each was read, and its number
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
    """Return the rate at which the mean latency is KNEE times that of a lone request."""
    limit_s = KNEE * server.lone_s
    return _highest(server, lambda latencies: latencies.mean_s <= limit_s)


def most_within(server: Server, bound_s: float) -> float:
    """Return the highest rate at which 99 % of requests is answered within the bound; 0 if a lone one is not."""
    return _highest(server, lambda latencies: latencies.holds(bound_s))


def _highest(server: Server, is_kept: Callable[[Latencies], bool]) -> float:
    """Return the highest rate, up to the server's maximum, at which a condition holds; 0 if it never does."""
    above = most = server.most_per_s
    # From above, because at low rates requests may wait longer for a full batch than at high ones for each other.
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
