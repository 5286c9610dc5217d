"""Bytes that a rank sends in collectives, from the sizes that are given to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from chronograd.predict.collectives import BUS_FACTORS

# Operators of torch.distributed: the collective of each, and the argument with the whole message.
_COLLECTIVES = {
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::allreduce_": ("all_reduce", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    # Its argument is the part of one rank.
    "_c10d_functional::all_gather_into_tensor": ("all_gather", None),
}


class SentBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that adds up the bytes that this rank sends in each kind of collective, each a ring.

    Attributes:
        sent: bytes by collective of `chronograd.predict.collectives.BUS_FACTORS`.
    """

    def __init__(self, num_ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._num_ranks = num_ranks
        self.sent: dict[str, float] = {}

    @property
    def total(self) -> int:
        return round(sum(self.sent.values()))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # DTensor calls the collectives, and they come here
        call: Callable[..., Any] = func
        if (found := _COLLECTIVES.get(func.name().partition(".")[0])) is not None:
            name, position = found
            size = _size(args[position or 0]) * (self._num_ranks if position is None else 1)
            self.sent[name] = self.sent.get(name, 0.0) + BUS_FACTORS[name](self._num_ranks) * size
        return call(*args, **(kwargs or {}))


def _size(message: torch.Tensor | list[torch.Tensor]) -> int:
    tensors = [message] if isinstance(message, torch.Tensor) else message
    return sum(t.numel() * t.element_size() for t in tensors)
