"""Scaling studies: real runs of the smallest size, predictions, and notes on missing parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.hardware import catalog
from chronograd.measure import environment
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.scaling import changes, rounds_table
from chronograd_lab.common.study import Study
from chronograd_lab.studies.all_reduce_algorithms import study as all_reduce_algorithms
from chronograd_lab.studies.data_parallel import study as data_parallel
from chronograd_lab.studies.horovod_scaling import study as horovod_scaling
from chronograd_lab.studies.strong_and_weak import study as strong_and_weak

STUDIES = [horovod_scaling.STUDY, strong_and_weak.STUDY, all_reduce_algorithms.STUDY, data_parallel.STUDY]


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_smoke_size_end_to_end(study: Study, tmp_path: Path) -> None:
    lab = StudyRunner(tmp_path, study.name, "smoke", lambda text: None)
    results = study.conduct(lab, study.sizes["smoke"])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").rows == results.rows
    rows = results.rows["points"]
    kinds = {row["kind"] for row in rows}
    if study is all_reduce_algorithms.STUDY:
        assert results.rows["predicted"]
    else:
        assert kinds >= {"measured", "predicted"}
    for row in rows:
        if row["kind"] == "missing":
            assert row["reason"]
            assert row["step_time_s"] is None
        else:
            assert row["step_time_s"] > 0
            assert row["throughput_samples_per_s"] == pytest.approx(row["batch"] / row["step_time_s"], rel=0.05)
    assert bool(results.notes) == ("missing" in kinds)
    page = study.page(results)
    assert len(page.sections) >= 3
    assert study.question in render_html(page)


@pytest.mark.parametrize("study", [s for s in STUDIES if s is not all_reduce_algorithms.STUDY], ids=lambda s: s.name)
def test_predicted_rows_are_consistent(study: Study, tmp_path: Path) -> None:
    """Efficiency is speed-up over ranks, speed-up a ratio of throughputs, and effective batch n times a rank's batch."""
    settings = {**study.sizes["smoke"], "worlds": [], "rounds": 0}
    rows = study.conduct(StudyRunner(tmp_path, study.name, "smoke", lambda text: None), settings).rows["points"]
    assert {row["kind"] for row in rows} == {"predicted"}
    for name in dict.fromkeys((row["series"], row["scaling"]) for row in rows):
        own = matching(rows, series=name[0], scaling=name[1])
        first = matching(own, world=1)[0]
        for row in own:
            assert row["speed_up"] == pytest.approx(row["throughput_samples_per_s"] / first["throughput_samples_per_s"])
            assert row["efficiency"] == pytest.approx(row["speed_up"] / row["world"])
            assert row["iteration_growth"] == pytest.approx(row["step_time_s"] / first["step_time_s"])
            assert row["batch"] == (first["batch"] if row["scaling"] == "strong" else row["world"] * first["batch"])
            assert row["communication_by_difference_s"] == pytest.approx(row["step_time_s"] - row["compute_s"])


def test_data_parallel_is_predicted_slower_than_ddp(tmp_path: Path) -> None:
    """It overlaps nothing, sends all data through one GPU, and runs all replicas in one process."""
    study = data_parallel.STUDY
    settings = {**study.sizes["smoke"], "batches": []}
    rows = study.conduct(StudyRunner(tmp_path, study.name, "smoke", lambda text: None), settings).rows["points"]
    many = [row for row in rows if row["world"] > 1 and row["scaling"] == "weak"]
    by = {(row["of"], row["batch_asked"]): row["step_time_s"] for row in many}
    for batch in settings["predicted_batches"]:
        assert by["data_parallel", batch] > by["ddp", batch]


def test_more_ranks_than_cores_are_skipped_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 2)
    study = data_parallel.STUDY
    settings = {**study.sizes["smoke"], "batches": [8], "worlds": [3, 4]}
    results = study.conduct(StudyRunner(tmp_path, study.name, "smoke", lambda text: None), settings)
    assert not matching(results.rows["points"], kind="measured")
    assert results.notes == [
        "3, 4 ranks were not run here: there are 2 cores, and ranks that share one measure how it is shared."
    ]


def test_all_reduce_choices_have_their_models() -> None:
    """Use closed forms over the machine's links without overlap."""
    settings = all_reduce_algorithms.STUDY.sizes["laptop"]
    rows = all_reduce_algorithms.predicted(settings)
    device = catalog.device(settings["device"])
    near, across = catalog.link(device.node.intra_link), catalog.link(device.node.group_link or "")
    far = catalog.link(settings["link"])
    size = rows[0]["bytes"]

    def exchange(name: str, choice: str, world: int) -> float:
        (row,) = matching(rows, set=name, choice=choice, world=world)
        assert row["step_time_s"] == pytest.approx(row["compute_s"] + row["wait_s"] + row["exchange_s"])
        return float(row["exchange_s"])

    one = near.latency_s + size / near.bandwidth_bytes_per_s
    over = across.latency_s + size / across.bandwidth_bytes_per_s
    ring = 14 * across.latency_s + 14 / 8 * size / across.bandwidth_bytes_per_s
    assert exchange("tf_mirrored", "nccl", 8) == pytest.approx(ring)
    assert exchange("tf_mirrored", "auto", 8) == pytest.approx(ring)
    assert exchange("tf_mirrored", "hierarchical_copy", 8) == pytest.approx(2 * (3 * one + over))
    assert exchange("tf_mirrored", "hierarchical_copy", 4) == pytest.approx(4 * one)
    assert exchange("tf_mirrored", "reduction_to_one_device", 4) == pytest.approx(6 * one)
    # Three peers of the root are under its switch, four under the other.
    assert exchange("tf_mirrored", "reduction_to_one_device", 8) == pytest.approx(2 * (3 * one + 4 * over))
    staged = 1 / far.bandwidth_bytes_per_s + 2 / near.bandwidth_bytes_per_s
    through_hosts = 30 * (far.latency_s + 2 * near.latency_s) + 30 / 16 * size * staged
    assert exchange("tf_multiworker", "ring", 16) == pytest.approx(through_hosts)
    assert exchange("tf_multiworker", "auto", 16) == pytest.approx(through_hosts)
    assert exchange("tf_multiworker", "nccl", 16) == pytest.approx(
        30 * far.latency_s + 30 / 16 * size / far.bandwidth_bytes_per_s
    )
    assert all(row["exchange_s"] == 0 for row in rows if row["world"] == 1)


def test_settings_are_compared_with_their_base() -> None:
    rounds = {"auto": [2.0, 2.01, 2.02], "ring": [1.0, 1.01, 1.0], "nccl": [2.01, 2.0, 2.03]}
    rows = [{"choice": c, "step_time_s": s, "exposed_s": None} for c, steps in rounds.items() for s in steps]
    found = changes(rows, "choice", "auto")
    assert found.significant == 1
    assert found.of("ring").mean == pytest.approx(3.01 / 6.03 - 1)
    assert 0 < found.detectable < 0.02
    table = rounds_table(rows, "choice", "auto", "exposed_s", str.upper)
    assert table.columns == ["choice", "step, mean of rounds", "rounds", "against AUTO"]
    assert table.rows[1][:3] == ["RING", "1 s", "1 s, 1.01 s, 1 s"]
    assert table.rows[1][3].startswith("−50.1 % (−5")
