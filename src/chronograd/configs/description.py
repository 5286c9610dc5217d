"""A transformer as its sizes: parts with parameter tensors, in groups of equal layers. Pure data.

A part is attention, a feed-forward network, experts, a state-space layer, a norm, a table or a projection. It names its tensors,
with their shapes, for the width of the model. Attention also has its work per pair of positions and its cache. All other amounts
follow from these (`chronograd.configs.work`).

Names of tensors are the same in every family. Fused tensors of a checkpoint, such as GPT-2's query, key and value, are separate
here. The experts of a layer are one tensor, whose first dimension is the number of experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

# How often a matrix is multiplied: for each token, for each image patch, once for a sequence, or never.
Use = Literal["token", "patch", "sequence", "never"]
# Positions that attention sees: the earlier ones, all, or those of the encoder.
Sees = Literal["earlier", "all", "encoder"]
KINDS = ("embedding", "attention", "feed-forward", "router", "experts", "shared experts", "state space", "norm", "head")


@dataclass(frozen=True)
class ParameterTensor:
    """A parameter tensor.

    Attributes:
        kind: a word of KINDS.
        active: number of experts that a token uses, if the first dimension is the number of experts.
        is_tied: it is the same tensor as the embedding, so it has work but no further parameters.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    use: Use = "never"
    active: int | None = None
    is_tied: bool = False

    @property
    def params(self) -> int:
        return 0 if self.is_tied else math.prod(self.shape)

    @property
    def active_params(self) -> int:
        """Return the parameters that a token uses."""
        return self.params if self.active is None else self.active * math.prod(self.shape[1:])

    @property
    def macs(self) -> int:
        """Return the multiply-adds of one use."""
        return 0 if self.use == "never" else replace(self, is_tied=False).active_params


Tensors = tuple[ParameterTensor, ...]


def linear(name: str, inputs: int, outputs: int, kind: str, bias: bool = False, use: Use = "token") -> Tensors:
    """Return the weight of a linear layer, (outputs, inputs), and its bias."""
    weight = ParameterTensor(f"{name}.weight", (outputs, inputs), kind, use)
    return (weight, ParameterTensor(f"{name}.bias", (outputs,), kind)) if bias else (weight,)


@dataclass(frozen=True)
class NormPart:
    """A norm with a weight per feature, of the model's width unless it has its own size."""

    name: str
    bias: bool = False
    size: int | None = None

    def tensors(self, width: int) -> Tensors:
        names = ("weight", "bias") if self.bias else ("weight",)
        return tuple(ParameterTensor(f"{self.name}.{one}", (self.size or width,), "norm") for one in names)


@dataclass(frozen=True)
class TablePart:
    """A table that is looked up, such as an embedding: (rows, size), where the size is the model's width if it is None."""

    name: str
    rows: int
    size: int | None = None

    def tensors(self, width: int) -> Tensors:
        return (ParameterTensor(f"{self.name}.weight", (self.rows, self.size or width), "embedding"),)


@dataclass(frozen=True)
class ProjectionPart:
    """A linear layer outside of attention and feed-forward. Sizes that are None are the model's width."""

    name: str
    inputs: int | None = None
    outputs: int | None = None
    bias: bool = False
    kind: str = "head"
    use: Use = "token"
    is_tied: bool = False

    def tensors(self, width: int) -> Tensors:
        weight, *bias = linear(self.name, self.inputs or width, self.outputs or width, self.kind, self.bias, self.use)
        return (replace(weight, is_tied=self.is_tied), *bias)


