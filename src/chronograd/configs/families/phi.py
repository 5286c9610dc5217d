"""Phi-1.5 and Phi-2: one layer norm per layer, biases everywhere, also of the head. Li et al. 2023, arXiv:2309.05463.

Phi-3 and Phi-4 are relatives of Llama.
"""

from __future__ import annotations

from dataclasses import replace

from chronograd.configs.description import AttentionPart, FeedForwardPart, ModelDescription, ProjectionPart
from chronograd.configs.families.decoder import decoder, norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, (heads, kv_heads) = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.heads()
    keys.is_off("qk_layernorm")
    head_size = keys.share("hidden_size", width, "num_attention_heads", heads)
    attention = AttentionPart("attention", heads, kv_heads, head_size, bias=True, out_bias=True)
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size"), is_gated=False, bias=True)
    layer = (norm("attention", True), attention, forward)
    model = decoder(keys, width, [layer] * layers, length=keys.size("max_position_embeddings"), has_bias=True)
    last = (replace(part, bias=True) if isinstance(part, ProjectionPart) else part for part in model.last)
    return replace(model, last=tuple(last))
