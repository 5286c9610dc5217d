"""Receptive field and stride of every tensor, computed on the graph of a trace.

Each tensor carries, per spatial axis of the input, its receptive field r and stride j in input pixels.
A window of size k, dilation d and stride s makes `r + (k - 1)·d·j` and `j·s`; branches that meet take
the largest r. A tensor also remembers which of its dimensions walk over space, through views and
permutations, so that a linear layer over channels leaves r alone and one over a flattened image makes it
global. Global for good: attention, anything that reduces or multiplies over space, and gating by such.

Left out: statistics of norms (by convention they do not count), and the effect of padding at the border.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from chronograd.trace import Operator, Trace

Tags = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Field:
    """Receptive field of one tensor.

    Attributes:
        size: pixels per spatial axis; None = global, the whole input.
        stride: input pixels between neighbours, per axis.
        tags: for each dimension of the tensor, the spatial axes it walks over.
    """

    size: tuple[int, ...] | None
    stride: tuple[Fraction, ...]
    tags: Tags


def receptive_fields(trace: Trace, batch: int = 2) -> dict[int, Field]:
    """Field by tensor id, after the last forward operator that wrote it.

    Tensors that do not depend on the image (parameters, constants) have none. Only networks whose
    first input is an image (N, C, H, W), or has at least one spatial dimension, have fields.
    """
    fields: dict[int, Field] = {}
    for tid in trace.inputs[:1]:
        rank = len(trace.tensors[tid].shape)
        axes = rank - 2
        if axes < 1 or not trace.tensors[tid].dtype.startswith(("float", "bfloat")):
            return {}
        tags = (frozenset(), frozenset(), *(frozenset([a]) for a in range(axes)))
        fields[tid] = Field((1,) * axes, (Fraction(1),) * axes, tags)
    shapes = [t.shape_at(batch) for t in trace.tensors]
    latest: dict[int, int] = {}
    for op in trace.operators:
        if op.phase != "forward":
            continue
        inputs = op.inputs
        if op.kind == "view" and not any(i in fields for i in inputs):
            # A view changed in place was written down with its new strides: look its storage up.
            inputs = tuple(latest[s] for s in (trace.tensors[i].storage for i in inputs) if s in latest)
        found = _apply(op, inputs, fields, shapes)
        if found is None:
            continue
        for out in op.outputs:
            fields[out] = replace(found, tags=_fit(found.tags, len(shapes[out])))
            latest[trace.tensors[out].storage] = out
    return fields


def _apply(
    op: Operator, inputs: tuple[int, ...], fields: dict[int, Field], shapes: list[tuple[int, ...]]
) -> Field | None:
    known = [(i, fields[i]) for i in inputs if i in fields]
    if not known or not op.outputs:
        return None
    first = known[0][1]
    size, stride = _merge([f for _, f in known])
    out_shape = shapes[op.outputs[0]]
    merged = Field(size, stride, first.tags)
    kind = op.kind
    if kind.startswith("conv") or (kind == "pooling" and "kernel" in op.attributes):
        return _window(op, merged, len(out_shape))
    if kind == "pooling":
        return _adaptive(merged, shapes[known[0][0]], out_shape)
    if kind == "attention":
        return replace(merged, size=None)
    if kind in ("gemm", "batched_gemm"):
        return _product(op, known, merged, out_shape)
    if kind == "reduction":
        return _reduction(op, merged, shapes[known[0][0]], out_shape)
    if kind == "softmax":
        return merged if not any(_dims(op, first.tags)) else replace(merged, size=None)
    if kind in ("view", "copy", "gather"):
        return _moved(op, known, merged, shapes, out_shape)
    # Elementwise and norms: the widest operand gives the dimensions.
    widest = max(known, key=lambda k: len(shapes[k[0]]))[1]
    tags = _union([_fit(f.tags, len(out_shape)) for _, f in known]) if len(known) > 1 else widest.tags
    return replace(merged, tags=tags)


def _merge(fields: list[Field]) -> tuple[tuple[int, ...] | None, tuple[Fraction, ...]]:
    stride = tuple(max(s) for s in zip(*(f.stride for f in fields), strict=True))
    if any(f.size is None for f in fields):
        return None, stride
    return tuple(max(s) for s in zip(*(f.size for f in fields if f.size), strict=True)), stride


def _window(op: Operator, field: Field, rank: int) -> Field:
    """A kernel slides over the last dimensions."""
    kernel, step = op.attributes["kernel"], op.attributes["stride"]
    dilation = op.attributes.get("dilation", [1] * len(kernel))
    size, stride = list(field.size or ()), list(field.stride)
    for axis, (k, s, d) in enumerate(zip(kernel, step, dilation, strict=True)):
        dim = rank - len(kernel) + axis
        for a in field.tags[dim] if dim < len(field.tags) else ():
            if op.attributes.get("transposed"):
                stride[a] = stride[a] / s
            if size:
                size[a] += int((k - 1) * d * stride[a])
            if not op.attributes.get("transposed"):
                stride[a] = stride[a] * s
    return Field(tuple(size) if field.size else None, tuple(stride), field.tags)


def _adaptive(field: Field, in_shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Field:
    """Adaptive pooling: windows of ceil(in / out); to one pixel it is global."""
    size, stride = list(field.size or ()), list(field.stride)
    for dim in range(2, len(in_shape)):
        if out_shape[dim] == 1 and in_shape[dim] > 1:
            return replace(field, size=None)
        window = -(-in_shape[dim] // out_shape[dim])
        for a in field.tags[dim]:
            if size:
                size[a] += int((window - 1) * stride[a])
            stride[a] *= Fraction(in_shape[dim], out_shape[dim])
    return Field(tuple(size) if field.size else None, tuple(stride), field.tags)


def _product(op: Operator, known: list[tuple[int, Field]], field: Field, out_shape: tuple[int, ...]) -> Field:
    """A product mixes the last dimension of its first operand with the last but one of its second."""
    operands = op.inputs[-2:]
    mixes = False
    for position, tid in enumerate(operands):
        match = dict(known).get(tid)
        if match is not None:
            tags = match.tags
            dim = len(tags) - 1 - position if len(tags) > 1 else 0
            mixes = mixes or bool(tags[dim])
    tags_by_dim: list[frozenset[int]] = [frozenset()] * len(out_shape)
    for position, tid in enumerate(operands):
        match = dict(known).get(tid)
        if match is None:
            continue
        tags = match.tags
        for dim in range(len(out_shape) - 2):
            tags_by_dim[dim] = tags_by_dim[dim] | _fit(tags, len(out_shape))[dim]
        kept = -2 if position == 0 else -1
        if len(tags) > 1 and len(out_shape) > 1:
            tags_by_dim[kept] = tags_by_dim[kept] | tags[kept]
    return Field(None if mixes else field.size, field.stride, tuple(tags_by_dim))


def _reduction(op: Operator, field: Field, in_shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Field:
    """Reducing over a dimension that walks over space makes the result global."""
    dims = op.attributes.get("args", [None])
    reduced = dims[0] if dims else None
    rank = len(in_shape)
    chosen = range(rank) if reduced in (None, []) else [d % rank for d in _as_list(reduced)]
    is_global = any(field.tags[d] for d in chosen if d < len(field.tags) and in_shape[d] > 1)
    keeps = len(out_shape) == rank
    tags = tuple(frozenset() if d in chosen else t for d, t in enumerate(field.tags) if keeps or d not in chosen)
    return Field(None if is_global else field.size, field.stride, tags)


def _moved(
    op: Operator,
    known: list[tuple[int, Field]],
    field: Field,
    shapes: list[tuple[int, ...]],
    out_shape: tuple[int, ...],
) -> Field:
    tags, in_shape = known[0][1].tags, shapes[known[0][0]]
    args = op.attributes.get("args", [])
    name = op.name
    if name == "permute" and args:
        return replace(field, tags=tuple(tags[d % len(tags)] for d in args[0]))
    if name in ("transpose", "transpose_") and len(args) > 1:
        order = list(range(len(tags)))
        a, b = args[0] % len(tags), args[1] % len(tags)
        order[a], order[b] = order[b], order[a]
        return replace(field, tags=tuple(tags[d] for d in order))
    if name == "t":
        return replace(field, tags=tuple(reversed(tags)))
    if name in ("unsqueeze", "unsqueeze_") and args:
        at = args[0] % (len(tags) + 1)
        return replace(field, tags=(*tags[:at], frozenset(), *tags[at:]))
    if name in ("select", "unbind") and len(tags) == len(out_shape) + 1:
        at = (args[0] if args and args[0] is not None else 0) % len(tags)
        return replace(field, tags=(*tags[:at], *tags[at + 1 :]))
    if name in ("cat", "stack"):
        return replace(field, tags=_union([_fit(f.tags, len(out_shape)) for _, f in known]))
    if len(out_shape) == len(tags) and name not in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
        return field
    return replace(field, tags=_reshape(tags, in_shape, out_shape))


def _reshape(tags: Tags, in_shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Tags:
    """Dimensions are grouped where products agree; a group's tags go to all it becomes."""
    result: list[frozenset[int]] = []
    i = o = 0
    while o < len(out_shape):
        inside: frozenset[int] = tags[i] if i < len(tags) else frozenset()
        a = in_shape[i] if i < len(in_shape) else 1
        b = out_shape[o]
        start, i, o = o, i + 1, o + 1
        while a != b:
            if a < b and i < len(in_shape):
                inside, a, i = inside | tags[i], a * in_shape[i], i + 1
            elif o < len(out_shape):
                b, o = b * out_shape[o], o + 1
            else:
                break
        while i < len(in_shape) and in_shape[i] == 1 and (o >= len(out_shape) or out_shape[o] != 1):
            i += 1
        result += [inside if out_shape[k] > 1 else frozenset() for k in range(start, o)]
    return tuple(result)


def _fit(tags: Tags, rank: int) -> Tags:
    """Tags of a tensor broadcast to `rank` dimensions, aligned at the last."""
    if len(tags) >= rank:
        return tags[len(tags) - rank :]
    return (frozenset(),) * (rank - len(tags)) + tags


def _union(all_tags: list[Tags]) -> Tags:
    return tuple(frozenset().union(*t) for t in zip(*all_tags, strict=True))


def _dims(op: Operator, tags: Tags) -> list[bool]:
    """For a softmax: whether its dimension walks over space."""
    args = op.attributes.get("args", [])
    dim = args[0] if args and isinstance(args[0], int) else -1
    return [bool(tags[dim % len(tags)])] if tags else []


def _as_list(value: Any) -> list[int]:
    return list(value) if isinstance(value, list) else [value]