@dataclass(frozen=True)
class AttentionPart:
    """Attention with heads. `heads / kv_heads` query heads share a key and a value head.

    Attributes:
        bias: of query, key and value; `out_bias`: of the output.
        window: number of positions that a position sees, itself included; None for all.
        head_norms: norms of queries and keys, shared by all heads.
        sinks: a learned number per head that joins the softmax.
        buckets: rows of a table of relative positions, (buckets, heads); 0 for none.
        keys_are_values: the key projection also gives the values.
    """

    name: str
    heads: int
    kv_heads: int
    head_size: int
    bias: bool = False
    out_bias: bool = False
    sees: Sees = "earlier"
    window: int | None = None
    head_norms: bool = False
    sinks: bool = False
    buckets: int = 0
    keys_are_values: bool = False

    @property
    def pair_macs(self) -> int:
        """Return the multiply-adds of a query and a key position: of the scores, and of the weighted values."""
        return 2 * self.heads * self.head_size

    @property
    def cached(self) -> int:
        """Return the numbers that a generating model stores per position: keys and values."""
        return 0 if self.sees == "all" else 2 * self.kv_heads * self.head_size

    def tensors(self, width: int) -> Tensors:
        inner, kind = self.heads * self.head_size, "attention"
        found = [*linear(f"{self.name}.query", width, inner, kind, self.bias)]
        for name in ("key",) if self.keys_are_values else ("key", "value"):
            found += linear(f"{self.name}.{name}", width, self.kv_heads * self.head_size, kind, self.bias)
        found += linear(f"{self.name}.out", inner, width, kind, self.out_bias)
        for name in ("query_norm", "key_norm") if self.head_norms else ():
            found += NormPart(f"{self.name}.{name}", size=self.head_size).tensors(width)
        if self.sinks:
            found.append(ParameterTensor(f"{self.name}.sinks", (self.heads,), kind))
        if self.buckets:
            found += TablePart(f"{self.name}.relative_positions", self.buckets, self.heads).tensors(width)
        return tuple(found)


@dataclass(frozen=True)
class LatentAttentionPart:
    """Latent attention of DeepSeek-V2 (arXiv:2405.04434): keys and values from a vector of `kv_rank` per position.

    Attributes:
        query_rank: of the queries; None for a full matrix.
        plain_size, rotary_size: of a query or key head, without and with rotary positions.
        bias: of the projections to the ranks and of the output.
    """

    name: str
    heads: int
    query_rank: int | None
    kv_rank: int
    plain_size: int
    rotary_size: int
    value_size: int
    bias: bool = False
    sees: Sees = "earlier"
    window: int | None = None

    @property
    def pair_macs(self) -> int:
        """Return the multiply-adds of a query and a key position, with keys and values computed from the ranks."""
        return self.heads * (self.plain_size + self.rotary_size + self.value_size)

    @property
    def cached(self) -> int:
        """Return the numbers that a generating model stores per position: the vector of `kv_rank`, and the rotary key."""
        return self.kv_rank + self.rotary_size

    def tensors(self, width: int) -> Tensors:
        name, kind = self.name, "attention"
        found: list[ParameterTensor] = []
        if self.query_rank is not None:
            found += linear(f"{name}.query_down", width, self.query_rank, kind, self.bias)
            found += NormPart(f"{name}.query_norm", size=self.query_rank).tensors(width)
        queries = self.heads * (self.plain_size + self.rotary_size)
        return (
            *found,
            *linear(f"{name}.query", self.query_rank or width, queries, kind),
            *linear(f"{name}.kv_down", width, self.kv_rank + self.rotary_size, kind, self.bias),
            *NormPart(f"{name}.kv_norm", size=self.kv_rank).tensors(width),
            *linear(f"{name}.kv", self.kv_rank, self.heads * (self.plain_size + self.value_size), kind),
            *linear(f"{name}.out", self.heads * self.value_size, width, kind, self.bias),
        )


@dataclass(frozen=True)
class FeedForwardPart:
    """Two matrices with an activation between them; gated with a third one, `gate`, next to `up`."""

    name: str
    size: int
    is_gated: bool = True
    bias: bool = False
    kind: str = "feed-forward"

    def tensors(self, width: int) -> Tensors:
        into = [(name, width, self.size) for name in ("gate", "up")[not self.is_gated :]]
        matrices = (*into, ("down", self.size, width))
        return tuple(t for name, i, o in matrices for t in linear(f"{self.name}.{name}", i, o, self.kind, self.bias))


