"""The roofline section follows from its rows."""

from __future__ import annotations

from chronograd.figure import Lines
from chronograd.predict.layers import roofline_section
from chronograd.record import Layer, Quantity
from chronograd.report.plots import svg
from chronograd.report.runs import generic_page


def layer(name, flops, size, ceiling_s, time_s, bound):
    return {
        "name": name,
        "kind": "Linear",
        "operators": 1,
        "flops": flops,
        "bytes": size,
        "ceiling_s": ceiling_s,
        "time_s": time_s,
        "bound": bound,
        "intensity_flops_per_byte": flops / size,
        "achieved_flops_per_s": flops / time_s,
        "share_of_ceiling": ceiling_s / time_s,
        "time_to_win_s": time_s - ceiling_s,
    }


def with_layers(record):
    rows = [layer("wide", 1e12, 1e10, 1.0, 2.0, "compute"), layer("thin", 1e9, 1e10, 0.1, 0.5, "memory")]
    record.tables.layers = [Layer.model_validate(row) for row in rows]
    record.provenance.peak_flops_per_s = 1e12
    record.provenance.bandwidth_bytes_per_s = 1e11
    record.provenance.calibration = {"origin": "datasheet"}
    record.put("ppp", Quantity(value=0.5, unit="1"))
    return record


def test_points_below_the_roof(predicted, measured):
    measured[1].put("achieved_flops_per_s", Quantity(value=4e11, unit="FLOP/s"))
    section = roofline_section(with_layers(predicted[1]), measured[1])
    assert section.takeaway == (
        "Forward and backward run at 44 % of their ceiling; the most time to win is in wide (1 s) and thin (400 ms), "
        "together 56 % of the two passes."
    )
    (panel,) = section.figure.panels
    assert isinstance(panel, Lines)
    assert (panel.log_x, panel.log_y) == (True, True)
    roof, compute, memory, whole = panel.series
    assert max(roof.y) == 1.0
    assert (list(compute.x), list(compute.y)) == ([100.0], [0.5])
    assert (list(memory.x), list(memory.y)) == ([0.1], [0.002])
    assert (whole.role, list(whole.y)) == ("measured", [0.4])
    for s in (compute, memory):
        assert all(y <= min(1.0, 0.1 * x) for x, y in zip(s.x, s.y, strict=True))
    assert "PPP is 50.0 %" in section.intro
    assert "1 MAC = 2 FLOPs" in section.intro
    assert svg(section.figure).startswith("<svg")


def test_every_prediction_report_has_a_roofline(predicted):
    page = generic_page({"mine": with_layers(predicted[1])})
    assert any(s.title.startswith("Roofline") for s in page.sections)


def test_no_roofline_without_layers(predicted):
    assert not any(s.title.startswith("Roofline") for s in generic_page({"mine": predicted[1]}).sections)
    assert roofline_section(predicted[1]).figure is None
