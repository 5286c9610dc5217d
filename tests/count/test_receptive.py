"""Receptive fields: by formula, by branch, and against the extent of a real gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chronograd.count.layers import CountedLayer, layers
from chronograd.count.network import trace_network
from chronograd.count.receptive import _joined
from chronograd.count.tracing import trace
from chronograd.trace import Trace


class Call(nn.Module):
    """A network that calls a function of its modules."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)


def rows(model: nn.Module, shape: tuple[int, ...] = (3, 64, 64)) -> list[CountedLayer]:
    return layers(trace(model, [shape], loss="sum", mode="inference"))


def last(model: nn.Module, shape: tuple[int, ...] = (3, 64, 64)) -> tuple[Any, Any]:
    row = rows(model, shape)[-1]
    return row.receptive_field, row.stride


def conv(kernel: int = 3, **options: Any) -> nn.Module:
    return nn.Conv2d(3, 3, kernel, bias=False, **options)


# -- windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_stacked_filters(size: int, count: int) -> None:
    """N filters of F x F have a field of N(F - 1) + 1: 7 pixels for three 3x3, 13 for three 5x5 (VGG's paper)."""
    found = [row.receptive_field for row in rows(nn.Sequential(*(conv(size) for _ in range(count))))]
    assert found == [n * (size - 1) + 1 for n in range(1, count + 1)]


def seen_by_gradient(model: nn.Module, side: int) -> tuple[int, int]:
    """Return the largest extent (height, width) of the input pixels that one output pixel depends on."""
    model = model.double().train()
    for p in model.parameters():
        nn.init.ones_(p)
    x = torch.ones(1, 1, side, side, dtype=torch.float64, requires_grad=True)
    out = model(x)
    widest = [0, 0]
    for axis in (0, 1):
        # Along the middle, so the borders cut no window on both sides.
        middle = out.shape[3 - axis] // 2
        line = out[0, 0].select(1 - axis, middle)
        for i in range(len(line)):
            (grad,) = torch.autograd.grad(line[i], x, retain_graph=True)
            at = grad[0, 0].sum(1 - axis).nonzero()
            if len(at):
                widest[axis] = max(widest[axis], int(at.max() - at.min()) + 1)
    return widest[0], widest[1]


WINDOW = st.tuples(st.sampled_from([1, 2, 3, 5]), st.integers(1, 2), st.integers(1, 2))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WINDOW, WINDOW), min_size=1, max_size=3))
def test_windows_match_the_gradient(stack: list[tuple[tuple[int, int, int], ...]]) -> None:
    """Kernels, strides and dilations vary per axis."""
    parts = []
    for (kh, sh, dh), (kw, sw, dw) in stack:
        parts.append(nn.Conv2d(1, 1, (kh, kw), (sh, sw), dilation=(dh, dw), bias=False))
    model = nn.Sequential(*parts)
    row = layers(trace(model, [(1, 64, 64)], mode="inference"))[-1]
    field = row.receptive_field
    assert seen_by_gradient(model, 64) == (tuple(field) if isinstance(field, list) else (field, field))
    steps = [1, 1]
    for (_, sh, _), (_, sw, _) in stack:
        steps = [steps[0] * sh, steps[1] * sw]
    assert row.stride == (steps[0] if steps[0] == steps[1] else steps)


SIMPLE: dict[str, Callable[[], nn.Module]] = {
    "pooling": lambda: nn.Sequential(nn.Conv2d(1, 1, 3), nn.AvgPool2d(2), nn.Conv2d(1, 1, 3), nn.AvgPool2d(3, 2)),
    "transposed 4/2": lambda: nn.ConvTranspose2d(1, 1, 4, 2, 1),
    "transposed 2/2, conv": lambda: nn.Sequential(nn.ConvTranspose2d(1, 1, 2, 2), nn.Conv2d(1, 1, 2)),
    "transposed 5/3, dilated": lambda: nn.ConvTranspose2d(1, 1, 5, 3, dilation=2),
    "hourglass": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 3, 2, 1), nn.Conv2d(1, 1, 3, 2, 1), nn.ConvTranspose2d(1, 1, 4, 2, 1), nn.Conv2d(1, 1, 3)
    ),
    "nearest": lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(1, 1, 3)),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear by 3, conv": lambda: nn.Sequential(nn.Upsample(scale_factor=3, mode="bilinear"), nn.Conv2d(1, 1, 4)),
    "adaptive pooling, even": lambda: nn.AdaptiveAvgPool2d(8),
    "adaptive pooling, uneven": lambda: nn.AdaptiveAvgPool2d(5),
    "pixel shuffle": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Conv2d(1, 1, 3)),
    "space to depth": lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4, 1, 3)),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_other_windows_match_the_gradient(name: str) -> None:
    model = SIMPLE[name]()
    field = layers(trace(model, [(1, 24, 24)], mode="inference"))[-1].receptive_field
    assert (field, field) == seen_by_gradient(model, 24)


