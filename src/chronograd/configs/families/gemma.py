"""Gemma: RMS norms before and after attention and feed-forward, alternating windows, a tied embedding.

Gemma Team 2024, arXiv:2403.08295 and arXiv:2408.00118; 2025, arXiv:2503.19786.
"""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, FeedForwardPart, ModelDescription, Part
from chronograd.configs.families.decoder import decoder, norm, pre_norm, windows
from chronograd.configs.keys import Keys

# Every n-th layer has full attention; 1 for all layers.
GENERATIONS = {"gemma": 1, "gemma2": 2, "gemma3_text": 6}
# Sizes that files of Gemma 3 leave out: those of its class in the library Transformers.
_USUAL = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208, "max_position_embeddings": 131_072}


def read(keys: Keys) -> ModelDescription:
    if keys.family == "gemma3_text":
        keys.data = {**keys.data, **{name: size for name, size in _USUAL.items() if keys.data.get(name) is None}}
    keys.size("num_key_value_heads")  # required: the class of Gemma 2 has another default than the number of heads
    width, layers, (heads, kv_heads) = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.heads()
    head_size, bias = keys.size("head_dim", 256), keys.flag("attention_bias")
    window = keys.optional(default=4096) if keys.family != "gemma" else None
    keys.skip("sliding_window_size")  # an older name of the same size
    every = keys.size("sliding_window_pattern", GENERATIONS[keys.family])
    kinds = ["full_attention" if (place + 1) % every == 0 else "sliding_attention" for place in range(layers)]
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size"))

    def layer(own: int | None) -> tuple[Part, ...]:
        has_norms = keys.family == "gemma3_text"
        attention = AttentionPart("attention", heads, kv_heads, head_size, bias, bias, window=own, head_norms=has_norms)
        before = pre_norm(attention, forward)
        return before if keys.family == "gemma" else (*before, norm("attention_out"), norm("feed_forward_out"))

    parts = [layer(own) for own in windows(keys, layers, kinds, window)]
    return decoder(keys, width, parts, length=keys.size("max_position_embeddings"), is_tied=True)
