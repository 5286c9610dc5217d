"""The answers of `predict` and `simulate`, called from Python."""

from __future__ import annotations

import math

import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.figure import Lanes, Lines
from chronograd.predict.answer import on_devices, predict_jobs, shown_of
from chronograd.predict.prediction import predict
from chronograd.predict.speed import OPTIMUS_RESNET50
from chronograd.quantities import record_section
from chronograd.record import Quantity, Record
from chronograd.simulate.simulations import learners, speed_answer, staleness_answer
from chronograd.simulate.staleness import Duration, of_pushes
from chronograd.units import GIB, seconds

TRACE = trace_network("lenet5")
JOB = jobs.from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": {"device": "v100"}})


def test_record_starts_with_its_step_time() -> None:
    answer = predict_jobs(TRACE, [JOB], samples=1000)
    (section,) = answer.sections
    step = predict(TRACE, JOB)["step_time_s"]
    assert step.value is not None
    assert section.takeaway.startswith(f"Predicted: step time {seconds(step.value)} (80 % interval ")
    assert section.table is not None
    assert section.table.rows[0][1] == seconds(step.value)
    assert answer.as_data()["quantities"]["step_time_s"]["value"] == step.value


def test_two_devices_are_columns() -> None:
    answer = predict_jobs(TRACE, on_devices(JOB, ["2xv100", "h100"]), samples=1000)
    assert [record["cluster"]["count"] for record in answer.as_data()] == [2, 1]
    (section,) = answer.sections
    assert section.table is not None
    assert section.table.columns == ["quantity", "2 × v100", "h100"]
    steps = [seconds(record.value("step_time_s")) for record in answer.records.values()]
    assert section.table.rows[0] == ["step time", *steps]
    assert on_devices(JOB, []) == [JOB]


def test_place_without_a_number_keeps_the_count_of_the_job() -> None:
    four = jobs.changed(JOB, ["cluster.count=4", "backend=data_parallel"])
    found = on_devices(four, ["t4", "8xt4", "1xt4"])
    assert [(one.cluster.device, one.cluster.count, one.backend) for one in found] == [
        ("t4", 4, "data_parallel"), ("t4", 8, "data_parallel"), ("t4", 1, "data_parallel"),
    ]  # fmt: skip
    (four,) = on_devices(jobs.changed(JOB, ["cluster.count=4"]), ["t4"], ["cluster.count=4"])
    assert (four.cluster.count, four.backend) == (4, "ddp")


def test_many_devices_are_rows() -> None:
    answer = predict_jobs(TRACE, on_devices(JOB, ["v100", "t4", "h100", "a100-80"]), samples=1000)
    table = answer.sections[0].table
    assert table is not None
    assert [row[0] for row in table.rows] == ["v100", "t4", "h100", "a100-80"]
    assert [row[1] for row in table.rows] == [seconds(r.value("step_time_s")) for r in answer.records.values()]


def test_insufficient_memory_is_reported_first_and_once() -> None:
    huge = jobs.changed(JOB, ["training.batch=400000"])
    both = predict_jobs(TRACE, on_devices(huge, ["p4", "h200"]))
    needed = both.as_data()[0]["quantities"]["memory_peak_bytes"]["value"] / GIB
    assert 8 < needed < 100
    assert both.sections[0].takeaway.startswith(f"p4 does not fit: a rank needs {needed:.3g} GiB plus ")
    assert "p4 has 7.5 GiB. h200 is the fastest" in both.sections[0].takeaway
    assert not both.notes
    alone = predict_jobs(TRACE, on_devices(huge, ["p4"]))
    assert alone.sections[0].takeaway.startswith(f"It does not fit: a rank needs {needed:.3g} GiB plus ")


def test_prediction_has_no_empty_columns() -> None:
    table = predict_jobs(TRACE, [JOB], samples=1000).sections[0].table
    assert table is not None
    assert table.columns == ["quantity", "value", "80 % interval", "source"]
    assert table.details == [3]
    assert len(table.rows) > table.most == 8
    assert any(note.startswith("price: ") for note in table.notes)


