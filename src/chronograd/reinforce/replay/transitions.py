"""Types of replay: transitions, minibatches and the interface of all replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
FIELDS = ("observation", "action", "reward", "next_observation", "discount")


@dataclass(slots=True)
class Transitions:
    """Transitions over n steps, as arrays with a leading dimension. Each one: observe, act, get `reward`, observe again.

    Attributes:
        action: int64. `reward`: float32, discounted sum of the rewards in between.
        discount: float32, factor on the value of `next_observation`: γ^n after n steps; 0 if the episode is over.
    """

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    discount: Array

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, chosen: Any) -> Transitions:
        """Return the transitions of a slice, a mask or an array of indices."""
        return Transitions(*(getattr(self, name)[chosen] for name in FIELDS))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in FIELDS)


def joined(parts: Sequence[Transitions]) -> Transitions:
    """Return all parts concatenated."""
    if len(parts) == 1:
        return parts[0]
    return Transitions(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))


@dataclass(slots=True)
class Minibatch:
    """A minibatch. `indices` are for `update`; `weights` (float32, at most 1) multiply each transition's error."""

    transitions: Transitions
    indices: Indices
    weights: npt.NDArray[np.float32]

    @classmethod
    def of(cls, transitions: Transitions) -> Self:
        """Return a minibatch of all these transitions, undrawn and with equal weights."""
        count = len(transitions)
        return cls(transitions, np.arange(count), np.ones(count, np.float32))


class Replay(Protocol):
    """The interface of all kinds of replay."""

    def __len__(self) -> int: ...

    def add(self, transitions: Transitions, priorities: Array | None = None) -> None:
        """Store transitions. Those without priorities are drawn first."""

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        """Draw with replacement. Raises InputError if the replay is empty."""

    def update(self, indices: Indices, priorities: Array) -> None:
        """Set new priorities of drawn transitions."""

    def trim(self) -> int:
        """Drop the oldest transitions beyond the capacity, for replays that may exceed it. Return their number."""

    def state(self) -> dict[str, Array]:
        """Return all transitions as arrays to save."""

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a saved `state` into a new replay of the same kind."""
