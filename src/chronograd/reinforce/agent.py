"""What the run of an agent needs of it, whichever algorithm it learns by, and the episodes that it is scored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from chronograd.job import Reinforcement
from chronograd.reinforce.environments import Environment, picture
from chronograd.reinforce.exploration import epsilon_ladder

if TYPE_CHECKING:
    import torch

# What gives evaluation episodes their seeds; none is one of training's.
EVALUATION_SEED = 1_000_000
# Of an episode, in memory at once.
MAX_PICTURES = 1_000


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """An episode that ended. `total`: its return, the sum of its rewards as the environment gave them; `epsilon` at its end."""

    total: float
    length: int
    epsilon: float


# The loss of an update that a step ended with, and the episode that it ended, if any.
Moment = tuple["torch.Tensor | float | None", FinishedEpisode | None]


class Agent(Protocol):
    """A file of this folder. `steps` and `episodes` count what it has lived through, `updates` what it learned."""

    steps: int
    episodes: int
    updates: int

    def live(self, environment: Environment, num_steps: int, seed: int) -> Iterator[Moment]:
        """Act and learn for so many steps, from the begin of an episode. The same seed, the same steps."""

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Q of every action: (N, actions)."""

    def num_params(self) -> int:
        """Numbers that are learned."""

    def save(self) -> dict[str, Callable[[Path], None]]:
        """Files of a checkpoint, each with what writes it."""

    def restore(self, folder: Path) -> None:
        """Bring it to a checkpoint."""


def epsilon_at(settings: Reinforcement, step: int, episode: int) -> float:
    """Share of random actions at a step, counted from 0; on the ladder that of an episode.

    >>> settings = Reinforcement(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1000)
    >>> [epsilon_at(settings, step, 0) for step in (0, 500, 9999)]
    [1.0, 0.55, 0.1]
    """
    if settings.exploration == "ladder":
        return epsilon_ladder(settings.ladder)[episode % settings.ladder]
    left = max(0.0, 1 - step / settings.epsilon_steps) if settings.exploration == "annealed" else 0.0
    return settings.epsilon_end + left * (settings.epsilon_start - settings.epsilon_end)


def greedy(values_NA: np.ndarray) -> np.ndarray:
    """The action of the highest value, the first of equals."""
    actions: np.ndarray = values_NA.argmax(axis=1)
    return actions


def evaluate(
    agent: Agent,
    environments: list[Environment],
    settings: Reinforcement,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> list[float]:
    """Returns of one episode in each environment, played side by side so that the network is asked for all at once.

    The i-th has the same seed, and the same random actions at the same steps, each time.
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
        after_step()
    return totals


def episode_pictures(agent: Agent, environment: Environment, settings: Reinforcement, seed: int) -> list[np.ndarray]:
    """Pictures (height, width, 3) after each step of the first evaluation episode; of a long one after every 2nd, 4th, and so on.

    Raises: MissingExtraError.
    """
    pictures: list[np.ndarray] = []
    every = number = 1

    def keep() -> None:
        nonlocal every, number
        if number % every == 0:
            pictures.append(picture(environment))
        if len(pictures) == MAX_PICTURES:
            del pictures[::2]
            every *= 2
        number += 1

    evaluate(agent, [environment], settings, seed, keep)
    return pictures
