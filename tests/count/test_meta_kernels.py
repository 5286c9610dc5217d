"""Outputs made directly on the meta device equal torch's: shape, dtype and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chronograd.count.meta_kernels import KERNELS, _is_plain

aten = torch.ops.aten


def make(layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a meta tensor (N, C, H, W) = (2, 6, 8, 8) in the named memory layout."""
    x = torch.empty(2, 6, 8, 8, dtype=dtype, device="meta")
    layouts: dict[str, Callable[[], torch.Tensor]] = {
        "contiguous": lambda: x,
        "channels_last": lambda: x.contiguous(memory_format=torch.channels_last),
        "transposed": lambda: x.transpose(2, 3),
        "permuted": lambda: torch.empty(2, 8, 8, 6, dtype=dtype, device="meta").permute(0, 3, 2, 1),
        "every second column": lambda: torch.empty(2, 6, 8, 16, dtype=dtype, device="meta")[..., ::2],
        "one channel of two": lambda: torch.empty(2, 12, 8, 8, dtype=dtype, device="meta")[:, ::2],
        "expanded": lambda: torch.empty(2, 1, 8, 8, dtype=dtype, device="meta").expand(2, 6, 8, 8),
        "single sample": lambda: x[:1],
        "empty": lambda: x[:0],
    }
    return layouts[layout]()


LAYOUTS = [
    *("contiguous", "channels_last", "transposed", "permuted", "every second column", "one channel of two"),
    *("expanded", "single sample", "empty"),
]


