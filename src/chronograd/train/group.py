"""The group of ranks of torch.distributed: how they meet, and agree on numbers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from chronograd.train.rank_context import Communicator, RankContext
from chronograd.train.watchdog import WATCHDOG

# Factor on `cluster.timeout_s` for the libraries' own time-outs. chronograd.train.watchdog names the missing rank
# first; a library only knows that one is missing.
LATER = 1.5
LATER_S = 60.0


class GroupCommunicator(Communicator):
    """torch.distributed: NCCL on CUDA, gloo on the CPU.

    The ranks meet at MASTER_ADDR and MASTER_PORT. If that is a loopback address, rank 0 listens there at the loopback
    interface only. Otherwise PyTorch's store listens at every interface of its machine, and has no password. Gloo
    listens at the interface of GLOO_SOCKET_IFNAME, NCCL at that of NCCL_SOCKET_IFNAME or one that it chooses.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s * LATER + LATER_S)

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


def _loopback_store(place: RankContext, timeout: timedelta) -> Any:
    """Return the store at which ranks of one machine meet, unreachable for others; None to use PyTorch's own store."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not re.fullmatch(r"127\.[0-9.]+", address):
        return None
    listener = socket.create_server((address, port), backlog=socket.SOMAXCONN).detach() if place.is_rank_zero else None
    stores: Any = dist  # torch has no types for them
    return stores.TCPStore(address, port, place.world_size, place.is_rank_zero, timeout, master_listen_fd=listener)
