"""Recurrent layers, counted as one operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from chronograd.count.tracing import trace
from chronograd.errors import FileFormatError, TraceError
from chronograd.trace import Operator, Trace

T, D, H, BATCH = 7, 6, 8, 3
WAYS: list[dict[str, Any]] = [{}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2}, {"bias": False}]
LAYERS = [(kind, way) for kind in (nn.LSTM, nn.GRU, nn.RNN) for way in WAYS] + [
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {"proj_size": 4, "num_layers": 2}),
]


class Net(nn.Module):
    def __init__(self, kind: Any, way: dict[str, Any]) -> None:
        super().__init__()
        self.layer = kind(D, H, batch_first=True, **way)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]  # type: ignore[no-any-return]


def recurrent(traced: Trace) -> list[Operator]:
    return [op for op in traced.operators if op.kind == "recurrent"]


@pytest.mark.parametrize(("kind", "way"), LAYERS)
def test_work_equals_that_of_the_steps(kind: Any, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch runs the layer step by step if oneDNN is off, and its own counter sees the products."""
    net = Net(kind, way)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with FlopCounterMode(display=False) as counter:
        net(torch.randn(BATCH, T, D))
    traced = trace(net, [(T, D)])
    forward, backward = recurrent(traced)
    assert 2 * forward.macs.at(BATCH) == counter.get_total_flops()
    assert backward.macs.at(BATCH) == 2 * forward.macs.at(BATCH)
    assert (forward.phase, backward.phase, backward.forward) == ("forward", "backward", traced.operators.index(forward))
    assert forward.module == backward.module == "layer"


def test_outputs_and_gradients_have_the_shapes_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # it warns that oneDNN has no projections
    net = Net(nn.LSTM, {"proj_size": 4, "bidirectional": True})
    traced = trace(net, [(T, D)])
    forward = recurrent(traced)[0]
    real = net.layer(torch.randn(BATCH, T, D))
    shapes = [tuple(d.at(BATCH) for d in traced.tensors[i].shape) for i in forward.outputs]
    assert shapes[:3] == [tuple(t.shape) for t in (real[0], *real[1])]
    assert traced.params == sum(p.numel() for p in net.parameters())
    gradients = [s for s in traced.storages if s.role == "gradient"]
    assert sum(s.bytes.at(BATCH) for s in gradients) == 4 * traced.params


def test_inference_keeps_nothing_for_backward() -> None:
    training, inference = (trace(Net(nn.LSTM, {}), [(T, D)], mode=mode) for mode in ("training", "inference"))
    assert len(recurrent(inference)) == 1
    assert len(recurrent(inference)[0].outputs) == 3
    # Four gates and the state of each step.
    kept = training.tensors[recurrent(training)[0].outputs[-1]]
    assert [d.at(BATCH) for d in kept.shape] == [BATCH, T, 5 * H]


def test_packed_sequences_count_their_elements() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(D, H, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(pack_padded_sequence(x, torch.tensor([T, 4, 2], device="cpu"), batch_first=True))[1]  # type: ignore[no-any-return]

    forward = recurrent(trace(Packed(), [(T, D)], fixed_batch=BATCH))[0]
    assert forward.macs.at(BATCH) == (T + 4 + 2) * 3 * H * (D + H)
    assert forward.attributes["steps"] == T


def test_batch_for_a_time_axis_is_refused() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(D, H)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]  # type: ignore[no-any-return]

    with pytest.raises(TraceError, match="takes the batch for its time axis") as caught:
        trace(Wrong(), [(T, D)])
    assert "batch_first=True" in caught.value.hint
    traced = trace(Wrong(), [(T, D)], fixed_batch=BATCH)
    assert recurrent(traced)[0].attributes["steps"] == BATCH


def test_saved_trace_keeps_the_steps(tmp_path: Path) -> None:
    traced = trace(Net(nn.GRU, {"num_layers": 2}), [(T, D)])
    traced.save(tmp_path / "trace.json")
    again = Trace.load(tmp_path / "trace.json")
    index = traced.operators.index(recurrent(traced)[0])
    assert again.columns["in_turn"][index] == 2 * T
    damaged = traced.to_json()
    damaged["operators"][index][damaged["operator_fields"].index("attributes")].pop("steps")
    with pytest.raises(FileFormatError, match="damaged"):
        Trace.from_json(damaged)
