"""An inception module on 256 channels: its output and its cost, with and without 1 × 1 reductions.

C. Szegedy et al., Going deeper with convolutions, arXiv 1409.4842, figure 2. Both modules have the widths of an exercise in lecture
notes: 128 filters of 1 × 1, 192 of 3 × 3, 96 of 5 × 5; reductions to 64, and 64 filters of 1 × 1 after the pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import si
from chronograd_lab.common.counted import CONVOLUTION, amounts, counted, layer_rows, mac_work, shape, total
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key

NAIVE, REDUCED, PUBLISHED = "naive", "reduced", "GoogLeNet's 3b"
_NETWORKS = {NAIVE: "inception-naive", REDUCED: "inception-reduced"}
BRANCHES = {"one": "1 × 1", "three": "3 × 3", "five": "5 × 5", "pool": "pooling"}
_KEYS = {"naive": NAIVE, "reduced": REDUCED, "googlenet": PUBLISHED}
# GoogLeNet's second module has 256 channels at an eighth of the image's side.
_SECOND = "inception_3.1."
_CHANNELS = 256
_SHRINKS = 8
# Lecture notes print the MACs of the reduced module at this side.
_PRINTED_SIDE = 28


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    rows: list[Row] = []
    for side in settings["sides"]:
        for module, network in _NETWORKS.items():
            trace = counted(network, input_shape=(_CHANNELS, side, side))
            rows += [{"module": module, "side": side, **_placed(row)} for row in layer_rows(trace)[1:]]
        whole = layer_rows(counted("googlenet", input_shape=(3, _SHRINKS * side, _SHRINKS * side)))
        own = [
            {**row, "layer": row["layer"].removeprefix(_SECOND)} for row in whole if row["layer"].startswith(_SECOND)
        ]
        rows += [{"module": PUBLISHED, "side": side, **_placed(row)} for row in own]
    return runner.results(settings, rows={"layers": rows, "stacked": _stacked(settings)})


def _placed(row: Row) -> Row:
    """Return a layer with its branch."""
    return {**row, "branch": BRANCHES[row["layer"].partition(".")[0]]}


def _stacked(settings: Settings) -> list[Row]:
    """Return naive modules that follow each other: the output of one is the input of the next."""
    side, channels, rows = settings["sides"][0], _CHANNELS, []
    for number in range(1, settings["stacked"] + 1):
        layers = [
            _placed(row) for row in layer_rows(counted("inception-naive", input_shape=(channels, side, side)))[1:]
        ]
        depth = _depth(layers)
        rows.append({"number": number, "side": side, "in": channels, "out": depth, "macs": total(layers, "macs")})
        channels = depth
    return rows


def _outputs(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the last layer of each branch, whose output is part of the module's."""
    return {branch: own[-1] for branch, own in grouped(rows, "branch").items()}


def _depth(rows: Sequence[Row]) -> int:
    return sum(row["out_channels"] for row in _outputs(rows).values())


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    side, stacked = results.settings["sides"][0], results.rows["stacked"]
    return {
        **_modules(results, side), "printed": {"side": _PRINTED_SIDE, **_modules(results, _PRINTED_SIDE)}, "side": side,
        "channels": _CHANNELS, "first": stacked[0], "last": stacked[-1], "added": stacked[0]["out"] - stacked[0]["in"],
    }  # fmt: skip


def _at(results: Results, side: int) -> dict[str, list[Row]]:
    return {module: matching(results.rows["layers"], module=module, side=side) for module in _KEYS.values()}


def _modules(results: Results, side: int) -> dict[str, Row]:
    """Return the totals of each module, its output channels by branch and together, and its layers."""
    rows = _at(results, side)
    return {name: _module(rows[module]) for name, module in _KEYS.items()}


def _module(rows: list[Row]) -> Row:
    outputs, one = _outputs(rows), amounts(rows)
    channels = {name: outputs[branch]["out_channels"] for name, branch in BRANCHES.items()}
    return {**one, "depth": _depth(rows), "out": channels, "layer": {key(n): row for n, row in one["layer"].items()}}


def blocks(results: Results) -> dict[str, Block]:
    side = results.settings["sides"][0]
    at = _at(results, side)
    sizes = [
        [module, *(shape(_outputs(rows)[b]) for b in BRANCHES.values()), f"{side} × {side} × {_depth(rows)}"]
        for module, rows in at.items()
    ]
    stacked = table(results.rows["stacked"], {
        "module": ("number", str), "channels in": ("in", "{:,}".format), "channels out": ("out", "{:,}".format),
        "MACs": ("macs", "{:,}".format),
    })  # fmt: skip
    return {
        "Output sizes": Block(listed(("module", *BRANCHES.values(), "together"), sizes)),
        "Convolution operations": Block(_operations(at), _bars(at)),
        "The naive module's problem, and what reductions save": Block(stacked),
    }


def _operations(at: dict[str, list[Row]]) -> Table:
    body = []
    for module, rows in at.items():
        body += [[module, _name(row), mac_work(row)] for row in rows if row["kind"] == CONVOLUTION]
        macs = total(rows, "macs")
        body.append([module, "all", f"{macs:,} MACs = {2 * macs:,} FLOPs"])
    return listed(("module", "convolution", "MACs"), body, text=2)


def _bars(at: dict[str, list[Row]]) -> Figure:
    bars = []
    for module, rows in at.items():
        macs = {branch: total(own, "macs") / 1e6 for branch, own in grouped(rows, "branch").items()}
        parts = {branch: millions for branch, millions in macs.items() if millions}
        bars.append(Bar(module, "measured", parts, note=si(total(rows, "macs"), "MAC")))
    colors = dict(zip(BRANCHES.values(), ("accent", "orange", "vermilion", "green"), strict=True))
    return Figure([Bars("millions of MACs", "module", bars, colors)])


def _name(row: Row) -> str:
    """Return the name of a convolution, such as `1 × 1 before 3 × 3`."""
    branch, kernel = str(row["branch"]), f"{row['kernel']} × {row['kernel']}"
    if kernel == branch:
        return branch
    return f"1 × 1 after {branch}" if branch == BRANCHES["pool"] else f"1 × 1 before {branch}"


_LAPTOP = {"sides": [32, 28], "stacked": 4}
_SMOKE = {**_LAPTOP, "stacked": 2}

STUDY = Study(
    name="inception",
    question="What is an inception module, how large is its output, and how many operations do its 1 × 1 reductions save?",
    hypothesis="Reductions save two thirds of the operations, and keep the depth from growing with every module",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
