"""BERT: an encoder with layer norms after attention and feed-forward, and learned positions. Devlin et al. 2018, arXiv:1810.04805."""

from __future__ import annotations

from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    ModelDescription,
    NormPart,
    Part,
    ProjectionPart,
    Sees,
    TablePart,
    grouped,
)
from chronograd.configs.families.decoder import norm
from chronograd.configs.keys import Keys

HEADS = {"ForMaskedLM": "words", "LMHeadModel": "words", "ForPreTraining": "words and sentences", "Model": "pooler"}


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.size("num_attention_heads")
    vocabulary, length = keys.size("vocab_size"), keys.size("max_position_embeddings")
    keys.word("position_embedding_type", ("absolute",), "absolute")
    keys.is_off("add_cross_attention")
    sees: Sees = "earlier" if keys.flag("is_decoder") else "all"
    head_size = keys.share("hidden_size", width, "num_attention_heads", heads)
    attention = AttentionPart("attention", heads, heads, head_size, bias=True, out_bias=True, sees=sees)
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size"), is_gated=False, bias=True)
    layer = (attention, norm("attention_out", True), forward, norm("feed_forward_out", True))
    first = (
        TablePart("embedding", vocabulary),
        TablePart("positions", length),
        TablePart("token_types", keys.size("type_vocab_size", 2)),
        norm("embedding", True),
    )
    last = _heads(keys, vocabulary, keys.head(HEADS))
    return ModelDescription(
        keys.family, width, vocabulary, length, "learned", first, grouped("layers", [layer] * layers), last
    )


def _heads(keys: Keys, vocabulary: int, head: str) -> tuple[Part, ...]:
    """Return the head of the words and of the next sentence. The pooler reads the first token of a sequence."""
    is_tied = keys.flag("tie_word_embeddings", True)
    words: list[Part] = [
        ProjectionPart("head.transform", bias=True),
        NormPart("head.norm", bias=True),
        ProjectionPart("head", outputs=vocabulary, bias=True, is_tied=is_tied),
    ]
    pooler = ProjectionPart("pooler", bias=True, use="sequence")
    if head == "pooler":
        return (pooler,)
    if head == "words":
        return tuple(words)
    return (pooler, *words, ProjectionPart("next_sentence", outputs=2, bias=True, use="sequence"))
