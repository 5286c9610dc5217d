"""Header and tables of a record: typed where they are read, saved as they were written, refused where they are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chronograd.errors import FileFormatError
from chronograd.record import Cluster, Provenance, Record
from chronograd.rundir import RunDir
from chronograd.train.result import header

FORMATS = Path(__file__).parent / "golden" / "formats"
WHOLE = {"format": "chronograd-record", "version": 1, "kind": "measured", "title": "t"}


def written(tmp_path: Path, **header: Any) -> Path:
    (tmp_path / "record.json").write_text(json.dumps({**WHOLE, **header}))
    return tmp_path / "record.json"


@pytest.mark.parametrize("path", sorted(FORMATS.glob("record-*.json")), ids=lambda path: path.stem)
def test_what_was_written_is_saved_again_key_by_key(path: Path, tmp_path: Path) -> None:
    Record.load(path).save(tmp_path / "again.json")
    assert json.dumps(json.loads((tmp_path / "again.json").read_text())) == json.dumps(json.loads(path.read_text()))


def test_a_header_of_another_hand_keeps_its_keys_and_their_order(tmp_path: Path) -> None:
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


def test_a_steps_file_that_says_what_no_header_may_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "run", tmp_path / "run")
    steps = tmp_path / "run" / "steps.0.jsonl"
    steps.write_text(steps.read_text().replace('"threads": 1', '"threads": 0.5'))
    run = RunDir.open(tmp_path / "run")
    with pytest.raises(FileFormatError, match=r"'threads' is 0\.5"):
        header(run, run.job(), run.read_steps(), "t")


def test_a_header_answers_what_it_does_not_say() -> None:
    record = Record(kind="measured", title="t")
    assert (record.world, record.device, record.device_name, record.global_batch) == (1, "unknown device", "", None)
    assert record.model_dump(mode="json")["job"] == {}
    record = Record(
        kind="measured",
        title="t",
        job={"training": {"batch": 64}},
        cluster=Cluster(device="cpu", count=4, title="CPU", ran_on="Test Processor"),
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
def test_what_is_no_header_or_row_is_refused(tmp_path: Path, header: dict[str, Any], where: str) -> None:
    with pytest.raises(FileFormatError, match=f"is not a Chronograd record: {where}"):
        Record.load(written(tmp_path, **header))
