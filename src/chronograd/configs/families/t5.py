"""T5 and mT5: an encoder and a decoder with RMS norms, tables of relative positions and no biases.

Raffel et al. 2019, arXiv:1910.10683. Version 1.1 has a gated feed-forward network and a separate head.
"""

from __future__ import annotations

import dataclasses

from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    ModelDescription,
    Part,
    ProjectionPart,
    Sees,
    TablePart,
    grouped,
)
from chronograd.configs.families.decoder import norm
from chronograd.configs.keys import Keys

FORWARD = ("relu", "gated-gelu", "gated-silu", "gelu")
HEADS = {"ForConditionalGeneration": "language", "EncoderModel": "encoder", "Model": ""}


def read(keys: Keys) -> ModelDescription:
    width, heads, head_size = keys.size("d_model"), keys.size("num_heads"), keys.size("d_kv")
    encoders = keys.layers("num_layers")
    decoders = keys.layers("num_decoder_layers", encoders)
    keys.skip("is_encoder_decoder", "is_gated_act", "relative_attention_max_distance")
    buckets, vocabulary = keys.size("relative_attention_num_buckets", 32), keys.size("vocab_size")
    kind = keys.word("feed_forward_proj", FORWARD, "relu" if keys.family == "t5" else "gated-gelu")
    forward = FeedForwardPart("feed_forward", keys.size("d_ff"), kind.startswith("gated"))
    is_tied, head = keys.flag("tie_word_embeddings", keys.family == "t5"), keys.head(HEADS)

    def stack(name: str, layers: int, sees: Sees, *cross: Part) -> tuple[tuple[Part, ...], ...]:
        own = AttentionPart("attention", heads, heads, head_size, sees=sees)
        first = dataclasses.replace(own, buckets=buckets)  # the other layers use its table
        rest = (*cross, norm("feed_forward"), forward)
        return tuple((norm("attention"), own if place else first, *rest) for place in range(layers))

    cross = AttentionPart("cross_attention", heads, heads, head_size, sees="encoder")
    groups = grouped("encoder.layers", stack("encoder", encoders, "all"))
    last: list[Part] = [norm("encoder.last")]
    if head != "encoder":
        groups += grouped("decoder.layers", stack("decoder", decoders, "earlier", norm("cross_attention"), cross))
        last.append(norm("decoder.last"))
    if head == "language":
        last.append(ProjectionPart("head", outputs=vocabulary, is_tied=is_tied))
    return ModelDescription(
        keys.family, width, vocabulary, keys.size("n_positions", 512), "relative",
        (TablePart("embedding", vocabulary),), groups, tuple(last),
        ("encoder and decoder each have a sequence of this length",) if head != "encoder" else (),
    )  # fmt: skip
