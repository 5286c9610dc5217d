"""Peak memory of a step, from the lifetimes of tensors in a trace, with optional sharding by ZeRO.

Left out: the allocator's rounding and fragmentation, workspace of kernels, the framework's own context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.predict.checkpointing import blocks, lifetimes
from chronograd.predict.sharding import Sharded, TensorShared, split_of
from chronograd.predict.traffic import traffic
from chronograd.trace import MATRIX_KINDS, Affine, Trace
from chronograd.units import memory

# One number, or an array.
Amount = Any

# Number of state tensors of the size of the parameters: the momentum of SGD, both moments of Adam.
OPTIMIZER_STATES = {"sgd": 0, "sgd-momentum": 1, "adamw": 2, "adadelta": 2, "rmsprop": 2}
# Rows of a footprint. Activations include their gradients and the input.
_HALF = ("bf16", "fp16")
PARTS = ("parameters", "buffers", "gradients", "optimizer_state", "activations")
_PART_OF_ROLE = {"parameter": 0, "buffer": 1, "gradient": 2, "optimizer_state": 3, "activation": 4, "input": 4}

# Assumed bytes of a device's memory that tensors cannot use. GPU: half a GiB for the CUDA context and its libraries, and half a
# GiB for workspaces and the allocator's fragmentation. CPU: a process after one small step has 0.74 GB resident with torch 2.11
# on Linux.
_RESERVE_BYTES = {"gpu": 2**30, "cpu": 740_000_000}


@dataclass(frozen=True)
class Overhead:
    """Memory that a step needs in addition to the reserve, as factors of the predicted bytes of its tensors.

    Attributes:
        median: half of the networks need less. high: nine of ten need less.
    """

    median: float
    high: float


# A step needs reserve + factor * predicted bytes. The factor covers workspaces of kernels, fragmentation, and errors of the
# prediction. GPU: log-normal factors, fitted by `python -m benchmarks.memory` to the batches that timm ran on an RTX 3090 with
# 24 GiB. There are 15 rows in training and 27 in inference; the standard deviation of the logarithm is 0.30 and 0.25. All rows
# have the same memory size, so they cannot distinguish a larger reserve from a larger factor: the reserve stays at 1 GiB. CPU:
# estimated; predictions are within 3 to 10 %.
_OVERHEAD = {
    ("gpu", "training"): Overhead(1.19, 1.75),
    ("gpu", "inference"): Overhead(1.36, 1.88),
    ("cpu", "training"): Overhead(1.0, 1.1),
    ("cpu", "inference"): Overhead(1.0, 1.1),
}


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of the peak, by role. Activations include their gradients and the input. The optimizer's state
    includes a running mean of the weights.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.buffers + self.gradients + self.optimizer_state + self.activations


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank at every moment of a step, at any batch.

    Attributes:
        table: shape (parts, moments, 2): bytes independent of the batch, and bytes per sample. The moments are the operators
            and, last, the update.
    """

    table: np.ndarray

    @cached_property
    def envelope(self) -> np.ndarray:
        """Return the sum over parts of the moments that are a peak at some batch: shape (few, 2).

        Of moments with equal bytes per sample only the largest can be a peak.
        """
        total = self.table.sum(axis=0)
        total = total[np.lexsort((total[:, 0], total[:, 1]))]
        is_last = np.append(np.diff(total[:, 1]) > 0, True)
        return np.asarray(total[is_last])

    def at(self, batch: int) -> Memory:
        """Return bytes by part at the peak of a step with `batch` samples."""
        by_moment = self.table[..., 0] + self.table[..., 1] * batch
        peak = by_moment[:, int(np.argmax(by_moment.sum(axis=0)))]
        return Memory(*(int(np.ceil(value)) for value in peak))

    def peak_bytes(self, batches: np.ndarray) -> np.ndarray:
        """Return bytes at the peak for each batch, in the shape of `batches`."""
        line = self.envelope
        return np.asarray((line[:, 0] + np.asarray(batches)[..., None] * line[:, 1]).max(axis=-1))

    def largest_batch(self, capacity_bytes: float) -> int:
        """Return the largest batch whose peak fits; 0 if none does.

        A moment takes c + p · batch bytes, so the limit is the minimum of (capacity - c) / p over moments.

        Raises: InputError if memory does not grow with the batch, as in a trace of one batch only.
        """
        line = self.envelope
        grows = line[:, 1] > 0
        if not grows.any():
            raise InputError("memory in this trace does not grow with the batch", "count again without --fixed-batch")
        if (line[~grows, 0] > capacity_bytes).any():
            return 0
        room = np.floor((capacity_bytes - line[grows, 0]) / line[grows, 1])
        return max(0, int(room.min()))


