"""Environments by the name in a job's `data.name`: what an agent sees, which actions it has, what they lead to.

    gymnasium:CartPole-v1   any environment of gymnasium with numbered actions
    atari:pong              a game of the Atari 2600, as deep Q-learning sees it (chronograd.reinforce.atari)

All are gymnasium's `Env`: `reset(seed=...)` returns an observation, `step(action)` the next one, the reward, whether it
is a terminal state, and whether the episode was cut off, which is no end: the state after it still has a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chronograd import trust
from chronograd.errors import InputError, MissingExtraError, NotFoundError, require
from chronograd.job import Job

LIBRARIES = ("gymnasium", "atari")
# Steps of an evaluation episode in an environment that has no limit of its own, where a poor agent might go on for ever.
MAX_STEPS = 10_000


class Environment(Protocol):
    """gymnasium's `Env`, as far as agents know it."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]: ...

    def render(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Space:
    """What an agent is given and may do.

    Attributes:
        shape, dtype: of an observation; `(frame_stack, 84, 84)` and uint8 of Atari.
        num_actions: numbered from 0.
        num_states: where observations are numbers of states; None elsewhere.
        frames_per_step: of the game or simulation, for each action.
        solved_at: mean return at which its makers call it solved; None where they do not say.
        has_limit: whether episodes end by themselves after so many steps; else those of an evaluation end after MAX_STEPS.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    num_actions: int
    num_states: int | None = None
    frames_per_step: int = 1
    solved_at: float | None = None
    has_limit: bool = True


def split(name: str) -> tuple[str, str]:
    """Library and name of an environment. Raises InputError for what names none.

    >>> split("gymnasium:CartPole-v1")
    ('gymnasium', 'CartPole-v1')
    """
    library, _, own = name.partition(":")
    if library not in LIBRARIES or not own:
        raise InputError(
            f"data.name is {name!r}, which is no environment",
            "write data.name=gymnasium:CartPole-v1, or data.name=atari:pong",
        )
    return library, own


def make(job: Job, *, is_evaluation: bool = False, with_pictures: bool = False) -> Environment:
    """The environment of a job.

    Args:
        is_evaluation: as it is scored, where that differs from how it is learned from: whole games, and never without end.
        with_pictures: `render()` returns an RGB image of the moment.
    Raises: MissingExtraError, NotFoundError, InputError for actions that are not numbered and observations of several parts.
    """
    library, name = split(job.data.name)
    assert job.reinforcement is not None
    if library == "atari":
        require("ale_py", "atari", f"environment {job.data.name}")
        from chronograd.reinforce.atari import AtariGame

        settings = job.reinforcement
        return AtariGame(
            name,
            noop_starts=settings.noop_starts,
            life_ends_episode=settings.life_ends_episode and not is_evaluation,
            frame_stack=settings.frame_stack,
        )
    require("gymnasium", "reinforcement", f"environment {job.data.name}")
    import gymnasium

    if ":" in name:  # gymnasium imports the module before it
        trust.check(name)
    try:
        environment = gymnasium.make(name, render_mode="rgb_array" if with_pictures else None, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"environment {name} needs more than is installed: {error}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = [own for own in gymnasium.registry if "/" not in own]
        raise (NotFoundError("environment", name, known) if name not in known else InputError(f"environment {name}: {error}")) from None  # fmt: skip
    if not isinstance(environment.action_space, gymnasium.spaces.Discrete):
        raise InputError(
            f"environment {name} has no numbered actions but {environment.action_space}",
            "Q-learning compares the values of a few actions: choose another environment",
        )
    if environment.observation_space.shape is None:  # of a tuple, a dictionary, a text
        raise InputError(
            f"environment {name} shows no array of numbers but {environment.observation_space}",
            "networks and tables take one array: choose another environment",
        )
    if is_evaluation and environment.spec is not None and environment.spec.max_episode_steps is None:
        environment = gymnasium.wrappers.TimeLimit(environment, MAX_STEPS)
    if isinstance(environment.observation_space, gymnasium.spaces.Discrete) and job.network.name != "table":
        environment = gymnasium.wrappers.FlattenObservation(environment)  # a state's number as a vector with a single 1
    made: Environment = environment
    return made


def space(environment: Any) -> Space:
    """What an agent is given and may do in an environment."""
    seen, spec = environment.observation_space, environment.spec
    return Space(
        shape=tuple(seen.shape),
        dtype=np.dtype(seen.dtype if seen.dtype == np.uint8 else np.float32),
        num_actions=int(environment.action_space.n),
        num_states=int(seen.n) if hasattr(seen, "n") else None,
        frames_per_step=getattr(environment.unwrapped, "frames_per_step", 1),
        solved_at=None if spec is None else spec.reward_threshold,
        has_limit=spec is None or spec.max_episode_steps is not None,  # games of Atari have theirs and no spec
    )


def picture(environment: Environment) -> np.ndarray:
    """An RGB image of this moment, (height, width, 3). Raises MissingExtraError where what draws it is not installed."""
    import gymnasium

    try:
        pixels: np.ndarray = np.asarray(environment.render())
        return pixels
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(str(error).partition(" ")[0], "reinforcement", "drawing an episode") from None
