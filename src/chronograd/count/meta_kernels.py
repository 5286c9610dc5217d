"""Output tensors of common operators on the meta device, made directly.

On meta, torch runs some of its operators as Python reference code, hundreds of times slower than the
shape they return is worth. These give the same tensors; a test holds each against torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
empty_like = torch.empty_like


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> Any:
    channels = x.shape[1] if training else 0
    return empty_like(x), x.new_empty(channels), x.new_empty(channels)


def _batch_norm_backward(
    grad: Any, x: Any, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, train: bool, eps: float, mask: Any
) -> Any:
    channels = x.shape[1]
    return (
        empty_like(x) if mask[0] else None,
        x.new_empty(channels) if mask[1] else None,
        x.new_empty(channels) if mask[2] else None,
    )


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty(x.shape, dtype=x.dtype, device="meta"), x.new_empty(rows), x.new_empty(rows)


def _layer_norm_backward(grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any) -> Any:
    return (
        empty_like(x) if mask[0] else None,
        empty_like(weight) if mask[1] and weight is not None else None,
        empty_like(bias) if mask[2] and bias is not None else None,
    )


def _like_first(x: Any, *_: Any, **__: Any) -> Any:
    return empty_like(x)


def _like_input(out_shape_from: Any, x: Any, *_: Any, **__: Any) -> Any:
    return empty_like(x)


def _in_place(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _binary(op: Any) -> Callable[..., Any]:
    """Two tensors of one shape, layout and dtype give a third; anything else is torch's to work out."""

    def kernel(x: Any, y: Any, *rest: Any, **kwargs: Any) -> Any:
        is_alike = (
            isinstance(y, torch.Tensor)
            and x.dtype == y.dtype
            and x.shape == y.shape
            and x.is_contiguous()
            and y.is_contiguous()
        )
        return empty_like(x) if is_alike else op(x, y, *rest, **kwargs)

    return kernel


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    **{
        op.default: _like_first
        for op in (
            aten.threshold_backward, aten.gelu, aten.gelu_backward, aten.silu, aten.silu_backward, aten.relu, aten.sigmoid,
            aten.tanh, aten.sigmoid_backward, aten.tanh_backward, aten.hardswish, aten.hardswish_backward,
            aten.hardsigmoid, aten.hardsigmoid_backward, aten._softmax, aten._softmax_backward_data,
        )
    },
    **{op.default: _in_place for op in (aten.relu_, aten.silu_, aten.hardswish_, aten.hardsigmoid_, aten.sigmoid_)},
    **{op: _binary(op) for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)},
    aten.max_pool2d_with_indices_backward.default: _like_input,
}  # fmt: skip
