"""Seconds of a pipeline stage: of one micro-batch, and of the exchange of its parameters and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from chronograd.configs.description import (
    ExpertsPart,
    FeedForwardPart,
    LatentAttentionPart,
    MambaPart,
    Part,
    ProjectionPart,
    ScoringPart,
    TablePart,
)
from chronograd.large.exchange import Collective, Cover, Group
from chronograd.large.rates import Rates
from chronograd.large.setting import Layer, LargeSetting, Stage
from chronograd.large.work import Operator, element_bytes, gradient_bytes, operators
from chronograd.predict.collectives import Topology
from chronograd.predict.compute import smooth_max

# Host work of a backward operator relative to a forward one, which Python issues: as in `predict.traffic`.
BACKWARD_ISSUE = 0.7
# Operators that the host issues for each one here: views, casts, masks and states of random numbers are separate operators.
ISSUES = 1.5


@dataclass(frozen=True)
class Overlap:
    """Shares of exchanges that hide behind work, as the software allows it. 0 exposes an exchange, 1 hides it if work is long enough.

    The defaults are those of Megatron-LM and FSDP in PyTorch: backward sends gradients of inputs while it computes those of
    weights, and prefetches parameters; forward waits for tensor-parallel ranks and for experts.

    Attributes:
        tensor_forward, tensor_backward: tensor-parallel exchange behind the products of forward, and of backward.
        context: keys and values behind attention.
        experts: all-to-all behind the other work of a layer.
        parameters: all-gathers of ZeRO 3 behind the work of a layer; those of ZeRO 1 and 2 behind forward.
        gradients: gradient exchange behind the backward pass of the last micro-batch.
        pipeline: sends between stages in the steady state.
    """

    tensor_forward: float = 0.0
    tensor_backward: float = 1.0
    context: float = 1.0
    experts: float = 0.0
    parameters: float = 1.0
    gradients: float = 1.0
    pipeline: float = 0.0


@dataclass(frozen=True)
class Pass:
    """A pass of a micro-batch through some layers.

    Attributes:
        work_s: of the device; `weights_s` of it compute gradients of weights.
        host_s: time in which the host issues it.
        exchanges: collectives of the pass.
    """

    work_s: float = 0.0
    host_s: float = 0.0
    exchanges: tuple[Collective, ...] = ()
    weights_s: float = 0.0

    @property
    def exposed_s(self) -> float:
        return sum(one.exposed_s for one in self.exchanges)

    @property
    def seconds(self) -> float:
        """Return the seconds of the device or, if longer, of the host."""
        return float(smooth_max(self.work_s + self.exposed_s, self.host_s))

    def times(self, number: int) -> Pass:
        exchanges = tuple(one.times(number) for one in self.exchanges)
        return Pass(number * self.work_s, number * self.host_s, exchanges, number * self.weights_s)

    @classmethod
    def joined(cls, passes: Iterable[Pass]) -> Pass:
        """Return several passes as one, with equal collectives added up."""
        found = list(passes)
        exchanges: dict[tuple[str, float], Collective] = {}
        for one in (one for each in found for one in each.exchanges):
            same = exchanges.get((one.name, one.bytes))
            exchanges[one.name, one.bytes] = one if same is None else replace(
                same, calls=same.calls + one.calls, seconds=same.seconds + one.seconds, exposed_s=same.exposed_s + one.exposed_s
            )
        sums = (sum(getattr(one, name) for one in found) for name in ("work_s", "host_s"))
        work_s, host_s = sums
        return cls(work_s, host_s, tuple(exchanges.values()), sum(one.weights_s for one in found))


@dataclass(frozen=True)
class LayerPasses:
    """Forward, backward, and the recomputation of forward before backward."""

    forward: Pass
    backward: Pass
    again: Pass


@dataclass(frozen=True)
class Groups:
    """The groups of a rank. Ranks are in the order tensor, context and data, pipeline; experts are inside the data group."""

    tensor: Group
    context: Group
    pipeline: Group
    expert: Group
    shard: Group
    copies: Group
    expert_shard: Group
    expert_copies: Group

    @classmethod
    def of(cls, setting: LargeSetting, topology: Topology) -> Groups:
        layout, t, e = setting.layout, setting.layout.tensor, setting.layout.expert
        data = setting.data * layout.context
        shards = layout.shard_ranks or data
        spread = e * setting.expert_tensor
        expert_shards = max(1, min(setting.expert_data, shards * t // spread))
        return cls(
            Group(t, 1, topology),
            Group(layout.context, t, topology),
            Group(layout.pipeline, data * t, topology),
            Group(e, setting.expert_tensor, topology),
            Group(shards, t, topology),
            Group(data // shards, t * shards, topology),
            Group(expert_shards, spread, topology),
            Group(setting.expert_data // expert_shards, spread * expert_shards, topology),
        )


@dataclass(frozen=True)
class StageModel:
    """A rank of a pipeline stage: its job, rates and groups."""

    setting: LargeSetting
    rates: Rates
    groups: Groups
    overlap: Overlap

    def passes(self, stage: Stage) -> LayerPasses:
        """Return the passes of one micro-batch through a stage. Equal layers are computed once."""
        counts = Counter(stage.layers)
        found = [(self._layer(layer, recomputes=True), number) for layer, number in counts.items()]
        found += [(self._layer(parts), 1) for parts in (stage.first, stage.last) if parts]
        names = ("forward", "backward", "again")
        return LayerPasses(*(Pass.joined(getattr(one, name).times(n) for one, n in found) for name in names))

    def _layer(self, layer: Layer, recomputes: bool = False) -> LayerPasses:
        """Return the passes of a layer, or of the parts before or after the layers, which are never recomputed."""
        setting, overlap = self.setting, self.overlap
        work = [one for part in layer for one in operators(part, setting)]
        seconds = self.rates.seconds(work)

        def total(chosen: Callable[[Operator], bool]) -> tuple[float, int]:
            mask = [chosen(one) for one in work]
            return float(seconds[mask].sum()), sum(mask)

        forward_s, issues = total(lambda one: one.phase == "forward")
        data_s, data_issues = total(lambda one: one.phase == "data")
        weights_s, weights_issues = total(lambda one: one.phase == "weights")
        core_s, core_issues = total(lambda one: one.phase == "forward" and one.is_core)
        core_back_s, _ = total(lambda one: one.phase == "data" and one.is_core)
        ahead = [
            *self._tensor(layer, Cover("products", forward_s, overlap.tensor_forward)),
            *self._context(layer, 1, Cover("attention", core_s, overlap.context)),
            *self._experts(layer, Cover("forward", forward_s, overlap.experts)),
        ]
        back = [
            *self._tensor(layer, Cover("gradients of weights", weights_s, overlap.tensor_backward)),
            *self._context(layer, 2, Cover("attention", core_back_s, overlap.context)),
            *self._experts(layer, Cover("backward", data_s + weights_s, overlap.experts)),
        ]
        forward_host = self._host_s(issues, len(ahead))
        backward_s = data_s + weights_s
        backward_host = BACKWARD_ISSUE * self._host_s(data_issues + weights_issues, len(back))
        gathered = self._gather(layer, Cover("forward", forward_s, overlap.parameters))
        return LayerPasses(
            Pass(forward_s, forward_host, (*ahead, *gathered)),
            Pass(backward_s, backward_host, (*back, *self._gather(layer, Cover("backward", backward_s, overlap.parameters)),
                 *self._scatter(layer, Cover("backward", backward_s, overlap.gradients))), weights_s),
            self._again(recomputes, Pass(forward_s, forward_host, tuple(ahead)), Pass(core_s, self._host_s(core_issues, 0))),
        )  # fmt: skip

    def _again(self, recomputes: bool, whole: Pass, core: Pass) -> Pass:
        setting = self.setting
        if not recomputes:
            return Pass()
        if setting.options.recompute == "full" or setting.training.activation_checkpointing == "blocks":
            return whole
        return core if setting.options.recompute == "selective" else Pass()

    def _host_s(self, num_operators: int, num_exchanges: int) -> float:
        return ISSUES * (num_operators + num_exchanges) * self.rates.calibration.host_launch_s

    def _hidden_bytes(self) -> float:
        """Return the bytes of the hidden states of a micro-batch, of which a tensor-parallel rank sends and receives."""
        return element_bytes(self.setting) * self.setting.tokens * self.setting.model.width

    def _tensor(self, layer: Layer, cover: Cover) -> list[Collective]:
        """Return the tensor-parallel exchange: an all-reduce, or an all-gather and a reduce-scatter, of each divided part."""
        group, message = self.groups.tensor, self._hidden_bytes()
        calls = sum(_is_divided(part, self.setting) for part in layer)
        if self.setting.layout.sequence:
            return group.exchange("all-gather and reduce-scatter of hidden states", 2 * calls, message, group.gather_s(message), cover)
        return group.exchange("all-reduce of hidden states", calls, message, group.all_reduce_s(message), cover)

    def _context(self, layer: Layer, factor: int, cover: Cover) -> list[Collective]:
        """Return the ring of keys and values, in backward with their gradients."""
        group, found = self.groups.context, []
        for part in (part for part in layer if isinstance(part, ScoringPart)):
            message = factor * element_bytes(self.setting) * self.setting.tokens * key_value_numbers(part, self.setting)
            found += group.exchange("ring of keys and values", group.ranks - 1, message, group.send_s(message), cover)
        return found

    def _experts(self, layer: Layer, cover: Cover) -> list[Collective]:
        """Return the all-to-all to the experts and back."""
        group, found = self.groups.expert, []
        for part in (part for part in layer if isinstance(part, ExpertsPart)):
            message = part.active * self._hidden_bytes() / self.setting.norm_share
            found += group.exchange("all-to-all of tokens", 2, message, group.all_to_all_s(message), cover)
        return found

    def _gather(self, layer: Layer, cover: Cover) -> list[Collective]:
        """Return the all-gathers of a layer's parameters in ZeRO 3."""
        if self.setting.training.zero_stage < 3:
            return []
        sizes = parameters(layer, self.setting)
        size = element_bytes(self.setting)
        return self._sharded("all-gather of parameters", [size * n for n in sizes], cover)

    def _scatter(self, layer: Layer, cover: Cover) -> list[Collective]:
        """Return the reduce-scatters of a layer's gradients in ZeRO 3, and the all-reduces between the copies of hybrid sharding."""
        if self.setting.training.zero_stage < 3:
            return []
        sizes = [gradient_bytes(self.setting) * n for n in trained(layer, self.setting)]
        found = self._sharded("reduce-scatter of gradients", sizes, cover)
        copies = zip((self.groups.copies, self.groups.expert_copies), (self.groups.shard, self.groups.expert_shard), sizes, strict=True)
        for group, shard, size in copies:
            found += group.exchange("all-reduce of gradients between copies", 1, size / shard.ranks, group.all_reduce_s(size / shard.ranks), cover)
        return found

    def _sharded(self, name: str, sizes: Sequence[float], cover: Cover) -> list[Collective]:
        found = []
        for group, size in zip((self.groups.shard, self.groups.expert_shard), sizes, strict=True):
            found += group.exchange(name, 1, size, group.gather_s(size), cover)
        return found

    def update(self, stage: Stage, forward_s: float, backward_s: float) -> list[Collective]:
        """Return the exchange of a step of ZeRO 0 to 2, behind the backward pass of the last micro-batch, or the next forward pass."""
        setting, overlap = self.setting, self.overlap
        stage_no = setting.training.zero_stage
        if stage_no == 3:
            return []
        parts = [part for layer in (*stage.layers, stage.first, stage.last) for part in layer]
        numbers = trained(parts, setting)
        found: list[Collective] = []
        behind = Cover("backward", backward_s, overlap.gradients)
        for group, number in zip((self.groups.shard, self.groups.expert_shard), numbers, strict=True):
            size = gradient_bytes(setting) * number
            if stage_no == 0:
                found += group.exchange("all-reduce of gradients", 1, size, group.all_reduce_s(size), behind)
                continue
            found += group.exchange("reduce-scatter of gradients", 1, size, group.gather_s(size), behind)
            size = element_bytes(setting) * number
            before = Cover("forward", forward_s, overlap.parameters)
            found += group.exchange("all-gather of parameters", 1, size, group.gather_s(size), before)
        return found


def _is_divided(part: Part, setting: LargeSetting) -> bool:
    """Return whether tensor-parallel ranks exchange the part's hidden states."""
    if isinstance(part, ExpertsPart):
        return setting.expert_tensor > 1
    return isinstance(part, ScoringPart | FeedForwardPart | MambaPart | TablePart) or (
        isinstance(part, ProjectionPart) and part.kind == "head"
    )


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
    kinds = ("attention",) if setting.options.adapter_on == "attention" else ("attention", "feed-forward", "shared experts")
    tensors = (tensor for part in parts for tensor in part.tensors(setting.model.width))
    return sum(rank * sum(one.shape) / t for one in tensors if one.kind in kinds and len(one.shape) == 2), 0.0
