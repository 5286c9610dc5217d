"""Corrections carried from a measured device to another device, for the same network."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.predict.answer import predict_jobs, shown_by, shown_of
from chronograd.predict.carrying import Corrected, Shown
from chronograd.predict.prediction import StepModel, predict
from chronograd.record import Z80, Quantity, Record
from chronograd.trace import Trace

JOB = """
network: {name: resnet20}
data: {name: synthetic, shape: [3, 32, 32], classes: 10}
training: {recipe: sgd, batch: 128}
cluster: {device: v100}
"""
OWN_PARTS = ("forward_s", "backward_s", "update_s")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_network("resnet20")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "job.yaml").write_text(JOB)
    return jobs.load(tmp_path / "job.yaml")


def measured(trace: Trace, job: Job, ratio: float) -> Record:
    """Return a record whose step took `ratio` times the prediction."""
    record = predict(trace, job)
    step = Quantity(value=ratio * record.value("step_time_s"), unit="s", source="a clock")
    return record.model_copy(update={"kind": "measured", "quantities": {**record.quantities, "step_time_s": step}})


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.7])
def test_record_shows_prediction_error_and_uncertainty(trace: Trace, job: Job, ratio: float) -> None:
    shown = shown_by(trace, measured(trace, job, ratio))
    assert shown.ratio == pytest.approx(ratio, rel=1e-12)
    assert shown.sigma == predict(trace, job).provenance.sigma_log


def test_carried_correction_uses_the_shared_variance() -> None:
    """Conditional normal: expect shared / σa² of its logarithm; σb² - shared² / σa² remains."""
    shared = 0.8 * 0.05**2
    factor, sigma = Shown(2.0, 0.05).onto(0.2)
    assert factor == pytest.approx(2 ** (shared / 0.05**2))
    assert sigma == pytest.approx(math.sqrt(0.2**2 - (shared / 0.05) ** 2))
    # A data-sheet device mostly has its own error: almost nothing is carried, and nothing is narrowed.
    factor, sigma = Shown(2.0, 0.45).onto(0.2)
    assert 1 < factor < 1.02
    assert 0.199 < sigma < 0.2
    assert Shown(2.0, 0.1).onto(0.0) == (1.0, 0.0)


def test_same_device_carries_its_own_error(trace: Trace, job: Job) -> None:
    """Halve the batch: nearly all of the error is corrected and the interval narrows; on another device hardly any."""
    shown = shown_by(trace, measured(trace, job, 1.7))
    less = jobs.changed(job, ["training.batch=64"])

    def factor_and_width(*changes: str) -> tuple[float, float]:
        asked = jobs.changed(less, list(changes))
        plain, carried = predict(trace, asked), predict(trace, asked, shown=shown)
        sigmas = [record.provenance.sigma_log or 0.0 for record in (plain, carried)]
        return carried.value("forward_s") / plain.value("forward_s"), sigmas[1] / sigmas[0]

    factor, width = factor_and_width()
    assert 1.3 < factor <= 1.7**0.8 + 1e-9
    assert 0.6 - 1e-9 <= width < 0.85
    for change in ("cluster.device=p100", "training.precision=fp16"):
        factor, width = factor_and_width(change)
        assert 1 < factor < 1.15
        assert 0.95 < width <= 1


def test_uncertain_devices_teach_less_about_a_network() -> None:
    sigmas = (0.01, 0.03, 0.08, 0.1, 0.2, 0.45)
    for here in sigmas:
        remain = [Shown(1.3, there).onto(here)[1] for there in sigmas if there >= 0.08]
        assert remain == sorted(remain)
        assert max(remain) <= here


def test_correction_changes_device_time_and_narrows_interval(trace: Trace, job: Job) -> None:
    elsewhere = jobs.changed(job, ["cluster.device=p100"])
    plain, shown = predict(trace, elsewhere), Shown(1.5, 0.06)
    carried = predict(trace, elsewhere, shown=shown)
    factor, sigma = shown.onto(plain.provenance.sigma_log or 0.0)
    for part in OWN_PARTS:
        assert carried.value(part) == pytest.approx(factor * plain.value(part))
    for part in ("input_s", "transfer_s", "communication_exposed_s"):
        assert carried.value(part) == plain.value(part)
    before, after = plain["step_time_s"], carried["step_time_s"]
    assert before.low is not None
    assert before.high is not None
    assert after.low is not None
    assert after.high is not None
    assert math.log(after.high / after.low) == pytest.approx(2 * Z80 * sigma)
    assert after.high / after.low < before.high / before.low
    assert any(f"corrected by {factor:.2f}" in note for note in carried.notes)


def test_longer_work_hides_input_and_exchange(trace: Trace, job: Job) -> None:
    """A step takes max(its own time, samples / rate), so the wait is the rest after the corrected work."""
    plain = predict(trace, job)
    own = sum(plain.value(part) for part in OWN_PARTS)
    rest = plain.value("step_time_s") - own
    for factor in (0.5, 1.5, 3.0):
        batch_s = 2 * plain.value("step_time_s")
        slow = jobs.changed(job, [f"cluster.input_samples_per_s={128 / batch_s}"])
        carried = predict(trace, slow, shown=Corrected(factor))
        expected = max(factor * own + rest, batch_s)
        assert carried.value("step_time_s") == pytest.approx(expected)
        assert carried.value("input_stall_s") == pytest.approx(expected - factor * own - rest)
    far = [
        "cluster.per_node=1",
        "cluster.link=ethernet-1g",
        "communication.bucket_bytes=100000",
        "cluster.step_sigma_log=0",
    ]
    eight = jobs.changed(job, ["cluster.count=8", "backend=ddp", "training.batch=1024", *far])
    short, long = (predict(trace, eight, shown=Corrected(factor)) for factor in (0.1, 10.0))
    assert long.value("communication_exposed_s") < short.value("communication_exposed_s")


def test_input_rate_uses_the_corrected_step(trace: Trace, job: Job) -> None:
    seen: list[float] = []

    def paced(job: Job, step_s: float) -> tuple[Job, str]:
        seen.append(step_s)
        return jobs.changed(job, [f"cluster.input_samples_per_s={128 / (2 * step_s)}"]), "limited by its input"

    plain = predict(trace, job, shown=Corrected(1.5)).value("step_time_s")
    record = predict(trace, job, StepModel(paced=paced), shown=Corrected(1.5))
    assert seen == [plain]
    assert record.value("step_time_s") == pytest.approx(2 * plain)
    assert record.notes[-1] == "limited by its input"


def test_invalid_measured_record_is_refused(trace: Trace, job: Job) -> None:
    with pytest.raises(InputError, match="is not a measured step"):
        shown_by(trace, predict(trace, job))
    found = measured(trace, job, 1.0)
    lost = found.model_copy(update={"quantities": {"step_time_s": Quantity.missing("s", "the clock stopped")}})
    with pytest.raises(InputError, match="is not a measured step"):
        shown_by(trace, lost)
    other = Record.model_validate(
        {**found.model_dump(), "job": {**found.job.model_dump(), "network": {"name": "resnet56"}}}
    )
    with pytest.raises(InputError, match="of resnet56, and the job's network is resnet20"):
        shown_by(trace, other)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            ["data.shape=[3, 64, 64]"],
            r"samples of shape \(3, 64, 64\), and the trace of samples of shape \(3, 32, 32\)",
        ),
        (["mode=inference"], "mode inference, and the trace of mode training"),
        (["training.channels_last=true"], "channels_last True, and the trace of channels_last False"),
    ],
)
def test_record_of_other_work_needs_its_own_trace(trace: Trace, job: Job, changes: list[str], what: str) -> None:
    other = jobs.changed(job, changes)
    own = trace_job(other)
    record = measured(own, other, 1.3)
    with pytest.raises(InputError, match=what):
        shown_by(trace, record)
    assert shown_by(trace, record, trace_job).ratio == pytest.approx(1.3, rel=1e-12)


def test_other_options_are_another_network(trace: Trace, job: Job) -> None:
    record = measured(trace, jobs.changed(job, ["network.options={width: 2}"]), 1.3)
    with pytest.raises(InputError, match=r"resnet20 with network.options \{'width': 2\}, and the job has \{\}"):
        predict_jobs(trace, [job], shown=shown_of(trace, record))


def test_small_images_correct_large_ones(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record equals its prediction, with a quarter of the pixels or in inference: no correction."""
    monkeypatch.chdir(tmp_path)
    for name, change in (("small", "data.shape=[3, 16, 16]"), ("forward", "mode=inference")):
        other = jobs.changed(job, [change])
        measured(trace_job(other), other, 1.0).save(f"{name}.json")
        assert main(["predict", "job.yaml", "--measured-on", f"{name}.json", "--json"]) == 0
        (note,) = [n for n in json.loads(capsys.readouterr().out)["notes"] if n.startswith("times are corrected")]
        assert "corrected by 1.00: in the measurement the network took 1.00 times" in note
    trace_network("resnet20").save("net.json.gz")
    assert main(["predict", "job.yaml", "--trace", "net.json.gz", "--measured-on", "small.json"]) == 2
    assert "samples of shape (3, 32, 32); the job has (3, 16, 16)" in capsys.readouterr().err


