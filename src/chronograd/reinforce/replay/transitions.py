"""What replay holds, and what is drawn from it."""

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
    """n steps of acting as arrays with a leading dimension. One of them: observe, act, get `reward`, observe again.

    Attributes:
        action: int64. `reward`: float32, discounted sum of the rewards in between.
        discount: float32, what the value of `next_observation` counts: γ^n after n steps; 0 where the episode is over.
    """

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    discount: Array

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, chosen: Any) -> Transitions:
        """Those of a slice, a mask or an array of indices."""
        return Transitions(*(getattr(self, name)[chosen] for name in FIELDS))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in FIELDS)


def joined(parts: Sequence[Transitions]) -> Transitions:
    """All of them in one."""
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
        """Transitions that were not drawn but are all there are, each counting the same."""
        count = len(transitions)
        return cls(transitions, np.arange(count), np.ones(count, np.float32))


class Replay(Protocol):
    """What all kinds of replay can do."""

    def __len__(self) -> int: ...

    def add(self, transitions: Transitions, priorities: Array | None = None) -> None:
        """Keep transitions; without priorities they are the first to be drawn."""

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        """Draw with replacement. Raises InputError if there is nothing to draw from."""

    def update(self, indices: Indices, priorities: Array) -> None:
        """New priorities of what was drawn."""

    def trim(self) -> int:
        """Drop the oldest beyond the capacity, where there may be more for a while. Returns how many."""

    def state(self) -> dict[str, Array]:
        """All there is, as arrays to be saved."""

    def restore(self, state: dict[str, Array]) -> None:
        """As it was when `state` was taken; into a new replay of the same kind."""
