"""The groups in which ranks exchange data."""

from __future__ import annotations

from dataclasses import dataclass

from chronograd.configs.description import LatentAttentionPart, ScoringPart
from chronograd.large.collective import Group
from chronograd.large.setting import LargeSetting
from chronograd.large.share import shard_ranks
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
        shards, expert_shards = map(int, shard_ranks(setting))
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


def key_value_numbers(part: ScoringPart, setting: LargeSetting) -> float:
    """Return the numbers of keys and values of a token on a rank."""
    t = setting.layout.tensor
    if isinstance(part, LatentAttentionPart):
        return part.heads / t * (part.plain_size + part.rotary_size + part.value_size)
    return 2 * max(part.kv_heads / t, 1) * part.head_size
