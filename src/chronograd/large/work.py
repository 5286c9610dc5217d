"""Operators of the parts of a layer on one rank, for a micro-batch: matrix products, attention, and passes over memory.

Sizes are those of the rank: tensor parallelism divides heads, feed-forward sizes and the vocabulary; context parallelism divides
the tokens; expert parallelism divides the experts. Letters: T tokens of the rank, D width of the model, t tensor-parallel ranks.
Biases and masks are fused into neighbouring operators. Left out: tile quantisation, and products of a router's groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from chronograd.configs.description import (
    AttentionPart,
    ExpertsPart,
    FeedForwardPart,
    LatentAttentionPart,
    MambaPart,
    NormPart,
    Part,
    ProjectionPart,
    ScoringPart,
    TablePart,
)
from chronograd.configs.work import pairs_of
from chronograd.large.setting import Amount, LargeSetting
from chronograd.large.share import ADAPTED
from chronograd.units import FLOPS_PER_MAC

# Backward has the gradients of inputs (`data`) and of weights (`weights`).
Phase = Literal["forward", "data", "weights"]
# Bytes per logit that a loss in fp32 moves in forward and backward. Plain in PyTorch: shifted logits are copied and cast, a
# log-softmax reads them twice and writes them; backward writes fp32 gradients and casts. Fused, it reads the logits twice and
# writes their gradient in place.
LOSS_BYTES = {"plain": (24, 18), "fused": (4, 4), "chunked": (4, 4)}
# Megatron's loss over a divided vocabulary (cross_entropy.py): cast (6), maximum (4), subtract (8), exponential (8), sum (4),
# divide (8); backward multiplies (8) and casts (6).
MEGATRON_LOSS_BYTES = (38, 14)
# Bytes per number that separate operators move in forward and backward, counted in the code of Transformers and PEFT. A norm casts
# to fp32, squares, averages, scales, casts back and multiplies by its weight. Rotary positions negate, join, multiply twice and
# add. An activated gate is written before it is multiplied. GPT-2's GELU has a power and a hyperbolic tangent in fp32. A matrix casts
# its input if residuals are fp32; a LoRA matrix casts its input twice, and scales and adds its output.
EAGER_NORM, EAGER_ROTARY, EAGER_GATED, EAGER_GELU = (34, 60), (20, 20), (10, 18), (76, 110)
EAGER_CAST, EAGER_INPUT, EAGER_OUTPUT = (6, 6), (12, 18), (10, 4)
# Families with one matrix for queries, keys and values, and those whose GELU is eight operators.
ONE_MATRIX, GELU_OF_OPERATORS = ("gpt2", "gpt_neox", "mpt", "phi3"), ("gpt2", "phi")
# Attention without a fused kernel writes its scores; scale, mask, softmax and products read and write them again.
PLAIN_SCORE_PASSES = {"forward": 4, "data": 6}
# The fused softmax of Megatron (fused_softmax.py, is_kernel_available) needs heads · sequences divisible by 4. Otherwise five
# operators cast to fp32, scale, mask, take the softmax and cast back: bytes per score of each, in the 16-bit case.
FUSED_SOFTMAX_MULTIPLE = 4
UNFUSED_SOFTMAX_BYTES = (6, 8, 8, 8, 6)
# A fused kernel computes the scores again in backward: five products instead of two (Dao 2022, arXiv:2205.14135).
BACKWARD_PRODUCTS = 2.5


@dataclass(frozen=True)
class RankOperator:
    """A kernel, or several that run together.

    Attributes:
        family: a family of `predict.calibration`, such as gemm.
        sample_bytes: moved in memory; kernels load weights while they multiply, so these count as well.
        rows, depth, width: of a product (rows × depth) · (depth × width); 1 elsewhere.
        in_8_bits: multiplied in fp8.
        is_core: between the matrices of attention; selective recomputation runs it again.
    """

    family: str
    phase: Phase
    flops: float = 0.0
    sample_bytes: float = 0.0
    rows: float = 1.0
    depth: float = 1.0
    width: float = 1.0
    in_8_bits: bool = False
    is_core: bool = False


def element_bytes(setting: LargeSetting) -> int:
    """Return the bytes of an activation, and of a parameter while it is multiplied."""
    return 2 if setting.training.precision in ("fp16", "bf16") else 4


def is_eager(setting: LargeSetting) -> bool:
    return setting.options.kernels == "eager"


def casts_weights(setting: LargeSetting) -> bool:
    """Return whether autocast casts parameters in fp32 for each product, as a plain loop does, so that residuals are fp32."""
    training = setting.training
    is_plain = training.zero_stage == 0 and not training.is_pure and not setting.options.adapter_rank
    return is_eager(setting) and is_plain and element_bytes(setting) == 2


def is_megatron(setting: LargeSetting) -> Amount:
    """Return whether the layout needs Megatron: it has tensor or pipeline parallelism."""
    return (setting.layout.tensor > 1) | (setting.layout.pipeline > 1)


def gradient_bytes(setting: LargeSetting) -> Amount:
    """Return the bytes of a stored gradient; see `large.gradient_dtype`."""
    return {"fp32": 4, "bf16": 2, None: usual_state_bytes(setting)}[setting.options.gradient_dtype]


def usual_state_bytes(setting: LargeSetting) -> Amount:
    """Return the bytes of a number of gradients and optimizer states by default: as the parameters, and fp32 in Megatron."""
    return 2 + 2 * (is_megatron(setting) | (not setting.training.is_pure))


def operators(part: Part, setting: LargeSetting, imbalance: float = 1.0) -> Iterator[RankOperator]:
    """Yield the operators of a part of a layer, or before or after the layers, for one micro-batch.

    Args:
        imbalance: tokens of the busiest rank's experts relative to the mean.
    """
    match part:
        case NormPart():
            yield from _norm(part, setting)
        case AttentionPart():
            yield from _attention(part, setting)
        case LatentAttentionPart():
            yield from _latent_attention(part, setting)
        case FeedForwardPart():
            yield from _feed_forward(part, setting)
        case ExpertsPart():
            yield from _experts(part, setting, imbalance)
        case MambaPart():
            yield from _state_space(part, setting)
        case TablePart():
            yield from _table(part, setting)
        case ProjectionPart():
            yield from _projection(part, setting)


def _product(
    setting: LargeSetting,
    rows: float,
    depth: float,
    width: float,
    *,
    of: str = "",
    groups: int = 1,
    named: Sequence[float] = (),
) -> Iterator[RankOperator]:
    """Yield a linear layer: forward, and the gradients of its input and of its weights.

    Args:
        of: kind of tensor of the matrices of layers, which LoRA and fp8 concern; empty for others.
        groups: matrices that share the rows equally, as experts do.
        named: widths of the queries and values among the outputs.
    """
    size, options = element_bytes(setting), setting.options
    flops = FLOPS_PER_MAC * rows * depth * width
    moved, matrix = size * rows * (depth + width), size * groups * depth * width
    is_8_bit = options.fp8 and bool(of)
    each, family = rows / groups, "gemm" if groups == 1 else "batched_gemm"
    yield RankOperator(family, "forward", flops, moved + matrix, each, depth, width, is_8_bit)
    yield RankOperator(family, "data", flops, moved + matrix, each, width, depth, is_8_bit)
    if is_8_bit:  # the input and the gradient of the output are cast, and each is stored in both orders
        yield RankOperator("elementwise", "forward", sample_bytes=(size + 2) * rows * depth)
        yield RankOperator("elementwise", "data", sample_bytes=(size + 2) * rows * width)
    if casts_weights(setting):
        numbers = rows * depth + groups * depth * width
        yield from _streamed(EAGER_CAST[0] * numbers, EAGER_CAST[1] * numbers)
    if options.adapter_rank:
        yield from _adapter(setting, rows, depth, width, of, named)
        return
    written = 2 * gradient_bytes(setting) * groups * depth * width  # read, added to, and written
    yield RankOperator(family, "weights", flops, moved + written, width, each, depth, is_8_bit)


def _adapter(
    setting: LargeSetting, rows: float, depth: float, width: float, of: str, named: Sequence[float]
) -> Iterator[RankOperator]:
    """Yield the work that a frozen matrix adds: its dequantisation, and the two products of LoRA for each adapted matrix."""
    options, size = setting.options, element_bytes(setting)
    if of and options.base_bits < 16:
        phases: tuple[Phase, ...] = ("forward", "data")
        for phase in phases:
            yield RankOperator("elementwise", phase, sample_bytes=(options.base_bits / 8 + size) * depth * width)
    adapted = (width,) if of in ADAPTED[options.adapter_on] else named if options.adapter_on == "query-value" else ()
    for outputs in adapted:
        if is_eager(setting):
            ahead, back = (rows * (i * depth + o * outputs) for i, o in zip(EAGER_INPUT, EAGER_OUTPUT, strict=True))
            yield from _streamed(ahead, back)
        for i, o in ((depth, options.adapter_rank), (options.adapter_rank, outputs)):
            flops, moved = FLOPS_PER_MAC * rows * i * o, size * rows * (i + o)
            yield RankOperator("gemm", "forward", flops, moved, rows, i, o)
            yield RankOperator("gemm", "data", flops, moved, rows, o, i)
            yield RankOperator("gemm", "weights", flops, moved, o, rows, i)


def _streamed(
    forward: float, backward: float, family: str = "elementwise", core: bool = False
) -> Iterator[RankOperator]:
    """Yield a pass over memory that moves these bytes."""
    yield RankOperator(family, "forward", sample_bytes=forward, is_core=core)
    yield RankOperator(family, "data", sample_bytes=backward, is_core=core)


def _residual(setting: LargeSetting) -> Iterator[RankOperator]:
    """Yield the addition to the residual, with dropout and its mask of one byte."""
    numbers = setting.tokens * setting.model.width / setting.norm_share
    size, mask = element_bytes(setting), bool(setting.options.dropout)
    yield from _streamed((3 * size + mask) * numbers, (3 * size + mask * (1 + 2 * size)) * numbers)


def _norm(part: NormPart, setting: LargeSetting) -> Iterator[RankOperator]:
    numbers = setting.tokens * setting.model.width / setting.norm_share
    size = element_bytes(setting)
    if is_eager(setting) and not part.bias:
        yield from _streamed(EAGER_NORM[0] * numbers, EAGER_NORM[1] * numbers)
        return
    yield from _streamed(2 * size * numbers, 3 * size * numbers, "layer_norm")


def _scores(part: ScoringPart, setting: LargeSetting, head_numbers: float) -> Iterator[RankOperator]:
    """Yield the scores, the softmax and the weighted values of a rank's heads.

    Context parallelism gives each rank equal numbers of causal pairs. `head_numbers` are those of queries, keys, values and outputs
    per token, which a fused kernel reads and writes.
    """
    layout, size = setting.layout, element_bytes(setting)
    pairs = setting.micro_batch * pairs_of(part, setting.sequence) / layout.context
    rows = setting.micro_batch * setting.sequence / layout.context
    moved = size * setting.tokens * head_numbers
    if setting.options.attention == "fused":
        flops = FLOPS_PER_MAC * part.pair_macs * pairs / layout.tensor
        yield RankOperator("attention", "forward", flops, moved, rows=rows, is_core=True)
        yield RankOperator("attention", "data", BACKWARD_PRODUCTS * flops, 2 * moved, rows=rows, is_core=True)
        return
    all_pairs = setting.micro_batch * setting.sequence**2 / layout.context  # a mask saves no work
    flops = FLOPS_PER_MAC * part.pair_macs * all_pairs / layout.tensor
    masks = 2 * bool(setting.options.dropout)  # written and read
    scores = all_pairs * part.heads / layout.tensor
    phases: tuple[Phase, ...] = ("forward", "data")
    for phase, factor in zip(phases, (1, 2), strict=True):
        bytes_of = scores * (PLAIN_SCORE_PASSES[phase] * size + masks * (1 + size)) + factor * moved
        yield RankOperator("gemm", phase, factor * flops, rows=setting.sequence, depth=part.pair_macs / part.heads / 2,
                       width=setting.sequence, is_core=True)  # fmt: skip
        yield RankOperator("softmax", phase, sample_bytes=bytes_of, is_core=True)
    if part.heads * setting.micro_batch // layout.tensor % FUSED_SOFTMAX_MULTIPLE:
        for each in UNFUSED_SOFTMAX_BYTES:
            yield from _streamed(each * scores, each * scores, core=True)


def _attention(part: AttentionPart, setting: LargeSetting) -> Iterator[RankOperator]:
    t, width, tokens = setting.layout.tensor, setting.model.width, setting.tokens
    heads, kv_heads = part.heads / t, max(part.kv_heads / t, 1)
    inner = heads * part.head_size
    values = kv_heads * part.head_size * (1 if part.keys_are_values else 2)
    named = [inner] if part.keys_are_values else [inner, values / 2]
    yield from _product(setting, tokens, width, inner + values, of="attention", named=named)
    if setting.model.positions == "rotary":
        ahead, back = EAGER_ROTARY if is_eager(setting) else (2 * element_bytes(setting),) * 2
        turned = tokens * (heads + kv_heads) * part.head_size
        yield from _streamed(ahead * turned, back * turned)
    yield from _scores(part, setting, 2 * inner + 2 * kv_heads * part.head_size)
    yield from _product(setting, tokens, inner, width, of="attention")
    yield from _residual(setting)


def _latent_attention(part: LatentAttentionPart, setting: LargeSetting) -> Iterator[RankOperator]:
    """Yield latent attention: the projections to the ranks are on every tensor-parallel rank, or share the sequence."""
    t, width, tokens = setting.layout.tensor, setting.model.width, setting.tokens
    shared, heads, size = tokens / setting.norm_share, part.heads / t, element_bytes(setting)
    query, key = part.plain_size + part.rotary_size, part.kv_rank + part.rotary_size
    if part.query_rank is not None:
        yield from _product(setting, shared, width, part.query_rank, of="attention")
        yield from _streamed(2 * size * shared * part.query_rank, 3 * size * shared * part.query_rank, "layer_norm")
    yield from _product(setting, tokens, part.query_rank or width, heads * query, of="attention", named=[heads * query])
    yield from _product(setting, shared, width, key, of="attention")
    yield from _streamed(2 * size * shared * key, 3 * size * shared * key, "layer_norm")
    yield from _product(setting, tokens, part.kv_rank, heads * (part.plain_size + part.value_size), of="attention")
    joined = 2 * size * tokens * heads * 2 * query  # the rotary part is turned, and joined to every head
    yield from _streamed(joined, joined)
    yield from _scores(part, setting, heads * 2 * (query + part.value_size))
    yield from _product(setting, tokens, heads * part.value_size, width, of="attention")
    yield from _residual(setting)


def _activation(setting: LargeSetting, numbers: float, is_gated: bool) -> Iterator[RankOperator]:
    size, inputs = element_bytes(setting), 2 if is_gated else 1
    if is_eager(setting) and (is_gated or setting.model.family in GELU_OF_OPERATORS):
        forward, backward = EAGER_GATED if is_gated else EAGER_GELU
        yield from _streamed(forward * numbers, backward * numbers)
        return
    yield from _streamed((inputs + 1) * size * numbers, (2 * inputs + 1) * size * numbers)


def _feed_forward(part: FeedForwardPart, setting: LargeSetting) -> Iterator[RankOperator]:
    inner, width = part.size / setting.layout.tensor, setting.model.width
    yield from _product(setting, setting.tokens, width, inner * (2 if part.is_gated else 1), of="feed-forward")
    yield from _activation(setting, setting.tokens * inner, part.is_gated)
    yield from _product(setting, setting.tokens, inner, width, of="feed-forward")
    yield from _residual(setting)


def _experts(part: ExpertsPart, setting: LargeSetting, imbalance: float) -> Iterator[RankOperator]:
    """Yield a mixture of experts: router, permutation of the tokens, experts as grouped products, weighted sum.

    The experts of a rank multiply T · active · expert_tensor / t rows, times the imbalance.
    """
    width, size = part.inputs or setting.model.width, element_bytes(setting)
    rows = imbalance * setting.tokens * part.active * setting.expert_tensor / setting.layout.tensor
    inner, groups = part.size / setting.expert_tensor, part.experts // setting.layout.expert
    into = inner * (2 if part.is_gated else 1)
    yield from _product(setting, setting.tokens / setting.norm_share, setting.model.width, part.experts)
    yield from _streamed(4 * size * rows * width, 4 * size * rows * width, "gather")
    yield from _product(setting, rows, width, into, of="experts", groups=groups)
    yield from _activation(setting, rows * inner, part.is_gated)
    yield from _product(setting, rows, inner, width, of="experts", groups=groups)
    yield from _streamed(4 * size * rows * width, 4 * size * rows * width, "gather")
    yield from _residual(setting)


def _state_space(part: MambaPart, setting: LargeSetting) -> Iterator[RankOperator]:
    """Yield a layer of Mamba 2: projections, a short convolution, and the scan over the state in chunks (arXiv:2405.21060)."""
    t, width, tokens, size = setting.layout.tensor, setting.model.width, setting.tokens, element_bytes(setting)
    inner = part.heads * part.head_size / t
    mixed = inner + 2 * part.groups * part.state / t
    yield from _product(setting, tokens, width, inner + mixed + part.heads / t, of="state space")
    yield from _streamed(2 * size * tokens * mixed, 3 * size * tokens * mixed)
    flops = FLOPS_PER_MAC * part.state_macs * tokens / t
    moved = size * tokens * (inner + mixed)
    yield RankOperator("gemm", "forward", flops, moved, rows=part.state, depth=part.state, width=part.head_size)
    yield RankOperator("gemm", "data", 2 * flops, 2 * moved, rows=part.state, depth=part.state, width=part.head_size)
    yield from _streamed(2 * size * tokens * inner, 3 * size * tokens * inner, "layer_norm")
    yield from _product(setting, tokens, inner, width, of="state space")
    yield from _residual(setting)


def _table(part: TablePart, setting: LargeSetting) -> Iterator[RankOperator]:
    """Yield a look-up; backward adds rows to the gradient of the table."""
    numbers, size = setting.tokens * (part.size or setting.model.width), element_bytes(setting)
    yield from _streamed(2 * size * numbers, (size + 2 * gradient_bytes(setting)) * numbers, "gather")


def _loss_bytes(setting: LargeSetting) -> tuple[int, int]:
    """Return the bytes per logit that the loss moves in forward and in backward."""
    loss = setting.options.loss
    return MEGATRON_LOSS_BYTES if loss == "plain" and is_megatron(setting) else LOSS_BYTES[loss]


def _projection(part: ProjectionPart, setting: LargeSetting) -> Iterator[RankOperator]:
    """Yield a linear layer outside of attention and feed-forward; the head has the loss as well."""
    width, is_head = setting.model.width, part.kind == "head"
    outputs = (part.outputs or width) / (setting.layout.tensor if is_head else 1)
    rows = setting.micro_batch if part.use == "sequence" else setting.tokens
    yield from _product(setting, rows, part.inputs or width, outputs)
    if is_head and part.use == "token":
        forward, backward = _loss_bytes(setting)
        yield from _streamed(forward * rows * outputs, backward * rows * outputs, "softmax")
