"""Known faults of other counters, each checked against a formula by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chronograd.count.answer import count
from chronograd.count.calls import Call
from chronograd.count.layers import layers, summary
from chronograd.count.tracing import trace
from chronograd.errors import TraceError
from chronograd.inputs import Input
from chronograd.trace import Trace

T, D, H = 10, 32, 4  # positions, width, heads
SCORES = 2 * T * T * D  # Q Kᵀ and P V of all heads together


def matrix_work(traced: Trace, phase: str) -> int:
    return traced.macs(1, phase)


# -- attention --------------------------------------------------------------------------------------


class MultiHead(nn.Module):
    """torch's own multi-head attention."""

    def __init__(self, need_weights: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, dropout=dropout, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=self.need_weights)[0]
        return out


class Fused(nn.Module):
    """The same network with `F.scaled_dot_product_attention`."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(D, 3 * D), nn.Linear(D, D), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Composed(Fused):
    """The same network from matrix products and a softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2) / math.sqrt(D // H)).softmax(-1) @ v
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "multi-head": lambda: MultiHead(need_weights=False),
    "multi-head with weights": lambda: MultiHead(need_weights=True),
    "multi-head with dropout": lambda: MultiHead(need_weights=False, dropout=0.1),
    "fused": Fused,
    "fused, causal": lambda: Fused(causal=True),
    "composed": Composed,
}


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_count_is_independent_of_the_api(name: str, mode: str) -> None:
    traced = trace(ATTENTION[name](), [(T, D)], mode=mode, inputs_require_grad=True)
    projections = 4 * T * D * D
    assert traced.params == 4 * D * D + 4 * D
    assert matrix_work(traced, "forward") == projections + SCORES
    if mode == "training":
        assert matrix_work(traced, "backward") == 2 * (projections + SCORES)
    one_operator = name.startswith("fused") or name in ("multi-head", "multi-head with dropout")
    assert len(traced.select("forward", ["attention"])) == int(one_operator)
    assert traced.uncounted() == {}


def test_encoder_layer_attention_in_evaluation_mode() -> None:
    """torch has a fast path here that hides all operators of the layer."""
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True)
    expected = 4 * T * D * D + SCORES + 2 * T * D * 2 * D
    for model in (layer, nn.TransformerEncoder(layer, 3)):
        count = 1 if model is layer else 3
        for mode in ("inference", "training"):
            assert trace(model, [(T, D)], mode=mode).macs() == count * expected
        with torch.no_grad():
            assert trace(model, [(T, D)], mode="inference").macs() == count * expected