def reserve_bytes(device: Device) -> int:
    """Return the assumed bytes of a device's memory that tensors cannot use: framework, context and workspaces."""
    device.check_predicted()
    return _RESERVE_BYTES[device.kind]


def overhead(device: Device, mode: str) -> Overhead:
    """Return the factors, for `training` or `inference`, from the tensors' bytes to a step's memory without the reserve."""
    return _OVERHEAD[device.kind, mode]


def needed_bytes(device: Device, mode: str, tensors: Amount) -> tuple[Amount, Amount]:
    """Return the memory of a step, given the bytes of its tensors: half of the networks need less than the first number, nine
    of ten less than the second.
    """
    more, reserve = overhead(device, mode), reserve_bytes(device)
    return more.median * tensors + reserve, more.high * tensors + reserve


def may_not_fit(device: Device, mode: str, tensors: int) -> str:
    """Return a sentence if, within the uncertainty, a step may need more memory than the device has; else an empty string."""
    if needed_bytes(device, mode, tensors)[1] <= device.usable_bytes:
        return ""
    return (
        f"may not fit: tensors of a rank take {memory(tensors)}. One network in ten needs {overhead(device, mode).high:g} times "
        f"that plus {memory(reserve_bytes(device))} for the framework; {device.name} has {memory(device.usable_bytes)}"
    )


def footprint(
    trace: Trace,
    optimizer: str = "sgd-momentum",
    *,
    world_size: int = 1,
    zero_stage: int = 0,
    activation_checkpointing: str = "none",
    precision: str = "fp32",
    has_average: bool = False,
    split: Sharded | TensorShared | None = None,
) -> Footprint:
    """Return the memory of one of `world_size` data-parallel ranks.

    ZeRO shards over the ranks: from stage 1 optimizer state, from 2 gradients as well, from 3 parameters as well. Sharded parts
    are whole only for the current unit (a block, or a module outside of blocks). The bound uses the largest unit: x / n + (1 -
    1/n) · min(x, largest unit). In bf16 and fp16 that unit is gathered and its gradients are reduced in half precision; half
    copies of weights are sharded from stage 3, as in FSDP.

    Args:
        optimizer: key of OPTIMIZER_STATES; inference has no state.
        activation_checkpointing: `none`, or `blocks`: only inputs of blocks are stored, and one block at a time is recomputed.
        precision: in bf16 and fp16, under autocast, most activations take half the bytes, and weights of matrix work exist
            twice.
        has_average: every rank has a whole running mean of parameters and buffers.
        split: how ranks of backend fsdp or tensor_parallel share parameters, instead of `world_size` and `zero_stage`.

    Left out without `split`: units gathered ahead of their use, buckets. Raises: InputError for blocks if the network has none.
    Source: Rajbhandari et al. 2020, ZeRO, section 5.
    """
    is_training = trace.mode == "training"
    num_moments = max(len(trace.operators), 1)
    change = np.zeros((len(PARTS), num_moments + 1, 2))
    all_lifetimes = lifetimes(trace, activation_checkpointing if is_training else "none")
    is_half = precision in _HALF
    in_half = _held_in_half(trace, zero_stage) if is_half else set()
    share = split.share if isinstance(split, TensorShared) else lambda storage: 1.0
    for storage, birth, death in all_lifetimes:
        is_half_size = storage.role == "activation" and id(storage) in in_half
        held = share(storage) * np.array(_half(storage.bytes) if is_half_size else storage.bytes)
        _add(change[_PART_OF_ROLE[storage.role]], held, birth, death, num_moments)
    copies = np.zeros((num_moments + 1, 2))
    for size, birth, death in _half_copies(trace) if is_half else ():
        _add(copies, size, birth, death, num_moments)
    table, copies = np.cumsum(change, axis=1), np.cumsum(copies, axis=0)
    frozen = set(trace.frozen)
    trained = [t for n, t in trace.parameters().items() if n not in frozen] if is_training else []
    storages = [trace.storages[tensor.storage] for tensor in trained]
    trained_bytes = sum((share(storage) * np.array(storage.bytes) for storage in storages), np.zeros(2))
    # The update, after the pass: all gradients exist; activations and the input do not.
    table[2, -1], table[4, -1] = trained_bytes, 0.0
    table[3] = OPTIMIZER_STATES[optimizer] * trained_bytes
    if zero_stage and world_size > 1:
        copies = _share_out(trace, table, copies, world_size, zero_stage, is_half)
    table[_PART_OF_ROLE["activation"]] += copies
    if isinstance(split, Sharded):
        table = split.share_out(table, OPTIMIZER_STATES[optimizer])
    if has_average and is_training:
        state = (*trace.parameters().values(), *trace.buffers().values())
        table[3] += sum((np.array(trace.storages[t.storage].bytes) for t in state), np.zeros(2))
    return Footprint(table)


