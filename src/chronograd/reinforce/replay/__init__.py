"""Replay: transitions stored by actors for learners to draw from."""

from chronograd.reinforce.replay.n_step import NStep
from chronograd.reinforce.replay.proportional import ProportionalReplay
from chronograd.reinforce.replay.rank_based import RankBasedReplay
from chronograd.reinforce.replay.transitions import Minibatch, Replay, Transitions
from chronograd.reinforce.replay.uniform import UniformReplay

__all__ = [
    "Minibatch",
    "NStep",
    "ProportionalReplay",
    "RankBasedReplay",
    "Replay",
    "Transitions",
    "UniformReplay",
]
