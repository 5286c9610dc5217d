"""An inception module on 256 channels: what it puts out and what it costs, with and without 1 × 1 reductions.

C. Szegedy et al., Going deeper with convolutions, arXiv 1409.4842, figure 2. Widths of both modules are those of the exercise that
lecture notes make of it: 128 filters of 1 × 1, 192 of 3 × 3, 96 of 5 × 5; reductions to 64, 64 of 1 × 1 behind the pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.units import percent, si
from chronograd.words import how_many
from chronograd_lab.common.counted import CONVOLUTION, counted, layer_rows, mac_work, shape, total
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

NAIVE, REDUCED, PUBLISHED = "naive", "reduced", "GoogLeNet's 3b"
_NETWORKS = {NAIVE: "inception-naive", REDUCED: "inception-reduced"}
BRANCHES = {"one": "1 × 1", "three": "3 × 3", "five": "5 × 5", "pool": "pooling"}
# GoogLeNet's second module has 256 channels at an eighth of the image's side.
_SECOND, _CHANNELS, _SHRINKS = "inception_3.1.", 256, 8
# What lecture notes print for the reduced module at 28 × 28.
_PRINTED_SIDE, _PRINTED_MACS = 28, 358_000_000


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
    """With its branch; the last layer of a branch is what the module puts out."""
    return {**row, "branch": BRANCHES[row["layer"].partition(".")[0]]}


def _stacked(settings: Settings) -> list[Row]:
    """Naive modules one behind the other: each is given what the one before it puts out."""
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
    """The last layer of each branch."""
    return {branch: own[-1] for branch, own in grouped(rows, "branch").items()}


def _depth(rows: Sequence[Row]) -> int:
    return sum(row["out_channels"] for row in _outputs(rows).values())


def page(results: Results) -> Answer:
    rows, side = results.rows["layers"], results.settings["sides"][0]
    at = {module: matching(rows, module=module, side=side) for module in (NAIVE, REDUCED, PUBLISHED)}
    macs = {module: total(own, "macs") for module, own in at.items()}
    saving, ratio = 1 - macs[REDUCED] / macs[NAIVE], macs[NAIVE] / macs[REDUCED]
    sections = [
        _idea_section(results),
        _output_section(at, side),
        _operations_section(at, side),
        _problem_section(results.rows["stacked"]),
        _printed_section(rows),
    ]
    highlights = [
        Highlight("saved by 1 × 1 reductions", percent(saving), f"{ratio:.2f} × fewer MACs"),
        Highlight(
            f"MACs of the naive module at {side} × {side}", f"{macs[NAIVE]:,}", f"{_depth(at[NAIVE])} channels put out"
        ),
        Highlight("of the reduced one", f"{macs[REDUCED]:,}", f"{_depth(at[REDUCED])} channels put out"),
    ]
    summary = [
        f"At {side} × {side} × {_CHANNELS} the naive module puts out {side} × {side} × {_depth(at[NAIVE])}, the reduced one {side} × "
        f"{side} × {_depth(at[REDUCED])}.",
        f"Their convolutions take {macs[NAIVE]:,} and {macs[REDUCED]:,} MACs: reductions save {percent(saving)}, {ratio:.2f} ×.",
        "The naive module's problem is that pooling passes all channels on, so that depth and work grow with every module.",
    ]
    return replace(STUDY.answer(results, sections, highlights), title="Inception modules", summary=summary)


def _idea_section(results: Results) -> Section:
    kernels = [row["kernel"] for row in results.rows["layers"] if row["module"] == NAIVE]
    sizes = ", ".join(f"{k} × {k}" for k in sorted(set(kernels) - {None}))
    return Section(
        "The idea",
        "A module looks at its input through filters of several sizes at once and lets training decide which of them matter.",
        f"Which size of filter is best is not known beforehand, and differs from place to place: objects are large and small. So "
        f"filters and a pooling of windows {sizes} stand side by side, padded so that all put out the same height and width, and what "
        "they put out is laid together along the channels. 1 × 1 convolutions before the costly filters look at one position only: "
        "they mix channels, and so can hand on fewer of them.",
    )


def _output_section(at: dict[str, list[Row]], side: int) -> Section:
    body, sums = [], {}
    for module, own in at.items():
        outputs = _outputs(own)
        sums[module] = " + ".join(str(row["out_channels"]) for row in outputs.values())
        body.append([module, *(shape(outputs[b]) for b in BRANCHES.values()), f"{side} × {side} × {_depth(own)}"])
    return Section(
        "Output sizes",
        f"Laid together along the channels: {sums[NAIVE]} = {_depth(at[NAIVE])} for the naive module, {sums[REDUCED]} = "
        f"{_depth(at[REDUCED])} for the reduced one.",
        "Stride 1; 3 × 3 windows are padded by 1 and 5 × 5 by 2, so (side − kernel + 2 × padding) / 1 + 1 = side in every branch.",
        table=listed(("module", *BRANCHES.values(), "together"), body),
    )


def _operations_section(at: dict[str, list[Row]], side: int) -> Section:
    macs = {module: total(own, "macs") for module, own in at.items()}
    body = []
    for module, own in at.items():
        body += [[module, _what(row), mac_work(row)] for row in own if row["kind"] == CONVOLUTION]
        body.append([module, "all", f"{macs[module]:,} MACs = {2 * macs[module]:,} FLOPs"])
    branches = list(BRANCHES.values())
    bars = [
        Bar(
            module,
            "measured",
            {
                b: total(matching(own, branch=b), "macs") / 1e6
                for b in branches
                if total(matching(own, branch=b), "macs")
            },
            note=si(macs[module], "MAC"),
        )
        for module, own in at.items()
    ]
    colors = dict(zip(branches, ("accent", "orange", "vermilion", "green"), strict=True))
    saving, ratio = 1 - macs[REDUCED] / macs[NAIVE], macs[NAIVE] / macs[REDUCED]
    return Section(
        "Convolution operations",
        f"{macs[NAIVE]:,} MACs without reductions, {macs[REDUCED]:,} with them: {percent(saving)} saved, {ratio:.2f} × fewer.",
        f"At {side} × {side} × {_CHANNELS}: positions × filters × (kernel × kernel × channels a filter sees); 1 MAC = 2 FLOPs. "
        f"{PUBLISHED} has the same filters with reductions to 128 and 32 in place of 64 and 64, and saves "
        f"{percent(1 - macs[PUBLISHED] / macs[NAIVE])}.",
        figure=Figure([Bars("millions of MACs", "module", bars, colors)]),
        table=Table(("module", "convolution", "MACs"), body, {2}),
    )


def _what(row: Row) -> str:
    """Such as `reduction before 3 × 3`."""
    branch, kernel = str(row["branch"]), f"{row['kernel']} × {row['kernel']}"
    if kernel == branch:
        return branch
    return f"1 × 1 after {branch}" if branch == BRANCHES["pool"] else f"1 × 1 before {branch}"


def _problem_section(stacked: Sequence[Row]) -> Section:
    first, last = stacked[0], stacked[-1]
    added = first["out"] - first["in"]
    body = [[str(r["number"]), f"{r['in']:,}", f"{r['out']:,}", f"{r['macs']:,}"] for r in stacked]
    return Section(
        "The naive module's problem, and what reductions save",
        f"Pooling passes every channel on, so each naive module adds {how_many(added, 'channels')}, and the next one costs more: "
        f"{first['macs']:,} MACs in the first, {last['macs']:,} in module {last['number']}.",
        f"Naive modules one behind the other at {first['side']} × {first['side']}. Even the first is costly, as its 5 × 5 filters see "
        "all channels. A 1 × 1 convolution before them, and one behind the pooling, sets depth and cost by choice.",
        table=listed(("module", "channels in", "channels out", "MACs"), body),
    )


def _printed_section(rows: Sequence[Row]) -> Section:
    own = [r for r in matching(rows, module=REDUCED, side=_PRINTED_SIDE) if r["kind"] == CONVOLUTION]
    if not own:
        return Section("At 28 × 28", "28 × 28 is not among the sides that were counted.")
    macs, naive = total(own, "macs"), total(matching(rows, module=NAIVE, side=_PRINTED_SIDE), "macs")
    three = next(row for row in own if row["branch"] == BRANCHES["three"] and row["kernel"] == 3)["macs"]
    terms = " + ".join(f"{row['macs']:,}" for row in own)
    return Section(
        "At 28 × 28, and the 358 M that are printed",
        f"The reduced module takes {macs:,} MACs at 28 × 28, {percent(1 - macs / naive)} fewer than the {naive:,} of the naive one; the "
        "widely printed 358 M is not what its terms sum to.",
        "The saving does not depend on the side, as every term has the same number of positions.",
        lines=[
            f"{terms} = {macs:,}.",
            f"With the 3 × 3 term counted twice it is {macs:,} + {three:,} = {macs + three:,}, which rounds to "
            f"{round((macs + three) / 1e6)} M.",
        ],
    )


_LAPTOP = {"sides": [32, 28], "stacked": 4}
_SMOKE = {**_LAPTOP, "stacked": 2}

STUDY = Study(
    name="inception",
    question="What is an inception module, what does it put out, and how many operations do its 1 × 1 reductions save?",
    hypothesis="Reductions save two thirds of the operations, and keep the depth from growing with every module",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
)
