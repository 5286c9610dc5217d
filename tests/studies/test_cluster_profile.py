"""Cluster profile: the smoke size on a real SLURM where there is one, else on processes, through every step to a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.slurm_cluster import cluster

from chronograd.launch.slurm import commands as slurm_commands
from chronograd.report.html import render_html
from chronograd.studies.cluster_profile import PROCESSES, SLURM, STUDY, job, predictions
from chronograd.study.results import Results
from chronograd.study.runner import StudyRunner


def check(folder: Path, launcher: str, nodes: list[int], threads: int) -> Results:
    """Conduct the smoke size, twice; make its page."""
    said: list[str] = []
    settings = {**STUDY.sizes["smoke"], "nodes": nodes, "threads": threads}
    results = STUDY.conduct(StudyRunner(folder, "cluster-profile", "smoke", said.append), settings)
    rows = results.rows["runs"]
    assert {row["launcher"] for row in rows} == {launcher}
    # 200 samples, 20 of a rank: 10, 5 and 3 steps in each of 3, 2 and 1 epochs.
    expected = {1: (3, 30), 2: (2, 10), 3: (1, 3)}
    assert [(row["nodes"], (row["epochs"], row["updates"])) for row in rows] == [(n, expected[n]) for n in nodes]
    for row in rows:
        assert row["real_s"] > row["seconds"] > 0
        assert row["user_s"] > 0
        assert row["system_s"] > 0
        assert 0 <= row["accuracy"] <= 1
    results.save(folder / "results.json")
    page = STUDY.page(Results.load(folder / "results.json"))
    assert [s.title for s in page.sections[:4]] == [
        "Does the time fall with nodes?",
        "Why is user time above real time?",
        "Where would a real cluster differ?",
        "Beside the report",
    ]
    assert f"From 1 to {nodes[-1]} nodes small CNN" in page.sections[0].takeaway
    assert "EfficientNet-B0 are equal within 0.4 %" in page.sections[3].takeaway
    assert render_html(page).startswith("<!doctype html>")
    again = STUDY.conduct(StudyRunner(folder, "cluster-profile", "smoke", said.append), settings)
    assert again.rows == results.rows  # nothing is run twice
    return results


@pytest.mark.slurm
def test_smoke_size_on_three_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(3) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        check(tmp_path, SLURM, nodes=[1, 3], threads=2)
    assert len(list(tmp_path.glob("runs/*/nodes-3/usage.*.jsonl"))) == 3


@pytest.mark.slow
@pytest.mark.real_exec  # system time is counted in ticks of 10 ms, of which a forked rank may take none
def test_smoke_size_without_slurm_runs_processes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_commands.num_nodes() == 0
    results = check(tmp_path, PROCESSES, nodes=[1, 2], threads=1)
    assert any("started by torchrun" in note for note in results.notes)


def test_a_faster_link_is_predicted_to_be_no_slower() -> None:
    rows = predictions(STUDY.sizes["smoke"])
    slow, fast = ([r for r in rows if r["link"] == link] for link in ("ethernet-1g", "ethernet-10g"))
    assert [a["step_time_s"] == b["step_time_s"] for a, b in zip(slow, fast, strict=True)] == [True, False, False]
    assert all(a["step_time_s"] >= b["step_time_s"] for a, b in zip(slow, fast, strict=True))


def test_the_job_is_that_of_the_examples() -> None:
    found = job(STUDY.sizes["paper"], "ResNet-50", 3)
    assert (found.training.optimizer, found.training.learning_rate, found.training.batch) == ("adadelta", 1.0, 384)
    assert found.training.scale_by_ranks == ("learning_rate", "epochs")
    assert (found.cluster.count, found.cluster.per_node, found.backend) == (3, 1, "ddp")
