"""What stacked filters see: by algebra, by the graph of the network, and by the gradient of random networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Picture, PictureRow, Pictures, Series, png_base64
from chronograd.words import how_many
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

COLORS = ("accent", "vermilion", "green", "purple")
# Stacks that lecture notes ask about: how many, of which filters.
_ASKED = ((3, 3), (3, 5))
_CHANNELS = 4


def formula(number: int, kernel: int) -> int:
    """Side of what N stacked F × F filters at stride 1 see."""
    return number * kernel - number + 1


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    rows: list[Row] = []
    pictures = {}
    for kernel in settings["kernels"]:
        for number in range(1, settings["most"] + 1):
            sides, gradient = _seen(number, kernel, settings["seeds"])
            rows.append(
                {
                    "kernel": kernel,
                    "number": number,
                    "by_graph": _by_graph(number, kernel),
                    "by_gradient": sides,
                    "seeds": settings["seeds"],
                    "share_seen": float(np.mean(gradient > 0)),
                }
            )
            if (number, kernel) in _ASKED:
                pictures[f"{number} × {kernel}"] = png_base64(_grey(gradient))
    return runner.results(settings, rows={"stacks": rows}, pictures=pictures)


def _stack(number: int, kernel: int) -> Any:
    from torch import nn

    layers = [nn.Conv2d(1 if i == 0 else _CHANNELS, _CHANNELS, kernel, bias=False) for i in range(number)]
    return nn.Sequential(*layers)


def _by_graph(number: int, kernel: int) -> int:
    from chronograd.count.layers import layers
    from chronograd.count.tracing import trace

    side = formula(number, kernel) + 2
    last = layers(trace(_stack(number, kernel).to("meta"), [(1, side, side)], mode="inference"))[-1]
    assert isinstance(last.receptive_field, int)
    return last.receptive_field


def _seen(number: int, kernel: int, seeds: int) -> tuple[list[int], np.ndarray]:
    """Sides of what one output depends on, over networks of random weights, and the mean size of its gradient there.

    The image is wider than the formula says by a kernel on every side, so that more could be seen.
    """
    import torch

    side = formula(number, kernel) + 2 * kernel
    sides, sizes = [], np.zeros((side, side))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small only wait for one another
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = _stack(number, kernel).double()
        x = torch.randn(1, 1, side, side, dtype=torch.float64, requires_grad=True)
        out = network(x)
        middle = out.shape[-1] // 2
        (gradient,) = torch.autograd.grad(out[0, :, middle, middle].sum(), x)
        size = gradient[0, 0].abs().numpy()
        seen_rows, seen_columns = np.nonzero(size)
        height, width = np.ptp(seen_rows) + 1, np.ptp(seen_columns) + 1
        sides.append(int(max(height, width)))
        sizes += size / seeds
    torch.set_num_threads(threads)
    return sides, sizes


def _grey(sizes: np.ndarray) -> np.ndarray:
    """White where the gradient is zero, darker where it is larger."""
    return np.asarray(255 - np.where(sizes > 0, 40 + 215 * sizes / sizes.max(), 0)).astype(np.uint8)


def page(results: Results) -> Answer:
    rows = results.rows["stacks"]
    agreeing = [r for r in rows if {r["by_graph"], *r["by_gradient"]} == {formula(r["number"], r["kernel"])}]
    sections = [_algebra_section(), _gradient_section(rows, agreeing, results.pictures), _cost_section(rows)]
    asked = formula(3, 5)
    highlights = [
        Highlight("three 5 × 5 filters see", f"{asked} × {asked}", "3 × 5 − 3 + 1"),
        Highlight("stacks on which formula, graph and gradient agree", f"{len(agreeing)} of {len(rows)}",
                  f"{rows[0]['seeds']} random networks each"),
    ]  # fmt: skip
    summary = [
        "N stacked F × F filters at stride 1 see (N·F − N + 1)²: the first sees F, and each further one adds F − 1.",
        f"Three 5 × 5 filters see {asked} × {asked}.",
        f"The gradient of random networks says the same for {len(agreeing)} of {len(rows)} stacks.",
    ]
    return replace(STUDY.answer(results, sections, highlights), summary=summary)


def _algebra_section() -> Section:
    body = [["1", "5", "the filter itself"]]
    for number in (2, 3):
        before = formula(number - 1, 5)
        body.append(
            [str(number), str(formula(number, 5)), f"{before} + (5 − 1): one step to each neighbour adds a pixel"]
        )
    return Section(
        "By algebra",
        f"r(N) = N·F − N + 1 = N (F − 1) + 1, so three 5 × 5 filters see 3 × 5 − 3 + 1 = {formula(3, 5)} pixels on a side.",
        "Let r(n) be the side of what one output of the n-th filter sees in the image. One filter sees r(1) = F. An output of filter "
        "n + 1 sees F neighbouring outputs of filter n; with stride 1, neighbours see windows of side r(n) that lie one pixel apart, so "
        "F of them together cover r(n + 1) = r(n) + (F − 1).",
        table=Table(("filters", "side", "why"), body, {1}),
        lines=[
            "If r(n) = n·F − n + 1, then r(n + 1) = n·F − n + 1 + F − 1 = (n + 1)·F − (n + 1) + 1; and r(1) = F = 1·F − 1 + 1.",
            "The same holds along both axes, so the field is (N·F − N + 1) × (N·F − N + 1).",
        ],
    )


def _gradient_section(rows: Sequence[Row], agreeing: Sequence[Row], pictures: dict[str, str]) -> Section:
    series = []
    for (kernel, own), color in zip(grouped(rows, "kernel").items(), COLORS * len(rows), strict=False):
        numbers = [row["number"] for row in own]
        by_formula: list[float] = [formula(n, kernel) for n in numbers]
        series.append(Series(f"{kernel} × {kernel}, formula", "reference", numbers, by_formula, color=color))
        seen: list[float | None] = [max(row["by_gradient"]) for row in own]
        series.append(Series(f"{kernel} × {kernel}, gradient", "measured", numbers, seen, color=color, is_scatter=True))
    panels: list[Any] = [Lines("filters", "side of what is seen", series, from_zero=True)]
    if pictures:
        shown = [Picture(f"{name} × {name[-1]}".replace(" × ", " of ", 1), png) for name, png in pictures.items()]
        panels.append(Pictures([PictureRow("gradient", shown)]))
    body = [
        [
            f"{row['number']} of {row['kernel']} × {row['kernel']}",
            str(formula(row["number"], row["kernel"])),
            str(row["by_graph"]),
            _sides(row["by_gradient"]),
        ]
        for row in rows
    ]
    return Section(
        "By the gradient of random networks",
        f"In {len(agreeing)} of {len(rows)} stacks formula, graph and gradient say the same side.",
        f"A pixel is seen by an output if the output's gradient there is not zero. {how_many(rows[0]['seeds'], 'networks')} of {_CHANNELS} channels "
        "with random weights each, in double precision; the image is wider than the formula says. `count` works the side out on the "
        "graph, layer by layer.",
        figure=Figure(panels),
        caption="Squares: the mean size of the gradient of the middle output, darker where it is larger; white is zero. The middle "
        "counts more than the rim, as more paths lead through it.",
        table=listed(("stack", "N·F − N + 1", "by the graph", "by the gradient"), body),
    )


def _sides(sides: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(set(sides))))


def _cost_section(rows: Sequence[Row]) -> Section:
    stacks = [row for row in rows if row["number"] > 1]
    body = []
    for row in stacks:
        number, kernel, side = row["number"], row["kernel"], formula(row["number"], row["kernel"])
        stacked, single = number * kernel**2, side**2
        body.append(
            [
                f"{number} of {kernel} × {kernel}",
                f"{number} × {kernel}² C² = {stacked} C²",
                f"{side}² C² = {single} C²",
                f"{single / stacked:.2f} ×",
            ]
        )
    small = matching(rows, number=3, kernel=3)
    side = formula(3, 3)
    takeaway = (
        f"Three 3 × 3 filters see what one {side} × {side} sees with {3 * 9} C² weights in place of {side**2} C²."
        if small
        else "No stack of three 3 × 3 filters was counted."
    )
    return Section(
        "Why filters are stacked",
        takeaway,
        "Weights from C to C channels, without biases; MACs at each position are as many. The stack also has a non-linearity between "
        "its filters.",
        table=listed(("stack", "its weights", "one filter that sees as much", "more"), body),
    )


_LAPTOP = {"kernels": [3, 5, 7], "most": 5, "seeds": 20}
_SMOKE = {"kernels": [3, 5], "most": 3, "seeds": 2}

STUDY = Study(
    name="receptive-field",
    question="What do N stacked F × F filters see, and what do three 5 × 5 see?",
    hypothesis="(N·F − N + 1) × (N·F − N + 1) pixels, 13 × 13 for three 5 × 5",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
)
