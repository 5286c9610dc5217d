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


Collective = Callable[[float, int, float, float], float]
ALGORITHMS: dict[str, Collective] = {"ring": ring, "tree": tree, "halving_doubling": halving_doubling}


def all_reduce(algorithm: str) -> Collective:
    """An all-reduce by name. Raises NotFoundError."""
    if algorithm not in ALGORITHMS:
        raise NotFoundError("all-reduce algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm]


def _ranks(num_ranks: int) -> int:
    if num_ranks < 1:
        raise InputError(f"{num_ranks} ranks", "a collective needs at least one")
    return num_ranks
