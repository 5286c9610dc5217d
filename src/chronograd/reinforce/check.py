"""Checks of a reinforcement learning job that run before anything is written."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from chronograd.errors import JobError, require
from chronograd.job import Data, Job, Reinforcement, Training
from chronograd.recipes import DISTRIBUTED
from chronograd.reinforce import environments
from chronograd.reinforce.networks import MLP, build
from chronograd.reinforce.tabular import TABLE, QTable
from chronograd.train.optimizer import make_optimizer
from chronograd.words import how_many

# Fields that a table does not use, fields only for several processes, and the training fields that agents do use.
_OF_NETWORKS = ("replay_size", "replay_start", "update_every", "target_every", "loss", "max_gradient_norm", "clip_rewards",
                "double", "dueling", "n_step", "replay", "priority_exponent", "importance_exponent", "importance_updates")  # fmt: skip
_OF_SEVERAL = ("actors", "learners", "bundled", "replay_shards", "environments_per_actor", "send_every", "refresh_every",
               "paced")  # fmt: skip
_TRAINING = ("recipe", "epochs", "batch", "seed", "optimizer", "learning_rate", "momentum", "nesterov", "weight_decay",
             "parameter_groups", "checkpoint_every", "evaluate_every")  # fmt: skip


def check_agent(job: Job) -> None:
    """Build the environment and, without allocating memory, the network. Raises InputError, MissingExtraError."""
    agent = job.reinforcement
    assert agent is not None
    if job.backend != "single" or job.cluster.count != 1:
        raise JobError(f"backend is {job.backend} with {how_many(job.cluster.count, 'devices')}; {agent.algorithm} runs in one process",
                       "write backend=single and cluster.count=1")  # fmt: skip
    _refuse_what_is_left_out(job, agent)
    if environments.split(job.data.name)[0] != "atari":
        usual = Reinforcement(algorithm=agent.algorithm)
        _refuse("reinforcement", agent, usual, ["frame_stack"], f"applies only to Atari images, not to {job.data.name}")
    space = environments.space_of(job)
    if agent.algorithm == "q-learning":
        QTable(job, space)
    else:
        make_optimizer(build(job, space, device="meta"), job.training)


def _refuse_what_is_left_out(job: Job, agent: Reinforcement) -> None:
    """Raise JobError if the job sets fields that would have no effect."""
    of_images = () if job.network.name in (MLP, TABLE) else ("channels_last",)
    unused = Training.model_fields.keys() - {*_TRAINING, *of_images}
    constant = Training(recipe="sgd")  # nothing augmented
    _refuse("training", job.training, constant, unused, "has no effect on agents")
    unused = Data.model_fields.keys() - {"name"}
    _refuse("data", job.data, Data(name=job.data.name), unused, "has no effect on environments")
    if agent.algorithm == "q-learning":
        usual = Reinforcement(algorithm=agent.algorithm)
        _refuse("reinforcement", agent, usual, _OF_NETWORKS, "has no effect on a table")
    elif agent.replay_size and agent.replay_start > agent.replay_size:
        raise JobError(f"reinforcement.replay_start is {agent.replay_start:,}, which is more than replay_size = {agent.replay_size:,}",
                       "learning would never start: set a smaller replay_start")  # fmt: skip
    steps = job.training.epochs * agent.steps_per_epoch
    if agent.replay_size and agent.replay_start > steps:
        raise JobError(f"reinforcement.replay_start is {agent.replay_start:,}, but the job has only {steps:,} steps",
                       "learning would never start: set a smaller replay_start or more training.epochs")  # fmt: skip
    _check_parts(agent)
    is_table = job.network.name == TABLE
    if is_table != (agent.algorithm == "q-learning"):
        raise JobError(f"reinforcement.algorithm is {agent.algorithm}, which does not work with network.name={job.network.name}",
                       f"set network.name={'mlp or dqn-2015' if is_table else TABLE}")  # fmt: skip


def _check_parts(agent: Reinforcement) -> None:
    """Check the distributed fields: their values for Gorila and Ape-X, and that other algorithms set none of them."""
    usual = Reinforcement(algorithm=agent.algorithm)
    if agent.algorithm not in DISTRIBUTED:
        _refuse("reinforcement", agent, usual, _OF_SEVERAL, f"has no effect on {agent.algorithm}")
        return
    require("ray", "ray", f"reinforcement.algorithm={agent.algorithm}")
    if agent.algorithm == "apex":
        _refuse("reinforcement", agent, usual, ["learners"], "Ape-X does not support: it has one learner")
        _refuse("reinforcement", agent, usual, ["bundled"], "Ape-X does not support")
        _refuse("reinforcement", agent, usual, ["exploration"], "Ape-X does not support: its actors use a ladder")
    elif agent.replay != "uniform":
        raise JobError(f"reinforcement.replay is {agent.replay}, but Gorila draws uniformly", "set replay: uniform, or algorithm: apex")  # fmt: skip
    if agent.replay == "rank":
        raise JobError("reinforcement.replay is rank, but shards cannot rank together", "set replay: proportional")
    if not agent.replay_size:
        raise JobError("reinforcement.replay_size is 0, but learners draw from replay", "set a replay_size above 0")


def _refuse(section: str, given: BaseModel, usual: BaseModel, names: Iterable[str], why: str) -> None:
    """Raise JobError if one of these fields differs from its usual value."""
    for name in names:
        if (value := getattr(given, name)) != getattr(usual, name):
            raise JobError(f"{section}.{name} is {value}, which {why}", "leave it out")