def vector(n: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(n, dtype=dtype, device="meta")


def batch_norms(x: torch.Tensor) -> list[tuple[Any, ...]]:
    v = vector(dtype=x.dtype)
    stats = (vector(dtype=x.dtype), vector(dtype=x.dtype))
    weights: list[tuple[Any, Any]] = [(v, v), (None, None)]
    return [(x, *w, *stats, training, 0.1, 1e-5) for w in weights for training in (True, False)] + [
        (x, v, v, None, None, True, 0.1, 1e-5)
    ]


def batch_norms_backward(x: torch.Tensor) -> list[tuple[Any, ...]]:
    v = vector(dtype=x.dtype)
    found: list[tuple[Any, ...]] = []
    for training in (True, False):
        saved = (v, v) if training else (vector(0), vector(0))
        for mask in ([True, True, True], [False, True, True], [True, False, False]):
            found.append((make_like(x), x, v, v, v, *saved, training, 1e-5, mask))
    return found


def make_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def layer_norms(x: torch.Tensor) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for shape in ([8], [8, 8], [6, 8, 8]):
        w = torch.empty(shape, dtype=x.dtype, device="meta")
        found += [(x, shape, w, w, 1e-5), (x, shape, w, None, 1e-5), (x, shape, None, None, 1e-5)]
    return found


def layer_norms_backward(x: torch.Tensor) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for shape in ([8], [8, 8]):
        rows = torch.empty([*x.shape[: 4 - len(shape)], *[1] * len(shape)], device="meta")
        w = torch.empty(shape, dtype=x.dtype, device="meta")
        for mask in ([True, True, True], [True, False, False], [False, True, True]):
            found.append((make_like(x), x, shape, rows, rows, w, w, mask))
        found.append((make_like(x), x, shape, rows, rows, None, None, [True, False, False]))
    return found


def pairs(x: torch.Tensor) -> list[tuple[Any, ...]]:
    """Return pairs of equal or broadcast shapes and of equal or mixed dtypes, in both orders."""
    others: list[Any] = [x, make_like(x), vector(8).to(x.dtype), vector(1).to(x.dtype), x[:, :, :1], x[:, :1]]
    others += [x[:, :, :1].expand_as(x), make_like(x).transpose(2, 3), torch.empty((), dtype=x.dtype, device="meta")]
    others += [torch.empty(3, *x.shape, dtype=x.dtype, device="meta"), vector(8), x[0]] if x.numel() else []
    others += [make_like(x).to(t) for t in (torch.float64, torch.int64, torch.bool)]
    others += [make_like(x).contiguous(memory_format=torch.channels_last)]
    found = [(x, y) for y in others] + [(y, x) for y in others[1:]]
    return found + with_numbers(x)


def with_numbers(x: torch.Tensor) -> list[tuple[Any, ...]]:
    return [(x, 2.0), (x, 2), (make_like(x).to(torch.int64), 2), (make_like(x).to(torch.int64), 2.0)]


def products(x: torch.Tensor) -> list[tuple[Any, ...]]:
    x = x if x.numel() else make("contiguous", x.dtype)
    a, b = x[0, 0], x[-1, 1][:, :5]
    biases = [vector(5), vector(1), torch.empty(8, 5, device="meta"), torch.empty((), device="meta")]
    return [(bias.to(x.dtype), *pair) for bias in biases for pair in ((a, b), (a.T, b), (a[:, ::2], b[::2]))]


def convolutions(x: torch.Tensor) -> list[tuple[Any, ...]]:
    weights = [
        torch.empty(12, 6, 3, 3, device="meta", memory_format=f) for f in (torch.contiguous_format, torch.channels_last)
    ]
    return [(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1) for w in weights]


def convolutions_backward(x: torch.Tensor) -> list[tuple[Any, ...]]:
    grad = torch.empty(x.shape[0], 12, 8, 8, device="meta")
    return [
        (grad, x, w, [0], *rest, mask)
        for _, w, _, *rest in convolutions(x)
        for mask in ([True, True, False], [False, True, False])
    ]


ARGUMENTS: dict[Any, Callable[[torch.Tensor], list[tuple[Any, ...]]]] = {
    aten.native_batch_norm.default: batch_norms,
    aten.native_batch_norm_backward.default: batch_norms_backward,
    aten.native_layer_norm.default: layer_norms,
    aten.native_layer_norm_backward.default: layer_norms_backward,
    aten.addmm.default: products,
    aten.convolution.default: convolutions,
    aten.convolution_backward.default: convolutions_backward,
    aten.threshold_backward.default: lambda x: [(x, x, 0), (make_like(x), x, 0)],
    aten._softmax.default: lambda x: [(x, -1, False), (x, 1, False)],
    aten._softmax_backward_data.default: lambda x: [(x, x, -1, x.dtype), (make_like(x), x, 1, x.dtype)],
    aten.max_pool2d_with_indices_backward.default: lambda x: [
        (
            torch.empty(*x.shape[:2], 4, 4, dtype=x.dtype, device="meta"),
            *(x, [2, 2], [2, 2], [0, 0], [1, 1], False),
            torch.empty(*x.shape[:2], 4, 4, dtype=torch.int64, device="meta"),
        )
    ],
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), pairs),
    **dict.fromkeys((aten.mul.Scalar, aten.div.Scalar, aten.pow.Tensor_Scalar), with_numbers),
    **{
        op.default: lambda x: [(x, x), (make_like(x), x)]
        for op in (
            *(aten.gelu_backward, aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward),
            *(aten.hardswish_backward, aten.hardsigmoid_backward),
        )
    },
    **{
        op.default: lambda x: [(x,)]
        for op in (aten.gelu, aten.silu, aten.relu, aten.sigmoid, aten.tanh, aten.hardswish, aten.hardsigmoid)
    },
    **{
        op.default: lambda x: [(x,)]
        for op in (aten.relu_, aten.silu_, aten.hardswish_, aten.hardsigmoid_, aten.sigmoid_)
    },
}


