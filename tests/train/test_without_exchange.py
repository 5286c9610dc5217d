"""Steps without gradient exchange: from the first forward in the context to its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from chronograd.train.communicator import without_exchange


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    dist.destroy_process_group()


def broadcasts(model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one at each broadcast of buffers."""
    seen: list[int] = []
    whole = model._sync_buffers
    monkeypatch.setattr(model, "_sync_buffers", lambda: (seen.append(1), whole()))
    return seen


def test_buffers_are_broadcast_only_with_exchange(
    model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, samples = broadcasts(model, monkeypatch), torch.ones(2, 3)
    for number in range(1, 4):
        model(samples).sum().backward()
        assert len(seen) == number
        with without_exchange(model):
            model(samples).sum().backward()
        assert len(seen) == number


def test_no_sync_takes_effect_one_forward_late(model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows why `without_exchange` exists; it can be removed if PyTorch changes this."""
    seen, samples = broadcasts(model, monkeypatch), torch.ones(2, 3)
    model(samples).sum().backward()
    with model.no_sync():
        model(samples).sum().backward()
    assert len(seen) == 2
    model(samples).sum().backward()
    assert len(seen) == 2
