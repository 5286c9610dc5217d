"""Studies of agents: the smoke size from run to page, and the claims of their pages."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from chronograd.figure import Lines
from chronograd.report.html import render_html
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError, key
from chronograd_lab.studies.dqn_ablation import study as dqn_ablation
from chronograd_lab.studies.exploration import study as exploration
from chronograd_lab.studies.prioritised_replay import study as prioritised_replay


def results_of(ends: dict[str, list[float]], largest: dict[str, list[float | None]] | None = None) -> Results:
    """Return made-up results: the final returns of agents by seed, and the largest |Q| of each evaluation by agent."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float | None]]] = {}
    for name, own in ends.items():
        for seed, end in enumerate(own):
            rows.append({"agent": name, "seed": seed, "last_return": end, "worst_of_last": end, "best_return": end,
                         "frames": 100, "seconds": 1.0, "updates": 80})  # fmt: skip
            curves[f"{name}/seed-{seed}"] = {
                "frames": [50, 100], "seconds": [1, 2], "mean_return": [10, end], "train_loss": [0.1, 0.2],
                "largest_value": (largest or {}).get(name, [2.0, 30 + seed]),
            }  # fmt: skip
    return Results("dqn-ablation", "smoke", returns.SMOKE, {"runs": rows}, curves)


@pytest.mark.slow
@pytest.mark.gymnasium
@pytest.mark.parametrize("study", [dqn_ablation, exploration, prioritised_replay], ids=lambda s: s.STUDY.name)
def test_smoke_size_end_to_end(tmp_path: Path, study: Any) -> None:
    said: list[str] = []
    settings = {**study.STUDY.sizes["smoke"], "seeds": 1}
    results = study.STUDY.conduct(StudyRunner(tmp_path, study.STUDY.name, "smoke", said.append), settings)
    assert len(said) == len(study.ARMS)
    assert all("–" not in line for line in said)
    assert {row["agent"] for row in results.rows["runs"]} == set(study.ARMS)
    assert all(row["frames"] == 200 and 8 <= row["last_return"] <= 500 for row in results.rows["runs"])
    page = study.STUDY.page(results)
    assert page.sections[0].takeaway == "4 rows of size smoke."
    assert render_html(page).startswith("<!doctype html>")
    shutil.copytree(tmp_path / "finished", tmp_path / "elsewhere" / "finished")
    again = StudyRunner(tmp_path / "elsewhere", study.STUDY.name, "smoke", said.append)
    assert study.STUDY.conduct(again, settings).rows == results.rows
    assert len(said) == len(study.ARMS)  # another machine repeats no run


def test_ablation_arms_match_their_names() -> None:
    made = {
        name: returns.agent_job(returns.LAPTOP, **changes).reinforcement for name, changes in dqn_ablation.ARMS.items()
    }
    has = {name: (one.replay_size > 0, one.target_every > 0) for name, one in made.items() if one is not None}
    assert list(has.values()) == [
        (True, True),
        (True, False),
        (False, True),
        (False, False),
        (True, False),
        (True, False),
    ]
    rates = [
        returns.agent_job(returns.LAPTOP, **changes).training.learning_rate for changes in dqn_ablation.ARMS.values()
    ]
    assert rates == pytest.approx([*[0.001] * 4, 0.0001, 0.001])


def test_page_shows_differences_between_agents() -> None:
    both, target, replay, neither, slow, squared = dqn_ablation.ARMS
    ends = {
        both: [500.0, 490, 495],
        target: [300.0, 310, 305],
        replay: [100.0, 110, 105],
        neither: [10.0, 12, 11],
        slow: [50.0, 60, 55],
        squared: [600.0, 610, 605],
    }
    results = results_of(ends)
    values = returns.values(results)
    assert f"{values['both']['end']:.4g}" == "495 ± 5"
    assert f"{values['without_replay']['end'] - values['both']['end']:.0f}".startswith("−390 (")
    assert values["pairs_that_differ"] == 15
    table = dqn_ablation.blocks(results)["Compared with the paper"].table
    assert table is not None
    assert table.rows[-1] == ["here", "495", "305", "105", "11"]
    pairs = returns.pairs_table(results.rows["runs"])
    assert [tuple(row[:2]) for row in pairs.rows] == list(combinations(dqn_ablation.ARMS, 2))
    assert pairs.rows[5][2].startswith("+200 (")
    vague = results_of({**ends, both: [400.0, 100, 505]})
    assert returns.values(vague)["pairs_that_differ"] == 10


def test_divergence_is_counted_per_seed() -> None:
    """|Q| above 1 / (1 − γ) is wrong; a value that is not finite counts as infinite."""
    both, target, replay, neither, slow, squared = dqn_ablation.ARMS
    ends = {name: [10.0, 20.0] for name in dqn_ablation.ARMS}
    largest: dict[str, list[float | None]] = {target: [500.0, 9e6], replay: [500.0, 90.0], neither: [500.0, None]}
    results = results_of(ends, largest)
    values = dqn_ablation.values(results)
    assert values["bound"] == pytest.approx(100)
    counts = {name: (values[key(name)]["q"]["above"], values[key(name)]["q"]["rising"]) for name in dqn_ablation.ARMS}
    assert counts == {both: (0, 2), target: (2, 2), replay: (0, 0), neither: (2, 2), slow: (0, 2), squared: (0, 2)}
    assert [values[key(name)]["q"]["fallen"] for name in (target, replay)] == [0, 2]
    block = dqn_ablation.blocks(results)["Does learning diverge?"]
    assert block.table is not None
    assert block.table.rows[0] == [both, "2 to 2", "30 to 31", "0.1 to 0.1", "0.2 to 0.2", "0 of 2", "15 ± 7.07"]
    assert block.table.rows[1][2] == "9,000,000 to 9,000,000"
    assert block.table.rows[3][2] == "not finite"
    assert block.figure is not None
    values_panel, _ = block.figure.panels
    assert isinstance(values_panel, Lines)
    first = values_panel.series[0]
    assert first.y == pytest.approx([2, math.sqrt(30 * 31)], rel=1e-5)
    assert (list(first.low), list(first.high)) == ([2, 30], [2, 31])
    assert values_panel.series[3].y[-1] is None


@pytest.mark.parametrize("study", [dqn_ablation, exploration, prioritised_replay], ids=lambda s: s.STUDY.name)
def test_different_returns_contradict_the_page(study: Any) -> None:
    """Reverse the published results, where one agent is far ahead in the ablation and none in the other studies."""
    low = [10.0, 12, 11] if study is not dqn_ablation else [490.0, 500, 495]
    ends = {name: [490.0, 500, 495] if name == list(study.ARMS)[1] else low for name in study.ARMS}
    with pytest.raises(ClaimError, match="do not support"):
        study.STUDY.page(replace(results_of(ends), size="laptop"))
