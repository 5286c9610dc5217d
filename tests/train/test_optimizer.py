"""Optimizers and parameter groups: formulas, rates by group, and patterns without a match."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from chronograd.errors import InputError
from chronograd.job import Training
from chronograd.train.optimizer import make_optimizer, parameter_groups, set_rate


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


def test_first_matching_group_applies() -> None:
    training = Training.model_validate(
        {
            "weight_decay": 0.5,
            "learning_rate": 0.1,
            "parameter_groups": [
                {"match": "0.*", "learning_rate_factor": 0},
                {"match": "*.bias", "learning_rate_factor": 2, "weight_decay": 0},
            ],
        }
    )
    net = network()
    optimizer = make_optimizer(net, training)
    names = {id(p): name for name, p in net.named_parameters()}
    groups = [(sorted(names[id(p)] for p in g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
    assert groups == [(["1.bias", "2.bias"], 0), (["1.weight", "2.weight"], 0.5)]
    assert [p.requires_grad for p in net[0].parameters()] == [False, False]  # type: ignore[index]
    set_rate(optimizer, training, 0, 10)
    assert [g["lr"] for g in optimizer.param_groups] == [0.2, 0.1]


def test_pattern_without_match_is_reported() -> None:
    training = Training.model_validate({"parameter_groups": [{"match": "layer9.*"}]})
    with pytest.raises(InputError, match=r"no parameter is left for 'layer9"):
        parameter_groups(network(), training)
    frozen = Training.model_validate({"parameter_groups": [{"match": "*", "learning_rate_factor": 0}]})
    with pytest.raises(InputError, match="no parameter is left to train"):
        make_optimizer(network(), frozen)


class Block(nn.Sequential):
    """A repeated class of layers."""


def blocks_of_a_network() -> nn.Module:
    """Return a stem, two blocks with a layer between them, a last norm and a head."""
    return nn.Sequential(
        nn.Linear(2, 2, bias=False),
        Block(nn.Linear(2, 2, bias=False)),
        nn.Linear(2, 2, bias=False),
        Block(nn.Linear(2, 2, bias=False)),
        nn.LayerNorm(2, bias=False),
        nn.Linear(2, 1, bias=False),
    )


def test_rates_decay_by_block_from_the_last_layer() -> None:
    net = blocks_of_a_network()
    training = Training.model_validate({
        "learning_rate": 1.0, "weight_decay": 0, "layer_decay": 0.5,
        "parameter_groups": [{"match": "3.*", "learning_rate_factor": 3, "weight_decay": 0.25}],
    })  # fmt: skip
    optimizer = make_optimizer(net, training)
    set_rate(optimizer, training, 0, 10)
    names = {id(p): name for name, p in net.named_parameters()}
    rates = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert rates == {
        "0.weight": (0.125, 0), "1.0.weight": (0.25, 0), "2.weight": (0.25, 0), "3.0.weight": (1.5, 0.25), "4.weight": (1, 0),
        "5.weight": (1, 0),
    }  # fmt: skip


def test_no_decay_leaves_one_group() -> None:
    assert len(parameter_groups(blocks_of_a_network(), Training())) == 1


def test_adadelta_formula() -> None:
    """Zeiler 2012: v = ρ v + (1 - ρ) g²; step √(u + ε) / √(v + ε) · g; u = ρ u + (1 - ρ) step²."""
    training = Training.model_validate({"recipe": "adadelta"})
    net = nn.Linear(1, 1, bias=False)
    optimizer = make_optimizer(net, training)
    weight, v, u, rho, eps = net.weight.item(), 0.0, 0.0, 0.95, 1e-6
    for gradient in (0.5, -2.0, 1.0):
        net.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        v = rho * v + (1 - rho) * gradient**2
        change = ((u + eps) / (v + eps)) ** 0.5 * gradient
        u = rho * u + (1 - rho) * change**2
        weight -= change
        assert net.weight.item() == pytest.approx(weight, rel=1e-5)


def test_rmsprop_formula() -> None:
    """Mnih et al. 2015: m = ρ m + (1 - ρ) g; v = ρ v + (1 - ρ) g²; step rate · g / √(v - m² + 0.01), with ρ = 0.95."""
    training = Training.model_validate(
        {"optimizer": "rmsprop", "learning_rate": 0.1, "momentum": 0.95, "weight_decay": 0.0}
    )
    net = nn.Linear(1, 1, bias=False)
    optimizer = make_optimizer(net, training)
    set_rate(optimizer, training, 0, 10)
    weight, m, v = net.weight.item(), 0.0, 0.0
    for gradient in (0.5, -2.0, 1.0):
        net.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        m, v = 0.95 * m + 0.05 * gradient, 0.95 * v + 0.05 * gradient**2
        weight -= 0.1 * gradient / (v - m**2 + 0.01) ** 0.5
        assert net.weight.item() == pytest.approx(weight, rel=1e-5)
