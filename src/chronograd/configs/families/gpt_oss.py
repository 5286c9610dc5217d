"""gpt-oss: experts and a router with biases, sinks of attention, every second layer with a window. OpenAI 2025, arXiv:2508.10925."""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, ExpertsPart, ModelDescription
from chronograd.configs.families.decoder import decoder, pre_norm, windows
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, (heads, kv_heads) = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.heads()
    head_size, bias, count = (
        keys.size("head_dim", 64),
        keys.flag("attention_bias", True),
        keys.size("num_local_experts"),
    )
    keys.skip("experts_per_token")  # the same number once more
    experts = ExpertsPart(
        "experts", count, keys.size("num_experts_per_tok", most=count), keys.size("intermediate_size"), bias=True
    )
    kinds = ["full_attention" if place % 2 else "sliding_attention" for place in range(layers)]
    parts = [
        pre_norm(AttentionPart("attention", heads, kv_heads, head_size, bias, bias, window=window, sinks=True), experts)
        for window in windows(keys, layers, kinds, keys.optional(default=128))
    ]
    return decoder(keys, width, parts, length=keys.size("max_position_embeddings"))
