"""One symbolic trace covers every batch size; where it cannot, an error states the reason."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chronograd.count.network import trace_network
from chronograd.count.recorder import SYMBOLIC_BATCH, Recorder
from chronograd.count.tracing import trace
from chronograd.errors import TraceError
from chronograd.trace import Affine, Trace

NETWORKS: dict[str, dict[str, Any]] = {
    "small-cnn": {},
    "resnet20": {},
    "alexnet": {},
    "googlenet": {"aux": True},
    "inception-reduced": {},
    "llama-7b": {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 101, "sequence": 16},
    "gpt2-small": {"layers": 2, "width": 64, "heads": 4, "vocab": 101, "sequence": 16},
    "torchvision:shufflenet_v2_x0_5": {},
    "torchvision:swin_t": {},
}


@cache
def symbolic(network: str) -> Trace:
    return trace_network(network, NETWORKS[network])


@pytest.mark.parametrize("batch", [3, 5])
@pytest.mark.parametrize("network", NETWORKS)
def test_symbolic_trace_matches_traces_at_fixed_batches(network: str, batch: int) -> None:
    ours, fixed = symbolic(network), trace_network(network, NETWORKS[network], fixed_batch=batch)
    assert fixed.fixed_batch == batch
    assert [(o.name, o.kind, o.module, o.call) for o in ours.operators] == [
        (o.name, o.kind, o.module, o.call) for o in fixed.operators
    ]
    for phase in ("forward", "backward"):
        assert ours.flops(batch, phase) == fixed.flops(batch, phase)
    for amount in ("macs", "vector_flops", "read_bytes", "written_bytes"):
        assert [getattr(o, amount).at(batch) for o in ours.operators] == [
            getattr(o, amount).at(batch) for o in fixed.operators
        ], amount
    shapes = [
        [t.shape_at(batch) for o in tr.operators for t in map(tr.tensors.__getitem__, o.outputs)]
        for tr in (ours, fixed)
    ]
    assert shapes[0] == shapes[1]
    assert np.array_equal(ours.live_bytes(batch), fixed.live_bytes(batch))
    assert ours.params == fixed.params


@pytest.mark.parametrize("network", ["resnet20", "small-cnn"])
def test_flops_are_proportional_to_the_batch(network: str) -> None:
    traced = symbolic(network)
    assert traced.flops(64) == 64 * traced.flops(1)
    assert all(o.macs.const == 0 for o in traced.select(kinds=["conv_3x3", "gemm"]))


class Mixes(nn.Module):
    """A network that multiplies every sample with every other."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.T


class Loops(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "iterates":
            parts = [self.layer(sample) for sample in x]
        elif self.how == "counts":
            parts = [self.layer(x[i]) for i in range(len(x))]
        elif self.how == "splits":
            parts = [self.layer(sample).squeeze(0) for sample in x.split(1)]
        else:
            parts = [self.layer(sample).squeeze(0) for sample in x.chunk(len(x))]
        return torch.stack(parts)


def test_network_that_mixes_samples() -> None:
    with pytest.raises(TraceError, match=r"not affine in the batch[\s\S]*--fixed-batch"):
        trace(Mixes(), [(4,)], loss="sum", inputs_require_grad=True)
    traced = trace(Mixes(), [(4,)], loss="sum", inputs_require_grad=True, fixed_batch=6)
    assert (traced.macs(), traced.macs(1, "backward")) == (6 * 6 * 4, 2 * 6 * 6 * 4)


@pytest.mark.parametrize("how", ["iterates", "counts", "splits", "chunks"])
def test_network_that_loops_over_samples(how: str) -> None:
    """The symbolic batch is 134 million: the trace must stop before memory is full."""
    with pytest.raises(TraceError, match=r"into single samples[\s\S]*--fixed-batch"):
        trace(Loops(how), [(4,)])
    traced = trace(Loops(how), [(4,)], fixed_batch=5)
    assert (traced.macs(), traced.macs(1, "backward")) == (5 * 16, 5 * 16)
    assert {o.call for o in traced.select("forward", ["gemm"])} == set(range(5))


def test_selection_of_a_few_samples() -> None:
    class First(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[0] + x[1] + x

    assert trace(First(), [(4,)], mode="inference").params == 0


def test_size_factors_uniquely_into_batch_and_rest() -> None:
    recorder = Recorder(Trace("", "training", "sum", []), SYMBOLIC_BATCH, is_symbolic=True)
    for const in (0, 1, 197, 65_536, -3):
        for slope in (1, 2, 49, 1024):
            assert recorder.dim(const + slope * SYMBOLIC_BATCH) == Affine(const, slope)
    assert recorder.dim(60_000_000) == Affine(60_000_000, 0)


def test_constant_added_to_the_batch_dimension() -> None:
    """One class token per sample, and one row more than samples."""

    class OneMore(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.zeros(1, 4)])

    traced = trace(OneMore(), [(4,)], mode="inference")
    assert traced.tensors[traced.outputs[0]].shape == (Affine(1, 1), Affine(4, 0))


@pytest.mark.parametrize("batch", [0, -1])
def test_batch_is_at_least_one(batch: int) -> None:
    with pytest.raises(Exception, match="at least 1"):
        trace(nn.Linear(4, 4), [(4,)], fixed_batch=batch)
