"""The receptive field of stacked filters: by algebra, by the graph of the network, and by the gradient of random networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Picture, PictureRow, Pictures, Series, png_base64
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block

COLORS = ("accent", "vermilion", "green", "purple")
# Stacks with a picture: number of filters, and their side.
_ASKED = ((3, 3), (3, 5))
_CHANNELS = 4


def formula(number: int, kernel: int) -> int:
    """Return the side of the receptive field of N stacked F × F filters at stride 1."""
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
    """Return the side of the region that one output depends on, for each random network, and the mean size of its gradient.

    The image is one kernel wider than the formula requires on every side, so that a larger region would be visible.
    """
    import torch

    side = formula(number, kernel) + 2 * kernel
    sides, sizes = [], np.zeros((side, side))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of networks this small only wait for each other
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
    """Return an image: white where the gradient is zero, darker where it is larger."""
    return np.asarray(255 - np.where(sizes > 0, 40 + 215 * sizes / sizes.max(), 0)).astype(np.uint8)


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows["stacks"]
    agreeing = [r for r in rows if {r["by_graph"], *r["by_gradient"]} == {formula(r["number"], r["kernel"])}]
    sides = {f"of_{row['number']}_{row['kernel']}": row["by_graph"] for row in rows}
    return {"agreeing": len(agreeing), "stacks": len(rows), "channels": _CHANNELS, **sides}


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows["stacks"]
    algebra = [["1", "5", "the filter itself"]]
    for number in (2, 3):
        why = f"{formula(number - 1, 5)} + (5 − 1): one step to each neighbour adds a pixel"
        algebra.append([str(number), str(formula(number, 5)), why])
    sides = table(rows, {
        "stack": _name, "N·F − N + 1": lambda row: str(formula(row["number"], row["kernel"])), "by the graph": "by_graph",
        "by the gradient": lambda row: " or ".join(map(str, sorted(set(row["by_gradient"])))),
    })  # fmt: skip
    return {
        "By algebra": Block(Table(["filters", "side", "why"], algebra, {1})),
        "By the gradient of random networks": Block(sides, _figure(rows, results.pictures)),
        "Why filters are stacked": Block(_weights(rows)),
    }


def _name(row: Row) -> str:
    return f"{row['number']} of {row['kernel']} × {row['kernel']}"


def _figure(rows: Sequence[Row], pictures: dict[str, str]) -> Figure:
    series = []
    for (kernel, own), color in zip(grouped(rows, "kernel").items(), COLORS * len(rows), strict=False):
        numbers = [row["number"] for row in own]
        sides = [formula(n, kernel) for n in numbers]
        series.append(Series(f"{kernel} × {kernel}, formula", "reference", numbers, sides, color=color))
        seen = [max(row["by_gradient"]) for row in own]
        series.append(Series(f"{kernel} × {kernel}, gradient", "measured", numbers, seen, color=color, is_scatter=True))
    panels: list[Any] = [Lines("filters", "side of the receptive field", series, from_zero=True)]
    if pictures:
        shown = [Picture(f"{name} × {name[-1]}".replace(" × ", " of ", 1), png) for name, png in pictures.items()]
        panels.append(Pictures([PictureRow("gradient", shown)]))
    return Figure(panels)


def _weights(rows: Sequence[Row]) -> Table:
    body = []
    for row in rows:
        number, kernel, side = row["number"], row["kernel"], formula(row["number"], row["kernel"])
        stacked, single = f"{number} × {kernel}² C² = {number * kernel**2} C²", f"{side}² C² = {side**2} C²"
        if number > 1:
            body.append([_name(row), stacked, single, f"{side**2 / (number * kernel**2):.2f} ×"])
    return listed(["stack", "its weights", "weights of one filter with the same field", "ratio"], body)


_LAPTOP = {"kernels": [3, 5, 7], "most": 5, "seeds": 20}
_SMOKE = {"kernels": [3, 5], "most": 3, "seeds": 2}

STUDY = Study(
    name="receptive-field",
    question="How large is the receptive field of N stacked F × F filters, and of three 5 × 5 filters?",
    hypothesis="(N·F − N + 1) × (N·F − N + 1) pixels, 13 × 13 for three 5 × 5 filters",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
