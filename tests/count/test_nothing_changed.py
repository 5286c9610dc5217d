"""Tracing changes neither the process nor the network, whatever the network does."""

from __future__ import annotations

import gc
import resource
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from chronograd.count.calls import Call
from chronograd.count.tracing import Origin, trace
from chronograd.errors import InputError, TraceError


class Bang(Exception):
    """The exception that the networks of this file raise."""


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise Bang("backward")


class Fragile(nn.Module):
    """A network with attention, batch norm and a hook, which raises at a chosen place."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hook_calls = 0
        self.inner.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.hook_calls += 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.where == "forward":
            raise Bang("forward")
        y = x.unsqueeze(1)
        x = self.attention(y, y, y)[0].squeeze(1)
        if self.where == "values":
            x = x * float(x.sum())
        if self.where == "shapes":
            x = x @ torch.ones(3, 3)
        out: Tensor = FailsInBackward.apply(x) if self.where == "backward" else x
        return out


def process_state() -> tuple[Any, ...]:
    hooks = {k: len(v) for k, v in vars(nn.modules.module).items() if k.startswith("_global") and hasattr(v, "__len__")}
    return (
        hooks,
        torch._C._len_torch_function_stack(),
        len(_get_current_dispatch_mode_stack()),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        gc.isenabled(),
        torch.is_inference_mode_enabled(),
        torch.random.get_rng_state().tolist(),
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward,
    )


def model_state(model: nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[name] = (
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            sorted(vars(module)),
        )
    for name, p in model.named_parameters():
        state[f"parameter {name}"] = (id(p), p.data_ptr(), p._version, p.requires_grad, id(p.grad), p.device)
    for name, b in model.named_buffers():
        state[f"buffer {name}"] = (id(b), b.data_ptr(), b._version, b.device)
    return state


CAUSES = {"forward": Bang, "backward": Bang, "values": RuntimeError, "shapes": RuntimeError}


@pytest.mark.parametrize("grad_enabled", [True, False])
@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("where", ["nowhere", *CAUSES])
def test_process_and_network_are_unchanged(where: str, mode: str, grad_enabled: bool) -> None:
    model = Fragile(where)
    model.inner[1].eval()
    model.inner[0].weight.grad = torch.ones(8, 8)
    before, process = model_state(model), None
    with torch.set_grad_enabled(grad_enabled):
        process = process_state()
        if where == "nowhere" or (where == "backward" and mode == "inference"):
            trace(model, [(8,)], mode=mode)
        else:
            with pytest.raises(TraceError) as error:
                trace(model, [(8,)], mode=mode)
            assert isinstance(error.value.__cause__, CAUSES[where])
            cause = "from shapes alone" if where == "values" else type(error.value.__cause__).__name__
            assert cause in error.value.message
        assert process_state() == process
    assert model_state(model) == before
    assert model.hook_calls == 0
    assert torch.equal(model.inner[0].weight.grad, torch.ones(8, 8))
    # The network still works.
    if where == "nowhere":
        model.train()(torch.randn(4, 8)).sum().backward()


def test_zoo_network_is_restored() -> None:
    with torch.device("meta"):
        model = Fragile("backward")
    before = {name: state for name, state in model_state(model).items() if not name.startswith("buffer")}
    with pytest.raises(TraceError):
        trace(model, [(8,)], origin=Origin("ours", lambda: Fragile("backward")))
    assert before.items() <= model_state(model).items()
    assert all(p.grad is None for p in model.parameters())


def test_interrupt_is_passed_on() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    before = process_state()
    with pytest.raises(KeyboardInterrupt):
        trace(Interrupted(), [(8,)])
    assert process_state() == before


def test_trace_ignores_global_torch_settings() -> None:
    model = Fragile("nowhere")
    expected = trace(model, [(8,)]).to_json()
    with torch.no_grad():
        assert trace(model, [(8,)]).to_json() == expected
    with torch.inference_mode():
        assert trace(model, [(8,)]).to_json() == expected
    with torch.device("meta"):
        assert trace(model, [(8,)]).to_json() == expected
    assert trace(model.eval(), [(8,)]).to_json() == expected


def test_no_weight_is_copied() -> None:
    """The network has 400 MB; the peak memory of the process grows by less than 10 % of that."""
    model = nn.Sequential(*(nn.Linear(5000, 5000, bias=False) for _ in range(4)))
    for p in model.parameters():
        p.grad = None
    trace(nn.Linear(3, 3), [(3,)])  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    traced = trace(model, [(5000,)])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert traced.params == 100_000_000
    assert (after - before) * 1024 < 40e6


def test_trace_keeps_no_reference_to_the_network() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    gone = weakref.ref(model)
    traced = trace(model, [(4,)])
    del model
    gc.collect()
    assert gone() is None
    assert traced.params == 20


def test_copy_preserves_the_whole_network() -> None:
    """Tensors as attributes and in lists, ties, user hooks, and weights recomputed on every call."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.same = nn.Linear(4, 4), nn.Linear(4, 4)
            self.same.weight = self.layer.weight
            self.plain, self.several = torch.ones(4), [torch.ones(4), {"deep": torch.ones(4)}]

        def forward(self, x: Tensor) -> Tensor:
            several: Any = self.several
            out: Tensor = self.same(self.layer(x)) * self.plain + several[0] + several[1]["deep"]
            return out

    traced = trace(Kept(), [(4,)])
    assert (traced.params, traced.macs()) == (16 + 8, 32)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    traced = trace(normed, [(3, 8, 8)])
    assert (traced.params, traced.uncounted()) == (3 * 4 * 9 + 4 + 4, {})


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_legacy_weight_norm() -> None:
    model = nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    assert trace(model, [(3, 8, 8)]).params == 3 * 4 * 9 + 4 + 4


def has_failed(model: nn.Module, example: Tensor | None = None, **how: Any) -> None:
    with pytest.raises(TraceError):
        trace(model, [(8,)] if example is None else Call.of_example(example, model), **how)


@pytest.mark.parametrize("where", ["forward", "values", "shapes", "backward"])
@pytest.mark.parametrize("how", [{}, {"fixed_batch": 2}, {"example": torch.ones(2, 8, device="meta")}])
def test_failed_count_frees_the_network(where: str, how: dict[str, Any]) -> None:
    """Even before the garbage collector runs: the error is in no reference cycle."""
    model = Fragile(where)
    model.inner._forward_hooks.clear()  # this hook references the model
    seen = weakref.ref(model)
    gc.disable()
    try:
        has_failed(model, **how)
        del model
        assert seen() is None
    finally:
        gc.enable()


def test_errors_state_a_remedy() -> None:
    with pytest.raises(TraceError, match=r"parameters without a shape: weight[\s\S]*call it once"):
        trace(nn.LazyLinear(3), [(4,)])
    with pytest.raises(TraceError, match=r"raised Bang: forward \(test_nothing_changed"):
        trace(Fragile("forward"), [(8,)], origin=Origin("mine"))
    with pytest.raises(TraceError, match=r"depends on the values"):
        trace(Fragile("values"), [(8,)])
    with pytest.raises(InputError, match="mode is 'train'"):
        trace(nn.Linear(3, 3), [(3,)], mode="train")
    with pytest.raises(InputError, match="loss is 'hinge'"):
        trace(nn.Linear(3, 3), [(3,)], loss="hinge")
    model = nn.Linear(3, 3)
    model.generator = (i for i in range(3))  # type: ignore[assignment]
    with pytest.raises(TraceError, match="cannot be copied"):
        trace(model, [(3,)])
