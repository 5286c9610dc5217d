"""Communication between ranks: average gradients, agree on numbers. No other training code knows of it.

`rank_context.Communicator` is for a single rank: it does nothing. Subclasses override what they need.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from chronograd.eager import COMPILER
from chronograd.job import SHARDED, GradientExchange, Job
from chronograd.measure.steps import GradientClock
from chronograd.train.group import GroupCommunicator
from chronograd.train.rank_context import Communicator, RankContext
from chronograd.train.watchdog import GRADIENTS, WATCHDOG

MIB = 2**20


def rank0_number(number: int, place: RankContext) -> int:
    """Return rank 0's number on every rank."""
    return int(place.exchange.broadcast_from_rank0(torch.tensor(number, device=place.device)))


def share_buffers(network: nn.Module, place: RankContext) -> None:
    """Give every rank the buffers of rank 0, such as running means, so that all evaluate the same network."""
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    if place.world_size == 1 or not buffers:
        return
    flat = place.exchange.broadcast_from_rank0(torch.cat([b.detach().reshape(-1).double() for b in buffers]))
    for buffer, values in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))


def communicator_of(job: Job, world_size: int) -> Communicator:
    """Return the communicator of PyTorch's own backends."""
    if job.backend == "data_parallel":
        return DataParallelCommunicator(job.cluster.count)
    if world_size == 1:
        return Communicator()
    if job.backend in SHARDED:
        from chronograd.train.sharded import (
            sharded_communicator,  # most of a second, which other backends need not wait
        )

        return sharded_communicator(job)
    return DDPCommunicator(job.communication, job.cluster.timeout_s)


class DataParallelCommunicator(Communicator):
    """One rank whose network runs on several GPUs: torch.nn.DataParallel."""

    is_repeatable = False

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        return nn.DataParallel(network, device_ids=list(range(self._num_devices))), optimizer


class DDPCommunicator(GroupCommunicator):
    """DistributedDataParallel, which averages gradients while backward runs."""

    def __init__(self, communication: GradientExchange, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._communication = communication
        self._gradients: GradientClock | None = None

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        bucket_bytes = self._communication.bucket_bytes
        # DDP loads the compiler, which takes seconds. It must not take them from the time-out of the broadcast.
        importlib.import_module(COMPILER)
        with WATCHDOG.waiting("broadcast of weights"):
            model = DistributedDataParallel(
                network,
                device_ids=[place.device.index] if place.device.type == "cuda" else None,
                bucket_cap_mb=None if bucket_bytes is None else bucket_bytes / MIB,
            )
        WATCHDOG.set_collectives(
            {"backward": GRADIENTS}
            | ({"forward": "broadcast of buffers"} if any(True for _ in network.buffers()) else {})
        )
        if self._communication.compression == "fp16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
        if place.device.type == "cpu":
            self._gradients = GradientClock(network.parameters())
        return model, optimizer

    def wait_for_gradients(self, optimizer: Optimizer) -> None:
        """Do nothing: backward returns after the last average. The time after this rank's last gradient was waiting."""
        if self._gradients is not None:
            self.waited_s = self._gradients.take_s()

    def no_sync(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None] | None:
        assert isinstance(model, DistributedDataParallel)
        return without_exchange(model)


@contextmanager
def without_exchange(model: DistributedDataParallel) -> Iterator[None]:
    """Return a context in which a model neither broadcasts its buffers nor averages gradients. The next forward outside does
    both.

    `no_sync` alone is late by one forward: the first forward inside still broadcasts, and the first one after it does not.
    """
    model.require_forward_param_sync = False
    with model.no_sync():
        yield
    model.require_forward_param_sync = True
