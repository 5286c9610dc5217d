"""Two records in one table, and which prediction is compared with a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.compare.answer import compare, judge
from chronograd.compare.joining import is_same_work, prediction_near
from chronograd.record import JobHeader, Provenance, Quantity, Record, RecordedCluster
from chronograd.report.columns import lay_out
from chronograd.report.runs import generic_page


def record(
    kind: str, step_s: float, *, job: str = "", device: str = "local", flops: float | None = None, **more: float
) -> Record:
    header = JobHeader.model_validate({"network": {"name": job}, "training": {"batch": 64}} if job else {})
    made = Record(
        kind=kind, title=f"{kind} {job}", job=header, cluster=RecordedCluster(device=device, count=1, batch_per_rank=64)
    )  # type: ignore[arg-type]
    if flops is not None:
        made.provenance = Provenance(flops_per_step_per_rank=flops)
    made.put("step_time_s", Quantity(value=step_s, unit="s"))
    for name, value in more.items():
        made.put(name, Quantity(value=value, unit="1" if name == "mfu" else "usd"))
    return made


def test_rows_are_common_figures_and_the_rest_is_listed() -> None:
    a, b = record("predicted", 0.01, mfu=0.5, cost_usd=1.0), record("measured", 0.02, mfu=0.25)
    a.put("throughput_samples_per_s", Quantity(value=6400.0, unit="sample/s"))
    b.put("throughput_samples_per_s", Quantity(value=4340.0, unit="sample/s"))
    b.put("ppp", Quantity.missing("1", "not told"))
    b.put("epochs", Quantity(value=3.0, unit="count"))
    answer = compare(a, b)
    (section,) = answer.sections
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == ["step time", "throughput", "MFU"]
    assert [row[3] for row in section.table.rows] == ["+10 ms", "−2,060 samples/s", "−25.0 %"]
    assert list(section.lines) == ["only in A: cost of the run", "only in B: epochs trained"]
    assert not answer.notes
    assert {entry["name"] for entry in answer.data["quantities"]} >= {"cost_usd", "ppp", "epochs"}


def test_stall_is_reported_and_does_not_fail_the_gate() -> None:
    a, b = record("measured", 0.01), record("measured", 0.01)
    for one in (a, b):
        one.put("step_time_s", Quantity(value=0.01, unit="s", low=0.009, high=0.011, n=100, std=0.0005))
    why = "step 17 took 25 s, usually 10 ms: rank 1 was not running for 24.9 s, stopped in backward"
    b.put("stall_s", Quantity(value=25.0, unit="s", n=1, source=f"not in the step time and the throughput. {why}"))
    said = f"B stalled for 25 s, not in the step time and the throughput. {why}"
    assert compare(a, b).sections[0].lines[0] == said
    answer = judge([a], [b], ["step_time > 5%"])
    assert answer.exit_status == 0
    assert said in answer.notes


def test_interval_overlap_is_shown_on_a_narrow_screen() -> None:
    a, b = record("predicted", 0.000245), record("measured", 0.0173)
    a.put("throughput_samples_per_s", Quantity(value=521_633.0, unit="sample/s"))
    b.put("throughput_samples_per_s", Quantity(value=7_403.0, unit="sample/s"))
    table = compare(a, b).sections[0].table
    assert table is not None
    assert lay_out(table, 80).columns_left_out == ["B − A"]
    assert lay_out(table, 60).columns_left_out == ["B − A", "B / A"]


class TestJoining:
    def test_joins_equal_jobs_or_equal_work(self) -> None:
        predicted = record("predicted", 0.01, job="net", flops=1e9)
        assert is_same_work(predicted, record("measured", 0.02, job="net"))
        assert not is_same_work(predicted, record("measured", 0.02, job="other", flops=1e9))
        assert is_same_work(predicted, record("measured", 0.02, flops=1.0001e9))
        assert not is_same_work(predicted, record("measured", 0.02, flops=1.01e9))
        assert not is_same_work(predicted, record("measured", 0.02))

    def test_newest_nearby_prediction_for_the_device_is_used(self, tmp_path: Path) -> None:
        for name, day, device in (("old", 1, "local"), ("new", 2, "local"), ("gpu", 3, "v100")):
            made = record("predicted", 0.01, job="net", device=device)
            made.created = f"2026-01-0{day}T00:00:00+00:00"
            made.save(tmp_path / f"{name}.json")
        (tmp_path / "other.json").write_text('{"epoch": 1}')
        near = prediction_near(record("measured", 0.02, job="net"), tmp_path, tmp_path)
        assert near is not None
        assert near[0].name == "new.json"
        on_gpu = record("measured", 0.02, job="net")
        on_gpu.cluster.ran_on = "Tesla V100-SXM2-16GB"
        near = prediction_near(on_gpu, tmp_path)
        assert near is not None
        assert near[0].name == "gpu.json"
        assert prediction_near(record("measured", 0.02, job="else"), tmp_path) is None

    def test_report_joins_a_loop_without_job_by_its_work(self) -> None:
        records = {"p": record("predicted", 0.01, job="net", flops=1e9), "m": record("measured", 0.02, flops=1e9)}
        page = generic_page(records)
        titles = [section.title for section in page.sections]
        assert "Accuracy of the prediction" in titles
        assert not any("no prediction" in section.takeaway for section in page.sections)

    def test_report_of_unrelated_records_explains_the_mismatch(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record("predicted", 0.01, job="net", flops=1e9).save(tmp_path / "p.json")
        record("measured", 0.02, flops=2e9).save(tmp_path / "m.json")
        assert (
            main(["report", str(tmp_path / "p.json"), str(tmp_path / "m.json"), "--out", str(tmp_path / "r.html")]) == 0
        )
        told = " ".join(capsys.readouterr().out.split())
        assert "measured is compared with no prediction" in told
        assert "job=" in told
