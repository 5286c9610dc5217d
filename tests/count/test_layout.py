"""Memory layout of images: the trace records it, and the work is independent of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.models.layout import is_channels_last, laid_out, lay_out
from chronograd.trace import CONV_KINDS, Trace

MODES = ("inference", "training")


def convolutions(t: Trace) -> list[bool]:
    return [o.attributes["channels_last"] for o in t.select(kinds=CONV_KINDS)]


def strided_norms(t: Trace, phase: str | None = None) -> int:
    return sum(bool(o.attributes.get("strided")) for o in t.select(phase, ["norm"]))


@pytest.mark.parametrize("mode", MODES)
def test_convolutions_run_in_the_requested_layout(mode: str) -> None:
    pytest.importorskip("timm")
    planar, last = (trace_network("timm:test_resnet", mode=mode, channels_last=layout) for layout in (False, True))
    assert (planar.channels_last, last.channels_last) == (False, True)
    assert len(convolutions(last)) == 15 * (1 if mode == "inference" else 2)
    assert not any(convolutions(planar))
    assert all(convolutions(last))
    assert strided_norms(planar) == strided_norms(last) == 0  # batch norms keep the layout of their input


@pytest.mark.parametrize("mode", MODES)
def test_channel_norm_is_strided_only_in_nchw(mode: str) -> None:
    """ConvNeXt's first norm reads the stem's output and writes channels last; later layers keep that layout."""
    pytest.importorskip("timm")
    planar, last = (trace_network("timm:test_convnext", mode=mode, channels_last=layout) for layout in (False, True))
    assert (strided_norms(planar, "forward"), strided_norms(last)) == (1, 0)
    forward = [o.attributes["channels_last"] for o in planar.select("forward", CONV_KINDS)]
    assert forward == [False] + [True] * 12
    assert all(convolutions(last))


@pytest.mark.parametrize(
    "name", ["timm:test_convnext", "timm:test_vit", "timm:test_efficientnet", "torchvision:alexnet"]
)
@pytest.mark.parametrize("mode", MODES)
def test_work_does_not_depend_on_the_layout(name: str, mode: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    planar, last = (trace_network(name, mode=mode, channels_last=layout) for layout in (False, True))
    assert planar.params == last.params
    for phase in ("forward", "backward"):
        assert planar.macs(7, phase) == last.macs(7, phase)
        kinds = [[o.kind for o in t.select(phase) if o.kind not in ("view", "copy")] for t in (planar, last)]
        assert kinds[0] == kinds[1]
    for amount in ("vector_flops", "read_bytes", "written_bytes"):
        totals = [sum(getattr(o, amount).at(7) for o in t.operators if o.kind != "copy") for t in (planar, last)]
        assert totals[0] == totals[1], amount


def test_layout_round_trips_through_the_file(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    for layout in (False, True):
        made = trace(module, [(3, 9, 9)], loss="sum", channels_last=layout)
        made.save(tmp_path / "t.json.gz")
        again = Trace.load(tmp_path / "t.json.gz")
        assert again.to_json() == made.to_json()
        assert again.channels_last is layout
        assert convolutions(again) == [layout, layout]
        assert (again.columns["channels_last"] == made.columns["channels_last"]).all()
        assert (again.columns["strided"] == made.columns["strided"]).all()


def test_one_channels_last_operand_sets_the_layout() -> None:
    """PyTorch's convolutions copy the other operand; a copy of the weight is not counted."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.conv(x.contiguous())
            return out

    found = trace(Turned(), [(3, 9, 9)], mode="inference", channels_last=True)
    (conv,) = found.select(kinds=CONV_KINDS)
    assert conv.attributes["channels_last"] is True
    assert conv.attributes["copied"] == [0]
    (plain,) = trace(Turned(), [(3, 9, 9)], mode="inference").select(kinds=CONV_KINDS)
    assert "copied" not in plain.attributes
    network = Turned().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert network(torch.zeros(2, 3, 9, 9)).is_contiguous(memory_format=torch.channels_last)


def test_volumes_are_channels_last_too() -> None:
    """torch.channels_last itself refuses the weight of a three-dimensional convolution."""
    module = nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 8, 3))
    planar, last = (trace(module, [(3, 9, 9, 9)], loss="sum", channels_last=layout) for layout in (False, True))
    assert convolutions(planar) == [False] * 4
    assert convolutions(last) == [True] * 4  # two forward, two backward
    assert "copied" not in last.select(kinds=CONV_KINDS)[0].attributes
    assert planar.flops() == last.flops()

    images, volumes = nn.Conv2d(3, 8, 3), nn.Conv3d(3, 8, 3)
    with pytest.raises(RuntimeError, match="rank 4"):
        volumes.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 9, 9, 9)
    expected = volumes(x)
    for network in (images, volumes):
        lay_out(network)
        assert is_channels_last(network.weight)
    found = volumes(laid_out(x))
    assert is_channels_last(found)
    torch.testing.assert_close(found, expected)
    assert laid_out(vector := torch.zeros(3, 2)) is vector


def test_model_is_unchanged() -> None:
    module = nn.Conv2d(3, 8, 3)
    trace(module, [(3, 9, 9)], channels_last=True)
    assert module.weight.is_contiguous()
