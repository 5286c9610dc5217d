"""Sets of times as sorted, disjoint intervals: unions, and their length within a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """Starts and ends, sorted and disjoint.

    Times in one set and not in another are `(a | b).within(…) - b.within(…)`, so no difference operator is needed.
    """

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def union(cls, intervals: Sequence[tuple[float, float]] | np.ndarray) -> Intervals:
        """Return all times in any of the intervals; empty intervals are left out.

        >>> Intervals.union([(5, 7), (0, 2), (1, 3)]).ends.tolist()
        [3.0, 7.0]
        """
        given = np.asarray(intervals, dtype=float).reshape(-1, 2)
        given = given[given[:, 1] > given[:, 0]]
        given = given[np.argsort(given[:, 0], kind="stable")]
        if not len(given):
            return cls(np.zeros(0), np.zeros(0))
        latest = np.maximum.accumulate(given[:, 1])
        is_first = np.concatenate([[True], given[1:, 0] > latest[:-1]])
        return cls(given[is_first, 0], latest[np.concatenate([is_first[1:], [True]])])

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union(
            np.stack(
                [np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends])],
                axis=1,
            )
        )

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _before(self) -> np.ndarray:
        """Return the length covered before each interval, and finally the total."""
        return np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])

    def until(self, times: np.ndarray) -> np.ndarray:
        """Return the length covered before each of the times."""
        if not len(self):
            return np.zeros(np.shape(times))
        at = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(at - 1, 0)
        over = np.maximum(0.0, self.ends[last] - times)
        covered: np.ndarray = np.where(at > 0, self._before[at] - over, 0.0)
        return covered

    def within(self, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        """Return the length covered in each of the windows.

        >>> Intervals.union([(0, 2), (4, 6)]).within(np.array([1, 3]), np.array([5, 4])).tolist()
        [2.0, 0.0]
        """
        covered: np.ndarray = self.until(np.asarray(highs, float)) - self.until(np.asarray(lows, float))
        return covered

    def hold(self, times: np.ndarray) -> np.ndarray:
        """Return whether each of the times lies in an interval, ends included."""
        if not len(self):
            return np.zeros(np.shape(times), bool)
        last = np.searchsorted(self.starts, times, side="right") - 1
        inside: np.ndarray = (last >= 0) & (self.ends[np.maximum(last, 0)] >= times)
        return inside

    def gaps(self) -> Intervals:
        """Return the gaps between the intervals."""
        return Intervals(self.ends[:-1], self.starts[1:])

    def where(self, is_kept: np.ndarray) -> Intervals:
        return Intervals(self.starts[is_kept], self.ends[is_kept])
