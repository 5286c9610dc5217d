"""Settings of the trace of a network by name, readable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class TraceSettings(TypedDict, total=False):
    """Keyword arguments of `trace_network` and `cached_trace`; DEFAULTS has their defaults.

    Attributes:
        input_shape: shape of one sample; the network's own by default.
        inputs: all inputs of the network, in the format of `chronograd.inputs`, or one name of an object with example inputs
            (`FILE.py:example_inputs`). Used without `input_shape`.
        num_classes: size of the head; the network's own by default.
        input_dtype: `float32` or `int64`; the network's own by default, or int64 if it begins with an embedding.
        param_dtype: `bf16` for a network whose parameters and images all have that type, else `fp32`.
        mode, loss, fixed_batch, channels_last: as of `chronograd.count.tracing.trace`.
    """

    input_shape: Sequence[int] | None
    inputs: Sequence[str]
    num_classes: int | None
    input_dtype: str | None
    param_dtype: str
    mode: str
    loss: str
    fixed_batch: int | None
    channels_last: bool


DEFAULTS = TraceSettings(
    input_shape=None,
    inputs=(),
    num_classes=None,
    input_dtype=None,
    param_dtype="fp32",
    mode="training",
    loss="cross_entropy",
    fixed_batch=None,
    channels_last=False,
)
