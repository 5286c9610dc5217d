"""GPT-NeoX and Pythia: layer norms, rotary positions, biases. Black et al. 2022, arXiv:2204.06745."""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, FeedForwardPart, ModelDescription
from chronograd.configs.families.decoder import decoder, pre_norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.size("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    head_size = keys.share("hidden_size", width, "num_attention_heads", heads)
    attention = AttentionPart("attention", heads, heads, head_size, bias, bias)
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size"), is_gated=False, bias=True)
    parts = pre_norm(attention, forward, bias=True)
    return decoder(keys, width, [parts] * layers, length=keys.size("max_position_embeddings"), has_bias=True)