@pytest.mark.parametrize(
    ("model", "stride"),
    [
        (nn.ConvTranspose2d(3, 3, 4, 2, 1), 0.5),
        (nn.Sequential(conv(stride=2), nn.ConvTranspose2d(3, 3, 4, 2, 1)), 1),
        (nn.Upsample(scale_factor=4), 0.25),
        (nn.Sequential(conv(stride=2), nn.MaxPool2d(3, 2), conv(stride=2)), 8),
        (nn.AdaptiveAvgPool2d(16), 4),
    ],
)
def test_strides(model: nn.Module, stride: float) -> None:
    assert last(model)[1] == stride


def test_one_dimension_and_three() -> None:
    line = nn.Sequential(nn.Conv1d(2, 2, 5, dilation=3), nn.MaxPool1d(4), nn.Conv1d(2, 2, 3))
    assert last(line, (2, 64)) == (1 + 12 + 3 + 2 * 4, 4)
    cube = nn.Sequential(nn.Conv3d(2, 2, (3, 5, 5)), nn.Conv3d(2, 2, 3, stride=(1, 2, 2)))
    assert last(cube, (2, 16, 32, 32)) == ([5, 7, 7], [1, 2, 2])


def last_before_head(traced: Trace) -> tuple[Any, Any]:
    row = [r for r in layers(traced) if isinstance(r.receptive_field, int)][-1]
    return row.receptive_field, row.stride


# -- branches ---------------------------------------------------------------------------------------


def test_branches_have_the_largest_field() -> None:
    model = trace_network("inception-reduced")
    by_name = {row.name: row.receptive_field for row in layers(model)}
    assert [by_name[f"{n}.0" if n == "one" else f"{n}.1.0"] for n in ("one", "three", "five", "pool")] == [1, 3, 5, 3]
    assert by_name[""] == 5


def test_residual_blocks() -> None:
    """ResNet-20: 3x3 convolutions, 7 at stride 1, 6 at stride 2, 6 at stride 4."""
    found = layers(trace_network("resnet20"))
    last_block = next(r for r in found if r.name == "layer3.2.bn2")
    expected = 1 + 7 * 2 + (2 + 5 * 4) + (4 + 5 * 8)  # the first convolution of a stage still has the old stride
    assert (last_block.receptive_field, last_block.stride) == (expected, 4)
    shortcut = layers(trace(Call(lambda x, a, b: b(a(x)) + x, conv(padding=1), conv(5, padding=2)), [(3, 32, 32)]))
    assert shortcut[-1].receptive_field == 7


def test_published_fields() -> None:
    """Araujo, Norris & Sim 2019, "Computing receptive fields of convolutional neural networks": 195, 212, 483."""
    alexnet, vgg, resnet = (trace_network(name) for name in ("alexnet", "vgg16", "resnet50-v1"))
    assert last_before_head(alexnet) == (195, 32)
    assert last_before_head(vgg) == (212, 32)
    assert last_before_head(resnet) == (483, 32)
    # torchvision has a stage's stride in its first 3x3, one convolution later than version 1.
    # This one still has the stride before: 2 * ((8 - 4) + (16 - 8) + (32 - 16)) = 56 pixels less.
    assert last_before_head(trace_network("torchvision:resnet50")) == (427, 32)


# -- whole images -----------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = conv(), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 3, 1), nn.Sigmoid())
        self.after = conv()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.after(x * self.gate(x))
        return out


def flat_attention(x: Tensor, qkv: nn.Module) -> Tensor:
    q, k, v = qkv(x.flatten(2).transpose(1, 2)).chunk(3, -1)
    return F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))


def attention_by_hand(x: Tensor) -> Tensor:
    t = x.flatten(2)
    return t @ (t.transpose(1, 2) @ t).softmax(-1)


