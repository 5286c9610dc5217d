"""The place of a rank: its number, its device, its threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronograd.errors import InputError
from chronograd.job import Cluster, Job
from chronograd.measure import environment, process
from chronograd.measure.memory import keep_freed_memory
from chronograd.rundir.steps import Start
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Communicator:
    """The communicator of a single rank, and the interface of all: every rank calls every method, in the same order.

    Attributes:
        waited_s: seconds of the last backward after this rank's own last gradient. The rank waited for the averages: for the
            link, and for slower ranks. Known on the CPU.
    """

    waited_s: float | None = None
    # True if forward and backward can be repeated without an update, in `no_sync`.
    is_repeatable = True
    # Whether each rank has its own part of a batch; otherwise all have the whole batch.
    splits_batch = True
    # The collective in which ranks exchange tensors in forward, if they do: then all have to run the network equally often.
    meets_in_forward = ""
    # Whether each rank stores only a part of parameters and optimizer state.
    is_sharded = False

    @contextmanager
    def process_group(self, place: RankContext) -> Iterator[None]:
        """Return a context of membership in the group of ranks.

        A rank that raises does not leave the group in an orderly way, because it might wait for the others: it has to end.
        """
        yield

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        """Return the network to call and the optimizer to step, so that gradients are averaged over ranks between the two."""
        return network, optimizer

    def wait_for_gradients(self, optimizer: Optimizer) -> None:
        """Wait for the averages if backward does not. Called after the last backward of a step."""

    def no_sync(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None] | None:
        """Return a context in which ranks average nothing; None if there is none: for one rank, and for sharded parameters."""
        return None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values over ranks, in place, with the same result on every rank."""
        return values

    def broadcast_from_rank0(self, values: torch.Tensor) -> torch.Tensor:
        """Copy the values of rank 0 to every rank, in place."""
        return values

    def wait(self, place: RankContext) -> None:
        """Wait until every rank is here."""


@dataclass(frozen=True)
class RankContext:
    """One rank of a running job."""

    rank: int
    world_size: int
    device: torch.device
    threads: int
    exchange: Communicator = field(default_factory=lambda: Communicator())

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Return the number of this rank's part of a batch, out of `data_ranks`."""
        return self.rank if self.exchange.splits_batch else 0

    @property
    def data_ranks(self) -> int:
        return self.world_size if self.exchange.splits_batch else 1

    @property
    def is_counted(self) -> bool:
        """Return whether the samples of this rank count: ranks that have the same samples count once."""
        return self.exchange.splits_batch or self.is_rank_zero

    def start_line(self) -> Start:
        """Return the line about the place where this rank runs."""
        import torch

        is_cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if is_cuda else environment.processor_name()
        return process.start(str(self.device), name, torch.get_num_threads())


def threads_per_rank(cluster: Cluster, ranks_on_node: int) -> int:
    """Return the CPU threads of one rank on this machine."""
    return cluster.threads_per_rank(environment.cores(), ranks_on_node)


def check_machine(job: Job, ranks_here: int, gpu_names: Sequence[str]) -> None:
    """Refuse a job that this machine, with these GPUs, cannot run. Raises InputError.

    Device `local` is any device of this machine; `cpu` always exists; another name must be part of the name of a GPU.
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
            f"{how_many(ranks_here, 'ranks')} on this machine need one GPU each; it has {len(gpu_names)}",
            f"write cluster.count={len(gpu_names)}, or cluster.device=cpu",
        )


def rank_context_from_environment(
    job: Job, communicator_of: Callable[[Job, int], Communicator] | None = None
) -> RankContext:
    """Return the place of this process, from RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them.

    Sets the number of threads of this process. On the CPU it also makes the process reuse freed memory. Raises
    InputError if the device does not exist.
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
        return RankContext(rank, world_size, torch.device("cpu"), threads, exchange)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return RankContext(rank, world_size, device, threads, exchange)


def rank_numbers() -> tuple[int, int, int]:
    """Return RANK, WORLD_SIZE and LOCAL_RANK of the environment, or those of a single process if they are not set."""
    rank, world_size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    return rank, world_size, local_rank


def _matches(device: str, gpu_name: str) -> bool:
    """Return whether `a100-80` may be the card that the driver calls `NVIDIA A100-SXM4-80GB`."""
    letters = gpu_name.lower().replace(" ", "")
    return all(part in letters for part in device.lower().split("-"))
