"""Llama and its near relatives: RMS norms, rotary positions, a gated feed-forward network or a mixture of gated experts.

Touvron et al. 2023, arXiv:2302.13971. They differ in biases, norms of queries and keys, sliding windows and experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chronograd.configs.description import (
    AttentionPart,
    ExpertsPart,
    FeedForwardPart,
    ModelDescription,
    Part,
    ProjectionPart,
)
from chronograd.configs.families.decoder import decoder, pre_norm, windows
from chronograd.configs.keys import Keys


@dataclass(frozen=True)
class Relative:
    """The differences of a relative from Llama.

    Attributes:
        has_bias: `key` reads `attention_bias`; `inputs` has biases of query, key and value.
        head_size: the default of `head_dim`; 0 for the width divided by the heads.
        window: `all` layers have `sliding_window`; `late` ones have it from `max_window_layers` on, if `use_sliding_window`.
        default_window: of a missing key.
        experts: the key with their number; empty for none. has_dense: some layers have none, and experts have another size.
        has_shared: all tokens also use a network, times a gate of one number.
    """

    has_bias: str = ""
    head_norms: bool = False
    head_size: int = 0
    window: str = ""
    default_window: int | None = None
    experts: str = ""
    has_dense: bool = False
    has_shared: bool = False


RELATIVES = {
    "llama": Relative(has_bias="key"),
    "mistral": Relative(window="all", default_window=4096),
    "mixtral": Relative(window="all", experts="num_local_experts"),
    "phi3": Relative(window="all"),
    "qwen2": Relative(has_bias="inputs", window="late"),
    "qwen2_moe": Relative(has_bias="inputs", window="late", experts="num_experts", has_dense=True, has_shared=True),
    "qwen3": Relative(has_bias="key", head_norms=True, head_size=128, window="late"),
    "qwen3_moe": Relative(has_bias="key", head_norms=True, window="late", experts="num_experts", has_dense=True),
}


def read(keys: Keys) -> ModelDescription:
    own = RELATIVES[keys.family]
    width, layers, (heads, kv_heads) = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.heads()
    head_size = keys.size("head_dim", 0) or own.head_size
    head_size = head_size or keys.share("hidden_size", width, "num_attention_heads", heads)
    bias = keys.flag("attention_bias")
    if bias and own.has_bias != "key":
        keys.is_off("attention_bias")
    for name in () if keys.family == "llama" else ("mlp_bias", "lm_head_bias"):
        keys.is_off(name)
    has_input_bias = own.has_bias == "inputs" and keys.flag("qkv_bias", True)
    attention = AttentionPart(
        "attention", heads, kv_heads, head_size, bias or has_input_bias, bias, head_norms=own.head_norms
    )
    kinds = zip(_windows(keys, own, layers), _forwards(keys, own, layers), strict=True)
    parts = [pre_norm(replace(attention, window=window), *forward) for window, forward in kinds]
    return decoder(keys, width, parts, length=keys.size("max_position_embeddings"))


def _windows(keys: Keys, own: Relative, layers: int) -> list[int | None]:
    """Return the window of each layer."""
    if not own.window:
        return [None] * layers
    window, first = keys.optional(default=own.default_window), 0
    if own.window == "late":
        is_used, first = keys.flag("use_sliding_window"), keys.size("max_window_layers", 28, least=0)
        window = window if is_used else None
    usual = ["sliding_attention" if window and place >= first else "full_attention" for place in range(layers)]
    return windows(keys, layers, usual, window)


def _forwards(keys: Keys, own: Relative, layers: int) -> list[tuple[Part, ...]]:
    """Return the feed-forward network or the experts of each layer."""
    size = keys.size("intermediate_size")
    plain = FeedForwardPart("feed_forward", size, bias=keys.flag("mlp_bias") if keys.family == "llama" else False)
    if not own.experts:
        return [(plain,)] * layers
    experts = keys.size(own.experts)
    active = keys.size("num_experts_per_tok", most=experts)
    if not own.has_dense:
        return [(ExpertsPart("experts", experts, active, size),)] * layers
    mixture: tuple[Part, ...] = (ExpertsPart("experts", experts, active, keys.size("moe_intermediate_size")),)
    if own.has_shared:
        kind = "shared experts"
        mixture += (FeedForwardPart("shared_experts", keys.size("shared_expert_intermediate_size"), kind=kind),)
        mixture += (ProjectionPart("shared_experts.scale", outputs=1, kind=kind),)
    step, dense = keys.size("decoder_sparse_step", 1), set(keys.items("mlp_only_layers", int))
    return [(plain,) if place in dense or (place + 1) % step else mixture for place in range(layers)]
