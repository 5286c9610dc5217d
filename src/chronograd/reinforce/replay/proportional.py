"""Proportional prioritised replay: P(i) = p_i^α / Σ_k p_k^α, or 1/N if every priority is 0. See
chronograd.reinforce.replay.prioritised.
"""

from __future__ import annotations

import numpy as np

from chronograd.reinforce.replay.prioritised import PrioritisedReplay
from chronograd.reinforce.replay.sum_tree import SumTree, Values
from chronograd.reinforce.replay.transitions import Array, Indices, Transitions


class ProportionalReplay(PrioritisedReplay):
    """A ring with a sum tree of all p^α."""

    def __init__(
        self, capacity: int, alpha: float = 0.6, beta_start: float = 0.4, beta_draws: int | None = None, slack: int = 0,
        stores_frames_once: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(capacity, alpha, beta_start, beta_draws, slack, stores_frames_once)
        self._tree = SumTree(self.num_places)
        self._kept = self._tree.leaves

    @property
    def total(self) -> float:
        """Return the sum of all p^α."""
        return self._tree.total

    def share_of_highest(self, part: float) -> float:
        """Return the expected share of draws for the share `part` of transitions with the highest priorities."""
        count = round(part * self._size)
        if not count:
            return 0.0
        powers = self._kept[self._in_order()]
        total = powers.sum()
        return float(np.partition(powers, self._size - count)[-count:].sum() / total) if total else count / self._size

    def draw(self, shares: Values) -> tuple[Indices, Values]:
        places, total = self._tree.find(shares)
        if total == 0:  # all priorities are 0, so none is larger than another
            numbers = np.minimum((shares * self._size).astype(np.int64), self._size - 1)
            return self._in_order()[numbers], np.full(len(shares), 1 / self._size)
        return places, self._kept.take(places) / total

    def read(self, places: Indices) -> Transitions:
        return self._storage.read(places)

    def restore(self, state: dict[str, Array]) -> None:
        super().restore(state)
        self._tree.set(self._in_order(), state["priorities"])

    def _set(self, places: Indices | slice, priorities: Array | float) -> None:
        self._tree.set(places, priorities**self.alpha)

    def _forget(self, places: Indices) -> None:
        self._tree.set(places, 0.0)
