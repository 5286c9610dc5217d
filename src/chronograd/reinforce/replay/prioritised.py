"""Common base of replays with priorities: Schaul et al., Prioritized experience replay, arXiv 1511.05952, section 3.

A transition i is drawn with a probability P(i) that follows from its priority, computed from its last error |δ_i| + ε. To keep
frequent transitions from counting too much, its error is multiplied by w_i = (N · P(i))^(−β), divided by the largest of the
minibatch; β rises to 1. A minibatch draws one transition from each of equal parts of the sum, which varies less than
independent draws.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from chronograd.errors import InputError
from chronograd.reinforce.replay.sum_tree import Values
from chronograd.reinforce.replay.transitions import Array, Indices, Minibatch, Transitions
from chronograd.reinforce.replay.uniform import UniformReplay

# ε of Schaul et al. 2016, section 3.3: every transition can be drawn again.
MIN_PRIORITY = 1e-6
# The largest error of single precision. The sum over any replay stays finite.
MAX_PRIORITY = float(np.finfo(np.float32).max)


def priorities_of(errors: Array) -> Array:
    """Return |δ| + ε of each error δ: actors use it for new transitions, and learners for drawn ones."""
    priorities: Array = np.abs(errors) + MIN_PRIORITY
    return priorities


class PrioritisedReplay(UniformReplay):
    """A ring of transitions with priorities. Each subclass decides how to store priorities and how to draw.

    Attributes:
        alpha: 0 draws uniformly. `beta`: current value; rises from `beta_start` to 1 over `beta_draws` minibatches, or
            constant.
        max_priority: largest priority so far, used for new transitions without a priority, so that each is soon drawn.
    """

    _kept: Values

    def __init__(
        self, capacity: int, alpha: float, beta_start: float, beta_draws: int | None, slack: int, stores_frames_once: bool
    ) -> None:  # fmt: skip
        super().__init__(capacity, slack, stores_frames_once)
        self.alpha, self.beta_start, self.beta_draws = alpha, beta_start, beta_draws
        self.max_priority = 1.0
        self.num_drawn = 0  # minibatches

    @property
    def beta(self) -> float:
        if self.beta_draws is None:
            return self.beta_start
        return self.beta_start + (1 - self.beta_start) * min(1.0, self.num_drawn / self.beta_draws)

    def sample(self, batch: int, rng: np.random.Generator) -> Minibatch:
        self.check_not_empty()
        places, probabilities = self.draw(stratified(batch, rng))
        weights = importance_weights(probabilities, self.beta)
        self.num_drawn += 1
        return Minibatch(self._storage.read(places), places, weights)

    def update(self, indices: Indices, priorities: Array) -> None:
        """Set new priorities, at least 0, for drawn transitions."""
        self._set(indices, self._checked(priorities))

    def state(self) -> dict[str, Array]:
        saved = super().state()
        saved["num_drawn"], saved["max_priority"] = np.array(self.num_drawn), np.array(self.max_priority)
        saved["priorities"] = self._kept[self._in_order()]
        return saved

    def restore(self, state: dict[str, Array]) -> None:
        super().restore(state)
        self._kept[self._in_order()] = state["priorities"]
        self.num_drawn, self.max_priority = int(state["num_drawn"]), float(state["max_priority"])

    def _checked(self, priorities: Array) -> Array:
        """Check priorities, update the largest so far, and return them."""
        if len(priorities):
            # For a single one, reductions would take longer than all other work.
            is_one = len(priorities) == 1
            least, largest = (priorities[0],) * 2 if is_one else (priorities.min(), priorities.max())
            if not (least >= 0 and largest <= MAX_PRIORITY):  # nan neither
                raise InputError(
                    f"the priorities are from {least} to {largest}", f"give priorities from 0 to {MAX_PRIORITY:.2g}"
                )
            if largest > self.max_priority:
                self.max_priority = float(largest)
        return priorities

    def _write(self, places: slice, transitions: Transitions, priorities: Array | None) -> None:
        super()._write(places, transitions, priorities)
        self._set(places, self.max_priority if priorities is None else self._checked(priorities))

    # -- implemented by each subclass -----------------------------------------------------------------------

    def draw(self, shares: Values) -> tuple[Indices, Values]:
        """Return the places at these shares of the sum, from 0 to below 1, and the probability of each."""
        raise NotImplementedError

    def _set(self, places: Indices | slice, priorities: Array | float) -> None:
        """Store priorities."""
        raise NotImplementedError


@lru_cache(maxsize=8)
def _numbers(count: int) -> Values:
    return np.arange(count, dtype=np.float64)


def stratified(batch: int, rng: np.random.Generator) -> Values:
    """Return a random number from each of `batch` equal parts of 0 to 1."""
    shares = rng.random(batch)
    shares += _numbers(batch)
    shares /= batch
    return shares


def importance_weights(probabilities: Values, beta: float) -> npt.NDArray[np.float32]:
    """Return (N · P)^(−β) divided by its maximum; N cancels out.

    >>> importance_weights(np.array([0.5, 0.25, 0.125, 0.125]), 1.0).tolist()
    [0.25, 0.5, 1.0, 1.0]
    """
    weights: npt.NDArray[np.float32] = (probabilities.min() / probabilities).astype(np.float32) ** beta
    return weights