def _share_out(
    trace: Trace, table: np.ndarray, copies: np.ndarray, world_size: int, zero_stage: int, is_half: bool
) -> np.ndarray:
    """Shard the parts of a table over the ranks for a stage of ZeRO; return the half copies of weights, sharded as well."""
    # Ranks gather weights and reduce gradients in the precision of the computation.
    whole = _largest_unit_bytes(trace) / (2 if is_half else 1) if zero_stage > 1 else 0
    for part, stage in ((3, 1), (2, 2), (0, 3)):
        if zero_stage >= stage:
            has_unit = part == 2 or (part == 0 and not is_half)
            table[part] = _shared(table[part], world_size, whole if has_unit else 0)
    return _shared(copies, world_size, whole) if zero_stage >= 3 else copies


def footprint_of_job(trace: Trace, job: Job, world_size: int | None = None) -> Footprint:
    """Return the memory of a rank of a job at any batch, optionally for another number of ranks. Raises as `footprint`."""
    training, ranks = job.training, world_size or job.cluster.count
    split = split_of(trace, job, ranks, is_copied=catalog.is_cpu(job.cluster.device))
    return footprint(
        trace,
        training.optimizer_kind,
        world_size=ranks,
        zero_stage=training.zero_stage if split is None else 0,
        activation_checkpointing=training.activation_checkpointing,
        precision=training.precision,
        has_average=training.ema_decay > 0,
        split=split,
    )


def checkpoint_bytes(trace: Trace, job: Job) -> int:
    """Return the bytes of a checkpoint: parameters, buffers and the optimizer's state, once for any number of ranks."""
    memory = footprint_of_job(trace, job, world_size=1).at(1)
    return memory.parameters + memory.buffers + memory.optimizer_state


def peak_memory(trace: Trace, batch: int, optimizer: str = "sgd-momentum") -> Memory:
    """Return the memory at the peak of a step with `batch` samples on one device; see `footprint`.

    The peak is inside the pass, or in the update, when all gradients exist and no activation does.
    """
    return footprint(trace, optimizer).at(batch)


def _add(line: np.ndarray, size: Affine | np.ndarray, birth: int, death: int | None, num_moments: int) -> None:
    """Add the allocation and release of a storage to the changes of a part over moments, shape (moments, 2)."""
    line[max(birth, 0)] += size
    if death is not None:
        line[min(death + 1, num_moments)] -= size


def _shared(line: np.ndarray, world_size: int, unit_bytes: float) -> np.ndarray:
    """Return the bytes of a part on one rank: its share, and the whole current unit, except in the update."""
    unit = np.minimum(line, unit_bytes)
    unit[-1] = 0.0
    return np.asarray(line / world_size + (1 - 1 / world_size) * unit)


def _held_in_half(trace: Trace, zero_stage: int) -> set[int]:
    """Return the ids of the storages that a step in half precision holds in half.

    Autocast keeps some results in single precision, for example the sums of residual connections. At stage 3 the whole network
    and its loss are in half precision, as under the mixed precision of FSDP and of DeepSpeed, which need no autocast.
    """
    if zero_stage >= 3:
        return {id(trace.storages[tensor.storage]) for tensor in trace.tensors if tensor.dtype == "float32"}
    in_half = traffic(trace, "fp16").held_in_half
    single = {tensor.storage for i, tensor in enumerate(trace.tensors) if i not in in_half}
    return {id(storage) for number, storage in enumerate(trace.storages) if number not in single}


def _half_copies(trace: Trace) -> Iterator[tuple[Affine, int, int]]:
    """Yield bytes, first and last use of the half copies that autocast creates of weights of matrix work."""
    uses: dict[int, list[int]] = {}
    single = {tensor.storage for tensor in trace.tensors if tensor.dtype == "float32"}
    for k, op in enumerate(trace.operators):
        if op.kind in MATRIX_KINDS:
            for storage in {trace.tensors[i].storage for i in op.inputs}:
                uses.setdefault(storage, []).append(k)
    for storage, at in uses.items():
        if trace.storages[storage].role == "parameter" and storage in single:
            yield _half(trace.storages[storage].bytes), at[0], at[-1]


def _half(size: Affine) -> Affine:
    return Affine(size.const // 2, size.per_sample // 2)


def _largest_unit_bytes(trace: Trace) -> int:
    """Return the bytes of the parameters of the largest block, or module outside of blocks."""
    inside = blocks(trace.modules)
    units: dict[str, int] = {}
    for name, tensor in trace.parameters().items():
        module = name.rpartition(".")[0]
        unit = inside.get(module, module)
        units[unit] = units.get(unit, 0) + trace.storages[tensor.storage].bytes.const
    return max(units.values(), default=0)
