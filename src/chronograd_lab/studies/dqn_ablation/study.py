"""Deep Q-learning without replay, without a target network, without both: the effect of each of them.

V. Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, extended data table 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chronograd.figure import Figure, Lines, Mark
from chronograd.units import number
from chronograd_lab.common import returns
from chronograd_lab.common.arms import of_arm
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import ends, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block, key

BOTH, NO_TARGET, NO_REPLAY, NEITHER = "both", "without target network", "without replay", "without both"
# Variants without a target network that show what makes it diverge.
SLOW, SQUARED = "without target network, rate 0.0001", "without target network, squared loss"
ARMS: dict[str, dict[str, Any]] = {
    BOTH: {},
    NO_TARGET: {"target_every": 0},
    NO_REPLAY: {"replay_size": 0, "replay_start": 1},
    NEITHER: {"replay_size": 0, "replay_start": 1, "target_every": 0},
    SLOW: {"target_every": 0, "learning_rate": 0.0001},
    SQUARED: {"target_every": 0, "loss": "squared"},
}
PAPER = (BOTH, NO_TARGET, NO_REPLAY, NEITHER)
COLORS = {BOTH: "teal", NO_TARGET: "purple", NO_REPLAY: "orange", NEITHER: "vermilion", SLOW: "grey", SQUARED: "blue"}
# Highest mean score of a run by game, in the order of PAPER: extended data table 3, recalled, not checked.
PUBLISHED = {
    "Breakout": (316.8, 240.7, 10.2, 3.2),
    "Enduro": (1006.3, 831.4, 141.9, 29.1),
    "River Raid": (7446.6, 4102.8, 2867.7, 1453.0),
    "Seaquest": (2894.4, 822.6, 1003.0, 275.8),
    "Space Invaders": (1088.9, 826.3, 373.2, 302.0),
}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return returns.conduct(runner, settings, ARMS)


def values(results: Results) -> dict[str, Any]:
    """Return the returns of the agents, their largest |Q| and their loss, and the largest possible return."""
    own = returns.values(results)
    bound = largest_return(results.settings)
    for name in ARMS:
        curves = of_arm(results.curves, name)
        own[key(name)] |= {
            "q": _ends([curve["largest_value"] for curve in curves], bound),
            "loss": _ends([curve["train_loss"] for curve in curves]),
        }
    return {**own, "bound": bound, "discount": 1 - 1 / bound}


def largest_return(settings: Settings) -> float:
    """Return the limit of any right Q in an environment with a reward of 1 per step: 1 + γ + γ² + … = 1 / (1 − γ)."""
    agent = returns.agent_job(settings).reinforcement
    assert agent is not None
    return 1 / (1 - agent.discount)


def _ends(seeds: Sequence[Sequence[float | None]], bound: float = math.inf) -> dict[str, Any]:
    """Return the smallest and largest of the first, last and highest values of curves over seeds, and numbers of seeds.

    `above`: their last value is above `bound`. `rising`: every value is above the one before. `fallen`: the last is below the highest.
    """
    known = [[math.inf if value is None else value for value in curve] for curve in seeds]  # None: not finite
    last = [curve[-1] for curve in known]
    return {
        "first": ends(curve[0] for curve in known),
        "last": ends(last),
        "highest": ends(max(curve) for curve in known),
        "above": sum(value > bound for value in last),
        "seeds": len(last),
        "fallen": sum(curve[-1] < max(curve) for curve in known),
        "rising": sum(all(a < b for a, b in itertools.pairwise(curve)) for curve in known),
    }


def blocks(results: Results) -> dict[str, Block]:
    best = [f"{spread(results.rows['runs'], 'best_return', agent=name).mean:.4g}" for name in PAPER]
    published = [[game, *(number(value) for value in scores)] for game, scores in PUBLISHED.items()]
    of_paper = {name: COLORS[name] for name in PAPER}
    of_rows = [row for row in results.rows["runs"] if row["agent"] in PAPER]
    return {
        "Here": returns.returns_block(replace(results, rows={"runs": of_rows}), of_paper),
        "Does learning diverge?": _divergence(results, PAPER),
        "What makes it diverge?": _divergence(results, (NO_TARGET, SLOW, SQUARED)),
        "Compared with the paper": Block(listed(["game", *PAPER], [*published, ["here", *best]])),
    }


def _divergence(results: Results, names: Sequence[str]) -> Block:
    """Show the largest |Q| and the loss of agents: a table of first and last values, and both curves on log scales."""
    known, bound = values(results), largest_return(results.settings)
    frames = of_arm(results.curves, names[0])[0]["frames"]
    first, before, last = (int(frames[place] or 0) for place in (0, -2, -1))
    columns = [
        f"largest |Q| after {first:,} frames",
        f"largest |Q| after {last:,} frames",
        f"loss of the first {first:,} frames",
        f"loss of the last {last - before:,} frames",
    ]
    body = [
        [
            name,
            *(_range(known[key(name)][what][when]) for what in ("q", "loss") for when in ("first", "last")),
            "{above} of {seeds}".format(**known[key(name)]["q"]),
            f"{known[key(name)]['end']:.4g}",
        ]
        for name in names
    ]
    limits = {"largest_value": [Mark("y", bound, "limit of Q")], "train_loss": []}
    labels = {"largest_value": "largest |Q|", "train_loss": "loss"}
    panels = [
        Lines(
            "frames",
            labels[column],
            [returns.log_band(results.curves, name, column, COLORS[name]) for name in names],
            marks,
            log_y=True,
        )
        for column, marks in limits.items()
    ]
    return Block(listed(["agent", *columns, f"seeds above {bound:g}", "return at the end"], body), Figure(panels))


def _range(most: Mapping[str, float]) -> str:
    """Return the lowest and the highest seed in words.

    >>> _range({"least": 0.0612, "most": 0.19}), _range({"least": 8804321.0, "most": 9523456.0})
    ('0.0612 to 0.19', '8,800,000 to 9,520,000')
    """
    if math.isinf(most["most"]):
        return "not finite"
    return " to ".join(f"{float(f'{most[side]:.3g}'):,.15g}" for side in ("least", "most"))


STUDY = Study(
    name="dqn-ablation",
    question="What does deep Q-learning lose without replay, without a target network, and without both?",
    hypothesis="Successive transitions are alike, and targets that move with every update chase themselves: without replay "
    "an agent loses most, without a target network less, without both nearly all",
    sizes={"smoke": returns.SMOKE, "laptop": returns.LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
