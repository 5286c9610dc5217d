"""Where a rank is: its number, its device, its threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronograd.errors import InputError
from chronograd.job import Cluster, Job
from chronograd.measure import environment
from chronograd.measure.memory import keep_freed_memory
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Communicator:
    """One rank. Also what is common to all: every method is called by every rank, in the same order.

    Attributes:
        waited_s: seconds of the last backward after this rank's own last gradient, in which it waited for the averages:
            for the link, and for slower ranks. Known on the CPU.
    """

    waited_s: float | None = None
    # Whether forward and backward can be run again and again without an update, in `apart`.
    is_repeatable = True

    @contextmanager
    def process_group(self, place: RankContext) -> Iterator[None]:
        """Membership in the group of ranks.

        A rank that raises does not take leave of the others, which could make it wait for them: it is to end.
        """
        yield

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        """What to call, and what to step, so that gradients are averaged over ranks between the two."""
        return network, optimizer

    def wait_for_gradients(self, optimizer: Optimizer) -> None:
        """Called after the last backward of a step, also within `apart`: waits for the averages where backward does not."""

    def no_sync(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None] | None:
        """A context in which ranks average nothing; None for one rank, which never does."""
        return None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Over ranks, in place, and the same on every rank."""
        return values

    def broadcast_from_rank0(self, values: torch.Tensor) -> torch.Tensor:
        """Those of rank 0, in place, on every rank."""
        return values

    def wait(self, place: RankContext) -> None:
        """Until every rank is here."""


@dataclass(frozen=True)
class RankContext:
    """One rank of a running job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    threads: int
    exchange: Communicator = field(default_factory=lambda: Communicator())

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0


def threads_per_rank(cluster: Cluster, ranks_on_node: int) -> int:
    """CPU threads of one rank on this machine."""
    return cluster.threads_per_rank(environment.cores(), ranks_on_node)


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
        if job.training.compile == "cuda-graphs":
            raise InputError(
                "training.compile is cuda-graphs, which needs an NVIDIA GPU", "write training.compile=true"
            )
    elif ranks_here > len(gpu_names):
        raise InputError(
            f"{how_many(ranks_here, 'ranks')} on this machine need as many GPUs; it has {len(gpu_names)}",
            f"write cluster.count={len(gpu_names)}, or cluster.device=cpu",
        )


def rank_context_from_environment(
    job: Job, communicator_of: Callable[[Job, int], Communicator] | None = None
) -> RankContext:
    """The place of this process, from RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them.

    Sets the number of threads of this process, which on the CPU also keeps what it frees. Raises InputError if the device is not there.
    """
    import torch

    rank, world_size, local_rank = rank_numbers()
    ranks_on_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    has_cuda = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_cuda else []
    check_machine(job, ranks_on_node, names)
    threads = threads_per_rank(job.cluster, ranks_on_node)
    exchange = communicator_of(job, world_size) if communicator_of is not None else Communicator()
    torch.set_num_threads(threads)
    if job.cluster.device == "cpu" or not has_cuda:
        keep_freed_memory()
        return RankContext(rank, world_size, local_rank, torch.device("cpu"), threads, exchange)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return RankContext(rank, world_size, local_rank, device, threads, exchange)


def rank_numbers() -> tuple[int, int, int]:
    """RANK, WORLD_SIZE and LOCAL_RANK of the environment; those of a process alone where they are not set."""
    rank, world_size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    return rank, world_size, local_rank


def _matches(device: str, gpu_name: str) -> bool:
    """Whether `a100-80` may be the card that the driver calls `NVIDIA A100-SXM4-80GB`."""
    letters = gpu_name.lower().replace(" ", "")
    return all(part in letters for part in device.lower().split("-"))
