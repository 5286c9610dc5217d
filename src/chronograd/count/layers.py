"""Layer tables: the cost of every module call, and the totals.

A layer is one call of a module that itself runs operators. A shared module has a row per call, and its parameters are in the
first. Parameters of modules that are never called (an attention's output projection) belong to the nearest called module above.

`activations` of a row are the elements of its output. Their total follows the published tables: the input and the outputs of
convolutions, linear layers, attention and pooling. Outputs of norms, activation functions and dropout count in the memory, not
in this total.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from chronograd.answer import IF_KNOWN
from chronograd.count.receptive import ReceptiveField, receptive_fields
from chronograd.predict.memory import Memory, peak_memory
from chronograd.trace import CONV_KINDS, DTYPE_BYTES, MATRIX_KINDS, Operator, Tensor, Trace
from chronograd.units import FLOPS_PER_MAC

T = TypeVar("T")


@dataclass
class CountedLayer:
    """One row, with amounts at the batch of the table.

    Attributes:
        weights: parameters that are not biases.
        output_shape: with the batch dimension.
        activations: elements of the output; 0 for a layer that writes in place or returns a view.
        receptive_field: pixels (one number, or one per axis if they differ), `global`, or None without an image.
        stride: input pixels between neighbouring outputs, likewise.
        macs_backward: multiply-adds of the backward pass.
        work: the formulas with their numbers; None unless requested.
    """

    name: str
    call: int
    module: str
    kind: str
    output_shape: list[int]
    params: int
    weights: int
    activations: int
    activation_bytes: int
    macs: int
    flops: int
    macs_backward: int
    vector_flops: int
    receptive_field: int | list[int] | str | None = None
    stride: int | float | list[float] | None = None
    work: list[str] | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class CountedKind:
    """All operators of a kind, in both passes and the update; FLOPs are those of matrix work."""

    operators: int = 0
    flops: int = 0
    vector_flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CountedMemory(Memory):
    """Bytes at the peak of a step, including the state of the optimizer."""

    optimizer: str


@dataclass(frozen=True)
class Counted:
    """The result of `count`. Amounts are those of a batch.

    Attributes:
        input_shapes: of each argument, with the batch dimension.
        trained_params: parameters that receive a gradient.
        weights: parameters that are not biases.
        params_keras: the number that Keras prints for this network; `params_keras_parts` add up to it.
        conv_share: share of convolutions in the MACs; None without MACs.
        memory_bytes: the sum of `memory`.
        uncounted: number of calls of each operator without a formula; if there is any, `is_lower_bound`.
        by_kind: by kind of operator.
        versions: of the libraries used for the trace.
    """

    network: str
    batch: int
    mode: str
    loss: str | None
    input_shapes: list[list[int]]
    convention: str
    params: int
    trained_params: int
    weights: int
    params_keras: int
    params_keras_parts: dict[str, int]
    buffers: int
    macs: int
    conv_share: float | None
    flops_forward: int
    flops_backward: int
    vector_flops_forward: int
    vector_flops_backward: int
    activations: int
    memory_bytes: int
    memory: CountedMemory
    uncounted: dict[str, int]
    is_lower_bound: bool
    by_kind: dict[str, CountedKind]
    layers: list[CountedLayer]
    notes: list[str]
    versions: dict[str, str]


def layers(trace: Trace, batch: int = 1) -> list[CountedLayer]:
    """Return the rows in the order in which layers finish."""
    groups: dict[tuple[str, int], list[Operator]] = defaultdict(list)
    backward: dict[tuple[str, int], int] = defaultdict(int)
    last: dict[tuple[str, int], int] = {}
    for index, op in enumerate(trace.operators):
        key = (op.module, op.call)
        if op.phase == "backward":
            backward[key] += op.macs.at(batch)
        elif op.module != "loss":
            groups[key].append(op)
            last[key] = index
    fields = receptive_fields(trace)
    parameters = trace.parameters()
    owners = _owners(parameters, {name for name, _ in groups})
    rows = []
    for name, call in sorted(groups, key=lambda key: last[key]):
        ops = groups[name, call]
        params = owners.pop(name, []) if call == 0 else []
        row = _row(trace, batch, ops, params, fields)
        row.macs_backward = backward[name, call]
        row.work = _work(trace, batch, row, _main(ops, batch), {n: parameters[n].shape_at(1) for n, _ in params})
        rows.append(row)
    for name, params in owners.items():
        count = sum(n for _, n in params)
        weights = sum(n for p, n in params if not _is_bias(p))
        rows.append(CountedLayer(name, 0, "", "parameter", [], count, weights, 0, 0, 0, 0, 0, 0))
    return rows


def _owners(parameters: dict[str, Tensor], called: set[str]) -> dict[str, list[tuple[str, int]]]:
    """Return parameters (name, count) by the module whose row contains them."""
    owners: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, tensor in parameters.items():
        path = name.rpartition(".")[0]
        own = path
        while own not in called and own:
            own = own.rpartition(".")[0]
        owners[own if own in called else path].append((name, tensor.numel_at(1)))
    return owners


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last == "bias" or last.endswith("_bias")


def _row(
    trace: Trace,
    batch: int,
    ops: list[Operator],
    params: list[tuple[str, int]],
    fields: dict[int, ReceptiveField],
) -> CountedLayer:
    """Return the row of the operators of one module call, without its backward pass and its formulas."""
    last = next((o for o in reversed(ops) if o.outputs), ops[-1])
    shape: list[int] = []
    elements = element_bytes = 0
    where = None
    if last.outputs:
        out = trace.tensors[last.outputs[0]]
        shape = list(out.shape_at(batch))
        where = fields.get(last.outputs[0])
        inputs = {trace.tensors[i].storage for o in ops for i in o.inputs}
        made = {trace.tensors[i].storage for o in ops for i in o.outputs}
        if out.storage not in inputs - made and not _is_in_place(trace, ops, out.storage):
            elements = math.prod(shape)
            element_bytes = elements * DTYPE_BYTES.get(out.dtype, 4)
    macs = sum(o.macs.at(batch) for o in ops)
    layer = CountedLayer(
        name=ops[0].module,
        call=ops[0].call,
        module=trace.modules.get(ops[0].module, ""),
        kind=_main(ops, batch).kind,
        output_shape=shape,
        params=sum(n for _, n in params),
        weights=sum(n for p, n in params if not _is_bias(p)),
        activations=elements,
        activation_bytes=element_bytes,
        macs=macs,
        flops=FLOPS_PER_MAC * macs,
        macs_backward=0,
        vector_flops=sum(o.vector_flops.at(batch) for o in ops),
    )
    if where is not None:
        layer.receptive_field = "global" if where.size is None else _one(where.size)
        layer.stride = _one([float(s) if s.denominator > 1 else int(s) for s in where.stride])
    return layer


def _main(ops: list[Operator], batch: int) -> Operator:
    """Return the operator with the most work."""
    return max(ops, key=lambda o: (o.macs.at(batch), o.vector_flops.at(batch), o.written_bytes.at(batch)))


def _one(values: Sequence[T]) -> T | list[T]:
    """Return one number if all axes agree, else all of them."""
    first, *rest = values
    return first if all(v == first for v in rest) else list(values)


def _is_in_place(trace: Trace, ops: list[Operator], storage: int) -> bool:
    """Return whether a layer's output is in the memory of its input."""
    first_seen = next(
        (o for o in ops if any(trace.tensors[i].storage == storage for i in (*o.inputs, *o.outputs))), None
    )
    return first_seen is not None and any(trace.tensors[i].storage == storage for i in first_seen.inputs)


