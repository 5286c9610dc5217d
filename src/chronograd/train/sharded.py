"""Networks whose parameters are sharded over the ranks: by PyTorch's FSDP2, or by tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import Optimizer

from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.predict.checkpointing import blocks
from chronograd.predict.sharding import TENSOR_ROLES, nothing_to_share
from chronograd.train.group import GroupCommunicator
from chronograd.train.rank_context import RankContext
from chronograd.train.watchdog import GRADIENTS, WATCHDOG


class FSDPCommunicator(GroupCommunicator):
    """FSDP2 (torch.distributed.fsdp.fully_shard): a rank stores its rows of each parameter, gradient and optimizer state.

    Each repeated block is gathered as one; all other parameters together are the root, which stays gathered from the start of
    forward to the end of backward. With gradient accumulation, ranks average after each part, so gradients stay sharded.
    """

    is_repeatable = False
    meets_in_forward = "all-gather of parameters"
    is_sharded = True

    def __init__(self, zero_stage: int, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._zero_stage = zero_stage

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        mesh = mesh_of(place)
        inside = blocks({path: type(module).__name__ for path, module in network.named_modules()})

        def shard() -> None:
            for path in dict.fromkeys(inside.values()):
                fully_shard(network.get_submodule(path), mesh=mesh, reshard_after_forward=self._zero_stage == 3)
            fully_shard(network, mesh=mesh)

        follow(network, optimizer, shard)
        WATCHDOG.set_collectives({"forward": self.meets_in_forward, "backward": GRADIENTS})
        return network, optimizer


class TensorCommunicator(GroupCommunicator):
    """Tensor parallelism: ranks share the matrices of each block, and all have the same batch.

    Embeddings, norms and the output matrix are whole on every rank, and their gradients are equal there.
    """

    is_repeatable = False
    splits_batch = False
    meets_in_forward = "all-reduce of activations"
    is_sharded = True

    def parallel(self, network: nn.Module, optimizer: Optimizer, place: RankContext) -> tuple[nn.Module, Optimizer]:
        mesh = mesh_of(place)
        shared = shared_blocks(network, place.world_size)

        def share_all() -> None:
            for block in shared:
                share(block, mesh)

        follow(network, optimizer, share_all)
        for group in optimizer.param_groups:
            group["foreach"] = False  # a fused call takes no mixture of shared and whole parameters
        WATCHDOG.set_collectives({"forward": self.meets_in_forward, "backward": self.meets_in_forward})
        return network, optimizer


def sharded_communicator(job: Job) -> GroupCommunicator:
    """Return the communicator of a backend of SHARDED."""
    if job.backend == "fsdp":
        return FSDPCommunicator(job.training.zero_stage, job.cluster.timeout_s)
    return TensorCommunicator(job.cluster.timeout_s)


def mesh_of(place: RankContext) -> DeviceMesh:
    return init_device_mesh(place.device.type, (place.world_size,))


def follow(network: nn.Module, optimizer: Optimizer, shard: Callable[[], object]) -> None:
    """Shard the parameters of a network, and let an optimizer without state step the sharded ones."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    shard()
    sharded = dict(network.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [sharded[names[id(parameter)]] for parameter in group["params"]]


# Roles of the modules of a block. The input of the columns comes from a norm, and its gradient is added up once for all of them.
STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "norm": lambda: PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
    ),
    "columns": ColwiseParallel,
    "rows": RowwiseParallel,
}


def shared_blocks(network: nn.Module, ranks: int) -> list[nn.Module]:
    """Return the blocks whose matrices ranks can share, those of TENSOR_ROLES.

    Raises: JobError if there is none, or if the ranks cannot share its heads equally.
    """
    found = [module for module in network.modules() if _has_parts(module)]
    if not found:
        raise JobError(*nothing_to_share(type(network).__name__))
    for block in found:
        for holder, name in _heads(block):
            if (heads := getattr(holder, name)) % ranks:
                raise JobError(
                    f"{name} of {type(holder).__name__} is {heads}, which {ranks} ranks cannot share equally",
                    "write a cluster.count that divides it",
                )
    return found


def _has_parts(module: nn.Module) -> bool:
    """Return whether a module is of a class of TENSOR_ROLES, and has its parts: other classes may have the same name."""
    roles = TENSOR_ROLES.get(type(module).__name__, {})
    paths = {path for path, _ in module.named_modules()}
    return bool(roles) and all(path in paths for path, role in roles.items() if role != "heads")


def _heads(block: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the modules of a block that hold a number of heads, and the name of that number."""
    roles = TENSOR_ROLES[type(block).__name__]
    paths = [path.rpartition(".") for path, role in roles.items() if role == "heads"]
    return [(block.get_submodule(parent), name) for parent, _, name in paths]


def share(block: nn.Module, mesh: DeviceMesh) -> None:
    """Share the matrices and heads of a block of `shared_blocks` over the ranks."""
    for holder, name in _heads(block):
        setattr(holder, name, getattr(holder, name) // mesh.size())
    roles = TENSOR_ROLES[type(block).__name__]
    plan = {path: STYLES[role]() for path, role in roles.items() if role != "heads"}
    parallelize_module(block, mesh, plan)
