"""AlexNet layer by layer, and the three totals quoted for it.

A. Krizhevsky, I. Sutskever, G. Hinton, ImageNet classification with deep convolutional neural networks, NIPS 2012; A. Krizhevsky,
One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997 (the single tower that torchvision has).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent
from chronograd_lab.common.counted import (
    CONVOLUTION,
    LINEAR,
    amounts,
    counted,
    layer_rows,
    macs_table,
    named_by_number,
    output_work,
    shape,
    weight_work,
)
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import matching, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

GROUPED, UNGROUPED, ONE_TOWER = "two groups, as published", "without groups", "one tower, as torchvision's"
_NETWORKS = {
    GROUPED: ("alexnet", {}),
    UNGROUPED: ("alexnet", {"groups": 1}),
    ONE_TOWER: ("torchvision:alexnet", {}),
}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    rows = []
    for variant, (network, options) in _NETWORKS.items():
        layers = named_by_number(layer_rows(counted(network, options)))
        rows += [{"variant": variant, **row} for row in layers]
    return runner.results(settings, rows={"layers": rows})


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    grouped, ungrouped, tower = _variants(results)
    more = {
        name: ungrouped["layer"][name]["weights"] - row["weights"]
        for name, row in grouped["layer"].items()
        if ungrouped["layer"][name]["weights"] != row["weights"]
    }
    return {**grouped, "ungrouped": ungrouped, "tower": tower, "more": more, "num_more": len(more)}


def _variants(results: Results) -> list[Row]:
    return [amounts(matching(results.rows["layers"], variant=variant)) for variant in _NETWORKS]


def blocks(results: Results) -> dict[str, Block]:
    rows, (grouped, *others) = matching(results.rows["layers"], variant=GROUPED), _variants(results)
    ends = [
        [name, f"{one['macs']:,}", f"{2 * one['macs']:,}", f"convolutions {percent(one['convolutions']['macs'] / one['macs'])}"]
        for name, one in zip((UNGROUPED, ONE_TOWER), others, strict=True)
    ]  # fmt: skip
    return {
        "Layer by layer": Block(_layers(rows)),
        "Where 60.97 M, 61.1 M and 62.4 M come from": Block(_totals(results)),
        "Where the work is": Block(macs_table(rows, 1, *ends), _shares(grouped)),
    }


def _layers(rows: list[Row]) -> Table:
    def text(value: float | None) -> str:
        return shown(value, str, "")

    columns: dict[str, Any] = {
        "layer": "layer", "filters": lambda row: f"{row['out_channels']:,}" if row["weights"] else "",
        "kernel": lambda row: shown(row["kernel"], "{0} × {0}".format, ""), "stride": ("stride", text),
        "padding": ("padding", text), "groups": lambda row: str(row["groups"]) if row["kind"] == CONVOLUTION else "",
        "output": shape, "height and width": output_work, "parameters": lambda row: weight_work(row, with_bias=True),
    }  # fmt: skip
    layers, one = table(rows, columns), amounts(rows)
    total = f"{one['convolutions']['params']:,} + {one['linear']['params']:,} = {one['params']:,}"
    return replace(layers, rows=[*layers.rows, ["all", *[""] * 7, total]])


def _totals(results: Results) -> Table:
    variants = _variants(results)
    names = [name for name, row in variants[0]["layer"].items() if row["weights"]]
    params = [
        [f"{one['layer'][name]['weights'] + one['layer'][name]['biases']:,}" for one in variants] for name in names
    ]
    totals = [one["params"] for one in variants]
    body = [[name, *cells] for name, cells in zip(names, params, strict=True)]
    body += [["all", *(f"{n:,}" for n in totals)], ["in millions", *(f"{n / 1e6:.2f}" for n in totals)]]
    return listed(("layer", *_NETWORKS), body)


def _shares(grouped: Row) -> Figure:
    kinds = {CONVOLUTION: "convolutions", LINEAR: "linear"}
    bars = [
        Bar(label, "measured", {kind: 100 * grouped[of][key] / grouped[key] for kind, of in kinds.items()})
        for label, key in (("parameters", "params"), ("MACs", "macs"))
    ]
    return Figure([Bars("%", "of all", bars, {CONVOLUTION: "accent", LINEAR: "orange"})])


_SIZE = {"image_size": 227}

STUDY = Study(
    name="alexnet",
    question="How many parameters does AlexNet have, layer by layer, and why are three totals quoted for it?",
    hypothesis="60,965,224 with the two groups of the paper; other totals are of other networks",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
