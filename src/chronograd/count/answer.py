"""What `count` says of a trace: totals, layers, and on demand the formulas with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from chronograd.answer import Answer, Section, Table
from chronograd.count.folding import REPEATED, Row, at_depth, folded
from chronograd.count.layers import summary
from chronograd.figure import Bar, Bars, Figure
from chronograd.trace import Trace
from chronograd.units import memory, percent, si
from chronograd.words import how_many

# Bars of a figure; the table and the data have all layers.
MAX_BARS = 12


def count(
    trace: Trace, batch: int = 1, optimizer: str = "sgd-momentum", *, with_work: bool = False, depth: int | None = None
) -> Answer:
    """Parameters, MACs, FLOPs, activations and memory, in total and by layer.

    Args:
        batch: samples of a step; a trace of a fixed batch has its own.
        optimizer: whose state counts as memory.
        with_work: also each layer's formulas with its numbers in them.
        depth: of modules in the table: 1 for those of the network itself; layers by default. Data have all layers.
    """
    counted = summary(trace, trace.fixed_batch or batch, optimizer)
    sections = [_totals(counted), _layers(counted["layers"], counted["macs"], depth, trace.modules)]
    if with_work:
        sections.append(_work(counted["layers"]))
    else:
        for row in counted["layers"]:
            del row["work"]
    return Answer(f"Work of {trace.network}", sections=sections, data=counted, notes=counted["notes"])


def _totals(counted: dict[str, Any]) -> Section:
    n = "{:,}".format
    least = "at least " if counted["is_lower_bound"] else ""
    keras = " + ".join(f"{count:,} {name}" for name, count in counted["params_keras_parts"].items())
    share, forward, backward = counted["conv_share"], counted["flops_forward"], counted["flops_backward"]
    rows = [
        ("parameters", n(counted["params"]), f"{n(counted['weights'])} without biases"),
        ("parameters, as Keras counts", n(counted["params_keras"]), keras),
        ("MACs", least + n(counted["macs"]), "" if share is None else f"{100 * share:.3f} % in convolutions"),
        ("FLOPs forward", least + n(forward), "2 × MACs"),
        ("FLOPs backward", least + n(backward), f"{backward / forward:.3f} × forward" if forward else ""),
        ("vector FLOPs", n(counted["vector_flops_forward"]), "forward, everything that is no matrix work"),
        ("activations", n(counted["activations"]), "input, convolutions, linear layers, attention, pooling"),
        ("peak memory", memory(counted["memory_bytes"]), _memory(counted)),
    ]
    if counted["params_keras"] == counted["params"]:
        del rows[1]
    shape = ", ".join(" × ".join(map(str, sizes)) or "one number" for sizes in counted["input_shapes"])
    passes = "forward and backward take" if backward else "forward takes"
    return Section(
        title=f"{counted['network']}, input {shape}, {counted['mode']}",
        takeaway=f"{si(counted['params'])} parameters; {passes} {least}{si(forward + backward, 'FLOP')} "
        f"and {memory(counted['memory_bytes'])} at batch {counted['batch']}.",
        lines=[
            f"not counted: {name}, {times} {'time' if times == 1 else 'times'} (its bytes are)"
            for name, times in counted["uncounted"].items()
        ],
        table=Table(("total", "", ""), rows, {1}),
        caption=counted["convention"],
    )


def _layers(rows: list[dict[str, Any]], macs: int, depth: int | None, modules: Mapping[str, str]) -> Section:
    largest = sorted((row for row in rows if row["macs"]), key=lambda row: -row["macs"])
    bars = [Bar(_name(row), "predicted", {row["kind"]: float(row["macs"])}) for row in largest[:MAX_BARS]]
    takeaway = "No layer has matrix work."
    if largest:
        half = next(n for n, done in enumerate(accumulate(row["macs"] for row in largest), 1) if 2 * done >= macs)
        takeaway = (
            f"{half} of {how_many(len(rows), 'layers')} {'does' if half == 1 else 'do'} half of the MACs or more; the largest is "
            f"{_name(largest[0])} ({largest[0]['kind']}) with {percent(largest[0]['macs'] / macs)}."
        )
    shown = folded(rows if depth is None else at_depth(rows, depth, modules), modules)
    return Section(
        title="Layers",
        takeaway=takeaway,
        figure=Figure([Bars("MACs", "layer", bars)]) if bars else None,
        table=Table(
            ("layer", "kind", "output", "params", "activations", "MACs", "field", "stride"),
            [_cells(row) for row in shown],
            {3, 4, 5, 6, 7},
            [REPEATED] if any(" × " in row["name"] for row in shown) else [],
            drop=(7, 6, 4, 2),
        ),
    )


def _work(rows: list[dict[str, Any]]) -> Section:
    shown = [row for row in rows if row["work"]]
    return Section(
        title="Formulas",
        takeaway=f"{len(shown)} of {len(rows)} layers have parameters, work or an output of their own.",
        lines=[line for row in shown for line in (_name(row), *(f"  {line}" for line in row["work"]))],
    )


def _cells(row: Row) -> tuple[str, ...]:
    where = [row["receptive_field"], row["stride"]]
    field, stride = ("" if w is None else "×".join(map(str, w)) if isinstance(w, list) else str(w) for w in where)
    shape = "×".join(str(d) for d in row["output_shape"])
    amounts = ("" if not row[k] else f"{row[k]:,}" for k in ("params", "activations", "macs"))
    return (_name(row), row["kind"], shape, *amounts, field, stride)


def _name(row: Row) -> str:
    name: str = row["name"] or "(network)"
    return f"{name} (call {row['call'] + 1})" if row["call"] else name


def _memory(counted: dict[str, Any]) -> str:
    roles = counted["memory"]
    parts = ("parameters", "gradients", "optimizer_state", "activations")
    text = ", ".join(f"{part.replace('_', ' ')} {memory(roles[part])}" for part in parts if roles[part])
    return f"batch {counted['batch']}, {roles['optimizer']}: {text}"
