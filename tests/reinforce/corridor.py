"""A corridor of states with a reward at its right end, whose action values have a closed form."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[Any, int]):
    """Environment that starts in state 0 of `length`; action 1 goes right, 0 left. Entering the last state gives 1 and ends.

    The best value of going right from state s is discount ** (length - 2 - s).
    """

    def __init__(self, length: int = 5, is_number: bool = True, most_steps: int = 50) -> None:
        self.length, self.most_steps, self.is_number = length, most_steps, is_number
        self.action_space = gymnasium.spaces.Discrete(2)
        one_hot = gymnasium.spaces.Box(0, 1, (length,), np.float32)
        self.observation_space: Any = gymnasium.spaces.Discrete(length) if is_number else one_hot

    def _seen(self) -> Any:
        return self.at if self.is_number else np.eye(self.length, dtype=np.float32)[self.at]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = max(0, self.at + (1 if action else -1))
        self.steps += 1
        is_end = self.at == self.length - 1
        return self._seen(), float(is_end), is_end, self.steps >= self.most_steps and not is_end, {}