def described(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        # The strides of an empty tensor are meaningless.
        return tuple(out.shape), out.dtype, out.stride() if out.numel() else None
    if isinstance(out, (tuple, list)):
        return [described(o) for o in out]
    return out


# Torch's reference code for meta uses another layout than its kernels; we follow the kernels.
AS_ON_CPU = (
    *(aten.native_batch_norm.default, aten.native_batch_norm_backward.default),
    *(aten.native_layer_norm.default, aten.native_layer_norm_backward.default),
    aten.max_pool2d_with_indices_backward.default,
    *(aten.convolution.default, aten.convolution_backward.default),
)


def on_cpu(value: Any) -> Any:
    """Return a tensor of zeros with the same strides on the CPU."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
    return value


def test_every_kernel_is_compared_with_torch() -> None:
    assert set(ARGUMENTS) == set(KERNELS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", KERNELS, ids=str)
def test_output_equals_torchs(op: Any, layout: str) -> None:
    is_in_place = op._schema.name.endswith("_")
    if is_in_place and layout == "expanded":
        pytest.skip("torch refuses to write where elements share memory")
    if op in AS_ON_CPU and layout == "empty":
        pytest.skip("torch's kernels divide by zero, in whole numbers")
    for dtype in (torch.float32,) if op in AS_ON_CPU else (torch.float32, torch.bfloat16):
        for args in ARGUMENTS[op](make(layout, dtype)):
            ours = KERNELS[op](*args)
            expected = op(*map(on_cpu, args)) if op in AS_ON_CPU else op(*args)
            assert described(ours) == described(expected), [described(a) for a in args]
            assert (ours is args[0]) == is_in_place
            assert all(t.is_meta for t in (ours if isinstance(ours, tuple) else (ours,)) if t is not None)


def test_half_precision_norms_save_fp32_statistics() -> None:
    """GPU kernels do so too; torch's CPU kernels save them in half precision."""
    x, v = make("contiguous", torch.bfloat16), vector()
    for op, args in (
        (aten.native_batch_norm.default, (x, v, v, v, v, True, 0.1, 1e-5)),
        (aten.native_layer_norm.default, (x, [8], None, None, 1e-5)),
    ):
        out, mean, rstd = KERNELS[op](*args)
        assert [t.dtype for t in (out, mean, rstd)] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (2, 3, 4, 5, 6), ()])
@pytest.mark.parametrize("op", [op for op in KERNELS if len(op._schema.arguments) <= 2 or "Tensor" in str(op)], ids=str)
def test_other_ranks(op: Any, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device="meta")
    for args in ((x,), (x, x)):
        try:
            expected = op(*args)
        except (TypeError, RuntimeError):
            continue
        assert described(KERNELS[op](*args)) == described(expected)


def test_mismatched_products_are_refused_like_in_torch() -> None:
    a = torch.empty(3, 4, device="meta")
    for args in ((vector(5), a, a), (vector(7), a, a.T)):
        with pytest.raises(RuntimeError):
            KERNELS[aten.addmm.default](*args)


def test_batch_norm_of_other_ranks() -> None:
    for shape in ((4, 6), (4, 6, 8), (4, 6, 2, 8, 8)):
        for args in batch_norms(torch.empty(shape, device="meta")):
            op = aten.native_batch_norm.default
            assert described(KERNELS[op](*args)) == described(op(*map(on_cpu, args)))


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.empty(1, 4, 5, 1, device=device).permute(1, 0, 3, 2),  # size 1: the stride is meaningless
        lambda device: torch.empty(4, 1, 6, device=device).transpose(0, 2),
        lambda device: torch.empty(6, 5, 4, device=device).permute(2, 0, 1),
        lambda device: torch.empty(3, 1, device=device).expand(3, 5),
        lambda device: torch.empty(12, device=device).as_strided((3, 4), (1, 1)),  # two equal strides
        lambda device: torch.empty(20, device=device).as_strided((2, 3, 2), (6, 2, 2)),
    ],
)
@pytest.mark.parametrize("op", [torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor, torch.ops.aten.div.Scalar])
def test_outputs_of_unusual_layouts_match_a_device(make: Callable[[str], Any], op: Any) -> None:
    """Outputs copy the strides only if these define the order of the dimensions."""
    on_meta, real = make("meta"), make("cpu")
    other = (2.0,) if "Scalar" in str(op) else (torch.empty(real.shape, device="meta"),)
    of_real = (2.0,) if "Scalar" in str(op) else (torch.empty(real.shape),)
    ours, theirs = KERNELS[op](on_meta, *other), op(real, *of_real)
    assert ours.shape == theirs.shape
    strides = [(a, b) for a, b, size in zip(ours.stride(), theirs.stride(), ours.shape, strict=True) if size > 1]
    assert all(a == b for a, b in strides)  # the stride of a size of 1 is meaningless


def test_strides_that_define_the_dimension_order() -> None:
    plain = torch.empty(4, 5, 6, device="meta").permute(2, 0, 1)
    assert _is_plain(plain)
    assert not _is_plain(torch.empty(24, device="meta").as_strided((4, 1, 6), (6, 100, 1)))  # a size of 1
    assert not _is_plain(torch.empty(4, 1, device="meta").expand(4, 5))  # a stride of 0
    assert not _is_plain(torch.empty(12, device="meta").as_strided((3, 4), (1, 1)))  # the same stride twice
