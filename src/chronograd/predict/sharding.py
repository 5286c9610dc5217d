"""Memory and traffic of a rank whose parameters are sharded, as backends fsdp and tensor_parallel run.

A unit of FSDP is a block of `chronograd.predict.checkpointing.blocks`; all other parameters together are the root. Ranks gather a unit
into one buffer and copy it from there, and copy gradients into one buffer before they reduce it. Rows are padded, so that all ranks
have the same number of them.

Left out of tensor parallelism: gradients of earlier parts of a batch, and copies that an all-reduce makes for a moment.
Source: PyTorch, torch/distributed/fsdp/_fully_shard; Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from chronograd.errors import InputError
from chronograd.job import SHARDED, Job
from chronograd.predict.checkpointing import blocks
from chronograd.predict.collectives import BUS_FACTORS
from chronograd.trace import DTYPE_BYTES, Storage, Tensor, Trace

ROOT = ""
# The role of each part of a block, by the class of the block. Ranks share the columns or the rows of a matrix, and the heads. The norm
# feeds the columns.
TENSOR_ROLES: dict[str, dict[str, str]] = {
    "LlamaBlock": {
        "attention_norm": "norm",
        "attention.heads": "heads",
        "attention.kv_heads": "heads",
        "attention.query": "columns",
        "attention.key": "columns",
        "attention.value": "columns",
        "attention.out": "rows",
        "ffn_norm": "norm",
        "gate": "columns",
        "up": "columns",
        "down": "rows",
    },
}


class Sharded:
    """The units of a trace in training, sharded by `ranks` ranks of FSDP at a stage of ZeRO, 2 or 3.

    Args:
        parts: those of a batch, whose gradients ranks add up in shards.
        is_copied: the library of the exchange (gloo) copies each message.
    """

    def __init__(self, trace: Trace, ranks: int, zero_stage: int, parts: int = 1, is_copied: bool = False) -> None:
        self._trace, self._ranks, self._zero_stage = trace, ranks, zero_stage
        self._parts, self._is_copied = parts, is_copied
        self._inside = blocks(trace.modules)
        self._moments = len(trace.operators) + 1  # the operators, and the update
        frozen, parameters = set(trace.frozen), trace.parameters()
        self._sizes = self._by_unit(parameters)
        self._trained = self._by_unit({n: t for n, t in parameters.items() if n not in frozen})
        self._forward, self._backward = (self._spans(phase) for phase in ("forward", "backward"))
        self._start = next(i for i, op in enumerate(trace.operators) if op.phase == "backward")

    def sent_bytes(self) -> float:
        """Return the bytes that a rank sends per step: all-gathers of parameters, and reduce-scatters of gradients.

        Each part of a batch exchanges both. Stage 3 gathers a block in forward and in backward; all others are gathered once.
        """
        gathered = sum(self._sizes.values())
        if self._zero_stage == 3:
            gathered += gathered - self._sizes[ROOT]
        gather, reduce = (BUS_FACTORS[name](self._ranks) for name in ("all_gather", "reduce_scatter"))
        return float(self._parts * (gather * gathered + reduce * sum(self._trained.values())))

    def share_out(self, table: np.ndarray, optimizer_states: int) -> np.ndarray:
        """Return a table of `chronograd.predict.memory.Footprint` with sharded parameters, gradients and optimizer state."""
        table[0, :, 0], table[2, :, 0] = self._parameter_bytes(), self._gradient_bytes()
        table[3, :, 0] = optimizer_states * sum(self._trained.values()) / self._ranks
        return np.concatenate([table, self._copies(table)], axis=1) if self._is_copied else table

    def _parameter_bytes(self) -> np.ndarray:
        """Return the bytes of shards, gathered units and the buffers they come from, at each moment."""
        held = np.full(self._moments, sum(self._sizes.values()) / self._ranks)
        starts = dict(sorted((first, unit) for unit, (first, _) in self._forward.items()))
        loss = next((i for i, op in enumerate(self._trace.operators) if op.module == "loss"), self._start)
        held[:-1] += self._sizes[ROOT]
        # In forward the buffer of a unit lasts until the next unit is gathered.
        for first, unit, end in zip((0, *starts), (ROOT, *starts.values()), (*starts, loss), strict=True):
            held[first:end] += self._sizes[unit]
        for unit, (first, last) in self._forward.items():
            begin, end = self._backward.get(unit, (last, last))
            if self._zero_stage == 3:
                held[first : last + 1] += self._sizes[unit]
                held[begin : end + 1] += self._sizes[unit]
            else:
                held[first : end + 1] += self._sizes[unit]
        if self._zero_stage == 3:  # backward gathers each block while the one before it runs
            before = self._start
            for first, unit in sorted((first, unit) for unit, (first, _) in self._backward.items()):
                held[before:first] += self._sizes[unit]
                before = first
        return held

    def _gradient_bytes(self) -> np.ndarray:
        """Return the bytes of gradients at each moment: whole until their unit is done, and their shards after that."""
        held = np.zeros(self._moments)
        last = self._moments - 2
        ends = {unit: end for unit, (_, end) in self._backward.items()} | {ROOT: last}
        for storage in self._trace.storages:
            if storage.role == "gradient":
                unit = self._unit(self._trace.operators[storage.birth].module)
                held[storage.birth : ends[unit] + 1] += storage.bytes.const
        # FSDP keeps the buffer of a unit's reduction until it reduces the next unit.
        order = sorted(ends, key=ends.__getitem__)
        for unit, following in zip(order, (*order[1:], ROOT), strict=True):
            held[0 if self._parts > 1 else ends[unit] + 1 :] += self._trained[unit] / self._ranks
            held[ends[unit] + 1 : ends[following] + 1] += self._trained[unit]
        return held

    def _copies(self, table: np.ndarray) -> np.ndarray:
        """Return more moments of a table (parts, moments, 2): gloo copies each message, so that it exists once more.

        Each moment is between two operators, where neither has allocated its results.
        """
        held, reduced = table[0, :, 0], table[2, :, 0]
        moments = []

        def add(before: int, parameters: float, gradients: float) -> None:
            moment = np.minimum(table[:, max(before - 1, 0)], table[:, before])
            moment[0, 0], moment[2, 0] = parameters, gradients
            moments.append(moment)

        buffer = self._sizes[ROOT]
        for unit, (first, _) in self._forward.items():
            add(first, held[first] + buffer, reduced[first])
            buffer = self._sizes[unit]
        starts = sorted((first, unit) for unit, (first, _) in self._backward.items())
        if self._zero_stage == 3:
            before = self._start
            for first, unit in starts:
                add(before, held[before] + self._sizes[unit], reduced[before])
                before = first
        for unit, (_, last) in self._backward.items():
            add(last + 1, held[last] - self._sizes[unit], reduced[last + 1] + self._trained[unit])
        add(self._moments - 1, held[-1], reduced[-1] + 2 * self._trained[ROOT])
        return np.stack(moments, axis=1)

    def _unit(self, module: str) -> str:
        return self._inside.get(module, ROOT)

    def _by_unit(self, parameters: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the bytes of parameters by unit, padded to the same number of rows on each rank."""
        sizes = dict.fromkeys((ROOT, *self._inside.values()), 0.0)
        for name, tensor in parameters.items():
            rows, *others = tensor.shape_at(1)
            padded = math.ceil(rows / self._ranks) * self._ranks
            sizes[self._unit(name.rpartition(".")[0])] += padded * math.prod(others) * DTYPE_BYTES[tensor.dtype]
        return sizes

    def _spans(self, phase: str) -> dict[str, tuple[int, int]]:
        """Return the first and last operator of each block in a phase."""
        spans: dict[str, tuple[int, int]] = {}
        for i, op in enumerate(self._trace.operators):
            if op.phase == phase and (unit := self._unit(op.module)) != ROOT:
                spans[unit] = (spans.get(unit, (i, i))[0], i)
        return spans


