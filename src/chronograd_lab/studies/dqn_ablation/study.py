"""Deep Q-learning without replay, without a target network, without both: the effect of each of them.

V. Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, extended data table 3.
"""

from __future__ import annotations

from typing import Any

from chronograd.units import number
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block

BOTH, NO_TARGET, NO_REPLAY, NEITHER = "both", "without target network", "without replay", "without both"
ARMS: dict[str, dict[str, Any]] = {
    BOTH: {},
    NO_TARGET: {"target_every": 0},
    NO_REPLAY: {"replay_size": 0, "replay_start": 1},
    NEITHER: {"replay_size": 0, "replay_start": 1, "target_every": 0},
}
COLORS = {BOTH: "teal", NO_TARGET: "purple", NO_REPLAY: "orange", NEITHER: "vermilion"}
# Highest mean score of a run by game, in the order of ARMS: extended data table 3, recalled, not checked.
PUBLISHED = {
    "Breakout": (316.8, 240.7, 10.2, 3.2),
    "Enduro": (1006.3, 831.4, 141.9, 29.1),
    "River Raid": (7446.6, 4102.8, 2867.7, 1453.0),
    "Seaquest": (2894.4, 822.6, 1003.0, 275.8),
    "Space Invaders": (1088.9, 826.3, 373.2, 302.0),
}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return returns.conduct(runner, settings, ARMS)


def blocks(results: Results) -> dict[str, Block]:
    best = [f"{spread(results.rows['runs'], 'best_return', agent=name).mean:.4g}" for name in ARMS]
    published = [[game, *(number(value) for value in scores)] for game, scores in PUBLISHED.items()]
    return {
        "Here": returns.returns_block(results, COLORS),
        "Compared with the paper": Block(listed(["game", *ARMS], [*published, ["here", *best]])),
    }


STUDY = Study(
    name="dqn-ablation",
    question="What does deep Q-learning lose without replay, without a target network, and without both?",
    hypothesis="Successive transitions are alike, and targets that move with every update chase themselves: without replay "
    "an agent loses most, without a target network less, without both nearly all",
    sizes={"smoke": returns.SMOKE, "laptop": returns.LAPTOP},
    conduct=conduct,
    values=returns.values,
    blocks=blocks,
)
