"""Settings of large models for the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from chronograd import job as jobs
from chronograd.configs.description import (
    AttentionPart,
    FeedForwardPart,
    ModelDescription,
    NormPart,
    ProjectionPart,
    TablePart,
    grouped,
)
from chronograd.configs.find import load, packaged
from chronograd.configs.readers import describe
from chronograd.large.setting import LargeSetting


@cache
def packaged_model(name: str) -> ModelDescription:
    return describe(load(packaged()[name]), name)


def plain_gpt(layers: int = 4, width: int = 64, heads: int = 4, vocabulary: int = 512) -> ModelDescription:
    """Return GPT with biases, without positions."""
    parts = (
        NormPart("attention_norm", True),
        AttentionPart("attention", heads, heads, width // heads, True, True),
        NormPart("feed_forward_norm", True),
        FeedForwardPart("feed_forward", 4 * width, False, True),
    )
    last = (NormPart("last_norm", True), ProjectionPart("head", outputs=vocabulary))
    first = (TablePart("embedding", vocabulary),)
    return ModelDescription("gpt2", width, vocabulary, 128, "none", first, grouped("layers", [parts] * layers), last)


def setting(
    model: ModelDescription | str,
    *,
    ranks: int = 1,
    length: int = 128,
    batch: int = 1,
    device: str = "h100",
    layout: dict[str, Any] | None = None,
    large: dict[str, Any] | None = None,
    **training: Any,
) -> LargeSetting:
    """Return a setting with AdamW and bf16."""
    described = packaged_model(model) if isinstance(model, str) else model
    cluster = {"device": device, "count": ranks, **({"layout": layout} if layout else {})}
    given = {"recipe": "adamw", "precision": "bf16", "batch": batch, **training}
    job = {
        "network": {"name": "model"},
        "data": {"name": "tokens", "shape": [length], "classes": max(described.vocabulary, 2)},
        "training": given,
        "cluster": cluster,
        "large": large or {},
    }
    return LargeSetting(described, jobs.from_dict(job))