def test_rounding_gives_no_wait() -> None:
    """Ranks with almost no variation wait for zero seconds, never less."""
    cluster = {"device": "v100", "count": 2, "per_node": 1, "link": "ethernet-1g", "step_sigma_log": 1e-14}
    for batch in (64, 512, 2048):
        data = JOB.model_dump() | {"training": {"batch": batch}, "backend": "ddp", "cluster": cluster}
        assert predict(TRACE, jobs.from_dict(data))["straggler_wait_s"].value == 0


def test_layers_have_a_roofline_figure() -> None:
    answer = predict_jobs(TRACE, [JOB], with_layers=True)
    (section,) = answer.sections
    assert section.figure is not None
    won = [row["name"] for row in answer.as_data()["tables"]["most_to_win"]]
    assert all(name in section.takeaway for name in won)


def test_measurement_corrects_other_devices() -> None:
    """The step took twice the prediction. With a spread of 0.08, another device's forward gets the network's share of
    it.
    """
    seen = predict(TRACE, JOB).model_copy(update={"kind": "measured"})
    seen.put("step_time_s", Quantity(value=2 * seen.value("step_time_s"), unit="s"))
    elsewhere = on_devices(JOB, ["h100"])
    forward_s = [
        predict_jobs(TRACE, elsewhere, shown=shown_of(TRACE, record)).as_data()["quantities"]["forward_s"]["value"]
        for record in (None, seen)
    ]
    spread = float(predict(TRACE, JOB).provenance.sigma_log or 0)
    assert forward_s[1] / forward_s[0] == pytest.approx(2 ** (0.8 * 0.08**2 / spread**2))
    assert forward_s[1] > forward_s[0]


def test_record_without_quantities_gives_the_reason() -> None:
    record = Record(kind="measured", title="cut short")
    record.put("step_time_s", Quantity.missing("s", "stopped in the warm-up"))
    assert record_section(record).takeaway == "None of the usual quantities is known (stopped in the warm-up)."


def test_staleness_of_two_learners_with_figure() -> None:
    """Pushes at 1, 2, 3, 4 and at 2.5, 5 s give staleness 0, 0, 2, 1, 0, 2."""
    answer = staleness_answer(of_pushes([[1, 2, 3, 4], [2.5, 5]]), 2)
    gradients, distribution = answer.sections
    assert gradients.takeaway.startswith("The mean staleness is 0.8333, 1.2 updates per second")
    assert distribution.takeaway == "The most frequent staleness is 0 (50.0 %), the largest 2."
    assert gradients.figure is not None
    assert isinstance(gradients.figure.panels[0], Lanes)
    assert [push.staleness for push in gradients.figure.panels[0].pushes] == [0, 0, 2, 1, 0, 2]
    waiting = staleness_answer(of_pushes([[1.0]], gradients_per_update=2), 1)
    assert waiting.sections[0].takeaway.startswith("No update was made")
    assert waiting.as_data()["waiting"] == 1


def test_durations_per_learner_or_common() -> None:
    one, two, none = (Duration("fixed", (value,)) for value in (1.0, 2.0, 0.0))
    assert [(a.compute, a.pull, a.push) for a in learners(2, [one], push=[one, two])] == [
        (one, none, one),
        (one, none, two),
    ]
    with pytest.raises(InputError, match="3 times --pull for 2 learners"):
        learners(2, [one], [one] * 3)


def test_best_worker_count_for_published_coefficients() -> None:
    """Optimus' ResNet-50 with 4 servers: a0·M = 40.8 and a2/p = 1.23, so 5.76 workers give the shortest step."""
    answer = speed_answer(OPTIMUS_RESNET50, 4, range(1, 21), steps=100, with_all_reduce=True)
    servers, shared = answer.sections
    assert "is 6: " in servers.takeaway
    assert f"exactly {math.sqrt(40.8 / 1.23):.2f}" in servers.takeaway
    assert servers.figure is not None
    lines = servers.figure.panels[0]
    assert isinstance(lines, Lines)
    assert max(zip(lines.series[0].y, lines.series[0].x, strict=True))[1] == 6  # type: ignore[type-var]
    assert lines.marks[0].at == pytest.approx(5.76, abs=0.005)
    assert shared.title == "all-reduce, no servers"
    assert answer.as_data()["all_reduce"]["best_workers"] == 20
