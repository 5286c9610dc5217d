"""Inference with `predict`: latency and throughput by batch, and figures from other devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chronograd
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.errors import InputError, JobError
from chronograd.hardware import catalog
from chronograd.judge.limits import limit_of
from chronograd.predict.answer import of_figure, predict_jobs
from chronograd.predict.prediction import predict, predict_step
from chronograd.predict.serving import USUAL_BATCHES, predict_batches
from chronograd.predict.setting import setting_of

TRAINED, ASKED = trace_network("resnet20"), trace_network("resnet20", mode="inference")
TRAINING_JOB = jobs.from_dict(
    {
        "network": {"name": "resnet20"},
        "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10},
        "training": {"batch": 64},
        "cluster": {"device": "v100"},
    }
)
JOB = jobs.changed(TRAINING_JOB, ["mode=inference"])


def test_inference_record_starts_with_latency() -> None:
    answer = predict_jobs(ASKED, [JOB], samples=50_000)
    (section,) = answer.sections
    assert section.takeaway.startswith("Predicted: latency of a batch ")
    assert section.table is not None
    said = " ".join(
        [section.title, section.takeaway, *section.lines, *(cell for row in section.table.rows for cell in row)]
    )
    for word in ("training", "epoch", "step time", "backward", "update"):
        assert word not in said.lower()
    (record,) = answer.records.values()
    assert record.job.mode == "inference"
    step = predict_step(ASKED, setting_of(JOB))
    assert record.value("latency_s") == pytest.approx(
        step.parts["forward_s"] + step.parts["transfer_s"] + step.parts["input_s"]
    )


def test_inference_memory_has_no_gradients() -> None:
    trained, asked = predict(TRAINED, TRAINING_JOB), predict(ASKED, JOB)
    weights = 4 * ASKED.params
    assert asked.value("memory_peak_bytes") >= weights
    # Training holds weights, gradients and momentum for any activations.
    assert trained.value("memory_peak_bytes") - asked.value("memory_peak_bytes") > 2 * weights


def test_forward_trace_is_always_inference() -> None:
    assert predict(ASKED, TRAINING_JOB).quantities.keys() == predict(ASKED, JOB).quantities.keys()


def test_batches_are_rows_with_latency_and_maximum() -> None:
    answer = predict_batches(ASKED, [JOB], [64, 1, 8])
    (section,) = answer.sections
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == ["1", "8", "64"]
    assert section.takeaway.startswith("resnet20 on v100 in fp32: ")
    assert " at batch 1, " in section.takeaway
    assert section.takeaway.endswith("samples/s at batch 64.")
    assert [row["batch"] for row in section.data] == [1, 8, 64]
    latencies = [row["latency_s"] for row in section.data]
    assert sorted(latencies) == latencies
    assert len(answer.records) == 3


def test_batch_that_does_not_fit_is_marked() -> None:
    answer = predict_batches(ASKED, [JOB], [1, 10_000_000])
    (section,) = answer.sections
    assert section.table is not None
    assert section.table.rows[1][0].endswith("†")
    assert "10,000,000 does not fit" in section.takeaway
    assert [row["fits"] for row in section.data] == [True, False]


def test_each_device_needs_a_sample() -> None:
    several = jobs.changed(JOB, ["backend=ddp", "cluster.count=4"])
    with pytest.raises(InputError, match="batch 1 is less than the 4 devices"):
        predict_batches(ASKED, [several], [1, 8])


@pytest.mark.parametrize("change", ["training.accumulation=2", "training.zero_stage=1", "training.noise_scale_every=5"])
def test_gradient_options_are_refused(change: str) -> None:
    with pytest.raises(JobError, match="mode is inference, which has no gradients"):
        jobs.changed(JOB, [change])


# -- figures from other devices ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "seconds"),
    [
        ("64/s", 1.0),
        ("640 images/s", 0.1),
        ("1,280samples/s", 0.05),
        ("640 img/sec", 0.1),
        ("640images/sec", 0.1),
        ("640/sec", 0.1),
        ("78ms", 0.078),
        ("2 s", 2.0),
        ("500us", 0.0005),
    ],
)
def test_figure_is_carried_like_a_record(figure: str, seconds: float) -> None:
    there = jobs.changed(TRAINING_JOB, ["cluster.device=rtx3090"])
    step = predict_step(TRAINED, setting_of(there))
    shown = of_figure(TRAINED, f"rtx3090={figure}")(TRAINING_JOB)
    assert shown.ratio == pytest.approx(seconds / step.seconds)
    assert shown.sigma == step.sigma_log


def test_figure_of_several_devices_is_their_total() -> None:
    there = jobs.changed(TRAINING_JOB, ["cluster.device=v100", "cluster.count=4", "backend=ddp"])
    step = predict_step(TRAINED, setting_of(there)).seconds
    assert of_figure(TRAINED, f"4xv100={64 / step}/s")(TRAINING_JOB).ratio == pytest.approx(1.0)


def test_figure_ignores_the_input_rate_of_the_job() -> None:
    """The job's input rate belongs to another machine."""
    slow = jobs.changed(TRAINING_JOB, ["cluster.input_samples_per_s=10"])
    for place in ("rtx3090", "v100"):
        assert of_figure(TRAINED, f"{place}=640/s")(slow) == of_figure(TRAINED, f"{place}=640/s")(TRAINING_JOB)