def test_predict_measured_on(
    trace: Trace, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace.save("net.json.gz")
    measured(trace, job, 1.3).save("here.json")
    predict(trace, job).save("predicted.json")
    arguments = ["predict", "job.yaml", "--trace", "net.json.gz", "--on", "p100"]
    assert main([*arguments, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["quantities"]
    assert main([*arguments, "--measured-on", "here.json", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    carried = record["quantities"]
    elsewhere = jobs.changed(job, ["cluster.device=p100"])
    factor, sigma = shown_by(trace, measured(trace, job, 1.3)).onto(
        predict(trace, elsewhere).provenance.sigma_log or 0.0
    )
    assert carried["forward_s"]["value"] == pytest.approx(factor * plain["forward_s"]["value"])
    step = carried["step_time_s"]
    assert math.log(step["high"] / step["low"]) == pytest.approx(2 * Z80 * sigma)
    assert any("in the measurement" in note for note in record["notes"])
    for wrong, message in (
        (["--measured-on", "predicted.json"], "is not a measured step"),
        (["--measured-on", "nothing.json"], "nothing.json"),
        (["--measured-on", "here.json", "--model", "paleo"], "leave --model paleo out"),
    ):
        assert main([*arguments, *wrong]) == 2
        assert message in capsys.readouterr().err
