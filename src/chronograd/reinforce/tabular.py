"""Q-learning with a table, to be read next to C. Watkins and P. Dayan 1992, "Q-learning", Machine Learning 8.

The table holds the value of every action in every state. After each step the value of the chosen action moves by a share α, the
job's learning rate, towards the new estimate:

    Q(s, a) += α (r + γ max Q(s', ·) - Q(s, a))

If an environment shows numbers instead of states, each number is sorted into bins, and each combination of bins is a state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.reinforce.agent import FinishedEpisode, Moment, epsilon_at
from chronograd.reinforce.environments import Environment, Space
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER
from chronograd.words import how_many

TABLE = "table"
# The largest table: 0.8 GB.
MAX_VALUES = 100_000_000


class QTable:
    """An agent whose action values come from a table. `q_SA`: (states, actions), initially 0."""

    def __init__(self, job: Job, space: Space) -> None:
        assert job.reinforcement is not None
        self.settings, self.rate = job.reinforcement, job.training.learning_rate
        self.edges = [] if space.num_states is not None else edges(job.network.options, space)
        self.sides = tuple(len(own) + 1 for own in self.edges)
        num_states = space.num_states if space.num_states is not None else math.prod(self.sides)
        _check_size(num_states, space.num_actions)
        self.q_SA = np.zeros((num_states, space.num_actions))
        self.steps = self.episodes = self.updates = 0

    def live(self, environment: Environment, num_steps: int, seed: int) -> Iterator[Moment]:
        random = np.random.default_rng(seed)
        settings, end = self.settings, self.steps + num_steps
        seen, _ = environment.reset(seed=seed)
        while self.steps < end:
            state, total, length, is_over = self.state(seen), 0.0, 0, False
            while not is_over and self.steps < end:
                epsilon = epsilon_at(settings, self.steps, self.episodes)
                is_random = random.random() < epsilon
                action = int(random.integers(self.q_SA.shape[1]) if is_random else self.q_SA[state].argmax())
                seen, reward, is_terminal, is_cut, _ = environment.step(action)
                is_over = is_terminal or is_cut
                self.steps, total, length = self.steps + 1, total + float(reward), length + 1
                next_state = self.state(seen)
                error = self.learn(state, action, float(reward), next_state, is_terminal)
                state = next_state
                yield error**2, FinishedEpisode(total, length, epsilon) if is_over else None
            self.episodes += 1
            if self.steps < end:
                seen, _ = environment.reset()

    def learn(self, state: int, action: int, reward: float, next_state: int, is_terminal: bool) -> float:
        """Make Watkins' update. Return the error before it."""
        worth = 0.0 if is_terminal else self.settings.discount * self.q_SA[next_state].max()
        error = float(reward + worth - self.q_SA[state, action])
        self.q_SA[state, action] += self.rate * error
        self.updates += 1
        return error

    def state(self, seen: Any) -> int:
        """Return the row of the table for an observation."""
        if not self.edges:
            return int(seen)
        bins = [int(np.searchsorted(own, x)) for own, x in zip(self.edges, np.ravel(seen), strict=True)]
        return int(np.ravel_multi_index(bins, self.sides))

    def values(self, observations: np.ndarray) -> np.ndarray:
        return self.q_SA[[self.state(seen) for seen in observations]]

    def num_params(self) -> int:
        return self.q_SA.size

    def save(self) -> dict[str, Callable[[Path], None]]:
        return {MODEL: partial(save_file, {"q": self.q_SA}), OPTIMIZER: partial(save_file, {})}

    def restore(self, folder: Path) -> None:
        self.q_SA[:] = load_file(folder / MODEL)["q"]


def edges(options: dict[str, Any], space: Space) -> list[np.ndarray]:
    """Return the inner edges of the bins of each number. Raises InputError for options that do not fit the environment."""
    count = int(np.prod(space.shape))
    unknown = options.keys() - {"bins", "low", "high"}
    given = {name: options.get(name) for name in ("bins", "low", "high")}
    are_lists = all(isinstance(own, list) and len(own) == count for own in given.values())
    rows = list(zip(*given.values(), strict=True)) if are_lists and not unknown else []
    are_bins = all(type(n) is int and n >= 1 and _is_number(a) and _is_number(b) and a < b for n, a, b in rows)
    if not rows or not are_bins:
        raise InputError(
            f"network table sorts the {how_many(count, 'numbers')} of an observation into bins, but network.options is {options!r}",
            f"give bins, low and high as lists of {count}, such as bins: {[4] * count}; bins are counts, and each low is below its high",
        )
    _check_size(math.prod(bins for bins, *_ in rows), space.num_actions)
    return [np.linspace(low, high, bins + 1)[1:-1] for bins, low, high in rows]


def _check_size(num_states: int, num_actions: int) -> None:
    if num_states * num_actions > MAX_VALUES:
        raise InputError(
            f"a table of {num_states:,} states and {num_actions} actions has more than {MAX_VALUES:,} values",
            "give fewer bins in network.options.bins, or network.name=mlp",
        )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
