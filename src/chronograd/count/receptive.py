"""Receptive field and stride of every tensor, computed on the graph of a trace.

Each tensor has, per spatial axis of the input, the width of the input region that adjacent elements depend on. A window of size
k, dilation d and stride s turns a distance of m steps into `m·s + (k - 1)·d` steps before it; a transposed one into `⌊(m + (k -
1)·d) / s⌋`. The receptive field is one pixel more than the distance at the input for m = 0. If branches meet, the largest
counts.

A tensor also records which of its dimensions run over space, through views and permutations. So a linear layer over channels
leaves the field unchanged, and one over a flattened image makes it global. These operators make it global: attention (also in
windows), any operator that reduces, multiplies, transforms or samples over space, and gating by such a tensor.

Left out: statistics of norms (by convention they do not count), and padding at the border. The offset of a branch does not
count either: slices shifted against each other have the field of one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from chronograd.trace import Operator, Trace

# A dimension as the product of the dimensions merged into it, in order: (size, the spatial axes it runs over).
Dim = tuple[tuple[int, frozenset[int]], ...]
Tags = tuple[Dim, ...]
# Steps (a, b, c), the last applied first: a distance of m becomes ⌊(a·m + b) / c⌋.
Steps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ReceptiveField:
    """Receptive field of one tensor.

    Attributes:
        steps: per spatial axis, from a distance in this tensor to one in the input; None = global.
        stride: input pixels between neighbours, per axis.
        tags: the dimensions of the tensor.
    """

    steps: tuple[Steps, ...] | None
    stride: tuple[Fraction, ...]
    tags: Tags

    @property
    def size(self) -> tuple[int, ...] | None:
        """Return the pixels per spatial axis; None = global, the whole input."""
        return None if self.steps is None else tuple(1 + _stretch(s, 0) for s in self.steps)

    def then(self, axes: frozenset[int], step: tuple[int, int, int]) -> ReceptiveField:
        """Return the field after one more step along some axes."""
        stride, steps = list(self.stride), list(self.steps or ())
        for axis in axes:
            stride[axis] *= Fraction(step[0], step[2])
            if steps:
                steps[axis] = _append(steps[axis], step)
        return ReceptiveField(tuple(steps) if steps else None, tuple(stride), self.tags)


def _append(steps: Steps, step: tuple[int, int, int]) -> Steps:
    """Append a step. One without division is merged into the last step, which is exact for integers."""
    if step[2] > 1 or not steps:
        return (*steps, step)
    a, b, c = steps[-1]
    return (*steps[:-1], (a * step[0], a * step[1] + b, c))


def _stretch(steps: Steps, length: int) -> int:
    for a, b, c in reversed(steps):
        length = (a * length + b) // c
    return length


def receptive_fields(trace: Trace, batch: int = 2) -> dict[int, ReceptiveField]:
    """Return the field by tensor id, after the last forward operator that wrote it.

    Tensors that do not depend on the image (parameters, constants) have none. The network's first input must be an image (N, C,
    H, W), or have at least one spatial dimension.
    """
    fields: dict[int, ReceptiveField] = {}
    shapes = [t.shape_at(batch) for t in trace.tensors]
    for tid in trace.inputs[:1]:
        rank = len(trace.tensors[tid].shape)
        axes = rank - 2
        if axes < 1 or not trace.tensors[tid].dtype.startswith(("float", "bfloat")):
            return {}
        own = [frozenset[int](), frozenset[int](), *(frozenset([a]) for a in range(axes))]
        tags = tuple(((size, axis),) for size, axis in zip(shapes[tid], own, strict=True))
        fields[tid] = ReceptiveField(((),) * axes, (Fraction(1),) * axes, tags)
    latest: dict[int, int] = {}
    for op in trace.operators:
        if op.phase != "forward":
            continue
        inputs = op.inputs
        if op.kind == "view" and not any(i in fields for i in inputs):
            # A view changed in place was recorded with its new strides, so look up its storage.
            inputs = tuple(latest[s] for s in (trace.tensors[i].storage for i in inputs) if s in latest)
        found = _apply(op, inputs, fields, shapes)
        if found is None:
            continue
        for out in op.outputs:
            fields[out] = replace(found, tags=_sized(found.tags, shapes[out]))
            latest[trace.tensors[out].storage] = out
    return fields


def _apply(
    op: Operator, inputs: tuple[int, ...], fields: dict[int, ReceptiveField], shapes: list[tuple[int, ...]]
) -> ReceptiveField | None:
    known = [(i, fields[i]) for i in inputs if i in fields]
    if not known or not op.outputs:
        return None
    first = known[0][1]
    out_shape = shapes[op.outputs[0]]
    merged = _merge([f for _, f in known])
    kind = op.kind
    if (kind.startswith("conv") or kind == "pooling") and "kernel" in op.attributes:
        return _window(op, merged, len(out_shape))
    if kind == "pooling":
        return _adaptive(merged, shapes[known[0][0]], out_shape)
    if kind == "attention" or kind.startswith("conv") or op.name.startswith(_ANYWHERE):
        return replace(merged, steps=None)
    if op.name.lstrip("_").startswith("upsample"):
        return _resampled(op, merged, shapes[known[0][0]], out_shape)
    if kind in ("gemm", "batched_gemm"):
        return _product(op, known, merged, out_shape)
    if kind == "reduction":
        return _reduction(op, merged, shapes[known[0][0]], out_shape)
    if kind == "softmax":
        return replace(merged, steps=None) if _is_over_space(op, first.tags) else merged
    if kind in ("view", "copy", "gather"):
        return _moved(op, known, merged, shapes, out_shape)
    # Elementwise operators and norms: the widest operand gives the dimensions.
    return replace(merged, tags=_union([f.tags for _, f in known], len(out_shape)))


# Operators that read at positions given by an input, or everywhere.
_ANYWHERE = ("_fft", "grid_sampler")


def _merge(fields: list[ReceptiveField]) -> ReceptiveField:
    """Return the largest of several fields, with the dimensions of the first."""
    first = fields[0]
    stride = tuple(max(s) for s in zip(*(f.stride for f in fields), strict=True))
    branches = [f.steps for f in fields if f.steps is not None]
    if len(branches) < len(fields):
        return ReceptiveField(None, stride, first.tags)
    steps = tuple(max(axis, key=lambda s: (_stretch(s, 0), _stretch(s, 1))) for axis in zip(*branches, strict=True))
    return ReceptiveField(steps, stride, first.tags)


def _window(op: Operator, field: ReceptiveField, rank: int) -> ReceptiveField:
    """Return the field after a kernel that slides over the last dimensions."""
    kernel, step = op.attributes["kernel"], op.attributes["stride"]
    dilation = op.attributes.get("dilation", [1] * len(kernel))
    for axis, (k, s, d) in enumerate(zip(kernel, step, dilation, strict=True)):
        dim = rank - len(kernel) + axis
        reach = (k - 1) * d
        if dim < len(field.tags):
            field = field.then(
                _axes(field.tags[dim]), (1, reach, s) if op.attributes.get("transposed") else (s, reach, 1)
            )
    return field


def _adaptive(field: ReceptiveField, in_shape: tuple[int, ...], out_shape: tuple[int, ...]) -> ReceptiveField:
    """Return the field after adaptive pooling: output i reads from ⌊i·in/out⌋ up to ⌈(i + 1)·in/out⌉; one output pixel is
    global.
    """
    for dim in range(2, len(in_shape)):
        before, after = in_shape[dim], out_shape[dim]
        if after == 1 and before > 1:
            return replace(field, steps=None)
        window = max(-(-(i + 1) * before // after) - i * before // after for i in range(after))
        field = field.then(_axes(field.tags[dim]), (before, (window - 1) * after, after))
    return field


def _resampled(
    op: Operator, field: ReceptiveField, in_shape: tuple[int, ...], out_shape: tuple[int, ...]
) -> ReceptiveField:
    """Return the field after resampling by out / in: that of a transposed window of 1, 2 or 4 times that size."""
    reads = 1 if "nearest" in op.name else 4 if "bicubic" in op.name else 2
    for dim in range(2, len(in_shape)):
        before, after = in_shape[dim], out_shape[dim]
        field = field.then(_axes(field.tags[dim]), (before, max(reads * after - before, (reads - 1) * after), after))
    return field


def _product(
    op: Operator, known: list[tuple[int, ReceptiveField]], field: ReceptiveField, out_shape: tuple[int, ...]
) -> ReceptiveField:
    """Return the field after a product of the last dimension of its first operand with the last but one of its second."""
    fields, rank = dict(known), len(out_shape)
    dims: list[Dim] = [()] * rank
    mixes = False
    for position, tid in enumerate(op.inputs[-2:]):
        if tid not in fields:
            continue
        tags = fields[tid].tags
        mixes = mixes or bool(_axes(tags[len(tags) - 1 - position if len(tags) > 1 else 0]))
        remaining = [*range(rank - 2), rank - 2 + position] if rank > 1 and len(tags) > 1 else range(rank - 2)
        fitted = _fit(tags, rank)
        for dim in remaining:
            dims[dim] = _joined(dims[dim], fitted[dim])
    return ReceptiveField(None if mixes else field.steps, field.stride, tuple(dims))


def _reduction(
    op: Operator, field: ReceptiveField, in_shape: tuple[int, ...], out_shape: tuple[int, ...]
) -> ReceptiveField:
    """Return the field after a reduction, global if a reduced dimension runs over space."""
    dims = op.attributes.get("args", [None])
    reduced = dims[0] if dims else None
    rank = len(in_shape)
    chosen = (
        range(rank)
        if reduced in (None, [])
        else [d % rank for d in (reduced if isinstance(reduced, list) else [reduced])]
    )
    is_global = any(_axes(field.tags[d]) for d in chosen if d < len(field.tags) and in_shape[d] > 1)
    keeps = len(out_shape) == rank
    tags = tuple(() if d in chosen else t for d, t in enumerate(field.tags) if keeps or d not in chosen)
    return ReceptiveField(None if is_global else field.steps, field.stride, tags)


def _moved(
    op: Operator,
    known: list[tuple[int, ReceptiveField]],
    field: ReceptiveField,
    shapes: list[tuple[int, ...]],
    out_shape: tuple[int, ...],
) -> ReceptiveField:
    tags = known[0][1].tags
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
        return replace(field, tags=(*tags[:at], (), *tags[at:]))
    if name in ("select", "unbind") and len(tags) == len(out_shape) + 1:
        at = (args[0] if args and args[0] is not None else 0) % len(tags)
        return replace(field, tags=(*tags[:at], *tags[at + 1 :]))
    if name == "slice" and len(args) > 3 and args[3] not in (None, 1):
        return field.then(_axes(tags[args[0] % len(tags)]), (args[3], 0, 1))
    if name in ("pixel_shuffle", "pixel_unshuffle") and args:
        r = args[0]
        for dim in (-2, -1):
            field = field.then(_axes(tags[dim]), (1, r - 1, r) if name == "pixel_shuffle" else (r, r - 1, 1))
        return field
    if name in ("cat", "stack"):
        at = (args[1] if len(args) > 1 and args[1] is not None else 0) % len(out_shape)
        spread = [f.tags if name == "cat" else (*f.tags[:at], (), *f.tags[at:]) for _, f in known]
        return replace(field, tags=_union(spread, len(out_shape)))
    if len(out_shape) == len(tags) and name not in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
        return field
    return replace(field, tags=_reshape(tags, out_shape))


def _reshape(tags: Tags, out_shape: tuple[int, ...]) -> Tags:
    """Return tags for a new shape, with factors distributed in order; if sizes do not divide, all later dimensions share their
    axes.
    """
    factors = [factor for dim in tags for factor in dim if factor[0] != 1]
    result: list[Dim] = []
    for size in out_shape:
        dim: list[tuple[int, frozenset[int]]] = []
        while size > 1 and factors:
            have, axes = factors.pop(0)
            if size % have == 0:
                dim.append((have, axes))
                size //= have
            elif have % size == 0:
                dim.append((size, axes))
                factors.insert(0, (have // size, axes))
                size = 1
            else:
                shared = axes.union(*(f[1] for f in factors))
                return (*result, *(((d, shared),) for d in out_shape[len(result) :]))
        result.append(tuple(dim))
    return tuple(result)


def _axes(dim: Dim) -> frozenset[int]:
    return frozenset[int]().union(*(axes for _, axes in dim))


def _sized(tags: Tags, shape: tuple[int, ...]) -> Tags:
    """Return tags for a shape; a dimension whose factors do not multiply to its size becomes one factor."""
    return tuple(
        dim if math.prod(n for n, _ in dim) == size and dim else ((size, _axes(dim)),)
        for dim, size in zip(_fit(tags, len(shape)), shape, strict=True)
    )


def _fit(tags: Tags, rank: int) -> Tags:
    """Return the tags of a tensor broadcast to `rank` dimensions, aligned at the last."""
    if len(tags) >= rank:
        return tags[len(tags) - rank :]
    return ((),) * (rank - len(tags)) + tags


def _joined(a: Dim, b: Dim) -> Dim:
    """Return one dimension that runs over the axes of both; the one with more axes keeps its factors."""
    one, two = _axes(a), _axes(b)
    if two <= one and a:
        return a
    return b if one <= two and b else ((math.prod(n for n, _ in a), one | two),)


def _union(all_tags: list[Tags], rank: int) -> Tags:
    dims: Tags = ((),) * rank
    for tags in all_tags:
        dims = tuple(_joined(a, b) for a, b in zip(dims, _fit(tags, rank), strict=True))
    return dims


def _is_over_space(op: Operator, tags: Tags) -> bool:
    """Return whether the dimension of a softmax runs over space."""
    args = op.attributes.get("args", [])
    dim = args[0] if args and isinstance(args[0], int) else -1
    return bool(tags and _axes(tags[dim % len(tags)]))
