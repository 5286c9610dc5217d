"""Transitions of n steps, built from single steps.

The return of n steps is r_t + γ r_{t+1} + … + γ^(n−1) r_{t+n−1}, and the value of the next state is multiplied by γ^n. The end
of an episode leaves shorter transitions: with discount 0 if the episode is over, and γ^k after k steps if it only reached its
time limit.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from chronograd.reinforce.replay.transitions import Array, Transitions, joined


class NStep:
    """Pending steps of `num_envs` environments that step together."""

    def __init__(self, n: int, gamma: float, num_envs: int = 1) -> None:
        self._n, self._gamma = n, gamma
        self._steps: deque[tuple[Array, Array, Array]] = deque(maxlen=n)
        self._age = np.zeros(num_envs, np.int64)  # pending steps of the current episode

    def step(
        self,
        observation: Array,
        action: Array,
        reward: Array,
        next_observation: Array,
        terminated: Array,
        truncated: Array,
    ) -> Transitions | None:
        """Add one step of every environment. Return the transitions that it completes, the oldest first.

        Args:
            next_observation: the observation after the step, not the first one of another episode.
        """
        rewards = np.asarray(reward, np.float32)
        self._steps.append((np.array(observation), np.array(action, np.int64), rewards))
        self._age = np.minimum(self._age + 1, self._n)
        ended = np.asarray(terminated) | np.asarray(truncated)
        has_ended = bool(ended.any())
        parts = []
        returned = np.zeros_like(rewards)
        for back, (first, chosen, gained) in enumerate(reversed(self._steps)):
            returned = gained + np.float32(self._gamma) * returned
            is_last = back == self._n - 1
            if not (is_last or has_ended):
                continue
            due = (self._age > back) & (ended | is_last)
            if due.any():
                discount = np.where(terminated, 0.0, self._gamma ** (back + 1)).astype(np.float32)
                parts.append(
                    Transitions(first[due], chosen[due], returned[due], np.array(next_observation)[due], discount[due])
                )
        self._age[ended] = 0
        return joined(parts[::-1]) if parts else None
