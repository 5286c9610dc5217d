"""Layers of a network as rows of a study, and the calculation of each figure, as a reader would write it.

output       (input − kernel + 2 × padding) / stride + 1, rounded down (up if the pooling says so)

parameters   filters × (kernel × kernel × channels of a filter) + one bias each

MACs         output positions × filters × (kernel × kernel × channels of a filter)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.count.cached import cached_trace
from chronograd.trace import CONV_KINDS, Trace
from chronograd.units import percent
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import matching
from chronograd_lab.common.study import listed

CONVOLUTION, POOLING, LINEAR, INPUT = "convolution", "pooling", "linear", "input"


def counted(reference: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Trace:
    """Return the forward pass of a network, in evaluation mode."""
    return cached_trace(reference, dict(options or {}), mode="inference", **settings)


def layer_rows(trace: Trace) -> list[Row]:
    """Return the input, and each convolution, pooling and linear layer of one sample, in order; images are square.

    Left out: local response norm, which PyTorch implements as a pooling over channels, and poolings that do not change the
    size.
    """
    first = trace.tensors[trace.inputs[0]].shape_at(1)
    rows = [_row("input", INPUT, first, first)]
    parameters = trace.parameters()
    for op in trace.select("forward"):
        a, shapes = op.attributes, [trace.tensors[i].shape_at(1) for i in op.inputs]
        if not op.outputs:
            continue
        out = trace.tensors[op.outputs[0]].shape_at(1)
        own = {name: t.numel_at(1) for name, t in parameters.items() if name.rpartition(".")[0] == op.module}
        biases = sum(n for name, n in own.items() if name.endswith("bias"))
        amounts = {"weights": sum(own.values()) - biases, "biases": biases, "macs": op.macs.at(1)}
        if op.kind in CONV_KINDS:
            rows.append(_row(op.module, CONVOLUTION, shapes[0], out, groups=a["groups"], **_window(a), **amounts))
        elif op.kind == "pooling" and len(a.get("kernel", ())) == 2:
            rows.append(_row(op.module, POOLING, shapes[0], out, **_window(a)))
        elif op.kind == "gemm":
            rows.append(_row(op.module, LINEAR, shapes[-2], out, **amounts))
    return rows


def _window(attributes: Mapping[str, Any]) -> Row:
    return {key: attributes[key][0] for key in ("kernel", "stride", "padding")}


def _row(module: str, kind: str, inputs: Sequence[int], output: Sequence[int], **more: Any) -> Row:
    sizes = {"in_channels": inputs[1], "in_size": inputs[2] if len(inputs) > 2 else 1}
    sizes |= {"out_channels": output[1], "out_size": output[2] if len(output) > 2 else 1}
    none = {"kernel": None, "stride": None, "padding": None, "groups": 1, "weights": 0, "biases": 0, "macs": 0}
    return {"layer": module, "kind": kind, **sizes, "activations": math.prod(output[1:]), **none, **more}


def named_by_number(rows: Sequence[Row]) -> list[Row]:
    """Name layers as the papers do for a network without blocks: conv1, pool1, … and fc after the last of them, as in AlexNet.

    A pooling has the number of the convolution before it.
    """
    convolution = dense = 0
    named = []
    for row in rows:
        convolution += row["kind"] == CONVOLUTION
        dense += row["kind"] == LINEAR
        names = {CONVOLUTION: f"conv{convolution}", POOLING: f"pool{convolution}", LINEAR: f"fc{convolution + dense}"}
        named.append({**row, "layer": names.get(row["kind"], row["layer"])})
    return named


def named_by_block(rows: Sequence[Row]) -> list[Row]:
    """Name layers of a network whose blocks end in poolings: conv1_1, conv1_2, pool1, … and fc after the last, as in VGG."""
    block, convolution, dense = 1, 0, 0
    named = []
    for row in rows:
        name = row["layer"]
        if row["kind"] == CONVOLUTION:
            convolution += 1
            name = f"conv{block}_{convolution}"
        elif row["kind"] == POOLING:
            name, block, convolution = f"pool{block}", block + 1, 0
        elif row["kind"] == LINEAR:
            name, dense = f"fc{block + dense}", dense + 1
        named.append({**row, "layer": name})
    return named


def total(rows: Sequence[Row], *columns: str, kind: str | None = None) -> int:
    return sum(int(row[column]) for row in rows if kind in (None, row["kind"]) for column in columns)


def amounts(rows: Sequence[Row]) -> Row:
    """Return totals of a network, of its convolutions and of its linear layers, and its layers by name, for a page."""
    kinds = {"convolutions": CONVOLUTION, "linear": LINEAR}
    by_kind = {name: _totals(matching(rows, kind=kind)) for name, kind in kinds.items()}
    return {**_totals(rows), **by_kind, "layer": {row["layer"]: row for row in rows}}


def _totals(rows: Sequence[Row]) -> dict[str, int]:
    totals = {column: total(rows, column) for column in ("activations", "weights", "biases", "macs")}
    return {**totals, "params": totals["weights"] + totals["biases"]}


def macs_table(rows: Sequence[Row], digits: int, *more: list[str]) -> Table:
    """Return MACs with their calculation, FLOPs and share of each layer, then of all layers. `more`: further rows."""
    macs = total(rows, "macs")
    body = [
        [r["layer"], mac_work(r), f"{2 * r['macs']:,}", percent(r["macs"] / macs, digits)] for r in rows if r["macs"]
    ]
    return listed(("layer", "MACs", "FLOPs", "of all"), [*body, ["all", f"{macs:,}", f"{2 * macs:,}", ""], *more])


def output_work(row: Row) -> str:
    """Return the calculation of an output size.

    >>> output_work({"kind": "convolution", "in_size": 227, "kernel": 11, "padding": 0, "stride": 4, "out_size": 55})
    '(227 − 11 + 2 × 0) / 4 + 1 = 55'
    """
    if row["kernel"] is None:
        return ""
    return f"({row['in_size']} − {row['kernel']} + 2 × {row['padding']}) / {row['stride']} + 1 = {row['out_size']}"


def shape(row: Row) -> str:
    """Return height × width × channels of an output."""
    if row["kind"] == LINEAR:
        return f"{row['out_channels']:,}"
    return f"{row['out_size']} × {row['out_size']} × {row['out_channels']}"


def activation_work(row: Row) -> str:
    return shape(row) if row["kind"] == LINEAR else f"{shape(row)} = {row['activations']:,}"


def seen_channels(row: Row) -> int:
    """Return the input channels of a filter."""
    return int(row["in_channels"]) // int(row["groups"])


def weight_work(row: Row, with_bias: bool = False) -> str:
    """Return the product of the weights; empty for a layer without weights."""
    bias = f" + {row['biases']:,}" if with_bias and row["biases"] else ""
    result = row["weights"] + (row["biases"] if with_bias else 0)
    if row["kind"] == CONVOLUTION:
        kernel = f"{row['kernel']} × {row['kernel']} × {seen_channels(row)}"
        return f"{row['out_channels']} × ({kernel}){bias} = {result:,}"
    if row["kind"] == LINEAR:
        return f"{linear_inputs(row):,} × {row['out_channels']:,}{bias} = {result:,}"
    return ""


def mac_work(row: Row) -> str:
    if row["kind"] == CONVOLUTION:
        kernel = f"{row['kernel']} × {row['kernel']} × {seen_channels(row)}"
        return f"{row['out_size']} × {row['out_size']} × {row['out_channels']} × ({kernel}) = {row['macs']:,}"
    return f"{linear_inputs(row):,} × {row['out_channels']:,} = {row['macs']:,}" if row["kind"] == LINEAR else ""


def linear_inputs(row: Row) -> int:
    return int(row["weights"]) // int(row["out_channels"])
