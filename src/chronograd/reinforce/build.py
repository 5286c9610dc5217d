"""The agent of a job."""

from __future__ import annotations

import numpy as np
import torch

from chronograd.job import Job, Reinforcement
from chronograd.reinforce.agent import Agent
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.environments import Space
from chronograd.reinforce.replay import ProportionalReplay, RankBasedReplay, Replay, UniformReplay
from chronograd.reinforce.tabular import QTable


def agent_of(job: Job, space: Space, device: torch.device) -> Agent:
    """Return the agent of a job, with new weights and an empty replay."""
    assert job.reinforcement is not None
    if job.reinforcement.algorithm == "q-learning":
        return QTable(job, space)
    return DQN(job, space, replay_of(job.reinforcement, space), device)


def replay_of(settings: Reinforcement, space: Space) -> Replay | None:
    """Return the replay of an agent, or None if it has none. Each image of a stack is stored once."""
    size, is_stacked = settings.replay_size, space.dtype == np.uint8
    if not size:
        return None
    if settings.replay == "uniform":
        return UniformReplay(size, stores_frames_once=is_stacked)
    kind = ProportionalReplay if settings.replay == "proportional" else RankBasedReplay
    return kind(
        size,
        settings.priority_exponent,
        settings.importance_exponent,
        settings.importance_updates,
        stores_frames_once=is_stacked,
    )
