"""Rank-based prioritised replay: see chronograd.reinforce.replay.prioritised.

The priority of a transition is 1 / rank(i), where rank 1 has the largest error, so P(rank) ∝ rank^(−α) and one huge error
changes little. Sorting for each minibatch would cost more than the minibatch, so ranks come from the last sort. Transitions
changed since then are drawn by their old rank. New ones are not drawn before the next sort.
"""

from __future__ import annotations

import numpy as np

from chronograd.reinforce.replay.prioritised import PrioritisedReplay
from chronograd.reinforce.replay.sum_tree import Values
from chronograd.reinforce.replay.transitions import Array, Indices

SORTS_PER_CAPACITY = 64


class RankBasedReplay(PrioritisedReplay):
    """A ring with an order by error. `resort_every`: changes between sorts; by default a 64th of the capacity."""

    def __init__(
        self, capacity: int, alpha: float = 0.7, beta_start: float = 0.5, beta_draws: int | None = None, slack: int = 0,
        stores_frames_once: bool = False, resort_every: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(capacity, alpha, beta_start, beta_draws, slack, stores_frames_once)
        self._resort_every = resort_every or max(1, capacity // SORTS_PER_CAPACITY)
        self._kept = np.zeros(self.num_places)
        self._order = np.zeros(0, np.int64)
        self._changes = 0
        self._of_rank: Values = np.arange(1.0, self.num_places + 1.0, dtype=np.float64) ** -alpha
        self._running = self._of_rank.cumsum()

    def draw(self, shares: Values) -> tuple[Indices, Values]:
        if self._changes >= self._resort_every or not len(self._order):
            self._sort()
        size = len(self._order)
        total = self._running[size - 1]
        ranks = self._running[:size].searchsorted(shares * total, "right")
        np.minimum(ranks, size - 1, out=ranks)
        return self._order.take(ranks), self._of_rank.take(ranks) / total

    def state(self) -> dict[str, Array]:
        return super().state() | {"order": self._order, "changes": np.array(self._changes)}

    def restore(self, state: dict[str, Array]) -> None:
        super().restore(state)
        self._order, self._changes = state["order"].copy(), int(state["changes"])

    def _set(self, places: Indices | slice, priorities: Array | float) -> None:
        self._kept[places] = priorities
        self._changes += places.stop - places.start if isinstance(places, slice) else len(places)

    def _forget(self, places: Indices) -> None:
        self._changes = self._resort_every  # sort before the next draw, so that none of these is drawn again

    def _sort(self) -> None:
        places = self._in_order()
        self._order = places[np.argsort(-self._kept[places], kind="stable")]
        self._changes = 0
