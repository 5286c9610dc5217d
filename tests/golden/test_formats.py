"""Files written by version 0.1.0: later versions still read them. Files in `formats/` are never regenerated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.explain import wall_times
from chronograd.explain.explanation import explain
from chronograd.fit.speed import read_points
from chronograd.fit.tables import read_table
from chronograd.forecast.learning_curves import read_curve
from chronograd.hardware import catalog
from chronograd.launch import slurm
from chronograd.predict.calibration import calibrations
from chronograd.record import Record, subtract
from chronograd.rundir import RunDir, list_runs
from chronograd.rundir.steps import Epoch, EpochTiming
from chronograd.trace import Trace

FORMATS = Path(__file__).parent / "formats"

# -- records ---------------------------------------------------------------------------------------------

# Kind, backend, device and some quantities as stored in the file.
RECORDS: dict[str, tuple[str, str, str, dict[str, float]]] = {
    "predicted": ("predicted", "single", "v100", {"mfu": 0.03347806776648492, "epochs": 3}),
    "measured": ("measured", "ddp", "cpu", {"step_time_s": 0.01729003266665548}),
    "trained": ("measured", "ddp", "cpu", {"step_time_s": 0.0267928183555619, "test_accuracy": 0.9472222222222222, "redone_steps": 7}),
    "scaled": ("measured", "ddp", "cpu", {}),
    "seeds": ("measured", "single", "cpu", {"step_time_s": 0.008834342249997462, "test_accuracy": 0.4444444444444444}),
    "servers": ("measured", "parameter_server", "cpu", {"step_time_s": 0.020000000000000004, "staleness": 0.95}),
    "loop": ("measured", "", "local", {"step_time_s": 0.0005417430000014585}),
}  # fmt: skip


def record(name: str) -> Record:
    return Record.load(FORMATS / f"record-{name}.json")


@pytest.mark.parametrize("name", RECORDS)
def test_record_is_read(name: str) -> None:
    kind, backend, device, quantities = RECORDS[name]
    loaded = record(name)
    assert (loaded.kind, loaded.backend, loaded.created) == (kind, backend, "2026-01-02T03:04:05+00:00")
    assert loaded.model_dump(mode="json")["cluster"]["device"] == device
    assert {key: loaded.value(key) for key in quantities} == quantities


@pytest.mark.parametrize("name", RECORDS)
def test_record_round_trip(name: str, tmp_path: Path) -> None:
    record(name).save(tmp_path / "record.json")
    assert Record.load(tmp_path) == record(name)


def test_missing_quantity_has_a_reason() -> None:
    quantity = record("trained")["time_to_accuracy_s"]
    assert (quantity.value, quantity.reason) == (None, "the job names no training.target_accuracy")


def test_curves_end_with_the_run() -> None:
    curves = record("trained").curves
    assert curves["training"].columns["epoch"] == [1, 2, 3, 4, 5]
    assert curves["training"].columns["test_accuracy"][-1] == 0.9472222222222222
    assert len(curves["loss"].columns["loss"]) == 55
    assert curves["loss"].columns["loss"][-1] == 0.08963366039097309


def test_tables_have_all_rows() -> None:
    scaling = record("scaled").tables.scaling
    assert [(row.kind, row.world) for row in scaling] == [("measured", 1), ("measured", 2), ("predicted", 1), ("predicted", 2)]  # fmt: skip
    assert [(row["staleness"], row["updates"]) for row in record("servers").tables.staleness] == [(0, 1), (1, 19)]
    assert [row.name for row in record("predicted").tables.layers][:3] == ["0", "1", "2"]


def test_prediction_minus_measurement() -> None:
    first = subtract(record("predicted"), record("measured"))[0]
    assert (first.name, first.b.value) == ("step_time_s", 0.01729003266665548)
    assert first.ratio == pytest.approx(0.01729003266665548 / record("predicted").value("step_time_s"))


def test_list_of_records() -> None:
    rows = {row.path.name: row for row in list_runs(FORMATS)}
    assert {name: row.state for name, row in rows.items() if row.state != "unfinished"} == {
        f"record-{name}.json": kind for name, (kind, *_) in RECORDS.items()
    }
    assert {name for name, row in rows.items() if row.state == "unfinished"} == {"run", "measurement"}


# -- run directories --------------------------------------------------------------------------------------


def events(lines: list[Any]) -> list[str]:
    return [line.event for line in lines]


def test_run_with_two_attempts_is_read() -> None:
    """Both attempts ran step 3. Rank 1 failed in the first attempt, and its last line is truncated."""
    run = RunDir.open(FORMATS / "run")
    assert (run.ranks(), run.is_finished, run.job().network.name) == ([0, 1], False, "small-cnn")
    assert run.environment()["cores"] == 2
    log = run.read_steps(0)
    assert (len(log.steps), log.attempts, log.redone, log.torn) == (4, 2, 1, 0)
    assert [line.loss for line in log.steps] == pytest.approx([2.3, 2.0, 1.7, math.nan], nan_ok=True)
    assert log.discarded[0].loss == 1.8
    assert log.steps[0].step_time_s == 0.02
    assert log.starts == {1: 1767323045.0, 2: 1767323055.0}
    assert set(events(log.events)) == {"attempt", "start", "work", "weights", "features", "ready", "epoch", "note", "memory", "end",
                                       "what_if_threads", "what_if_batch"}  # fmt: skip
    assert [epoch.test_accuracy for epoch in log.of(Epoch)] == [0.4, 0.625]
    assert run.read_steps(1).torn == 1
    assert "error" in events(run.read_steps(1).events)


def test_explain_reads_the_run() -> None:
    (explained,) = explain([FORMATS / "run"]).runs
    assert explained.run.world == 2
    assert explained.split.step_s.value == pytest.approx(0.02)


def test_step_modes_of_a_measurement() -> None:
    log = RunDir.open(FORMATS / "measurement").read_steps(0)
    assert [line.mode for line in log.steps] == ["warmup", "plain", "parts", "no_exchange", "asynchronous"]
    assert log.steps[4].staleness == 1
    assert [timing.epoch_compute_time_s for timing in log.of(EpochTiming)] == [0.18]
    assert math.isclose(log.ended, 1767323049.0)


def test_slurm_options_and_usage() -> None:
    """Read the options of a submitted run and the time that its rank took by the system's clock."""
    run = RunDir.open(FORMATS / "run")
    assert slurm.usage(run) == [{"real_s": 14.6, "user_s": 6.25, "system_s": 0.5}]
    options = slurm.submission(run).options
    assert (options.time, options.partition, options.cpus_per_task, options.extra) == (
        "01:00:00",
        "gpu",
        2,
        ("--mem=8G",),
    )


