"""Takeaways follow from the numbers, also for bad predictions and missing data."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from chronograd.compare.agreement import accuracy_of_prediction_section
from chronograd.compare.ranks import communication_section
from chronograd.compare.steps import parts_section, scaling_section
from chronograd.count.answer import counts_section
from chronograd.count.layers import CountedLayer, summary
from chronograd.figure import Bars, Figure, Lines, Ranges
from chronograd.forecast.forecasting import Forecast, forecast
from chronograd.forecast.learning import training_section
from chronograd.forecast.learning_curves import LearningCurve
from chronograd.plan.elsewhere import plan_section
from chronograd.predict.work import operators_section
from chronograd.record import Curve, Quantity, Record
from chronograd.report.runs import generic_page
from chronograd.trace import Trace


def forecast_of(training: Record) -> Forecast:
    """Return a forecast of the loss per step from the first 20 of 100 steps."""
    steps, losses = (np.array(column) for column in training.curves["loss"].columns.values())
    return forecast(LearningCurve("run", steps, losses, "loss", "step"), 0.2, "inverse")


def test_parts_report_error_and_worst_part(predicted, measured):
    section = parts_section(predicted, measured)
    assert section.takeaway == (
        "The predicted step time is 25 % too high with 1 process (80 ms measured, outside its interval) and 2.0 times "
        "too low with 2 processes (100 ms measured, outside its interval); the largest error is in backward with "
        "2 processes: predicted 30 ms, measured 60 ms."
    )
    bars = section.figure.panels[0]
    assert isinstance(bars, Bars)
    assert bars.x_label == "time per step, ms"
    assert [b.label for b in bars.bars] == [
        "1 process, measured",
        "1 process, predicted",
        "2 processes, measured",
        "2 processes, predicted",
    ]
    assert bars.bars[0].segments == {"forward": 30.0, "backward": 50.0}
    whole = section.table.rows[0]
    assert list(whole) == ["1", "whole step", "100 ms", "90 … 110 ms", "80 ms", "72 … 88 ms", "20", "+25.0 %"]


def test_parts_of_an_unsplit_step(measured):
    for name in ("forward_s", "backward_s"):
        measured[1].put(name, Quantity.missing("s", "the loop is not ours"))
    section = parts_section({}, {1: measured[1]})
    assert section.figure.panels[0].bars[0].segments == {"not split": 80.0}
    assert section.takeaway == (
        "A step with 1 process is measured at 80 ms, not split into parts; there is no prediction to compare with."
    )
    assert "1 process, measured: no forward time per step: the loop is not ours" in section.table.notes


def test_no_parts():
    section = parts_section({}, {})
    assert section.takeaway == "No step time is known, neither predicted nor measured."
    assert section.figure is None


def test_negative_scaling(predicted, measured):
    section = scaling_section(predicted, measured)
    assert section.takeaway == (
        "2 processes are slower than one: they give only 0.80 times the throughput of one (scaling efficiency 40 %); "
        "the prediction was 2.00 times."
    )
    times = section.figure.panels[0]
    assert isinstance(times, Lines)
    assert (times.x_label, times.y_label) == ("processes", "step time, ms")
    roles = {s.role: (list(s.y), list(s.low)) for s in times.series}
    assert roles == {"predicted": ([100, 50], [90, 45]), "measured": ([80, 100], [72, 90])}
    assert "stays at 64" in section.intro


def test_good_and_poor_scaling(step, measured):
    good = scaling_section({}, {1: measured[1], 2: step("measured", 2, 0.02, 0.03)})
    assert good.takeaway == "2 processes give 1.60 times the throughput of one (scaling efficiency 80 %)."
    poor = scaling_section({}, {1: measured[1], 2: step("measured", 2, 0.03, 0.046)})
    assert poor.takeaway.startswith("2 processes help little: they give 1.05 times")
    fair = scaling_section({}, {1: measured[1], 2: step("measured", 2, 0.03, 0.04)})
    assert fair.takeaway.startswith("2 processes give 1.14 times")


def test_scaling_without_measurement_or_base(predicted):
    section = scaling_section(predicted, {})
    assert section.takeaway == (
        "2 processes should give 2.00 times the throughput of one (scaling efficiency 100 %); "
        "there is no measurement to confirm it."
    )
    alone = scaling_section({2: predicted[2]}, {})
    assert alone.takeaway.startswith("The speed-up of 2 processes is unknown")
    assert scaling_section({1: predicted[1]}, {}).takeaway.startswith("There are only results with one process")


def test_agreement_counts_hits_and_names_the_worst(predicted, measured):
    section = accuracy_of_prediction_section(predicted, measured)
    assert section.takeaway == (
        "0 of 2 measurements fall inside the predicted 80 % interval; half of the predictions are within 38 %, and "
        "the worst, step time with 2 processes, is 2.0 times too low."
    )
    ranges = section.figure.panels[0]
    assert isinstance(ranges, Ranges)
    assert [round(r.value, 6) for r in ranges.ranges] == [1.25, 0.5]
    assert section.table is not None
    assert list(section.table.notes) == ["throughput follow from the step time, so the table leaves them out"]
    untested = accuracy_of_prediction_section(predicted, {})
    assert "we cannot check the prediction" in untested.takeaway
    assert untested.figure is None


def test_single_epoch_is_singular(training):
    record = training([0.5])
    assert "after 1 epoch and" in training_section(record, None).takeaway


def test_reached_target_with_forecast(training):
    """The loss is 1 / step, which Optimus' model fits exactly."""
    record = training([0.5, 0.8, 0.9, 0.96], 40.0)
    section = training_section(record, forecast_of(record))
    assert section.takeaway == (
        "Training ended at 96.0 % test accuracy after 4 epochs and 40 s, at or above the target of 95.0 %; "
        "the loss forecast at step 20 was off by 0.0 % of the largest loss over 80 later "
        "steps; 80 of them lie in its 80 % band."
    )
    loss, accuracy = section.figure.panels
    assert [s.role for s in loss.series] == ["measured", "predicted"]
    assert loss.marks[0].at == 20
    assert loss.series[1].x[0] == 21
    assert loss.series[1].y == pytest.approx([1 / k for k in range(21, 101)], rel=1e-3)
    assert (accuracy.x_label, accuracy.y_label) == ("training time, s", "test accuracy, %")
    assert accuracy.marks[0].at == 95


