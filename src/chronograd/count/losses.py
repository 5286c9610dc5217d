"""The loss that a trace and a timed step differentiate: a usual one, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from chronograd import inputs as words
from chronograd.errors import TraceError
from chronograd.models import registry

# A function of the outputs and the inputs. These are a tensor, a tuple of arguments, a dictionary of keywords, or (args, kwargs).
Loss = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Any, inputs: Any = None) -> Tensor:
    """Return the mean cross-entropy of every floating output with a class dimension: (N, C), (N, C, H, W) or (N, T, C).

    If a network returns scalars, their sum is its loss.
    """
    found = tensors(outputs)
    losses = _own_losses(found)
    for t in found if not losses else ():
        if not t.is_floating_point() or t.dim() < 2:
            continue
        scores = t.flatten(0, 1) if t.dim() == 3 else t
        target = _target((scores.shape[0], *scores.shape[2:]), t, torch.int64)  # real targets are classes
        losses.append(F.cross_entropy(scores, target))
    return _total(losses) if losses else sum_of_outputs(outputs)


def squared_error(outputs: Any, inputs: Any) -> Tensor:
    """Return the mean squared error of every floating output against the first input of its shape, as of an autoencoder.

    Without such an input, each output has a target of its shape. If a network returns scalars, their sum is its loss.
    """
    found = tensors(outputs)
    if losses := _own_losses(found):
        return _total(losses)
    own = {x.shape: x for x in reversed(tensors(inputs)) if x.is_floating_point()}
    real = [t for t in found if t.is_floating_point() and t.dim() > 0]
    pairs = [(t, own[t.shape]) for t in real if t.shape in own] or [(t, _target(t.shape, t, t.dtype)) for t in real]
    return _total([F.mse_loss(t, x) for t, x in pairs]) if pairs else sum_of_outputs(outputs)


def sum_of_outputs(outputs: Any, inputs: Any = None) -> Tensor:
    """Return the sum of every floating or complex output: the simplest loss with a gradient."""
    real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors(outputs)]
    sums = [t.sum() for t in real if t.is_floating_point()]
    if not sums:
        raise TraceError(
            "the network returns no floating-point tensor",
            "count it with --mode inference, or give its loss: --loss FILE.py:NAME",
        )
    return _total(sums)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": squared_error, "sum": sum_of_outputs}


def loss_of(loss: str | Loss) -> tuple[str, Loss]:
    """Return the name of a loss, and the function: one of LOSSES, or that of `FILE.py:NAME`. Raises InputError."""
    if isinstance(loss, str):
        words.check_loss(loss)
        if loss in LOSSES:
            return loss, LOSSES[loss]
    function: Loss = registry.function(loss, "loss") if isinstance(loss, str) else loss
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "loss")

    def checked(outputs: Any, inputs: Any) -> Tensor:
        value = function(outputs, inputs)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TraceError(
                f"the loss {name} returned {shape}", "return one number, such as the mean over the samples"
            )
        return value

    return name, checked


def tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _own_losses(outputs: list[Tensor]) -> list[Tensor]:
    return [t for t in outputs if t.is_floating_point() and t.dim() == 0 and t.requires_grad]


def _target(shape: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
    make = torch.empty if like.is_meta else torch.zeros
    return make(shape, dtype=dtype, device=like.device)


def _total(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
