"""Instrumentation of a custom loop: finds its network and loader among the objects of the process, and times its waits for
other ranks.

Users do not have to pass any object. Waits are known on the CPU if DistributedDataParallel averages gradients, from the last
gradient to the end of backward. They are also known for calls of torch.distributed that return when they are done.
"""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from chronograd.measure.ablations import write_ablations
from chronograd.measure.loop_flops import Calls
from chronograd.measure.steps import GradientClock
from chronograd.rundir.steps import Line, WorkLine

_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce", "barrier")  # fmt: skip
# Larger networks are not copied for experiments.
LARGEST_COPY_BYTES = 2_000_000_000


@dataclass(frozen=True)
class LoopObjects:
    """The network without its wrapper, and the loader. `is_wrapped` by DistributedDataParallel. `loader`: the reads of a rank,
    as data.
    """

    network: nn.Module | None
    is_wrapped: bool
    loader: dict[str, Any]


def discover(updated: frozenset[int] = frozenset()) -> LoopObjects:
    """Search all objects of this process, which takes about a tenth of a second; nothing is changed.

    The result is a DistributedDataParallel, else the only network that was updated or has gradients, and the DataLoader in use.
    Each is missing if there are several, or none.

    Args:
        updated: ids of parameters that an optimizer has updated since the instrumentation began.
    """
    modules: list[nn.Module] = []
    readers: list[Any] = []
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, nn.Module):
            modules.append(thing)
        elif issubclass(kind, dataloader._BaseDataLoaderIter):
            readers.append(thing)
    wrapped = [m for m in modules if isinstance(m, DistributedDataParallel)]
    network = _only(m.module for m in wrapped) if wrapped else _only(_trained_roots(modules, updated))
    loaders = [facts for facts in map(_facts_of, readers) if facts]
    return LoopObjects(network, bool(wrapped), loaders[0] if len({str(f) for f in loaders}) == 1 else {})


def parameter_bytes(network: nn.Module) -> tuple[int, int]:
    """Return the number of trained parameters, and the bytes of their gradients."""
    trained = [p for p in network.parameters() if p.requires_grad]
    return sum(p.numel() for p in trained), sum(p.numel() * p.element_size() for p in trained)


def _only(found: Any) -> Any:
    ones = list(found)
    return ones[0] if len(ones) == 1 else None


def _trained_roots(modules: list[nn.Module], updated: frozenset[int]) -> list[nn.Module]:
    """Return updated networks that are not part of another one; if none was updated yet, those with gradients."""
    inner = {id(child) for module in modules for child in module.children()}
    roots = [m for m in modules if id(m) not in inner]
    by_optimizer = [m for m in roots if any(id(p) in updated for p in m.parameters())]
    return by_optimizer or [m for m in roots if any(p.grad is not None for p in m.parameters())]


def _facts_of(reader: Any) -> dict[str, Any]:
    """Return facts on a DataLoader with batches: samples in its data set and in a batch, batches in an epoch of this rank, and
    sampler.
    """
    try:
        batches = reader._index_sampler
        return {
            "dataset_samples": len(reader._dataset),
            "rank_batch": int(batches.batch_size),
            "steps_per_epoch": len(batches),
            "sampler": type(batches.sampler).__name__,
            "workers": int(reader._num_workers),
        }
    except (AttributeError, TypeError, ValueError):  # a data set without length, or a custom sampler
        return {}


