"""VGG-19: activations, weights and FLOPs of every layer, each with its calculation.

K. Simonyan, A. Zisserman, Very deep convolutional networks for large-scale image recognition, arXiv 1409.1556, configuration E.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent, si
from chronograd_lab.common.counted import (
    activation_work,
    amounts,
    counted,
    layer_rows,
    macs_table,
    named_by_block,
    weight_work,
)
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block

FLOAT_BYTES = 4


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return runner.results(settings, rows={"layers": named_by_block(layer_rows(counted(settings["network"])))})


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows["layers"]
    heaviest = max(rows, key=lambda row: row["weights"])
    return {**amounts(rows), "float_bytes": FLOAT_BYTES, "heaviest": heaviest["layer"]}


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows["layers"]
    whole = amounts(rows)
    macs = whole["convolutions"]["macs"]
    convolutions = ["convolutions", f"{macs:,}", f"{2 * macs:,}", percent(macs / whole["macs"], 2)]
    panels = [_panel(rows, *of) for of in (("activations", "accent"), ("weights", "orange"))]
    return {
        "Activations and weights of every layer": Block(_memory(rows, whole)),
        "Where the memory is": Block(figure=Figure(panels)),
        "FLOPs of every layer": Block(macs_table(rows, 2, convolutions)),
    }


def _memory(rows: list[Row], whole: Row) -> Table:
    def in_fp32(number: int) -> str:
        return si(FLOAT_BYTES * number, "B") if number else ""

    body = [
        [row["layer"], activation_work(row), in_fp32(row["activations"]), weight_work(row) or "0", in_fp32(row["weights"])]
        for row in rows
    ]  # fmt: skip
    activations, weights = whole["activations"], whole["weights"]
    body.append(["all", f"{activations:,}", in_fp32(activations), f"{weights:,}", in_fp32(weights)])
    return listed(("layer", "activations", "memory of activations", "weights", "memory of weights"), body)


def _panel(rows: list[Row], what: str, color: str) -> Bars:
    bars = [Bar(row["layer"], "measured", {what: row[what] / 1e6}) for row in rows]
    return Bars(f"millions of {what}", "layer", bars, {what: color})


_SIZE = {"network": "vgg19"}

STUDY = Study(
    name="vgg19-memory",
    question="How many activations, weights and FLOPs does each layer of VGG-19 have, without biases?",
    hypothesis="Activations are in the first layers, weights in the first linear layer, work in the convolutions",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