@dataclass(frozen=True)
class ExpertsPart:
    """A mixture of experts: a router and `experts` experts. Each token uses `active` of them. Shared experts are a separate part.

    Attributes:
        inputs: of each expert, if it is not the model's width.
        scales: of the router's inputs and of the experts, as Gemma 4 has them.
    """

    name: str
    experts: int
    active: int
    size: int
    is_gated: bool = True
    bias: bool = False
    inputs: int | None = None
    scales: bool = False

    def tensors(self, width: int) -> Tensors:
        one = FeedForwardPart(self.name, self.size, self.is_gated, self.bias, "experts").tensors(self.inputs or width)
        sizes = {"scale": width, "expert_scales": self.experts} if self.scales else {}
        return (
            *linear(f"{self.name}.router", width, self.experts, "router", self.bias),
            *(ParameterTensor(f"{self.name}.router.{name}", (size,), "router") for name, size in sizes.items()),
            *(replace(tensor, shape=(self.experts, *tensor.shape), active=self.active) for tensor in one),
        )


@dataclass(frozen=True)
class MambaPart:
    """A state-space layer of Mamba 2: heads of `head_size` features, with `state` numbers per feature."""

    name: str
    heads: int
    head_size: int
    groups: int
    state: int
    kernel: int
    bias: bool
    conv_bias: bool

    @property
    def state_macs(self) -> int:
        """Return the multiply-adds of a token with the state: to write it, and to read it."""
        return 2 * self.heads * self.head_size * self.state

    def tensors(self, width: int) -> Tensors:
        inner, kind = self.heads * self.head_size, "state space"
        mixed = inner + 2 * self.groups * self.state
        return (
            *linear(f"{self.name}.in", width, inner + mixed + self.heads, kind, self.bias),
            *linear(f"{self.name}.convolution", self.kernel, mixed, kind, self.conv_bias),
            *(ParameterTensor(f"{self.name}.{name}", (self.heads,), kind) for name in ("time_step", "decay", "skip")),
            *NormPart(f"{self.name}.norm", size=inner).tensors(width),
            *linear(f"{self.name}.out", inner, width, kind, self.bias),
        )


ScoringPart = AttentionPart | LatentAttentionPart
Part = NormPart | TablePart | ProjectionPart | ScoringPart | FeedForwardPart | ExpertsPart | MambaPart


@dataclass(frozen=True)
class LayerGroup:
    """Equal layers: the prefix of their names, such as `encoder.layers`, their numbers in this stack, and their parts."""

    stack: str
    places: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class ModelDescription:
    """A transformer.

    Attributes:
        family: the `model_type` of its file.
        length: the longest sequence that the file states, or the usual one.
        positions: learned, rotary, relative, ALiBi or none.
        first, last: parts before and after the layers.
        notes: sentences on parts that are not counted.
        is_fixed: whether every sequence has this length, as that of an image.
    """

    family: str
    width: int
    vocabulary: int
    length: int
    positions: str
    first: tuple[Part, ...]
    groups: tuple[LayerGroup, ...]
    last: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    is_fixed: bool = False

    def parts(self) -> Iterator[tuple[LayerGroup, Part]]:
        """Yield each different part with its layers; parts before and after the layers are in a group without a name."""
        for group in (LayerGroup("", (0,), self.first), *self.groups, LayerGroup("", (0,), self.last)):
            yield from ((group, part) for part in group.parts)

    def counted(self) -> Iterator[tuple[ParameterTensor, int]]:
        """Yield each different tensor, and the number of its copies. Names have `*` for the number of a layer."""
        for group, part in self.parts():
            prefix = f"{group.stack}.*." if group.stack else ""
            for tensor in part.tensors(self.width):
                yield replace(tensor, name=prefix + tensor.name), len(group.places)

    def tensors(self) -> Iterator[ParameterTensor]:
        """Yield every tensor with its full name, layers of a group together; tied ones are left out."""
        for group, part in self.parts():
            own = [tensor for tensor in part.tensors(self.width) if not tensor.is_tied]
            for place in group.places:
                prefix = f"{group.stack}.{place}." if group.stack else ""
                yield from (replace(tensor, name=prefix + tensor.name) for tensor in own)


def grouped(stack: str, layers: Sequence[tuple[Part, ...]]) -> tuple[LayerGroup, ...]:
    """Return the layers of a stack in groups of equal ones."""
    places: dict[tuple[Part, ...], list[int]] = {}
    for place, parts in enumerate(layers):
        places.setdefault(parts, []).append(place)
    return tuple(LayerGroup(stack, tuple(numbers), parts) for parts, numbers in places.items())
