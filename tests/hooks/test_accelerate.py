"""Training loops with Accelerate, run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from chronograd.errors import InputError
from chronograd.rundir import RunDir

accelerate = pytest.importorskip("accelerate")
pytestmark = [pytest.mark.hooks, pytest.mark.filterwarnings("ignore")]


def test_update_is_one_step_with_parts(tmp_path: Path) -> None:
    from chronograd.hooks.accelerate import record

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    with pytest.raises(InputError, match="prepared no network"), record(accelerator, tmp_path / "none"):
        pass
    data = TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,)))
    network = nn.Linear(4, 2)
    network, optimizer, loader = accelerator.prepare(
        network, torch.optim.SGD(network.parameters(), 0.1), DataLoader(data, 4)
    )
    before = accelerator.backward, optimizer.step
    with record(accelerator, tmp_path / "run", batch=8, warmup=1, what_if=False):
        for x, y in loader:
            with accelerator.accumulate(network):
                accelerator.backward(nn.functional.cross_entropy(network(x), y))
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            network(torch.ones(100, 4))
    assert (accelerator.backward, optimizer.step) == before
    found = RunDir.open(tmp_path / "run").record()
    assert found["step_time_s"].n == 5  # twelve batches are six steps, one of them warm-up
    for part in ("forward_s", "backward_s", "update_s"):
        assert found.value(part) > 0
    assert found.provenance.flops_per_step_per_rank == pytest.approx(2 * 2 * 4 * 2 * 8)


def test_failed_loop_leaves_a_record(tmp_path: Path) -> None:
    from chronograd.hooks.accelerate import record

    accelerator = accelerate.Accelerator(cpu=True)
    network = nn.Linear(4, 2)
    network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.1))

    def loop() -> None:
        with record(accelerator, tmp_path / "run", warmup=1):
            for number in range(4):
                accelerator.backward(network(torch.ones(2, 4)).sum())
                1 / (3 - number)
                optimizer.step()

    with pytest.raises(ZeroDivisionError):
        loop()
    found = RunDir.open(tmp_path / "run").record()
    assert found["step_time_s"].n == 2
    assert any("ZeroDivisionError" in note for note in found.notes)
