"""Recurrent layers as one operator: `nn.LSTM`, `nn.GRU` and `nn.RNN` are one call of a library over all layers and steps.

On the meta device torch would run them step by step, as hundreds of operators that no device runs. This module intercepts the
call, and records one operator with one backward. Loops over cells that a network writes itself remain what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from chronograd.count.recorder import Amounts, Recorder
from chronograd.errors import TraceError

# Function → its name, its gates, and elementary operations per hidden unit and step: a sigmoid or tanh takes 12, a product or
# sum 1. cuDNN's documentation has the equations (cudnnRNNMode_t).
_CELLS: dict[Any, tuple[str, int, int]] = {
    torch.lstm: ("lstm", 4, 5 * 12 + 8),
    torch.gru: ("gru", 3, 3 * 12 + 8),
    torch.rnn_tanh: ("rnn_tanh", 1, 12 + 2),
    torch.rnn_relu: ("rnn_relu", 1, 1 + 2),
}
FUNCTIONS = frozenset(_CELLS)


@dataclass(frozen=True)
class _Layers:
    """The layers of one call.

    Attributes:
        weights: the parameters, in torch's order.
        settings: the rest of the arguments of torch's function.
        is_packed: the input is packed: (elements, features) with `steps` batches, instead of (steps, batch, features).
    """

    function: Any
    weights: tuple[Any, ...]
    settings: tuple[Any, ...]
    num_layers: int
    directions: int
    steps: int
    is_packed: bool
    batch_sizes: Any

    @cached_property
    def hidden(self) -> int:
        return int(self.weights[0].shape[0]) // _CELLS[self.function][1]

    @cached_property
    def out_width(self) -> int:
        """Return the features of one direction: the hidden units, or a projection of them."""
        return int(self.weights[1].shape[1])

    @property
    def macs_per_element(self) -> int:
        """Return the multiply-adds of one step of one sample: every weight of a matrix is used once."""
        return sum(math.prod(w.shape) for w in self.weights if len(w.shape) == 2)

    def call(self, x: Any, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return what torch's own function returns."""
        hx = list(states) if self.function is torch.lstm else states[0]
        first = (x, self.batch_sizes, hx) if self.is_packed else (x, hx)
        out: tuple[Any, ...] = self.function(*first, list(self.weights), *self.settings)
        return out

    def empty(self, x: Any, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return outputs without values: the last layer at each step, and the states after the last step."""
        return x.new_empty((*x.shape[:-1], self.directions * self.out_width)), *(s.new_empty(s.shape) for s in states)

    def reserve(self, x: Any) -> Any:
        """Return what backward needs of each step: the gates, the state, and the output of each layer but the last."""
        _, gates, _ = _CELLS[self.function]
        kept = self.num_layers * (gates + (1 if self.function is torch.lstm else 0)) * self.hidden
        between = (self.num_layers - 1) * self.out_width
        return x.new_empty((*x.shape[:-1], self.directions * (kept + between)))


def _record(
    recorder: Recorder, layers: _Layers, x: Any, tensors: tuple[list[Any], list[Any]], factor: int, owner: Any
) -> int:
    name, gates, operations = _CELLS[layers.function]
    inputs, outputs = (tuple([recorder.add_tensor(t) for t in side if t is not None]) for side in tensors)
    elements = recorder.affine(lambda a, i, o: math.prod(i[0]), (), [tuple(x.shape[:-1])], [])
    cells = layers.num_layers * layers.directions
    attributes = {
        "hidden": layers.hidden,
        "layers": layers.num_layers,
        "directions": layers.directions,
        "steps": layers.steps,
        # The matrix product of one step of one layer: (batch × depth) · (depth × width).
        "depth": max(layers.macs_per_element // (cells * gates * layers.hidden), 1),
        "width": gates * layers.hidden,
    }
    amounts = Amounts(
        elements.times(factor * layers.macs_per_element),
        elements.times(factor * cells * layers.hidden * operations),
        recorder.sum_bytes(inputs),
        recorder.sum_bytes(outputs),
    )
    return recorder.append("recurrent", name, inputs, outputs, attributes, amounts, owner)


class _Recurrent(torch.autograd.Function):
    """Recurrent layers that save what libraries save: input, weights, output, and a reserve of every step."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, layers: _Layers, num_states: int, x: Any, *rest: Any) -> Any:
        states, weights = rest[:num_states], rest[num_states:]
        with recorder.paused():
            outs = layers.call(x, states) if recorder.is_real else layers.empty(x, states)
            reserve = layers.reserve(x) if recorder.trace.mode == "training" else None
        index = _record(recorder, layers, x, ([x, *rest], [*outs, reserve]), 1, None)
        op = recorder.trace.operators[index]
        ctx.owner = (op.module, op.call, index)
        ctx.recorder, ctx.layers, ctx.num_states = recorder, layers, num_states
        ctx.save_for_backward(x, *states, *weights, outs[0], reserve)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *rest, out, reserve = ctx.saved_tensors
        with ctx.recorder.paused():
            # Real values matter in the forward pass only: no decision depends on a gradient.
            empty_like = torch.zeros_like if ctx.recorder.is_real else torch.empty_like
            made = [
                empty_like(t) if need else None for t, need in zip((x, *rest), ctx.needs_input_grad[3:], strict=True)
            ]
        _record(ctx.recorder, ctx.layers, x, ([x, *rest, out, reserve, grads[0]], made), 2, ctx.owner)
        return (None, None, None, *made)


def recurrent(recorder: Recorder, function: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Run a recurrent function of torch as one recorded operator.

    Args:
        args: input, batch sizes if it is packed, states, weights, and settings, as torch's function takes them.
    """
    is_packed = not isinstance(args[3], bool)
    x, *rest = args
    batch_sizes: Any = rest.pop(0) if is_packed else None
    hx, weights, *settings = rest
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    is_bidirectional = settings[4]
    is_batch_first = not is_packed and settings[5]
    steps = len(batch_sizes) if is_packed else int(x.shape[1 if is_batch_first else 0])
    if recorder.dim(steps).per_sample:
        raise TraceError(
            "a recurrent layer takes the batch for its time axis",
            "give the layer batch_first=True if the batch comes first, or trace at one batch with --fixed-batch N",
        )
    layers = _Layers(
        function,
        tuple(weights),
        tuple(settings),
        num_layers=settings[1],
        directions=2 if is_bidirectional else 1,
        steps=steps,
        is_packed=is_packed,
        batch_sizes=batch_sizes,
    )
    outs: tuple[torch.Tensor, ...] = _Recurrent.apply(recorder, layers, len(states), x, *states, *weights)
    return outs
