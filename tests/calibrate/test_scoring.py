"""Scores of tables with the shipped calibration: row selection, transfer from another table, and remaining time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chronograd.calibrate import scoring
from chronograd.calibrate.answer import validate
from chronograd.calibrate.scoring import chosen_rows, score_shipped, with_time_left
from chronograd.calibrate.tables import join
from chronograd.errors import InputError
from chronograd.fit.tables import ThroughputRow, ThroughputTable
from chronograd.hardware import catalog
from chronograd.predict.carrying import Shown
from chronograd.predict.relatives import calibration_for

timm = pytest.importorskip("timm")
V100, T4 = catalog.device("v100"), catalog.device("t4")
NAMES = ("test_vit", "test_resnet", "test_efficientnet", "test_byobnet")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def table(device: str, factors: dict[str, float]) -> ThroughputTable:
    """Return rows whose times are a multiple of the device's prediction."""
    empty = ThroughputTable(f"{device}.csv", (), "inference", "fp32", "nchw")
    rows = [ThroughputRow(f"timm:{name}", 160, 32, 1.0) for name in factors]
    calibration = calibration_for(catalog.device(device), "fp32", mode="inference")
    timed = join(empty, rows).timed
    return replace(
        empty,
        rows=tuple(
            replace(
                t.row, seconds=factors[t.row.model.removeprefix("timm:")] * t.sample.work.total_seconds(calibration)
            )
            for t in timed
        ),
    )


FACTORS = {"test_vit": 1.5, "test_resnet": 1.2, "test_efficientnet": 0.8, "test_byobnet": 1.0}


def test_shipped_scores_equal_predict() -> None:
    scores = score_shipped(table("v100", FACTORS), V100)
    assert scores["n"] == 4
    assert scores["calibrated_on"] == []
    assert scores["mape"] == pytest.approx(np.mean([abs(1 / f - 1) for f in FACTORS.values()]))


def test_errors_of_another_table_are_transferred() -> None:
    own, other = table("v100", FACTORS), table("t4", FACTORS)
    scores = score_shipped(own, V100, measured_on=(other, T4))
    there, here = (
        {
            t.row.model.removeprefix("timm:"): t.sample.work.sigma_log(
                calibration_for(device, "fp32", mode="inference")
            )
            for t in join(rows, rows.rows).timed
        }
        for rows, device in ((other, T4), (own, V100))
    )
    assert here.keys() == there.keys()
    carried = [Shown(factor, there[name]).onto(here[name])[0] for name, factor in FACTORS.items()]
    left = [factor / f for factor, f in zip(carried, FACTORS.values(), strict=True)]
    assert scores["mape"] == pytest.approx(np.mean([abs(f - 1) for f in left]))
    assert scores["mape"] < score_shipped(own, V100)["mape"]
    few = replace(other, rows=other.rows[:3])
    scores = score_shipped(own, V100, measured_on=(few, T4))
    assert scores["n"] == 3
    assert list(scores["left_out"].values()) == ["t4.csv does not have it"]
    assert "carried over from t4.csv on t4" in " ".join(
        validate(own, V100, shipped=True, measured_on=(few, T4)).sections[0].lines
    )


def test_rows_are_selected_by_family_and_pattern() -> None:
    rows = tuple(
        ThroughputRow(name, 224, 1, 1.0)
        for name in ("resnet50.a1", "timm:resnet18", "vit_small", "vit_base", "tf_mixer_b")
    )
    whole = ThroughputTable("t.csv", rows)

    def names(*choice: str | None) -> list[str]:
        return [row.model for row in chosen_rows(whole, *choice).rows]

    assert names("resnet") == ["resnet50.a1", "timm:resnet18"]
    assert names("vit_b*, mixer") == ["vit_base", "tf_mixer_b"]
    assert names(None, "resnet") == ["vit_small", "vit_base", "tf_mixer_b"]
    assert names("vit", "vit_b*") == ["vit_small"]
    with pytest.raises(InputError, match=r"no row of t.csv matches") as raised:
        names("swin")
    assert "mixer, resnet, vit" in raised.value.hint


def test_remaining_time_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(scoring.time, "monotonic", lambda: now)
    said: list[tuple[float, str]] = []
    report = with_time_left(lambda share, text: said.append((share, text)), 10, 100)
    for number in range(10):
        report(number / 100, f"net{number}")
        now += 3.0
    # Five of the ten selected rows take 15 s, so 15 s remain; the share of the whole table does not matter.
    assert said[0] == (0.0, "net0")
    assert said[5] == (0.5, "net5, about 15 s left")
    assert said[9][1] == "net9, about 3 s left"


def test_table_without_predictable_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no row of t.csv could be predicted"):
        score_shipped(ThroughputTable("t.csv", (ThroughputRow("zoo:resnet20", 32, 1, 1.0),), "inference", "fp32"), V100)
