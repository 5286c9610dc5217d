"""GPT-2: layer norms, learned positions, biases everywhere, a tied embedding. Radford et al. 2019."""

from __future__ import annotations

from chronograd.configs.description import AttentionPart, FeedForwardPart, ModelDescription
from chronograd.configs.families.decoder import decoder, pre_norm
from chronograd.configs.keys import Keys


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("n_embd"), keys.layers("n_layer"), keys.size("n_head")
    head_size = keys.share("n_embd", width, "n_head", heads)
    keys.skip("n_ctx", "padded_vocab_size")  # the table of positions and the embedding have the other sizes
    keys.is_off("add_cross_attention")
    attention = AttentionPart("attention", heads, heads, head_size, bias=True, out_bias=True)
    forward = FeedForwardPart("feed_forward", keys.size("n_inner", 4 * width), is_gated=False, bias=True)
    parts = pre_norm(attention, forward, bias=True)
    length = keys.size("n_positions")
    return decoder(keys, width, [parts] * layers, length=length, positions="learned", is_tied=True, has_bias=True)
