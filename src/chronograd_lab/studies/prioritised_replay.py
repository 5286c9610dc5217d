"""Prioritised replay: transitions drawn alike, by their error, by the rank of it, and by their error without weights.

Schaul et al., Prioritized experience replay, arXiv 1511.05952: better than uniform replay in 41 of 49 Atari games.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Section
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import difference, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study

UNIFORM, PROPORTIONAL, RANK, UNWEIGHTED = "uniform", "proportional", "rank-based", "proportional, no weights"
# Exponents are the paper's, as jobs have them by default; β rises to 1 over the run in the two that have weights.
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


def page(results: Results) -> Answer:
    highlights = returns.highlights(results.rows["runs"], ARMS)
    return STUDY.answer(results, [_here(results), _pairs(results)], highlights)


def _here(results: Results) -> Section:
    rows = results.rows["runs"]
    whole = returns.plus_minus(spread(rows, "last_return", agent=UNIFORM))
    others = returns.beside(rows, ARMS, UNIFORM)
    more = [name for name in ARMS if name != UNIFORM and returns.is_more(rows, name, UNIFORM)]
    answer = (
        f"Yes, with {' and '.join(more)}"
        if more
        else "No order of drawing is seen to return more than drawing all alike"
    )
    return Section(
        "Here",
        f"{answer}: alike {results.settings['environment'].partition(':')[2]} returns {whole} at the end; the others beside it: "
        f"{'; '.join(others)}.",
        intro="All arms learn from as many minibatches, of transitions that are made in the same way; only which of them are "
        "drawn differs. The learning rate is the same for all, where the paper has a quarter of it for priorities.",
        figure=returns.curves_figure(results, COLORS),
        caption="Mean over seeds and ± one standard deviation.",
        table=returns.returns_table(rows),
    )


def _pairs(results: Results) -> Section:
    rows = results.rows["runs"]
    time_s = {name: spread(rows, "processor_s", agent=name).mean for name in ARMS}
    dearest = max(time_s, key=lambda name: time_s[name])
    apart = difference(spread(rows, "processor_s", agent=dearest), spread(rows, "processor_s", agent=UNIFORM))
    cost = f"Most processor time took {dearest}, {time_s[dearest] / time_s[UNIFORM]:.2f} times uniform"
    if not apart.is_seen:
        cost = "None is seen to take more processor time than uniform"
    return returns.pairs_section(rows, ARMS, f" {cost}.")


STUDY = Study(
    name="prioritised-replay",
    question="Does an agent learn more when it draws what it was most wrong about more often?",
    hypothesis="Priorities beat uniform replay in 41 of 49 Atari games, proportional and rank-based about alike. Where good "
    "transitions are many, as in CartPole, there is less to win",
    sizes={"smoke": returns.SMOKE, "laptop": returns.LAPTOP},
    conduct=conduct,
    computed=page,
)
