"""ViT: patches of an image and a class token through an encoder with layer norms. Dosovitskiy et al. 2020, arXiv:2010.11929."""

from __future__ import annotations

from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    ModelDescription,
    Part,
    ProjectionPart,
    TablePart,
    grouped,
)
from chronograd.configs.families.decoder import norm, pre_norm
from chronograd.configs.keys import Keys

HEADS = {"ForImageClassification": "classes", "Model": "pooler"}


def read(keys: Keys) -> ModelDescription:
    width, layers, heads = keys.size("hidden_size"), keys.layers("num_hidden_layers"), keys.size("num_attention_heads")
    image, patch = keys.size("image_size", 224), keys.size("patch_size", 16)
    side = keys.share("image_size", image, "patch_size", patch)
    head_size, bias = keys.share("hidden_size", width, "num_attention_heads", heads), keys.flag("qkv_bias", True)
    keys.skip("encoder_stride", "num_labels", "pooler_output_size")
    attention = AttentionPart("attention", heads, heads, head_size, bias, out_bias=True, sees="all")
    forward = FeedForwardPart("feed_forward", keys.size("intermediate_size"), is_gated=False, bias=True)
    labels = len(keys.inner("id2label").data) or keys.size("num_labels", 2)
    inputs = keys.size("num_channels", 3) * patch**2
    first = (
        ProjectionPart("patches", inputs, bias=True, kind="embedding", use="patch"),
        TablePart("class_token", 1),
        TablePart("positions", side**2 + 1),
    )
    head: Part = ProjectionPart("head", outputs=labels, bias=True, use="sequence")
    if keys.head(HEADS) == "pooler":
        head = ProjectionPart("pooler", outputs=keys.size("pooler_output_size", width), bias=True, use="sequence")
    groups = grouped("layers", [pre_norm(attention, forward, bias=True)] * layers)
    last = (norm("last", True), head)
    return ModelDescription(
        keys.family, width, 0, side**2 + 1, "learned", first, groups, last,
        (f"one sequence is an image: {side**2:,} patches and a class token",), is_fixed=True,
    )  # fmt: skip
