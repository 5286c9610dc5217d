"""Prioritised replay: transitions drawn uniformly, by their error, by its rank, and by their error without weights.

Schaul et al., Prioritized experience replay, arXiv 1511.05952: better than uniform replay in 41 of 49 Atari games.
"""

from __future__ import annotations

from typing import Any

from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study

UNIFORM, PROPORTIONAL, RANK, UNWEIGHTED = "uniform", "proportional", "rank-based", "proportional, no weights"
# The exponents are those of the paper, which are the defaults of jobs. β rises to 1 over the run in the two arms with weights.
ARMS: dict[str, dict[str, Any]] = {
    UNIFORM: {},
    PROPORTIONAL: {"replay": "proportional"},
    RANK: {"replay": "rank"},
    UNWEIGHTED: {"replay": "proportional", "importance_exponent": 0.0},
}
COLORS = {UNIFORM: "grey", PROPORTIONAL: "teal", RANK: "purple", UNWEIGHTED: "orange"}


def arms(settings: Settings) -> dict[str, dict[str, Any]]:
    updates = settings["epochs"] * settings["agent"]["steps_per_epoch"] // settings["agent"]["update_every"]
    return {
        name: {**changes, "importance_updates": updates} if name in (PROPORTIONAL, RANK) else changes
        for name, changes in ARMS.items()
    }


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return returns.conduct(runner, settings, arms(settings))


STUDY = Study(
    name="prioritised-replay",
    question="Does an agent learn more when it draws what it was most wrong about more often?",
    hypothesis="Priorities beat uniform replay in 41 of 49 Atari games, proportional and rank-based about alike. Where good "
    "transitions are many, as in CartPole, there is less to win",
    sizes={"smoke": returns.SMOKE, "laptop": {**returns.LAPTOP, "seeds": 20}},
    conduct=conduct,
    values=returns.values,
    blocks=returns.paired_blocks(COLORS),
)
