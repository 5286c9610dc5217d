"""Decoders of language models, with the shapes of Llama and of GPT-2.

Touvron et al., "LLaMA: open and efficient foundation language models", 2023, arXiv:2302.13971. Radford et al., "Language models
are unsupervised multitask learners", 2019. Norm: Zhang & Sennrich 2019. Positions: Su et al. 2021, arXiv:2104.09864. SwiGLU:
Shazeer 2020, arXiv:2002.05202.

Attention is one operator, `scaled_dot_product_attention`. With the option `attention: eager` its products, mask and softmax are
separate operators.

Shapes: B batch, T positions, D width, H heads, K key and value heads, E = D / H.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.models.registry import register


def rotation(sequence: int, size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angle of each position and pair of features, (T, E / 2) each."""
    rates = base ** (-torch.arange(0, size, 2) / size)
    angles_TF = torch.outer(torch.arange(sequence), rates)
    return angles_TF.cos(), angles_TF.sin()


def rotate(x_BHTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pair of features (i, i + E / 2) of every position by that position's angle."""
    a, b = x_BHTE.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


# Kinds of attention: as one operator, or step by step.
ATTENTION = ("fused", "eager")


def check_attention(kind: str) -> str:
    """Return `kind`, or raise ValueError if it is not in ATTENTION."""
    if kind not in ATTENTION:
        raise ValueError(f"attention is {kind!r}; write {' or '.join(ATTENTION)}")
    return kind


def causal_attention(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, kind: str, dropout: float = 0.0) -> Tensor:
    """Return attention of each position to itself and to those before it; (B, H, T, E)."""
    groups = q_BHTE.shape[1] // k_BKTE.shape[1]
    if kind == "fused":
        return F.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, is_causal=True, dropout_p=dropout, enable_gqa=groups > 1
        )
    if groups > 1:
        k_BKTE, v_BKTE = (t.repeat_interleave(groups, dim=1) for t in (k_BKTE, v_BKTE))
    scores_BHTT = q_BHTE @ k_BKTE.transpose(2, 3) / math.sqrt(q_BHTE.shape[-1])
    later_TT = torch.ones(scores_BHTT.shape[-2:], dtype=torch.bool, device=q_BHTE.device).triu(1)
    weights = F.softmax(scores_BHTT.masked_fill(later_TT, -math.inf), dim=-1)
    return F.dropout(weights, dropout) @ v_BKTE


class LlamaAttention(nn.Module):
    """Causal attention; `heads / kv_heads` query heads share a key and a value head."""

    def __init__(self, width: int, heads: int, kv_heads: int, attention: str = "fused") -> None:
        super().__init__()
        self.attention = check_attention(attention)
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, positions, _ = x_BTD.shape
        q = self.query(x_BTD).view(batch, positions, self.heads, self.size).transpose(1, 2)
        k = self.key(x_BTD).view(batch, positions, self.kv_heads, self.size).transpose(1, 2)
        v = self.value(x_BTD).view(batch, positions, self.kv_heads, self.size).transpose(1, 2)
        y = causal_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, self.attention)
        return cast(Tensor, self.out(y.transpose(1, 2).flatten(2)))