def shared_storages(trace: Trace) -> set[int]:
    """Return the numbers of the storages that ranks of tensor parallelism share: matrices, and results between columns and rows.

    Raises InputError for a network without a block of TENSOR_ROLES.
    """
    roles = _roles(trace)
    shared: set[int] = set()
    for op in trace.operators:
        role = roles.get(op.module, "")
        inputs = {trace.tensors[i].storage for i in op.inputs}
        for storage in {trace.tensors[i].storage for i in op.outputs} - inputs:
            kind = trace.storages[storage].role
            if kind == "gradient":
                is_shared = role in ("columns", "rows")
            elif role == "norm":
                is_shared = False
            elif role in (
                "columns",
                "rows",
            ):  # whole are the results of rows, and the gradients of the input of columns
                is_shared = (role == "columns") == (op.phase == "forward")
            else:
                is_shared = bool(inputs & shared)
            if is_shared:
                shared.add(storage)
    for name, tensor in trace.parameters().items():
        module, _, leaf = name.rpartition(".")
        if roles.get(module) == "columns" or (roles.get(module) == "rows" and leaf == "weight"):
            shared.add(tensor.storage)
    return shared


class TensorShared:
    """The storages of a trace that `ranks` ranks of tensor parallelism share equally."""

    def __init__(self, trace: Trace, ranks: int) -> None:
        self._ranks, self._shared = ranks, {id(trace.storages[number]) for number in shared_storages(trace)}

    def share(self, storage: Storage) -> float:
        """Return the share of a storage that a rank has."""
        return 1 / self._ranks if id(storage) in self._shared else 1.0


