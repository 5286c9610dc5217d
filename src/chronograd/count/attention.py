"""Attention as one operator, and new tensors on the meta device.

torch splits attention into other operators before it dispatches them, differently on every device. This module intercepts
attention one level higher, at the network's call, and records a single operator with a single backward.

In inference, torch runs an `nn.TransformerEncoderLayer` as one operator, its fast path. It calls the kernels of the separate
operators from C++, so the trace has these. On one core, layers of 16 and 64 features take 91 and 121 µs with the fast path, and
96 and 128 µs without (AMD EPYC, PyTorch 2.14, 2026-11-26).
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from chronograd.count import formulas, recurrent
from chronograd.count.recorder import Amounts, Recorder
from chronograd.trace import Affine


def _record(
    recorder: Recorder, ins: list[Any], outs: list[Any], settings: dict[str, Any], factor: int, owner: Any
) -> int:
    q, k, v = (tuple(t.shape) for t in ins[:3])
    inputs = tuple([recorder.add_tensor(t) for t in ins if t is not None])
    outputs = tuple([recorder.add_tensor(t) for t in outs if t is not None])
    macs = recorder.affine(lambda a, i, o: formulas.attention_macs(i[0], i[1], i[2]), (), [q, k, v], [])
    # A softmax over the scores: 5 operations per score, as for softmax alone.
    width = q[-1] + v[-1]
    vector = Affine(5 * macs.const // width, 5 * macs.per_sample // width)
    heads = q[-3] if len(q) > 3 else 1
    attributes = {"heads": heads, "head_dim": q[-1], "queries": q[-2], "keys": k[-2], **settings}
    return recorder.append(
        "attention",
        "attention",
        inputs,
        outputs,
        attributes,
        Amounts(macs.times(factor), vector, recorder.sum_bytes(inputs), recorder.sum_bytes(outputs)),
        owner,
    )


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention that saves the same tensors as fused kernels: q, k, v, output and row statistics."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, mask: Any, recorder: Recorder, settings: dict[str, Any], run: Any
    ) -> Any:
        with recorder.paused():
            out = run(q, k, v, mask) if recorder.is_real else q.new_empty((*q.shape[:-1], v.shape[-1]))
            statistics = q.new_empty(q.shape[:-1], dtype=torch.float32)
        index = _record(recorder, [q, k, v, mask], [out, statistics], settings, 1, None)
        op = recorder.trace.operators[index]
        ctx.owner = (op.module, op.call, index)
        ctx.recorder, ctx.settings = recorder, settings
        ctx.save_for_backward(q, k, v, mask, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, mask, out, statistics = ctx.saved_tensors
        with ctx.recorder.paused():
            # Real values matter in the forward pass only: no decision depends on a gradient.
            empty_like = torch.zeros_like if ctx.recorder.is_real else torch.empty_like
            made = [empty_like(t) if need else None for t, need in zip((q, k, v), ctx.needs_input_grad, strict=False)]
            mask_grad = empty_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        # dV = Pᵀ dO, dP = dO Vᵀ, dQ = dS K, dK = dSᵀ Q: twice the forward; recomputed scores are not counted.
        ins, outs = [q, k, v, mask, out, statistics, grads[0]], [*made, mask_grad]
        _record(ctx.recorder, ins, outs, ctx.settings, 2, ctx.owner)
        return (*made, mask_grad, None, None, None)


class Functions(TorchFunctionMode):
    """A function mode that creates new tensors on meta, and intercepts attention and recurrent layers before torch splits them."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._constructors = _device_constructors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in recurrent.FUNCTIONS:
            return recurrent.recurrent(self.recorder, func, args)
        if func is torch._nested_tensor_from_mask_left_aligned:
            return False  # torch skips padding only on its fast path; counted are dense tensors
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        if func in self._constructors and kwargs.get("device") is None and not self.recorder.is_real:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        settings = {"causal": bool(is_causal), "masked": attn_mask is not None, "dropout": float(dropout_p)}
        if key.shape[:-2] != query.shape[:-2] and not enable_gqa:
            batch = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                query.shape[:-2], key.shape[:-2], value.shape[:-2]
            )
            query, key, value = (t.expand(*batch, *t.shape[-2:]) for t in (query, key, value))

        def run(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return F.scaled_dot_product_attention(
                q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

        out: torch.Tensor = _Attention.apply(query, key, value, attn_mask, self.recorder, settings, run)
        return out

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Call torch's own function with its call of attention bound to ours.

        A mode is off while it handles a call, so it would miss the attention inside. The copy of the function has separate
        globals; torch itself does not change.
        """
        original = F.multi_head_attention_forward
        names = {**original.__globals__, "scaled_dot_product_attention": self._attention}
        names["has_torch_function"] = lambda _: False
        bound = types.FunctionType(original.__code__, names, argdefs=original.__defaults__)
        bound.__kwdefaults__ = original.__kwdefaults__
        return bound(*args, **kwargs)
