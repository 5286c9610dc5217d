"""Learning curves from files and runs, and what is forecast from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.fit.forecast import forecast
from chronograd.fit.learning_curves import LearningCurve, read_curve
from chronograd.fit.schedule import Schedule
from chronograd.rundir import RunDir

EPOCHS = np.arange(1, 41, dtype=float)
LOSSES = 1 / (0.5 * EPOCHS + 0.5) + 0.1


def test_the_same_curve_from_every_kind_of_file(tmp_path: Path) -> None:
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


def test_tensorboard_events_are_read_without_tensorflow(tmp_path: Path) -> None:
    events = pytest.importorskip("chronograd.watch.tensorboard")
    with events.Events(tmp_path) as write:
        for step, loss in enumerate(LOSSES, 1):
            write({"step": step, "loss": float(loss), "step_time_s": 0.1, "attempt": 1})
    found = read_curve(tmp_path)
    assert found.values == pytest.approx(LOSSES, rel=1e-6)
    assert found.unit == "step"
    (file,) = tmp_path.iterdir()
    assert read_curve(file, column="step_time_s").values == pytest.approx([0.1] * 40)
    file.write_bytes(file.read_bytes()[:-7])  # it is being written
    assert len(read_curve(file).values) == 39


def test_accuracies_become_errors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("epoch,top1\n0,50\n1,\n2,75\n3,nan\n4,80.5\n")
    found = read_curve(tmp_path / "a.csv", "accuracy")
    assert found.values == pytest.approx([0.5, 0.25, 0.195])
    assert found.steps.tolist() == [1, 3, 5]  # epochs from 0 are counted from 1


def test_a_run_knows_its_drops_and_its_end(tmp_path: Path) -> None:
    run = RunDir.create(environment={"created": "2026-11-22T08:00:00+00:00"}, out=tmp_path / "run")
    job = "network: {name: small-cnn}\ndata: {name: digits}\ntraining: {recipe: sgd-momentum, epochs: 8, batch: 8, "
    (run.path / "job.yaml").write_text(job + "schedule: multi_step, milestones: [0.25, 0.5]}\n")
    with run.step_writer() as lines:
        for epoch in range(1, 7):
            lines.write(step=epoch, epoch=epoch, seconds=1.0 * epoch, step_time_s=1.0, loss=9.0, samples=8)
            told = {"seconds": 1.0 * epoch, "epoch_time_s": 1.0, "test_loss": 1.0, "test_accuracy": 0.1 * epoch}
            lines.write(event="epoch", step=epoch, epoch=epoch, train_loss=1.0 / epoch, **told)
    found = read_curve(run.path)
    assert found.values == pytest.approx([1 / e for e in range(1, 7)])
    assert (found.schedule, found.unit) == (Schedule("multi_step", (2.0, 4.0), 8.0), "epoch")
    assert read_curve(run.path, "accuracy").values == pytest.approx([1 - 0.1 * e for e in range(1, 7)])


def test_what_is_no_curve_is_refused(tmp_path: Path) -> None:
    bad = {
        "epoch,loss\n2,1\n1,2\n": "do not rise",
        "epoch,speed\n1,2\n": "none of them loss",
        "epoch,loss\n1,x\n": "no number",
        "": "no curve",
        "[1, 2]": "no curve",
        '{"loss": 3}{': "cannot read",
        '{"accuracy": [1e400]}': "none of them loss",
    }
    for text, told in bad.items():
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(FileFormatError, match=told):
            read_curve(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(NotFoundError, match="los"):
        read_curve(tmp_path / "x.csv", column="los")
    with pytest.raises(FileFormatError, match="cannot read"):
        read_curve(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("epoch,acc\n1,20\n2,130\n")
    with pytest.raises(FileFormatError, match="130"):
        read_curve(tmp_path / "x.csv", "accuracy")


def curve(values: np.ndarray, **said: object) -> LearningCurve:
    steps = np.arange(1, len(values) + 1, dtype=float)
    return LearningCurve("c", steps, values, "loss", "epoch", **said)  # type: ignore[arg-type]


def test_a_forecast_of_an_exact_curve() -> None:
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


def test_a_drop_of_the_learning_rate_begins_a_new_curve() -> None:
    """Ten epochs at one rate, thirty at the next: fitted as one curve the forecast is off, since the drop it is exact."""
    k = np.arange(1, 31)
    bent = np.concatenate([1 / (k[:10] + 0.5) + 0.5, 0.4 / (0.8 * k + 1) + 0.2])
    aware = forecast(curve(bent, schedule=Schedule("multi_step", (10.0,))), fraction=0.6, family="inverse")
    blind = forecast(curve(bent), fraction=0.6, family="inverse")
    assert (aware.started, blind.started) == (10, 0)
    assert aware.at[-1].value == pytest.approx(bent[-1], rel=1e-3)
    assert abs(blind.at[-1].value - bent[-1]) > 0.1 * bent[-1]
    assert (
        forecast(curve(bent, schedule=Schedule("multi_step", (39.0,))), family="inverse").started == 0
    )  # too few points after it


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "it was reached at epoch 39" in capsys.readouterr().out
    assert main([*words, "--drops", "x"]) == 2
    assert main([*words, "--to", "1.5"]) == 2
    with pytest.raises(InputError, match="do not make a curve"):
        forecast(curve(LOSSES), fraction=0.05)


def test_a_run_is_fitted_again_as_points_arrive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the command looks again the run is one epoch further, and then it has ended."""
    run = RunDir.create(environment={"created": "2026-11-22T08:00:00+00:00"}, out=tmp_path / "run")
    job = "network: {name: small-cnn}\ndata: {name: digits}\ntraining: {recipe: sgd-momentum, epochs: 6, batch: 8}\n"
    (run.path / "job.yaml").write_text(job)
    with run.step_writer() as lines:
        written = 0

        def write_one(_: float) -> None:
            nonlocal written
            written += 1
            told = {"seconds": 1.0 * written, "epoch_time_s": 1.0, "test_loss": 1.0, "test_accuracy": 0.5}
            lines.write(event="epoch", step=written, epoch=written, train_loss=0.5**written, **told)
            if written == 6:
                (run.path / "record.json").write_text("{}")

        monkeypatch.setattr("chronograd.cli.fit.sleep", write_one)
        assert main(["fit", "loss", str(run.path), "--follow", "--to", "0.02"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["epoch 3", "epoch 4", "epoch 5", "epoch 6"]
    assert "loss 0.02 at epoch 5.6" in told[2]
    assert "reached at epoch 6" in told[3]
    assert main(["fit", "loss", str(run.path), "--follow", "--json"]) == 2