def _work(trace: Trace, batch: int, layer: CountedLayer, op: Operator, params: dict[str, tuple[int, ...]]) -> list[str]:
    """Return the formulas of a row with their numbers."""
    lines = []
    if op.kind in CONV_KINDS and op.attributes:
        a = op.attributes
        kernel = " × ".join(str(k) for k in a["kernel"])
        per_group = a["in_channels"] // a["groups"]
        size = " × ".join(str(d) for d in layer.output_shape)
        lines.append(f"MACs = output {size} × in channels per group {per_group} × kernel {kernel} = {layer.macs:,}")
    elif macs := op.macs.at(batch):
        shapes = [list(trace.tensors[i].shape_at(batch)) for i in op.inputs]
        listed = ", ".join("×".join(str(d) for d in s) for s in shapes)
        others = "" if layer.macs == macs else f"; with the layer's other products {layer.macs:,}"
        lines.append(f"MACs of {op.kind} of {listed} = {macs:,}{others}")
    if layer.macs:
        lines.append(f"FLOPs = 2 × MACs = {layer.flops:,}")
    if params:
        parts = " + ".join(
            " × ".join(str(d) for d in shape) + f" ({name.rpartition('.')[2]})" for name, shape in params.items()
        )
        lines.append(f"params = {parts} = {layer.params:,}")
    if layer.activations:
        size = " × ".join(str(d) for d in layer.output_shape)
        lines.append(f"activations = {size} = {layer.activations:,}; × {layer.activation_bytes // layer.activations} B")
    is_window = bool(op.attributes.get("kernel")) and not op.attributes.get("transposed")
    if is_window and isinstance(layer.receptive_field, int) and isinstance(layer.stride, int):
        k, s = op.attributes["kernel"][0], op.attributes["stride"][0]
        dilation = op.attributes.get("dilation", [1])[0]
        before = layer.stride // s
        size_before = layer.receptive_field - (k - 1) * dilation * before
        lines.append(
            f"receptive field = {size_before} + ({k} − 1) × {dilation} × {before} = {layer.receptive_field}; "
            f"stride = {before} × {s} = {layer.stride}"
        )
    return lines


