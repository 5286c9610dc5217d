"""Exchange of the ranks of a large model: of each layer in a micro-batch, and of a step's gradients and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chronograd.configs.description import (
    ExpertsPart,
    FeedForwardPart,
    MambaPart,
    Part,
    ProjectionPart,
    ScoringPart,
    TablePart,
)
from chronograd.large.collective import Collective, Cover
from chronograd.large.groups import Groups, key_value_numbers
from chronograd.large.setting import LargeSetting, Layer
from chronograd.large.share import share_of, trained
from chronograd.large.software import Software
from chronograd.large.work import element_bytes, gradient_bytes


@dataclass(frozen=True)
class Exchanges:
    """The collectives of a rank. A `Cover` is the work that hides them."""

    setting: LargeSetting
    groups: Groups
    software: Software

    @property
    def hidden_bytes(self) -> float:
        """Return the bytes of the hidden states of a micro-batch that a tensor-parallel group shares."""
        return element_bytes(self.setting) * self.setting.tokens * self.setting.model.width

    def tensor(self, layer: Layer, cover: Cover) -> Iterator[Collective]:
        """Yield an all-reduce for each part that ranks share, or an all-gather and a reduce-scatter with sequence parallelism."""
        group, message = self.groups.tensor, self.hidden_bytes
        calls = sum(_is_shared(part, self.setting) for part in layer)
        if self.setting.layout.sequence:
            name, each_s = "all-gather and reduce-scatter of hidden states", group.gather_s(message)
            yield from group.exchange(name, 2 * calls, message, each_s, cover)
        else:
            yield from group.exchange("all-reduce of hidden states", calls, message, group.all_reduce_s(message), cover)

    def context(self, layer: Layer, factor: int, cover: Cover) -> Iterator[Collective]:
        """Yield the ring of keys and values; `factor` is 2 in backward, which also sends their gradients."""
        group = self.groups.context
        for part in (part for part in layer if isinstance(part, ScoringPart)):
            numbers = factor * self.setting.tokens * key_value_numbers(part, self.setting)
            message = element_bytes(self.setting) * numbers
            yield from group.exchange("ring of keys and values", group.ranks - 1, message, group.send_s(message), cover)

    def experts(self, layer: Layer, cover: Cover) -> Iterator[Collective]:
        """Yield the all-to-all to the experts and back."""
        group = self.groups.expert
        for part in (part for part in layer if isinstance(part, ExpertsPart)):
            tokens = self.hidden_bytes / self.setting.norm_share
            each_s = self.software.imbalance * group.all_to_all_s(tokens, part.active, self.software.sends_once)
            yield from group.exchange("all-to-all of tokens", 2, part.active * tokens, each_s, cover)

    def gather(self, layer: Layer, cover: Cover) -> Iterator[Collective]:
        """Yield the all-gathers of a layer's parameters in ZeRO 3."""
        if self.setting.training.zero_stage == 3:
            share = share_of(self.setting, layer)
            sizes = [element_bytes(self.setting) * number for number in (share.plain, share.experts)]
            yield from self._sharded("all-gather of parameters", sizes, cover)

    def scatter(self, layer: Layer, cover: Cover) -> Iterator[Collective]:
        """Yield the reduce-scatters of a layer's gradients in ZeRO 3."""
        if self.setting.training.zero_stage == 3:
            numbers = trained(self.setting, share_of(self.setting, layer))
            sizes = [gradient_bytes(self.setting) * number for number in numbers]
            yield from self._sharded("reduce-scatter of gradients", sizes, cover)

    def update(self, numbers: Sequence[float], forward: Cover, backward: Cover) -> Iterator[Collective]:
        """Yield the exchange of a step's gradients, and of the parameters that ZeRO 1 and 2 update in shards.

        Hybrid sharding also reduces gradients between the copies of a shard. `numbers` are those of `share.trained`.
        """
        stage = self.setting.training.zero_stage
        sizes = [gradient_bytes(self.setting) * number for number in numbers]
        groups = self.groups
        if stage == 0:
            for group, size in zip((groups.all_data, groups.all_expert_data), sizes, strict=True):
                yield from group.exchange("all-reduce of gradients", 1, size, group.all_reduce_s(size), backward)
            return
        if stage < 3:
            yield from self._sharded("reduce-scatter of gradients", sizes, backward)
            updated = [element_bytes(self.setting) * number for number in numbers]
            yield from self._sharded("all-gather of parameters", updated, forward)
        shards = (groups.shard.ranks, groups.expert_shard.ranks)
        for group, size, shard in zip((groups.copies, groups.expert_copies), sizes, shards, strict=True):
            each_s = group.all_reduce_s(size / shard)
            yield from group.exchange("all-reduce of gradients between copies", 1, size / shard, each_s, backward)

    def sends(self) -> Iterator[Collective]:
        """Yield the sends of hidden states to the next stage and of gradients back, for each micro-batch and chunk."""
        setting, group = self.setting, self.groups.pipeline
        message = self.hidden_bytes / setting.layout.tensor
        calls = 2 * (setting.micro_batches * setting.layout.chunks + setting.layout.pipeline - 1)
        cover = Cover("other micro-batches", float("inf"), self.software.pipeline)
        yield from group.exchange("sends between stages", calls, message, group.send_s(message), cover)

    def _sharded(self, name: str, sizes: Sequence[float], cover: Cover) -> Iterator[Collective]:
        for group, size in zip((self.groups.shard, self.groups.expert_shard), sizes, strict=True):
            found = group.exchange(name, 1, size, group.gather_s(size), cover)
            cover = cover.after(found)
            yield from found


def _is_shared(part: Part, setting: LargeSetting) -> bool:
    """Return whether tensor-parallel ranks exchange the part's hidden states."""
    if isinstance(part, ExpertsPart):
        return setting.expert_tensor > 1
    is_head = isinstance(part, ProjectionPart) and part.kind == "head"
    return is_head or isinstance(part, ScoringPart | FeedForwardPart | MambaPart | TablePart)
