"""Shared parts of families whose only stack is a causal decoder."""

from __future__ import annotations

from collections.abc import Sequence

from chronograd.configs.description import ModelDescription, NormPart, Part, ProjectionPart, TablePart, grouped
from chronograd.configs.keys import Keys

LANGUAGE_HEADS = {
    "ForCausalLM": "language",
    "LMHeadModel": "language",
    "ForConditionalGeneration": "language",
    "Model": "",
}


def norm(name: str, bias: bool = False) -> NormPart:
    return NormPart(f"{name}_norm", bias)


def pre_norm(attention: Part, *feed_forward: Part, bias: bool = False) -> tuple[Part, ...]:
    """Return the parts of a layer with a norm before its attention and one before its feed-forward network."""
    return (norm("attention", bias), attention, norm("feed_forward", bias), *feed_forward)


def decoder(
    keys: Keys,
    width: int,
    layers: Sequence[tuple[Part, ...]],
    *,
    length: int,
    positions: str = "rotary",
    is_tied: bool = False,
    has_bias: bool = False,
    notes: Sequence[str] = (),
) -> ModelDescription:
    """Return a model with an embedding, a table of positions if they are learned, layers, a norm and a head for the next token.

    Args:
        is_tied: the default of `tie_word_embeddings`.
        has_bias: of the last norm.
    """
    vocabulary, is_tied = keys.size("vocab_size"), keys.flag("tie_word_embeddings", is_tied)
    first: list[Part] = [TablePart("embedding", vocabulary)]
    if positions == "learned":
        first.append(TablePart("positions", length))
    last: list[Part] = [norm("last", has_bias)]
    if keys.head(LANGUAGE_HEADS):
        last.append(ProjectionPart("head", outputs=vocabulary, is_tied=is_tied))
    return ModelDescription(
        keys.family,
        width,
        vocabulary,
        length,
        positions,
        tuple(first),
        grouped("layers", layers),
        tuple(last),
        tuple(notes),
    )


def windows(keys: Keys, layers: int, usual: Sequence[str], window: int | None) -> list[int | None]:
    """Return the window of each layer: that of the file for layers with sliding attention."""
    kinds = keys.layer_types(layers, usual)
    return [window if kind == "sliding_attention" else None for kind in kinds]
