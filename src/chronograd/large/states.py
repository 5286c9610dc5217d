"""Parameters, gradients and optimizer states of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chronograd.configs.description import AttentionPart, ParameterTensor, Part
from chronograd.large.setting import Amount, LargeSetting, Layer, Stage, StageGrid
from chronograd.large.stored import ADAPTER
from chronograd.large.work import element_bytes

SPLIT = ("attention", "feed-forward", "shared experts", "experts", "embedding", "head", "state space")
WHOLE = (".out.bias", ".down.bias", "positions.weight", "_norm.weight", "_norm.bias", ".sinks")
# Bytes of a parameter with its scales, which are quantised as well: Dettmers et al. 2023, arXiv:2305.14314, section 3.
IN_4_BITS = 4.127 / 8


@dataclass(frozen=True)
class Share:
    """Parameters of one rank: those whose states are sharded over the data-parallel ranks, and those of experts."""

    plain: Amount = 0.0
    experts: Amount = 0.0
    layer: Amount = 0.0  # of its largest layer
    outside: Amount = 0.0  # of those in `plain` that are before and after the layers
    adapters: Amount = 0.0


def share_of(setting: LargeSetting, stage: Stage | StageGrid) -> Share:
    """Return the parameters of a rank of a stage."""
    plain: Amount = 0.0
    experts: Amount = 0.0
    adapters: Amount = 0.0
    largest: Amount = 0.0
    for layer, number in stage.numbers:
        own = _of_layer(setting, layer)
        plain += number * own.plain
        experts += number * own.experts
        adapters += number * own.adapters
        largest = np.maximum(largest, np.minimum(number, 1) * (own.plain + own.experts))
    outside = sum(_outside(setting, stage))
    return Share(plain + outside, experts, largest, outside, adapters)


def _of_layer(setting: LargeSetting, layer: Layer) -> Share:
    found: dict[bool, Amount] = {False: 0.0, True: 0.0}
    adapters: Amount = 0.0
    for part in layer:
        for tensor in part.tensors(setting.model.width):
            by = _divisor(setting, part, tensor)
            found[tensor.kind == "experts"] += tensor.params / by
            adapters += _adapter(setting, tensor) / by
    return Share(found[False], found[True], adapters=adapters)


def _outside(setting: LargeSetting, stage: Stage | StageGrid) -> Iterator[Amount]:
    """Yield the parameters before and after the layers. A tied head has a copy of the embedding if that is on another stage."""
    for parts, is_here in ((stage.first, stage.is_first), (stage.last, stage.is_last)):
        for part in parts:
            for tensor in part.tensors(setting.model.width):
                params = math.prod(tensor.shape) * (1 - stage.is_first * tensor.is_tied)
                yield is_here * params / _divisor(setting, part, tensor)


def _divisor(setting: LargeSetting, part: Part, tensor: ParameterTensor) -> Amount:
    """Return the number of ranks that share a tensor."""
    layout = setting.layout
    if tensor.kind == "experts":
        return layout.expert * (setting.expert_tensor if not tensor.name.endswith(".down.bias") else 1)
    if tensor.kind not in SPLIT or tensor.name.endswith(WHOLE):
        return 1
    if isinstance(part, AttentionPart) and (".key." in tensor.name or ".value." in tensor.name):
        return np.minimum(layout.tensor, part.kv_heads)
    if tensor.name.rsplit(".", 2)[-2] in ("query_down", "kv_down"):
        return 1
    return layout.tensor


def _adapter(setting: LargeSetting, tensor: ParameterTensor) -> float:
    """Return the parameters of a tensor's LoRA matrices."""
    options = setting.options
    is_matrix = tensor.use != "never" and len(tensor.shape) == 2 and tensor.kind != "router"
    is_on = {
        "all": True,
        "attention": tensor.kind == "attention",
        "query-value": tensor.name.endswith((".query.weight", ".value.weight")),
    }[options.adapter_on]
    if not options.adapter_rank or not is_matrix or not is_on:
        return 0.0
    return options.adapter_rank * sum(tensor.shape)


@dataclass(frozen=True)
class States:
    """Bytes of one rank."""

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    gathered: Amount  # whole parameters and gradients of the layers that are computed, with sharded parameters


def states_of(setting: LargeSetting, stage: Stage | StageGrid) -> States:
    """Return the bytes of parameters, gradients and optimizer states on a rank of a stage.

    Mixed precision stores parameters in half precision, gradients in fp32, a copy of the parameters in fp32 and the optimizer's
    numbers. With sharded parameters the copy is the only one, and the layers at work are gathered in half precision.
    """
    share, training, options = share_of(setting, stage), setting.training, setting.options
    half = element_bytes(setting)
    if options.adapter_rank:
        return _frozen(setting, share)
    is_mixed, stage_of_zero = half == 2, training.zero_stage
    master = 4 if is_mixed and options.master and not training.is_pure else 0
    gradient = {"fp32": 4, "bf16": 2, None: 2 if training.is_pure else 4}[options.gradient_dtype]
    moments = (
        2 * options.optimizer_bits / 8
        if training.optimizer == "adamw"
        else (4 if training.optimizer_kind == "sgd-momentum" else 0)
    )
    found: list[Amount] = [0.0, 0.0, 0.0]
    for params, ranks in ((share.plain, shards(setting)), (share.experts, expert_shards(setting))):
        found[0] += params * (max(half, master) / ranks if stage_of_zero == 3 else half)
        found[1] += params * gradient / (ranks if stage_of_zero >= 2 else 1)
        found[2] += params * (moments + (0 if stage_of_zero == 3 else master)) / (ranks if stage_of_zero >= 1 else 1)
    gathered = half * (3 * share.layer + share.outside) + gradient * share.layer if stage_of_zero == 3 else 0.0
    saved = {"none": (1, 1, 1), "optimizer": (1, 1, 0), "all": (0, 0, 0)}[options.offload]
    return States(found[0] * saved[0], found[1] * saved[1], found[2] * saved[2], gathered)


def _frozen(setting: LargeSetting, share: Share) -> States:
    """Return the states with adapters: the network without gradients, and fp32 adapters with theirs."""
    bits = setting.options.base_bits
    layers = {16: 2.0, 8: 1.0, 4: IN_4_BITS}[bits]
    by = shards(setting) if setting.training.zero_stage == 3 else 1
    inside = share.plain + share.experts - share.outside
    base = (inside * layers + share.outside * 2) / by
    gathered = (by > 1) * (2 * share.layer * layers + share.outside * 2)
    return States(
        base + share.adapters * ADAPTER / by, share.adapters * ADAPTER / by, 2 * share.adapters * ADAPTER / by, gathered
    )


def shards(setting: LargeSetting) -> Amount:
    """Return the ranks over which states are sharded."""
    return setting.layout.shard_ranks or setting.data * setting.layout.context


def expert_shards(setting: LargeSetting) -> Amount:
    """Return the ranks over which the states of experts are sharded."""
    return np.minimum(setting.layout.shard_ranks or setting.expert_data, setting.expert_data)
