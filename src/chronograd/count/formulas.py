"""Properties of one aten operator: its kind, multiply-adds, other arithmetic and memory traffic.

Formulas work on shapes, plain tuples of integers, so that one formula serves every batch. Only matrix work has MACs. A
convolution multiplies and adds once per weight and output element; its bias is not counted. Attention is `Q Kᵀ` and `P V`,
dense whether masked or not. `vector_flops` is all other arithmetic, in elementary operations per element. These numbers are
conventions, correct to a small factor. A multiply-add of complex numbers is four of real ones; PyTorch runs a complex
convolution as three real ones.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

Shape = tuple[int, ...]
Shapes = Sequence[Any]  # one Shape per tensor argument, a list of them for a tensor list, None for an absent one
Macs = Callable[[Sequence[Any], Shapes, Shapes], int]


def conv_kind(weight: Shape, groups: int, transposed: bool = False) -> str:
    """Return the kind of a convolution from its weight (out, in / groups, *kernel)."""
    kernel = weight[2:]
    in_channels = weight[0] if transposed else weight[1] * groups
    if groups > 1:
        return "conv_depthwise" if groups == in_channels else "conv_grouped"
    if all(k == 1 for k in kernel):
        return "conv_1x1"
    return "conv_3x3" if all(k == 3 for k in kernel) and len(kernel) == 2 else "conv_kxk"


def conv_macs(in_shape: Shape, weight: Shape, out_shape: Shape, transposed: bool) -> int:
    """Return output elements × in channels per group × kernel; for a transposed convolution, input instead of output elements.

    >>> conv_macs((1, 3, 224, 224), (64, 3, 3, 3), (1, 64, 224, 224), False)
    86704128
    """
    per_element = math.prod(weight[1:])
    return math.prod(in_shape if transposed else out_shape) * per_element


def _convolution(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return conv_macs(ins[0], ins[1], outs[0], bool(args[6]))


def _convolution_backward(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    # grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask. Each of the
    # two gradients has the multiplications of the forward pass, for any number of groups.
    grads: int = int(args[10][0]) + int(args[10][1])
    return grads * conv_macs(ins[1], ins[2], ins[0], bool(args[7]))


def _deform_conv(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(math.prod(outs[0]) * math.prod(ins[1][1:]))


def _matmul(first: int) -> Macs:
    """Return the formula of a GEMM of the tensor arguments `first` (…, m, k) and `first + 1` (…, k, n); earlier ones are added."""

    def macs(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
        a, b = ins[first], ins[first + 1]
        return int(math.prod(a) * (b[-1] if len(b) > 1 else 1))

    return macs


def _linear(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(math.prod(ins[0]) * ins[1][0])


def attention_macs(query: Shape, key: Shape, value: Shape) -> int:
    """Return the MACs of `Q Kᵀ` and `P V`: queries × keys × (head width of keys + of values).

    >>> attention_macs((1, 8, 10, 64), (1, 8, 10, 64), (1, 8, 10, 64)) == 2 * 8 * 10 * 10 * 64
    True
    """
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _trilinear(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    """Return the MACs of two products in turn: of the first two operands, summed over dimensions absent from the third, then
    with the third.

    i1, i2, i3, expand1, expand2, expand3, sumdim: each operand gets dimensions of size 1 at its `expand`.
    """
    sizes, has = [], []
    for shape, expand in zip(ins, args[3:6], strict=True):
        rest = iter(shape)
        dims = [1 if d in expand else next(rest) for d in range(len(shape) + len(expand))]
        sizes.append(dims)
        has.append([d not in expand for d in range(len(dims))])
    rank = len(sizes[0])
    size = [max(one[d] for one in sizes) for d in range(rank)]
    first = math.prod(size[d] for d in range(rank) if has[0][d] or has[1][d])
    is_summed = [d in args[6] and not has[2][d] for d in range(rank)]
    return first + math.prod(size[d] for d in range(rank) if not is_summed[d])


def _outer(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(math.prod(outs[0]))


def _squared_distances(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    """Return the MACs of one product of the rows, each extended by its square and a one."""
    return int(math.prod(outs[0]) * (ins[0][-1] + 2))


def _distances(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    """Return the operations of a difference, its power and a sum per coordinate of every pair of rows."""
    return int(3 * math.prod(outs[0]) * ins[0][-1])


def _distances_backward(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(4 * math.prod(ins[0]) * ins[1][-1])


def _bag(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    """Return the operations of a sum over the rows in use, for any size of the table."""
    return int(math.prod(ins[1]) * ins[0][-1])


# Operator → elementary operations by its shapes, if the largest tensor does not determine them.
ARITHMETIC: dict[str, tuple[str, Macs]] = {
    "_cdist_forward": ("elementwise", _distances),
    "_cdist_backward": ("elementwise", _distances_backward),
    **dict.fromkeys(
        ("_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward", "_embedding_bag_dense_backward"),
        ("gather", _bag),
    ),
}

# Operator → its kind and its MACs. Names as in native_functions.yaml.
MATRIX: dict[str, tuple[str, Macs]] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), ("conv", _convolution)),
    "convolution_backward": ("conv", _convolution_backward),
    **dict.fromkeys(("mm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm"), ("gemm", _matmul(0))),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "_sparse_addmm", "addmv"), ("gemm", _matmul(1))),
    "linear": ("gemm", _linear),
    "bmm": ("batched_gemm", _matmul(0)),
    **dict.fromkeys(("baddbmm", "baddbmm_", "addbmm", "addbmm_"), ("batched_gemm", _matmul(1))),
    "_euclidean_dist": ("batched_gemm", _squared_distances),
    "_trilinear": ("batched_gemm", _trilinear),
    **dict.fromkeys(("addr", "addr_"), ("gemm", _outer)),
    "_weight_int8pack_mm": ("gemm", _linear),
}

_TABLES = tomllib.loads((resources.files("chronograd.count") / "operators.toml").read_text(encoding="utf-8"))
WRITE_ONLY, WITH_DIMS = (frozenset(f"aten::{name}" for name in _TABLES[key]) for key in ("write_only", "with_dims"))
# Operator → family, kind, and the detail for that family: a formula, or operations per element.
RULES: dict[str, tuple[str, str, Any]] = {
    "torchvision::deform_conv2d": ("matrix", "conv_kxk", _deform_conv),
    **{f"profiler::{name}": ("view", "view", None) for name in ("_record_function_enter_new", "_record_function_exit")},
    **{f"aten::{name}": ("matrix", *rule) for name, rule in MATRIX.items()},
    **{f"aten::{name}": ("arithmetic", *rule) for name, rule in ARITHMETIC.items()},
    **{
        f"aten::{name}": (family, family, None)
        for family in ("view", "copy", "gather", "pooling")
        for name in _TABLES[family]
    },
    **{
        f"aten::{name}": ("vector", kind, int(operations))
        for kind, by_operations in _TABLES["operations"].items()
        for operations, names in by_operations.items()
        for name in names
    },
}


def fft_flops(elements: int, length: int) -> int:
    """Return 5 N log2 N per complex transform of length N, the convention of FFTW's authors."""
    return round(5 * elements * math.log2(max(length, 2)))
