"""MACs of the backward pass against formulas by hand: the cost of each gradient, and unneeded gradients."""

from __future__ import annotations

import itertools

import pytest
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chronograd.count.network import trace_network
from chronograd.count.tracing import trace

WIDTHS = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def test_three_convolutions_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 4, 1))
    first, second, third = 8 * 14 * 14 * 27, 8 * 6 * 6 * 72, 4 * 6 * 6 * 8
    traced = trace(model, [(3, 16, 16)])
    assert traced.macs() == first + second + third
    # The image needs no gradient, so the first layer computes only the weight gradient.
    assert traced.macs(1, "backward") == first + 2 * second + 2 * third
    assert traced.flops(1) == 2 * (2 * first + 3 * second + 3 * third)


@settings(max_examples=25, deadline=None)
@given(WIDTHS, st.integers(1, 5), st.booleans())
def test_stacks_of_convolutions(widths: list[int], kernel: int, input_grad: bool) -> None:
    side, model, macs = 24, nn.Sequential(), []
    for a, b in itertools.pairwise(widths):
        model.append(nn.Conv2d(a, b, kernel))
        side -= kernel - 1
        macs.append(b * side * side * a * kernel * kernel)
    traced = trace(model, [(widths[0], 24, 24)], inputs_require_grad=input_grad)
    assert traced.macs() == sum(macs)
    assert traced.macs(1, "backward") == 2 * sum(macs) - (0 if input_grad else macs[0])


@settings(max_examples=25, deadline=None)
@given(WIDTHS, st.integers(1, 7), st.booleans())
def test_stacks_of_linear_layers(widths: list[int], batch: int, bias: bool) -> None:
    model = nn.Sequential(*(nn.Linear(a, b, bias) for a, b in itertools.pairwise(widths)))
    macs = [batch * a * b for a, b in itertools.pairwise(widths)]
    traced = trace(model, [(widths[0],)])
    assert traced.macs(batch) == sum(macs)
    assert traced.macs(batch, "backward") == 2 * sum(macs) - macs[0]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.booleans())
def test_attention(heads: int, queries: int, keys: int, size: int, causal: bool) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    shapes = [(heads, queries, size), (heads, keys, size), (heads, keys, size)]
    traced = trace(Attention(), shapes, inputs_require_grad=True, loss="sum")
    forward = heads * queries * keys * 2 * size
    # dV = Pᵀ dO, dP = dO Vᵀ, dQ = dS K, dK = dSᵀ Q
    assert (traced.macs(), traced.macs(1, "backward")) == (forward, 2 * forward)


@pytest.mark.parametrize(
    ("network", "first"),
    [
        ("vgg19", 86_704_128),  # 64 × 224² × 27
        ("alexnet", 105_415_200),
        ("torchvision:resnet50", 118_013_952),  # 64 × 112² × 147
        ("torchvision:efficientnet_b0", 10_838_016),  # 32 × 112² × 27
        ("torchvision:vit_b_16", 115_605_504),  # 768 × 14² × 768
        ("small-cnn", 777_600),
    ],
)
def test_whole_networks_skip_one_gradient(network: str, first: int) -> None:
    """Twice the forward pass, minus the data gradient of the first layer."""
    traced = trace_network(network)
    assert traced.macs(1, "backward") == 2 * traced.macs() - first
