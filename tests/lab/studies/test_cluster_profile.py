"""Cluster profile: the smoke size from run to page, on SLURM if available and otherwise as processes."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.slurm_cluster import cluster

from chronograd.data.trace_job import trace_job
from chronograd.errors import RunError
from chronograd.job import changed
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.predict.prediction import predict
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.cluster_profile import study
from chronograd_lab.studies.cluster_profile.study import (
    PROCESSES,
    SLURM,
    STUDY,
    gpu_checks,
    gpu_predictions,
    job,
    predictions,
    values,
)
from chronograd_lab.studies.cluster_profile.system_calls import calls_of


@pytest.fixture(scope="module")
def variables_of_nodes() -> Iterator[dict[str, str]]:
    """Start three nodes and return the variables for SLURM's commands."""
    with cluster(3) as variables:
        yield variables


@pytest.fixture
def three_nodes(variables_of_nodes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables_of_nodes.items():
        monkeypatch.setenv(name, value)


def check(folder: Path, launcher: str, nodes: list[int], threads: int) -> Results:
    """Run the smoke size twice and make its page."""
    said: list[str] = []
    settings = {**STUDY.sizes["smoke"], "nodes": nodes, "threads": threads}
    results = STUDY.conduct(StudyRunner(folder, "cluster-profile", "smoke", said.append), settings)
    rows = results.rows["runs"]
    assert {row["launcher"] for row in rows} == {launcher}
    # 200 samples, 20 per rank: 10, 5 and 3 steps in each of 3, 2 and 1 epochs.
    expected = {1: (3, 30), 2: (2, 10), 3: (1, 3)}
    assert [(row["nodes"], (row["epochs"], row["updates"])) for row in rows] == [(n, expected[n]) for n in nodes]
    for row in rows:
        assert row["real_s"] > row["seconds"] > 0
        assert row["user_s"] > 0
        assert row["system_s"] > 0
        assert 0 <= row["accuracy"] <= 1
    results.save(folder / "results.json")
    page = STUDY.page(Results.load(folder / "results.json"))
    is_horovod_run = bool(results.rows["queued"])
    assert any("Horovod" in note for note in results.notes) != is_horovod_run
    assert [s.title for s in page.sections[: 6 + 2 * is_horovod_run]] == [
        "Why does the published time not fall with nodes?",
        "Why is user time above real time?",
        "Why can system time be as large as real time?",
        "What would nodes with 4 GPUs each give?",
        "Does the time fall here?",
        *(["Horovod on SLURM", "What the log shows"] if is_horovod_run else []),
        "Where would a real cluster differ?",
    ]
    assert page.sections[4].takeaway == f"{len(nodes)} rows of size smoke."
    assert render_html(page).startswith("<!doctype html>")
    again = STUDY.conduct(StudyRunner(folder, "cluster-profile", "smoke", said.append), settings)
    measured_again = {"system"}
    assert {k: v for k, v in again.rows.items() if k not in measured_again} == {
        k: v for k, v in results.rows.items() if k not in measured_again
    }  # the second call runs nothing again
    return results


@pytest.mark.slurm
@pytest.mark.horovod
@pytest.mark.usefixtures("three_nodes")
def test_smoke_size_on_three_nodes(tmp_path: Path) -> None:
    check(tmp_path, SLURM, nodes=[1, 3], threads=2)
    assert len(list(tmp_path.glob("runs/*/nodes-3/usage.*.jsonl"))) == 3


@pytest.mark.slurm
@pytest.mark.horovod
@pytest.mark.usefixtures("three_nodes")
def test_horovod_waits_in_the_queue_and_leaves_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "debug")
    rows, log, missing = study._queued(StudyRunner(tmp_path, "cluster-profile", "smoke", print), STUDY.sizes["smoke"])
    assert not missing
    ddp, horovod = rows
    assert (ddp["backend"], horovod["backend"]) == ("ddp", "horovod")
    # Both were submitted at once and ask for all nodes, so the second one waits at least while the first one runs.
    assert horovod["queued_s"] >= ddp["queued_s"] + ddp["real_s"] - 1
    assert horovod["updates"] == ddp["updates"] == 3
    assert horovod["train_loss"] == pytest.approx(ddp["train_loss"], abs=1e-4)
    lines = [row["line"] for row in log]
    assert "#SBATCH --nodes=3" in lines
    assert "Started Horovod with 3 processes" in lines
    assert [row["file"] for row in log if "user_s" in row["line"]] == [f"usage.{rank}.jsonl" for rank in range(3)]
    assert not any(str(tmp_path) in line or "/tmp/horovod" in line for line in lines)


