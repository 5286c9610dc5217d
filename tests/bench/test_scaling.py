"""Strong and weak scaling of a job, measured for real on one and two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.bench.batches import batches_section
from chronograd.bench.scaling import measure_scaling
from chronograd.cli.main import main
from chronograd.compare.scaling import Ladder
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.launch import jobs as launched
from chronograd.measure.result import Timing
from chronograd.record import Record

TINY = {
    "network": {"name": "lenet5"},
    "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
    "training": {"batch": 8, "epochs": 3},
    "cluster": {"device": "cpu", "price_usd_per_hour": 36.0},
    "backend": "ddp",
}


def test_points_follow_from_the_measurements(tmp_path: Path) -> None:
    job = jobs.from_dict(TINY)
    record = measure_scaling(job, [1, 2], ["strong", "weak"], folder=tmp_path, samples=64, timing=Timing(1, 3))
    rows = {(row.scaling, row.world): row for row in record.tables.scaling if row.kind == "measured"}
    assert {key: (row.batch, row.per_rank) for key, row in rows.items()} == {
        ("strong", 1): (8, 8),
        ("strong", 2): (8, 4),
        ("weak", 1): (8, 8),
        ("weak", 2): (16, 8),
    }
    # One rank alone with 4 samples, and with 8; two ranks with 4 each, and with 8 each.
    assert {path.name for path in tmp_path.iterdir()} == {"single-1x4", "single-1x8", "ddp-2x4", "ddp-2x8"}
    alone = Record.load(tmp_path / "single-1x4").value("step_time_s")
    strong = rows["strong", 2]
    assert strong.compute_s == alone
    assert strong.communication_by_difference_s == pytest.approx(strong.step_time_s - alone)
    assert strong.communication_exposed_s == Record.load(tmp_path / "ddp-2x4").value("communication_exposed_s")
    weak = rows["weak", 2]
    assert weak.speed_up == pytest.approx(weak.throughput_samples_per_s / rows["weak", 1].throughput_samples_per_s)
    assert weak.efficiency == pytest.approx(weak.speed_up / 2)
    assert weak.training_time_s == pytest.approx(3 * (64 // 16) * weak.step_time_s)
    assert weak.iteration_growth == pytest.approx(weak.step_time_s / rows["weak", 1].step_time_s)


def test_world_that_cannot_run_has_a_row_with_the_reason() -> None:
    job = jobs.changed(jobs.from_dict(TINY), ["backend=data_parallel"])

    def refuse(one: jobs.Job) -> Record:
        raise InputError("no GPU", "get one")

    (point,) = Ladder(job).measured([2], "weak", refuse, lambda line: None)
    assert (point.kind, point.batch, point.per_rank, point.step_time_s) == ("missing", 16, 8, None)
    assert "no GPU" in point.reason


def test_incomplete_batch_has_no_time() -> None:
    """Weak scaling to 16 ranks of 8 samples needs 128 samples, but there are 64. 20 samples at batch 8 make two steps."""
    job = jobs.changed(jobs.from_dict(TINY), ["cluster.device=v100"])
    trace = trace_job(job)
    eight, sixteen = Ladder(job, trace, 64).predicted([8, 16], "weak")
    assert eight.step_time_s is not None
    assert eight.training_time_s == pytest.approx(3 * 1 * eight.step_time_s)
    assert sixteen.step_time_s is not None
    assert (sixteen.training_time_s, sixteen.cost_usd) == (None, None)
    (one,) = Ladder(job, trace, 20).predicted([1], "strong")
    assert one.step_time_s is not None
    assert one.training_time_s == pytest.approx(3 * 2 * one.step_time_s)


def test_prediction_includes_the_wait_for_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs = {"network": {"name": "alexnet"}, "data": {"name": "imagenet"}, "cluster": {"device": "v100"}}
    job = jobs.from_dict({**photographs, "training": {"batch": 256}})

    def refuse(*args: object, **options: object) -> None:
        raise InputError("no GPU", "get one")

    monkeypatch.setattr(launched, "measure", refuse)
    record = measure_scaling(job, [1], ["strong"], folder=tmp_path, trace=trace_job(job))
    (point,) = (row for row in record.tables.scaling if row.kind == "predicted")
    assert point.throughput_samples_per_s == pytest.approx(8 * 140)
    (note,) = record.notes
    assert note.startswith("predicted for 1 × 256 samples: limited by its input")


def test_wrong_worlds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot scale"):
        measure_scaling(jobs.from_dict(TINY), [], ["strong"], folder=tmp_path)
    with pytest.raises(InputError, match="sideways"):
        measure_scaling(jobs.from_dict(TINY), [1], ["sideways"], folder=tmp_path)  # type: ignore[list-item]


@pytest.mark.slow
def test_measure_world_and_epochs_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(TINY))
    timing = ["--steps", "2", "--warmup", "1"]
    assert (
        main(["measure", str(path), "--world", "1,2", "--scaling", "weak", *timing, "--out", str(tmp_path / "a")]) == 0
    )
    shown = capsys.readouterr().out
    assert "weak scaling" in shown
    assert "speed-up" in shown
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "page.html")]) == 0
    assert "ranks" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    arguments = ["measure", str(path), "backend=single", "--epochs", "--batches", "8,16", *timing, "--json"]
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["epochs"]
    assert [row["batch"] for row in rows] == [8, 16]
    for row in rows:
        assert row["epoch_time_s"] > 0
        assert row["epoch_compute_time_s"] > 0
    assert main(["measure", str(path), "--world", "1,x"]) == 2


def test_batches_show_shortest_epoch_and_memory_limit() -> None:
    names = ("epoch_time_s", "epoch_compute_time_s", "throughput_samples_per_s", "memory_peak_bytes")
    rows = [
        {"batch": 32, **dict.fromkeys(names, 2.0), "reason": ""},
        {"batch": 64, **dict.fromkeys(names, 1.5), "reason": ""},
    ]
    full = {"batch": 128, **dict.fromkeys(names), "reason": "memory is full"}
    section = batches_section("epochs", [*rows, full], "runs/b")
    assert section.takeaway == "An epoch is shortest at batch 64, 1.5 s; at 128 memory is full."
    assert section.figure is not None
    assert [row["seconds"] for row in section.figure.rows()] == [2.0, 1.5, 2.0, 1.5]
    assert batches_section("epochs", [full], "runs/b").takeaway == "No epoch was timed; at 128 memory is full."
