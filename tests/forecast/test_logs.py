"""Logs in the formats of W&B, MLflow, Keras, Lightning, Hugging Face and TensorBoard, with times and learning rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chronograd.errors import InputError
from chronograd.forecast.learning_curves import matching, read_curve
from chronograd.forecast.learning_rates import schedule_of_rates
from chronograd.forecast.log_tables import table_of
from chronograd.forecast.logs import read_log
from chronograd.forecast.pace import pace_of
from chronograd.forecast.schedule import Schedule

ACCURACIES = [0.5, 0.6, 0.7, 0.75]
BEGAN = 1_763_850_000.0  # seconds since 1970; an epoch takes 60
TIMES = [BEGAN + 60 * epoch for epoch in range(4)]


def wandb_history(folder: Path) -> Path:
    """Write `run.history()` as CSV: training loss every step, accuracy every second step, blanks between."""
    lines = ["_step,_runtime,_timestamp,epoch,train/loss,val/acc"]
    for step in range(8):
        accuracy = str(ACCURACIES[step // 2]) if step % 2 else ""
        lines.append(f"{step},{30 * step},{BEGAN + 30 * (step - 1)},{step // 2},{1 / (step + 1)},{accuracy}")
    (folder / "wandb.csv").write_text("\n".join(lines))
    return folder / "wandb.csv"


def wandb_scan(folder: Path) -> Path:
    """Write `run.scan_history()` as JSON lines: a row has the keys logged together."""
    rows = [{"_step": e, "_timestamp": TIMES[e], "train/loss": 1.0} for e in range(4)]
    rows = [row | {"epoch": e, "val/acc": ACCURACIES[e]} for e, row in enumerate(rows)]
    (folder / "scan.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder / "scan.jsonl"


def wandb_chart(folder: Path) -> Path:
    """Write the CSV of a chart: columns start with the run's name, with its minimum and maximum."""
    name = "worldly-sun-3 - val/acc"
    head = ",".join(f'"{one}"' for one in ("epoch", name, f"{name}__MIN", f"{name}__MAX"))
    (folder / "chart.csv").write_text(
        "\n".join([head, *(f'"{e}","{a}","{a}","{a}"' for e, a in enumerate(ACCURACIES))])
    )
    return folder / "chart.csv"


def mlflow_csv(folder: Path) -> Path:
    lines = ["run_id,key,value,step,timestamp"]
    for epoch, accuracy in enumerate(ACCURACIES):
        lines += [
            f"5f2c,val_acc,{accuracy},{epoch},{int(1000 * TIMES[epoch])}",
            f"5f2c,lr,0.1,{epoch},{int(1000 * TIMES[epoch])}",
        ]
    (folder / "metrics.csv").write_text("\n".join(lines))
    return folder / "metrics.csv"


def mlflow_run(folder: Path) -> Path:
    run = folder / "mlruns" / "0" / "5f2c"
    (run / "metrics" / "val").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: 5f2c\n")
    lines = [f"{int(1000 * TIMES[e])} {a} {e}" for e, a in enumerate(ACCURACIES)]
    (run / "metrics" / "val" / "acc").write_text("\n".join(lines) + "\n")
    return folder / "mlruns"


def keras(folder: Path) -> Path:
    history = {"accuracy": [0.9] * 4, "val_accuracy": ACCURACIES, "loss": [1.0] * 4, "learning_rate": [0.1] * 4}
    (folder / "history.json").write_text(json.dumps(history))
    return folder / "history.json"


def hugging_face(folder: Path) -> Path:
    log = [row for e, a in enumerate(ACCURACIES, 1) for row in (
        {"epoch": float(e), "learning_rate": 5e-5, "loss": 1.0, "step": 10 * e},
        {"epoch": float(e), "eval_accuracy": a, "eval_loss": 1.0, "eval_runtime": 2.0, "step": 10 * e},
    )]  # fmt: skip
    (folder / "trainer_state.json").write_text(json.dumps({"epoch": 4.0, "global_step": 40, "log_history": log}))
    return folder / "trainer_state.json"


