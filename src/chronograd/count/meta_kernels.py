"""Output tensors of common operators on the meta device, created directly.

On meta, torch runs some operators as Python reference code, hundreds of times slower than needed for a shape. These kernels
return the same tensors. A test compares each with torch's own or, if torch's meta kernel and a real device disagree, with the
real device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chronograd.models.layout import CHANNELS_LAST, is_channels_last

aten = torch.ops.aten
empty_like = torch.empty_like


def _suggested(x: Any) -> Any:
    """Return a new tensor of this shape, contiguous or channels last, in the layout of norm and pooling kernels."""
    return empty_like(x) if is_channels_last(x) else torch.empty(x.shape, dtype=x.dtype, device="meta")


def _statistics(x: Any, shape: Any) -> Any:
    """Return a tensor for statistics: in single precision for half-precision inputs."""
    return torch.empty(shape, dtype=torch.float32 if x.dtype in _HALF else x.dtype, device="meta")


_HALF = (torch.float16, torch.bfloat16)


def _convolution(x: Any, weight: Any, *rest: Any) -> Any:
    """Return the output of a convolution: channels last if one operand is, as on a device. torch's meta kernel is always
    contiguous.
    """
    out = aten.convolution.default(x, weight, *rest)
    return _laid_out(out) if is_channels_last(x) or is_channels_last(weight) else out


def _convolution_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
    grads = aten.convolution_backward.default(grad, x, weight, *rest)
    if is_channels_last(x) or is_channels_last(weight):
        return (*(g if g is None else _laid_out(g) for g in grads[:2]), grads[2])
    return grads


def _laid_out(x: Any) -> Any:
    return torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=CHANNELS_LAST[x.dim()])


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> Any:
    channels = x.shape[1] if training else 0
    return _suggested(x), _statistics(x, (channels,)), _statistics(x, (channels,))


def _batch_norm_backward(grad: Any, x: Any, weight: Any, *statistics_and_mask: Any) -> Any:
    mask = statistics_and_mask[-1]
    like = x if weight is None else weight
    return (
        _suggested(x) if mask[0] else None,
        like.new_empty(x.shape[1]) if mask[1] else None,
        like.new_empty(x.shape[1]) if mask[2] else None,
    )


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty(x.shape, dtype=x.dtype, device="meta"), _statistics(x, rows), _statistics(x, rows)


def _layer_norm_backward(grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any) -> Any:
    return (
        torch.empty(x.shape, dtype=x.dtype, device="meta") if mask[0] else None,
        empty_like(weight) if mask[1] and weight is not None else None,
        empty_like(bias) if mask[2] and bias is not None else None,
    )


def _like_first(x: Any, *_: Any, **__: Any) -> Any:
    return empty_like(x)


def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return torch.empty(x.shape, dtype=torch.float32 if half_to_float else x.dtype, device="meta")


def _softmax_backward(grad: Any, output: Any, dim: int, dtype: Any) -> Any:
    return torch.empty(grad.shape, dtype=dtype, device="meta")


def _like_both(op: Any) -> Callable[..., Any]:
    """Return a kernel for a gradient with the same layout as its forward tensor; torch computes all other cases."""

    def kernel(grad: Any, x: Any, *rest: Any, **kwargs: Any) -> Any:
        is_alike = grad.stride() == x.stride() and grad.dtype == x.dtype and grad.shape == x.shape
        return empty_like(grad) if is_alike else op(grad, x, *rest, **kwargs)

    return kernel


def _pool_backward(grad: Any, x: Any, *_: Any, **__: Any) -> Any:
    return _suggested(x)


def _in_place(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _binary(op: Any) -> Callable[..., Any]:
    """Return a kernel whose result has the layout of the first operand, if that has the shape of the result.

    torch computes all other cases: type promotion, a first operand that is broadcast or overlaps itself in memory.
    """

    def kernel(x: Any, y: Any, *rest: Any, **kwargs: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            if isinstance(y, torch.Tensor):
                is_like_x = x.dtype == y.dtype and (x.shape == y.shape or _broadcasts(y.shape, x.shape))
            else:
                is_like_x = type(y) in (int, float)
            if is_like_x and (x.is_contiguous() or _is_plain(x)):
                return empty_like(x)
        return op(x, y, *rest, **kwargs)

    return kernel


def _addmm(bias: Any, a: Any, b: Any, **_: Any) -> Any:
    shape = (a.shape[0], b.shape[1])
    if not a.dtype == b.dtype == bias.dtype or a.shape[1] != b.shape[0] or not _broadcasts(bias.shape, shape):
        return aten.addmm.default(bias, a, b)  # raises the proper error
    return torch.empty(shape, dtype=a.dtype, device="meta")


def _broadcasts(small: Any, large: Any) -> bool:
    """Return whether a shape broadcasts to another."""
    rank = len(small)
    return rank <= len(large) and all(a in (1, b) for a, b in zip(small, large[len(large) - rank :], strict=True))


def _is_plain(x: Any) -> bool:
    """Return whether the strides alone determine the order of the dimensions."""
    strides = x.stride()
    return 0 not in strides and len(set(strides)) == len(strides) and 1 not in x.shape


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    **{
        op.default: _like_first
        for op in (aten.gelu, aten.silu, aten.relu, aten.sigmoid, aten.tanh, aten.hardswish, aten.hardsigmoid)
    },
    **{
        op.default: _like_both(op.default)
        for op in (
            aten.threshold_backward, aten.gelu_backward, aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward,
            aten.hardswish_backward, aten.hardsigmoid_backward,
        )
    },
    **{op.default: _in_place for op in (aten.relu_, aten.silu_, aten.hardswish_, aten.hardsigmoid_, aten.sigmoid_)},
    **{
        op: _binary(op)
        for op in (
            aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar,
            aten.pow.Tensor_Scalar,
        )
    },
    aten.max_pool2d_with_indices_backward.default: _pool_backward,
    aten.addmm.default: _addmm,
}  # fmt: skip
