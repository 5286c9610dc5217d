"""`chronograd forecast`: target levels, remaining hours, finish time, chart and page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import chronograd
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.figure import Lines, Mark, Series
from chronograd.forecast.forecast_answer import forecast_answer, level, read
from chronograd.forecast.forecasting import forecast
from chronograd.report.text_chart import text_chart

BEGAN = 1_763_850_000.0
EPOCH_S = 100.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of 30 of 100 epochs with a cosine schedule. It has percentages, rates, times, and epochs from 0."""
    rows = ["epoch,train_loss,accuracy,val_acc,lr,timestamp"]
    for e in range(30):
        rate = 0.1 * (1 + math.cos(math.pi * e / 100)) / 2
        rows.append(f"{e},{1 / (e + 1)},{99 - 40 / (e + 1)},{90 - 60 / (e + 2)},{rate},{BEGAN + EPOCH_S * e}")
    (tmp_path / "log.csv").write_text("\n".join(rows))
    return tmp_path / "log.csv"


def forecast_data(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert main(["forecast", *map(str, words), "--json"]) == 0
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    return data


def in_steps(count: int) -> str:
    """Return a log with accuracies in percent that start below 1, a rate that drops after epoch 30, and a slow last epoch."""
    rows = ["epoch,val_acc,lr,seconds"]
    for e in range(1, count + 1):
        rows.append(f"{e},{0.4 if e == 1 else 80 - 75 / e},{0.1 if e <= 30 else 0.01},{10 if e < 40 else 500}")
    return "\n".join(rows)


def cosine(count: int) -> str:
    """Return printed lines: ten iterations of each epoch, and then its accuracy. The rate starts to fall after epoch 15."""
    lines = []
    for e in range(count):
        rate = 0.1 * (1 + math.cos(math.pi * max(0, e - 15) / 35)) / 2
        lines += [
            f"Epoch: {e} step: {i} loss: {3 / (10 * e + i + 1) + 0.1:.5f} lr: {rate:.6f}" for i in range(0, 10, 3)
        ]
        lines.append(f"Epoch: {e} val_acc: {0.9 - 0.6 / (e + 1):.5f}")
    return "\n".join(lines)


@pytest.mark.parametrize("text", [in_steps, cosine])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7])
def test_fraction_forecasts_as_a_log_that_ends_there(
    text: Callable[[int], str], fraction: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later drops, rates, durations and values change nothing except the score."""
    answers = []
    for name, count, words in (("whole", 50, ("--fraction", fraction)), ("part", round(50 * fraction), ())):
        file = tmp_path / name / "log.txt"
        file.parent.mkdir()
        file.write_text(text(count))
        answers.append(forecast_data(capsys, file, "--to", "79%", "--planned", 50, *words))
    whole, part = answers
    for answer in answers:
        answer["at"] = [one | {"seen": None} for one in answer["at"] if one["step"] == 50]  # type: ignore[attr-defined]
        answer["reached"] |= {"seen": None}  # type: ignore[operator]
    assert whole == part


def test_target_formats(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [forecast_data(capsys, log, "--to", to) for to in ("91%", "91", "0.91", "91.0 %")]
    assert len({str(one["reached"]) for one in answers}) == 1
    assert answers[0]["column"] == "val_acc"
    for bad in ("1.5", "120", "high", "-3", "nan"):
        with pytest.raises(InputError):
            level(bad, "accuracy")
    with pytest.raises(InputError, match="loss"):
        level("92%", "loss")


def test_from_python(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = chronograd.forecast(log, to="91%")
    assert json.loads(json.dumps(answer.data)) == forecast_data(capsys, log, "--to", "91%")
    assert chronograd.forecast(log, to=0.91).data["reached"] == answer.data["reached"]


def test_column_selection(log: Path) -> None:
    assert read(log, None, "91%").column == "val_acc"
    curve = read(log, "accuracy", None)  # a column of that name comes before held-out data
    assert (curve.column, curve.notes[0]) == (
        "accuracy",
        "accuracy is of training: --metric val_acc forecasts the held-out data",
    )
    assert read(log, "Val/Acc", None).column == "val_acc"
    assert read(log, "loss", "0.01").column == "train_loss"
    assert read(log, None, "1.5").column == "train_loss"
    (log.parent / "x.csv").write_text("epoch,speed\n1,2\n")
    with pytest.raises(InputError, match="none of them of accuracy"):
        read(log.parent / "x.csv", None, "91%")


def test_hours_and_finish_time_from_log_times(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = forecast_data(capsys, log, "--to", "89%")
    assert data["schedule"] == {"kind": "annealed", "drops": [], "planned": 100}
    time, reached = data["time"], data["reached"]
    assert isinstance(time, dict)
    assert isinstance(reached, dict)
    assert time["seconds_per_epoch"] == pytest.approx(EPOCH_S)
    ahead = EPOCH_S * (reached["step"] - 30)
    assert time["ahead"]["seconds"] == pytest.approx(ahead)
    assert time["clock"]["seconds"] == pytest.approx(BEGAN + 29 * EPOCH_S + ahead)
    assert time["ahead"]["low"] == pytest.approx(EPOCH_S * (reached["low"] - 30))


def test_interval_of_the_clock_is_that_of_the_wait(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    time = forecast_data(capsys, log, "--to", "88.2%")["time"]
    assert isinstance(time, dict)
    for end in ("low", "seconds", "high"):
        assert time["clock"][end] == pytest.approx(BEGAN + 29 * EPOCH_S + time["ahead"][end])
    assert time["ahead"]["low"] < time["ahead"]["seconds"] < time["ahead"]["high"]


@pytest.mark.parametrize("pace", ["1e308", "1e12", "4e7"])
def test_epoch_time_of_more_than_30_years_is_refused(pace: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", str(log), "--to", "89%", "--pace", pace]) == 2
    assert "30 years" in capsys.readouterr().err


def test_finish_time_beyond_the_calendar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step takes a year by the clock of the log, so the level is millennia away."""
    rows = [f"{e},{0.9 - 0.5 / e**0.1},{BEGAN + 3e7 * e}" for e in range(1, 21)]
    (tmp_path / "log.csv").write_text("\n".join(["epoch,val_acc,timestamp", *rows]))
    assert main(["forecast", str(tmp_path / "log.csv"), "--to", "85%", "--schedule", "constant"]) == 0
    assert "after the year 9999" in capsys.readouterr().out


def test_running_and_stopped_logs_use_different_times(log: Path) -> None:
    made = forecast(read(log, None, "89%"), target=0.89)
    under_way = forecast_answer(made, BEGAN + 29 * EPOCH_S + 60).sections[0].takeaway
    assert under_way.startswith("89.0 % at epoch ")
    assert "by 22 Nov" in under_way or "by 23 Nov" in under_way
    assert ", in " in under_way
    stopped = forecast_answer(made, BEGAN + 10 * 86400).sections[0].takeaway
    assert "after the last point of 22 Nov" in stopped or "after the last point of 23 Nov" in stopped


def test_epoch_time_option_without_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{e},{0.9 - 0.5 / e}" for e in range(1, 21)]
    (tmp_path / "log.csv").write_text("\n".join(["epoch,val_acc", *rows]))
    words = [tmp_path / "log.csv", "--to", "88%", "--schedule", "constant"]
    assert forecast_data(capsys, *words)["time"] is None
    data = forecast_data(capsys, *words, "--pace", "60")
    reached, time = data["reached"], data["time"]
    assert isinstance(reached, dict)
    assert isinstance(time, dict)
    assert time["ahead"]["seconds"] == pytest.approx(60 * (reached["step"] - 20))
    assert main(["forecast", *map(str, words)]) == 0
    assert "no forecast in hours" in " ".join(capsys.readouterr().out.split())


def test_schedule_names_match_job_files(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cosine", "one_cycle", "annealed"):
        data = forecast_data(capsys, log, "--schedule", name, "--planned", "60")
        assert data["schedule"] == {"kind": "annealed", "drops": [], "planned": 60}
    assert (
        main(["fit", "loss", str(log), "--metric", "accuracy", "--to", "92", "--schedule", "cosine", "--planned", "60"])
        == 0
    )
    assert "accuracy 0.92" in capsys.readouterr().out


def test_steps_are_printed_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{k},{0.9 - 400 / (k + 800)}" for k in range(1000, 20_001, 1000)]
    (tmp_path / "log.csv").write_text("\n".join(["step,val_acc", *rows]))
    assert main(["forecast", str(tmp_path / "log.csv"), "--to", "88.5%", "--schedule", "constant"]) == 0
    text = capsys.readouterr().out
    assert "until step 20,000" in text
    assert "e+" not in text


def test_page_and_chart(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["forecast", str(log), "--to", "89%", "--out", str(page)]) == 0
    text = capsys.readouterr().out
    assert "<svg" in page.read_text()
    assert max(len(line) for line in text.splitlines() if "│" in line or "  " in line) <= 80
    assert "• val_acc" in text


def test_text_chart() -> None:
    """Draw a line with a band, a point at its end and a mark half-way: 11 columns next to the labels."""
    line = Series("forecast", "predicted", [0, 10], [0, 10], [0, 8], [0, 10])
    point = Series("seen", "measured", [10], [10])
    drawn = text_chart(Lines("epoch", "y", [line, point], [Mark("y", 5, "target")]), width=15, height=11).splitlines()
    assert drawn[0] == "10 │          •"
    assert drawn[5] == " 5 │┄┄┄┄┄━┄┄┄┄┄"
    assert drawn[10] == " 0 │━"
    assert drawn[2] == "   │        ━░░"
    assert drawn[12].split() == ["0", "epoch", "10"]


def test_axis_ends_are_rounded() -> None:
    """A fraction of an epoch has three digits; a step is printed in full."""
    for last, end in ((14.24856927, "14.2"), (1_234_567, "1,234,567"), (1234.5, "1,234")):
        drawn = text_chart(Lines("epoch", "y", [Series("seen", "measured", [0, last], [0, 1])], []), width=40)
        assert drawn.splitlines()[-2].split() == ["0", "epoch", end]
