"""VGG-19: activations, weights and FLOPs of every layer, each with its working.

K. Simonyan, A. Zisserman, Very deep convolutional networks for large-scale image recognition, arXiv 1409.1556, configuration E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chronograd.answer import Answer, Highlight, Section
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent, si
from chronograd_lab.common.counted import (
    CONVOLUTION,
    LINEAR,
    activation_work,
    counted,
    layer_rows,
    mac_work,
    named_by_block,
    total,
    weight_work,
)
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

_FLOAT_BYTES = 4
# The cell that the exercise prints as 56*56*256=800K.
_PRINTED_SIDE, _PRINTED_CHANNELS, _PRINTED = 56, 256, 800_000


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return runner.results(settings, rows={"layers": named_by_block(layer_rows(counted(settings["network"])))})


def page(results: Results) -> Answer:
    rows = results.rows["layers"]
    sections = [_memory_section(rows), _where_section(rows), _flops_section(rows)]
    activations, weights, macs = (total(rows, column) for column in ("activations", "weights", "macs"))
    share = total(rows, "macs", kind=CONVOLUTION) / macs
    highlights = [
        Highlight("activations of one image", f"{activations:,}", f"{si(_FLOAT_BYTES * activations, 'B')} in fp32"),
        Highlight("weights without biases", f"{weights:,}", f"{si(_FLOAT_BYTES * weights, 'B')} in fp32"),
        Highlight("convolutions' share of the MACs", percent(share, 2), f"of {macs:,}"),
    ]
    summary = [
        f"One image takes {activations:,} activations, {si(_FLOAT_BYTES * activations, 'B')} in fp32 for a forward pass, and about "
        "twice that with gradients.",
        f"The weights are {weights:,} without biases, {percent(total(rows, 'weights', kind=LINEAR) / weights)} of them in the three "
        "linear layers.",
        f"A forward pass takes {macs:,} MACs, {percent(share, 2)} of them in convolutions.",
    ]
    return replace(STUDY.answer(results, sections, highlights), title="VGG-19: memory and work", summary=summary)


def _memory_section(rows: Sequence[Row]) -> Section:
    body = [
        [
            row["layer"],
            activation_work(row),
            si(_FLOAT_BYTES * row["activations"], "B"),
            weight_work(row) or "0",
            si(_FLOAT_BYTES * row["weights"], "B") if row["weights"] else "",
        ]
        for row in rows
    ]
    activations, weights = total(rows, "activations"), total(rows, "weights")
    body.append(
        [
            "all",
            f"{activations:,}",
            si(_FLOAT_BYTES * activations, "B"),
            f"{weights:,}",
            si(_FLOAT_BYTES * weights, "B"),
        ]
    )
    cells = [row for row in rows if (row["out_size"], row["out_channels"]) == (_PRINTED_SIDE, _PRINTED_CHANNELS)]
    product = cells[0]["activations"]
    return Section(
        "Activations and weights of every layer",
        f"{activations:,} activations ({si(_FLOAT_BYTES * activations, 'B')} in fp32) and {weights:,} weights without biases "
        f"({si(_FLOAT_BYTES * weights, 'B')}).",
        "Activations are what a layer puts out, height × width × channels, the image among them; weights are filters × (kernel × "
        "kernel × input channels). 4 bytes each. What ReLU writes takes its input's place; dropout is left out.",
        table=listed(("layer", "activations", "memory", "weights", "their memory"), body),
        lines=[
            f"The exercise prints 800K for a map that it also calls 56*56*256; the product is {product:,}, {product - _PRINTED:,} more "
            f"({', '.join(row['layer'] for row in cells)})."
        ],
    )


def _where_section(rows: Sequence[Row]) -> Section:
    activations, weights = total(rows, "activations"), total(rows, "weights")
    first = [row for row in rows if row["layer"].startswith("conv1_")]
    largest = max(rows, key=lambda row: row["weights"])

    def panel(what: str, color: str) -> Bars:
        bars = [Bar(row["layer"], "measured", {what: row[what] / 1e6}) for row in rows]
        return Bars(f"millions of {what}", "layer", bars, {what: color})

    return Section(
        "Where the memory is",
        f"The first two convolutions hold {percent(total(first, 'activations') / activations, 0)} of the activations, and "
        f"{largest['layer']} alone {percent(largest['weights'] / weights, 0)} of the weights.",
        "Activations shrink with the image, weights grow with the channels, and most of all where the image becomes a vector.",
        figure=Figure([panel("activations", "accent"), panel("weights", "orange")]),
    )


def _flops_section(rows: Sequence[Row]) -> Section:
    own = [row for row in rows if row["macs"]]
    macs, convolutions = total(own, "macs"), total(own, "macs", kind=CONVOLUTION)
    body = [[row["layer"], mac_work(row), f"{2 * row['macs']:,}", percent(row["macs"] / macs, 2)] for row in own]
    body.append(["all", f"{macs:,}", f"{2 * macs:,}", ""])
    body.append(["convolutions", f"{convolutions:,}", f"{2 * convolutions:,}", percent(convolutions / macs, 2)])
    return Section(
        "FLOPs of every layer",
        f"{2 * macs:,} FLOPs ({macs:,} MACs), {percent(convolutions / macs, 2)} of them in convolutions.",
        "MACs are output positions × filters × (kernel × kernel × input channels); 1 MAC = 2 FLOPs. Many tables print MACs and call "
        "them FLOPs. Biases, ReLU and pooling are not counted.",
        table=listed(("layer", "MACs", "FLOPs", "of all"), body),
    )


_SIZE = {"network": "vgg19"}

STUDY = Study(
    name="vgg19-memory",
    question="How many activations, weights and FLOPs has each layer of VGG-19, without biases?",
    hypothesis="Activations are in the first layers, weights in the first linear layer, work in the convolutions",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    computed=page,
)
