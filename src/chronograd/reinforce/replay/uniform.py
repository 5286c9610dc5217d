"""Uniform replay: all transitions are equally likely. L.-J. Lin, 1992; Mnih et al., arXiv 1312.5602.

Transitions lie in a ring: the newest replaces the oldest. With `slack`, the ring may temporarily exceed `capacity`: actors need
not wait, and `trim` drops the oldest, as in Ape-X.
"""

from __future__ import annotations

import numpy as np

from chronograd.errors import InputError
from chronograd.reinforce.replay.storage import Columns, Frames, Storage
from chronograd.reinforce.replay.transitions import Array, Indices, Minibatch, Transitions
from chronograd.words import how_many


class UniformReplay:
    """A ring of transitions. The replays with priorities extend it."""

    def __init__(self, capacity: int, slack: int = 0, stores_frames_once: bool = False) -> None:
        """Create an empty ring.

        Args:
            slack: number of transitions allowed beyond `capacity` before `trim` is called.
            stores_frames_once: for observations that are stacks of frames.
        """
        if capacity < 1 or slack < 0:
            raise InputError(
                f"a replay of {how_many(capacity, 'transitions')} and {slack} more", "give it a capacity of 1 or more"
            )
        self.capacity = capacity
        self._places = capacity + slack
        self._storage: Storage = (Frames if stores_frames_once else Columns)(self._places)
        self._size = 0
        self._next = 0  # place of the next transition
        self.num_added = 0

    def __len__(self) -> int:
        return self._size

    @property
    def num_places(self) -> int:
        """Return the number of places for transitions, including slack."""
        return self._places

    @property
    def next_place(self) -> int:
        """Return the place of the next added transition; later ones follow around the ring."""
        return self._next

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes

    def add(self, transitions: Transitions, priorities: Array | None = None) -> None:
        """Store transitions. Uniform replay ignores priorities."""
        count, start = len(transitions.reward), self._next
        stop = start + count
        if stop <= self._places:
            self._write(slice(start, stop), transitions, priorities)
        elif count > self._places:  # the last ones remain
            self.add(transitions[-self._places :], None if priorities is None else priorities[-self._places :])
            return
        else:
            until = self._places - start
            self.add(transitions[:until], None if priorities is None else priorities[:until])
            self.add(transitions[until:], None if priorities is None else priorities[until:])
            return
        self._next = stop % self._places
        self._size = min(self._size + count, self._places)
        self.num_added += count

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        """Draw with replacement.

        Raises: InputError if the replay is empty.
        """
        self.check_not_empty()
        places = rng.integers(0, self._size, batch)
        if self._size < self._places:
            places += self._next - self._size
            places %= self._places
        return Minibatch(self._storage.read(places), places, np.ones(batch, np.float32))

    def update(self, indices: Indices, priorities: Array) -> None:
        """Do nothing: transitions have no priorities."""

    def trim(self) -> int:
        """Drop the oldest transitions beyond `capacity`. Return their number."""
        excess = max(0, self._size - self.capacity)
        if excess:
            oldest = (self._next - self._size) % self._places
            self._forget((oldest + np.arange(excess)) % self._places)
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
            self._next = (int(state["num_added"]) - len(state["reward"])) % self._places
            for transitions in self._storage.restored(state):
                self.add(transitions)
        self.num_added = int(state["num_added"])

    def check_not_empty(self) -> None:
        if not self._size:
            raise InputError("the replay is empty", "add transitions before drawing from it")

    def _in_order(self) -> Indices:
        """Return the places from the oldest to the newest."""
        return (self._next - self._size + np.arange(self._size)) % self._places

    # -- overridden by replays with priorities --------------------------------------------------------------

    def _write(self, places: slice, transitions: Transitions, priorities: Array | None) -> None:
        self._storage.write(places, transitions)

    def _forget(self, places: Indices) -> None:
        """Exclude these places from draws."""