def total_activations(trace: Trace, batch: int = 1) -> int:
    """Return the elements of the input and of the outputs of convolutions, linear layers, attention and pooling."""
    inputs = sum(trace.tensors[i].numel_at(batch) for i in trace.inputs)
    kinds = {*MATRIX_KINDS, "pooling"}
    return inputs + sum(
        trace.tensors[op.outputs[0]].numel_at(batch)
        for op in trace.operators
        if op.phase == "forward"
        and op.module != "loss"
        and op.outputs
        and (op.kind in kinds or _is_global_pool(trace, op))
    )


def _is_global_pool(trace: Trace, op: Operator) -> bool:
    """Return whether a reduction is the mean over space of a pooling module."""
    return op.kind == "reduction" and "Pool" in trace.modules.get(op.module, "")


def keras_parts(trace: Trace) -> dict[str, int]:
    """Return the parts that Keras's `count_params` adds up for the same network; it includes non-trainable statistics.

    If Keras builds the network with other layers (biases before batch norm, input normalisation), `keras_extra` of that network
    is the difference.
    """
    statistics = sum(
        t.numel_at(1) for n, t in trace.buffers().items() if n.rpartition(".")[2] in ("running_mean", "running_var")
    )
    return {"parameters": trace.params, "batch-norm statistics": statistics, **trace.keras_extra}


def summary(trace: Trace, batch: int = 1, optimizer: str = "sgd-momentum") -> Counted:
    """Count a step of a trace at a batch."""
    macs = trace.macs(batch)
    conv = sum(op.macs.at(batch) for op in trace.select("forward", CONV_KINDS))
    memory, keras = peak_memory(trace, batch, optimizer), keras_parts(trace)
    kinds: dict[str, list[Operator]] = {}
    for op in trace.operators:
        kinds.setdefault(op.kind, []).append(op)
    return Counted(
        network=trace.network,
        batch=batch,
        mode=trace.mode,
        loss=trace.loss,
        input_shapes=[[d.at(batch) for d in s] for s in trace.input_shapes],
        convention="1 MAC = 2 FLOPs; MACs of convolutions, GEMMs and attention; biases not counted"
        + ("; a complex MAC counts as four" if any(t.dtype.startswith("complex") for t in trace.tensors) else ""),
        params=trace.params,
        trained_params=trace.trained_params,
        weights=sum(t.numel_at(1) for n, t in trace.parameters().items() if not _is_bias(n)),
        params_keras=sum(keras.values()),
        params_keras_parts=keras,
        buffers=sum(t.numel_at(1) for t in trace.buffers().values()),
        macs=macs,
        conv_share=conv / macs if macs else None,
        flops_forward=trace.flops(batch, "forward"),
        flops_backward=trace.flops(batch, "backward"),
        vector_flops_forward=sum(op.vector_flops.at(batch) for op in trace.select("forward")),
        vector_flops_backward=sum(op.vector_flops.at(batch) for op in trace.select("backward")),
        activations=total_activations(trace, batch),
        memory_bytes=memory.total,
        memory=CountedMemory(**vars(memory), optimizer=optimizer),
        uncounted=trace.uncounted(),
        is_lower_bound=bool(trace.uncounted()),
        by_kind={kind: _counted_kind(ops, batch) for kind, ops in kinds.items()},
        layers=layers(trace, batch),
        notes=trace.notes,
        versions=trace.versions,
    )


def _counted_kind(ops: Sequence[Operator], batch: int) -> CountedKind:
    return CountedKind(
        len(ops),
        sum(FLOPS_PER_MAC * op.macs.at(batch) for op in ops),
        sum(op.vector_flops.at(batch) for op in ops),
        sum(op.read_bytes.at(batch) + op.written_bytes.at(batch) for op in ops),
    )