def lightning(folder: Path) -> Path:
    """Write metrics.csv of CSVLogger: many rows per epoch, one of them with the validation."""
    lines = ["epoch,lr-SGD,step,train_loss_step,val_acc"]
    for epoch, accuracy in enumerate(ACCURACIES):
        lines += [
            f"{epoch},,{2 * epoch},0.5,",
            f"{epoch},,{2 * epoch + 1},0.4,",
            f"{epoch},,{2 * epoch + 1},,{accuracy}",
        ]
    (folder / "metrics.csv").write_text("\n".join(lines))
    return folder / "metrics.csv"


def tensorboard(folder: Path) -> Path:
    events = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    summary = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    with closing(writer.EventFileWriter(str(folder / "tb"))) as file:
        for epoch, accuracy in enumerate(ACCURACIES):
            value = summary.Summary.Value(tag="Accuracy/val", simple_value=accuracy)
            file.add_event(events.Event(wall_time=TIMES[epoch], step=epoch, summary=summary.Summary(value=[value])))
    return folder / "tb"


@pytest.mark.parametrize("write", [wandb_history, wandb_scan, wandb_chart, mlflow_csv, mlflow_run, keras, hugging_face,
                                   lightning, tensorboard])  # fmt: skip
def test_validation_accuracy_column(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    log = read_log(write(tmp_path))
    name = matching(log.names, "accuracy", is_held_out=True)
    assert name is not None
    column = log.read(name)
    assert column.values == pytest.approx(ACCURACIES)
    assert (np.diff(column.steps) > 0).all()
    has_times = write in (wandb_history, wandb_scan, mlflow_csv, mlflow_run, tensorboard)
    assert (column.times is not None) == has_times
    if column.times is not None:
        assert column.times == pytest.approx(TIMES)


def test_step_curve_with_several_rows_per_epoch(tmp_path: Path) -> None:
    found = read_curve(lightning(tmp_path), column="train_loss_step")
    assert (found.unit, found.steps.tolist()) == ("step", [0.5, 1, 2, 3, 4, 5, 6, 7])


def test_steps_from_zero_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{100 * i},{1 / (i + 1)}\n" for i in range(8)))
    found = read_curve(tmp_path / "log.csv")
    assert found.steps.tolist() == [1, 100, 200, 300, 400, 500, 600, 700]


@pytest.mark.parametrize(
    "rows",
    [
        ["epoch,val_loss,train_loss", *(f"{e},{9 - e},{9 - e if e else ''}" for e in range(6))],  # no training loss yet
        ["epoch,step,val_loss,train_loss", *(f"{e},{e * 50},{9 - e},1" for e in range(6))],  # no step yet
    ],
)
def test_evaluation_before_training_is_not_an_epoch(tmp_path: Path, rows: list[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("\n".join(rows))
    curve = read_curve(log, column="val_loss")
    assert curve.steps.tolist() == [0.5, 1, 2, 3, 4, 5]
    assert curve.values.tolist() == [9, 8, 7, 6, 5, 4]
    log.write_text("\n".join(["epoch,step,val_loss,train_loss", *(f"{e},{e * 50 + 49},{9 - e},1" for e in range(6))]))
    assert read_curve(log, column="val_loss").steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_selecting_one_mlflow_run(tmp_path: Path) -> None:
    folder = mlflow_run(tmp_path)
    (folder / "0" / "7a11" / "metrics").mkdir(parents=True)
    (folder / "0" / "7a11" / "meta.yaml").write_text("run_id: 7a11\n")
    with pytest.raises(InputError, match="2 MLflow runs: 5f2c, 7a11"):
        read_log(folder)
    lines = (mlflow_csv(tmp_path).read_text()).splitlines()
    (tmp_path / "two.csv").write_text("\n".join([*lines, "other,val_acc,0.5,0,1"]))
    with pytest.raises(InputError, match="2 runs: 5f2c, other"):
        read_log(tmp_path / "two.csv")


@pytest.mark.parametrize(("column", "times"), [
    ("seconds", [10, 20, 30, 40]),
    ("hours", [36, 72, 108, 144]),
    ("epoch_time", [10, 20, 30, 40]),
    ("time", [10, 20, 30, 40]),
    ("wall_time", [BEGAN + 10, BEGAN + 20, BEGAN + 30, BEGAN + 40]),
    ("timestamp", [BEGAN + 10, BEGAN + 20, BEGAN + 30, BEGAN + 40]),
])  # fmt: skip
def test_time_columns(tmp_path: Path, column: str, times: list[float]) -> None:
    """Elapsed seconds and hours, epoch times, and seconds or milliseconds since 1970 give the same times."""
    written = {"hours": [0.01, 0.02, 0.03, 0.04], "epoch_time": [10] * 4, "timestamp": [1000 * t for t in times]}.get(
        column, times
    )
    rows = [f"{e},{a},{t!r}" for e, (a, t) in enumerate(zip(ACCURACIES, written, strict=True))]
    (tmp_path / "log.csv").write_text("\n".join([f"epoch,val_acc,{column}", *rows]))
    found = read_curve(tmp_path / "log.csv", "accuracy").times
    assert found == pytest.approx(times)


def test_date_columns(tmp_path: Path) -> None:
    rows = [f"{e},{a},2026-11-22T08:0{e}:00+00:00" for e, a in enumerate(ACCURACIES)]
    (tmp_path / "log.csv").write_text("\n".join(["epoch,val_acc,date", *rows]))
    found = read_curve(tmp_path / "log.csv", "accuracy").times
    assert found is not None
    assert np.diff(found).tolist() == [60, 60, 60]


EPOCHS = np.arange(1.0, 41)
DONE = (EPOCHS - 1) / 100


def one_cycle(done: np.ndarray) -> np.ndarray:
    """Return torch.optim.lr_scheduler.OneCycleLR: a cosine rise for 30 % of the steps, then a cosine fall."""
    rise, fall = (1 - np.cos(np.pi * done / 0.3)) / 2, (1 + np.cos(np.pi * (done - 0.3) / 0.7)) / 2
    return np.where(done < 0.3, 0.04 + 0.96 * rise, fall)


@pytest.mark.parametrize(("rates", "schedule", "text"), [
    (0.1 * (1 + np.cos(np.pi * DONE)) / 2, Schedule("annealed", (), 100.0), "cosine until epoch 100"),
    (0.01 + 0.09 * (1 + np.cos(np.pi * DONE)) / 2, Schedule("annealed", (), 100.0), "cosine until epoch 100"),
    (0.1 * (1 - DONE), Schedule("annealed", (), 100.0), "linear until epoch 100"),
    (np.where(EPOCHS <= 30, 0.1, 0.01), Schedule("multi_step", (30.0,)), "drops after epoch 30; give --drops if more will come"),
    (0.1 * 0.2 ** np.floor((EPOCHS - 1) / 12), Schedule("multi_step", (12.0, 24.0, 36.0, 48.0)), "next one expected after 48"),
    (np.full(40, 0.1), Schedule(), "constant so far"),
    (0.1 * EPOCHS / 40, Schedule(), "still rising at epoch 40"),
    (0.1 * 0.95**EPOCHS, Schedule(), "falling in an unknown shape"),
    (np.where(EPOCHS < 3, EPOCHS / 3, 1.0), Schedule(), "constant so far"),
])  # fmt: skip
def test_schedule_from_learning_rates(rates: np.ndarray, schedule: Schedule, text: str) -> None:
    told = schedule_of_rates(EPOCHS, rates, "epoch")
    assert told.schedule == schedule
    assert text in told.text


def test_drops_within_epochs_have_three_decimals() -> None:
    """A drop after 1,250 of 1,251 batches is at epoch 0.9992006."""
    places = np.array([e + batch / 1251 for e in range(12) for batch in (0, 600, 1250)])
    rates = np.where(places < 6, 0.1, 0.01)
    assert schedule_of_rates(places, rates, "epoch").text.startswith("drops after epoch 5.999;")


@pytest.mark.parametrize(("stays", "text"), [(3, "drops after epoch 3, 6, 9"), (2, "falling in an unknown shape")])
def test_drops_need_constant_rates_between(stays: int, text: str) -> None:
    epochs = np.arange(1.0, 31.0)
    assert schedule_of_rates(epochs, 0.5 ** ((epochs - 1) // stays), "epoch").text.startswith(text)


def test_only_cells_with_content_are_too_many() -> None:
    """Some writers end a row with a separator."""
    table = table_of("epoch,loss\n1,0.5\n2,0.4,\n3,0.3\n4,0.2,7\n")
    assert table is not None
    assert [row["epoch"] for row in table.rows] == ["1", "2", "3"]
    assert table.notes == ["line 5 is longer than the header and left out"]


def test_separator_at_the_end_of_every_row_makes_no_cell() -> None:
    table = table_of("epoch,loss\n1,0.5,\n2,0.4,\n3,0.3,7\n4,0.2,\n")
    assert table is not None
    assert [list(row.values()) for row in table.rows] == [["1", "0.5"], ["2", "0.4"], ["4", "0.2"]]
    assert table.notes == ["line 4 is longer than the header and left out"]


def test_end_is_not_before_the_last_step() -> None:
    """Whole epochs are planned, but this rate has been used for 0.4 of the next one."""
    steps = np.arange(1.0, 25) / 10
    told = schedule_of_rates(steps, 0.1 * (2.41 - steps), "epoch")
    assert told.text == "linear until epoch 2"
    assert told.schedule == Schedule("annealed", (), 2.4)


def test_one_cycle_end() -> None:
    told = schedule_of_rates(EPOCHS[:40], one_cycle(DONE), "epoch")
    assert told.text.startswith("one_cycle until")
    assert told.schedule.planned == pytest.approx(100, abs=1)
    steps = np.arange(100.0, 6001, 100)
    told = schedule_of_rates(steps, one_cycle(steps / 10_000), "step")
    assert told.schedule.planned == pytest.approx(10_000, rel=1e-3)


def test_logged_schedule_matches_epoch_count(tmp_path: Path) -> None:
    """Rows start at 0, so the 31st epoch is the first with the lower rate."""
    rows = [f"{e},{2 / (e + 2)},{0.1 if e < 30 else 0.01}" for e in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["epoch,loss,lr", *rows]))
    found = read_curve(tmp_path / "log.csv")
    assert found.schedule.drops == (30.0,)
    assert found.since_last_drop()[1].steps.tolist() == list(range(1, 11))


class TestPace:
    STEPS = np.arange(1.0, 11)

    def test_pause_counts_as_one_slow_block(self) -> None:
        times = 60 * self.STEPS + np.where(self.STEPS > 5, 8 * 3600, 0)
        pace = pace_of(self.STEPS, BEGAN + times, 10)
        assert pace is not None
        assert pace.seconds == 60
        assert (pace.last, pace.is_clock) == (BEGAN + times[-1], True)

    def test_distance_and_speed_uncertainty_combine(self) -> None:
        pace = pace_of(self.STEPS, 60 * self.STEPS, 10)
        assert pace is not None
        assert pace.seconds_to(10, 5, 20) == pytest.approx((600, 300, 1200))
        assert pace.seconds_to(10, None, None) == (600, 0, None)
        assert not pace.is_clock
        uneven = pace_of(self.STEPS, np.cumsum([2.0, *[1.0, 2, 3] * 3]), 10)
        assert uneven is not None
        _, low, high = uneven.seconds_to(10, 5, 20)
        assert low < 5 * uneven.seconds
        assert high is not None
        assert high > 20 * uneven.seconds

    def test_stale_log_has_stopped(self) -> None:
        pace = pace_of(self.STEPS, BEGAN + 60 * self.STEPS, 10)
        assert pace is not None
        assert pace.is_under_way(BEGAN + 700)
        assert not pace.is_under_way(BEGAN + 900)

    def test_no_speed_without_times(self) -> None:
        assert pace_of(self.STEPS, None, 10) is None
        assert pace_of(self.STEPS, np.zeros(10), 10) is None


def test_curve_has_times(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("epoch,loss,seconds\n1,3,10\n2,nan,20\n3,2,30\n4,1,40\n")
    found = read_curve(tmp_path / "log.csv")
    assert found.times is not None
    assert found.times.tolist() == [10, 30, 40]
    assert found.first(2).times is not None
