"""Bytes by precision and compiler, computed by hand and compared with autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from chronograd.count.tracing import trace
from chronograd.predict.calibration import CLASSES, Calibration, ClassRate
from chronograd.predict.compute import Work, operator_seconds
from chronograd.predict.traffic import Traffic, _autocast, traffic
from chronograd.trace import Trace

BATCH = 3


class Scale(nn.Module):
    """Layer scale: an fp32 parameter times x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


class Residual(nn.Module):
    """Residual block: conv → batch norm → in-place relu → plus the convolution's output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        out: torch.Tensor = self.relu(self.norm(y)) + y
        return out


class Attention(nn.Module):
    """Attention without a fused kernel, so that the softmax is visible; x becomes fp32 before three projections."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.q, self.k, self.v = Scale(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scale(x)
        return (self.q(x) @ self.k(x).transpose(-2, -1)).softmax(-1) @ self.v(x)


class Held(nn.Module):
    """Network that keeps an activation in a variable beyond the next convolution, which does not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        held = F.silu(y)
        out: torch.Tensor = self.second(F.gelu(held))
        return out


class Mixed(nn.Module):
    """Pooling, concatenation, power, scalars and a mean, which autocast treats differently."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.scale = nn.Conv2d(3, 8, 3), nn.Linear(16, 5), Scale(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.silu(self.conv(x)), 2)
        z = torch.cat([y, 2.0 * torch.sigmoid(y) + 1], 1).mean((2, 3))
        z = self.scale(F.gelu(self.head(z)))
        return z + z.pow(2).sum(-1, keepdim=True).rsqrt()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


def named(t: Trace, name: str, phase: str = "forward") -> list[int]:
    return [i for i, o in enumerate(t.operators) if o.name == name and o.phase == phase]


def moved(found: Traffic, index: int, batch: int = BATCH) -> float:
    return float(found.moved[index] @ [1, batch])


def cast(found: Traffic, index: int, batch: int = BATCH) -> float:
    return float(found.cast[index] @ [1, batch])


def test_half_precision_halves_operands_and_casts_inputs() -> None:
    t = trace(mlp(), [(10,)], mode="inference")
    single, half = traffic(t), traffic(t, "fp16")
    first, second = named(t, "addmm")
    (relu,) = named(t, "relu")
    # Read x, W, b and write y. A layer's input and weights are cast: 4 bytes read, 2 written.
    assert moved(single, first) == 4 * (10 * BATCH + 10 * 20 + 20 + 20 * BATCH)
    assert moved(half, first) == moved(single, first) / 2
    assert cast(half, first) == 6 * (10 * BATCH + 10 * 20 + 20)
    assert (moved(single, relu), moved(half, relu)) == (4 * 2 * 20 * BATCH, 2 * 2 * 20 * BATCH)
    assert cast(half, second) == 6 * (20 * 5 + 5)  # the hidden layer is already in half precision
    assert cast(single, first) == cast(half, relu) == 0


def test_bf16_equals_fp16_and_tf32_equals_fp32() -> None:
    t = trace(mlp(), [(10,)], mode="inference")
    assert traffic(t, "bf16") is traffic(t, "fp16")
    assert traffic(t, "tf32") is traffic(t, "fp32")


def test_softmax_and_parameters_return_single_precision() -> None:
    t = trace(Attention(), [(4, 8)], mode="inference")
    half = traffic(t, "fp16")
    (scale,), (softmax,) = named(t, "mul"), named(t, "_softmax")
    q, k, v = named(t, "addmm")
    scores, values = named(t, "bmm")
    assert moved(half, scale) == 4 * (2 * 4 * 8 * BATCH + 8)
    # fp32 tensors are cast for each product that reads them, with its weight.
    assert [cast(half, i) for i in (q, k, v)] == [6 * (4 * 8 * BATCH + 8 * 8 + 8)] * 3
    assert moved(half, softmax) == (2 + 4) * 4 * 4 * BATCH
    assert cast(half, scores) == 0
    assert cast(half, values) == 6 * 4 * 4 * BATCH
    assert moved(half, values) == 2 * (4 * 4 + 4 * 8 + 4 * 8) * BATCH


def test_weights_are_cast_once_per_step() -> None:
    """Autocast caches the copy of a weight, and backward reuses the casts saved by forward."""
    t = trace(mlp(), [(10,)], loss="sum")
    half = traffic(t, "fp16")
    weights = (10 * 20, 20 * 5)
    backward = [i for i, o in enumerate(t.operators) if o.phase == "backward" and o.kind == "gemm"]
    of_weights = [i for i in backward if moved(half, i, 0) and half.cast[i, 0]]
    assert sorted(cast(half, i, 0) for i in of_weights) == sorted(6.0 * w for w in weights)
    assert sum(cast(half, i) for i in backward) == 6 * sum(weights) + 6 * 5 * BATCH  # the gradient of the loss is fp32


