"""Environments by the name in a job's `data.name`: their observations, actions and results.

    gymnasium:CartPole-v1   any environment of gymnasium with numbered actions
    atari:pong              a game of the Atari 2600, as deep Q-learning sees it (chronograd.reinforce.atari)

All are gymnasium's `Env`: `reset(seed=...)` returns an observation. `step(action)` returns the next one, the reward, whether
the state is terminal, and whether the episode was truncated. A truncated episode has no terminal state: its last state still
has a value.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chronograd import trust
from chronograd.errors import InputError, MissingExtraError, NotFoundError, require
from chronograd.job import Job

LIBRARIES = ("gymnasium", "atari")
# Maximum steps of an evaluation episode if the environment has no limit: a poor agent might continue forever.
MAX_STEPS = 10_000


class Environment(Protocol):
    """The part of gymnasium's `Env` that agents use."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]: ...

    def render(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Space:
    """Observations and actions of an environment.

    Attributes:
        shape, dtype: of an observation; `(frame_stack, 84, 84)` and uint8 for Atari.
        num_actions: actions are numbered from 0.
        num_states: number of states if observations are state numbers; otherwise None.
        frames_per_step: frames of the game or simulation per action.
        has_limit: whether the environment limits the steps of an episode; otherwise evaluation episodes end after MAX_STEPS.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    num_actions: int
    num_states: int | None = None
    frames_per_step: int = 1
    has_limit: bool = True


def split(name: str) -> tuple[str, str]:
    """Return library and name of an environment.

    Raises: InputError for a name of another form.

    >>> split("gymnasium:CartPole-v1")
    ('gymnasium', 'CartPole-v1')
    """
    library, _, own = name.partition(":")
    if library not in LIBRARIES or not own:
        raise InputError(
            f"data.name is {name!r}, which is not an environment",
            "write data.name=gymnasium:CartPole-v1, or data.name=atari:pong",
        )
    return library, own


def make(job: Job, *, is_evaluation: bool = False, with_pictures: bool = False) -> Environment:
    """Return the environment of a job.

    Args:
        is_evaluation: the variant for scoring, if it differs from the one for learning: whole games, and a limit on steps.
        with_pictures: `render()` returns an RGB image of the current state.
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

    is_code = ":" in name  # gymnasium imports the module before it
    try:
        with trust.importing(name) if is_code else contextlib.nullcontext():
            mode = "rgb_array" if with_pictures else None
            environment = gymnasium.make(name, render_mode=mode, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"environment {name} needs a package that is not installed: {error}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = [own for own in gymnasium.registry if "/" not in own]
        raise (NotFoundError("environment", name, known) if name not in known else InputError(f"environment {name}: {error}")) from None  # fmt: skip
    if not isinstance(environment.action_space, gymnasium.spaces.Discrete):
        raise InputError(
            f"environment {name} has actions that are not numbered: {environment.action_space}",
            "Q-learning compares the values of a few actions: choose another environment",
        )
    if environment.observation_space.shape is None:  # a tuple, a dictionary or a text
        raise InputError(
            f"environment {name} has observations that are not arrays of numbers: {environment.observation_space}",
            "networks and tables take one array: choose another environment",
        )
    if is_evaluation and environment.spec is not None and environment.spec.max_episode_steps is None:
        environment = gymnasium.wrappers.TimeLimit(environment, MAX_STEPS)
    if isinstance(environment.observation_space, gymnasium.spaces.Discrete) and job.network.name != "table":
        environment = gymnasium.wrappers.FlattenObservation(environment)  # one-hot vector of the state number
    made: Environment = environment
    return made


def space(environment: Any) -> Space:
    """Return the observations and actions of an environment."""
    seen, spec = environment.observation_space, environment.spec
    return Space(
        shape=tuple(seen.shape),
        dtype=np.dtype(seen.dtype if seen.dtype == np.uint8 else np.float32),
        num_actions=int(environment.action_space.n),
        num_states=int(seen.n) if hasattr(seen, "n") else None,
        frames_per_step=getattr(environment.unwrapped, "frames_per_step", 1),
        has_limit=spec is None or spec.max_episode_steps is not None,  # Atari games have a limit but no spec
    )


def space_of(job: Job) -> Space:
    """Return the observations and actions of a job's environment. Raises as `make`."""
    environment = make(job)
    try:
        return space(environment)
    finally:
        environment.close()


def picture(environment: Environment) -> np.ndarray:
    """Return an RGB image of the current state, (height, width, 3).

    Raises: MissingExtraError if the renderer is not installed.
    """
    import gymnasium

    try:
        pixels: np.ndarray = np.asarray(environment.render())
        return pixels
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(str(error).partition(" ")[0], "reinforcement", "drawing an episode") from None
