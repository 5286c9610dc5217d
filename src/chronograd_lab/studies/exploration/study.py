"""Exploration: a fixed share of random actions, a falling one, or the ladder of Ape-X, whose rungs alternate by episode.

Annealed: Mnih et al. 2015. Ladder: D. Horgan et al., Distributed prioritized experience replay, arXiv 1803.00933, section 4.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import difference, grouped, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study
from chronograd_lab.common.written import key

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


def values(results: Results) -> dict[str, Any]:
    """Return the values of a study of agents, and `pairs`: their number, the pair with the least p, and this p for that number
    of comparisons (Bonferroni). `earlier`: the return at the end over the seeds of earlier runs, by agent.
    """
    ends = {name: spread(rows, "last_return") for name, rows in grouped(results.rows["runs"], "agent").items()}
    pairs = list(combinations(ends, 2))
    p_of = {pair: p for pair in pairs if (p := difference(*(ends[name] for name in pair)).p) is not None}
    pair = min(p_of, key=p_of.__getitem__)
    least = {
        "of": f"“{pair[0]}” against “{pair[1]}”",
        "least_p": p_of[pair],
        "corrected_p": min(1.0, len(pairs) * p_of[pair]),
    }
    earlier = {
        key(name): spread(rows, "last_return")
        for name, rows in grouped(results.rows.get("earlier", []), "agent").items()
    }
    return {**returns.values(results), "pairs": {"count": len(pairs), **least}, "earlier": earlier}


STUDY = Study(
    name="exploration",
    question="What share of random actions does an agent learn most with: a fixed one, a falling one, or Ape-X's ladder?",
    hypothesis="Many random actions find good actions, but disturb known ones. A share that falls from many to few should beat any "
    "fixed share. The ladder has both at once and should need no schedule",
    sizes={"smoke": returns.SMOKE, "laptop": {**returns.LAPTOP, "seeds": 13, "first_seed": 13}},
    conduct=conduct,
    values=values,
    blocks=returns.paired_blocks(COLORS),
)
