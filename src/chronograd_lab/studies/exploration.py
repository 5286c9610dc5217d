"""Exploration: a fixed share of random actions, a falling one, or the ladder of Ape-X, on which episodes take turns.

Annealed: Mnih et al. 2015. Ladder: D. Horgan et al., Distributed prioritized experience replay, arXiv 1803.00933, section 4.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Section
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study

ANNEALED, LADDER = "annealed, 1 to 0.05", "ladder of 8"
LOW, HIGH = "fixed, 0.05", "fixed, 0.4"
ARMS: dict[str, dict[str, Any]] = {
    ANNEALED: {"exploration": "annealed", "epsilon_start": 1.0, "epsilon_end": 0.05},
    LOW: {"exploration": "fixed", "epsilon_end": 0.05},
    HIGH: {"exploration": "fixed", "epsilon_end": 0.4},
    LADDER: {"exploration": "ladder", "ladder": 8},
}
COLORS = {ANNEALED: "teal", LOW: "orange", HIGH: "vermilion", LADDER: "purple"}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return returns.conduct(runner, settings, ARMS)


def page(results: Results) -> Answer:
    highlights = returns.highlights(results.rows["runs"], ARMS)
    return STUDY.answer(results, [_here(results), returns.pairs_section(results.rows["runs"], ARMS)], highlights)


def _here(results: Results) -> Section:
    rows = results.rows["runs"]
    means = {name: spread(rows, "last_return", agent=name).mean for name in ARMS}
    best = max(means, key=lambda name: means[name])
    others = returns.beside(rows, ARMS, best)
    is_seen = any(returns.is_more(rows, best, name) for name in ARMS if name != best)
    most = (
        "Most is returned at the end"
        if is_seen
        else "No ε is seen to return more than others; the highest mean is that"
    )
    return Section(
        "Here",
        f"{most} with ε {best}, {returns.plus_minus(spread(rows, 'last_return', agent=best))}; the others "
        f"beside it: {'; '.join(others)}.",
        intro="ε is the share of random actions in training; evaluation has none. On the ladder an episode has the ε of one of "
        "8 actors, 0.4 to 0.00066, each in its turn.",
        figure=returns.curves_figure(results, COLORS),
        caption="Mean over seeds and ± one standard deviation.",
        table=returns.returns_table(rows),
    )


STUDY = Study(
    name="exploration",
    question="What share of random actions does an agent learn most with: a fixed one, a falling one, or Ape-X's ladder?",
    hypothesis="Many random actions find what is good, and spoil what is known: falling from many to few should beat any "
    "fixed share, and the ladder, which has both at once, should need no schedule",
    sizes={"smoke": returns.SMOKE, "laptop": returns.LAPTOP},
    conduct=conduct,
    computed=page,
)
