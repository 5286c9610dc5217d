"""The detection loss and its choice of background priors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.detect.loss import detection_loss, hard_negatives


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_hard_negatives_are_three_per_positive(seed: int, counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_priors = 100
    logits = torch.randn(len(counts), num_priors, 5, generator=generator)
    labels = torch.zeros(len(counts), num_priors, dtype=torch.int64)
    for row, count in zip(labels, counts, strict=True):
        row[torch.randperm(num_priors, generator=generator)[:count]] = 1 + seed % 4
    chosen = hard_negatives(logits, labels)
    background = logits.softmax(2)[..., 0]
    for image, count in enumerate(counts):
        assert chosen[image].sum() == min(3 * count, num_priors - count)
        assert not (chosen[image] & (labels[image] > 0)).any()
        left_out = ~chosen[image] & (labels[image] == 0)
        if chosen[image].any() and left_out.any():
            assert background[image][chosen[image]].max() <= background[image][left_out].min() + 1e-6


def test_loss_by_hand() -> None:
    logits = torch.zeros(1, 6, 3)  # every class has probability 1/3
    logits[0, 5, 0] = 9.0  # certain background: the prior that is not trained on
    labels = torch.tensor([[2, 0, 0, 0, 0, 0]])
    logits[0, 4, 0] = 8.0
    offsets, targets = torch.zeros(1, 6, 4), torch.zeros(1, 6, 4)
    offsets[0, 0] = torch.tensor([0.5, 3.0, 0.0, 0.0])  # 0.5 · 0.5² and 3 - 0.5
    offsets[0, 1] = 100.0  # background: ignored
    classes, places = detection_loss(logits, offsets, labels, targets)
    # one positive, and the three hardest of five negatives
    assert classes.item() == pytest.approx(4 * math.log(3), rel=1e-6)
    assert places.item() == pytest.approx(0.125 + 2.5, rel=1e-6)


def test_sigmoid_loss_by_hand() -> None:
    logits = torch.zeros(1, 6, 3)  # every column has probability 1/2, so a prior's loss is 3 ln 2
    labels = torch.tensor([[2, 0, 0, 0, 0, 0]])
    logits[0, 1] = 9.0  # background by softmax is 1/3, as at priors 2 and 3; but both classes are wrong by 9
    logits[0, 4:] = torch.tensor([9.0, -9.0, -9.0])  # certain background: not trained on
    offsets = torch.zeros(1, 6, 4)
    assert hard_negatives(logits, labels, "sigmoid")[0].tolist() == [False, True, True, True, False, False]
    classes, places = detection_loss(logits, offsets, labels, offsets, "sigmoid")
    of_prior_1 = 3 * math.log1p(math.exp(-9)) + 2 * 9
    assert classes.item() == pytest.approx(3 * 3 * math.log(2) + of_prior_1, rel=1e-6)
    assert places.item() == 0


def test_easiest_negative_follows_the_activation() -> None:
    """Three of four background priors are chosen. Their losses are 0.1, 1.3, 1.3 and 3.0 by softmax, 6.0, 2.4, 2.0 and 3.7 by
    sigmoid."""
    labels = torch.tensor([[1, 0, 0, 0, 0]])
    logits = torch.tensor([[[0.0, 0.0], [8.0, 6.0], [-2.0, -1.0], [0.0, 1.0], [0.0, 3.0]]])
    assert hard_negatives(logits, labels)[0].tolist() == [False, False, True, True, True]
    assert hard_negatives(logits, labels, "sigmoid")[0].tolist() == [False, True, True, False, True]


def test_losses_are_divided_by_all_positives() -> None:
    torch.manual_seed(0)
    logits, offsets, wanted = torch.randn(2, 50, 4), torch.randn(2, 50, 4), torch.randn(2, 50, 4)
    labels = torch.zeros(2, 50, dtype=torch.int64)
    labels[0, :3], labels[1, :1] = 2, 1
    both = detection_loss(logits, offsets, labels, wanted)
    each = [detection_loss(*(t[i : i + 1] for t in (logits, offsets, labels, wanted))) for i in (0, 1)]
    for k in (0, 1):
        assert both[k].item() == pytest.approx((3 * each[0][k].item() + each[1][k].item()) / 4, rel=1e-5)


def test_no_object_means_no_loss() -> None:
    logits, offsets = torch.randn(2, 10, 3, requires_grad=True), torch.randn(2, 10, 4, requires_grad=True)
    classes, places = detection_loss(logits, offsets, torch.zeros(2, 10, dtype=torch.int64), torch.zeros(2, 10, 4))
    assert (classes.item(), places.item()) == (0.0, 0.0)
    (classes + places).backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0
