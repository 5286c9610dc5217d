"""The main workflow at small scale: every stage with real processes, up to a report page and a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.explain.written import write_run
from tests.report.conftest import everything, measured, predicted

from chronograd import job as jobs
from chronograd.answer import as_json
from chronograd.cli.main import main
from chronograd.count.layers import summary
from chronograd.explain.answer import disturbances
from chronograd.forecast.loss_answer import forecast_from_half
from chronograd.record import STEP_PARTS, Record
from chronograd.report.loop import Loop, page_of, prediction_words
from chronograd.rundir import RunDir, list_runs
from chronograd.rundir.steps import Epoch
from chronograd.trace import Trace

__all__ = ["everything", "measured", "predicted"]  # fixtures


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_whole_workflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, runs = tmp_path / "report.html", tmp_path / "runs"
    overrides = ["data.samples=256", "training.epochs=2", "training.batch=16", "training.target_accuracy=0.99"]
    arguments = ["run", "examples/digits.yaml", *overrides, "--out", str(page), "--runs", str(runs), "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert page.read_text().lower().startswith("<!doctype html>")
    assert json.loads(page.with_suffix(".ipynb").read_text())["nbformat"] == 4
    records = {name: Record.model_validate(data) for name, data in printed["records"].items()}
    for world in (1, 2):
        predicted, measured = records[f"predicted-{world}"], records[f"measured-{world}"]
        assert (predicted.kind, measured.kind) == ("predicted", "measured")
        assert set(STEP_PARTS) <= set(predicted.quantities) & set(measured.quantities)
        assert measured.value("step_time_s") > 0
    assert records["trained"].value("epochs") == 2
    assert re.match(r"Rent \d × \S+ from ", printed["takeaways"]["resnet50 on imagenet to 75 %: at most $50.00"])
    assert all(text for text in printed["takeaways"].values())
    assert len(list_runs(runs)) == 5  # a measurement is one run with its rounds inside
    # The sentence about the loss equals the one of `fit loss`.
    assert main(["fit", "loss", printed["runs"]["trained"], "--fraction", "0.5"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    (share,) = re.findall(r"their mean error is (\S+ %) of the largest value", text)
    assert f"off by {share} of the largest loss" in printed["takeaways"]["Training"]


def test_forecast_uses_the_schedule_like_fit_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve epochs; the rate falls after the sixth and ninth, so the first six look like a plateau."""
    run = RunDir.create(environment={}, out=tmp_path / "run")
    training = "{recipe: sgd-momentum, epochs: 12, batch: 8, schedule: multi_step, milestones: [0.5, 0.75]}"
    (run.path / "job.yaml").write_text(f"network: {{name: small-cnn}}\ndata: {{name: digits}}\ntraining: {training}\n")
    losses = [1.0, 0.8, 0.7, 0.66, 0.65, 0.65, 0.3, 0.25, 0.24, 0.15, 0.14, 0.14]
    with run.step_writer() as lines:
        for epoch, loss in enumerate(losses, start=1):
            told = {"seconds": epoch, "epoch_time_s": 1.0, "test_loss": 1.0, "test_accuracy": 0.5}
            lines.write(Epoch(step=10 * epoch, epoch=epoch, train_loss=loss, **told))
    of_run = forecast_from_half(run.path)
    assert main(["fit", "loss", str(run.path), "--fraction", "0.5", "--json"]) == 0
    assert as_json(of_run) == json.loads(capsys.readouterr().out)
    assert (of_run.until, of_run.ahead) == (6, 9)  # the rate falls at once, and after epoch 9 again


@pytest.mark.parametrize(("queued", "is_met"), [((0.5, 0.5), True), ((0.02, 0.02), False)], ids=["busy", "quiet"])
def test_errors_are_shown_with_disturbances(
    tmp_path: Path, queued: tuple[float, float], is_met: bool, everything: dict[str, Record]
) -> None:
    met = disturbances(write_run(tmp_path / "run", queued=queued))
    assert met == ("other processes use the host (50 % of the time)" if is_met else "")
    loop = Loop(
        jobs.load("examples/digits.yaml"),
        summary(Trace.load("tests/golden/inputs/net.json.gz")),
        {n: everything[f"predicted-{n}"] for n in (1, 2)},
        {n: everything[f"measured-{n}"] for n in (1, 2)},
        {1: met, 2: ""},
        trained=everything["trained"],
        plan=[everything["k80-1"], everything["h100-1"]],
    )
    page = page_of(loop)
    by_title = {section.title: section.takeaway for section in page.sections}
    told = [by_title["Parts of a step"], by_title["Accuracy of the prediction"]]
    assert page.highlights[1].detail.startswith("predicted 100 ms; ")
    assert all(("other processes use the host (50 % of the time)" in text) is is_met for text in told)
    assert all("2 processes, other" not in text for text in told)
    why = f" ({met})" if is_met else ""
    assert page.opening() == [
        "Training ended at 96.0 % test accuracy after 4 epochs and 40 s, at or above the target of 95.0 %.",
        "1×h100 is predicted fastest at 1 min 40 s and also cheapest at $0.11.",
        f"The predicted step is off by +25.0 % with 1 process{why} and −50.0 % with 2 processes.",
    ]
    expected = "step predicted 100 ms, measured 80 ms: prediction off by +25.0 %"
    assert prediction_words(loop, 1) == (f"{expected}, but {met}" if is_met else expected)


def test_invalid_job_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    assert main(["run", "examples/digits.yaml", "network.name=resnet2", "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert "resnet20" in error
    assert "Traceback" not in error
    assert not runs.exists()


def test_schema_and_resolved_job_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--schema"]) == 0
    fields = json.loads(capsys.readouterr().out)["properties"]
    assert {"network", "data", "training", "cluster", "communication", "backend"} < fields.keys()
    assert "classification" in fields["task"]["enum"]
    assert main(["run", "--print-config"]) == 0
    assert "learning_rate: 0.1" in capsys.readouterr().out
