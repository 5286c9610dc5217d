"""The blocks that `calibrate` runs: small networks that together use every class of operator.

Widths, resolutions and batches cover the range of real networks, from CIFAR ResNets to vision transformers, so that a fit to
blocks also holds for other networks. A block's work comes from the same tracer as a network's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

# The block that has hardly any data: all its time is the cost of launches and of a pass.
TINY = "tiny"
# Blocks of several kinds that a single rank repeats, to see what the others cost it.
TIMED_ALONE = ("residual-16-8", "small-basic-16-8-32", "small-basic-48-14-32", "basic-256-14-4", "small-inverted-24-14-16", "inverted-32-192-28-8",
               "encoder-384-49", "norm-64-28")  # fmt: skip


@dataclass(frozen=True)
class TimedBlock:
    """A module to build, its input per sample, and its batch on a CPU; a GPU uses several times that."""

    name: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    batch: int


def _conv_norm(
    cin: int, cout: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> list[nn.Module]:
    """Return a convolution, batch norm and an activation (none for None)."""
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout), *([act()] if act else [])]


class _Skip(nn.Module):
    """A residual connection: input plus the output of some layers, then an activation."""

    def __init__(self, *layers: nn.Module, act: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.layers, self.act = nn.Sequential(*layers), act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(x + self.layers(x))
        return out


class _AppendChannels(nn.Module):
    """A concatenation of the input and the output of some layers, along channels."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.layers(x)], 1)


class _AttentionBlock(nn.Module):
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
    """Attention scores written out: batched products and a softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


class _Words(nn.Module):
    """Rows of an embedding at places drawn from the input, each scaled by its number."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.table = words, nn.Embedding(words, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x.detach().sigmoid() * (self.words - 1)).long()
        scaled: torch.Tensor = self.table(places) * x.unsqueeze(-1)
        return scaled


