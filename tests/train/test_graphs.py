"""Passes recorded as CUDA graphs, on a machine with an NVIDIA GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chronograd import job as jobs
from chronograd.errors import JobError
from chronograd.models import registry
from chronograd.train.graphs import GraphedNetwork

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def resnet8() -> nn.Module:
    torch.manual_seed(0)
    return registry.build("resnet8", {}, input_shape=(3, 32, 32), num_classes=10).cuda()


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).cuda()


def train(network: nn.Module, model: nn.Module, precision: torch.dtype | None) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(6):
        count = 32 if step != 3 else 8  # one batch has another shape
        targets = torch.arange(count, device="cuda") % 10
        with torch.autocast("cuda", precision, enabled=precision is not None):
            loss = nn.functional.cross_entropy(model(images(count, step)).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


@on_gpu
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_graphs_train_as_operators_do(precision: torch.dtype | None) -> None:
    plain, recorded = resnet8().train(), resnet8().train()
    tolerance = 1e-4 if precision is None else 0.03
    expected = train(plain, plain, precision)
    assert train(recorded, GraphedNetwork(recorded), precision) == pytest.approx(expected, rel=tolerance)
    for ours, theirs in zip(recorded.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=20 * tolerance, atol=20 * tolerance)


@on_gpu
def test_graph_of_the_forward_pass_returns_the_same() -> None:
    network = resnet8().eval()
    with torch.inference_mode():
        graphed = GraphedNetwork(network)
        for seed in range(3):
            seen = images(4, seed)
            torch.testing.assert_close(graphed(seen).clone(), network(seen))
        torch.testing.assert_close(graphed(images(2, 5)), network(images(2, 5)))


def test_gradients_of_graphs_cannot_accumulate() -> None:
    given = {"network": {"name": "resnet8"}, "data": {"name": "cifar10"}}
    with pytest.raises(JobError, match="write accumulation=1"):
        jobs.from_dict({**given, "training": {"compile": "cuda-graphs", "accumulation": 2}})