@pytest.mark.parametrize("by_flag", [True, False])
def test_grouped_query_attention(by_flag: bool) -> None:
    """Two key and value heads for four query heads: smaller projections, equal scores."""
    kv_heads, size = 2, D // H

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(D, D, bias=False)
            self.kv = nn.Linear(D, 2 * kv_heads * size, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).unflatten(2, (H, size)).transpose(1, 2)
            k, v = self.kv(x).unflatten(2, (2, kv_heads, size)).permute(2, 0, 3, 1, 4)
            if not by_flag:
                k, v = (t.repeat_interleave(H // kv_heads, dim=1) for t in (k, v))
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=by_flag).transpose(1, 2).flatten(2)

    traced = trace(Grouped(), [(T, D)], inputs_require_grad=True)
    expected = T * D * D + T * D * 2 * kv_heads * size + SCORES
    assert (traced.macs(), traced.macs(1, "backward")) == (expected, 2 * expected)


def test_cross_attention_with_wider_values() -> None:
    class Cross(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    traced = trace(Cross(), [(3, 7, 8), (3, 11, 8), (3, 11, 20)], inputs_require_grad=True, loss="sum")
    expected = 3 * 7 * 11 * (8 + 20)
    assert (traced.macs(), traced.macs(1, "backward")) == (expected, 2 * expected)


def test_masked_attention_counts_as_dense() -> None:
    """A kernel may skip masked positions; the attributes of the operator state the convention."""
    (op,) = trace(Fused(causal=True), [(T, D)]).select("forward", ["attention"])
    assert op.macs.at(1) == SCORES
    assert op.attributes == {
        "heads": H,
        "head_dim": D // H,
        "queries": T,
        "keys": T,
        "causal": True,
        "masked": False,
        "dropout": 0.0,
    }


# -- convolutions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_backward_of_grouped_convolutions(groups: int) -> None:
    """Both gradients have the MACs of the forward pass: output elements × 8 / groups × 3 × 3."""
    model = nn.Conv2d(8, 16, 3, padding=1, groups=groups, bias=False)
    forward = 16 * 12 * 12 * (8 // groups) * 9
    traced = trace(model, [(8, 12, 12)], inputs_require_grad=True)
    assert (traced.macs(), traced.macs(1, "backward")) == (forward, 2 * forward)
    (op,) = traced.select(
        "forward", ["conv_3x3" if groups == 1 else "conv_depthwise" if groups == 8 else "conv_grouped"]
    )
    assert op.attributes["groups"] == groups


def test_backward_of_depthwise_convolutions_in_a_network() -> None:
    """torch's own registry overcounts this one; every layer here is exact."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 32, 5, padding=2, groups=32), nn.Conv2d(32, 64, 1), nn.ReLU()
    )
    first, depthwise, pointwise = 32 * 256 * 27, 32 * 256 * 25, 64 * 256 * 32
    rows = layers(trace(model, [(3, 32, 32)]))
    assert [r.macs for r in rows] == [first, depthwise, pointwise, 0]
    assert [r.macs_backward for r in rows] == [first, 2 * depthwise, 2 * pointwise, 0]


@pytest.mark.parametrize(
    ("model", "shape", "macs"),
    [
        (nn.Conv1d(4, 6, 5), (4, 20), 6 * 16 * 4 * 5),
        (nn.Conv3d(2, 3, (1, 3, 3)), (2, 4, 8, 8), 3 * 4 * 6 * 6 * 2 * 9),
        # Every input element is multiplied with every weight it meets.
        (nn.ConvTranspose2d(4, 6, 4, 2, 1), (4, 8, 8), 4 * 8 * 8 * 6 * 16),
        (nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), (4, 8, 8), 4 * 8 * 8 * 3 * 16),
        (nn.Conv2d(4, 6, 3, dilation=2), (4, 9, 9), 6 * 5 * 5 * 4 * 9),
        (nn.Conv2d(4, 6, 3, padding="same"), (4, 9, 9), 6 * 9 * 9 * 4 * 9),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 9, 9), 6 * 9 * 9 * 4 * 9),
    ],
)
def test_other_convolutions(model: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    traced = trace(model, [shape], inputs_require_grad=True, loss="sum")
    assert (traced.macs(), traced.macs(1, "backward")) == (macs, 2 * macs)
    assert traced.uncounted() == {}


# -- linear layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rest", [(), (7,), (5, 7)])
def test_linear_layers_count_once(rest: tuple[int, ...], bias: bool) -> None:
    rows = math.prod(rest)
    traced = trace(nn.Linear(8, 6, bias=bias), [(*rest, 8)], inputs_require_grad=True, loss="sum")
    assert (traced.macs(), traced.macs(1, "backward")) == (rows * 48, 2 * rows * 48)
    assert traced.params == 48 + 6 * bias
    assert len(traced.select("forward", ["gemm", "batched_gemm"])) == 1


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (lambda a, b: a @ b, [(3, 4), (4, 5)], 60),
        (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b), [(2, 3, 4), (2, 5, 4)], 2 * 3 * 5 * 4),
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(3, 4), (4, 5)], 60),
        (lambda a, b: torch.bmm(a, b), [(3, 4), (4, 5)], 60),
        (lambda a, b: torch.baddbmm(torch.zeros(1, 3, 5), a, b), [(3, 4), (4, 5)], 60),
        (lambda a, b: (a * b).sum(-1), [(6,), (6,)], 0),
    ],
)
def test_products(function: Callable[..., Tensor], shapes: list[tuple[int, ...]], macs: int) -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return function(a, b)

    traced = trace(Product(), shapes, inputs_require_grad=True, loss="sum")
    assert (traced.macs(), traced.macs(1, "backward")) == (macs, 2 * macs)


class Called(nn.Module):
    """A network that calls a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


def test_bilinear_layers_are_two_products() -> None:
    """Each of 7 outputs multiplies the first input with the weight, then with the second input: 7 × (5 × 6 + 6)."""
    traced = trace(nn.Bilinear(5, 6, 7), [(5,), (6,)], inputs_require_grad=True, loss="sum")
    assert (traced.params, traced.macs(), traced.macs(3)) == (217, 7 * 36, 3 * 7 * 36)
    assert traced.uncounted() == {}
    # Each of the three gradients needs a product with the weight, and a smaller one.
    assert 3 * 7 * 30 <= traced.macs(1, "backward") <= 3 * 7 * 30 + 2 * 7 * 30


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (lambda a, w: torch.tensordot(a, w, dims=1), [(8,), "=8x3x2"], 48),
        (lambda m, a, b: torch.addbmm(m, a, b), ["=3x5", (3, 4), (4, 5)], 60),
        (lambda m, a, b: torch.addmv(m, a, b), ["=3", "=3x4", "=4"], 12),
        (lambda m, a, b: torch.addr(m, a, b), ["=3x4", "=3", "=4"], 12),
        (lambda a, b: torch.dot(a, b), ["=6", "=6"], 6),
        (lambda a, b: torch.linalg.multi_dot([a, b, b]), ["=2x3", "=3x3"], 18 + 18),
        (lambda a: torch.matrix_power(a, 3), ["=4x4"], 2 * 64),
        (lambda a, b: torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist"), [(3, 4), (5, 4)], 3 * 5 * (4 + 2)),
        (lambda a, w: F.linear(F.unfold(a, 3).transpose(1, 2), w), [(2, 5, 5), "=7x18"], 9 * 7 * 18),
    ],
)  # fmt: skip
def test_aliases_of_matrix_products(function: Callable[..., Tensor], shapes: list[Any], macs: int) -> None:
    inputs = [Input.parse(one) if isinstance(one, str) else one for one in shapes]
    traced = trace(Called(function), inputs, inputs_require_grad=True, loss="sum")
    assert (traced.macs(), traced.uncounted()) == (macs, {})


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_product_is_four_real_products(dtype: torch.dtype) -> None:
    traced = trace(nn.Linear(16, 5, dtype=dtype), [(16,)], loss="sum", inputs_require_grad=True)
    assert traced.tensors[traced.inputs[0]].dtype == str(dtype)[6:]
    assert traced.macs() == 4 * 16 * 5
    conv = trace(nn.Conv1d(3, 4, 5, dtype=dtype), [(3, 9)], loss="sum")
    assert conv.macs() == 3 * (4 * 5 * 3 * 5)  # PyTorch runs three real convolutions
    assert "four" in summary(traced).convention
    assert "four" not in summary(trace(nn.Linear(2, 2), [(2,)])).convention


def test_distances_have_flops_without_macs() -> None:
    traced = trace(
        Called(lambda a, b: torch.cdist(a, b, p=1.0)), [(3, 4), (5, 4)], inputs_require_grad=True, loss="sum"
    )
    assert (traced.macs(), traced.uncounted()) == (0, {})
    (op,) = [op for op in traced.select("forward") if op.name == "_cdist_forward"]
    assert op.vector_flops.at(2) == 2 * 3 * 3 * 5 * 4


def test_embedding_bag_adds_rows() -> None:
    traced = trace(nn.EmbeddingBag(1000, 4), [(7,)], loss="sum")
    (op,) = [op for op in traced.select("forward") if "_embedding_bag" in op.name]
    assert op.vector_flops.at(3) == 3 * 7 * 4
    assert traced.uncounted() == {}


def test_fft_counts_all_transformed_dimensions() -> None:
    traced = trace(Called(lambda x: torch.fft.fft2(x).real), [(8, 16)], mode="inference")
    (op,) = [op for op in traced.operators if op.name.startswith("_fft")]
    assert op.vector_flops.at(1) == 5 * 8 * 16 * 7  # log2 of 8 × 16


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gt(0).logical_and(x.lt(1)).float() * x,
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        lambda x: x.cummax(1)[0],
        lambda x: torch.complex(x, x).abs(),
        lambda x: torch.bucketize(x, torch.arange(3.0)).float(),
        lambda x: x.clone().index_copy_(2, torch.tensor([0]), x[:, :, :1]),
        lambda x: x.clone().eq_(0),
        lambda x: torch.scatter_reduce(x, 1, torch.zeros(2, 3, 4, dtype=torch.int64), x, "sum"),
    ],
)
def test_operators_without_macs_are_no_gap(function: Callable[..., Tensor]) -> None:
    """They cannot add MACs, so totals need no `at least`."""
    try:
        traced = trace(Called(function), [(3, 4)], mode="inference")
    except TraceError:
        traced = trace(Called(function), [(3, 4)], mode="inference", fixed_batch=2)
    assert (traced.macs(), traced.uncounted()) == (0, {})


