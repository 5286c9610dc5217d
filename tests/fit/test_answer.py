"""Python answers of `fit`: the answering sentence comes first, and table, figure and data have equal numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.fit import answer
from chronograd.forecast import loss_answer
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.forecast.schedule import Schedule
from chronograd.predict.speed import SpeedModel

TRUTH = SpeedModel("asynchronous", (2.83, 3.92, 0.0, 0.11))
PAIRS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4)]


def write_speeds(folder: Path) -> Path:
    rows = [f"{w},{p},{TRUTH.steps_per_s(w, p)}" for w, p in PAIRS]
    (folder / "speeds.csv").write_text("\n".join(["workers,servers,steps_per_s", *rows]))
    return folder / "speeds.csv"


def test_speed_answers_the_question_first(tmp_path: Path) -> None:
    told = answer.speed([write_speeds(tmp_path)], pairs=[(16, 8)])
    (section,) = told.sections
    expected = f"{TRUTH.steps_per_s(16, 8):.4g}"
    assert section.takeaway.startswith(f"16 workers, 8 servers: {expected} steps/s")
    assert section.table is not None
    assert [row[1] for row in section.table.rows] == ["2.83", "3.92", "0", "0.11"]
    assert told.data["forecasts"][0]["steps_per_s"] == pytest.approx(TRUTH.steps_per_s(16, 8))
    measured = [row for row in section.rows() if row["series"] == "2 servers" and "low" not in row]
    assert [row["steps per second"] for row in measured] == pytest.approx([TRUTH.steps_per_s(w, 2) for w in (2, 4)])
    plain = answer.speed([write_speeds(tmp_path)]).sections[0]
    assert plain.takeaway.startswith("Mean error of a point: 0.0 %, 0.0 % if the point is left out")


def test_loss_states_epoch_of_the_target_and_past_accuracy() -> None:
    """1 / (k/2 + 1/2) + 0.1 is 0.125 at epoch 79."""
    epochs = np.arange(1.0, 41.0)
    curve = LearningCurve("mine", epochs, 1 / (0.5 * epochs + 0.5) + 0.1, "loss", "epoch", Schedule("constant"))
    (section,) = loss_answer.loss(forecast(curve, 0.5, "inverse", target=0.125)).sections
    assert section.takeaway.startswith("loss 0.125 at epoch 79")
    assert any("of 20 later epochs" in line and "mean error is 0.0 %" in line for line in section.lines)
    ahead = [row for row in section.rows() if row["series"] == "forecast"]
    assert (ahead[0]["epoch"], ahead[-1]["epoch"]) == (20, pytest.approx(79, rel=1e-3))  # up to the target
    assert ahead[-1]["loss"] == pytest.approx(0.125, rel=1e-3)
    untold = loss_answer.loss(forecast(replace(curve, notes=("one row is left out",)), 1.0, "inverse"))
    assert untold.sections[0].takeaway.startswith("forecast at epoch 40: converged at epoch")
    assert untold.notes == ("one row is left out",)


def test_stated_schedule_overrides_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n" + "".join(f"{k},{1 / k}\n" for k in range(1, 11)))
    assert loss_answer.read(log).schedule == Schedule()
    assert loss_answer.read(log, fraction=0.5).schedule == Schedule(None, (), 10.0)
    assert loss_answer.read(log, drops=(3, 6), planned=20).schedule == Schedule("multi_step", (3, 6), 20)


def test_loss_without_a_target_is_refused() -> None:
    with pytest.raises(InputError, match="a job only has a target accuracy"):
        answer.batch([], "loss")
