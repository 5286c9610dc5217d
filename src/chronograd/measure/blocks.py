"""The blocks that `calibrate` runs: small networks that between them use every class of operator.

Widths, resolutions and batches are spread over what real networks use, from CIFAR ResNets to vision
transformers, so that what is learned from blocks holds for networks that were never run. A block's work comes
from the same tracer as a network's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Block:
    """A module to build, its input per sample, and the batch on a CPU; a GPU takes several times that."""

    name: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    batch: int


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        out: torch.Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return out


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + y


class _Residual(nn.Module):
    """Two convolutions with batch norm and an addition, as in a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.n, self.m = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.m(self.b(F.relu(self.n(self.a(x))))))


class _Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.up(F.silu(self.down(x.mean((2, 3), keepdim=True))))
        return x * gate.sigmoid()


class _Concatenate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.relu(x)], 1).transpose(1, 2).contiguous()


class _Scores(nn.Module):
    """Batched products and a softmax, written out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


def _conv(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
        )

    return make


def _repeat(make: Callable[[], nn.Module], times: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for _ in range(times)))


def blocks() -> list[Block]:
    """Every block, in a fixed order."""
    found = []
    for c, size, batch in ((16, 32, 16), (16, 8, 64), (32, 4, 64), (64, 8, 32), (64, 56, 1), (64, 2, 32)):
        found.append(Block(f"residual-{c}-{size}", partial(_Residual, c), (c, size, size), batch))
    for cin, cout, size, batch, stride in (
        (1, 16, 8, 64, 1), (3, 32, 64, 4, 2), (64, 128, 28, 2, 2), (128, 128, 14, 8, 1), (256, 256, 14, 2, 1), (512, 512, 7, 2, 1),
    ):  # fmt: skip
        found.append(Block(f"conv3x3-{cin}-{cout}-{size}", _conv(cin, cout, 3, stride), (cin, size, size), batch))
    for cin, cout, size, batch in (
        (64, 256, 28, 2),
        (256, 64, 28, 2),
        (32, 16, 16, 32),
        (512, 1024, 7, 4),
        (16, 96, 32, 8),
        (960, 160, 7, 8),
    ):
        found.append(Block(f"conv1x1-{cin}-{cout}-{size}", _conv(cin, cout, 1), (cin, size, size), batch))
    for cin, cout, size, batch, kernel, stride in ((3, 64, 112, 1, 7, 2), (64, 64, 14, 4, 5, 1), (3, 96, 112, 1, 4, 4)):
        found.append(
            Block(f"conv{kernel}x{kernel}-{cin}-{size}", _conv(cin, cout, kernel, stride), (cin, size, size), batch)
        )
    for c, size, batch, kernel in ((96, 28, 4, 3), (32, 56, 4, 3), (384, 14, 4, 3), (192, 14, 4, 7), (480, 7, 8, 5)):
        make = _conv(c, c, kernel, groups=c)
        found.append(Block(f"depthwise{kernel}-{c}-{size}", make, (c, size, size), batch))
    for c, size, groups, batch in ((128, 28, 32, 2), (256, 14, 8, 4)):
        found.append(Block(f"grouped-{c}-{groups}", _conv(c, c, 3, groups=groups), (c, size, size), batch))
    for width, tokens, heads, batch in ((192, 64, 3, 4), (384, 196, 6, 1), (64, 16, 4, 32)):
        found.append(Block(f"attention-{width}-{tokens}", partial(_Attention, width, heads), (tokens, width), batch))
        found.append(Block(f"mlp-{width}-{tokens}", partial(_Mlp, width), (tokens, width), batch))
    for cin, cout, batch in ((512, 512, 64), (2048, 1000, 8), (64, 10, 64), (9216, 1024, 4)):
        found.append(Block(f"linear-{cin}-{cout}", partial(nn.Linear, cin, cout), (cin,), batch))
    for c, size, batch in ((64, 28, 8), (16, 8, 64), (256, 14, 16)):
        found.append(Block(f"norm-{c}-{size}", _repeat(partial(nn.BatchNorm2d, c), 4), (c, size, size), batch))
        found.append(Block(f"relu-{c}-{size}", _repeat(nn.ReLU, 8), (c, size, size), batch))
    found += [
        Block("silu", _repeat(nn.SiLU, 4), (64, 28, 28), 4),
        Block("hardswish", _repeat(nn.Hardswish, 4), (64, 28, 28), 4),
        Block("gelu", _repeat(nn.GELU, 4), (196, 384), 4),
        Block("layer-norm", _repeat(lambda: nn.LayerNorm(384), 4), (196, 384), 4),
        Block("group-norm", lambda: nn.GroupNorm(8, 64), (64, 28, 28), 8),
        Block("gate", lambda: _Gate(96), (96, 28, 28), 4),
        Block("max-pool", lambda: nn.MaxPool2d(3, 2, 1), (64, 56, 56), 2),
        Block("average-pool", lambda: nn.AvgPool2d(2), (64, 56, 56), 4),
        Block("global-pool", lambda: nn.AdaptiveAvgPool2d(1), (512, 14, 14), 8),
        Block("concatenate", _Concatenate, (64, 28, 28), 4),
        Block("scores", _Scores, (196, 64), 6),
        Block("tiny", _repeat(nn.ReLU, 40), (8,), 1),
    ]
    return found
