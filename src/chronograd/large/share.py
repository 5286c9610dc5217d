"""Parameters of one rank: its share of the network, and the ranks over which ZeRO shards them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from chronograd.configs.description import AttentionPart, ParameterTensor, Part
from chronograd.large.setting import Amount, LargeSetting, Stage, StageGrid

SPLIT = ("attention", "feed-forward", "shared experts", "embedding", "head", "state space")
WHOLE = (".out.bias", ".down.bias", "positions.weight", "_norm.weight", "_norm.bias", ".sinks")
# Kinds of matrices that LoRA adapts; with `query-value`, only those of their names.
ADAPTED = {
    "all": ("attention", "feed-forward", "shared experts", "state space"),
    "attention": ("attention",),
    "feed-forward": ("feed-forward", "shared experts"),
    "query-value": (),
}


@dataclass(frozen=True)
class Share:
    """Parameters of one rank: those of experts, all others, and those of adapters, without which the network is trained itself."""

    plain: Amount = 0.0
    experts: Amount = 0.0
    adapters: Amount = 0.0

    def __add__(self, other: Share) -> Share:
        return Share(self.plain + other.plain, self.experts + other.experts, self.adapters + other.adapters)

    def times(self, number: Amount) -> Share:
        return Share(number * self.plain, number * self.experts, number * self.adapters)

    @property
    def params(self) -> Amount:
        """Return the parameters of the network, before ZeRO shards them."""
        return self.plain + self.experts


def share_of(setting: LargeSetting, parts: Iterable[Part]) -> Share:
    """Return the share of some parts. A tied head has a copy of the embedding if there are several stages."""
    plain: Amount = 0.0
    experts: Amount = 0.0
    adapters: Amount = 0.0
    for part in parts:
        for tensor in part.tensors(setting.model.width):
            ranks = _ranks(setting, part, tensor)
            number = math.prod(tensor.shape) * (setting.layout.pipeline > 1 if tensor.is_tied else 1) / ranks
            if tensor.active is None:
                plain += number
            else:
                experts += number
            adapters += adapter_params(setting, tensor) / ranks
    return Share(plain, experts, adapters)


def share_of_stage(setting: LargeSetting, stage: Stage | StageGrid) -> Share:
    """Return the share of a stage."""
    layers = (share_of(setting, layer).times(number) for layer, number in stage.numbers)
    return sum(layers, outside_of(setting, stage))


def outside_of(setting: LargeSetting, stage: Stage | StageGrid) -> Share:
    """Return the share of the parts before and after the layers."""
    first, last = share_of(setting, stage.first), share_of(setting, stage.last)
    return first.times(stage.is_first) + last.times(stage.is_last)


def trained(setting: LargeSetting, share: Share) -> tuple[Amount, Amount]:
    """Return the trained parameters outside of experts, and those of experts."""
    return (share.adapters, 0.0) if setting.options.adapter_rank else (share.plain, share.experts)


def shard_ranks(setting: LargeSetting) -> tuple[Amount, Amount]:
    """Return the ranks over which ZeRO shards parameters outside of experts, and those of experts."""
    data = setting.data * setting.layout.context
    shards = setting.layout.shard_ranks or data
    spread = setting.layout.expert * setting.expert_tensor
    return shards, np.maximum(1, np.minimum(setting.expert_data, shards * setting.layout.tensor // spread))


def _ranks(setting: LargeSetting, part: Part, tensor: ParameterTensor) -> Amount:
    """Return the number of ranks that share a tensor."""
    layout = setting.layout
    if tensor.active is not None:
        return layout.expert * (setting.expert_tensor if not tensor.name.endswith(".down.bias") else 1)
    if tensor.kind not in SPLIT or tensor.name.endswith(WHOLE):
        return 1
    if isinstance(part, AttentionPart) and (".key." in tensor.name or ".value." in tensor.name):
        return np.minimum(layout.tensor, part.kv_heads)
    if tensor.name.rsplit(".", 2)[-2] in ("query_down", "kv_down"):
        return 1
    return layout.tensor


def adapter_params(setting: LargeSetting, tensor: ParameterTensor) -> int:
    """Return the parameters of a tensor's LoRA matrices."""
    options = setting.options
    is_named = options.adapter_on == "query-value" and tensor.name.endswith((".query.weight", ".value.weight"))
    is_on = tensor.kind in ADAPTED[options.adapter_on] or is_named
    is_matrix = tensor.use != "never" and len(tensor.shape) == 2
    return options.adapter_rank * sum(tensor.shape) if is_on and is_matrix else 0