# -- the rest ------------------------------------------------------------------------------------------------


def test_job_is_read() -> None:
    job = jobs.load(FORMATS / "job.yaml")
    assert (job.network.name, job.training.batch, job.training.learning_rate, job.cluster.threads) == (
        "small-cnn",
        128,
        0.1,
        1,
    )
    assert jobs.from_dict(record("trained").job.model_dump()).cluster.count == 2


def test_trace_is_read() -> None:
    """Count 3x3 convolutions from 1 to 32 (6x6) and 32 to 64 (4x4), and layers 256-128-10, at batch 128."""
    trace = Trace.load(FORMATS / "trace.json.gz")
    macs = 128 * (36 * 32 * 9 + 16 * 64 * 288 + 256 * 128 + 128 * 10)
    assert trace.flops(128, "forward") == 2 * macs
    assert trace.network == "small-cnn"


def test_calibrated_device_is_read() -> None:
    device = catalog.device(FORMATS / "device.toml")
    assert (device.name, device.memory_bytes, device.peak_flops_per_s["fp32"]) == ("v100", 2**34, 15.7e12)
    (calibration,) = calibrations(device)
    assert calibration.precision == "fp32"


def test_measured_link_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = catalog.user_link_path("ethernet-here")
    path.parent.mkdir(parents=True)
    path.write_bytes((FORMATS / "link.toml").read_bytes())
    link = catalog.link("ethernet-here")
    assert (link.latency_s, link.bandwidth_bytes_per_s, link.burst_bytes) == (1.2e-4, 1.1e8, 4e6)


def test_tables_and_curves_are_read() -> None:
    table = read_table(FORMATS / "throughputs.csv")
    assert (len(table.rows), table.rows[0].batch, table.rows[0].seconds) == (12, 16, 16 / 5210)
    points = read_points(FORMATS / "speeds.csv")
    assert (len(points), points[-1].workers, points[-1].servers) == (8, 12, 8)
    curve = read_curve(FORMATS / "accuracy.csv")
    assert (len(curve.steps), curve.unit, curve.values[0]) == (24, "epoch", 1.4533)
    assert len(wall_times.read(FORMATS / "wall-times.csv")) == 3