@pytest.mark.parametrize("place", ["v100", "4xv100"])
def test_impossible_figure_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    TRAINED.save("net.json.gz")
    count = 4 if place.startswith("4x") else 1
    least_s = limit_of(TRAINED, 64 // count, catalog.device("v100"), "fp32").least_s
    line = ["predict", "resnet20", "--trace", "net.json.gz", "--on", "v100", "--batch", "64", "--measured-on"]
    assert main([*line, f"{place}={0.999 * 64 / least_s}/s"]) == 0
    capsys.readouterr()
    assert main([*line, f"{place}={1.001 * 64 / least_s}/s"]) == 2
    error = capsys.readouterr().err
    assert f"at most {64 / least_s:,.0f} samples/s are possible" in error
    assert f"{count} × v100 in fp32" in error


def test_tokens_per_second_use_the_sequence_length() -> None:
    options = {"layers": 1, "width": 32, "heads": 2}
    trace = trace_network("gpt2-small", options, input_shape=(16,), num_classes=100)
    job = jobs.from_dict({"network": {"name": "gpt2-small", "options": options},
                          "data": {"name": "tokens", "shape": [16], "classes": 100}, "cluster": {"device": "v100"}})  # fmt: skip
    assert of_figure(trace, "t4=1600 tokens/s")(job).ratio == pytest.approx(of_figure(trace, "t4=100/s")(job).ratio)
    with pytest.raises(InputError, match="takes no tokens"):
        of_figure(TRAINED, "t4=1600 tokens/s")(TRAINING_JOB)


@pytest.mark.parametrize("text", ["rtx3090=fast", "rtx3090=0/s", "rtx3090=", "rtx3090=12", "0xv100=1/s", "=12/s"])
def test_invalid_figures(text: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        of_figure(TRAINED, text)


# -- the command line ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    ASKED.save("net.json.gz")
    return "net.json.gz"


def test_short_form_evaluates_each_batch(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["predict", "resnet20", "--trace", saved, "--on", "v100", "--inference", "--json"]
    assert main([*line, "--batch", "1,8"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert [record["job"]["training"]["batch"] for record in asked] == [1, 8]
    assert main(line) == 0
    usual = json.loads(capsys.readouterr().out)
    assert [record["job"]["training"]["batch"] for record in usual] == list(USUAL_BATCHES)
    assert usual[0]["quantities"]["latency_s"] == asked[0]["quantities"]["latency_s"]
    assert main([*line, "--batch", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["quantities"]["latency_s"] == asked[1]["quantities"]["latency_s"]


@pytest.mark.parametrize("asked", [["--batch", "1,8"], []])
def test_figure_needs_a_single_batch(saved: str, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = ["predict", "resnet20", "--trace", saved, "--on", "v100", "--inference", "--measured-on", "rtx3090=1234/s"]
    assert main([*line, *asked]) == 2
    error = capsys.readouterr().err
    listed = ", ".join(map(str, [1, 8] if asked else USUAL_BATCHES))
    assert f"rtx3090=1234/s was measured at one batch, but you gave {listed}" in error
    assert "give the measured batch, such as --batch" in error
    assert main([*line, "--batch", "8"]) == 0


def test_several_batches_require_inference(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "resnet20", "--on", "v100", "--batch", "1,8"]) == 2
    assert "in inference" in capsys.readouterr().err
    assert main(["train", "resnet20", "--batch", "1,8"]) == 2
    assert "give one number here" in capsys.readouterr().err


def test_training_trace_is_refused_for_inference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TRAINED.save(tmp_path / "net.json.gz")
    assert main(["predict", "resnet20", "--trace", str(tmp_path / "net.json.gz"), "--on", "v100", "--inference"]) != 0
    assert "mode=inference" in capsys.readouterr().err


def test_python_and_command_agree() -> None:
    answer = chronograd.predict(ASKED, on="v100", batch=[1, 8])
    assert [record.value("latency_s") for record in answer.records.values()] == pytest.approx(
        [record.value("latency_s") for record in predict_batches(ASKED, [JOB], [1, 8]).records.values()], rel=1e-6
    )
    with pytest.raises(InputError, match="in inference"):
        chronograd.predict(TRAINED, on="v100", batch=[1, 8])