def test_recurrent_layers() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)[0]
            return out

    assert trace(Last(), [(5, 8)]).macs() == 5 * (4 * 16 * (8 + 16) + 4 * 16 * (16 + 16))


# -- modules and parameters -------------------------------------------------------------------------


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.relu(self.conv(x)))
        return out


def test_shared_modules_have_a_row_per_call() -> None:
    once = 4 * 36 * 36
    traced = trace(Shared(), [(4, 6, 6)])
    rows = [r for r in layers(traced) if r.name == "conv"]
    assert [(r.call, r.params, r.macs, r.macs_backward) for r in rows] == [(0, 148, once, once), (1, 0, once, 2 * once)]
    assert traced.params == 148
    assert [r.receptive_field for r in rows] == [3, 5]


def test_backward_operators_name_their_forward_operator() -> None:
    traced = trace(Shared(), [(4, 6, 6)])
    forward = [i for i, op in enumerate(traced.operators) if op.phase == "forward" and op.name == "convolution"]
    backward = [op.forward for op in traced.operators if op.name == "convolution_backward"]
    assert backward == forward[::-1]


def test_bare_parameters_are_counted() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))
            self.weight = nn.Parameter(torch.ones(4, 3))
            self.unused = nn.Parameter(torch.ones(11))

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) * self.scale) @ self.weight

    traced = trace(Scaled(), [(4,)])
    assert traced.params == 20 + 4 + 12 + 11
    assert traced.macs() == 16 + 12
    assert {r.name: r.params for r in layers(traced)} == {"inner": 20, "": 4 + 12 + 11}


