"""The page of a complete loop: its sentence on the prediction depends on the state of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.count.layers import summary
from chronograd.record import Quantity, Record
from chronograd.report.loop import Loop, prediction_words
from chronograd.trace import Trace


def steps(kind: str, seconds: float) -> Record:
    record = Record(kind=kind, title="a step")
    record.put("step_time_s", Quantity(value=seconds, unit="s", source="a test"))
    return record


@pytest.fixture
def loop() -> Loop:
    """Return one process predicted 10 % too fast, and two processes 50 % too fast."""
    job = jobs.load(Path("examples/digits.yaml"))
    predicted = {1: steps("predicted", 0.009), 2: steps("predicted", 0.01)}
    measured = {1: steps("measured", 0.010), 2: steps("measured", 0.02)}
    return Loop(job, summary(Trace.load("tests/golden/inputs/net.json.gz")), predicted=predicted, measured=measured)


def test_quiet_machine_shows_only_the_error(loop: Loop) -> None:
    assert prediction_words(loop, 1) == "step predicted 9 ms, measured 10 ms: prediction off by −10.0 %"


def test_changed_machine_speed_is_reported(loop: Loop) -> None:
    loop.pace = {1: 1.2}
    words = prediction_words(loop, 1)
    assert "1.20 times as slow as at calibration" in words
    assert words.endswith("without which it is +8.0 %")


def test_busy_host_makes_the_comparison_unreliable(loop: Loop) -> None:
    loop.pace, loop.taken = {1: 1.2, 2: 1.2}, {1: 0.02, 2: 0.29}
    words = prediction_words(loop, 2)
    assert (
        "−50.0 %, which means nothing here: the host of this virtual machine took 29 % of the processors' time" in words
    )
    assert "calibrated" not in words
    assert "says nothing" not in prediction_words(loop, 1)
