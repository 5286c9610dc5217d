"""Networks of deep Q-learning: published sizes, their outputs, and invalid options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.models import registry
from chronograd.models.deep_q import Dueling
from chronograd.reinforce.environments import Space
from chronograd.reinforce.networks import as_input, build, dead_relus, mlp

POLE = Space((4,), np.dtype(np.float32), 2)
GAME = Space((4, 84, 84), np.dtype(np.uint8), 6)


def job_of(network: str = "mlp", **options: object) -> jobs.Job:
    return jobs.from_dict(
        {
            "task": "reinforcement",
            "network": {"name": network, "options": options},
            "data": {"name": "gymnasium:CartPole-v1"},
        }
    )


def num_params(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("actions", [2, 6, 18])
def test_dqn_2015_parameter_count(actions: int) -> None:
    network = registry.build("dqn-2015", num_classes=actions, device="meta")
    assert num_params(network) == 1_684_128 + 513 * actions


def test_dueling_subtracts_the_mean_advantage() -> None:
    """Q = V + A - mean A, so the mean of Q is V; compute it from the two streams."""
    torch.manual_seed(0)
    network = mlp(4, 3, hidden=[8, 8], dueling=True)
    head = network[-1]
    assert isinstance(head, Dueling)
    x = torch.randn(5, 4)
    features = network[:-1](x)
    values, advantages = head.value(features), head.advantage(features)
    by_hand = torch.stack([values[:, 0] + advantages[:, a] - advantages.sum(1) / 3 for a in range(3)], dim=1)
    assert torch.allclose(network(x), by_hand, atol=1e-6)
    assert torch.allclose(network(x).mean(1), values[:, 0], atol=1e-6)


def test_dueling_dqn_2015_has_two_heads() -> None:
    network = registry.build("dqn-2015", {"dueling": True}, num_classes=6, device="meta")
    trunk = 8_224 + 32_832 + 36_928
    assert num_params(network) == trunk + 2 * 1_606_144 + 513 * (1 + 6)


def test_mlp_parameter_count() -> None:
    assert num_params(mlp(4, 2, hidden=[120, 84])) == 5 * 120 + 121 * 84 + 85 * 2
    assert num_params(mlp(4, 2, hidden=[16], dueling=True)) == 2 * 5 * 16 + 17 * (1 + 2)


def test_job_builds_a_network_for_its_environment() -> None:
    assert build(job_of(hidden=[16, 16]), POLE)(torch.zeros(3, 4)).shape == (3, 2)
    assert build(job_of("dqn-2013"), GAME, device="meta")(torch.zeros(3, 4, 84, 84, device="meta")).shape == (3, 6)


def test_channels_last_changes_only_the_layout() -> None:
    asked = job_of("dqn-2013")
    laid_out = asked.model_copy(update={"training": asked.training.model_copy(update={"channels_last": True})})
    torch.manual_seed(0)
    plain = build(asked, GAME)
    torch.manual_seed(0)
    other = build(laid_out, GAME)
    seen = as_input(np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84), np.uint8), torch.device("cpu"))
    assert not next(other.parameters()).is_contiguous()
    assert other[:1](seen).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(other(seen), plain(seen))


def test_dead_layers_over_all_observations() -> None:
    """The second observation activates the first layer; the second layer is always inactive."""
    network = mlp(4, 2, (8, 8)).requires_grad_(False)
    network[1].weight[:] = torch.eye(8, 4)
    network[1].bias[:] = -1
    network[3][0].bias[:] = -1e6
    with dead_relus(network) as dead:
        network(torch.zeros(3, 4))
        assert dead == {"2", "3.1"}
        network(torch.full((1, 4), 2.0))
    assert dead == {"3.1"}
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("network", "options", "space", "message"),
    [
        ("mlp", {}, GAME, "mlp takes a few numbers"),
        ("dqn-2015", {}, POLE, "dqn-2015 takes images, and .* shows 4 numbers"),
        ("mlp", {"depth": 3}, POLE, "no option depth"),
        ("mlp", {"hidden": []}, POLE, r"hidden is \[\]"),
        ("mlp", {"hidden": 64}, POLE, "hidden is 64"),
        ("mlp", {"hidden": [64.5]}, POLE, r"hidden is \[64.5\]"),
        ("mlp", {"hidden": "64"}, POLE, "hidden is '64'"),
    ],
)
def test_unsuitable_options(network: str, options: dict[str, object], space: Space, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        build(job_of(network, **options), space, device="meta")
    assert refused.value.hint


def test_pixels_are_scaled_to_one() -> None:
    seen = as_input(np.array([[0, 51, 255]], np.uint8), torch.device("cpu"))
    assert torch.allclose(seen, torch.tensor([[0.0, 0.2, 1.0]]))
    assert as_input(np.array([[0.5]]), torch.device("cpu")).dtype == torch.float32
