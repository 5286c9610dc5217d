"""Memory of the ranks of a large model, by stage and part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from chronograd.hardware import catalog
from chronograd.large.setting import Amount, LargeSetting, Stage, StageGrid
from chronograd.large.share import shard_ranks, share_of_stage
from chronograd.large.states import States, states_of
from chronograd.large.stored import EAGER_LOGIT, Head, Stored, of_head, of_layer, residual_bytes
from chronograd.large.work import casts_weights, element_bytes, is_eager
from chronograd.units import si
from chronograd.words import how_many

# Workspaces of matrix libraries. The steady memory of Megatron's runs less 18 bytes a parameter has these medians on A100 and H100.
# Matrix products of NVIDIA's Hopper and later take 32 MiB a stream instead of 8.
WORKSPACE, LATER_WORKSPACE = 85e6, 115e6
LATER = 2022  # year of the device
# Of the allocator, over what is allocated: median of 15 runs on B200, which range from 1.03 to 1.08. 3 runs of separate operators with full
# recomputation on an H200 range from 1.12 to 1.25, for logits are large compared with all else; 13 others from 1.02 to 1.11.
RESERVED, AGAIN_RESERVED = 1.05, 1.17
CONTEXT = 0.8e9  # a CUDA context with the kernels of torch 2.11, on an H200
PER_GROUP = 0.15e9  # buffers of NCCL for each group of ranks
SIGMA_LOG = 0.04


@dataclass(frozen=True)
class MemoryPart:
    """A part of a rank's peak.

    Attributes:
        cause: what it is, in words with its numbers: `logits of 4,096 × 128,256 in fp32`.
        remedy: a field and value that reduce it, and how: `large.loss=chunked`; empty for none.
    """

    name: str
    bytes: float
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class StageMemory:
    """The peak of the ranks of a stage.

    Attributes:
        parts: of the allocated peak, largest first.
        allocated_bytes: the most that tensors take at one time: `max_memory_allocated` of PyTorch.
        reserved_bytes: with the allocator's rounding and fragments.
        used_bytes: of the device, with its context and the buffers of collectives; what must fit.
        sigma_log: standard deviation of log(used).
    """

    stage: int
    parts: tuple[MemoryPart, ...]
    allocated_bytes: float
    reserved_bytes: float
    used_bytes: float
    sigma_log: float


def memory_of(setting: LargeSetting) -> Sequence[StageMemory]:
    """Return the peak memory of each stage."""
    return [_of_stage(setting, stage) for stage in setting.stages]


def probability_of_fit(memory: StageMemory, memory_bytes: float) -> float:
    """Return the probability that a stage fits into a device's memory."""
    return 0.5 * math.erfc(math.log(memory.used_bytes / memory_bytes) / (memory.sigma_log * math.sqrt(2)))


def in_flight(setting: LargeSetting, stage: Stage | StageGrid) -> Amount:
    """Return the number of micro-batches that each chunk of a stage stores at the peak.

    1F1B: a stage has started one micro-batch for each stage from it to the last. Interleaved chunks (Narayanan et al.
    2021, arXiv:2104.04473): 2 (p − place − 1) + (v − 1) p chunks of warm-up, and the one at work.
    """
    layout, micro_batches = setting.layout, setting.micro_batches
    after, chunks = layout.pipeline - stage.place, layout.chunks
    warm = np.minimum(2 * (after - 1) + (chunks - 1) * layout.pipeline + 1, micro_batches * chunks) / chunks
    is_plain = np.equal(chunks, 1)
    return is_plain * np.minimum(after, micro_batches) + ~is_plain * warm


@dataclass(frozen=True)
class PeakMoment:
    """Bytes of a time that may be the peak, in addition to what always exists.

    Attributes:
        casts: of parameters, by autocast. passing: the logits, or the gradients of the largest layer.
    """

    gradients: Amount
    casts: Amount = 0.0
    saved: Amount = 0.0
    passing: Amount = 0.0

    @property
    def total(self) -> Amount:
        return self.gradients + self.casts + self.saved + self.passing


@dataclass(frozen=True)
class Peak:
    """Bytes at the peak of the ranks of a stage, or of each stage of many layouts; `used` is what must fit into the device."""

    states: States
    head: Head
    moments: Sequence[PeakMoment]
    workspace: float
    allocated: Amount
    used: Amount


def peak_of(setting: LargeSetting, stage: Stage | StageGrid) -> Peak:
    """Return the peak of a stage."""
    layout, states = setting.layout, states_of(setting, stage)
    head = of_head(setting, stage.last)
    moments = _moments(setting, stage, states, head)
    workspace = LATER_WORKSPACE if (catalog.device(setting.job.cluster.device).year or LATER) >= LATER else WORKSPACE
    most = reduce(np.maximum, [moment.total for moment in moments])
    allocated = states.parameters + states.optimizer + states.gathered + most + workspace
    groups = sum(degree > 1 for degree in (setting.data, layout.tensor, layout.pipeline, layout.context, layout.expert))
    used = _reserved(setting) * allocated + CONTEXT + PER_GROUP * groups
    return Peak(states, head, moments, workspace, allocated, used)


