"""What several ranks need beyond the single-process loop: a process group, and a few collectives.

With one rank every function here does nothing, so the loop does not ask how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from chronograd.train.place import Place

# A rank that waits longer than this for another gives up; evaluation and checkpoints are shorter.
TIMEOUT = timedelta(minutes=30)


@contextmanager
def joined(place: Place) -> Iterator[None]:
    """Membership in the process group: NCCL on CUDA, gloo on the CPU. MASTER_ADDR and MASTER_PORT say where.

    A rank that raises does not take leave of the others, which could make it wait for them: it is to end.
    """
    if place.world_size == 1:
        yield
        return
    library = "nccl" if place.device.type == "cuda" else "gloo"
    device = place.device if library == "nccl" else None
    dist.init_process_group(library, rank=place.rank, world_size=place.world_size, timeout=TIMEOUT, device_id=device)
    yield
    dist.destroy_process_group()


def parallel(network: nn.Module, place: Place) -> nn.Module:
    """The network, its gradients averaged over ranks."""
    if place.world_size == 1:
        return network
    ids = [place.device.index] if place.device.type == "cuda" else None
    return DistributedDataParallel(network, device_ids=ids)


def sum_over_ranks(values: torch.Tensor, place: Place) -> torch.Tensor:
    """In place, and the same on every rank."""
    if place.world_size > 1:
        dist.all_reduce(values)
    return values


def number_of_first_rank(number: int, place: Place) -> int:
    """Rank 0's number, on every rank."""
    if place.world_size == 1:
        return number
    shared = torch.tensor(number, device=place.device)
    dist.broadcast(shared, src=0)
    return int(shared)


def share_buffers(network: nn.Module, place: Place) -> None:
    """Give every rank the buffers of rank 0, such as running means, so that all evaluate one network."""
    if place.world_size == 1:
        return
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([b.detach().reshape(-1).double() for b in buffers])
    dist.broadcast(flat, src=0)
    for buffer, values in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))


def wait_for_all(place: Place) -> None:
    """Until every rank is here."""
    if place.world_size > 1:
        dist.barrier(device_ids=[place.device.index] if place.device.type == "cuda" else None)