def test_new_memory_and_polls_are_work_of_the_kernel() -> None:
    rows = {row["work"]: row for row in study.system_shares(of_s=1.0)}
    used, new, poll, _ = rows.values()
    assert new["faults_per_s"] > 20 * used["faults_per_s"]
    assert used["system"] < 0.3 < new["system"]
    # Polls are partly work of Python, and a busy host's ticks miss most short calls.
    assert used["system"] < poll["system"]


@pytest.mark.slow
@pytest.mark.real_exec  # ticks of 10 ms count system time, and a forked rank may take none
def test_smoke_size_without_slurm_uses_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_commands.num_nodes() == 0
    results = check(tmp_path, PROCESSES, nodes=[1, 2], threads=1)
    assert any("started by torchrun" in note for note in results.notes)


def test_faster_link_is_not_slower() -> None:
    rows = predictions(STUDY.sizes["smoke"])
    slow, fast = ([r for r in rows if r["link"] == link] for link in ("ethernet-1g", "ethernet-10g"))
    assert [a["step_time_s"] == b["step_time_s"] for a, b in zip(slow, fast, strict=True)] == [True, False, False]
    assert all(a["step_time_s"] >= b["step_time_s"] for a, b in zip(slow, fast, strict=True))


def test_job_matches_the_examples() -> None:
    found = job(STUDY.sizes["paper"], "ResNet-50", 3)
    assert (found.training.optimizer, found.training.learning_rate, found.training.batch) == ("adadelta", 1.0, 384)
    assert found.training.scale_by_ranks == ("learning_rate", "epochs")
    assert (found.cluster.count, found.cluster.per_node, found.backend) == (3, 1, "ddp")


PAGE = Path(__file__).parents[3] / "docs" / "studies" / "cluster-profile" / "results.json"


def test_published_report_values() -> None:
    """Check without a 5 % rule: 1,015 > 1,010 > 503 s falls with every node."""
    published = values(Results.load(PAGE))["published"]
    assert published["EfficientNet_B0"]["difference"] == pytest.approx(474.1 / 472.0 - 1)
    assert [published["small_CNN"][n] for n in ("two", "three")] == pytest.approx([754.0 / 451.5, 462.1 / 451.5])
    assert [published["ResNet_50"][n] for n in ("two", "three")] == pytest.approx([1009.6 / 1015.1, 503.1 / 1015.1])


def test_times_are_relative_to_one_node() -> None:
    results = Results.load(PAGE)
    here = values(results)["here"]
    for name in results.settings["networks"]:
        one, *_, three = matching(results.rows["runs"], network=name)
        ratio, rate = three["real_s"] / one["real_s"], three["images_per_s"] / one["images_per_s"]
        assert here[name.replace(" ", "_").replace("-", "_")] == pytest.approx(
            {"time": ratio, "epochs": 3, "rate": rate}
        )


def test_busy_cores_are_user_and_system_over_real_time() -> None:
    results = Results.load(PAGE)
    ratios = [(row["user_s"] + row["system_s"]) / row["real_s"] for row in results.rows["runs"]]
    assert values(results)["report"]["busy"] == 3.5  # user time is 2.5 times real time, system time equals it
    busy = values(results)["busy"]
    assert (busy["least"], busy["most"], busy["cores"], busy["threads"]) == (min(ratios), max(ratios), 2, 6)


