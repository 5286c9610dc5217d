"""Repeated blocks appear once with their sums; modules at a depth include their nested modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chronograd.count.answer import count
from chronograd.count.folding import at_depth, folded
from chronograd.count.layers import CountedLayer
from chronograd.count.network import trace_network

MODULES = {"blocks.0": "Block", "blocks.1": "Block", "blocks.2": "Wide", "blocks": "Sequential"}


def row(name: str, params: int = 1, **fields: Any) -> CountedLayer:
    one = CountedLayer(name, 0, "Linear", "gemm", [1, 8], params, params, 8, 32, 10 * params, 20 * params, 0, 0)
    return replace(one, **fields)


def names(rows: Any) -> list[str]:
    return [r.name for r in rows]


def test_equal_neighbours_are_folded_with_their_sums() -> None:
    rows = [
        row("stem"),
        *(row(f"blocks.{i}.{part}", size) for i in range(3) for part, size in (("in", 2), ("out", 3))),
        row("head"),
    ]
    shown = folded(rows, MODULES)
    assert names(shown) == ["stem", "3 × blocks.0 … 2", "  in", "  out", "head"]
    assert (shown[1].params, shown[1].macs, shown[1].kind) == (15, 150, "Block")
    assert shown[2].params == 2


def test_different_amounts_calls_or_names_are_not_folded() -> None:
    for changed in (row("a.1.x", 2), row("a.1.y"), row("a.1.x", call=1), row("a.1.x", kind="norm"), row("a.3.x"), row("b.1.x"),
                    row("a.1.x", output_shape=[1, 9])):  # fmt: skip
        rows = [row("a.0.x"), changed]
        assert names(folded(rows, {})) == names(rows), changed
    assert names(folded([row("a.0.x"), row("a.1.x", receptive_field=7)], {})) == ["2 × a.0 … 1"]


def test_nested_blocks_are_folded() -> None:
    rows = [row(f"stage.{s}.{b}.{part}", s + 1) for s in range(2) for b in range(4) for part in "xy"]
    assert names(folded(rows, {})) == [
        *("4 × stage.0.0 … 3", "  x", "  y"),
        *("4 × stage.1.0 … 3", "  x", "  y"),
    ]


def test_modules_at_a_depth_include_nested_ones() -> None:
    rows = [row("stem"), row("blocks.0.in", 2), row("blocks.0", 5, kind="attention"), row("blocks.1.in", 4), row("")]
    shown = at_depth(rows, 1, MODULES)
    assert [(r.name, r.kind, r.params) for r in shown] == [
        ("stem", "gemm", 1),
        ("blocks", "Sequential", 11),
        ("", "gemm", 1),
    ]
    assert [(r.name, r.params) for r in at_depth(rows, 2, MODULES)[1:3]] == [("blocks.0", 7), ("blocks.1", 4)]


def test_totals_are_independent_of_the_display() -> None:
    trace = trace_network("resnet50")
    for depth in (None, 1, 2):
        answer = count(trace, depth=depth)
        table = answer.sections[1].table
        assert table is not None
        whole = [cells for cells in table.rows if not cells[0].startswith(" ")]
        assert sum(int(cells[5].replace(",", "") or 0) for cells in whole) == trace.macs(1)
        assert sum(int(cells[3].replace(",", "") or 0) for cells in whole) == trace.params
        assert len(answer.as_data()["layers"]) == 124
