"""A Trace from the name of a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn

from chronograd import inputs as words
from chronograd.count.calls import Call, dtype_of
from chronograd.count.settings import DEFAULTS, TraceSettings
from chronograd.count.tracing import Origin, trace
from chronograd.errors import InputError
from chronograd.inputs import Input
from chronograd.models import registry
from chronograd.trace import Trace


def call_of(model: nn.Module, inputs: Sequence[str], reference: str | None = None) -> Call:
    """Return the call for inputs given as text, or for those that a named network states. Raises InputError."""
    spec = registry.spec(reference) if reference else None
    inputs = tuple(inputs) or (spec.inputs if spec else ())
    words.check(inputs)
    if len(inputs) == 1 and words.is_reference(inputs[0]):
        return Call.of_example(registry.target(inputs[0], "inputs"), model)
    usual = _usual_dtype(model, spec) if spec else dtype_of(model)
    return Call.of_inputs([Input.parse(word) for word in inputs], [usual] * len(inputs))


def _usual_dtype(model: nn.Module, spec: registry.NetworkSpec) -> torch.dtype:
    """Return the type of an input without a stated type: integers or complex numbers if the first layer takes them, else the
    network's.
    """
    dtype = dtype_of(model)
    return dtype if dtype.is_complex or dtype == torch.int64 else getattr(torch, spec.input_dtype)


def trace_network(reference: str, options: dict[str, Any] | None = None, **settings: Unpack[TraceSettings]) -> Trace:
    """Build a network on the meta device and trace it.

    Args:
        reference: a name in this package, `torchvision:NAME`, `timm:NAME` or `package.module:function`.
        options: keyword arguments of the network's function.

    Raises: NotFoundError, InputError, MissingExtraError for a wrong name; TraceError as `trace`.
    """
    asked = DEFAULTS | settings
    spec = registry.spec(reference, options)
    inputs, shape = tuple(asked["inputs"]), asked["input_shape"]
    if shape is None:
        inputs = inputs or spec.inputs
    is_example = len(inputs) == 1 and words.is_reference(inputs[0])
    given, sized = _inputs_of(spec, shape, inputs, is_example)

    build = partial(registry.build, reference, options, input_shape=sized, num_classes=asked["num_classes"])
    model = build(device="meta")
    if sized and spec.input_shape and len(sized) != len(spec.input_shape):
        raise InputError(f"{reference} takes samples of shape {spec.input_shape}, not {sized}", "set --input")
    dtype = getattr(torch, asked["input_dtype"]) if asked["input_dtype"] else _usual_dtype(model, spec)
    if asked["param_dtype"] == "bf16":
        model.to(torch.bfloat16)
        dtype = torch.bfloat16 if dtype.is_floating_point else dtype
    keras_extra = spec.keras_extra(model) if spec.keras_extra else {}
    if is_example:
        call = Call.of_example(registry.target(inputs[0], "inputs"), model)
    else:
        call = Call.of_inputs(given, [dtype] * len(given))
    result = trace(
        model,
        call,
        origin=Origin(reference, partial(build, device="cpu")),
        mode=asked["mode"],
        loss=asked["loss"],
        fixed_batch=asked["fixed_batch"],
        channels_last=asked["channels_last"],
    )
    result.keras_extra = keras_extra
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
