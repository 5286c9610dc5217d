"""Studies of prioritised replay, and of Gorila and Ape-X: their jobs, and the claims of their pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chronograd.launch.jobs import check_anywhere
from chronograd.reinforce.systems import SystemsView
from chronograd_lab.common import returns
from chronograd_lab.common.results import Results
from chronograd_lab.studies.gorila_and_apex import study as gorila_and_apex
from chronograd_lab.studies.prioritised_replay import study as prioritised_replay


def results_of(study: Any, **more: Any) -> Results:
    """Return made-up results: the arms return 100, 200, 300 … at the end, with three seeds each."""
    rows, curves = [], {}
    for place, name in enumerate(study.ARMS, 1):
        for seed in range(3):
            end = 100.0 * place + seed
            rows.append({"agent": name, "seed": seed, "last_return": end, "worst_of_last": end, "best_return": end,
                         "frames": 200, "seconds": 5.0, "processor_s": place + 0.1 * (seed - 1), "updates": 80, **more.get(name, {})})  # fmt: skip
            curves[f"{name}/seed-{seed}"] = {"frames": [100, 200], "seconds": [1, 2], "mean_return": [10, end]}
    return Results(study.STUDY.name, "smoke", returns.SMOKE, {"runs": rows}, curves, environment={"cores": 2})


def test_returns_and_time_relative_to_uniform_replay() -> None:
    results = results_of(prioritised_replay)
    values = returns.values(results)
    assert f"{values['uniform']['end']:.4g}" == "101 ± 1"
    assert f"{values['rank_based']['end'] - values['uniform']['end']:.0f}".startswith("+200 (")
    assert values["pairs_that_differ"] == 6
    assert values["proportional_no_weights"]["time"].mean / values["uniform"]["time"].mean == pytest.approx(4)
    first = prioritised_replay.STUDY.blocks(results)["Here"].table
    assert first is not None
    assert first.columns[-1] == "seconds of a core"


def test_arm_sampling_matches_its_name() -> None:
    made = {
        name: returns.agent_job(returns.LAPTOP, **changes).reinforcement
        for name, changes in prioritised_replay.arms(returns.LAPTOP).items()
    }
    assert [one.replay for one in made.values() if one] == ["uniform", "proportional", "rank", "proportional"]
    agent: Any = returns.LAPTOP["agent"]
    updates = returns.LAPTOP["epochs"] * agent["steps_per_epoch"] // agent["update_every"]  # type: ignore[operator]
    weighted = made[prioritised_replay.PROPORTIONAL]
    assert weighted is not None
    assert weighted.importance_updates == updates
    plain = made[prioritised_replay.UNWEIGHTED]
    assert plain is not None
    assert plain.importance_exponent == 0.0


def test_gorila_and_apex() -> None:
    """Values that an arm does not measure, such as the staleness of Ape-X, are a dash."""
    measured = dict.fromkeys(gorila_and_apex.MEASURED)
    known = {"throughput_frames_per_s": 1000.0, "updates_per_s": 100.0}
    gorila = {
        "staleness": 1.25, "agents_bytes_per_update": 200_000.0, "agents_draws_of_top_tenth": 0.1, "agents_parameter_age_updates": 12.0,
        "agents_drawn_per_s": 8000.0, "agents_added_per_s": 1000.0,
    }  # fmt: skip
    apex = {**gorila, "staleness": None, "agents_bytes_per_update": 10_000.0, "agents_draws_of_top_tenth": 0.35}
    rest = {"trained_params": 100, "notes": ["gradients dropped: 3 stale; applied: 97"]}
    of = {name: {**measured, **known, **rest} for name in gorila_and_apex.ARMS}
    of[gorila_and_apex.GORILA] |= gorila
    of[gorila_and_apex.APEX] |= apex
    results = replace(results_of(gorila_and_apex, **of), size="laptop")
    page = gorila_and_apex.STUDY.page(results, is_checked=False)
    learned, unlike, alike, published = page.sections[:4]
    assert "differs from that by +100 (" in learned.takeaway
    assert "1.25 updates old" in unlike.takeaway
    assert "200 kB with Gorila and 10 kB with Ape-X" in unlike.takeaway
    assert "35 % of Ape-X's draws and 10 % of Gorila's" in unlike.takeaway
    assert "3 stale" in unlike.intro
    assert unlike.table is not None
    assert unlike.table.rows[0][2] == "1.25 updates old on average"
    assert "drawn 8.00 and 8.00 times" in alike.takeaway
    assert published.table is not None
    assert published.table.rows[0] == ["frames per second of all actors", "50,040", "about 50,000"]
    assert published.takeaway.startswith("If each transition is drawn once, 280 of those actors are enough")


def test_measured_rates_exist_in_runs() -> None:
    rates = {f"agents_{name}" for name in SystemsView(cores=2, batch=16).rates()}
    assert set(gorila_and_apex.MEASURED) - rates == {"staleness", "throughput_frames_per_s", "updates_per_s"}


@pytest.mark.ray
@pytest.mark.gymnasium
@pytest.mark.parametrize("size", ["smoke", "laptop"])
def test_jobs_of_all_arms_are_valid(size: str) -> None:
    settings = gorila_and_apex.STUDY.sizes[size]
    made = {name: gorila_and_apex.job_of(settings, name) for name in gorila_and_apex.ARMS}
    for job in made.values():
        check_anywhere(job)
    algorithms = [job.reinforcement.algorithm for job in made.values() if job.reinforcement]
    assert algorithms == ["dqn-2015", "gorila", "gorila", "apex"]
    assert len({(job.training.batch, job.training.epochs, job.network.name) for job in made.values()}) == 1
