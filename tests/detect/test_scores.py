"""Scores and losses of both activations, against values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from chronograd.detect.scores import activation_of, column_losses, probabilities
from chronograd.models.ssd import PriorDetector


def test_probabilities_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), -math.log(4.0)]]])
    torch.testing.assert_close(probabilities(logits, "softmax"), torch.tensor([[[1 / 4, 3 / 4], [16 / 17, 1 / 17]]]))
    torch.testing.assert_close(probabilities(logits, "sigmoid"), torch.tensor([[[1 / 2, 3 / 4], [4 / 5, 1 / 5]]]))


def test_losses_by_hand() -> None:
    """A prior of class 1 with logits (0, ln 3, −ln 3): sigmoids 1/2, 3/4 and 1/4; softmax 3/13, 9/13 and 1/13."""
    logits, labels = torch.tensor([[0.0, math.log(3.0), -math.log(3.0)]]), torch.tensor([1])
    assert column_losses(logits, labels, "softmax").item() == pytest.approx(math.log(13 / 9), rel=1e-6)
    assert column_losses(logits, labels, "sigmoid").item() == pytest.approx(math.log(2 * 4 / 3 * 4 / 3), rel=1e-6)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_sigmoid_loss_is_a_negative_log_likelihood(label: int) -> None:
    logits = torch.randn(1, 3, generator=torch.Generator().manual_seed(label))
    sigmoids = probabilities(logits, "sigmoid")[0].tolist()
    likelihood = math.prod(p if column == label else 1 - p for column, p in enumerate(sigmoids))
    loss = column_losses(logits, torch.tensor([label]), "sigmoid")
    assert loss.item() == pytest.approx(-math.log(likelihood), rel=1e-5)


def test_a_detector_names_its_activation() -> None:
    class Sigmoid(PriorDetector):
        activation = "sigmoid"

        def predictions(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, torch.zeros(*x.shape[:2], 4)

    network = Sigmoid().eval()
    network.priors = torch.tensor([[0.5, 0.5, 1.0, 1.0]])
    scores, boxes = network(torch.tensor([[[0.0, 0.0, math.log(3.0)]]]))
    torch.testing.assert_close(scores, torch.tensor([[[1 / 2, 1 / 2, 3 / 4]]]))
    assert boxes.tolist() == [[[0.0, 0.0, 1.0, 1.0]]]
    assert activation_of(network) == "sigmoid"
    assert activation_of(torch.nn.Identity()) == activation_of(PriorDetector()) == "softmax"
