"""`chronograd simulate`: output and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["simulate", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_staleness_of_given_pushes(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "staleness", "--pushes", "1,2,3,4", "--pushes", "2.5,5")
    told = [(u["learner"], u["index"], u["time_s"], u["staleness"]) for u in found["updates"]]
    assert told == [(1, 1, 1, 0), (1, 2, 2, 0), (2, 1, 2.5, 2), (1, 3, 3, 1), (1, 4, 4, 0), (2, 2, 5, 2)]
    assert found["mean_staleness"] == pytest.approx(5 / 6)
    assert [d["gradients"] for d in found["distribution"]] == [3, 1, 2]
    assert main(["simulate", "staleness", "--pushes", "1,2,3,4", "--pushes", "2.5,5"]) == 0
    assert "mean staleness is 0.8333" in capsys.readouterr().out


def test_staleness_of_learners(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--compute", "exponential:1", "--learners", "4", "--updates", "3000", "--pull", "0.1", "--softsync", "2")
    found = data(capsys, "staleness", *words)
    assert len(found["updates"]) == 6000
    assert found["mean_staleness"] == pytest.approx(1.5, rel=0.05)
    assert [one["learner"] for one in found["learners"]] == [1, 2, 3, 4]
    slow = data(capsys, "staleness", "--compute", "1", "--compute", "2.5", "--updates", "140")
    assert slow["learners"][1]["mean_staleness"] > 2


def test_staleness_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["staleness", "--pushes", "1,2,3,4", "--pushes", "2.5,5", "--picture"]
    data(capsys, *words, str(tmp_path / "a.svg"))
    assert "learner 2" in (tmp_path / "a.svg").read_text()
    data(capsys, *words, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for name, told in (("a.pdf", ".svg or .png"), ("none/a.svg", "cannot write")):
        assert main(["simulate", *words, str(tmp_path / name)]) == 2
        assert told in capsys.readouterr().err
    assert main(["simulate", *words, str(tmp_path / "b.svg")]) == 0
    assert "b.svg" in capsys.readouterr().out


def test_server_with_update_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "staleness", "--compute", "1", "--learners", "4", "--serve", "0.5", "--updates", "400")
    assert found["updates_per_s"] == pytest.approx(2, rel=0.01)
    assert found["mean_staleness"] == pytest.approx(3, rel=0.02)


def test_speed_with_published_coefficients(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--coefficients", "1.02,2.78,4.92,0,0.02", "--batch", "40", "--servers", "4", "--workers", "1:20")
    found = data(capsys, "speed", *words)
    assert found["best_workers"] == 6
    assert found["closed_form_workers"] == pytest.approx(5.76, abs=0.005)
    assert found["steps_per_s"]["6"] == pytest.approx(0.05869, abs=5e-6)
    assert list(found["steps_per_s"]) == [str(w) for w in range(1, 21)]
    assert data(capsys, "speed", "--servers", "4") == found
    free = data(capsys, "speed", "--coefficients", "2.83,3.92,0,0.11", "--workers", "1,2")
    assert (free["mode"], free["best_workers"], free["closed_form_workers"]) == ("asynchronous", 2, None)


def test_step_times_with_all_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--batch", "40", "--servers", "2", "--workers", "1,4")
    plain = data(capsys, "speed", *words)
    found = data(capsys, "speed", *words, "--steps", "1000", "--all-reduce")
    assert {key: found[key] for key in plain} == plain
    assert found["time_s"]["4"] == pytest.approx(1000 / 0.04374, rel=2e-4)
    shared = found["all_reduce"]
    assert (shared["best_workers"], shared["closed_form_workers"]) == (4, None)
    assert shared["time_s"]["4"] == pytest.approx(1000 * (10.2 + 2.78 + 4.92 * 3 / 4))
    assert main(["simulate", "speed", *words, "--steps", "1000", "--all-reduce"]) == 0
    told = capsys.readouterr().out
    assert "all-reduce, no servers" in told
    assert "4 h 38 min" in told  # 1000 · 16.67 s


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["staleness"], "--pushes"),
        (["staleness", "--pushes", "1,2", "--compute", "1"], "--pushes"),
        (["staleness", "--pushes", "2,1"], "rise"),
        (["staleness", "--pushes", "a"], "cannot read"),
        (["staleness", "--compute", "1", "--pull", "1", "--pull", "2"], "for each"),
        (["staleness", "--compute", "1", "--softsync", "2"], "needs 2 learners"),
        (["staleness", "--compute", "1", "--updates", "0"], "1 to"),
        (["staleness", "--pushes", "1,2", "--serve", "1"], "--serve"),
        (["staleness", "--compute", "1", "--serve", "x"], "is not a duration"),
        (["speed", "--coefficients", "1,2,3"], "5 numbers"),
        (["speed", "--coefficients", "1,2,3,4,5"], "--batch"),
        (["speed", "--workers", "3:1"], "is empty"),
        (["speed", "--steps", "0"], "--steps"),
    ],
)  # fmt: skip
def test_invalid_arguments(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    assert told in capsys.readouterr().err


def test_fitted_speed_model_predicts_other_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six speeds of the published table predict another one."""
    table = tmp_path / "speeds.csv"
    pairs = ("1,2,.02170", "2,2,.03554", "4,2,.04374", "1,4,.02228", "8,4,.05618", "12,4,.04757")
    table.write_text("\n".join(["workers,servers,steps_per_s", *pairs]))
    assert main(["fit", "speed", str(table), "--batch", "40", "--at", "16,4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coefficients"][:3] == pytest.approx([1.02, 2.78, 4.92], rel=0.01)
    (forecast,) = found["forecasts"]
    assert forecast["low"] < forecast["steps_per_s"] == pytest.approx(0.03986, rel=0.005)
    assert main(["fit", "speed", str(table)]) == 0
    assert "Asynchronous speed, 6 points" in capsys.readouterr().out