@pytest.mark.parametrize(
    ("table", "wanted", "field", "factor", "sentence"),
    [
        ("runs", {"network": "small CNN", "nodes": 3}, "images_per_s", 0.5, "The reason is the images per second"),
        ("runs", {"network": "EfficientNet-B0", "nodes": 3}, "real_s", 0.5, "from 1 to 3 nodes"),
        ("gpu_nodes", {"device": "v100", "nodes": 3}, "images_per_s", 1.2, "Three such nodes would process"),
        ("predicted", {"link": "ethernet-1g", "nodes": 3}, "images_per_s", 2, "With ethernet-1g, we predict"),
    ],
)
def test_different_results_contradict_the_page(
    table: str, wanted: dict[str, object], field: str, factor: float, sentence: str
) -> None:
    published = Results.load(PAGE)
    for row in matching(published.rows[table], **wanted):
        row[field] *= factor
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(published)


def test_nodes_with_four_gpus() -> None:
    """Check each network, device and node count: 12 epochs divided by the GPUs, and a batch of 128 per GPU."""
    results = Results.load(PAGE)
    rows = results.rows["gpu_nodes"]
    assert len(rows) == 3 * 2 * 3
    for row in rows:
        assert row["gpus"] == 4 * row["nodes"]
        assert row["epochs"] == math.ceil(12 / row["gpus"])
        steps = row["epochs"] * (50_000 // (128 * row["gpus"]))  # drops an incomplete last batch
        assert row["training_time_s"] == pytest.approx(steps * row["step_time_s"])
        assert row["images_per_s"] == pytest.approx(128 * row["gpus"] / row["step_time_s"])
        assert row["low_s"] < row["training_time_s"] < row["high_s"]
        assert row["is_corrected"] == (row["network"] == "ResNet-50")  # the only one with a published rate
    for device, found in values(results)["gpu"].items():
        one, _, three = matching(rows, network="ResNet-50", device=device.replace("_", "-"))
        assert found["training_time_s"] == one["training_time_s"]
        assert found["gain"] == pytest.approx(three["images_per_s"] / one["images_per_s"])
    for check in results.rows["gpu_checks"]:
        assert check["published_s"] == pytest.approx(check["batch"] / check["images_per_s"])


def test_published_rate_corrects_only_its_network() -> None:
    settings = {
        **STUDY.sizes["smoke"],
        "nodes": [1],
        "networks": {"ResNet-50": {"network": "torchvision:resnet50", "epochs": 12}},
    }
    settings = {**settings, "gpu_nodes": {**settings["gpu_nodes"], "devices": ["k80-gk210", "p100"]}}
    checks = {row["device"]: row for row in gpu_checks(settings)}
    assert set(checks) == {"k80-gk210"}
    with_row, without = gpu_predictions(settings)
    assert (with_row["is_corrected"], without["is_corrected"]) == (True, False)
    assert checks["k80-gk210"]["published_s"] > checks["k80-gk210"]["predicted_s"]  # so its steps become longer
    plain = job({**settings, **settings["gpu_nodes"]}, "ResNet-50", 4)
    plain = changed(plain, ["cluster.device=k80-gk210", "cluster.per_node=4", "cluster.threads=null"])
    assert with_row["step_time_s"] > predict(trace_job(plain), plain).value("step_time_s")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_calls_of_all_processes_are_counted(tmp_path: Path) -> None:
    child = "import os; [os.sched_yield() for _ in range(1000)]"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); {child}"
    calls = calls_of([sys.executable, "-c", parent], tmp_path / "calls.txt")
    assert calls["sched_yield"] == 2000
    assert calls["futex"] < 100
    with pytest.raises(RunError, match="no good"):
        calls_of([sys.executable, "-c", "raise SystemExit('no good')"], tmp_path / "calls.txt")