def test_missed_target(training):
    section = training_section(training([0.5, 0.7]))
    assert section.takeaway == (
        "Training missed its target of 95.0 %: it ended at 70.0 % test accuracy after 2 epochs and 20 s; "
        "the loss was not forecast."
    )
    assert "training: no training time until the target accuracy: the target was not reached" in section.table.notes


def test_training_without_accuracy_or_curves():
    record = Record(kind="measured", title="t", curves={"loss": Curve(columns={"step": [1.0], "loss": [None]})})
    section = training_section(record)
    assert "The test accuracy is not known" in section.takeaway


def test_epoch_forecast_is_drawn_at_its_epochs(training):
    """Fit three of four epochs of 25 steps; the mean loss of the fourth belongs to its middle."""
    record = training([0.5, 0.8, 0.9, 0.96], 40.0)
    record.curves["training"].columns["step"] = [25.0, 50.0, 75.0, 100.0]
    by_epoch = LearningCurve("run", np.arange(1.0, 5.0), np.array([0.9, 0.5, 0.4, 0.35]), "loss", "epoch")
    of_run = forecast(by_epoch, 0.75, "last")
    loss = training_section(record, of_run).figure.panels[0]
    assert (loss.marks[0].at, loss.series[1].x) == (75, [87.5])
    assert loss.series[1].y == pytest.approx([0.4])
    # The last value 0.4 predicts 0.35: an error of 0.05 of 0.9.
    assert of_run.error == pytest.approx(0.05 / 0.9)
    assert (
        "forecast at epoch 3 was off by 5.6 % of the largest loss over 1 later epoch"
        in training_section(record, of_run).takeaway
    )
    whole = training_section(record, forecast(by_epoch, 1.0, "last"))
    assert "could not be compared with later losses" in whole.takeaway