class LlamaBlock(nn.Module):
    """Attention, then a gated perceptron; each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int, kv_heads: int, ffn: int, attention: str = "fused") -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = LlamaAttention(width, heads, kv_heads, attention)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos, sin)
        h = self.ffn_norm(x_BTD)
        return cast(Tensor, x_BTD + self.down(F.silu(self.gate(h)) * self.up(h)))


@register(
    "llama-7b",
    input_shape=(2048,),
    input_dtype="int64",
    num_classes=32_000,
    paper="Touvron et al. 2023, arXiv:2302.13971, table 2",
    # 2 * 32,000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11,008 + 2 * 4096) + 4096
    params=6_738_415_616,
)
class Llama(nn.Module):
    """A Llama decoder from tokens (B, T) to scores (B, T, vocab). Without `kv_heads` every head has its own keys and values.
    If it is `tied`, the output matrix is the embedding, and initial weights deviate by 1 / √width instead of 0.02.
    """

    tied = False
    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        *,
        layers: int = 32,
        width: int = 4096,
        heads: int = 32,
        kv_heads: int | None = None,
        ffn: int = 11_008,
        vocab: int = 32_000,
        sequence: int = 2048,
        attention: str = "fused",
    ) -> None:
        super().__init__()
        kv_heads = kv_heads or heads
        if width % (2 * heads) or heads % kv_heads:
            raise ValueError(f"width {width} must divide by 2 x heads {heads}, and heads by kv_heads {kv_heads}")
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, ffn, attention) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocab, bias=False)
        if self.tied:
            self.head.weight = self.embedding.weight
        cos, sin = rotation(sequence, width // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self, width**-0.5 if self.tied else 0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        positions = num_positions(tokens_BT, len(self.cos))
        cos, sin = self.cos[:positions], self.sin[:positions]
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, cos, sin)
        return cast(Tensor, self.head(self.norm(x_BTD)))


class TiedLlama(Llama):
    """A Llama decoder with one matrix for its input and its output."""

    tied = True


@register(
    "small-llama",
    input_shape=(128,),
    input_dtype="int64",
    num_classes=256,
    paper="Touvron et al. 2023, arXiv:2302.13971, at a size for two cores; tied as in Press & Wolf 2017, arXiv:1608.05859",
    # 256 * 128 + 4 * (4 * 128**2 + 3 * 128 * 384 + 2 * 128) + 128
    params=885_888,
)
def small_llama(
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    ffn: int | None = None,
    vocab: int = 256,
    sequence: int = 128,
    attention: str = "fused",
) -> TiedLlama:
    """Return a Llama decoder of bytes that learns on a laptop; `ffn` is three times the width unless it is given.

    Its initial weights deviate by 1 / √width: with the 0.02 of wider networks the first hundreds of steps learn little.
    """
    return TiedLlama(
        layers=layers,
        width=width,
        heads=heads,
        ffn=ffn or 3 * width,
        vocab=vocab,
        sequence=sequence,
        attention=attention,
    )


def num_positions(tokens_BT: Tensor, most: int) -> int:
    length = tokens_BT.shape[1]
    if length > most:
        raise ValueError(f"the input has {length} positions, the network has {most} (option sequence)")
    return length


def initialise(network: nn.Module, deviation: float = 0.02) -> None:
    """Draw normal weights and set biases to zero; the standard deviation is that of GPT-2 unless it is given."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, attention: str = "fused") -> None:
        super().__init__()
        self.heads, self.dropout, self.attention = heads, dropout, check_attention(attention)
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        heads_BHTE = self.query_key_value(self.attention_norm(x_BTD)).unflatten(2, (3, self.heads, -1))
        q, k, v = heads_BHTE.permute(2, 0, 3, 1, 4)
        y = causal_attention(q, k, v, self.attention, drop)
        x_BTD = x_BTD + F.dropout(self.out(y.transpose(1, 2).flatten(2)), drop)
        h = self.down(F.gelu(self.up(self.ffn_norm(x_BTD)), approximate="tanh"))
        return x_BTD + F.dropout(h, drop)


@register(
    "gpt2-small",
    input_shape=(1024,),
    input_dtype="int64",
    num_classes=50_257,
    paper="Radford et al. 2019",
    # (50,257 + 1024) * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768; the output matrix is tied
    params=124_439_808,
)
class GPT2(nn.Module):
    """A GPT-2 decoder from tokens (B, T) to scores (B, T, vocab); the output matrix is the embedding."""

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        vocab: int = 50_257,
        sequence: int = 1024,
        dropout: float = 0.1,
        attention: str = "fused",
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(sequence, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(GPT2Block(width, heads, dropout, attention) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        initialise(self)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = num_positions(tokens_BT, self.positions.num_embeddings)
        positions = torch.arange(length, device=tokens_BT.device)
        x_BTD = self.drop(self.tokens(tokens_BT) + self.positions(positions))
        return cast(Tensor, self.head(self.norm(self.blocks(x_BTD))))
