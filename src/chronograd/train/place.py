"""Where a rank is: its number, its device, its threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronograd.errors import InputError
from chronograd.job import Cluster, Job
from chronograd.measure import environment

if TYPE_CHECKING:
    import torch

    from chronograd.train.exchange import Alone


@dataclass(frozen=True)
class Place:
    """One rank of a running job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    threads: int
    exchange: Alone = field(default_factory=lambda: _alone())

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def threads_per_rank(cluster: Cluster, ranks_on_node: int) -> int:
    """CPU threads of one rank: what the job says, else cores shared out, at least 1."""
    return cluster.threads or max(1, environment.cores() // ranks_on_node)


def check_machine(job: Job, ranks_here: int, gpu_names: Sequence[str]) -> None:
    """Refuse a job that this machine, with these GPUs, cannot run. Raises InputError.

    Device `local` is whatever there is; `cpu` is always there; another name must be in the name of a GPU.
    """
    device, precision = job.cluster.device, job.training.precision
    if device not in ("local", "cpu") and not any(_matches(device, name) for name in gpu_names):
        here = f"has {gpu_names[0]}" if gpu_names else "has no NVIDIA GPU"
        raise InputError(
            f"cluster.device is {device}, and this machine {here}",
            "write cluster.device=local to run here, or predict the job for that device",
        )
    if device == "cpu" or not gpu_names:
        if precision in ("fp16", "tf32"):
            raise InputError(f"training.precision is {precision}, which needs an NVIDIA GPU", "use fp32 or bf16")
    elif ranks_here > len(gpu_names):
        raise InputError(
            f"{ranks_here} ranks on this machine need as many GPUs; it has {len(gpu_names)}",
            f"write cluster.count={len(gpu_names)}, or cluster.device=cpu",
        )


def place_from_environment(job: Job, exchange_of: Callable[[Job, int], Alone] | None = None) -> Place:
    """The place of this process, from RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them.

    Sets the number of threads of this process. Raises InputError if the device is not there.
    """
    import torch

    rank, world_size, local_rank = (int(os.environ.get(n, d)) for n, d in _VARIABLES.items())
    ranks_on_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    has_cuda = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_cuda else []
    check_machine(job, ranks_on_node, names)
    threads = threads_per_rank(job.cluster, ranks_on_node)
    exchange = exchange_of(job, world_size) if exchange_of is not None else _alone()
    torch.set_num_threads(threads)
    if job.cluster.device == "cpu" or not has_cuda:
        return Place(rank, world_size, local_rank, torch.device("cpu"), threads, exchange)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return Place(rank, world_size, local_rank, device, threads, exchange)


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def _matches(device: str, gpu_name: str) -> bool:
    """Whether `a100-80` may be the card that the driver calls `NVIDIA A100-SXM4-80GB`."""
    letters = gpu_name.lower().replace(" ", "")
    return all(part in letters for part in device.lower().split("-"))


def _alone() -> Alone:
    from chronograd.train.exchange import Alone

    return Alone()
