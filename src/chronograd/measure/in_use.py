"""What a loop of the user's own works with, found among the objects of the process: its network, its loader.

Nobody has to hand them over, and nothing is changed. Found are a DistributedDataParallel, else the one network that has
gradients, and the DataLoader that is being read. Where there are several, or none, nothing is found.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader


@dataclass(frozen=True)
class InUse:
    """`network` without its wrapper; `is_wrapped` by DistributedDataParallel. `loader`: what a rank reads, as data."""

    network: nn.Module | None
    is_wrapped: bool
    loader: dict[str, Any]


def find() -> InUse:
    """Look through all objects of this process: about a tenth of a second."""
    modules: list[nn.Module] = []
    readers: list[Any] = []
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, nn.Module):
            modules.append(thing)
        elif issubclass(kind, dataloader._BaseDataLoaderIter):
            readers.append(thing)
    wrapped = [m for m in modules if isinstance(m, DistributedDataParallel)]
    network = _only(m.module for m in wrapped) if wrapped else _only(_trained_roots(modules))
    loaders = [facts for facts in map(_facts_of, readers) if facts]
    return InUse(network, bool(wrapped), loaders[0] if len({str(f) for f in loaders}) == 1 else {})


def parameter_bytes(network: nn.Module) -> tuple[int, int]:
    """Parameters that are trained, and the bytes of their gradients."""
    trained = [p for p in network.parameters() if p.requires_grad]
    return sum(p.numel() for p in trained), sum(p.numel() * p.element_size() for p in trained)


def _only(found: Any) -> Any:
    ones = list(found)
    return ones[0] if len(ones) == 1 else None


def _trained_roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Networks with gradients that are part of no other."""
    inner = {id(child) for module in modules for child in module.children()}
    return [m for m in modules if id(m) not in inner and any(p.grad is not None for p in m.parameters())]


def _facts_of(reader: Any) -> dict[str, Any]:
    """Of a DataLoader with batches: samples in its set, of a batch, batches in an epoch of this rank, and its sampler."""
    try:
        batches = reader._index_sampler
        return {
            "dataset_samples": len(reader._dataset),
            "rank_batch": int(batches.batch_size),
            "steps_per_epoch": len(batches),
            "sampler": type(batches.sampler).__name__,
            "workers": int(reader._num_workers),
        }
    except (AttributeError, TypeError, ValueError):  # a set without length, or a sampler of the user's own
        return {}
