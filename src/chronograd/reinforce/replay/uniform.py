"""Uniform replay: all transitions are equally likely. L.-J. Lin, 1992; Mnih et al., arXiv 1312.5602.

Transitions lie in a ring: the newest replaces the oldest. With `slack`, the ring may temporarily exceed `capacity`: actors need
not wait, and `trim` drops the oldest, as in Ape-X.
"""

from __future__ import annotations

import numpy as np

from chronograd.errors import InputError
from chronograd.reinforce.replay.storage import Columns, Frames, Storage
from chronograd.reinforce.replay.transitions import Array, Indices, Minibatch, Transitions


class UniformReplay:
    """A ring of transitions. The replays with priorities extend it.

    `num_places`: for transitions, including slack. `next_place`: of the next added one; later ones follow around the ring.
    """

    def __init__(self, capacity: int, slack: int = 0, stores_frames_once: bool = False) -> None:
        """Create an empty ring.

        Args:
            slack: number of transitions allowed beyond `capacity` before `trim` is called.
            stores_frames_once: for observations that are stacks of frames.
        """
        self.capacity = capacity
        self.num_places = capacity + slack
        self._storage: Storage = (Frames if stores_frames_once else Columns)(self.num_places)
        self._size = 0
        self.next_place = 0
        self.num_added = 0

    def __len__(self) -> int:
        return self._size

    def add(self, transitions: Transitions, priorities: Array | None = None) -> None:
        """Store transitions. Uniform replay ignores priorities."""
        count, start = len(transitions.reward), self.next_place
        stop = start + count
        if stop <= self.num_places:
            self._write(slice(start, stop), transitions, priorities)
        elif count > self.num_places:  # the last ones remain
            self.add(transitions[-self.num_places :], None if priorities is None else priorities[-self.num_places :])
            return
        else:
            until = self.num_places - start
            self.add(transitions[:until], None if priorities is None else priorities[:until])
            self.add(transitions[until:], None if priorities is None else priorities[until:])
            return
        self.next_place = stop % self.num_places
        self._size = min(self._size + count, self.num_places)
        self.num_added += count

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        self.check_not_empty()
        places = rng.integers(0, self._size, batch)
        if self._size < self.num_places:
            places += self.next_place - self._size
            places %= self.num_places
        return Minibatch(self._storage.read(places), places, np.ones(batch, np.float32))

    def update(self, indices: Indices, priorities: Array) -> None:
        """Do nothing: transitions have no priorities."""

    def trim(self) -> int:
        excess = max(0, self._size - self.capacity)
        if excess:
            oldest = (self.next_place - self._size) % self.num_places
            self._forget((oldest + np.arange(excess)) % self.num_places)
            self._size -= excess
        return excess

    def state(self) -> dict[str, Array]:
        """Return all transitions, the oldest first, as arrays to save."""
        places = self._in_order()
        saved = {"num_added": np.array(self.num_added)}
        return saved | (self._storage.saved(places) if len(places) else {})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a saved `state` into a new replay of the same kind.

        Each transition keeps its place, so the same random numbers draw the same transitions.
        """
        if "reward" in state:
            self.next_place = (int(state["num_added"]) - len(state["reward"])) % self.num_places
            for transitions in self._storage.restored(state):
                self.add(transitions)
        self.num_added = int(state["num_added"])

    def check_not_empty(self) -> None:
        if not self._size:
            raise InputError("the replay is empty", "add transitions before drawing from it")

    def _in_order(self) -> Indices:
        """Return the places from the oldest to the newest."""
        return (self.next_place - self._size + np.arange(self._size)) % self.num_places

    # -- overridden by replays with priorities --------------------------------------------------------------

    def _write(self, places: slice, transitions: Transitions, priorities: Array | None) -> None:
        self._storage.write(places, transitions)

    def _forget(self, places: Indices) -> None:
        """Exclude these places from draws."""
