"""Python answer of a count: sentence, table, figure and data with the same numbers."""

from __future__ import annotations

from chronograd.count.answer import count
from chronograd.count.network import trace_network


def test_totals_layers_and_formulas() -> None:
    trace = trace_network("lenet5")
    shown = count(trace, 2, "adamw", with_work=True)
    totals, layers, formulas = shown.sections
    data = shown.data
    assert data["batch"] == 2
    assert totals.takeaway.startswith(f"{trace.params / 1000:.1f} k parameters; forward and backward take ")
    by_size = sorted((row for row in data["layers"] if row["macs"]), key=lambda row: -row["macs"])
    largest, half, done = by_size[0], 0, 0
    while 2 * done < data["macs"]:
        done += by_size[half]["macs"]
        half += 1
    assert f"{half} of {len(data['layers'])} layers" in layers.takeaway
    assert f"{largest['name']} ({largest['kind']}) with {100 * largest['macs'] / data['macs']:.1f} %" in layers.takeaway
    assert layers.figure is not None
    assert [row["MACs"] for row in layers.figure.rows()] == [row["macs"] for row in by_size]
    assert f"  {largest['work'][0]}" in formulas.lines
    plain = count(trace)
    assert len(plain.sections) == 2
    assert all("work" not in row for row in plain.data["layers"])