class LoopInstrumentation:
    """Instruments a loop from its creation until `leave`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_calls_s = 0.0
        self._in_collective = False
        self._averages = False
        self._objects = LoopObjects(None, False, {})
        self._gradients: GradientClock | None = None
        self._calls: list[Calls] = []  # of the network, then of its children
        self._updated: set[int] = set()
        self._handles: list[Any] = [register_optimizer_step_post_hook(self._note_update)]
        self._originals: dict[str, Any] = {}
        if dist.is_available() and device.type == "cpu":
            self._originals = {name: getattr(dist, name) for name in _COLLECTIVES}
            for name, call in self._originals.items():
                setattr(dist, name, self._timed(call))

    def look(self) -> WorkLine:
        """Return the objects of the loop, after its first step."""
        self._objects = discover(frozenset(self._updated))
        self._handles.pop().remove()
        network = self._objects.network
        if network is None:
            return WorkLine(**self._objects.loader)
        params, gradient_bytes = parameter_bytes(network)
        self._calls = [Calls(one) for one in (network, *network.children()) if any(True for _ in one.parameters())]
        self._handles += [one.network.register_forward_pre_hook(one.note, with_kwargs=True) for one in self._calls]
        if self._objects.is_wrapped and self._device.type == "cpu":
            self._gradients = GradientClock(network.parameters())
        return WorkLine(**self._objects.loader, params=params, gradient_bytes=gradient_bytes)

    def _note_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updated |= {id(p) for group in optimizer.param_groups for p in group["params"]}

    def begin_step(self) -> None:
        self._in_calls_s = 0.0
        for calls in self._calls:
            calls.begin_step()
        if self._gradients is not None:
            self._gradients.take_s()

    def end_step(self) -> None:
        for calls in self._calls:
            calls.end_step()

    def waited_s(self) -> float | None:
        """Return the seconds of the current step in which this rank waited for others; None if unknown."""
        in_backward_s = None if self._gradients is None else self._gradients.take_s()
        if in_backward_s is None and not self._averages:
            return None
        return self._in_calls_s + (in_backward_s or 0.0)

    def leave(self) -> None:
        """Stop the instrumentation and restore the process."""
        for handle in self._handles:
            handle.remove()
        if self._gradients is not None:
            self._gradients.remove()
        for name, call in self._originals.items():
            setattr(dist, name, call)

    def _called(self) -> list[Calls]:
        """Return the network; if the loop does not call it itself, as with a LightningModule, its called children."""
        return [calls for calls in self._calls[:1] if calls.samples] or [c for c in self._calls[1:] if c.samples]

    def write_ablations(self, write: Callable[[Line], None]) -> None:
        """Time a copy of the network on its largest input. Do nothing if it is unknown, large or takes inputs by name."""
        calls = next(iter(self._calls), None)
        if calls is None or not calls.inputs or calls.named or parameter_bytes(calls.network)[1] > LARGEST_COPY_BYTES:
            return
        try:
            work = _work_of(copy.deepcopy(calls.network), calls.inputs)
        except (RuntimeError, TypeError, ValueError):  # such as a network that cannot be copied
            return
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
        write_ablations(work, self._device, ranks_here, write)

    @property
    def precision(self) -> str:
        return next((calls.precision for calls in self._called()), "fp32")

    def flops_per_step(self) -> tuple[float | None, str]:
        """Return the matrix FLOPs of a step of this rank, or why they are unknown. The network stays unchanged."""
        network = self._objects.network
        if network is None:
            return None, "the recorder detected no network in the loop, or several; give flops_per_step=N"
        if not self._called():
            return None, f"{type(network).__name__} was not called within a step after the first"
        try:
            return sum(calls.flops_per_step() for calls in self._called()), ""
        except Exception as error:  # write the record whatever error the user's network raises
            text = " ".join(str(error).split())[:200]
            return None, f"{type(network).__name__} could not be counted: {text}"

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._in_collective:  # collectives may call other collectives
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
    """Return forward and backward of a network on tensors whose first dimension is the batch; the loss is a sum of outputs."""
    kept = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]

    def work(times: int) -> None:
        many = [x.repeat(times, *(1,) * (x.ndim - 1)) if isinstance(x, torch.Tensor) else x for x in kept]
        outputs = network(*many)
        first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        first.float().sum().backward()
        network.zero_grad(set_to_none=True)

    return work
