"""Sharded replay: a minibatch is drawn from several shards as from a single replay, by shares of the sum over all shards.

Shards may change between the calls that read their sums and the draws. This is harmless, because each weight is computed from
the probability actually used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chronograd.errors import InputError
from chronograd.reinforce.replay.sum_tree import Values
from chronograd.words import how_many

# The bits of an index above these hold the shard.
PLACE_BITS = 40


def split_shares(totals: Sequence[float], shares: Values) -> list[tuple[int, Values, float]]:
    """Split ascending shares of a sum by part. Return each part's number, the shares within it, and its share of the total.

    Raises: InputError if the sum is 0.

    >>> [(number, own.tolist(), part) for number, own, part in split_shares([1.0, 0.0, 3.0], np.array([0.125, 0.5]))]
    [(0, [0.5], 0.25), (2, [0.3333333333333333], 0.75)]
    """
    ends = np.cumsum(totals)
    if not ends[-1] > 0:
        raise InputError(
            f"the priorities of {how_many(len(totals), 'shards')} sum to {ends[-1]:g}",
            "add transitions with a priority above 0 before drawing",
        )
    ends /= ends[-1]
    begins = np.concatenate([[0.0], ends[:-1]])
    numbers = np.minimum(ends.searchsorted(shares, "right"), ends.searchsorted(1.0))
    found = []
    for number in np.unique(numbers).tolist():
        width = ends[number] - begins[number]
        own = (shares[numbers == number] - begins[number]) / width
        found.append((number, np.clip(own, 0.0, 1 - 1e-12), float(width)))
    return found
