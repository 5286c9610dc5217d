"""All-reduce times from latency and bandwidth: the α–β model.

n ranks, S bytes on each, α seconds per message, B bytes per second in one direction. The arithmetic of the
reduction, contention and changes of protocol with size are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from chronograd.errors import InputError, NotFoundError


def ring(message_bytes: float, num_ranks: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """2(n - 1)·α + 2(n - 1)/n · S/B: a reduce-scatter and an all-gather of n - 1 steps, S/n bytes each.

    Source: Patarasuk and Yuan 2009.

    >>> ring(1e9, 4, 0.0, 1e9)
    1.5
    """
    n = _ranks(num_ranks)
    return 2 * (n - 1) * latency_s + 2 * (n - 1) / n * message_bytes / bandwidth_bytes_per_s


def tree(message_bytes: float, num_ranks: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """2⌈log2 n⌉ · (α + S/B): reduce to a root along a binary tree, broadcast back.

    >>> tree(1e9, 8, 0.0, 1e9)
    6.0
    """
    return 2 * math.ceil(math.log2(_ranks(num_ranks))) * (latency_s + message_bytes / bandwidth_bytes_per_s)


def halving_doubling(message_bytes: float, num_ranks: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """2⌈log2 n⌉·α + 2(n - 1)/n · S/B: recursive halving, then doubling (Rabenseifner).

    >>> halving_doubling(1e9, 4, 0.5, 1e9)
    3.5
    """
    n = _ranks(num_ranks)
    return 2 * math.ceil(math.log2(n)) * latency_s + 2 * (n - 1) / n * message_bytes / bandwidth_bytes_per_s


def recursive_doubling(message_bytes: float, num_ranks: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """⌈log2 n⌉ · (α + S/B): whole messages exchanged with partners ever further away. PALEO's butterfly.

    >>> recursive_doubling(1e9, 8, 0.0, 1e9)
    3.0
    """
    return math.ceil(math.log2(_ranks(num_ranks))) * (latency_s + message_bytes / bandwidth_bytes_per_s)


def reduce_to_one(message_bytes: float, num_ranks: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """2(n - 1) · (α + S/B): everyone sends to one rank, one after the other, and gets the sum back.

    Also a single parameter server: PALEO's one-to-all.

    >>> reduce_to_one(1e9, 4, 0.0, 1e9)
    6.0
    """
    return 2 * (_ranks(num_ranks) - 1) * (latency_s + message_bytes / bandwidth_bytes_per_s)


Collective = Callable[[float, int, float, float], float]
ALGORITHMS: dict[str, Collective] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "recursive_doubling": recursive_doubling,
    "reduce_to_one": reduce_to_one,
}

# Bus bandwidth over algorithm bandwidth by collective: what each link carries, of what the collective moves.
# Source: nccl-tests, PERFORMANCE.md.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def bandwidths(collective: str, message_bytes: float, seconds: float, num_ranks: int) -> tuple[float, float]:
    """Algorithm bandwidth S/t and bus bandwidth, in bytes per second.

    >>> bandwidths("all_reduce", 1e9, 1.0, 4)
    (1000000000.0, 1500000000.0)
    """
    if collective not in BUS_FACTORS:
        raise NotFoundError("collective", collective, BUS_FACTORS)
    algorithm = message_bytes / seconds
    return algorithm, algorithm * BUS_FACTORS[collective](_ranks(num_ranks))


def all_reduce(algorithm: str) -> Collective:
    """An all-reduce by name. Raises NotFoundError."""
    if algorithm not in ALGORITHMS:
        raise NotFoundError("all-reduce algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm]


def _ranks(num_ranks: int) -> int:
    if num_ranks < 1:
        raise InputError(f"{num_ranks} ranks", "a collective needs at least one")
    return num_ranks
