"""Lightning's Trainer, run on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from chronograd.measure.user_loop import LoopRecorder
from chronograd.rundir import RunDir

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = [pytest.mark.hooks, pytest.mark.filterwarnings("ignore")]


def fit(path: Path, fails_at: int | None = None, validated: list[float] | None = None, **options: Any) -> None:
    from chronograd.hooks.lightning import RecordCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(4, 2)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if number == fails_at:
                raise ValueError("no luck")
            return torch.as_tensor(nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

        def validation_step(self, batch: Any, number: int) -> None:
            self.network(batch[0])
            if validated is not None:
                validated.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[RecordCallback(path, warmup=1, what_if=False)], **{"devices": 1, **options},
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, 8), DataLoader(data, 16))


def test_every_step_is_recorded_with_parts(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 11  # two epochs of six, the first step warm-up
    for part in ("forward_s", "backward_s", "update_s"):
        assert record.value(part) > 0
    assert record.value("throughput_samples_per_s") == pytest.approx(8 / record.value("step_time_s"))
    # Forward and the weight gradients; the input needs no gradient.
    assert record.provenance.flops_per_step_per_rank == pytest.approx(2 * 2 * 4 * 2 * 8)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    fit(tmp_path / "run", accumulate_grad_batches=3)
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 3
    assert record.value("throughput_samples_per_s") == pytest.approx(24 / record.value("step_time_s"))


def test_validation_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every validation batch is inside a pause of the recording."""
    pauses, validated = list[tuple[float, float]](), list[float]()
    real = LoopRecorder.pause

    @contextmanager
    def pause(self: LoopRecorder) -> Iterator[None]:
        begin = time.perf_counter()
        with real(self):
            yield
        pauses.append((begin, time.perf_counter()))

    monkeypatch.setattr(LoopRecorder, "pause", pause)
    fit(tmp_path / "run", validated=validated, num_sanity_val_steps=0)
    assert len(validated) == 6  # three batches in each of two epochs
    assert all(any(begin < moment < end for begin, end in pauses) for moment in validated)


def test_two_ranks_share_a_step(tmp_path: Path) -> None:
    """Each rank takes every second batch of 8, so an epoch has three steps of 16 samples."""
    fit(tmp_path / "run", devices=2, strategy="ddp_fork")
    record = RunDir.open(tmp_path / "run").record()
    assert (record.world, record["step_time_s"].n) == (2, 5)
    assert record.value("throughput_samples_per_s") == pytest.approx(16 / record.value("step_time_s"))


def test_failed_trainer_leaves_a_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no luck"):
        fit(tmp_path / "run", fails_at=4)
    record = RunDir.open(tmp_path / "run").record()
    assert record["step_time_s"].n == 3
    assert any("no luck" in note for note in record.notes)
