"""From published rows to samples and scores, on networks small enough to trace in a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.count.cache import cached_trace
from chronograd.fit.tables import Row, Table
from chronograd.hardware import catalog
from chronograd.measure.published import join, score
from chronograd.predict.calibration import from_datasheet

pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def table(*rows: Row) -> Table:
    return Table("t.csv", rows, "inference", "fp32")


def test_rows_that_are_other_networks_are_left_out_with_the_reason() -> None:
    rows = [
        Row("test_vit", 160, 8, 0.1, params_m=0.37),
        Row("test_vit", 160, 8, 0.1, params_m=9.0),
        Row("no_such_network", 160, 8, 0.1),
    ]
    joined = join(table(*rows), rows)
    assert [t.row.params_m for t in joined.timed] == [0.37]
    assert "unknown timm network" in joined.left_out["no_such_network@160"]
    assert "9.0 M in the table" in joined.left_out["test_vit@160"]


def test_scores_of_a_known_error() -> None:
    """Times that are exactly half and exactly what is predicted."""
    calibration = replace(from_datasheet(catalog.device("rtx3090")), sigma=0.1)
    rows = [Row("test_vit", 160, 8, 1.0), Row("test_resnet", 160, 8, 1.0)]
    works = [t.sample.work for t in join(table(*rows), rows).timed]
    right = [w.total_seconds(calibration) for w in works]
    rows = [replace(rows[0], seconds=right[0]), replace(rows[1], seconds=right[1] / 2)]
    found = score(join(table(*rows), rows).timed, calibration)
    assert (found["n"], found["mape"], found["worst"]) == (2, pytest.approx(0.5), pytest.approx(1.0))
    assert found["coverage80"] == 0.5
    assert found["worst_rows"][0]["model"] == "test_resnet"
    assert sum(found["worst_rows"][0]["share_by_family"].values()) <= 1.01


def test_a_damaged_cached_trace_is_made_again(tmp_path: Path) -> None:
    first = cached_trace("resnet20", mode="inference")
    path = next(tmp_path.rglob("*.json.gz"))
    path.write_bytes(path.read_bytes()[:100])
    again = cached_trace("resnet20", mode="inference")
    assert again.to_json() == first.to_json()
    assert cached_trace("resnet20", mode="inference").macs() == first.macs()
