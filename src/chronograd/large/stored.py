"""Activations of a micro-batch on one rank: what a layer stores for its backward pass, and what it needs for a moment.

After Korthikanti et al. 2022, arXiv:2205.05198, section 4, with grouped heads, latent attention, gated networks and experts. Norms and
residuals are shared by the ranks of sequence parallelism, all else inside a layer by those of tensor parallelism.

Separate operators (`large.kernels=eager`) store what PyTorch's each keep. Counted in the code of Transformers 5.17, this agrees with 16
runs on an H200 within 1 % (benchmarks/results/gpu/large).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from chronograd.configs.description import (
    AttentionPart,
    ExpertsPart,
    FeedForwardPart,
    LatentAttentionPart,
    MambaPart,
    NormPart,
    Part,
    ProjectionPart,
    TablePart,
)
from chronograd.large.setting import Amount, LargeSetting, Layer
from chronograd.large.work import GELU_OF_OPERATORS, ONE_MATRIX, casts_weights, element_bytes, is_eager

ADAPTER = 4  # bytes of a number of an adapter, which is trained in fp32
STATISTICS = 4  # bytes of a number that norms and fused attention keep in fp32
# Fitted to 15 runs on B200, within 2 %: gradients in the width of the model at one time, and how often that of the widest matrix exists.
PASSING_RESIDUALS, PASSING_WEIGHTS = 4, 2
# Bytes of a logit at the peak of the loss in separate operators: log-softmax, its gradient and that of the likelihood, in fp32.
EAGER_LOGIT = 12
# Parts of a layer with adapters, for each value of `large.adapter_on`.
ADAPTS = {
    "all": ("attention", "feed-forward"),
    "query-value": ("attention",),
    "attention": ("attention",),
    "feed-forward": ("feed-forward",),
}
ROUTED = 3  # numbers of 4 bytes per token and expert of the router: logits, probabilities, map


@dataclass(frozen=True)
class Stored:
    """Bytes of one micro-batch on one rank.

    Attributes:
        saved: for the backward pass; `scores` of it between the matrices of attention.
        passing: needed for a moment in the backward pass: the gradients of the largest part and of its widest matrix.
    """

    saved: Amount = 0.0
    scores: Amount = 0.0
    passing: Amount = 0.0

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.saved + other.saved, self.scores + other.scores, np.maximum(self.passing, other.passing))


def residual_bytes(setting: LargeSetting) -> Amount:
    """Return the bytes of the residual stream between two layers."""
    size = STATISTICS if casts_weights(setting) else element_bytes(setting)
    return setting.tokens / setting.norm_share * setting.model.width * size


def of_layer(setting: LargeSetting, layer: Layer) -> Stored:
    return sum((of_part(setting, part) for part in layer), Stored())


def of_part(setting: LargeSetting, part: Part) -> Stored:
    """Return what a part stores. A norm stores its input; other parts store theirs, and what lies between their matrices."""
    residual, width = residual_bytes(setting), setting.model.width
    if isinstance(part, NormPart):
        return Stored(_of_norm(setting, part))
    rows = setting.tokens / setting.norm_share
    if isinstance(part, AttentionPart | LatentAttentionPart):
        return _of_attention(setting, part)
    if isinstance(part, FeedForwardPart):
        weights = PASSING_WEIGHTS * width * part.size / setting.layout.tensor
        return Stored(_inputs(setting, part) + setting.options.dropout_bytes * rows * width) + _of_matrices(
            setting, setting.tokens / setting.layout.tensor, part.size, part.is_gated, weights
        )
    if isinstance(part, ExpertsPart):
        return _of_experts(setting, part)
    if isinstance(part, MambaPart):
        inner = part.heads * part.head_size / setting.layout.tensor
        mixed = 3 * inner + 2 * part.groups * part.state
        return Stored(residual + 2 * setting.tokens * mixed * element_bytes(setting))
    return Stored()


def _of_norm(setting: LargeSetting, part: NormPart) -> Amount:
    """Return the bytes that a norm stores: its input, in separate operators in fp32, and then also the result before its weight."""
    width, residual = setting.model.width, residual_bytes(setting)
    rows = setting.tokens / setting.norm_share
    if part.size not in (None, width):
        return 0.0
    if not is_eager(setting) or part.bias:  # one kernel
        return residual + 2 * STATISTICS * rows
    result = 0 if setting.options.adapter_rank else residual
    return rows * width * STATISTICS + result + STATISTICS * rows


def _inputs(setting: LargeSetting, part: AttentionPart | LatentAttentionPart | FeedForwardPart) -> Amount:
    """Return the bytes of the inputs of a part's first matrices.

    They are stored for the gradients of the matrices, once in all. A frozen matrix needs none. In separate operators each matrix stores
    its own cast, and each adapter its own copy, in fp32 or as autocast casts it.
    """
    options = setting.options
    tokens, width = setting.tokens / setting.norm_share, setting.model.width
    own = "feed-forward" if isinstance(part, FeedForwardPart) else "attention"
    if options.adapter_rank and own not in ADAPTS[options.adapter_on]:
        return 0.0
    if not (options.adapter_rank and is_eager(setting)):
        first = (
            (1 + part.is_gated) if isinstance(part, FeedForwardPart) else 1 if setting.model.family in ONE_MATRIX else 3
        )
        return first * tokens * width * element_bytes(setting) if casts_weights(setting) else residual_bytes(setting)
    copied = ADAPTER if setting.training.is_pure else element_bytes(setting)
    if isinstance(part, FeedForwardPart):
        return tokens * ((1 + part.is_gated) * width + part.size / setting.layout.tensor) * copied
    if options.adapter_on == "query-value":
        return tokens * 2 * width * copied
    size = part.head_size if isinstance(part, AttentionPart) else part.value_size
    return tokens * (3 * width + part.heads / setting.layout.tensor * size) * copied


def _of_matrices(setting: LargeSetting, rows: Amount, size: float, is_gated: bool, weights: Amount) -> Stored:
    """Return what lies between the matrices of a feed-forward network, before and after its activation, and its gradients.

    `weights`: parameters of one of the first matrices, times its copies.
    """
    saved = rows * size * _bytes_between(setting, is_gated)
    return Stored(saved, passing=saved + _passing(setting, (2 if is_gated else 1) * weights))


def _bytes_between(setting: LargeSetting, is_gated: bool) -> int:
    """Return the bytes that are stored for a number between the matrices of a feed-forward network.

    One kernel keeps the inputs of the activation, and the last matrix its own. Separate operators of a gated network also keep the
    activated gate. GPT-2's GELU keeps a cast for the power, the hyperbolic tangent, one more than it, and half of the input.
    """
    size, is_frozen = element_bytes(setting), bool(setting.options.adapter_rank)
    if not is_eager(setting):
        return (3 if is_gated else 2) * size
    inside = (3 if is_gated else 1) * size
    if not is_gated and setting.model.family in GELU_OF_OPERATORS:
        inside = size + 3 * (size if setting.training.is_pure else STATISTICS)
    return inside + (0 if is_frozen else size)


def _passing(setting: LargeSetting, weights: Amount) -> Amount:
    """Return the bytes of gradients in the width of the model, and of those of a matrix unless it is frozen."""
    matrix = 0 if setting.options.adapter_rank else weights
    return (PASSING_RESIDUALS * setting.tokens * setting.model.width + matrix) * element_bytes(setting)


def _of_attention(setting: LargeSetting, part: AttentionPart | LatentAttentionPart) -> Stored:
    """Return what attention stores: its input, queries, keys and values, its output, and the scores unless they are fused."""
    layout, tokens, size = setting.layout, setting.tokens, element_bytes(setting)
    heads = part.heads / layout.tensor
    if isinstance(part, AttentionPart):
        kv_heads = np.maximum(part.kv_heads / layout.tensor, 1)
        inner, output = (heads + 2 * kv_heads) * part.head_size, heads * part.head_size
        compressed = 0.0
    else:
        keys = part.plain_size + part.rotary_size
        inner, output = heads * (2 * keys + part.value_size), heads * part.value_size
        compressed = 2 * ((part.query_rank or 0) + part.kv_rank) / setting.norm_share
    dropout = setting.options.dropout_bytes
    outside = _inputs(setting, part) + dropout * tokens / setting.norm_share * setting.model.width
    matrices = tokens * (inner + output + compressed) * size
    passing = _passing(setting, PASSING_WEIGHTS * setting.model.width * inner)
    if setting.options.attention == "fused":
        saved = tokens * heads * STATISTICS
        return Stored(outside + matrices + saved, saved, tokens * (inner + output) * size + passing)
    pairs = tokens * setting.sequence * heads
    # The softmax, and with dropout its result and mask.
    saved = pairs * (size + (size + 1 if setting.options.dropout else 0))
    return Stored(outside + matrices + saved, saved, 2 * pairs * size + passing)


def _of_experts(setting: LargeSetting, part: ExpertsPart) -> Stored:
    """Return what experts store with balanced load: the tokens that arrive, the activations, and what leaves."""
    size, shared = element_bytes(setting), setting.expert_tensor
    width = part.inputs or setting.model.width
    here = setting.tokens / setting.norm_share
    routed = here * part.active
    arriving = routed * shared  # ranks that share an expert all have its tokens
    outside = residual_bytes(setting) + here * part.experts * ROUTED * STATISTICS
    moved = 2 * arriving * width * size
    weights = part.experts / setting.layout.expert * width * part.size / shared
    return Stored(outside + moved) + _of_matrices(setting, arriving / shared, part.size, part.is_gated, weights)


@dataclass(frozen=True)
class Head:
    """Bytes of the last stage's head and loss.

    Attributes:
        saved: the inputs of norm and head.
        logits: when the loss is computed.
        passing: gradients of its matrix, which remain while the last layer's are computed.
        rows, columns: of the logits on this rank.
    """

    saved: Amount
    logits: Amount
    passing: Amount
    rows: Amount
    columns: Amount


def of_head(setting: LargeSetting, parts: Iterable[Part]) -> Head:
    """Return the bytes of the head and the loss."""
    saved: Amount = 0.0
    logits: Amount = 0.0
    passing: Amount = 0.0
    columns: Amount = 0.0
    for part in parts:
        if isinstance(part, ProjectionPart):
            outputs = (part.outputs or setting.model.width) / setting.layout.tensor
            rows = setting.tokens if part.use == "token" else setting.micro_batch
            saved += rows / setting.norm_share * (part.inputs or setting.model.width) * element_bytes(setting)
            if part.outputs == setting.model.vocabulary:
                logits, columns = rows * outputs * _bytes_of_a_logit(setting), outputs
                if not setting.options.adapter_rank:
                    passing = outputs * setting.model.width * element_bytes(setting)
        elif not isinstance(part, TablePart):
            saved += of_part(setting, part).saved
    return Head(saved, logits, passing, setting.tokens, columns)


def _bytes_of_a_logit(setting: LargeSetting) -> Amount:
    """Return the bytes of a logit at the peak of the loss.

    The plain loss has the logit, and a copy in fp32 that becomes the softmax and its gradient; see `EAGER_LOGIT`.
    The fused loss has the logit and its gradient. The chunked loss has few logits at a time.
    """
    size, options = element_bytes(setting), setting.options
    plain = EAGER_LOGIT if is_eager(setting) else size + 4
    return {"plain": plain, "fused": 2 * size, "chunked": 0}[options.loss]
