"""Staleness: the smoke size from run to page, closed forms, and runs with a known gap."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from chronograd.backends import parameter_server
from chronograd.report.html import render_html
from chronograd.simulate.staleness import NS, Duration, Learner, simulate
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.staleness import parameter_servers as runs_of
from chronograd_lab.studies.staleness import study
from chronograd_lab.studies.staleness.parameter_servers import replayed, simulated, total_variation
from chronograd_lab.studies.staleness.study import STUDY

PUBLISHED = Path(__file__).parents[3] / "docs" / "studies" / "staleness" / "results.json"

SIMULATED = ["Two learners, by hand", "How staleness grows with learners", "n-softsync", "One slow learner"]
COUNTED = ["Simulated, and counted on parameter servers", "Updates per second", "A run over time"]


@pytest.mark.ray
def test_smoke_size_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])
    results.save(tmp_path / "results.json")
    results = Results.load(tmp_path / "results.json")
    (run,) = results.rows["runs"]
    assert run["run"] == "2 learners, 1 server"
    assert run["updates"] == 400 // 10 - 2 * runs_of.WARMUP
    assert 0 < run["mean"] <= run["replayed"] == pytest.approx(1, abs=0.1)
    assert run["mean_at_once"] == pytest.approx(1, abs=0.01)
    page = STUDY.page(results)
    assert [s.title for s in page.sections] == SIMULATED + COUNTED
    assert render_html(page).startswith("<!doctype html>")


@pytest.fixture
def without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setattr(parameter_server, "available", lambda: (False, "ray not installed"))
    return STUDY.conduct(StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None), STUDY.sizes["smoke"])


def test_simulated_part_without_ray(without_ray: Results) -> None:
    page = STUDY.page(without_ray)
    assert [s.title for s in page.sections] == [*SIMULATED, "What fell short"]
    assert page.sections[-1].takeaway == "Nothing was counted on parameter servers: ray not installed."


def test_simulated_staleness_follows_closed_forms(without_ray: Results) -> None:
    exercise = study._updates(without_ray.curves["exercise"])
    assert [exercise.of_learner(one).tolist() for one in (1, 2)] == [[0, 0, 1, 0], [2, 2]]
    fixed, random = (study._shares(without_ray, times)[4] for times in ("fixed", "exponential"))
    assert fixed[3] == pytest.approx(0.999, abs=0.0005)
    assert total_variation(random, {s: 0.25 * 0.75**s for s in range(200)}) < 0.03
    for row in without_ray.rows["softsync"]:
        assert row["mean"] == pytest.approx(row["n"] * 3 / 4, rel=0.03)
    for row in without_ray.rows["slow"]:
        assert row["slow"] == pytest.approx(3 * row["factor"], rel=0.06)
        assert row["others"] == pytest.approx(2 + 1 / row["factor"], rel=0.06)
        assert row["mean"] == pytest.approx(3, rel=0.01)


def test_values_of_the_published_results() -> None:
    values = study.values(Results.load(PUBLISHED))
    assert values["exercise"] == {"mean": pytest.approx(5 / 6), "tied": 3, "of_1": "0, 0, 1, 0", "of_2": "2, 2"}
    assert values["first"]["run"] == "2 learners, 1 server"
    assert values["stalest"] == {"counted": 6, "simulated_with_the_gap": 43}
    assert values["drawn"]["updates"] == runs_of.DRAWN


def test_counts_without_a_gap_contradict_the_page() -> None:
    results = Results.load(PUBLISHED)
    for row in results.rows["runs"]:
        row["mean"] = row["mean_at_once"]
    with pytest.raises(ClaimError, match="reads weights right after each push gives"):
        STUDY.page(results)


def run_lines(learners: int, outside: float, updates: int = 4000) -> list[Row]:
    """Return lines of a run with learners that are idle for 1 ms.

    Weights are read at the share `outside` of a pull of 4 ms, and updated at that share before the end of a push of 6 ms.
    """
    pull, push, idle = 0.004, 0.006, 0.001
    parts = (
        Duration("exponential", (0.02,)),
        *(
            Duration("fixed", (s,))
            for s in ((1 - outside) * pull, (1 - outside) * push, idle + outside * (pull + push))
        ),
    )
    found = simulate([Learner(*parts)] * learners, updates)
    compute = (found.computed_ns - found.pulled_ns) / NS
    columns = zip(found.update, found.learner - 1, found.staleness, found.applied_ns / NS, compute, strict=True)
    return [
        {"step": int(step), "learner": int(learner), "staleness": int(stale), "time_s": float(at), "pull_s": pull,
         "compute_s": float(seconds), "push_s": push, "idle_s": idle}
        for step, learner, stale, at, seconds in columns
    ]  # fmt: skip


def test_planted_gap_is_detected() -> None:
    runs = {"2 learners, 1 server": run_lines(2, 0.3), "4 learners, 1 server": run_lines(4, 0.3)}
    rows, _ = runs_of.compared(runs, 50_000)
    for learners, row in zip((2, 4), rows, strict=True):
        assert row["outside"] == pytest.approx(0.3, abs=0.05)
        assert row["gap_s"] == pytest.approx(0.001 + 0.3 * 0.010, rel=0.15)
        assert row["replayed"] == pytest.approx(learners - 1, rel=0.01)
        assert row["mean_at_once"] == pytest.approx(learners - 1, rel=0.01)
        assert row["mean_with_gap"] == pytest.approx(row["mean"], rel=0.04)
        assert row["distance_with_gap"] < 0.04 < row["distance_at_once"]
        assert row["updates_per_s_with_gap"] == pytest.approx(row["updates_per_s"], rel=0.05)
        assert row["updates_per_s_at_once"] > row["updates_per_s_with_gap"]


def test_stall_of_all_learners_differs_from_one() -> None:
    """Both learners take a second longer at about 20 s; later one of them takes two."""
    lines = [{**line} for line in run_lines(2, 0.3, 2000)]
    late = [next(line for line in lines if line["learner"] == one and line["time_s"] > 20) for one in (0, 1)]
    for line in late:
        line["push_s"] += 1.0
    together = runs_of._stall(lines)
    assert together["learners_stalled"] == 2
    assert together["longest_cycle_s"] > 1
    lines[-1]["push_s"] += 2.0
    assert runs_of._stall(lines)["learners_stalled"] == 1


def test_counted_never_exceeds_replayed() -> None:
    lines = run_lines(3, 0.0)
    assert replayed(lines) > np.mean([line["staleness"] for line in lines])
    no_idling = [{**line, "idle_s": 0.0} for line in lines]
    assert simulated(no_idling, 20_000, 0.0).mean == pytest.approx(2, rel=0.01)


def test_timeline_has_the_steps_of_the_run() -> None:
    lines = run_lines(4, 0.3)[100:]
    first = runs_of.timeline(lines)
    assert first.update.tolist() == list(range(101, 101 + runs_of.DRAWN))
    assert (np.diff(first.applied_ns) >= 0).all()
    assert first.read_ns.min() == 0
    kept = json.loads(json.dumps(study._columns(first)))
    assert study._updates(kept).staleness.tolist() == [line["staleness"] for line in lines[: runs_of.DRAWN]]


def test_slowed_learner_continues_afterwards(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            found = set()
            with runs_of.paused(tmp_path, 1, 0.9):
                start = {"attempt": 1, "time": time.time(), "event": "start", "step": 0, "pid": process.pid}
                (tmp_path / "steps.1.jsonl").write_text(json.dumps(start) + "\n")
                seen = psutil.Process(process.pid)
                deadline = time.monotonic() + 600
                while psutil.STATUS_STOPPED not in found and time.monotonic() < deadline:
                    found.add(seen.status())
            assert psutil.STATUS_STOPPED in found
            assert seen.status() != psutil.STATUS_STOPPED
        finally:
            process.kill()


def test_no_process_is_slowed_before_learners_start(tmp_path: Path) -> None:
    old = {"attempt": 1, "time": time.time() - 60, "event": "start", "step": 0, "pid": psutil.Process().pid}
    (tmp_path / "steps.1.jsonl").write_text(json.dumps(old) + "\n")
    with runs_of.paused(tmp_path, 1, 0.5):
        time.sleep(0.2)  # if it had stopped this process, this would never end
