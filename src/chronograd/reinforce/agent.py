"""The interface of all agents, and the episodes that evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from chronograd.job import Reinforcement
from chronograd.reinforce.environments import Environment, picture

if TYPE_CHECKING:
    import torch

# Seed from which evaluation derives its seeds; training uses none of them.
EVALUATION_SEED = 1_000_000
# Maximum pictures of an episode in memory.
MAX_PICTURES = 1_000


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished episode. `total`: its return, the sum of its rewards as the environment gave them; `epsilon` at its end."""

    total: float
    length: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of an evaluation: their returns, and the largest |Q| of an action in them. Empty if there was none."""

    returns: list[float] = field(default_factory=list)
    largest_value: float | None = None


# The loss of the update after a step, and the episode that the step ended; None where there is none.
Moment = tuple["torch.Tensor | float | None", FinishedEpisode | None]


class Agent(Protocol):
    """An agent of a job. `steps`, `episodes` and `updates` are its counts so far."""

    steps: int
    episodes: int
    updates: int

    def live(self, environment: Environment, num_steps: int, seed: int) -> Iterator[Moment]:
        """Act and learn for `num_steps` steps, starting a new episode. The same seed gives the same steps."""

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Return Q of every action: (N, actions)."""

    def num_params(self) -> int:
        """Return the number of learned values."""

    def save(self) -> dict[str, Callable[[Path], None]]:
        """Return the files of a checkpoint, each with the function that writes it."""

    def restore(self, folder: Path) -> None:
        """Load the agent from a checkpoint."""


def epsilon_at(settings: Reinforcement, step: int, episode: int) -> float:
    """Return the share of random actions at a step, counted from 0, or for the ladder that of an episode.

    >>> settings = Reinforcement(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1000)
    >>> [epsilon_at(settings, step, 0) for step in (0, 500, 9999)]
    [1.0, 0.55, 0.1]
    """
    if settings.exploration == "ladder":
        return epsilon_ladder(settings.ladder)[episode % settings.ladder]
    left = max(0.0, 1 - step / settings.epsilon_steps) if settings.exploration == "annealed" else 0.0
    return settings.epsilon_end + left * (settings.epsilon_start - settings.epsilon_end)


def epsilon_ladder(num_actors: int) -> list[float]:
    """Return the constant ε of each Ape-X actor: ε_i = 0.4^(1 + 7 · i / (N − 1)). A single actor uses 0.4.

    Source: Horgan et al., Distributed prioritized experience replay, arXiv 1803.00933, section 4.

    >>> [round(e, 8) for e in epsilon_ladder(8)]
    [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    """
    return [0.4 ** (1 + 7.0 * actor / max(1, num_actors - 1)) for actor in range(num_actors)]


def greedy(values_NA: np.ndarray) -> np.ndarray:
    """Return the action with the highest value, the first of equals."""
    actions: np.ndarray = values_NA.argmax(axis=1)
    return actions


def evaluate(
    agent: Agent,
    environments: list[Environment],
    settings: Reinforcement,
    seed: int,
    after_step: Callable[[np.ndarray], None] = lambda values_NA: None,
) -> list[float]:
    """Return the returns of one episode in each environment, played side by side with one call of the network per step.

    The i-th environment has the same seed, and the same random actions at the same steps, each time.
    `after_step` receives Q of the running episodes after each step: (N, actions).
    """
    seeds = [EVALUATION_SEED + 1_000 * seed + i for i in range(len(environments))]
    randoms = [np.random.default_rng(one) for one in seeds]
    observations = [env.reset(seed=one)[0] for env, one in zip(environments, seeds, strict=True)]
    totals, running = [0.0] * len(environments), list(range(len(environments)))
    while running:
        values_NA = agent.values(np.stack([observations[i] for i in running]))
        still = []
        for i, action in zip(running, greedy(values_NA), strict=True):
            if randoms[i].random() < settings.evaluation_epsilon:
                action = randoms[i].integers(values_NA.shape[1])
            observations[i], reward, is_terminal, is_cut, _ = environments[i].step(int(action))
            totals[i] += float(reward)
            if not (is_terminal or is_cut):
                still.append(i)
        running = still
        after_step(values_NA)
    return totals


def episode_pictures(agent: Agent, environment: Environment, settings: Reinforcement, seed: int) -> list[np.ndarray]:
    """Return pictures (height, width, 3) after each step of the first evaluation episode; of a long one every 2nd, 4th …

    Raises: MissingExtraError.
    """
    pictures: list[np.ndarray] = []
    every = number = 1

    def keep(_: np.ndarray) -> None:
        nonlocal every, number
        if number % every == 0:
            pictures.append(picture(environment))
        if len(pictures) == MAX_PICTURES:
            del pictures[::2]
            every *= 2
        number += 1

    evaluate(agent, [environment], settings, seed, keep)
    return pictures
