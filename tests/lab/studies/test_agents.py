"""Studies of agents: the smoke size through every step to a page, and what their sentences rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronograd.report.html import render_html
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.studies import dqn_ablation, exploration, prioritised_replay


def results_of(ends: dict[str, list[float]]) -> Results:
    """Made up: what agents returned at the end, by seed."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float | None]]] = {}
    for name, own in ends.items():
        for seed, end in enumerate(own):
            rows.append({"agent": name, "seed": seed, "last_return": end, "worst_of_last": end, "best_return": end,
                         "frames": 100, "seconds": 1.0, "updates": 80})  # fmt: skip
            curves[f"{name}/seed-{seed}"] = {"frames": [50, 100], "seconds": [1, 2], "mean_return": [10, end]}
    return Results("dqn-ablation", "smoke", returns.SMOKE, {"runs": rows}, curves)


@pytest.mark.slow
@pytest.mark.gymnasium
@pytest.mark.parametrize("study", [dqn_ablation, exploration, prioritised_replay], ids=lambda s: s.STUDY.name)
def test_smoke_size_end_to_end(tmp_path: Path, study: Any) -> None:
    said: list[str] = []
    settings = {**study.STUDY.sizes["smoke"], "seeds": 1}
    results = study.STUDY.conduct(StudyRunner(tmp_path, study.STUDY.name, "smoke", said.append), settings)
    assert len(said) == 4
    assert all("–" not in line for line in said)
    assert {row["agent"] for row in results.rows["runs"]} == set(study.ARMS)
    assert all(row["frames"] == 200 and 8 <= row["last_return"] <= 500 for row in results.rows["runs"])
    page = study.STUDY.page(results)
    assert "too few seeds to judge" in page.sections[0].takeaway
    assert render_html(page).startswith("<!doctype html>")


def test_the_arms_of_the_ablation_differ_in_what_they_are_named_for() -> None:
    made = {
        name: returns.agent_job(returns.LAPTOP, **changes).reinforcement for name, changes in dqn_ablation.ARMS.items()
    }
    has = {name: (one.replay_size > 0, one.target_every > 0) for name, one in made.items() if one is not None}
    assert list(has.values()) == [(True, True), (True, False), (False, True), (False, False)]


def test_the_order_of_the_paper_is_told_as_seeds_bear_it() -> None:
    both, target, replay, neither = dqn_ablation.ARMS
    clear = {both: [500.0, 490, 495], target: [300, 310, 305], replay: [100, 110, 105], neither: [10, 12, 11]}
    assert dqn_ablation.order_words(results_of(clear)).startswith(
        "The order is the paper's: both more than without target"
    )
    vague = {**clear, target: [480, 500, 492]}
    told = dqn_ablation.order_words(results_of(vague))
    assert told.startswith("Of the paper's order 3 of 4 comparisons are seen")
    assert "both not significantly different from without target network" in told
    turned = {**clear, both: [1, 2, 3]}
    assert "both less than without replay" in dqn_ablation.order_words(results_of(turned))


def test_a_page_says_how_far_apart_agents_are() -> None:
    both, target, replay, neither = dqn_ablation.ARMS
    page = dqn_ablation.STUDY.page(
        results_of({both: [500, 490, 495], target: [300, 310, 305], replay: [100, 110, 105], neither: [10, 12, 11]})
    )
    assert "CartPole-v1 returns 495 ± 5 at the end" in page.sections[0].takeaway
    assert "without replay −390" in page.sections[0].takeaway.replace("-", "−")
    assert "the one without replay beside the one without target network: −200 (" in page.sections[0].takeaway
    table = page.sections[1].table
    assert table is not None
    assert table.rows[-1] == ["here", "495", "305", "105", "11"]


def test_an_epsilon_is_said_to_be_best_where_seeds_bear_it() -> None:
    annealed, low, high, ladder = exploration.ARMS
    clear = {annealed: [500.0, 490, 495], low: [300, 310, 305], high: [100, 110, 105], ladder: [10, 12, 11]}
    page = exploration.STUDY.page(results_of(clear))
    assert page.sections[0].takeaway.startswith("Most is returned at the end with ε annealed, 1 to 0.05, 495 ± 5")
    vague = {annealed: [500.0, 100, 300], low: [480, 110, 290], high: [400, 150, 305], ladder: [310, 112, 411]}
    page = exploration.STUDY.page(results_of(vague))
    assert page.sections[0].takeaway.startswith(
        "No ε is seen to return more than others; the highest mean is that with ε annealed"
    )
    assert "no pair differs significantly" in page.sections[1].takeaway
