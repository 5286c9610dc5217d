"""What a loop of the user's own is seen to do beside its marked parts: waiting for other ranks, and with which network.

Waiting is known on the CPU where DistributedDataParallel averages gradients, from the last gradient to the end of backward;
and for calls of torch.distributed that return when they are done.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from chronograd.measure import in_use
from chronograd.measure.waits import GradientClock
from chronograd.measure.what_if import write_what_if

_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce", "barrier")  # fmt: skip
# A copy of a larger network is not made to try things on.
LARGEST_COPY_BYTES = 2_000_000_000


class Watched:
    """Watches from its making until `leave`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_calls_s = 0.0
        self._in_collective = False
        self._averages = False
        self._found = in_use.InUse(None, False, {})
        self._gradients: GradientClock | None = None
        self._inputs: tuple[Any, ...] = ()
        self._handles: list[Any] = []
        self._originals: dict[str, Any] = {}
        if dist.is_available() and device.type == "cpu":
            self._originals = {name: getattr(dist, name) for name in _COLLECTIVES}
            for name, call in self._originals.items():
                setattr(dist, name, self._timed(call))

    def look(self) -> dict[str, Any]:
        """After the first step: what the loop works with, for an event of the steps file."""
        self._found = in_use.find()
        network = self._found.network
        if network is None:
            return self._found.loader
        params, gradient_bytes = in_use.parameter_bytes(network)
        self._handles.append(network.register_forward_pre_hook(self._keep_inputs))
        if self._found.is_wrapped and self._device.type == "cpu":
            self._gradients = GradientClock(network.parameters())
        return {**self._found.loader, "params": params, "gradient_bytes": gradient_bytes}

    def begin_step(self) -> None:
        self._in_calls_s = 0.0
        if self._gradients is not None:
            self._gradients.take_s()

    def waited_s(self) -> float | None:
        """Seconds of the step that was begun in which this rank waited for others; None where that is not known."""
        in_backward_s = None if self._gradients is None else self._gradients.take_s()
        if in_backward_s is None and not self._averages:
            return None
        return self._in_calls_s + (in_backward_s or 0.0)

    def leave(self) -> None:
        """Watch no more; the process is as it was."""
        for handle in self._handles:
            handle.remove()
        if self._gradients is not None:
            self._gradients.remove()
        for name, call in self._originals.items():
            setattr(dist, name, call)

    def write_what_if(self, write: Callable[..., None]) -> None:
        """Time a copy of the network on its last input. Nothing where it was not found or is large."""
        network = self._found.network
        if network is None or not self._inputs or in_use.parameter_bytes(network)[1] > LARGEST_COPY_BYTES:
            return
        try:
            work = _work_of(copy.deepcopy(network), self._inputs)
        except (RuntimeError, TypeError, ValueError):  # such as a network that cannot be copied
            return
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
        write_what_if(work, self._device, ranks_here, write)

    def _keep_inputs(self, network: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._inputs = inputs

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._in_collective:  # collectives may be made of others
                return call(*arguments, **named)
            self._in_collective = True
            start_s = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._in_collective = False
                self._averages = True
                self._in_calls_s += time.perf_counter() - start_s

        return timed


def _work_of(network: nn.Module, inputs: tuple[Any, ...]) -> Callable[[int], None]:
    """Forward and backward of a network on tensors whose first dimension is the batch; the loss is a sum of outputs."""
    kept = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]

    def work(times: int) -> None:
        many = [x.repeat(times, *(1,) * (x.ndim - 1)) if isinstance(x, torch.Tensor) else x for x in kept]
        outputs = network(*many)
        first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        first.float().sum().backward()
        network.zero_grad(set_to_none=True)

    return work