def test_plan_names_cheapest_fastest_and_useless_devices(planned):
    records = [planned("k80", 1, 3600, 0.5), planned("k80", 2, 3500, 1.0), planned("h100", 1, 360, 0.6)]
    section = plan_section([*records, planned("h100", 2, 200, 0.7)])
    assert section.takeaway == (
        "1×k80 is predicted cheapest at $0.50 and 1 h 00 min; 2×h100 is predicted fastest at 3 min 20 s, 18 times the "
        "speed for 1.4 times the money ($0.70); more than 1 k80 would be no faster."
    )
    assert [list(row) for row in section.table.rows] == [
        ["k80", "1 h 00 min\n$0.50", "58 min 20 s\n$1.00"],
        ["h100", "6 min 00 s\n$0.60", "3 min 20 s\n$0.70"],
    ]
    for panel in section.figure.panels:
        assert panel.log_x
        assert panel.log_y


def test_plan_with_missing_values(planned):
    section = plan_section([planned("k80", 1, None, None), planned("v100", 1, 60, None)])
    assert (
        section.takeaway == "1×v100 is predicted fastest at 1 min 00 s; no cluster has a price, so costs are not known."
    )
    assert [list(row) for row in section.table.rows] == [["k80", "–\n–"], ["v100", "1 min 00 s\n–"]]
    assert "1×k80: no training time: does not fit" in section.table.notes
    nothing = plan_section([planned("k80", 1, None, None)])
    assert nothing.takeaway == "No training time could be predicted (does not fit)."
    assert nothing.figure is None


def test_operators(everything):
    section = operators_section(everything["predicted-1"])
    assert section.takeaway == (
        "3×3 convolution takes 60 % of the operators' time for 100 % of the FLOPs; "
        "operators without matrix work take 40 % of it."
    )
    assert [b.segments["time"] for b in section.figure.panels[0].bars] == [60.0, 40.0]
    assert "no time by operator kind" in operators_section(everything["measured-1"]).takeaway


def test_counts():
    layers = [
        CountedLayer("conv", 0, "Conv2d", "conv_3x3", [1, 4], 90, 90, 100, 400, 900, 1800, 0, 0),
        CountedLayer("fc", 0, "Linear", "gemm", [1, 10], 10, 10, 10, 40, 100, 200, 0, 0),
    ]
    counted = replace(
        summary(Trace.load("tests/golden/inputs/net.json.gz")),
        params=100, macs=1000, conv_share=0.9, flops_forward=2000, flops_backward=4000, uncounted={"fft": 2}, layers=layers,
    )  # fmt: skip
    section = counts_section(counted)
    assert section.takeaway == (
        "100 params need 1 k MACs forward for one sample, 90.0 % of them in layers of kind 3×3 convolution; "
        "backward takes 2.00 times the FLOPs of forward; not counted: fft."
    )
    assert section.figure.panels[0].bars[1].segments == {"3×3 convolution": 90.0, "GEMM": 10.0}
    assert ["operators not counted", "fft (2×)"] in [list(r) for r in section.table.rows]
    assert section.rows()[1]["macs"] == 100


def test_generic_page_selects_applicable_sections(everything):
    page = generic_page(everything)
    assert [s.title for s in page.sections] == [
        "Parts of a step",
        "More processes",
        "Accuracy of the prediction",
        "Which operators take the time",
        "Training",
        "Time and cost on other devices",
    ]
    assert page.title == "resnet20 on digits"
    assert ("global batch", "64") in page.asked
    assert [h.value for h in page.highlights] == ["96.0 %", "80 ms", "800 samples/s"]
    assert page.highlights[1].detail == "80 % interval 72 … 88 ms, n = 20, measured on 1×local"