def test_shared_weights_are_cast_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(self.layer(x))
            return out

    t = trace(Twice(), [(8,)], mode="inference")
    first, second = named(t, "addmm")
    assert cast(traffic(t, "fp16"), first) == 6 * (8 * 8 + 8 + 8 * BATCH)
    assert cast(traffic(t, "fp16"), second) == 0


def test_norm_preserves_type_and_parameters() -> None:
    t = trace(Residual(), [(3, 9, 9)], mode="inference")
    half = traffic(t, "fp16")
    (norm,), (relu,), (add,) = named(t, "native_batch_norm"), named(t, "relu_"), named(t, "add")
    image = 8 * 7 * 7 * BATCH
    assert moved(half, norm) == 2 * 2 * image + 4 * 4 * 8  # scale, shift, mean, variance
    assert moved(half, relu) == 2 * 2 * image
    assert moved(half, add) == 3 * 2 * image


def test_compiled_elementwise_operators_form_one_pass() -> None:
    """The convolution's output is read once for two operators; the sum is written; the in-place relu is free."""
    t = trace(Residual(), [(3, 9, 9)], mode="inference")
    eager, compiled = traffic(t), traffic(t, is_compiled=True)
    (conv,), (norm,), (add,) = named(t, "convolution"), named(t, "native_batch_norm"), named(t, "add")
    assert [i for i, on in enumerate(compiled.is_launched) if on] == [conv, norm]  # the norm represents the pass
    image = 4 * 8 * 7 * 7 * BATCH
    assert moved(compiled, norm) == 2 * image + 4 * 4 * 8
    assert moved(compiled, conv) == moved(eager, conv)
    assert moved(compiled, add) == 0
    arithmetic = eager.vector_flops.sum(axis=0)
    assert compiled.vector_flops.sum(axis=0) == pytest.approx(arithmetic)
    assert compiled.vector_flops[norm] == pytest.approx(arithmetic)


def test_compiled_temporaries_are_not_written() -> None:
    t = trace(Held(), [(3, 6, 6)], mode="inference")
    compiled = traffic(t, is_compiled=True)
    (silu,) = named(t, "silu")
    assert moved(compiled, silu) == 4 * 2 * 8 * 6 * 6 * BATCH  # one read, one write


def test_compiled_training_writes_tensors_for_backward() -> None:
    """silu's input was already written. Its output feeds gelu's derivative, and gelu's the convolution."""
    t = trace(Held(), [(3, 6, 6)], loss="sum")
    compiled = traffic(t, is_compiled=True)
    (silu,) = named(t, "silu")
    assert moved(compiled, silu) == 4 * 3 * 8 * 6 * 6 * BATCH
    # A pass ends where backward starts, even without a matrix operator.
    assert all(compiled.is_launched[i] for i in (*named(t, "sum"), *named(t, "ones_like", "backward")))


def test_compiled_half_precision_moves_half() -> None:
    t = trace(Residual(), [(3, 9, 9)], mode="inference")
    (norm,) = named(t, "native_batch_norm")
    assert moved(traffic(t, "fp16", is_compiled=True), norm) == 2 * 2 * 8 * 7 * 7 * BATCH + 4 * 4 * 8


def test_single_inplace_relu_is_read_and_written_once() -> None:
    t = trace(nn.Sequential(nn.Linear(10, 20), nn.ReLU(inplace=True), nn.Linear(20, 5)), [(10,)], mode="inference")
    (relu,) = named(t, "relu_")
    for is_compiled in (False, True):
        assert moved(traffic(t, is_compiled=is_compiled), relu) == 4 * 2 * 20 * BATCH


