"""Training effort for a target, from options, a curve or a job, and the command that plans with it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.job import Job, from_dict
from chronograd.plan.effort import of_curve, of_epochs, of_job, tokens_of_curve

JOB = {
    "network": {"name": "lenet5"}, "data": {"name": "synthetic", "samples": 60000, "shape": [1, 28, 28], "classes": 10}, "cluster": {"device": "v100"},
    "training": {"epochs": 40, "batch": 100, "schedule": "multi_step", "milestones": [0.5, 0.75]},
}  # fmt: skip


def job(**training: object) -> Job:
    return from_dict({**JOB, "training": {**JOB["training"], **training}})  # type: ignore[dict-item]


def test_given_epochs() -> None:
    effort = of_epochs(3, 60000, 100, (500, 600, 700))
    assert (effort.samples, effort.noise_scale) == (180000, (500, 600, 700))
    assert effort.steps(100)[0] == 1800


def test_job_effort_is_all_epochs_without_accuracy() -> None:
    assert of_job(job(), 1000, 0.9).samples == 40_000
    assert of_job(job(), 1000, 0.9).reached is None
    assert of_job(job(), 1000, None).reached == 1.0


def test_effort_from_a_curve(tmp_path: Path) -> None:
    epochs = np.arange(1, 31)
    accuracies = 0.95 - 0.5 * np.exp(-0.1 * epochs)
    file = tmp_path / "log.csv"
    file.write_text("epoch,accuracy\n" + "".join(f"{k},{a:.6f}\n" for k, a in zip(epochs, accuracies, strict=True)))
    constant = job(schedule="constant", milestones=[])
    assert of_curve(file, constant, 1000, 0.9).samples == 24_000  # 1 - 0.9 - 0.05 = 0.5 exp(-2.3)
    ahead = of_curve(file, constant, 1000, 0.94)
    assert ahead.samples == pytest.approx(1000 * math.log(50) / 0.1, rel=0.01)
    assert "forecast" in ahead.source
    with pytest.raises(InputError, match="not forecast to reach 96 %"):
        of_curve(file, constant, 1000, 0.96)


CURVE = [(k, 3 - 0.1 * k) for k in range(1, 13)]


@pytest.mark.parametrize("tokens_per_epoch", [None, 1e9])
@pytest.mark.parametrize(
    ("column", "unit", "hint"),
    [
        ("", "row", "add a column step or epoch to it: its rows have no such number"),
        ("episode,", "episode", "name a log by step or epoch"),
    ],
)
def test_rows_and_episodes_are_no_epochs_of_tokens(
    column: str, unit: str, hint: str, tokens_per_epoch: float | None, tmp_path: Path
) -> None:
    """A row was called an epoch, and with --tokens-per-epoch each row counted as that many tokens."""
    file = tmp_path / "log.csv"
    file.write_text(f"{column}loss\n" + "".join(f"{k}," * bool(column) + f"{loss:.2f}\n" for k, loss in CURVE))
    with pytest.raises(InputError, match=f"has losses by {unit}, and the tokens of a {unit} are unknown") as error:
        tokens_of_curve(file, 2.0, 4096, tokens_per_epoch)
    assert error.value.hint == hint


def test_steps_and_epochs_have_tokens(tmp_path: Path) -> None:
    """The loss falls to 2.0 at the tenth row."""
    for unit, tokens in (("step", 10 * 4096), ("epoch", 10 * 1e9)):
        file = tmp_path / f"{unit}.csv"
        file.write_text(f"{unit},loss\n" + "".join(f"{k},{loss:.2f}\n" for k, loss in CURVE))
        assert tokens_of_curve(file, 2.0, 4096, 1e9).tokens == tokens


@pytest.mark.parametrize(
    ("column", "unit", "hint"),
    [("", "row", "add a column epoch to it: its rows have no such number"), ("step,", "step", "name a log by epoch")],
)
def test_a_plan_counts_epochs(column: str, unit: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(f"{column}accuracy\n" + "".join(f"{k}," * bool(column) + f"{k / 20:.2f}\n" for k, _ in CURVE))
    with pytest.raises(InputError, match=f"has accuracies by {unit}, but a plan counts epochs") as error:
        of_curve(file, job(), 1000, 0.9)
    assert error.value.hint == hint


def test_command_on_a_hand_computed_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Hours are steps × step time and dollars hours × price, all from the prediction of the chosen setting."""
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({**JOB, "cluster": {"device": "v100", "price_usd_per_hour": 2.0}}))
    words = [
        "plan",
        str(file),
        "--on",
        "v100",
        "--counts",
        "1,2",
        "--batches",
        "50,100",
        "--prices",
        "on-demand",
        "--json",
    ]
    goal = ["--epochs-to-target", "10", "--to", "90%", "--noise-scale", "300", "--budget", "50"]
    goal += ["--deadline", "6h"]
    assert main([*words, *goal]) == 0
    found = json.loads(capsys.readouterr().out)
    chosen = found["chosen"]
    batch = chosen["count"] * chosen["batch_per_device"]
    asked = [f"cluster.count={chosen['count']}", f"training.batch={batch}", f"training.precision={chosen['precision']}"]
    assert main(["predict", str(file), *asked, "--json"]) == 0
    step_s = json.loads(capsys.readouterr().out)["quantities"]["step_time_s"]["value"]
    steps = 10 * 600 * (1 + 300 / batch) / (1 + 300 / 100)
    assert chosen["steps"] == pytest.approx(steps)
    assert chosen["hours"] == pytest.approx(steps * step_s / 3600)
    assert chosen["dollars"] == pytest.approx(2.0 * chosen["count"] * steps * step_s / 3600)
    assert chosen["dollars"] == min(row["dollars"] for row in found["front"])
    assert main([*words, *goal, "--budget", "0.0000001"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] is None
    assert main([*words[:-1], *goal[:-1], "1ms"]) == 2
    assert main([*words[:-1], *goal[:-1], "1s"]) == 0
    assert "No option meets the goal with 80 % probability" in capsys.readouterr().out
    assert main([*words[:-1], *goal, "--largest-batch"]) == 2
    assert main([*words[:-1], *goal, "--noise-scale", "9:3"]) == 2