def test_parameters_of_modules_that_are_never_called() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held, self.idle = nn.Linear(4, 3), nn.Linear(9, 9)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.held.weight, self.held.bias)

    rows = layers(trace(nn.Sequential(Holder()), [(4,)]))
    assert sum(r.params for r in rows) == 15 + 90
    assert sum(r.weights for r in rows) == 12 + 81


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.head(self.embedding(tokens))
            return out

    traced = trace(Tied(), Call.of_inputs([(5,)], [torch.int64]))
    assert traced.params == traced.trained_params == 44
    assert sum(r.params for r in layers(traced)) == 44
    assert traced.macs() == 5 * 44
    assert sum(s.bytes.at(3) for s in traced.storages if s.role == "parameter") == 44 * 4


def test_frozen_parameters() -> None:
    """Unneeded gradients are not counted: there is no backward pass below the lowest trained layer."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 7), nn.Linear(7, 8))
    for index in (0, 2):
        model[index].requires_grad_(False)
    traced = trace(model, [(4,)])
    assert traced.macs() == 20 + 30 + 42 + 56
    # weight of 3, data of 3, data of 2, weight of 1
    assert traced.macs(1, "backward") == 56 + 56 + 42 + 30
    assert traced.trained_params == (30 + 6) + (56 + 8)
    assert traced.frozen == ["0.weight", "0.bias", "2.weight", "2.bias"]
    nothing = trace(model.requires_grad_(False), [(4,)])
    assert nothing.macs(1, "backward") == 0
    assert any("no backward" in note for note in nothing.notes)


# -- activation checkpointing -----------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.reentrant = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(lambda y: self.b(F.relu(self.a(y))), x, use_reentrant=self.reentrant)
        return out


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_in_backward(reentrant: bool) -> None:
    once = 4 * 36 * 36
    traced = trace(Checkpointed(reentrant), [(4, 6, 6)], inputs_require_grad=True)
    assert traced.macs() == 2 * once
    # The non-reentrant kind stops as soon as it has all saved tensors, so it skips the last convolution.
    again = {"a": once, "b": once if reentrant else 0}
    assert traced.macs(1, "backward") == 4 * once + sum(again.values())
    backward = {r.name: r.macs_backward for r in layers(traced) if r.name}
    assert backward == {name: 2 * once + again[name] for name in again}


def test_recomputed_attention_is_one_operator() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fused()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out

    traced = trace(Block(), [(T, D)], inputs_require_grad=True)
    assert [op.macs.at(1) for op in traced.select("backward", ["attention"])] == [SCORES, 2 * SCORES]
    assert traced.select(kinds=["batched_gemm"]) == []


def test_recomputed_shared_segment() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.inner, x, use_reentrant=True)
            return x

    traced = trace(Twice(), [(4,)], inputs_require_grad=True)
    rows = layers(traced)
    assert {r.macs_backward for r in rows if r.name in ("inner.0", "inner.1")} == {16 + 32}
    assert sum(r.macs_backward for r in rows) == traced.macs(1, "backward") == 4 * 48


# -- unknown operators are reported -----------------------------------------------------------------


def test_uncounted_operators_are_listed() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.qr(x)[0]

    traced = trace(Odd(), [(4, 4)], mode="inference")
    assert traced.uncounted() == {"linalg_qr": 1}
    totals = count(traced)
    assert totals.sections[0].takeaway.startswith("0 parameters; forward takes at least 0 FLOP")
    assert totals.data["is_lower_bound"] is True
    assert totals.data["macs"] == 0
    assert not count(trace(nn.Linear(2, 2), [(2,)])).data["is_lower_bound"]
    (op,) = traced.select(kinds=["unknown"])
    assert op.read_bytes.at(3) == 3 * 16 * 4


def test_operators_without_a_dtype() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    traced = trace(model, [(4,)])
    assert traced.params == 16 + 4 + 8
    assert {t.dtype for t in traced.parameters().values()} == {"bfloat16"}
    assert traced.tensors[traced.inputs[0]].dtype == "bfloat16"