def test_generic_page_separates_jobs_and_uses_the_newest(measured, step):
    other = step("measured", 1, 0.01, 0.01)
    other.job.network.name = "vgg16"
    old = step("measured", 1, 0.5, 0.5)
    old.created = "2025-01-01T00:00:00+00:00"
    page = generic_page({"new": measured[1], "old": old, "other": other})
    titles = ["resnet20 on digits: parts of a step", "vgg16 on digits: parts of a step"]
    assert [s.title for s in page.sections] == titles
    assert "measured at 80 ms" in page.sections[0].takeaway
    assert page.footer.endswith("is newer: old.")


def test_figure_json_round_trip(everything):
    for section in generic_page(everything).sections:
        again = TypeAdapter(Figure).validate_python(asdict(section.figure))
        assert again.rows() == section.figure.rows()


def test_computation_and_communication_bars_add_up():
    """Steps of 303 ms with 179 ms explained have 124 ms of other; parts longer than the step show both."""
    fields = {"scaling": "weak", "per_rank": 64, "low": None, "high": None, "communication_by_difference_s": None}
    rows = [
        {**fields, "kind": kind, "world": 2, "batch": 128, "step_time_s": step_s, "compute_s": 0.158,
         "communication_exposed_s": 0.0206, "exposed_low_s": None, "exposed_high_s": None, "bandwidth_utilisation": None,
         "speed_up": None, "efficiency": None, "throughput_samples_per_s": 1.0, "reason": "", "training_time_s": None,
         "cost_usd": None, "iteration_growth": None}
        for kind, step_s in (("measured", 0.303), ("predicted", 0.1))
    ]  # fmt: skip
    section = communication_section("Parts", rows)
    measured, predicted = section.figure.panels[0].bars
    assert measured.segments == {"computation": 158, "exposed communication": 20.6, "other": pytest.approx(124.4)}
    assert measured.note == "303 ms"
    assert predicted.note == "179 ms, the step 100 ms"


def test_jobs_of_one_network_are_labelled_by_differences():
    def trained(batch: int, accuracy: float) -> Record:
        job = {"network": {"name": "small"}, "data": {"name": "digits"}, "training": {"batch": batch, "epochs": 2}}
        record = Record(kind="measured", title="t", job=job)
        record.put("test_accuracy", Quantity(value=accuracy, unit="1", n=360))
        record.put("epochs", Quantity(value=2, unit="count"))
        columns = {"epoch": [1, 2], "step": [10, 20], "seconds": [1, 2], "test_accuracy": [0.5, accuracy]}
        record.curves["training"] = Curve(columns=columns, units=dict.fromkeys(columns, ""))
        return record

    page = generic_page({"a": trained(64, 1.0), "b": trained(128, 0.9)})
    assert page.title == "small on digits, batch 64 and small on digits, batch 128"
    assert [(h.label, h.value) for h in page.highlights] == [
        ("test accuracy, batch 64", "100.0 %"),
        ("test accuracy, batch 128", "90.0 %"),
    ]
    assert {section.title.partition(":")[0] for section in page.sections} == {
        "small on digits, batch 64",
        "small on digits, batch 128",
    }


def test_accuracy_axis_ends_at_100_percent():
    from matplotlib.figure import Figure as Canvas

    from chronograd.forecast.learning import _accuracy_panel
    from chronograd.report import plots

    panel = _accuracy_panel(Curve(columns={"epoch": [1, 2], "test_accuracy": [0.5, 1.0]}, units={}), None)
    axes = Canvas().subplots()
    plots._lines(axes, panel, 400.0)
    assert axes.get_ylim()[1] == 100
