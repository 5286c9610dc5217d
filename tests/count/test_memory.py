"""Peak memory: closed forms, and the allocations of a real step in torch's profiler."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.models.registry import build
from chronograd.predict.memory import peak_memory

FLOAT = 4


@pytest.mark.parametrize("depth", [2, 3, 6])
@pytest.mark.parametrize("batch", [64, 1024])
def test_chain_of_linear_layers(depth: int, batch: int) -> None:
    """Every layer saves its input; backward frees one input and adds one smaller weight gradient a layer.

    During the last layer's backward pass memory holds all inputs, the gradient of the output and one weight gradient.
    One layer below, it holds one input less, the gradients of that layer's output and input, and two weight gradients.
    That is the peak, except in a chain of two, whose first layer needs no gradient of its input. The loss and its
    gradient come on top.
    """
    width = 16
    weight, activation, scalars = width * width * FLOAT, batch * width * FLOAT, 2 * FLOAT
    assert activation > weight
    traced = trace(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth))), [(width,)], loss="sum")
    memory = peak_memory(traced, batch, "sgd-momentum")
    assert memory.parameters == memory.optimizer_state == depth * weight
    assert memory.gradients == (2 if depth > 2 else 1) * weight
    assert memory.activations == (depth + 1) * activation + scalars
    parts = (memory.parameters, memory.buffers, memory.gradients, memory.optimizer_state, memory.activations)
    assert memory.total == sum(parts)


def test_peak_is_the_update_without_activations() -> None:
    traced = trace(nn.Linear(1000, 1000, bias=False), [(1000,)])
    states = {"sgd": 0, "sgd-momentum": 1, "adamw": 2}
    for optimizer, saved_bytes in states.items():
        memory = peak_memory(traced, 1, optimizer)
        assert memory.parameters == memory.gradients == 4_000_000
        assert memory.optimizer_state == saved_bytes * 4_000_000
        assert memory.total - (2 + saved_bytes) * 4_000_000 < 20_000


@pytest.mark.parametrize("depth", [2, 3, 9])
def test_inference_saves_no_activations(depth: int) -> None:
    """The network's input, and the input and output of one layer, at any depth."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(depth)))
    memory = peak_memory(trace(model, [(16,)], mode="inference"), 1000)
    assert (memory.gradients, memory.optimizer_state) == (0, 0)
    assert memory.activations == 3 * 1000 * 16 * FLOAT


def test_in_place_output_is_stored_once() -> None:
    def saved_bytes(inplace: bool) -> int:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=inplace), nn.Conv2d(8, 8, 3))
        return peak_memory(trace(model, [(3, 32, 32)]), 16).activations

    # ReLU saves its output, and the next convolution the same tensor; only the convolution's output differs.
    assert saved_bytes(False) - saved_bytes(True) == 0  # freed as soon as ReLU has run
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.SiLU(), nn.Conv2d(8, 8, 3, bias=False))
    # SiLU saves its input in addition to its output.
    assert peak_memory(trace(model, [(3, 32, 32)]), 16).activations > saved_bytes(False)


def test_frozen_parameters_need_no_gradient_and_no_state() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    model[0].requires_grad_(False)
    memory = peak_memory(trace(model, [(100,)]), 1, "adamw")
    assert (memory.parameters, memory.optimizer_state) == (80_800, 2 * 40_400)


def test_checkpointing_saves_memory_and_costs_work() -> None:
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)
            )
            self.saves = saves

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
            return x

    plain, saving = trace(Net(False), [(64,)]), trace(Net(True), [(64,)])
    assert peak_memory(saving, 512).activations < peak_memory(plain, 512).activations / 2
    assert saving.macs(512, "backward") > plain.macs(512, "backward")
    assert saving.macs(512) == plain.macs(512)


# -- against real allocations -----------------------------------------------------------------------


def cross_entropy(scores: Tensor) -> Tensor:
    target = torch.zeros(scores.numel() // scores.shape[-1], dtype=torch.int64)
    return F.cross_entropy(scores.flatten(0, -2), target)


def allocated(model: nn.Module, x: Tensor) -> int:
    """Return the peak allocation of one step, without parameters and input."""
    model.train()
    cross_entropy(model(x)).backward()
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        cross_entropy(model(x)).backward()
    assert run.profiler is not None
    events: list[Any] = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, float]] = {
    "linear": (lambda: nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4))), (16,), 64, 0),
    "perceptron on tokens": (
        lambda: nn.Sequential(*(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.Dropout(0.1))),
        *((20, 32), 16, 0),
    ),
    # CPU convolutions use some workspace, which our convention omits.
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16 * 16, 10)),
        ),
        *((3, 32, 32), 16, 0.01),
    ),
    "batch norm": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
        ),
        *((3, 32, 32), 16, 0.01),
    ),
    "resnet20": (lambda: build("resnet20"), (3, 32, 32), 8, 0.03),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_peak_matches_real_allocations(name: str) -> None:
    make, shape, batch, tolerance = NETWORKS[name]
    model = make()
    memory = peak_memory(trace(model, [shape]), batch, "sgd")
    ours = memory.gradients + memory.activations - math.prod(shape) * batch * FLOAT
    assert ours == pytest.approx(allocated(model, torch.zeros(batch, *shape)), rel=tolerance, abs=64)


def test_memory_is_affine_in_the_batch() -> None:
    traced = trace_network("vgg19")
    small, middle, large = (peak_memory(traced, b).activations for b in (16, 32, 48))
    assert large - middle == middle - small
