"""Communication between ranks: average gradients, agree on numbers. No other training code knows of it.

`rank_context.Communicator` is for a single rank: it does nothing. Subclasses override what they need.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from chronograd.job import GradientExchange, Job
from chronograd.measure.steps import GradientClock
from chronograd.train.rank_context import Communicator, RankContext
from chronograd.train.watchdog import GRADIENTS, WATCHDOG

# Factor on `cluster.timeout_s` for the libraries' own time-outs. chronograd.train.watchdog names the missing rank
# first; a library only knows that one is missing.
LATER = 1.5
LATER_S = 60.0
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
    return DDPCommunicator(job.communication, job.cluster.timeout_s) if world_size > 1 else Communicator()


class DataParallelCommunicator(Communicator):
    """One rank whose network runs on several GPUs: torch.nn.DataParallel."""

    is_repeatable = False

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        return nn.DataParallel(network, device_ids=list(range(self._num_devices))), optimizer


class DDPCommunicator(Communicator):
    """torch.distributed with DistributedDataParallel: NCCL on CUDA, gloo on the CPU.

    The ranks meet at MASTER_ADDR and MASTER_PORT. If that is a loopback address, rank 0 listens there at the loopback
    interface only. Otherwise PyTorch's store listens at every interface of its machine, and has no password. Gloo
    listens at the interface of GLOO_SOCKET_IFNAME, NCCL at that of NCCL_SOCKET_IFNAME or one that it chooses.
    """

    def __init__(self, communication: GradientExchange, timeout_s: float) -> None:
        self._communication = communication
        self._timeout = timedelta(seconds=timeout_s * LATER + LATER_S)
        self._gradients: GradientClock | None = None

    @contextmanager
    def process_group(self, place: RankContext) -> Iterator[None]:
        library = "nccl" if place.device.type == "cuda" else "gloo"
        device = place.device if library == "nccl" else None
        with WATCHDOG.waiting("rendezvous"):
            dist.init_process_group(
                library,
                store=_loopback_store(place, self._timeout),
                rank=place.rank,
                world_size=place.world_size,
                timeout=self._timeout,
                device_id=device,
            )
        yield
        dist.destroy_process_group()

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        bucket_bytes = self._communication.bucket_bytes
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

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        with WATCHDOG.waiting("sum"):
            dist.all_reduce(values)
        return values

    def broadcast_from_rank0(self, values: torch.Tensor) -> torch.Tensor:
        with WATCHDOG.waiting("broadcast"):
            dist.broadcast(values, src=0)
        return values

    def wait(self, place: RankContext) -> None:
        with WATCHDOG.waiting("barrier"):
            dist.barrier(device_ids=[place.device.index] if place.device.type == "cuda" else None)


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


def _loopback_store(place: RankContext, timeout: timedelta) -> Any:
    """Return the store at which ranks of one machine meet, unreachable for others; None to use PyTorch's own store."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not re.fullmatch(r"127\.[0-9.]+", address):
        return None
    listener = socket.create_server((address, port), backlog=socket.SOMAXCONN).detach() if place.is_rank_zero else None
    stores: Any = dist  # torch has no types for them
    return stores.TCPStore(address, port, place.world_size, place.is_rank_zero, timeout, master_listen_fd=listener)
