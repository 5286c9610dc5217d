"""Deep Q-learning without replay, without a target network, without both: what each of them is for.

V. Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, extended data table 3.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Section
from chronograd.units import number
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

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


def page(results: Results) -> Answer:
    highlights = returns.highlights(results.rows["runs"], ARMS)
    return STUDY.answer(results, [_here(results), _published(results)], highlights)


def _here(results: Results) -> Section:
    rows = results.rows["runs"]
    lost = returns.beside(rows, ARMS, BOTH)
    whole = returns.plus_minus(spread(rows, "last_return", agent=BOTH))
    return Section(
        "Here",
        f"With replay and target network {results.settings['environment'].partition(':')[2]} returns {whole} at the end; "
        f"the others beside it: {'; '.join(lost)}. Of the two that lack one part, the one without replay beside the one without "
        f"target network: {returns.returns_apart(rows, NO_REPLAY, NO_TARGET)}.",
        intro="Without replay an update learns from the transitions made since the last one. All else is the same.",
        figure=returns.curves_figure(results, COLORS),
        caption="Mean over seeds and ± one standard deviation.",
        table=returns.returns_table(rows),
    )


def order_words(results: Results) -> str:
    """Whether the order of the paper is seen: both above either, either above neither; as far as the seeds bear it."""
    rows = results.rows["runs"]
    pairs = [(BOTH, NO_TARGET), (BOTH, NO_REPLAY), (NO_TARGET, NEITHER), (NO_REPLAY, NEITHER)]
    seen = {pair: returns.is_more(rows, *pair) for pair in pairs}
    words = {True: "more than", False: "less than", None: "not significantly different from"}
    agreeing = sum(verdict is True for verdict in seen.values())
    told = "; ".join(f"{a} {words[seen[a, b]]} {b}" for a, b in pairs)
    head = (
        "The order is the paper's"
        if agreeing == len(pairs)
        else f"Of the paper's order {agreeing} of {len(pairs)} comparisons are seen at this size"
    )
    return f"{head}: {told}."


def _published(results: Results) -> Section:
    own = [f"{spread(results.rows['runs'], 'best_return', agent=name).mean:.4g}" for name in ARMS]
    body = [[game, *(number(value) for value in scores)] for game, scores in PUBLISHED.items()]
    return Section(
        "Beside the paper",
        order_words(results),
        intro="Published: the best mean score of training with three learning rates, 10 million frames, Atari; recalled, not "
        "checked. Here: the best evaluation of a run, mean over seeds.",
        table=listed(["game", *ARMS], [*body, ["here", *own]]),
    )


STUDY = Study(
    name="dqn-ablation",
    question="What does deep Q-learning lose without replay, without a target network, and without both?",
    hypothesis="Successive transitions are alike, and targets that move with every update chase themselves: without replay "
    "an agent loses most, without a target network less, without both nearly all",
    sizes={"smoke": returns.SMOKE, "laptop": returns.LAPTOP},
    conduct=conduct,
    computed=page,
)
