"""A network timed on one device carries its own residual to another."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.predict.answer import carried_factor
from chronograd.predict.prediction import predict
from chronograd.record import Quantity, Record
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
    """A record as if the step had taken `ratio` times what is predicted."""
    record = predict(trace, job)
    step = Quantity(value=ratio * record.value("step_time_s"), unit="s", source="a clock")
    return record.model_copy(update={"kind": "measured", "quantities": {**record.quantities, "step_time_s": step}})


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.7])
def test_the_factor_is_the_ratio_to_the_power_of_four_fifths(trace: Trace, job: Job, ratio: float) -> None:
    assert carried_factor(trace, measured(trace, job, ratio)) == pytest.approx(ratio**0.8, rel=1e-12)


def test_it_corrects_the_device_s_own_work_and_narrows_the_interval(trace: Trace, job: Job) -> None:
    elsewhere = jobs.changed(job, ["cluster.device=p100"])
    plain = predict(trace, elsewhere)
    carried = predict(trace, elsewhere, factor=1.5)
    for part in OWN_PARTS:
        assert carried.value(part) == pytest.approx(1.5 * plain.value(part))
    for part in ("input_s", "transfer_s", "communication_exposed_s"):
        assert carried.value(part) == plain.value(part)
    before, after = plain["step_time_s"], carried["step_time_s"]
    assert before.low is not None
    assert before.high is not None
    assert after.low is not None
    assert after.high is not None
    assert math.log(after.high / after.low) == pytest.approx(0.7 * math.log(before.high / before.low))
    assert any("corrected by 1.50" in note for note in carried.notes)


def test_what_is_no_measured_step_of_this_network_is_refused(trace: Trace, job: Job) -> None:
    with pytest.raises(InputError, match="is no measured step"):
        carried_factor(trace, predict(trace, job))
    found = measured(trace, job, 1.0)
    lost = found.model_copy(update={"quantities": {"step_time_s": Quantity.missing("s", "the clock stopped")}})
    with pytest.raises(InputError, match="is no measured step"):
        carried_factor(trace, lost)
    other = Record.model_validate(
        {**found.model_dump(), "job": {**found.job.model_dump(), "network": {"name": "resnet56"}}}
    )
    with pytest.raises(InputError, match="of resnet56, and the job's network is resnet20"):
        carried_factor(trace, other)


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
    assert carried["forward_s"]["value"] == pytest.approx(1.3**0.8 * plain["forward_s"]["value"])
    widths = [q["step_time_s"]["high"] / q["step_time_s"]["low"] for q in (plain, carried)]
    assert widths[1] == pytest.approx(widths[0] ** 0.7)
    assert any("another device" in note for note in record["notes"])
    for wrong, message in (
        (["--measured-on", "predicted.json"], "is no measured step"),
        (["--measured-on", "nothing.json"], "nothing.json"),
        (["--measured-on", "here.json", "--model", "paleo"], "leave --model paleo out"),
    ):
        assert main([*arguments, *wrong]) == 2
        assert message in capsys.readouterr().err
