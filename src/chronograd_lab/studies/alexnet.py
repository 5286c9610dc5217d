"""AlexNet layer by layer, and where the three totals that are printed for it come from.

A. Krizhevsky, I. Sutskever, G. Hinton, ImageNet classification with deep convolutional neural networks, NIPS 2012; A. Krizhevsky,
One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997 (the one tower that torchvision has).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent
from chronograd.words import listed as in_words
from chronograd_lab.common.counted import (
    CONVOLUTION,
    LINEAR,
    POOLING,
    counted,
    layer_rows,
    mac_work,
    named_by_number,
    output_work,
    seen_channels,
    shape,
    total,
    weight_work,
)
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

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


def page(results: Results) -> Answer:
    rows = results.rows["layers"]
    sections = [_layers_section(matching(rows, variant=GROUPED)), _totals_section(rows), _macs_section(rows)]
    params = {variant: total(matching(rows, variant=variant), "weights", "biases") for variant in _NETWORKS}
    macs = total(matching(rows, variant=GROUPED), "macs")
    highlights = [
        Highlight("parameters of AlexNet as published", f"{params[GROUPED]:,}", "two groups in conv2, conv4 and conv5"),
        Highlight("MACs of one image", f"{macs:,}", "227 × 227; FLOPs are twice as many"),
    ]
    summary = [
        f"AlexNet has {params[GROUPED]:,} parameters ({params[GROUPED] / 1e6:.2f} M) and takes {macs:,} MACs an image.",
        f"{params[UNGROUPED] / 1e6:.1f} M is the same network without groups, {params[ONE_TOWER] / 1e6:.1f} M torchvision's one "
        "tower with other widths.",
    ]
    return replace(STUDY.answer(results, sections, highlights), title="AlexNet", summary=summary)


def _layers_section(rows: Sequence[Row]) -> Section:
    body = []
    for row in rows:
        is_window = row["kind"] in (CONVOLUTION, POOLING)
        body.append(
            [
                row["layer"],
                f"{row['out_channels']:,}" if row["kind"] in (CONVOLUTION, LINEAR) else "",
                f"{row['kernel']} × {row['kernel']}" if is_window else "",
                *(str(row[key]) if is_window else "" for key in ("stride", "padding")),
                str(row["groups"]) if row["kind"] == CONVOLUTION else "",
                shape(row),
                output_work(row),
                weight_work(row, with_bias=True),
            ]
        )
    convolutions = total(rows, "weights", "biases", kind=CONVOLUTION)
    dense = total(rows, "weights", "biases", kind=LINEAR)
    body.append(["all", *[""] * 7, f"{convolutions:,} + {dense:,} = {convolutions + dense:,}"])
    columns = ("layer", "filters", "kernel", "stride", "padding", "groups", "output", "its side", "parameters")
    terms = " + ".join(f"{row['weights'] + row['biases']:,}" for row in rows if row["weights"])
    return Section(
        "Layer by layer",
        f"{convolutions + dense:,} parameters: {convolutions:,} in five convolutions and {dense:,} "
        f"({percent(dense / (convolutions + dense))}) in three linear layers.",
        "A filter sees the channels of its group only: 48 of 96 in conv2, 192 of 384 in conv4 and conv5. Parameters are filters × "
        "(kernel × kernel × channels a filter sees) + one bias for each filter. The image is 227 × 227: with the 224 that the "
        "paper prints, 11 × 11 filters at stride 4 do not fit without padding. Local response norm and dropout have no parameters.",
        table=listed(columns, body),
        lines=[f"{terms} = {convolutions + dense:,}"],
    )


def _totals_section(rows: Sequence[Row]) -> Section:
    of = {variant: matching(rows, variant=variant) for variant in _NETWORKS}
    totals = {variant: total(own, "weights", "biases") for variant, own in of.items()}
    names = [row["layer"] for row in of[GROUPED] if row["weights"]]
    at = {variant: {row["layer"]: row for row in own if row["weights"]} for variant, own in of.items()}
    body = [
        [name, *(f"{at[v][name]['weights'] + at[v][name]['biases']:,}" for v in _NETWORKS), _difference(at, name)]
        for name in names
    ]
    body.append(["all", *(f"{totals[v]:,}" for v in _NETWORKS), ""])
    body.append(["in millions", *(f"{totals[v] / 1e6:.2f}" for v in _NETWORKS), ""])
    added = {name: at[UNGROUPED][name]["weights"] - at[GROUPED][name]["weights"] for name in names}
    more = {name: count for name, count in added.items() if count}
    takeaway = (
        f"Without groups {in_words(list(more))} see twice the channels: {' + '.join(f'{n:,}' for n in more.values())} = "
        f"{sum(more.values()):,} more, so {totals[UNGROUPED]:,}; the one tower has fewer filters, {totals[ONE_TOWER]:,}."
    )
    return Section(
        "Where 60.97 M, 61.1 M and 62.4 M come from",
        takeaway,
        "The 60.97 M that is quoted is the network of 2012 on two GPUs; 62.4 M is what one counts who overlooks the groups. "
        "torchvision has the one tower of 2014: 64, 192, 384, 256 and 256 filters, no groups, 224 × 224 padded by 2.",
        table=Table(("layer", *_NETWORKS, "why they differ"), body, {1, 2, 3}),
    )


def _difference(at: dict[str, dict[str, Row]], name: str) -> str:
    grouped, whole, tower = (at[variant][name] for variant in _NETWORKS)
    words = []
    if grouped["weights"] != whole["weights"]:
        words.append(f"a filter sees {seen_channels(grouped)} or {seen_channels(whole)} channels")
    if (tower["out_channels"], tower["in_channels"]) != (whole["out_channels"], whole["in_channels"]):
        words.append(f"one tower: {tower['out_channels']} filters over {tower['in_channels']}")
    return "; ".join(words)


def _macs_section(rows: Sequence[Row]) -> Section:
    own = [row for row in matching(rows, variant=GROUPED) if row["macs"]]
    macs, convolutions = total(own, "macs"), total(own, "macs", kind=CONVOLUTION)
    body = [[row["layer"], mac_work(row), f"{2 * row['macs']:,}", percent(row["macs"] / macs)] for row in own]
    body.append(["all", f"{macs:,}", f"{2 * macs:,}", ""])
    for variant in (UNGROUPED, ONE_TOWER):
        others = matching(rows, variant=variant)
        share = total(others, "macs", kind=CONVOLUTION) / total(others, "macs")
        body.append(
            [variant, f"{total(others, 'macs'):,}", f"{2 * total(others, 'macs'):,}", f"convolutions {percent(share)}"]
        )
    params = total(own, "weights", "biases")
    bars = [
        Bar(what, "measured", {kind: 100 * total(own, *columns, kind=kind) / whole for kind in (CONVOLUTION, LINEAR)})
        for what, columns, whole in (("parameters", ("weights", "biases"), params), ("MACs", ("macs",), macs))
    ]
    return Section(
        "Where the work is",
        f"{percent(convolutions / macs)} of {macs:,} MACs are in the convolutions, which hold "
        f"{percent(total(own, 'weights', 'biases', kind=CONVOLUTION) / params)} of the parameters.",
        "MACs are output positions × filters × (kernel × kernel × channels a filter sees); 1 MAC = 2 FLOPs, biases not counted.",
        figure=Figure([Bars("%", "of all", bars, {CONVOLUTION: "accent", LINEAR: "orange"})]),
        table=listed(("layer", "MACs", "FLOPs", "of all MACs"), body),
    )


_SIZE = {"image_size": 227}

STUDY = Study(
    name="alexnet",
    question="How many parameters does AlexNet have, layer by layer, and why are three totals printed for it?",
    hypothesis="60,965,224 with the two groups of the paper; other totals are of other networks",
    sizes={"smoke": _SIZE, "laptop": _SIZE},
    conduct=conduct,
    computed=page,
)