def _moments(setting: LargeSetting, stage: Stage | StageGrid, states: States, head: Head) -> list[PeakMoment]:
    """Return the times that may be the peak: the loss, when all is stored, and the end of backward, when all gradients are.

    A plain loop drops its gradients after each step, so one micro-batch has none at its loss. Layers that are computed again keep no
    casts for backward, so that only forward has them all, and no gradient of a logit.
    """
    layers = _activations(setting, stage)
    saved = layers.saved + stage.is_last * head.saved
    passing = np.maximum(layers.passing + stage.is_last * head.passing, stage.is_last * head.logits)
    end = PeakMoment(states.gradients, passing=layers.passing)
    is_empty = is_eager(setting) & np.equal(setting.data * setting.micro_batches, 1)
    gradients = states.gradients * ~is_empty
    if not (casts_weights(setting) and _is_recomputed(setting)):
        return [PeakMoment(gradients, states.casts, saved, passing), end]
    in_forward = PeakMoment(gradients, states.casts, saved, stage.is_last * _logits_in_forward(setting, head))
    return [PeakMoment(gradients, stage.is_last * head.passing, saved, passing), in_forward, end]


def _logits_in_forward(setting: LargeSetting, head: Head) -> Amount:
    """Return the bytes of logits in separate operators before their gradients exist."""
    return head.logits * (1 - element_bytes(setting) / EAGER_LOGIT)


def _reserved(setting: LargeSetting) -> float:
    return AGAIN_RESERVED if is_eager(setting) and _is_recomputed(setting) else RESERVED


def _is_recomputed(setting: LargeSetting) -> bool:
    return setting.training.activation_checkpointing == "blocks" or setting.options.recompute == "full"


def _of_stage(setting: LargeSetting, stage: Stage) -> StageMemory:
    peak = peak_of(setting, stage)
    moment = max(peak.moments, key=lambda one: float(one.total))
    parts = [
        *_state_parts(setting, stage, peak.states, moment),
        _activation_part(setting, stage, moment.saved),
        _passing_part(setting, peak.head, moment.passing),
        MemoryPart("workspaces", peak.workspace, "workspaces of the libraries"),
    ]
    shown = tuple(sorted((part for part in parts if part.bytes), key=lambda part: -part.bytes))
    return StageMemory(stage.place, shown, peak.allocated, _reserved(setting) * peak.allocated, peak.used, SIGMA_LOG)


def _state_parts(setting: LargeSetting, stage: Stage, states: States, moment: PeakMoment) -> list[MemoryPart]:
    share, zero = share_of_stage(setting, stage), setting.training.zero_stage
    params = f"{si(share.params)} parameters"
    trained = f"{si(share.adapters)} parameters of adapters" if share.adapters else params
    ranks = shard_ranks(setting)[0]
    over = [f", over {ranks} ranks" if zero >= least and ranks > 1 else "" for least in (3, 2, 1)]
    can_shard = ranks > 1 and not share.adapters
    remedies = [f"training.zero_stage={least}" if can_shard and zero < least else "" for least in (3, 2, 1)]
    if not share.adapters and setting.options.optimizer_bits != 8:
        remedies[2] = remedies[2] or "large.optimizer_bits=8"
    return [
        MemoryPart("parameters", states.parameters, f"for {params}{over[0]}", remedies[0]),
        MemoryPart("gradients", moment.gradients, f"gradients of {trained}{over[1]}", remedies[1]),
        MemoryPart("optimizer states", states.optimizer, f"optimizer states of {trained}{over[2]}", remedies[2]),
        MemoryPart("gathered parameters", states.gathered, "whole layers at work, with the embedding and the head"),
        MemoryPart("casts", moment.casts, f"casts of {trained} by autocast"),
    ]


def _passing_part(setting: LargeSetting, head: Head, passing: float) -> MemoryPart:
    loss = setting.options.loss
    if passing > 0 and passing in (head.logits, _logits_in_forward(setting, head)):
        copies = {"plain": ", with a copy in fp32", "fused": ", with their gradient", "chunked": ""}[loss]
        return MemoryPart(
            "logits", passing, f"logits of {head.rows:,} × {head.columns:,.0f}{copies}", "large.loss=chunked"
        )
    return MemoryPart("passing gradients", passing, "gradients of the largest layer, in its backward pass")


def _activation_part(setting: LargeSetting, stage: Stage, saved: float) -> MemoryPart:
    flights = in_flight(setting, stage)
    batches = f", {flights:.3g} micro-batches in flight" if setting.layout.pipeline > 1 else ""
    remedy = "" if setting.options.recompute == "full" else "large.recompute=full"
    return MemoryPart(
        "activations",
        saved,
        f"activations of {how_many(len(stage.layers), 'layers')} × {setting.tokens:,} tokens{batches}",
        remedy,
    )


def _activations(setting: LargeSetting, stage: Stage | StageGrid) -> Stored:
    """Return what the layers of a stage store at the peak, with all their micro-batches in flight.

    Selective recomputation stores nothing between the matrices of attention, full recomputation only the input of each layer.
    """
    recompute, flights = "full" if _is_recomputed(setting) else setting.options.recompute, in_flight(setting, stage)
    found = Stored()
    for layer, number in stage.numbers:
        own = of_layer(setting, layer)
        again = {"none": 0.0, "selective": own.scores, "full": own.saved - residual_bytes(setting)}[recompute]
        found += Stored(flights * number * (own.saved - again), passing=np.minimum(number, 1) * (own.passing + again))
    return found
