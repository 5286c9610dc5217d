"""Sharded replay: each writer has its own shard and lock, and one reader draws from all shards.

A minibatch is drawn as from a single replay, by shares of the sum over all shards. Shards may change between the calls that
read their sums and the draws. This is harmless, because each weight is computed from the probability actually used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from chronograd.errors import InputError
from chronograd.reinforce.replay.prioritised import importance_weights, stratified
from chronograd.reinforce.replay.proportional import ProportionalReplay
from chronograd.reinforce.replay.sum_tree import Values
from chronograd.reinforce.replay.transitions import Array, Indices, Minibatch, Transitions, joined

# The bits of an index above these hold the shard.
PLACE_BITS = 40


class ShardedReplay:
    """Several proportional replays used as one."""

    def __init__(self, shards: Sequence[ProportionalReplay]) -> None:
        if not shards:
            raise InputError("a replay needs shards", "give one or more")
        self.shards = list(shards)
        self._locks = [threading.Lock() for _ in shards]

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def add(self, transitions: Transitions, priorities: Array | None = None, writer: int = 0) -> None:
        """Store transitions in the shard of a writer."""
        number = writer % len(self.shards)
        with self._locks[number]:
            self.shards[number].add(transitions, priorities)

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        parts, indices, probabilities = [], [], []
        beta = self.shards[0].beta
        for number, shares, of_all in split_shares([shard.total for shard in self.shards], stratified(batch, rng)):
            shard = self.shards[number]
            with self._locks[number]:
                places, within = shard.draw(shares)
                parts.append(shard.read(places))
            indices.append(places + (number << PLACE_BITS))
            probabilities.append(of_all * within)
        self.shards[0].num_drawn += 1
        weights = importance_weights(np.concatenate(probabilities), beta)
        return Minibatch(joined(parts), np.concatenate(indices), weights)

    def update(self, indices: Indices, priorities: Array) -> None:
        numbers = indices >> PLACE_BITS
        for number in np.unique(numbers).tolist():
            own = numbers == number
            with self._locks[number]:
                self.shards[number].update(indices[own] & ((1 << PLACE_BITS) - 1), priorities[own])

    def trim(self) -> int:
        dropped = 0
        for shard, lock in zip(self.shards, self._locks, strict=True):
            with lock:
                dropped += shard.trim()
        return dropped

    def state(self) -> dict[str, Array]:
        return {f"{i}.{name}": saved for i, shard in enumerate(self.shards) for name, saved in shard.state().items()}

    def restore(self, state: dict[str, Array]) -> None:
        for i, shard in enumerate(self.shards):
            own = {name.removeprefix(f"{i}."): saved for name, saved in state.items() if name.startswith(f"{i}.")}
            shard.restore(own)


def split_shares(totals: Sequence[float], shares: Values) -> list[tuple[int, Values, float]]:
    """Split ascending shares of a sum by part. Return each part's number, the shares within it, and its share of the total.

    Raises: InputError if the sum is 0.

    >>> [(number, own.tolist(), part) for number, own, part in split_shares([1.0, 0.0, 3.0], np.array([0.125, 0.5]))]
    [(0, [0.5], 0.25), (2, [0.3333333333333333], 0.75)]
    """
    ends = np.cumsum(totals)
    if not ends[-1] > 0:
        raise InputError("the replay is empty", "add transitions before drawing from it")
    ends /= ends[-1]
    begins = np.concatenate([[0.0], ends[:-1]])
    numbers = np.minimum(ends.searchsorted(shares, "right"), ends.searchsorted(1.0))
    found = []
    for number in np.unique(numbers).tolist():
        width = ends[number] - begins[number]
        own = (shares[numbers == number] - begins[number]) / width
        found.append((number, np.clip(own, 0.0, 1 - 1e-12), float(width)))
    return found
