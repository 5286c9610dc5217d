"""The groups in which ranks exchange data, and the parameters of a rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chronograd.configs.description import LatentAttentionPart, Part, ScoringPart
from chronograd.large.collective import Group
from chronograd.large.setting import LargeSetting
from chronograd.predict.collectives import Topology


@dataclass(frozen=True)
class Groups:
    """The groups of a rank. Ranks are in the order tensor, context and data, pipeline; experts are inside the data group.

    Attributes:
        all_data: ranks with equal parameters outside of experts: `shard` of them share these, and `copies` hold the same shard.
        all_expert_data, expert_shard, expert_copies: the same for the parameters of experts.
    """

    tensor: Group
    context: Group
    pipeline: Group
    expert: Group
    all_data: Group
    shard: Group
    copies: Group
    all_expert_data: Group
    expert_shard: Group
    expert_copies: Group

    @classmethod
    def of(cls, setting: LargeSetting, topology: Topology) -> Groups:
        layout, t = setting.layout, setting.layout.tensor
        data, expert_data = setting.data * layout.context, setting.expert_data
        shards, expert_shards = shard_ranks(setting)
        spread = layout.expert * setting.expert_tensor
        return cls(
            Group(t, 1, topology),
            Group(layout.context, t, topology),
            Group(layout.pipeline, data * t, topology),
            Group(layout.expert, setting.expert_tensor, topology),
            Group(data, t, topology),
            Group(shards, t, topology),
            Group(data // shards, t * shards, topology),
            Group(expert_data, spread, topology),
            Group(expert_shards, spread, topology),
            Group(expert_data // expert_shards, spread * expert_shards, topology),
        )


def shard_ranks(setting: LargeSetting) -> tuple[int, int]:
    """Return the ranks over which ZeRO shards parameters outside of experts, and those of experts."""
    data = setting.data * setting.layout.context
    shards = setting.layout.shard_ranks or data
    spread = setting.layout.expert * setting.expert_tensor
    return shards, max(1, min(setting.expert_data, shards * setting.layout.tensor // spread))


def key_value_numbers(part: ScoringPart, setting: LargeSetting) -> float:
    """Return the numbers of keys and values of a token on a rank."""
    t = setting.layout.tensor
    if isinstance(part, LatentAttentionPart):
        return part.heads / t * (part.plain_size + part.rotary_size + part.value_size)
    return 2 * max(part.kv_heads / t, 1) * part.head_size


def parameters(parts: Iterable[Part], setting: LargeSetting) -> tuple[float, float]:
    """Return the parameters of a rank before ZeRO shards them: those outside of experts, and those of experts."""
    dense = experts = 0.0
    for tensor in (tensor for part in parts for tensor in part.tensors(setting.model.width)):
        if tensor.kind == "experts":
            experts += tensor.params / (setting.layout.expert * setting.expert_tensor)
        else:
            dense += tensor.params / (setting.layout.tensor if len(tensor.shape) > 1 and tensor.kind != "router" else 1)
    return dense, experts


def trained(parts: Iterable[Part], setting: LargeSetting) -> tuple[float, float]:
    """Return the same for the parameters that are trained: those of LoRA, if the job has it."""
    rank, t = setting.options.adapter_rank, setting.layout.tensor
    if not rank:
        return parameters(parts, setting)
    kinds = (
        ("attention",) if setting.options.adapter_on == "attention" else ("attention", "feed-forward", "shared experts")
    )
    tensors = (tensor for part in parts for tensor in part.tensors(setting.model.width))
    return sum(rank * sum(one.shape) / t for one in tensors if one.kind in kinds and len(one.shape) == 2), 0.0