class _ChannelsLast(nn.Module):
    """A perceptron over the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp = _mlp(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class _Branches(nn.Module):
    """Convolutions of two sizes side by side, as in an inception module or a fire module."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, inner, 1)
        self.small = nn.Conv2d(inner, channels // 2, 1)
        self.large = nn.Conv2d(inner, channels // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(y)), F.relu(self.large(y))], 1)


class _Shuffle(nn.Module):
    """A unit of a ShuffleNet: half of the channels bypass the layers, then all are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        depthwise = _conv_norm(half, half, 3, groups=half, act=None)
        self.layers = nn.Sequential(*_conv_norm(half, half), *depthwise, *_conv_norm(half, half))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        n, c, h, w = x.shape
        return torch.cat([a, self.layers(b)], 1).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def _mlp(width: int) -> nn.Module:
    return _Skip(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _residual(channels: int) -> nn.Module:
    """Return a basic block as in a ResNet."""
    return _Skip(*_conv_norm(channels, channels, 3), *_conv_norm(channels, channels, 3, act=None), act=nn.ReLU)


def _bottleneck(channels: int) -> nn.Module:
    inner = channels // 4
    between = _conv_norm(inner, inner, 3)
    return _Skip(*_conv_norm(channels, inner), *between, *_conv_norm(inner, channels, act=None), act=nn.ReLU)


def _inverted(channels: int, inner: int, kernel: int, has_gate: bool, act: type[nn.Module]) -> nn.Module:
    """Return expansion, depthwise convolution, squeeze and excitation, projection, as in mobile networks."""
    depthwise = _conv_norm(inner, inner, kernel, groups=inner, act=act)
    gate = [_Gate(inner)] if has_gate else []
    return _Skip(*_conv_norm(channels, inner, act=act), *depthwise, *gate, *_conv_norm(inner, channels, act=None))


def _wide(channels: int) -> nn.Module:
    """Return a depthwise 7 × 7 convolution and a perceptron with channels last, as in a ConvNeXt."""
    return _Skip(nn.Conv2d(channels, channels, 7, padding=3, groups=channels), _ChannelsLast(channels))


def _dense(channels: int, growth: int) -> nn.Module:
    """Return layers that concatenate new channels to their input, as in a DenseNet."""
    grown = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)
    return _AppendChannels(nn.BatchNorm2d(channels), nn.ReLU(), *_conv_norm(channels, 4 * growth), grown)


def _encoder(width: int, heads: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), _AttentionBlock(width, heads), _mlp(width))


def _stem(channels: int, kernel: int) -> nn.Module:
    return nn.Sequential(nn.Sequential(*_conv_norm(3, channels, kernel, 2)), nn.MaxPool2d(3, 2, 1))


def _repeat(make: Callable[[], nn.Module], times: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for _ in range(times)))


def many_layers() -> nn.Module:
    """Return a network with 120 small parameters, 40 layers as in a ResNet for small images."""
    return _repeat(_conv(32, 32, 3), 40)()


def _conv(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*_conv_norm(cin, cout, kernel, stride, groups))


def stages() -> list[TimedBlock]:
    """Return longer blocks: pieces of networks of every kind, two layers each.

    In these most operators find their input in a cache, and the cost of launching them shows.
    """
    timed = []
    for c, inner, size, batch, kernel, has_gate, activation in (
        (16, 64, 56, 2, 3, False, nn.ReLU), (24, 72, 56, 1, 3, False, nn.ReLU6), (40, 120, 28, 2, 5, True, nn.ReLU),
        (80, 240, 14, 2, 3, False, nn.Hardswish), (80, 480, 14, 8, 3, True, nn.SiLU), (112, 672, 14, 2, 5, True, nn.SiLU),
        (160, 960, 7, 2, 5, True, nn.Hardswish), (192, 1152, 7, 8, 5, True, nn.SiLU), (32, 192, 28, 8, 3, False, nn.ReLU6),
    ):  # fmt: skip
        make = partial(_inverted, c, inner, kernel, has_gate, activation)
        timed.append(TimedBlock(f"inverted-{c}-{inner}-{size}-{batch}", _repeat(make, 2), (c, size, size), batch))
    for c, size, batch in ((256, 56, 1), (512, 28, 2), (1024, 14, 2), (1024, 14, 8), (2048, 7, 4)):
        timed.append(
            TimedBlock(f"bottleneck-{c}-{size}-{batch}", _repeat(partial(_bottleneck, c), 2), (c, size, size), batch)
        )
    for c, size, batch in ((64, 56, 2), (128, 28, 2), (256, 14, 4), (512, 7, 2)):
        timed.append(TimedBlock(f"basic-{c}-{size}-{batch}", _repeat(partial(_residual, c), 2), (c, size, size), batch))
    for width, tokens, heads, batch in ((192, 197, 3, 2), (384, 49, 6, 4), (384, 197, 6, 1), (64, 400, 2, 2)):
        timed.append(
            TimedBlock(f"encoder-{width}-{tokens}", _repeat(partial(_encoder, width, heads), 2), (tokens, width), batch)
        )
    for c, size, batch in ((96, 56, 1), (192, 28, 2), (384, 14, 2)):
        timed.append(TimedBlock(f"wide-{c}-{size}", _repeat(partial(_wide, c), 2), (c, size, size), batch))
    for c, size, batch in ((128, 56, 1), (256, 28, 2), (640, 7, 4)):
        timed.append(TimedBlock(f"dense-{c}-{size}", partial(_dense, c, 32), (c, size, size), batch))
    for c, inner, size, batch in ((128, 32, 28, 2), (256, 64, 14, 4), (128, 16, 55, 2)):
        timed.append(
            TimedBlock(f"branches-{c}-{size}", _repeat(partial(_Branches, c, inner), 2), (c, size, size), batch)
        )
    for c, size, batch in ((116, 28, 2), (232, 14, 4), (464, 7, 2)):
        timed.append(TimedBlock(f"shuffle-{c}-{size}", _repeat(partial(_Shuffle, c), 2), (c, size, size), batch))
    for channels, kernel, batch in ((64, 7, 1), (32, 3, 4)):
        timed.append(TimedBlock(f"stem-{channels}-{kernel}", partial(_stem, channels, kernel), (3, 224, 224), batch))
    return timed


def small_images() -> list[TimedBlock]:
    """Return pieces of networks for images of at most 28 pixels, from one image to a batch.

    Here launches dominate the time of a layer, and a batch stays in the cache from layer to layer. A single layer reads its
    input from memory and shows neither effect.
    """
    timed = []
    for c, size, batch in (
        (24, 28, 1), (24, 28, 8), (24, 28, 48), (48, 14, 1), (48, 14, 32), (96, 7, 1), (96, 7, 32), (16, 8, 8), (16, 8, 32), (32, 4, 32),
        (64, 2, 16),
    ):  # fmt: skip
        make = _repeat(partial(_residual, c), 3)
        timed.append(TimedBlock(f"small-basic-{c}-{size}-{batch}", make, (c, size, size), batch))
    for c, size, batch, kernel, has_gate, activation in (
        (24, 14, 1, 3, False, nn.ReLU), (24, 14, 16, 3, False, nn.ReLU), (40, 7, 1, 5, True, nn.Hardswish), (40, 7, 16, 5, True, nn.Hardswish),
        (80, 4, 2, 5, True, nn.Hardswish), (80, 4, 32, 5, True, nn.Hardswish), (112, 2, 16, 5, True, nn.Hardswish),
    ):  # fmt: skip
        make = _repeat(partial(_inverted, c, 4 * c, kernel, has_gate, activation), 2)
        timed.append(TimedBlock(f"small-inverted-{c}-{size}-{batch}", make, (c, size, size), batch))
    for batch in (1, 16):
        timed.append(TimedBlock(f"small-branches-{batch}", _repeat(partial(_Branches, 96, 24), 3), (96, 13, 13), batch))
    for batch in (1, 16, 96):
        timed.append(TimedBlock(f"small-digits-{batch}", _digits, (1, 28, 28), batch))
    return timed


def _digits() -> nn.Module:
    """Return convolutions without padding or norm, and linear layers, as in the networks of the nineties."""
    convolutions = (nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 20, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(320, 100), nn.ReLU(), nn.Linear(100, 10))


def blocks() -> list[TimedBlock]:
    """Return every block, in a fixed order: single layers first, then stages."""
    timed = []
    for c, size, batch in ((16, 32, 16), (16, 8, 64), (32, 4, 64), (64, 8, 32), (64, 56, 1), (64, 2, 32)):
        timed.append(TimedBlock(f"residual-{c}-{size}", partial(_residual, c), (c, size, size), batch))
    for cin, cout, size, batch, stride in (
        (1, 16, 8, 64, 1), (3, 32, 64, 4, 2), (64, 128, 28, 2, 2), (128, 128, 14, 8, 1), (256, 256, 14, 2, 1), (512, 512, 7, 2, 1),
    ):  # fmt: skip
        timed.append(TimedBlock(f"conv3x3-{cin}-{cout}-{size}", _conv(cin, cout, 3, stride), (cin, size, size), batch))
    for cin, cout, size, batch in (
        (64, 256, 28, 2), (256, 64, 28, 2), (32, 16, 16, 32), (512, 1024, 7, 4), (16, 96, 32, 8), (960, 160, 7, 8),
    ):  # fmt: skip
        timed.append(TimedBlock(f"conv1x1-{cin}-{cout}-{size}", _conv(cin, cout, 1), (cin, size, size), batch))
    for cin, cout, size, batch, kernel, stride in ((3, 64, 112, 1, 7, 2), (64, 64, 14, 4, 5, 1), (3, 96, 112, 1, 4, 4)):
        timed.append(
            TimedBlock(
                f"conv{kernel}x{kernel}-{cin}-{size}", _conv(cin, cout, kernel, stride), (cin, size, size), batch
            )
        )
    for c, size, batch, kernel in (
        (96, 28, 4, 3), (32, 56, 4, 3), (384, 14, 4, 3), (192, 14, 4, 7), (480, 7, 8, 5), (48, 56, 2, 5), (144, 28, 4, 5), (240, 14, 8, 5),
        (32, 80, 1, 7), (96, 56, 1, 7), (768, 7, 4, 7),
    ):  # fmt: skip
        timed.append(TimedBlock(f"depthwise{kernel}-{c}-{size}", _conv(c, c, kernel, 1, c), (c, size, size), batch))
    for c, size, groups, batch in ((128, 28, 32, 2), (256, 14, 8, 4)):
        timed.append(TimedBlock(f"grouped-{c}-{groups}", _conv(c, c, 3, 1, groups), (c, size, size), batch))
    for width, tokens, heads, batch in ((192, 64, 3, 4), (384, 196, 6, 1), (64, 16, 4, 32)):
        timed.append(
            TimedBlock(f"attention-{width}-{tokens}", partial(_AttentionBlock, width, heads), (tokens, width), batch)
        )
        timed.append(TimedBlock(f"mlp-{width}-{tokens}", partial(_mlp, width), (tokens, width), batch))
    for cin, cout, batch in ((512, 512, 64), (2048, 1000, 8), (64, 10, 64), (9216, 1024, 4)):
        timed.append(TimedBlock(f"linear-{cin}-{cout}", partial(nn.Linear, cin, cout), (cin,), batch))
    for c, size, batch in ((64, 28, 8), (16, 8, 64), (256, 14, 16)):
        timed.append(TimedBlock(f"norm-{c}-{size}", _repeat(partial(nn.BatchNorm2d, c), 4), (c, size, size), batch))
        timed.append(TimedBlock(f"relu-{c}-{size}", _repeat(nn.ReLU, 8), (c, size, size), batch))
    timed += [
        TimedBlock("silu", _repeat(nn.SiLU, 4), (64, 28, 28), 4),
        TimedBlock("hardswish", _repeat(nn.Hardswish, 4), (64, 28, 28), 4),
        TimedBlock("gelu", _repeat(nn.GELU, 4), (196, 384), 4),
        TimedBlock("layer-norm", _repeat(lambda: nn.LayerNorm(384), 4), (196, 384), 4),
        TimedBlock("group-norm", lambda: nn.GroupNorm(8, 64), (64, 28, 28), 8),
        TimedBlock("gate", lambda: _Gate(96), (96, 28, 28), 4),
        TimedBlock("max-pool", lambda: nn.MaxPool2d(3, 2, 1), (64, 56, 56), 2),
        TimedBlock("average-pool", lambda: nn.AvgPool2d(2), (64, 56, 56), 4),
        TimedBlock("global-pool", lambda: nn.AdaptiveAvgPool2d(1), (512, 14, 14), 8),
        TimedBlock("concatenate", _Concatenate, (64, 28, 28), 4),
        TimedBlock("scores", _Scores, (196, 64), 6),
        TimedBlock("words-2000-192", partial(_Words, 2000, 192), (128,), 8),
        TimedBlock("words-30000-64", partial(_Words, 30_000, 64), (64,), 32),
        TimedBlock(TINY, _repeat(nn.ReLU, 40), (8,), 1),
    ]
    return timed + other_convolutions() + stages() + small_images() + recurrent()


def other_convolutions() -> list[TimedBlock]:
    """Return convolutions of words and volumes, and transposed ones."""
    wide, up = partial(nn.Conv3d, kernel_size=3, padding=1), nn.ConvTranspose2d
    return [
        TimedBlock("conv3-of-words", partial(nn.Conv1d, 64, 96, 3), (64, 64), 16),
        TimedBlock("conv5-of-words", partial(nn.Conv1d, 128, 128, 5), (128, 48), 4),
        TimedBlock("conv3d-3-16", partial(wide, 3, 16), (3, 8, 32, 32), 4),
        TimedBlock("conv3d-24-48", partial(wide, 24, 48), (24, 8, 14, 14), 2),
        TimedBlock("conv3d-16-16", partial(wide, 16, 16), (16, 8, 28, 28), 1),
        TimedBlock("conv3d-48-96", partial(wide, 48, 96), (48, 4, 8, 8), 4),
        TimedBlock("transposed2-64-32", partial(up, 64, 32, 2, 2), (64, 14, 14), 8),
        TimedBlock("transposed4-96-48", partial(up, 96, 48, 4, 2, 1), (96, 14, 14), 4),
        TimedBlock("transposed4-32-3", partial(up, 32, 3, 4, 2, 1), (32, 32, 32), 8),
        TimedBlock("transposed3-128-64", partial(up, 128, 64, 3, 2, 1, 1), (128, 8, 8), 4),
    ]


def recurrent() -> list[TimedBlock]:
    """Return recurrent layers, from steps that are all overhead to steps that are all arithmetic."""
    return [
        TimedBlock(
            f"{kind.__name__.lower()}-{width}-{hidden}-{batch}",
            partial(_RecurrentLayer, kind, width, hidden, layers),
            (steps, width),
            batch,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for width, hidden, layers, steps, batch in ((16, 16, 1, 64, 1), (64, 128, 2, 32, 8), (256, 256, 1, 24, 32))
    ]


class _RecurrentLayer(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layer = kind(width, hidden, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)[0]
        return output
