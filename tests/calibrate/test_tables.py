"""Samples and scores from published rows, on networks small enough to trace in a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.calibrate.tables import TimedRow, fit_table, join, prior_of, score, validate
from chronograd.count.cached import cached_trace
from chronograd.errors import InputError
from chronograd.fit.tables import ThroughputRow, ThroughputTable
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, DATASHEET_SIGMA, HOST_SIGMA, from_datasheet

pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def table(*rows: ThroughputRow) -> ThroughputTable:
    return ThroughputTable("t.csv", rows, "inference", "fp32")


def test_rows_of_other_networks_are_skipped_with_the_reason() -> None:
    rows = [
        ThroughputRow("test_vit", 160, 8, 0.1, params_m=0.37),
        ThroughputRow("test_vit", 160, 8, 0.1, params_m=9.0),
        ThroughputRow("no_such_network", 160, 8, 0.1),
    ]
    joined = join(table(*rows), rows)
    assert [t.row.params_m for t in joined.timed] == [0.37]
    assert "unknown timm network" in joined.left_out["no_such_network@160"]
    assert "9.0 M in the table" in joined.left_out["test_vit@160"]


def test_parameters_match_the_table_to_its_digits() -> None:
    """A network fused before its timing differs by less than 1 %."""
    trace = cached_trace("timm:test_vit", input_shape=(3, 160, 160), mode="inference", channels_last=False)
    for params_m, count in ((round(trace.params / 1e6, 2), 1), (trace.params / 1e6 + 0.007, 0)):
        rows = [ThroughputRow("test_vit", 160, 8, 0.1, params_m=params_m)]
        assert len(join(table(*rows), rows).timed) == count


def test_missing_precision_is_requested() -> None:
    silent = replace(table(ThroughputRow("test_vit", 160, 8, 0.1)), precision=None)
    for read in (lambda: join(silent, silent.rows), lambda: prior_of(silent, catalog.device("rtx3090"))):
        with pytest.raises(InputError, match=r"t\.csv does not state the precision") as error:
            read()
        assert "--precision" in (error.value.hint or "")


def test_scores_of_a_known_error() -> None:
    """Times that are half the prediction, and equal to it."""
    calibration = replace(from_datasheet(catalog.device("rtx3090")), sigma=0.1)
    rows = [ThroughputRow("test_vit", 160, 8, 1.0), ThroughputRow("test_resnet", 160, 8, 1.0)]
    works = [t.sample.work for t in join(table(*rows), rows).timed]
    right = [w.total_seconds(calibration) for w in works]
    rows = [replace(rows[0], seconds=right[0]), replace(rows[1], seconds=right[1] / 2)]
    found = score(join(table(*rows), rows).timed, calibration)
    assert (found["n"], found["mape"], found["worst"]) == (2, pytest.approx(0.5), pytest.approx(1.0))
    assert found["bias"] == pytest.approx(0.5)
    assert found["families"] == {"test": {"n": 2, "mape": pytest.approx(0.5), "bias": pytest.approx(0.5)}}
    slow = score(join(table(*rows), [replace(row, seconds=4 * row.seconds) for row in rows]).timed, calibration)
    assert (slow["mape"], slow["bias"]) == pytest.approx(((0.75 + 0.5) / 2, -(0.75 + 0.5) / 2))
    assert slow["families"]["test"]["bias"] == pytest.approx(slow["bias"])
    assert found["coverage80"] == 0.5
    assert found["worst_rows"][0]["model"] == "test_resnet"
    assert sum(found["worst_rows"][0]["share_by_family"].values()) <= 1.01


def test_families_follow_networks_instead_of_libraries() -> None:
    calibration = from_datasheet(catalog.device("rtx3090"))
    timed = join(table(ThroughputRow("test_vit", 160, 8, 1.0)), [ThroughputRow("test_vit", 160, 8, 1.0)]).timed
    names = ("torchvision:resnet18", "timm:resnet50.a1_in1k", "resnet34", "torchvision:vgg11")
    rows = [TimedRow(replace(timed[0].row, model=name), timed[0].sample) for name in names]
    assert {name: family["n"] for name, family in score(rows, calibration)["families"].items()} == {
        "resnet": 3,
        "vgg": 1,
    }


def classes_of(table: ThroughputTable) -> set[str]:
    (timed,) = join(table, table.rows).timed
    work = timed.sample.work
    return {CLASSES[i] for i in work.class_index[work.launches > 0]}


def test_work_follows_the_tables_phase_and_software() -> None:
    old, new = (replace(table(ThroughputRow("test_vit", 160, 8, 1.0)), torch=version) for version in ("1.12", "2.4.0"))
    assert classes_of(new) - classes_of(old) == {"attention.forward"}
    assert classes_of(old) - classes_of(new) == {"attention_unfused.forward"}
    assert "attention.backward" in classes_of(replace(new, phase="training"))


def test_joining_stops_at_enough_rows() -> None:
    rows = [
        ThroughputRow("no_such_network", 160, 8, 0.1),
        *(ThroughputRow("test_vit", 160, batch, 0.1) for batch in (1, 2, 4)),
    ]
    joined = join(table(*rows), rows, limit=2)
    assert [t.row.batch for t in joined.timed] == [1, 2]
    assert list(joined.left_out) == ["no_such_network@160"]


def test_fit_states_its_rows() -> None:
    device = catalog.device("rtx3090")
    rows = [ThroughputRow("test_vit", 160, 2**k, 0.001 * 2**k) for k in range(12)]
    measured = replace(table(*rows), torch="2.4.0", layout="nhwc")
    timed = join(measured, rows).timed
    fitted = fit_table(measured, timed, *prior_of(measured, device, "datasheet"))
    assert (fitted.origin, fitted.mode, fitted.channels_last, fitted.precision) == ("fitted", "inference", True, "fp32")
    said = [fitted.provenance[k] for k in ("table", "torch", "prior", "samples")]
    assert said == ["t.csv", "2.4.0", "datasheet", 12]
    assert (
        HOST_SIGMA < fitted.sigma < DATASHEET_SIGMA + 1e-9
    )  # one network at many batches does not show the error of another
    assert fitted.classes_seen == classes_of(replace(measured, rows=(rows[0],)))
    with pytest.raises(InputError, match="3 samples are too few"):
        fit_table(measured, timed[:3], *prior_of(measured, device, "datasheet"))


def test_validation_needs_a_row_to_predict() -> None:
    rows = [ThroughputRow("test_vit", 160, 2**k, 0.001 * 2**k) for k in range(12)]
    device = catalog.device("rtx3090")
    with pytest.raises(InputError, match=r"12 rows of t\.csv could be traced, but 12 are needed to calibrate"):
        validate(table(*rows), device, calibrate=12)
    with pytest.raises(InputError, match="prior is 'guess'"):
        validate(table(*rows), device, calibrate=11, prior="guess")


def test_table_is_not_predicted_from_its_own_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own calibration is the nearest relative, unless it comes from the table in question."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rows = [ThroughputRow("test_vit", 160, 2**k, 0.001 * 2**k) for k in range(12)]
    measured = table(*rows)
    # No device of the catalogue has a similar time.
    mine = catalog.device("v100").model_copy(
        update={"name": "mine", "aliases": (), "year": 1991, "chip": None, "calibration": None}
    )
    fitted = fit_table(measured, join(measured, rows).timed, from_datasheet(mine))
    kept = {"settings": [replace(fitted, sigma=0.1).to_table()]}
    mine.model_copy(update={"calibration": kept}).save(catalog.user_device_path("mine"))
    again, other = measured, replace(measured, path="elsewhere/other.csv")
    assert prior_of(again, mine)[0].origin == "datasheet"
    assert prior_of(other, mine)[0].provenance["relative"].startswith("mine, fp32")
    assert validate(again, mine, calibrate=0)["prior"] == "datasheet"


def test_damaged_cached_trace_is_replaced(tmp_path: Path) -> None:
    first = cached_trace("resnet20", num_classes=100, mode="inference")
    path = next(tmp_path.rglob("*.trace"))
    path.write_bytes(path.read_bytes()[:100])
    again = cached_trace("resnet20", num_classes=100, mode="inference")
    assert again.to_json() == first.to_json()
    assert cached_trace("resnet20", num_classes=100, mode="inference").macs() == first.macs()
