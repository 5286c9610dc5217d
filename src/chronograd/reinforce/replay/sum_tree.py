"""Weights of many places: change some, and find the place at which their running sum passes a given value.

A sum tree: a node holds the sum of its children's. One with two children a node needs 20 levels for a million leaves, and in
numpy a level costs a handful of calls, however few places are looked for. This one has two levels: leaves in blocks, and the sums
of blocks. A search runs over the sums of blocks, then over the leaves of the blocks that it found, all in one. With N leaves,
blocks of b and k searches that touches N / b + b · k numbers, least at b = sqrt(N / k).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chronograd.reinforce.replay.transitions import Indices

Values = npt.NDArray[np.float64]
# Searches at once that blocks are made for.
SEARCHES = 64
# Rounding must not lead to beyond the last leaf that has any weight.
_BELOW_ONE = 1 - 1e-12


class SumTree:
    """`leaves` are to be read, and changed by `set`."""

    def __init__(self, capacity: int) -> None:
        self._shift = max(3, (capacity // SEARCHES).bit_length() // 2)  # a block is 2^shift, about sqrt(N / k)
        self._block = 1 << self._shift
        num_blocks = -(-capacity // self._block)
        self.leaves: Values = np.zeros(num_blocks * self._block)
        self._blocks = self.leaves.reshape(num_blocks, self._block)
        self._ones = np.ones(self._block)
        self._sums: Values = np.zeros(num_blocks)
        self._stale = slice(0, 0)  # leaves whose blocks are not summed yet

    @property
    def total(self) -> float:
        self._sum_stale()
        return float(self._sums.sum())

    def set(self, places: Indices | slice, weights: Values | float) -> None:
        """Change leaves: some, of which one that is named twice gets the last weight; or a slice.

        Slices that follow each other, as those of a ring do, are summed in one when sums are next asked for.
        """
        self.leaves[places] = weights
        if not isinstance(places, slice):
            blocks = places >> self._shift
            # take and dot are the quick ways to rows and their sums.
            self._sums[blocks] = self._blocks.take(blocks, 0) @ self._ones
        elif places.start == self._stale.stop:
            self._stale = slice(self._stale.start, places.stop)
        else:
            self._sum_stale()
            self._stale = places

    def find(self, shares: Values) -> tuple[Indices, float]:
        """Of each share of the total, from 0 to below 1, the first place up to which weights sum to more; and the total."""
        self._sum_stale()
        running = self._sums.cumsum()
        total = running[-1]
        sought = shares * total
        blocks = _first_above(running, sought)
        sought -= running.take(blocks)
        rows = self._blocks.take(blocks, 0)
        # All rows in one running sum: what is sought lies so far before the end of its row.
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
    """Where a running sum is first above each value, or above nearly its end: always at a place that has weight."""
    np.minimum(sought, running[-1] * _BELOW_ONE, out=sought)
    return running.searchsorted(sought, "right")
