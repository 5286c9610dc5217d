"""OPT: layer norms, learned positions, ReLU, biases, a tied embedding. Zhang et al. 2022, arXiv:2205.01068."""

from __future__ import annotations

import dataclasses

from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    ModelDescription,
    NormPart,
    Part,
    ProjectionPart,
    TablePart,
)
from chronograd.configs.families.decoder import decoder, pre_norm
from chronograd.configs.keys import Keys

# The library Transformers adds two rows to the table of positions.
EXTRA_POSITIONS = 2


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.size("num_attention_heads")
    bias, narrow = keys.flag("enable_bias", True), keys.size("word_embed_proj_dim", width)
    head_size = keys.share("hidden_size", width, "num_attention_heads", heads)
    if not keys.flag("layer_norm_elementwise_affine", True):
        raise keys.fault("layer_norm_elementwise_affine is false, which is not counted", "set it to true")
    attention = AttentionPart("attention", heads, heads, head_size, bias, bias)
    parts = pre_norm(
        attention, FeedForwardPart("feed_forward", keys.size("ffn_dim"), is_gated=False, bias=bias), bias=True
    )
    length = keys.size("max_position_embeddings")
    model = decoder(keys, width, [parts] * layers, length=length, positions="learned", is_tied=True, has_bias=True)
    has_last_norm = keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm")
    first: list[Part] = [
        TablePart("embedding", model.vocabulary, narrow),
        TablePart("positions", length + EXTRA_POSITIONS),
    ]
    last = [part for part in model.last if has_last_norm or not isinstance(part, NormPart)]
    if narrow != width:
        first.append(ProjectionPart("embedding_in", narrow, width, kind="embedding"))
        out = ProjectionPart("embedding_out", width, narrow, kind="embedding")
        last = [p for p in last if not isinstance(p, ProjectionPart)] + [
            out,
            *(dataclasses.replace(p, inputs=narrow) for p in last if isinstance(p, ProjectionPart)),
        ]
    return dataclasses.replace(model, first=tuple(first), last=tuple(last))
