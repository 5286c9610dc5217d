"""Non-maximum suppression: one box per object."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.detect.boxes import iou
from chronograd.detect.suppression import detections
from chronograd.errors import MissingExtraError


def drawn_candidates(seed: int, num_priors: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(num_priors, num_classes + 1, generator=generator)).softmax(1)
    corner = 0.8 * torch.rand(num_priors, 2, generator=generator)
    return scores, torch.cat([corner, corner + 0.2 * torch.rand(num_priors, 2, generator=generator)], dim=1)


def greedy(scores_P: torch.Tensor, boxes_P4: torch.Tensor, least: float, most: float, candidates: int) -> list[int]:
    """Return the paper's result: in order of score, candidates that overlap no chosen one too much."""
    chosen: list[int] = []
    order = [p for p in scores_P.argsort(descending=True).tolist() if scores_P[p] > least][:candidates]
    for prior in order:
        overlaps = [float(iou(boxes_P4[[prior]], boxes_P4[[other]])) for other in chosen]
        if all(overlap <= most for overlap in overlaps):
            chosen.append(prior)
    return chosen


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31 - 1), st.integers(1, 30), st.integers(1, 3), st.sampled_from([5, 200]))
def test_suppression_is_greedy_per_class(seed: int, num_priors: int, num_classes: int, candidates: int) -> None:
    scores, boxes = drawn_candidates(seed, num_priors, num_classes)
    seen = detections(scores, boxes, candidates=candidates)
    for k in range(1, num_classes + 1):
        expected = greedy(scores[:, k], boxes, 0.01, 0.45, candidates)
        mine = seen.labels_D == k
        assert torch.equal(seen.scores_D[mine], scores[expected, k])
        assert torch.equal(seen.boxes_D4[mine], boxes[expected])
    assert torch.equal(seen.scores_D, seen.scores_D.sort(descending=True).values)


def test_classes_are_independent_and_background_is_dropped() -> None:
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.5]] * 3)
    scores = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.99, 0.005, 0.005]])
    seen = detections(scores, boxes)
    assert sorted(seen.labels_D.tolist()) == [1, 2]
    assert detections(torch.tensor([[1.0, 0.0, 0.0]]), boxes[:1]).labels_D.tolist() == []


def test_score_at_the_threshold_is_dropped() -> None:
    seen = detections(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.rand(2, 4), least_score=0.5)
    assert seen.scores_D.tolist() == [0.75]


def test_missing_torchvision_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    with pytest.raises(MissingExtraError, match=r"\[vision\]"):
        detections(torch.rand(3, 2), torch.rand(3, 4))
