"""FLOPs of a loop's steps, its utilisation, and its last line."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import chronograd
from chronograd.hardware import catalog
from chronograd.measure import environment
from chronograd.measure.utilisation import peak_of, put_utilisation
from chronograd.record import JobHeader, Provenance, Quantity, Record, RecordedCluster
from chronograd.rundir.steps import Start


@pytest.fixture(autouse=True)
def _collect_other_networks() -> None:
    """Collect garbage: a recording searches all objects for its network."""
    gc.collect()


# A linear layer of 4 × 2: forward and weight gradient, since its input takes no gradient. 1 MAC is 2 FLOPs.
FLOPS_OF_A_SAMPLE = 2 * 2 * 4 * 2


class TakesNames(nn.Module):
    """Network called with keywords, like Hugging Face's networks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, *, features: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"logits": self.inner(features) * scale}


class LooksUnlessFake(TakesNames):
    """Network that checks real tensors only, like Transformers networks with masks."""

    def forward(self, *, features: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        if not isinstance(features, FakeTensor) and not features.isfinite().all():
            raise ValueError("not finite")
        return super().forward(features=features, scale=scale)


class NeedsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if x.sum().item() > 0 else self.inner(-x)


def loop(path: Path, network: nn.Module, call: Callable[[nn.Module, int], Any], **options: Any) -> Record:
    """Run eight steps of eight samples (the last of one), with an evaluation of a hundred samples between."""
    with chronograd.record(path, batch=8, what_if=False, **options) as rec:
        for number in range(8):
            with rec.step():
                call(network, 8 if number < 7 else 1).backward()
            with rec.pause(), torch.no_grad():
                call(network, 100)
    return rec.run.record()


def by_position(network: nn.Module, samples: int) -> torch.Tensor:
    return torch.as_tensor(network(torch.ones(samples, 4)).sum())


def test_flops_follow_network_and_samples(tmp_path: Path) -> None:
    """The seven steps after the first have 6 · 8 + 1 samples."""
    record = loop(tmp_path / "a", nn.Linear(4, 2), by_position)
    per_step = FLOPS_OF_A_SAMPLE * 49 / 7
    assert record.provenance.flops_per_step_per_rank == pytest.approx(per_step)
    assert record.value("achieved_flops_per_s") == pytest.approx(per_step / record.value("step_time_s"))


def test_each_position_of_a_sequence_is_counted(tmp_path: Path) -> None:
    record = loop(tmp_path / "a", nn.Linear(4, 2), lambda network, n: network(torch.ones(n, 5, 4)).sum())
    assert record.provenance.flops_per_step_per_rank == pytest.approx(5 * FLOPS_OF_A_SAMPLE * 49 / 7)


def test_optimizer_identifies_the_network_without_gradients(tmp_path: Path) -> None:
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    with chronograd.record(tmp_path / "a", batch=8, what_if=False) as rec:
        for _ in range(3):
            with rec.step():
                by_position(network, 8).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert rec.run.record().provenance.flops_per_step_per_rank == pytest.approx(8 * FLOPS_OF_A_SAMPLE)


def test_keyword_calls_and_repeated_calls_are_counted(tmp_path: Path) -> None:
    def twice(network: nn.Module, samples: int) -> torch.Tensor:
        calls = (network(features=torch.ones(samples, 4), scale=2.0)["logits"].sum() for _ in range(2))
        return torch.as_tensor(sum(calls))

    for kind in (TakesNames, LooksUnlessFake):
        record = loop(tmp_path / kind.__name__, kind(), twice)
        gc.collect()
        assert record.provenance.flops_per_step_per_rank == pytest.approx(2 * FLOPS_OF_A_SAMPLE * 49 / 7)


def test_counting_does_not_change_training(tmp_path: Path) -> None:
    def trained(path: Path, **options: Any) -> list[float]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
        loop(path, network, lambda net, n: net(torch.rand(max(n, 2), 4)).sum(), **options)
        assert not any(module._forward_pre_hooks for module in network.modules())
        return [*network.state_dict()["1.running_mean"].tolist(), *torch.rand(3).tolist()]

    assert trained(tmp_path / "counted") == trained(tmp_path / "not", flops_per_step=1.0)


def test_reason_for_missing_count_is_reported(tmp_path: Path) -> None:
    record = loop(tmp_path / "a", NeedsValues(), by_position)
    assert "NeedsValues could not be counted" in record["achieved_flops_per_s"].reason
    assert record["mfu"].reason == record["achieved_flops_per_s"].reason
    with chronograd.record(tmp_path / "b") as rec, rec.step():
        pass
    assert "detected no network" in rec.run.record()["mfu"].reason


def test_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = loop(Path("runs/mine"), nn.Linear(4, 2), by_position)
    line = capsys.readouterr().err
    assert line.startswith("recorded 8 steps in runs/mine: ")
    assert "a step, " in line
    assert "samples/s, " in line
    assert line.endswith("; next: chronograd explain runs/mine\n")
    loop(Path("runs/quiet"), nn.Linear(4, 2), by_position, quiet=True)
    assert capsys.readouterr().err == ""
    flops = record.provenance.flops_per_step_per_rank
    predicted = Record(
        kind="predicted", title="as many FLOPs", cluster=RecordedCluster(device="local", count=1, batch_per_rank=8),
        job=JobHeader.model_validate({"task": "classification"}), provenance=Provenance(flops_per_step_per_rank=flops),
    )  # fmt: skip
    predicted.put("step_time_s", Quantity(value=1.0, unit="s"))
    predicted.save("fm-pred.json")
    loop(Path("runs/joined"), nn.Linear(4, 2), by_position)
    assert "predicted 1 s by fm-pred.json: " in capsys.readouterr().err


class TestUtilisation:
    def started(self, **fields: Any) -> Start:
        return Start(**{"device": "cuda:0", "device_name": "Tesla V100-SXM2-16GB", "threads": 4, **fields})

    def test_utilisation_is_achieved_over_peak(self) -> None:
        record = Record(kind="measured", title="t")
        seconds = Quantity(value=0.5, unit="s", low=0.4, high=0.8, n=9)
        put_utilisation(record, seconds, 1e12, self.started(), "fp32")
        peak = catalog.device("v100").peak("fp32")
        assert record.value("mfu") == pytest.approx(2e12 / peak)
        assert (record["mfu"].low, record["mfu"].high) == pytest.approx((1.25e12 / peak, 2.5e12 / peak))
        assert record.provenance.peak_flops_per_s == pytest.approx(peak)

    def test_unknown_peak_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        record = Record(kind="measured", title="t")
        here = self.started(device="cpu", device_name=environment.processor_name())
        put_utilisation(record, Quantity(value=0.5, unit="s"), 1e12, here, "fp32")
        assert record.value("achieved_flops_per_s") == 2e12
        assert "`chronograd calibrate` measures it" in record["mfu"].reason
        put_utilisation(record, Quantity(value=0.5, unit="s"), 1e12, self.started(device_name="Voodoo 2"), "fp32")
        assert "Voodoo 2 is not in the catalogue" in record["mfu"].reason
        assert peak_of(self.started(), "fp16", 1) == pytest.approx(catalog.device("v100").peak("fp16"))
