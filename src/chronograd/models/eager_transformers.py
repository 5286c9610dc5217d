"""BERT, GPT-2, OPT and Switch as common PyTorch code ran them before fused attention, with one operator per step.

Scores, scale, mask, softmax, dropout and the sum over values are separate operators, so they spend time on memory traffic that
fused attention avoids. Weights and shapes are those of the papers. With the option `attention: fused` BERT, GPT-2 and OPT
attend by `scaled_dot_product_attention` instead, as the same code does today.

Devlin et al., "BERT", 2019, arXiv:1810.04805. Radford et al., "Language models are unsupervised multitask learners",
2019. Zhang et al., "OPT", 2022, arXiv:2205.01068. Fedus et al., "Switch Transformers", 2022, arXiv:2101.03961.

Shapes: B batch, T positions, D width, H heads, E = width of a head, S positions attended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd.models.registry import register
from chronograd.models.transformer import check_attention, num_positions


def gelu_by_tanh(x: Tensor) -> Tensor:
    """Return GELU's approximation in elementary operators, as in GPT-2's code."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Attention(nn.Module):
    """Attention in eager steps. `keys` are the sequence itself, or another one (cross attention).

    Args:
        inner: heads × head width; by default the width of the network.
        scale: `query` scales the queries, `scores` the scores, `none` neither. OPT scales queries, and keeps masked
            scores from falling below the smallest finite number.
        is_joined: queries, keys and values come from one product, as in GPT-2.
        is_fused: scores, mask, softmax and the sum over values are one operator.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        *,
        inner: int = 0,
        bias: bool = True,
        scale: str = "scores",
        is_joined: bool = False,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        self.is_fused = is_fused
        inner = inner or width
        self.heads, self.dropout, self.scale, self.size = heads, dropout, scale, inner // heads
        self.is_joined = is_joined
        if is_joined:
            self.query_key_value = nn.Linear(width, 3 * inner, bias=bias)
        else:
            self.query = nn.Linear(width, inner, bias=bias)
            self.key = nn.Linear(width, inner, bias=bias)
            self.value = nn.Linear(width, inner, bias=bias)
        self.out = nn.Linear(inner, width, bias=bias)

    def forward(self, x_BTD: Tensor, mask: Tensor | None, keys_BSD: Tensor | None = None) -> Tensor:
        source = x_BTD if keys_BSD is None else keys_BSD
        if self.is_joined:
            q_BTD, k_BSD, v_BSD = self.query_key_value(x_BTD).chunk(3, dim=-1)
        else:
            q_BTD, k_BSD, v_BSD = self.query(x_BTD), self.key(source), self.value(source)
        if self.scale == "query":
            q_BTD = q_BTD * self.size**-0.5
        q, k, v = (t.view(*t.shape[:2], self.heads, self.size).transpose(1, 2) for t in (q_BTD, k_BSD, v_BSD))
        if self.is_fused:
            drop, scale = (self.dropout if self.training else 0.0), (None if self.scale == "scores" else 1.0)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop, scale=scale)
            return cast(Tensor, self.out(y.transpose(1, 2).flatten(2)))
        scores_BHTS = torch.matmul(q, k.transpose(2, 3))
        if self.scale == "scores":
            scores_BHTS = scores_BHTS / math.sqrt(self.size)
        if mask is not None:
            scores_BHTS = scores_BHTS + mask
        if self.scale == "query":
            scores_BHTS = scores_BHTS.clamp_min(torch.finfo(scores_BHTS.dtype).min)
        weights = F.dropout(F.softmax(scores_BHTS, dim=-1), self.dropout, self.training)
        return cast(Tensor, self.out(torch.matmul(weights, v).transpose(1, 2).flatten(2)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"bert": F.gelu, "gpt2": gelu_by_tanh, "opt": F.relu}


class Perceptron(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, inner: int, activation: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(self.activation(self.up(x))))


class EncoderBlock(nn.Module):
    """Attention, then a perceptron, each with a residual connection; norms before (GPT-2, OPT) or after (BERT)."""

    def __init__(self, kind: str, width: int, heads: int, ffn: int, dropout: float, is_fused: bool = False) -> None:
        super().__init__()
        is_opt = kind == "opt"
        self.is_pre = kind != "bert"
        self.attention = Attention(
            width,
            heads,
            0.0 if is_opt else dropout,
            scale="query" if is_opt else "scores",
            is_joined=kind == "gpt2",
            is_fused=is_fused,
        )
        self.perceptron = Perceptron(width, ffn, ACTIVATIONS[kind])
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, mask: Tensor | None) -> Tensor:
        if self.is_pre:
            x_BTD = x_BTD + self.drop(self.attention(self.attention_norm(x_BTD), mask))
            return cast(Tensor, x_BTD + self.drop(self.perceptron(self.norm(x_BTD))))
        x_BTD = self.attention_norm(x_BTD + self.drop(self.attention(x_BTD, mask)))
        return cast(Tensor, self.norm(x_BTD + self.drop(self.perceptron(x_BTD))))


@dataclass(eq=False, repr=False)
class Transformer(nn.Module):
    """BERT, or a decoder like GPT-2's or OPT's: tokens (B, T) to scores (B, T, vocab).

    The output matrix is the embedding. With `classes`, BERT scores the whole sequence instead, (B, classes). The fields are the
    options of the network.
    """

    kind: str
    _: KW_ONLY
    layers: int
    width: int
    heads: int
    ffn: int = 0
    vocab: int
    sequence: int
    dropout: float = 0.1
    classes: int = 0
    attention: str = "eager"

    def __post_init__(self) -> None:
        super().__init__()
        kind, width, dropout = self.kind, self.width, self.dropout
        is_fused = check_attention(self.attention) == "fused"
        ffn = self.ffn or 4 * width
        blocks = [EncoderBlock(kind, width, self.heads, ffn, dropout, is_fused) for _ in range(self.layers)]
        self.tokens = nn.Embedding(self.vocab, width)
        # OPT's positions start at 2.
        self.positions = nn.Embedding(self.sequence + (2 if kind == "opt" else 0), width)
        self.drop = nn.Dropout(0.0 if kind == "opt" else dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        if kind == "bert":
            self.types = nn.Embedding(2, width)
        if self.classes:
            self.pooled = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, self.classes))
            return
        if kind == "bert":
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, self.vocab, bias=kind == "bert")
        self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        batch, length = tokens_BT.shape[0], num_positions(tokens_BT, self.positions.num_embeddings)
        places = torch.arange(length, device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(places)
        if self.kind == "bert":
            x_BTD = self.norm(x_BTD + self.types(torch.zeros_like(tokens_BT)))
        x_BTD = self.drop(x_BTD)
        # BERT masks padding per sequence, decoders per position; OPT creates one mask for each sequence.
        shape = {"bert": (batch, 1, 1, length), "opt": (batch, 1, length, length)}.get(
            self.kind, (1, 1, length, length)
        )
        mask = torch.zeros(shape, device=x_BTD.device)
        for block in self.blocks:
            x_BTD = block(x_BTD, mask)
        if self.classes:
            return cast(Tensor, self.pooled(x_BTD[:, 0]))
        return cast(Tensor, self.head(self.transform(x_BTD) if self.kind == "bert" else self.norm(x_BTD)))


tokens = partial(register, input_dtype="int64")
tokens(
    "bert-large",
    input_shape=(512,),
    num_classes=30_522,
    paper="Devlin et al. 2019, arXiv:1810.04805",
    # (30,522 + 512 + 2) * 1024 + 2048 + 24 * (12 * 1024**2 + 13 * 1024) + 1024**2 + 3 * 1024 + 30,522
    params=335_174_458,
)(partial(Transformer, "bert", layers=24, width=1024, heads=16, ffn=4096, vocab=30_522, sequence=512))
tokens(
    "gpt2-large-eager",
    input_shape=(1024,),
    num_classes=50_257,
    paper="Radford et al. 2019",
    # (50,257 + 1024) * 1280 + 36 * (12 * 1280**2 + 13 * 1280) + 2 * 1280
    params=774_030_080,
)(partial(Transformer, "gpt2", layers=36, width=1280, heads=20, vocab=50_257, sequence=1024))
tokens(
    "opt-1.3b",
    input_shape=(2048,),
    num_classes=50_272,
    paper="Zhang et al. 2022, arXiv:2205.01068, table 1",
    # (50,272 + 2050) * 2048 + 24 * (12 * 2048**2 + 13 * 2048) + 2 * 2048
    params=1_315_758_080,
)(partial(Transformer, "opt", layers=24, width=2048, heads=32, ffn=8192, vocab=50_272, sequence=2048))


class RootMeanSquareNorm(nn.Module):
    """Root mean square norm in elementary operators, as in T5's code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Experts(nn.Module):
    """A router and its experts, each taking at most `capacity` tokens of a sequence (B, T, D).

    The choice of tokens depends on values, which a trace lacks. So each expert here takes the next tokens in order, as many as
    its capacity allows. The remaining tokens pass unchanged.
    """

    def __init__(self, width: int, ffn: int, num_experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(Perceptron(width, ffn, F.relu, bias=False) for _ in range(num_experts))

    def forward(self, x_BTD: Tensor) -> Tensor:
        chances = F.softmax(self.router(x_BTD), dim=-1)
        best_BT1 = chances.amax(dim=-1, keepdim=True)
        each = min(self.capacity, x_BTD.shape[1] // len(self.experts))
        taken = each * len(self.experts)
        parts = torch.split(x_BTD[:, :taken], each, dim=1)
        # The original gathers and scatters through an index; here a copy moves the same number of bytes.
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        result = torch.cat([*outputs, x_BTD[:, taken:]], dim=1)
        return best_BT1 * result


class SwitchBlock(nn.Module):
    """Attention, cross attention in the decoder, and a perceptron or experts; each after a norm, with a residual connection."""

    def __init__(self, width: int, heads: int, inner: int, feed: nn.Module, dropout: float, is_decoder: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, inner=inner, bias=False, scale="none")
        self.cross = Attention(width, heads, dropout, inner=inner, bias=False, scale="none") if is_decoder else None
        self.feed = feed
        self.norms = nn.ModuleList(RootMeanSquareNorm(width) for _ in range(3 if is_decoder else 2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, bias: Tensor, encoded: Tensor | None, mask: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.drop(self.attention(self.norms[0](x_BTD), bias))
        if self.cross is not None:
            x_BTD = x_BTD + self.drop(self.cross(self.norms[1](x_BTD), mask, encoded))
        return cast(Tensor, x_BTD + self.drop(self.feed(self.norms[-1](x_BTD))))


@tokens(
    "switch-xl-4",
    input_shape=(512,),
    num_classes=32_128,
    paper="Fedus et al. 2022, arXiv:2101.03961",
    # 2 * 32,128 * 1024 + 3 * 24 * 4 * 1024 * 4096 + 2 * (12 + 12 * 4) * 2 * 1024 * 16,384 + 24 * 4 * 1024
    # + (2 * 24 + 3 * 24 + 2) * 1024 + 2 * 32 * 32
    params=5_300_514_816,
)
@dataclass(eq=False, repr=False, kw_only=True)
class Switch(nn.Module):
    """Encoder and decoder in T5's XL shape, with four experts in every second block.

    Both read the same tokens (B, T) and have `layers` blocks each; the output is scores (B, T, vocab). The fields are the
    options of the network.
    """

    layers: int = 24
    width: int = 1024
    heads: int = 32
    head_size: int = 128
    ffn: int = 16_384
    num_experts: int = 4
    capacity: int = 64
    vocab: int = 32_128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__init__()
        width, heads, dropout = self.width, self.heads, self.dropout

        def feed(i: int) -> nn.Module:
            if i % 2:
                return Experts(width, self.ffn, self.num_experts, self.capacity)
            return Perceptron(width, self.ffn, F.relu, bias=False)

        def blocks(is_decoder: bool) -> nn.ModuleList:
            inner = heads * self.head_size
            return nn.ModuleList(
                SwitchBlock(width, heads, inner, feed(i), dropout, is_decoder) for i in range(self.layers)
            )

        self.tokens = nn.Embedding(self.vocab, width)
        self.encoder, self.decoder = blocks(False), blocks(True)
        # Bias of scores by distance: 32 buckets, learned in the first block of each side and shared by the others.
        self.distances = nn.ModuleList(nn.Embedding(32, heads) for _ in range(2))
        self.norms = nn.ModuleList(RootMeanSquareNorm(width) for _ in range(2))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, self.vocab, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        buckets = torch.zeros(length, length, dtype=torch.int64, device=tokens_BT.device)
        encoded: Tensor | None = None
        for side, (blocks, norm, distance) in enumerate(
            zip((self.encoder, self.decoder), self.norms, self.distances, strict=True)
        ):
            x_BTD = self.drop(self.tokens(tokens_BT))
            mask = torch.zeros(tokens_BT.shape[0], 1, length if side else 1, length, device=x_BTD.device)
            bias_BHTS = distance(buckets).permute(2, 0, 1)[None] + mask
            for block in blocks:
                x_BTD = block(x_BTD, bias_BHTS, encoded, mask[:, :, :1])
            encoded = self.drop(norm(x_BTD))
        return cast(Tensor, self.head(encoded))
