"""Peak memory of a step: what is alive at once, from the lifetimes in a trace, shared out by ZeRO where asked for.

Left out: the allocator's rounding and fragmentation, kernels' workspace, the framework's own context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.predict.checkpointing import blocks, lifetimes
from chronograd.predict.traffic import traffic
from chronograd.trace import MATRIX_KINDS, Affine, Trace
from chronograd.units import memory

# One number, or an array of them.
Amount = Any

# Tensors of the size of the parameters that an optimizer keeps: the momentum of SGD, both moments of Adam.
OPTIMIZER_STATES = {"sgd": 0, "sgd-momentum": 1, "adamw": 2, "adadelta": 2, "rmsprop": 2}
# Rows of a footprint. Activations include their gradients and the input.
_HALF = ("bf16", "fp16")
PARTS = ("parameters", "buffers", "gradients", "optimizer_state", "activations")
_PART_OF_ROLE = {"parameter": 0, "buffer": 1, "gradient": 2, "optimizer_state": 3, "activation": 4, "input": 4}

# Bytes of a device that are not for tensors; assumed. GPU: half a GiB for the CUDA context and its libraries, as much for
# workspaces and the allocator's fragmentation. CPU: a process that has taken one small step has 0.74 GB resident with torch 2.11 on Linux.
_RESERVE_BYTES = {"gpu": 2**30, "cpu": 740_000_000}


@dataclass(frozen=True)
class Overhead:
    """Memory that a step needs beside the reserve, as factors of the predicted bytes of its tensors.

    Attributes:
        median: half of the networks need less. high: nine of ten need less.
    """

    median: float
    high: float


# A step needs reserve + factor * predicted bytes. The rest is workspaces of kernels, fragmentation, and errors of the prediction.
# GPU: log-normal factors, fitted by `python -m benchmarks.memory` to the batches that timm ran on an RTX 3090 with 24 GiB (15 rows in
# training, 27 in inference; a deviation of 0.30 and 0.25 of the logarithm). As all rows have one size of memory, they cannot
# distinguish a larger reserve from a larger factor: the reserve stays at 1 GiB. CPU: judged; predictions are within 3 to 10 %.
_OVERHEAD = {
    ("gpu", "training"): Overhead(1.19, 1.75),
    ("gpu", "inference"): Overhead(1.36, 1.88),
    ("cpu", "training"): Overhead(1.0, 1.1),
    ("cpu", "inference"): Overhead(1.0, 1.1),
}


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of the peak, by role. Activations include their gradients and the input, the optimizer's state a
    running mean of the weights."""

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
        table: shape (parts, moments, 2): bytes that are there whatever the batch, and bytes per sample. Moments are the
            operators and, last, the update.
    """

    table: np.ndarray

    @cached_property
    def envelope(self) -> np.ndarray:
        """Sum over parts of the moments that are a peak at some batch: shape (few, 2).

        Of moments with equally many bytes per sample only the largest can be.
        """
        total = self.table.sum(axis=0)
        total = total[np.lexsort((total[:, 0], total[:, 1]))]
        is_last = np.append(np.diff(total[:, 1]) > 0, True)
        return np.asarray(total[is_last])

    def at(self, batch: int) -> Memory:
        """Bytes by part at the peak of a step with `batch` samples."""
        by_moment = self.table[..., 0] + self.table[..., 1] * batch
        peak = by_moment[:, int(np.argmax(by_moment.sum(axis=0)))]
        return Memory(*(int(np.ceil(value)) for value in peak))

    def peak_bytes(self, batches: np.ndarray) -> np.ndarray:
        """Bytes at the peak for each of some batches, in the shape of `batches`."""
        line = self.envelope
        return np.asarray((line[:, 0] + np.asarray(batches)[..., None] * line[:, 1]).max(axis=-1))

    def largest_batch(self, capacity_bytes: float) -> int:
        """The largest batch whose peak fits; 0 if none does.

        A moment takes c + p · batch bytes, so the batch is bound by the least of (capacity - c) / p over moments.

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
    """Bytes of a device's memory that are not for tensors: framework, context and workspaces. Assumed, not modelled."""
    return _RESERVE_BYTES[device.kind]


def overhead(device: Device, mode: str) -> Overhead:
    """Factors of a mode, `training` or `inference`, from the tensors' bytes to the memory that a step needs beside the reserve."""
    return _OVERHEAD[device.kind, mode]


def needed_bytes(device: Device, mode: str, tensors: Amount) -> tuple[Amount, Amount]:
    """Memory that a step needs, given the bytes of its tensors: half of the networks need less than the first number, nine of
    ten less than the second."""
    more, reserve = overhead(device, mode), reserve_bytes(device)
    return more.median * tensors + reserve, more.high * tensors + reserve