GLOBAL: dict[str, Callable[[], nn.Module]] = {
    "adaptive pooling to a pixel": lambda: nn.Sequential(conv(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 1)),
    "adaptive maximum": lambda: nn.Sequential(conv(), nn.AdaptiveMaxPool2d(1)),
    "mean over space": lambda: Call(lambda x: x.mean((2, 3))),
    "squeeze and excite": SqueezeExcite,
    "attention": lambda: Call(flat_attention, nn.Linear(3, 9)),
    "attention by hand": lambda: Call(attention_by_hand),
    "flatten and linear": lambda: nn.Sequential(conv(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 31 * 31, 4)),
    "linear over a row": lambda: nn.Linear(64, 5),
    "softmax over space": lambda: Call(lambda x: x.flatten(2).softmax(-1)),
    "Fourier transform": lambda: Call(lambda x: torch.fft.rfft2(x).abs()),
    "sampling by a learned grid": lambda: Call(lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh())),
}


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("name", GLOBAL)
def test_global_operators(name: str) -> None:
    assert last(GLOBAL[name]())[0] == "global"


def test_squeeze_excite_is_global_from_the_gate_on() -> None:
    by_name = {row.name: row.receptive_field for row in rows(SqueezeExcite())}
    assert (by_name["first"], by_name["gate.0"], by_name["after"]) == (3, "global", "global")


LOCAL: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "linear over channels": (
        lambda: Call(lambda x, a, b: b(a(x).permute(0, 2, 3, 1)), conv(5), nn.Linear(3, 7)),
        (5, 1),
    ),
    "and back": (
        lambda: Call(
            lambda x, a, b, c: c(b(a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), conv(5), nn.Linear(3, 3), conv()
        ),
        (7, 1),
    ),
    "linear over channels of tokens": (
        lambda: Call(lambda x, a, b: b(a(x).flatten(2).transpose(1, 2)), conv(4, stride=4), nn.Linear(3, 7)),
        (4, 4),
    ),
    "norm over channels": (
        lambda: Call(lambda x, a, b: b(a(x).permute(0, 2, 3, 1)), conv(5), nn.LayerNorm(3)),
        (5, 1),
    ),
    "batch norm": (lambda: nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU(), conv()), (5, 1)),
    "mean over channels": (lambda: Call(lambda x, a: a(x).mean(1, keepdim=True), conv()), (3, 1)),
    "softmax over channels": (lambda: Call(lambda x, a: a(x).softmax(1), conv()), (3, 1)),
    "channels side by side": (lambda: Call(lambda x, a, b: torch.cat([a(x), b(x)], 1), conv(1), conv(1)), (1, 1)),
    "padding": (lambda: Call(lambda x, a: a(F.pad(x, (1, 1, 1, 1))), conv()), (3, 1)),
    "every second row and column": (lambda: Call(lambda x, a: a(x[:, :, ::2, ::2]), conv()), (5, 2)),
    "gate of channels alone": (lambda: Call(lambda x, a: a(x) * torch.ones(3, 1, 1), conv()), (3, 1)),
    "channel shuffle": (
        lambda: Call(lambda x, a: a(x).unflatten(1, (3, 1)).transpose(1, 2).flatten(1, 2), conv()),
        (3, 1),
    ),
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_operators(name: str) -> None:
    build, expected = LOCAL[name]
    assert last(build()) == expected


@pytest.mark.parametrize(
    ("network", "first_linear"), [("torchvision:convnext_tiny", "features.1.0.block.3"), ("timm:convnext_atto", None)]
)
def test_linear_layers_of_convnext_keep_the_field(network: str, first_linear: str | None) -> None:
    """The field after a stem of 4x4/4 and a depthwise 7x7 is 4 + 6 * 4."""
    found = layers(trace_network(network))
    if first_linear is None:
        first_linear = next(r.name for r in found if r.kind in ("gemm", "conv_1x1"))
    row = next(r for r in found if r.name == first_linear)
    assert (row.receptive_field, row.stride) == (4 + 6 * 4, 4)


def test_no_receptive_field_without_an_image() -> None:
    options = {"layers": 1, "width": 8, "heads": 2, "vocab": 11, "sequence": 6}
    assert {r.receptive_field for r in layers(trace_network("gpt2-small", options))} == {None}
    assert {r.receptive_field for r in rows(nn.Linear(5, 3), (5,))} == {None}


def test_first_of_two_equal_dimensions_keeps_its_factors() -> None:
    axes = frozenset({1})
    first, second = ((4, axes), (2, axes)), ((8, axes),)
    assert _joined(first, second) == first
    assert _joined(second, first) == second
    assert _joined((), second) == second