def split_of(trace: Trace, job: Job, ranks: int, is_copied: bool = False) -> Sharded | TensorShared | None:
    """Return how ranks of a job share its parameters; None if each has all of them, or by ZeRO under another backend."""
    if trace.mode != "training" or ranks == 1 or job.backend not in SHARDED:
        return None
    if job.backend == "fsdp":
        return Sharded(trace, ranks, job.training.zero_stage, job.training.accumulation, is_copied)
    return TensorShared(trace, ranks)


def _roles(trace: Trace) -> dict[str, str]:
    """Return the role of each module that has one."""
    found = {
        f"{path}.{part}": role
        for path, name in trace.modules.items()
        for part, role in TENSOR_ROLES.get(name, {}).items()
        if role != "heads"
    }
    if not found:
        raise InputError(*nothing_to_share(trace.modules.get("", "the network")))
    return found


def nothing_to_share(network: str) -> tuple[str, str]:
    """Return message and hint of the error for a network without a block of TENSOR_ROLES."""
    return (
        f"{network} has no block whose matrices backend tensor_parallel can share",
        f"its blocks are {', '.join(TENSOR_ROLES)}; write backend=fsdp",
    )


def sent_bytes(trace: Trace, job: Job) -> float | None:
    """Return the bytes that a rank sends in a step, each collective as a ring; None for a backend that does not shard parameters.

    Ranks of tensor_parallel add up a result of each matrix of rows in forward, and a gradient of each norm before columns in
    backward.
    """
    ranks = job.cluster.count
    if job.backend == "fsdp":
        return Sharded(trace, ranks, job.training.zero_stage, job.training.accumulation).sent_bytes()
    if job.backend != "tensor_parallel":
        return None
    roles, summed = _roles(trace), 0
    for op in trace.operators:
        if roles.get(op.module) == "rows" and op.phase == "forward" and op.kind == "gemm":
            summed += 2 * trace.storages[trace.tensors[op.outputs[0]].storage].bytes.at(job.training.batch)
    return float(BUS_FACTORS["all_reduce"](ranks)) * summed
