"""PyTorch without its compiler: what trains and counts does not load it, and results are those of PyTorch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from chronograd.eager import eager

ALONE = """
import sys
import torch
from chronograd import job as jobs
from chronograd.count.tracing import trace
from chronograd.data import datasets
from chronograd.job import Training
from chronograd.train.check import check_network
from chronograd.train.optimizer import make_optimizer

def train(optimizer, network):
    for _ in range(2):
        network(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())

for name in ("sgd", "adamw", "adadelta", "rmsprop"):
    network = torch.nn.Linear(3, 2)
    train(make_optimizer(network, Training(optimizer=name)), network)
job = jobs.from_dict({"network": {"name": "resnet20"}, "data": {"name": "digits"}})
check_network(job, datasets.card(job.data))
norm = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 2))
trace(norm, [(3, 8, 8)])
print("torch._dynamo" in sys.modules)
"""

COMPILED = """
import torch
from chronograd.train.optimizer import make_optimizer
from chronograd.job import Training

def run(wrapped):
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(network, Training(optimizer="sgd"))
    def step(x):
        network(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return x + 1
    step = wrapped(step)
    step(torch.ones(2, 3)), step(torch.ones(2, 3))
    return network.weight.detach()

plain = run(lambda step: step)
print(torch.equal(plain, run(lambda step: torch.compile(step, backend="eager"))))
print(hasattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable"))
"""


def _printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_training_and_counting_load_no_compiler() -> None:
    assert _printed(ALONE) == ["False"]


def test_loaded_compiler_leaves_the_same_functions_out() -> None:
    assert _printed(COMPILED) == ["True", "True"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}), (torch.optim.AdamW, {"lr": 0.1}), (torch.optim.Adadelta, {})],
)  # fmt: skip
def test_steps_equal_those_of_pytorch(kind: Any, settings: dict[str, Any]) -> None:
    def trained(kind: Any) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = nn.Linear(3, 2)
        optimizer = kind(network.parameters(), **settings)
        for _ in range(3):
            network(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(network.parameters()), optimizer

    (ours, own), (theirs, _) = trained(eager(kind)), trained(kind)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    assert isinstance(own, kind)
    assert eager(kind) is type(own)
