"""A Trace from the name of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from chronograd.count.tracing import trace
from chronograd.errors import InputError
from chronograd.models import registry
from chronograd.trace import Trace


def trace_network(
    reference: str,
    options: dict[str, Any] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    mode: str = "training",
    loss: str = "cross_entropy",
    fixed_batch: int | None = None,
    channels_last: bool = False,
    input_dtype: str | None = None,
    param_dtype: str = "fp32",
) -> Trace:
    """Build a network on the meta device and trace it.

    Args:
        reference: a name of ours, `torchvision:NAME`, `timm:NAME` or `package.module:function`.
        options: keyword arguments of the network's function.
        input_shape: shape of one sample; the network's own by default.
        num_classes: size of the head; the network's own by default.
        channels_last: layout of images and convolutions in memory.
        input_dtype: `float32` or `int64`; the network's own by default.
        param_dtype: `bf16` for a network that is in it as a whole, with its images.

    Raises: NotFoundError, InputError, MissingExtraError for a wrong name; TraceError as `trace`.
    """
    spec = registry.spec(reference, options)
    shape = tuple(input_shape or spec.required_input_shape())
    if any(d < 1 for d in shape):
        raise InputError(f"input shape is {shape}", "every dimension is at least 1, such as 3,224,224")
    model = registry.build(
        reference, options, input_shape=shape if input_shape else None, num_classes=num_classes, device="meta"
    )
    if spec.input_shape and len(shape) != len(spec.input_shape):
        raise InputError(f"{reference} takes samples of shape {spec.input_shape}, not {shape}", "set --input")
    taken = getattr(torch, input_dtype or spec.input_dtype)
    if param_dtype == "bf16":
        model.to(torch.bfloat16)
        taken = torch.bfloat16 if taken.is_floating_point else taken
    extra = spec.keras_extra(model) if spec.keras_extra else {}
    result = trace(
        model,
        [shape],
        network=reference,
        input_dtypes=[taken],
        mode=mode,
        loss=loss,
        fixed_batch=fixed_batch,
        channels_last=channels_last,
        is_ours=True,
    )
    result.keras_extra = extra
    return result