def may_not_fit(device: Device, mode: str, tensors: int) -> str:
    """A sentence where the memory that a step needs is within its uncertainty of the device's; else nothing."""
    if needed_bytes(device, mode, tensors)[1] <= device.memory_bytes:
        return ""
    return (
        f"may not fit: tensors of a rank take {memory(tensors)}, one network in ten needs {overhead(device, mode).high:g} times as "
        f"much beside {memory(reserve_bytes(device))} for the framework, {device.name} has {memory(device.memory_bytes)}"
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
) -> Footprint:
    """Memory of one of `world_size` data-parallel ranks.

    ZeRO shares out over the ranks: from stage 1 optimizer state, from 2 gradients as well, from 3 parameters as well.
    What a stage shares is whole only for the unit in work (a block, or a module outside of blocks); its bound is the
    largest: x / n + (1 - 1/n) · min(x, largest unit). In bf16 and fp16 that unit is gathered and its gradients are reduced in half;
    the half copies of weights are shared from stage 3, as FSDP does.

    Args:
        optimizer: key of OPTIMIZER_STATES; nothing is kept in inference.
        activation_checkpointing: `none`, or `blocks`: only inputs of blocks are kept, and one block at a time is
            computed again.
        precision: in bf16 and fp16, under autocast, most activations take half, and weights of matrix work are there
            twice.
        has_average: a running mean of parameters and buffers is kept, whole on every rank.

    Left out: units gathered ahead of their use, buckets. Raises: InputError for blocks where the network has none.
    Source: Rajbhandari et al. 2020, ZeRO, section 5.
    """
    is_training = trace.mode == "training"
    num_moments = max(len(trace.operators), 1)
    change = np.zeros((len(PARTS), num_moments + 1, 2))
    all_lifetimes = lifetimes(trace, activation_checkpointing if is_training else "none")
    is_half = precision in _HALF
    in_half = _held_in_half(trace, zero_stage) if is_half else set()
    for storage, birth, death in all_lifetimes:
        if storage.role == "activation" and id(storage) in in_half:
            storage = replace(storage, bytes=_half(storage.bytes))
        _add(change[_PART_OF_ROLE[storage.role]], storage.bytes, birth, death, num_moments)
    copies = np.zeros((num_moments + 1, 2))
    for size, birth, death in _half_copies(trace) if is_half else ():
        _add(copies, size, birth, death, num_moments)
    table, copies = np.cumsum(change, axis=1), np.cumsum(copies, axis=0)
    frozen = set(trace.frozen)
    trained = [t for n, t in trace.parameters().items() if n not in frozen] if is_training else []
    trained_bytes = sum((np.array(trace.storages[t.storage].bytes) for t in trained), np.zeros(2))
    # The update, after the pass: all gradients exist, activations and the input do not.
    table[2, -1], table[4, -1] = trained_bytes, 0.0
    table[3] = OPTIMIZER_STATES[optimizer] * trained_bytes
    if zero_stage and world_size > 1:
        copies = _share_out(trace, table, copies, world_size, zero_stage, is_half)
    table[_PART_OF_ROLE["activation"]] += copies
    if has_average and is_training:
        state = (*trace.parameters().values(), *trace.buffers().values())
        table[3] += sum((np.array(trace.storages[t.storage].bytes) for t in state), np.zeros(2))
    return Footprint(table)


def _share_out(
    trace: Trace, table: np.ndarray, copies: np.ndarray, world_size: int, zero_stage: int, is_half: bool
) -> np.ndarray:
    """Share the parts of a table out over the ranks, as a stage of ZeRO does; return the half copies of weights, shared as well."""
    # Ranks gather weights and reduce gradients in the precision of the work.
    whole = _largest_unit_bytes(trace) / (2 if is_half else 1) if zero_stage > 1 else 0
    for part, stage in ((3, 1), (2, 2), (0, 3)):
        if zero_stage >= stage:
            has_unit = part == 2 or (part == 0 and not is_half)
            table[part] = _shared(table[part], world_size, whole if has_unit else 0)
    return _shared(copies, world_size, whole) if zero_stage >= 3 else copies


def footprint_of_job(trace: Trace, job: Job, world_size: int | None = None) -> Footprint:
    """Memory of a rank of a job, at any batch; of another number of ranks where one is given. Raises as `footprint`."""
    training = job.training
    return footprint(
        trace,
        training.optimizer_kind,
        world_size=world_size or job.cluster.count,
        zero_stage=training.zero_stage,
        activation_checkpointing=training.activation_checkpointing,
        precision=training.precision,
        has_average=training.ema_decay > 0,
    )


def checkpoint_bytes(trace: Trace, job: Job) -> int:
    """Bytes of a checkpoint: parameters, buffers and what the optimizer keeps of them, once whatever the number of ranks."""
    memory = footprint_of_job(trace, job, world_size=1).at(1)
    return memory.parameters + memory.buffers + memory.optimizer_state


def peak_memory(trace: Trace, batch: int, optimizer: str = "sgd-momentum") -> Memory:
    """Memory at the peak of a step with `batch` samples on one device; see `footprint`.

    The peak is either inside the pass, or in the update, when all gradients exist and no activation does.
    """
    return footprint(trace, optimizer).at(batch)


def _add(line: np.ndarray, size: Affine | np.ndarray, birth: int, death: int | None, num_moments: int) -> None:
    """Adds to the changes of a part over moments, shape (moments, 2), what is born and dies."""
    line[max(birth, 0)] += size
    if death is not None:
        line[min(death + 1, num_moments)] -= size


def _shared(line: np.ndarray, world_size: int, unit_bytes: float) -> np.ndarray:
    """Return the bytes of a part on one rank: its share, and the whole unit in work, except in the update."""
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
    """Bytes, first and last use of the half copies that autocast makes of weights of matrix work."""
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
    """Bytes of the parameters of the largest block, or module outside of blocks."""
    inside = blocks(trace.modules)
    units: dict[str, int] = {}
    for name, tensor in trace.parameters().items():
        module = name.rpartition(".")[0]
        unit = inside.get(module, module)
        units[unit] = units.get(unit, 0) + trace.storages[tensor.storage].bytes.const
    return max(units.values(), default=0)
