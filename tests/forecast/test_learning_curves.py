"""Learning curves from files and runs, and their forecasts."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve, read_curve
from chronograd.forecast.schedule import Schedule
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Attempt, Epoch, StepLine

EPOCHS = np.arange(1, 41, dtype=float)
LOSSES = 1 / (0.5 * EPOCHS + 0.5) + 0.1


def test_same_curve_from_every_file_type(tmp_path: Path) -> None:
    rows = [{"epoch": int(e), "loss": float(v)} for e, v in zip(EPOCHS, LOSSES, strict=True)]
    texts = {
        "a.csv": "epoch,loss,note\n" + "".join(f"{r['epoch']},{r['loss']},x\n" for r in rows),
        "b.tsv": "Epoch\tLoss\n" + "".join(f"{r['epoch']}\t{r['loss']}\n" for r in rows),
        "c.jsonl": "\n".join(json.dumps(r) for r in rows),
        "d.json": json.dumps(rows),
        "e.json": json.dumps({"loss": LOSSES.tolist(), "acc": [0.5] * 40, "params": {}}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        found = read_curve(tmp_path / name)
        assert found.values == pytest.approx(LOSSES), name
        assert found.steps.tolist() == EPOCHS.tolist(), name
        assert (found.unit, found.metric) == ("epoch", "loss")


def test_tensorboard_events_without_tensorflow(tmp_path: Path) -> None:
    events = pytest.importorskip("chronograd.watch.tensorboard")
    with closing(events.Events(tmp_path)) as write:
        for step, loss in enumerate(LOSSES, 1):
            write(StepLine(attempt=1, step=step, loss=float(loss), step_time_s=0.1))
    found = read_curve(tmp_path)
    assert found.values == pytest.approx(LOSSES, rel=1e-6)
    assert found.unit == "step"
    (file,) = tmp_path.iterdir()
    assert read_curve(file, column="step_time_s").values == pytest.approx([0.1] * 40)
    file.write_bytes(file.read_bytes()[:-7])  # as if still being written
    assert len(read_curve(file).values) == 39


Told = Callable[[Path], tuple[list[str], int]]


@pytest.fixture
def reported_notes(capsys: pytest.CaptureFixture[str]) -> Told:
    """Return a function that gives the notes of `fit loss FILE` and the number of points. Text and --json agree."""

    def notes(path: Path) -> tuple[list[str], int]:
        words = ["fit", "loss", str(path), "--family", "last"]
        assert main(words) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert main([*words, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert text.split("note: ")[1:] == [f"{note} " for note in data["notes"][:-1]] + data["notes"][-1:]
        return data["notes"], data["points"]

    return notes


def records_of(data: bytes) -> list[int]:
    """Return the start of each record in a TensorBoard file: 8 bytes of length and checksums of 4, as TensorFlow
    documents.
    """
    begins = [0]
    while begins[-1] < len(data):
        begins.append(begins[-1] + 8 + 4 + struct.unpack_from("<Q", data, begins[-1])[0] + 4)
    return begins[:-1]


def test_corrupt_tensorboard_records_are_reported(tmp_path: Path, reported_notes: Told) -> None:
    events = pytest.importorskip("chronograd.watch.tensorboard")
    with closing(events.Events(tmp_path)) as write:
        for step in range(1, 101):
            write(StepLine(attempt=1, step=step, loss=1 / step))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    begins = records_of(whole)
    before = len(begins) - 100  # records before the first point
    assert reported_notes(tmp_path) == ([], 100)

    def flipped(*places: int) -> bytes:
        data = bytearray(whole)
        for place in places:
            data[place] ^= 1
        return bytes(data)

    point_34 = before + 33
    file.write_bytes(flipped(begins[point_34] + 14))
    (note,), count = reported_notes(tmp_path)
    assert count == 99
    assert f"1 of {len(begins)} records is damaged and left out: {point_34 + 1}" in note
    file.write_bytes(flipped(*(begins[at] + 14 for at in range(point_34, point_34 + 7))))
    (note,), count = reported_notes(file)
    assert count == 93
    assert f"7 of {len(begins)} records are damaged" in note
    file.write_bytes(flipped(begins[point_34]))
    (note,), count = reported_notes(tmp_path)
    assert count == 33
    assert f"record {point_34 + 1} is damaged, so the rest cannot be read" in note
    assert f"{len(whole) - begins[point_34]:,} of {len(whole):,} bytes" in note
    for cut in (len(whole) - 7, begins[-1] + 5):
        file.write_bytes(whole[:cut])
        (note,), count = reported_notes(tmp_path)
        assert count == 99
        assert f"record {len(begins)}, the last, is left out" in note
    file.write_bytes(flipped(0))
    with pytest.raises(FileFormatError, match="record 1 is damaged"):
        read_curve(file)


@pytest.mark.parametrize(("bad", "note"), [
    ({3: "nan"}, "1 of 40 points is left out: the loss is not a finite number (epoch 3)"),
    ({39: "nan", 40: "inf"}, "2 of 40 points are left out: the loss is not a finite number (the first at epoch 39)"),
    ({5: ""}, "1 of 40 rows has no loss and is left out"),
    ({5: "", 7: ""}, "2 of 40 rows have no loss and are left out"),
])  # fmt: skip
def test_skipped_rows_are_reported(tmp_path: Path, reported_notes: Told, bad: dict[int, str], note: str) -> None:
    rows = [f"{e:g},{bad.get(int(e), v)}" for e, v in zip(EPOCHS, LOSSES, strict=True)]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(("epoch,loss", *rows)))
    assert reported_notes(file) == ([note], 40 - len(bad))


def ended(epoch: int, train_loss: float, test_accuracy: float) -> Epoch:
    """Return an epoch of one step that takes one second."""
    clock = {"seconds": 1.0 * epoch, "epoch_time_s": 1.0}
    figures = {"train_loss": train_loss, "test_loss": 1.0, "test_accuracy": test_accuracy}
    return Epoch(step=epoch, epoch=epoch, **clock, **figures)


def test_non_finite_losses_of_a_run_are_reported(tmp_path: Path, reported_notes: Told) -> None:
    run = RunDir.create(environment={}, out=tmp_path / "run")
    with run.step_writer() as lines:
        for epoch in range(1, 9):
            loss = 1 / epoch if epoch < 7 else float("nan")
            lines.write(ended(epoch, loss, test_accuracy=0.1 * epoch))
    assert reported_notes(run.path) == (["2 of 8 epochs have no finite loss and are left out"], 6)
    with pytest.raises(InputError, match="2 points of run are too few for a curve; 2 of 8 epochs have no finite loss"):
        forecast(read_curve(run.path), fraction=0.4)


def test_pause_before_resume_is_excluded_from_times(tmp_path: Path) -> None:
    """Use six epochs of 10 s with a pause of an hour between the third and the fourth."""
    run = RunDir.create(environment={"created": "2026-11-22T08:00:00+00:00"}, out=tmp_path / "run")
    for first, began in ((1, 1.7e9), (4, 1.7e9 + 3600)):
        with run.step_writer() as lines:
            for epoch in range(first, first + 3):
                clock = {"seconds": 10.0 * epoch, "epoch_time_s": 10.0, "time": began + 10 * epoch}
                figures = {"train_loss": 1 / epoch, "test_loss": 1.0, "test_accuracy": 0.1 * epoch}
                lines.write(Epoch(step=epoch, epoch=epoch, **clock, **figures))
    found = read_curve(run.path)
    assert found.times is not None
    assert np.diff(found.times).tolist() == pytest.approx([10] * 5)
    assert found.times[-1] == 1.7e9 + 3660
    assert any("resumed once after a pause: 1 h 00 min" in note for note in found.notes)


def test_accuracies_become_errors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("epoch,top1\n0,50\n1,\n2,75\n3,nan\n4,80.5\n")
    found = read_curve(tmp_path / "a.csv", "accuracy")
    assert found.values == pytest.approx([0.5, 0.25, 0.195])
    assert found.steps.tolist() == [1, 3, 5]  # epochs that start at 0 are counted from 1


def test_drops_and_end_come_from_the_job(tmp_path: Path) -> None:
    run = RunDir.create(environment={"created": "2026-11-22T08:00:00+00:00"}, out=tmp_path / "run")
    job = "network: {name: small-cnn}\ndata: {name: digits}\ntraining: {recipe: sgd-momentum, epochs: 8, batch: 8, "
    (run.path / "job.yaml").write_text(job + "schedule: multi_step, milestones: [0.25, 0.5]}\n")
    with run.step_writer() as lines:
        for epoch in range(1, 7):
            lines.write(StepLine(step=epoch, epoch=epoch, seconds=1.0 * epoch, step_time_s=1.0, loss=9.0, samples=8))
            lines.write(ended(epoch, 1.0 / epoch, test_accuracy=0.1 * epoch))
    found = read_curve(run.path)
    assert found.values == pytest.approx([1 / e for e in range(1, 7)])
    assert (found.schedule, found.unit) == (Schedule("multi_step", (2.0, 4.0), 8.0), "epoch")
    assert read_curve(run.path, "accuracy").values == pytest.approx([1 - 0.1 * e for e in range(1, 7)])


def test_invalid_curves(tmp_path: Path) -> None:
    bad = {
        "epoch,loss\n2,1\n1,2\n": "do not increase",
        "epoch,loss\n1e-300,2\n2e-300,1\n": "its last epoch is 2e-300, which counts nothing",
        "epoch,speed\n1,2\n": "none of them loss",
        "epoch,loss\n1,x\n": "not a number",
        "": "is empty",
        "[1, 2]": "none of them loss",
        "[]": "no curve",
        "a poem\nof two lines\n": "none of its 2 lines names a metric",
        '{"loss": [3, 2, 1': "cut off",
        '{"accuracy": [1e400]}': "none of them loss",
    }
    for text, told in bad.items():
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(FileFormatError, match=told):
            read_curve(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(NotFoundError, match="los"):
        read_curve(tmp_path / "x.csv", column="los")
    with pytest.raises(FileFormatError, match="there is no file"):
        read_curve(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("epoch,acc\n1,20\n2,130\n")
    with pytest.raises(FileFormatError, match="130"):
        read_curve(tmp_path / "x.csv", "accuracy")


def curve(values: np.ndarray, **said: object) -> LearningCurve:
    steps = np.arange(1, len(values) + 1, dtype=float)
    return LearningCurve("c", steps, values, "loss", "epoch", **said)  # type: ignore[arg-type]


def test_forecast_of_exact_curve() -> None:
    found = forecast(curve(LOSSES, schedule=Schedule("constant", (), 100.0)), fraction=0.5, target=0.1501, at=[60])
    assert found.model.family == "inverse"
    assert found.until == 20
    assert [one.step for one in found.at] == [40, 60, 100]
    assert found.at[0].seen == pytest.approx(found.at[0].value, rel=1e-4) == LOSSES[-1]
    assert found.at[2].value == pytest.approx(1 / 50.5 + 0.1, rel=1e-3)
    assert found.reached is not None
    assert found.reached.step == pytest.approx(39, rel=3e-3)
    assert found.reached.seen == 39
    never = forecast(curve(LOSSES), target=0.05).reached
    assert never is not None
    assert never.step is None


def test_learning_rate_drop_starts_a_new_curve() -> None:
    """Fit ten epochs at one rate and thirty at the next. The forecast is exact only if it knows the drop."""
    k = np.arange(1, 31)
    bent = np.concatenate([1 / (k[:10] + 0.5) + 0.5, 0.4 / (0.8 * k + 1) + 0.2])
    aware = forecast(curve(bent, schedule=Schedule("multi_step", (10.0,))), fraction=0.6, family="inverse")
    blind = forecast(curve(bent), fraction=0.6, family="inverse")
    assert (aware.started, blind.started) == (10, 0)
    assert aware.at[-1].value == pytest.approx(bent[-1], rel=1e-3)
    assert abs(blind.at[-1].value - bent[-1]) > 0.1 * bent[-1]
    assert (
        forecast(curve(bent, schedule=Schedule("multi_step", (39.0,))), family="inverse").started == 0
    )  # too few points after the drop


def test_forecast_error_on_held_out_points() -> None:
    """Fit 4, 3, 2: the last value misses 1 and 1 by 1, a quarter of the largest loss. An exact curve has no error."""
    last = forecast(curve(np.array([4.0, 3.0, 2.0, 1.0, 1.0])), 0.6, "last")
    assert [(one.step, one.value, one.seen) for one in last.held_out] == [(4, 2, 1), (5, 2, 1)]
    assert last.error == pytest.approx(0.25)
    exact = forecast(curve(LOSSES), 0.5, "inverse")
    assert exact.error == pytest.approx(0, abs=1e-4)
    assert len(exact.held_out) == len(LOSSES) - int(len(LOSSES) / 2)
    whole = forecast(curve(LOSSES), 1.0, "inverse")
    assert (whole.held_out, whole.error) == ((), None)


def test_forecast_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "epoch,accuracy\n" + "".join(f"{int(e)},{1 - v / 2}\n" for e, v in zip(EPOCHS, LOSSES, strict=True))
    )
    words = [
        "fit",
        "loss",
        str(file),
        "--metric",
        "accuracy",
        "--fraction",
        "0.5",
        "--to",
        "0.925",
        "--schedule",
        "constant",
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "inverse"
    assert found["reached"]["step"] == pytest.approx(39, rel=1e-3)
    assert found["at"][0]["value"] == pytest.approx(1 - LOSSES[-1] / 2, rel=1e-4)
    assert main(words) == 0
    assert "the run reached it at epoch 39" in capsys.readouterr().out
    assert main([*words, "--drops", "x"]) == 2
    assert main([*words, "--to", "1.5"]) == 2
    with pytest.raises(InputError, match="are too few for a curve"):
        forecast(curve(LOSSES), fraction=0.05)


def test_losses_smaller_than_any_normal_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n" + "".join(f"{e:g},{1 / e:g}e-320\n" for e in EPOCHS))
    assert main(["fit", "loss", str(log), "--to", "0.5"]) in (0, 2)


def test_watch_refits_as_points_arrive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Add one epoch at each poll until the run ends."""
    run = RunDir.create(environment={"created": "2026-11-22T08:00:00+00:00"}, out=tmp_path / "run")
    job = "network: {name: small-cnn}\ndata: {name: digits}\ntraining: {recipe: sgd-momentum, epochs: 6, batch: 8}\n"
    (run.path / "job.yaml").write_text(job)
    with run.step_writer() as lines:
        written = 0

        def write_one(_: float) -> None:
            nonlocal written
            written += 1
            lines.write(ended(written, 0.5**written, test_accuracy=0.5))
            if written == 6:
                (run.path / "record.json").write_text("{}")

        monkeypatch.setattr("chronograd.forecast.loss_answer.sleep", write_one)
        assert main(["fit", "loss", str(run.path), "--follow", "--to", "0.02"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["epoch 3", "epoch 4", "epoch 5", "epoch 6"]
    assert "loss 0.02 at epoch 5.6" in told[2]
    assert "reached it at epoch 6" in told[3]
    assert main(["fit", "loss", str(run.path / "steps.0.jsonl"), "--follow"]) == 2


def test_pause_before_resume_is_excluded_from_speed(tmp_path: Path) -> None:
    """Use epochs of ten seconds with an hour between the second and third start. The newest times remain."""
    run = RunDir.create(out=tmp_path / "run")
    now = 1000.0
    for attempt, epochs in ((1, (1, 2, 3)), (2, (4, 5, 6))):
        with run.step_writer(0) as lines:
            lines.write(Attempt(time=now))
            for epoch in epochs:
                now += 10
                lines.write(
                    Epoch(time=now, step=epoch, epoch=epoch, seconds=10.0 * epoch, epoch_time_s=10.0,
                          train_loss=1 / epoch, test_loss=1.0, test_accuracy=0.5)
                )  # fmt: skip
            now += 3600 * (attempt == 1)
    times = read_curve(run.path).times
    assert times is not None
    assert list(np.diff(times)) == pytest.approx([10.0] * 5)
