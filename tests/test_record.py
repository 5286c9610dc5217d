"""Header and tables of a record: typed when read, saved unchanged, and invalid ones refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chronograd.errors import FileFormatError
from chronograd.record import Provenance, Record, RecordedCluster
from chronograd.rundir import RunDir
from chronograd.train.result import header

FORMATS = Path(__file__).parent / "golden" / "formats"
WHOLE = {"format": "chronograd-record", "version": 1, "kind": "measured", "title": "t"}


def written(tmp_path: Path, **header: Any) -> Path:
    (tmp_path / "record.json").write_text(json.dumps({**WHOLE, **header}))
    return tmp_path / "record.json"


@pytest.mark.parametrize("path", sorted(FORMATS.glob("record-*.json")), ids=lambda path: path.stem)
def test_record_is_saved_again_key_by_key(path: Path, tmp_path: Path) -> None:
    Record.load(path).save(tmp_path / "again.json")
    assert json.dumps(json.loads((tmp_path / "again.json").read_text())) == json.dumps(json.loads(path.read_text()))


def test_foreign_header_keeps_its_keys_and_order(tmp_path: Path) -> None:
    header = {
        "job": {"mine": [1], "training": {"rate": 0.5, "batch": 8, "seed": 1}, "backend": "mine", "network": {}},
        "cluster": {"rack": "b", "threads": 2, "device": "v100", "link": None},
        "provenance": {"by": {"hand": True}, "method": "a watch", "environment": {}},
    }
    loaded = Record.load(written(tmp_path, **header))
    assert json.dumps(loaded.model_dump(mode="json", include=set(header))) == json.dumps(header)
    loaded.cluster.servers = 1
    loaded.provenance.stopped = "by hand"
    loaded.job.data.name = "mine"
    loaded.save(tmp_path / "record.json")
    again = Record.load(tmp_path)
    assert list(again.cluster.model_dump()) == ["rack", "threads", "device", "link", "servers"]
    assert list(again.provenance.model_dump()) == ["by", "method", "environment", "stopped"]
    assert (again.job.data.name, again) == ("mine", loaded)


def test_steps_file_with_an_invalid_header_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "run", tmp_path / "run")
    steps = tmp_path / "run" / "steps.0.jsonl"
    steps.write_text(steps.read_text().replace('"threads": 1', '"threads": 0.5'))
    run = RunDir.open(tmp_path / "run")
    with pytest.raises(FileFormatError, match=r"'threads' is 0\.5"):
        header(run, run.job(), run.read_steps(), "t")


def test_missing_header_fields_have_defaults() -> None:
    record = Record(kind="measured", title="t")
    assert (record.world, record.device, record.device_name, record.global_batch) == (1, "unknown device", "", None)
    assert record.model_dump(mode="json")["job"] == {}
    record = Record(
        kind="measured",
        title="t",
        job={"training": {"batch": 64}},
        cluster=RecordedCluster(device="cpu", count=4, title="CPU", ran_on="Test Processor"),
        provenance=Provenance(method="a watch"),
    )
    assert (record.world, record.device, record.device_name, record.global_batch) == (4, "cpu", "Test Processor", 64)
    assert record.model_dump(mode="json")["provenance"] == {"method": "a watch"}


@pytest.mark.parametrize(
    ("header", "where"),
    [
        ({"job": {"network": 3}}, r"job\.network"),
        ({"job": {"training": {"batch": "all"}}}, r"job\.training\.batch"),
        ({"cluster": {"count": 0}}, r"cluster\.count"),
        ({"cluster": {"count": [2]}}, r"cluster\.count"),
        ({"cluster": []}, "cluster"),
        ({"provenance": {"environment": 0}}, r"provenance\.environment"),
        ({"tables": {"layers": [{"name": "a", "time_s": 0.1}]}}, r"tables\.layers\.0\.kind"),
        ({"tables": {"by_kind": [{"kind": "gemm", "time_s": "long"}]}}, r"tables\.by_kind\.0\.time_s"),
        ({"tables": {"scaling": [{"scaling": "weak", "world": 2}]}}, r"tables\.scaling\.0\.kind"),
    ],
)
def test_invalid_header_or_row_is_refused(tmp_path: Path, header: dict[str, Any], where: str) -> None:
    with pytest.raises(FileFormatError, match=f"is not a Chronograd record: {where}"):
        Record.load(written(tmp_path, **header))


@pytest.mark.parametrize(
    ("name", "figure", "told"),
    [
        ("step_time_s", {"value": -1.0, "unit": "s"}, "must not be below 0, got -1"),
        ("step_time_s", {"value": 0.0, "unit": "s"}, "must be above 0"),
        ("throughput_samples_per_s", {"value": -5.0, "unit": "sample/s"}, "must not be below 0"),
        ("throughput_samples_per_s", {"value": 1e200, "unit": "sample/s"}, "at most 1e\\+15"),
        ("step_time_s", {"value": 1e300, "unit": "s"}, "at most 1e\\+12"),
        ("step_time_s", {"value": 1.0, "unit": "s", "low": 2.0, "high": 1.0}, "above high"),
        ("step_time_s", {"value": 1.0, "unit": "ms"}, "unit must be 's'"),
        ("step_time_s", {"value": "NaN", "unit": "s"}, "value"),
        ("step_time_s", {"value": [1.0], "unit": "s"}, "value"),
    ],
)
def test_impossible_figure_is_refused(tmp_path: Path, name: str, figure: dict[str, object], told: str) -> None:
    path = tmp_path / "record.json"
    data = {"kind": "measured", "title": "t", "quantities": {name: figure}}
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match=told):
        Record.load(path)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_figure_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(
        f'{{"kind": "measured", "title": "t", "quantities": {{"step_time_s": {{"value": {text}, "unit": "s"}}}}}}'
    )
    with pytest.raises(FileFormatError, match="finite"):
        Record.load(path)


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("cluster", {"count": 10**12}),
        ("provenance", {"sigma_log": 1e300}),
        ("provenance", {"peak_flops_per_s": -1}),
        ("tables", {"scaling": [{"scaling": "weak", "world": 1, "kind": "measured", "batch": 1, "per_rank": 1, "step_time_s": -1}]}),
    ],
)  # fmt: skip
def test_other_numbers_of_a_record_are_checked(tmp_path: Path, part: str, data: dict[str, object]) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"kind": "measured", "title": "t", part: data}))
    with pytest.raises(FileFormatError):
        Record.load(path)
