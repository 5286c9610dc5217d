"""A Trace from the name of a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from chronograd import inputs as words
from chronograd.count.calls import Call, dtype_of
from chronograd.count.tracing import trace
from chronograd.errors import InputError
from chronograd.inputs import Input
from chronograd.models import registry
from chronograd.trace import Trace


def call_of(reference: str, model: nn.Module, inputs: Sequence[str]) -> Call:
    """Return the call for inputs given as text, or for the network's own inputs without any. Raises InputError."""
    inputs = tuple(inputs) or registry.spec(reference).inputs
    words.check(inputs)
    if len(inputs) == 1 and words.is_reference(inputs[0]):
        return Call.of_example(registry.target(inputs[0], "inputs"), model)
    usual = _usual_dtype(model, registry.spec(reference))
    return Call.of_inputs([Input.parse(word) for word in inputs], [usual] * len(inputs))


def _usual_dtype(model: nn.Module, spec: registry.NetworkSpec) -> torch.dtype:
    """Return the type of an input without a stated type: integers or complex numbers if the first layer takes them, else the
    network's.
    """
    own = dtype_of(model)
    return own if own.is_complex or own == torch.int64 else getattr(torch, spec.input_dtype)


def trace_network(
    reference: str,
    options: dict[str, Any] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    inputs: Sequence[str] = (),
    batch_dim: int = 0,
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
        reference: a name in this package, `torchvision:NAME`, `timm:NAME` or `package.module:function`.
        options: keyword arguments of the network's function.
        input_shape: shape of one sample; the network's own by default.
        inputs: all inputs of the network, in the format of `chronograd.inputs`, or one name of an object with example inputs
            (`FILE.py:example_inputs`), whose batch is dimension `batch_dim`. Replaces `input_shape`.
        num_classes: size of the head; the network's own by default.
        channels_last: layout of images and convolutions in memory.
        input_dtype: `float32` or `int64`; the network's own by default, or int64 if it begins with an embedding.
        param_dtype: `bf16` for a network whose parameters and images all have that type.

    Raises: NotFoundError, InputError, MissingExtraError for a wrong name; TraceError as `trace`.
    """
    spec = registry.spec(reference, options)
    if input_shape is None:
        inputs = inputs or spec.inputs
    is_example = len(inputs) == 1 and words.is_reference(inputs[0])
    given, sized = _inputs_of(spec, input_shape, inputs, is_example)

    build = partial(registry.build, reference, options, input_shape=sized, num_classes=num_classes)
    model = build(device="meta")
    if sized and spec.input_shape and len(sized) != len(spec.input_shape):
        raise InputError(f"{reference} takes samples of shape {spec.input_shape}, not {sized}", "set --input")
    taken = getattr(torch, input_dtype) if input_dtype else _usual_dtype(model, spec)
    if param_dtype == "bf16":
        model.to(torch.bfloat16)
        taken = torch.bfloat16 if taken.is_floating_point else taken
    extra = spec.keras_extra(model) if spec.keras_extra else {}
    result = trace(
        model,
        [] if is_example else given,
        example_inputs=registry.target(inputs[0], "inputs") if is_example else None,
        batch_dim=batch_dim,
        network=reference,
        input_dtypes=[taken] * len(given),
        mode=mode,
        loss=loss,
        fixed_batch=fixed_batch,
        channels_last=channels_last,
        is_ours=True,
        build=partial(build, device="cpu"),
    )
    result.keras_extra = extra
    return result


def _inputs_of(
    spec: registry.NetworkSpec, input_shape: Sequence[int] | None, inputs: Sequence[str], is_example: bool
) -> tuple[list[Input], tuple[int, ...] | None]:
    """Return the inputs as stated, else the network's own, and the shape to build it for, if stated."""
    if inputs:
        words.check(inputs)
    stated = [] if is_example else [Input.parse(word) for word in inputs]
    shape = tuple(input_shape or (stated[0].shape if stated else ()))
    if not inputs and not shape:
        shape = spec.required_input_shape()
    if any(d < 1 for d in shape):
        raise InputError(f"input shape is {shape}", "every dimension is at least 1, such as 3,224,224")
    is_sized = input_shape or (len(stated) == 1 and stated[0].is_plain)
    return stated or [Input(shape)], shape if is_sized else None
