"""A tree of weights for many places, to change some and to find the place where their running sum passes a given value.

In a sum tree each node holds the sum of its children. A binary tree needs 20 levels for a million leaves, and each level costs
several numpy calls however few places are searched. This tree has two levels: leaves in blocks, and the sums of blocks. A
search runs over the sums of blocks, then over the leaves of the blocks it reached, for all values together. With N leaves,
blocks of b and k searches it touches N / b + b · k numbers, least at b = sqrt(N / k).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chronograd.reinforce.replay.transitions import Indices

Values = npt.NDArray[np.float64]
# Number of simultaneous searches that the block size is optimised for.
SEARCHES = 64
# Keeps rounding from reaching past the last leaf with a weight.
_BELOW_ONE = 1 - 1e-12
# A smaller total has too few digits for that.
_LEAST_TOTAL = float(np.finfo(np.float64).tiny)


class SumTree:
    """A sum tree of two levels. Read `leaves` directly; change them with `set`."""

    def __init__(self, capacity: int) -> None:
        self._shift = max(3, (capacity // SEARCHES).bit_length() // 2)  # a block is 2^shift, about sqrt(N / k)
        self._block = 1 << self._shift
        num_blocks = -(-capacity // self._block)
        self.leaves: Values = np.zeros(num_blocks * self._block)
        self._blocks = self.leaves.reshape(num_blocks, self._block)
        self._ones = np.ones(self._block)
        self._sums: Values = np.zeros(num_blocks)
        self._stale = slice(0, 0)  # leaves whose block sums are outdated

    @property
    def total(self) -> float:
        self._sum_stale()
        return float(self._sums.sum())

    def set(self, places: Indices | slice, weights: Values | float) -> None:
        """Set the weights of leaves, given by index or as a slice. A repeated index gets its last weight.

        Consecutive slices, as those of a ring, are summed together at the next request for sums.
        """
        self.leaves[places] = weights
        if not isinstance(places, slice):
            blocks = places >> self._shift
            # take and dot are the fastest calls for rows and their sums.
            self._sums[blocks] = self._blocks.take(blocks, 0) @ self._ones
        elif places.start == self._stale.stop:
            self._stale = slice(self._stale.start, places.stop)
        else:
            self._sum_stale()
            self._stale = places

    def find(self, shares: Values) -> tuple[Indices, float]:
        """Return the first place where the running sum exceeds each share (0 to below 1) of the total, and the total.

        A total of 0 has no such places: they are then empty.
        """
        self._sum_stale()
        running = self._sums.cumsum()
        total = running[-1]
        if total < _LEAST_TOTAL:
            return np.zeros(0, np.int64), 0.0
        sought = shares * total
        blocks = _first_above(running, sought)
        sought -= running.take(blocks)
        rows = self._blocks.take(blocks, 0)
        # All rows share one running sum, so each value is sought relative to the end of its row.
        running = rows.ravel().cumsum()
        sought += running[self._block - 1 :: self._block]
        np.maximum(sought, 0.0, out=sought)
        found = _first_above(running, sought)
        return (blocks.take(found >> self._shift) << self._shift) + (found & (self._block - 1)), float(total)

    def _sum_stale(self) -> None:
        stale, self._stale = self._stale, slice(0, 0)
        if stale.start < stale.stop:
            blocks = slice(stale.start >> self._shift, ((stale.stop - 1) >> self._shift) + 1)
            self._sums[blocks] = self._blocks[blocks] @ self._ones


def _first_above(running: Values, sought: Values) -> Indices:
    """Return where a running sum first exceeds each value, capped just below its end: always a place with a weight."""
    np.minimum(sought, running[-1] * _BELOW_ONE, out=sought)
    return running.searchsorted(sought, "right")