@pytest.mark.parametrize("module", [mlp, Attention, Residual], ids=["mlp", "attention", "residual"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_fixed_batch_trace_moves_the_same_bytes(
    module: Callable[[], nn.Module], precision: str, is_compiled: bool
) -> None:
    shape = {mlp: (10,), Attention: (4, 8), Residual: (3, 9, 9)}[module]
    free = trace(module(), [shape], mode="inference")
    fixed = trace(module(), [shape], mode="inference", fixed_batch=BATCH)
    expected, found = (traffic(t, precision, is_compiled) for t in (free, fixed))
    assert [moved(found, i) for i in range(len(fixed.operators))] == pytest.approx(
        [moved(expected, i) for i in range(len(free.operators))]
    )
    works = [Work.of(t, BATCH, precision, is_compiled=is_compiled) for t in (free, fixed)]
    totals = [w.sample_bytes + w.weight_bytes for w in works]
    assert totals[1] == pytest.approx(totals[0])
    # With one batch, growth is unknown, so everything is assumed to grow.
    assert not works[1].weight_bytes.any()


def test_norm_over_channels_moves_the_image_twice() -> None:
    class Norm2d(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    module = nn.Sequential(nn.Conv2d(3, 8, 1), Norm2d(8))
    found = []
    for channels_last in (False, True):
        t = trace(module, [(3, 6, 6)], mode="inference", channels_last=channels_last)
        (norm,) = named(t, "native_layer_norm")
        found.append(moved(traffic(t), norm))
    assert found[0] == 2 * found[1]
    image, statistics = 8 * 6 * 6, 2 * 6 * 6
    assert found[1] == 4 * (BATCH * (2 * image + statistics) + 2 * 8)


def test_casts_and_layout_changes_cost_time() -> None:
    """Casts run at the elementwise rate; a channels-first input of a convolution passes through memory again."""
    rates = {name: ClassRate(compute=1e9, bandwidth=0.5, weights=1e9, relayout=0.4) for name in CLASSES}
    calibration = Calibration("measured", "fp16", 1e12, 1e12, 1e11, rates)
    found = []
    for channels_last in (False, True):
        t = trace(nn.Conv2d(3, 8, 3, bias=False), [(3, 9, 9)], mode="inference", channels_last=channels_last)
        found.append(operator_seconds(t, BATCH, calibration).sum())
    image = 2 * (3 * 9 * 9 + 8 * 7 * 7) * BATCH
    casts = 6 * (3 * 9 * 9 * BATCH + 8 * 3 * 3 * 3)
    assert found[1] == pytest.approx((image + casts) / 0.5e11, rel=1e-6)
    assert found[0] - found[1] == pytest.approx(0.4 * image / 1e11, rel=1e-6)


def test_unfused_attention_moves_its_scores() -> None:
    """Scores are written, read and written by the softmax, and read again: 4 passes of heads · queries · keys."""

    class Fused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    t = trace(Fused(), [(2, 5, 16)], mode="inference")
    works = [Work.of(t, BATCH, "fp16", has_fused_attention=fused) for fused in (True, False)]
    more = works[1].sample_bytes.sum() - works[0].sample_bytes.sum()
    assert more == 4 * 2 * (2 * 5 * 5) * BATCH
    names = [{CLASSES[i] for i in w.class_index[w.launches > 0]} for w in works]
    assert names == [{"attention.forward"}, {"attention_unfused.forward"}]


class _Types(TorchDispatchMode):
    """Recorder of the name and type of every result, and of the number of cast elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: list[tuple[str, bool]] = []
        self.cast = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2].replace("cudnn_batch_norm", "native_batch_norm")
        if name == "_to_copy":
            self.cast += out.numel()
        elif not func.is_view and name not in ("detach", "empty", "_unsafe_view"):
            first = out[0] if isinstance(out, (tuple, list)) else out
            if isinstance(first, torch.Tensor) and first.is_floating_point():
                self.results.append((name, first.dtype in (torch.float16, torch.bfloat16)))
        return out


@pytest.mark.parametrize(
    ("module", "shape"),
    [(mlp, (10,)), (Attention, (4, 8)), (Residual, (3, 9, 9)), (Held, (3, 6, 6)), (Mixed, (3, 8, 8))],
    ids=["mlp", "attention", "residual", "held", "mixed"],
)
def test_types_match_cuda_autocast(module: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Fake tensors pass through PyTorch's CUDA autocast, without a GPU."""
    was = torch.is_autocast_enabled("cuda")
    try:
        with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
            network = module().eval()
            torch.set_autocast_enabled("cuda", True)
            with _Types() as real:
                network(torch.empty(BATCH, *shape))
    finally:
        torch.set_autocast_enabled("cuda", was)
        torch.clear_autocast_cache()
    t = trace(module(), [shape], mode="inference")
    _, cast_bytes, num_casts, half = _autocast(t)
    found = [(o.name, o.outputs[0] in half) for o in t.operators if o.kind != "view"]
    assert found == real.results
    assert float((cast_bytes @ [1, BATCH]).sum()) == 6 * real.cast
    assert ((num_casts > 0) == cast_bytes.any(axis=1)).all()


@pytest.mark.parametrize(("module", "shape"), [(mlp, (10,)), (Held, (3, 6, 6))], ids=["mlp", "held"])
def test_training_casts_match_autocast(module: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Use a CPU, whose autocast treats these operators alike."""
    network = module()
    with torch.autocast("cpu", dtype=torch.bfloat16), _Types() as real:
        loss = network(torch.zeros(BATCH, *shape)).float().sum()
        # loss.backward() would disable the mode.
        engine: Any = torch.autograd.Variable._execution_engine
        roots, grads = (loss,), (torch.ones_like(loss),)
        engine.run_backward(roots, grads, False, False, (), allow_unreachable=True, accumulate_grad=True)
    t = trace(module(), [shape], loss="sum")
    predicted = float((_autocast(t)[1] @ [1, BATCH]).sum())
    # Excluded: bias gradients from a sum, and .float(), since the trace's loss uses half precision.
    biases = sum(m.out_features for m in network.modules() if isinstance(m, nn.Linear))
    outputs = t.tensors[t.outputs[0]].numel_at(BATCH)
    assert predicted == 6 * (real.cast - biases - outputs)
