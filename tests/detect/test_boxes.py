"""Priors of SSD on MobileNet, and boxes encoded relative to them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_convert, box_iou

from chronograd.detect.boxes import PRIORS_PER_CELL, centres, corners, decode, encode, iou, map_sides, priors

CORNER = st.floats(0, 0.9375, width=32)
SIZE = st.floats(2**-6, 1, width=32)


@st.composite
def boxes(draw: st.DrawFn, least: int = 1, most: int = 6) -> torch.Tensor:
    """A strategy of boxes with an area inside the image, as corners."""
    rows = draw(st.lists(st.tuples(CORNER, CORNER, SIZE, SIZE), min_size=least, max_size=most))
    return torch.tensor([(x, y, min(x + w, 1), min(y + h, 1)) for x, y, w, h in rows], dtype=torch.float32).view(-1, 4)


def test_image_has_3000_priors() -> None:
    all_P4 = priors(300)
    assert len(all_P4) == 6 * (19**2 + 10**2 + 5**2 + 3**2 + 2**2 + 1**2) == 3000
    assert all_P4.min() > 0
    assert all_P4.max() <= 1


def test_priors_of_a_cell_match_the_paper() -> None:
    # Row 2, column 3 of the first map: cells of 16 pixels in an image of 300; sides 60 and 105, ratios 2 and 3.
    first = (2 * 19 + 3) * PRIORS_PER_CELL
    cell = priors(300)[first : first + PRIORS_PER_CELL] * 300
    assert torch.allclose(cell[:, 0], torch.tensor(3.5 * 16))
    assert torch.allclose(cell[:, 1], torch.tensor(2.5 * 16))
    long2, short2, long3, short3 = 60 * math.sqrt(2), 60 / math.sqrt(2), 60 * math.sqrt(3), 60 / math.sqrt(3)
    large = math.sqrt(60 * 105)
    expected = [(60, 60), (large, large), (long2, short2), (short2, long2), (long3, short3), (short3, long3)]
    assert torch.allclose(cell[:, 2:], torch.tensor(expected))


def test_last_prior_fills_the_image() -> None:
    # 285 * sqrt(2) and the like reach beyond the image, and are clamped
    last = priors(300)[-PRIORS_PER_CELL:]
    assert torch.allclose(last[:2], torch.tensor([[0.5, 0.5, 0.95, 0.95], [0.5, 0.5, 1.0, 1.0]]))
    assert torch.allclose(last[2], torch.tensor([0.5, 0.5, 1.0, 0.95 / math.sqrt(2)]))


@pytest.mark.parametrize("size", [96, 150, 224, 300, 512])
def test_priors_of_other_sizes(size: int) -> None:
    all_P4 = priors(size)
    assert len(all_P4) == PRIORS_PER_CELL * sum(side**2 for side in map_sides(size))
    assert all_P4.min() > 0
    assert all_P4.max() <= 1


@settings(deadline=None, max_examples=50)
@given(boxes(), st.integers(0, 2999))
def test_decoding_is_the_inverse_of_encoding(some: torch.Tensor, prior: int) -> None:
    at = priors(300)[prior].expand(len(some), 4)
    torch.testing.assert_close(decode(encode(some, at), at), some, atol=1e-5, rtol=0)


def test_encoding_by_hand() -> None:
    prior = torch.tensor([0.5, 0.5, 0.2, 0.4])
    box = torch.tensor([0.5, 0.4, 0.7, 0.8])  # centre (0.6, 0.6), as large as the prior
    expected = torch.tensor([0.1 / 0.2 / 0.1, 0.1 / 0.4 / 0.1, 0.0, 0.0])
    torch.testing.assert_close(encode(box, prior), expected, atol=1e-5, rtol=0)
    twice = torch.tensor([0.3, 0.1, 0.7, 0.9])  # twice as large in each direction, of the same centre
    expected = torch.tensor([0.0, 0.0, math.log(2) / 0.2, math.log(2) / 0.2])
    torch.testing.assert_close(encode(twice, prior), expected, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=50)
@given(boxes(), boxes())
def test_overlap_matches_torchvision(some: torch.Tensor, others: torch.Tensor) -> None:
    torch.testing.assert_close(iou(some, others), box_iou(some, others))


def test_overlap_of_boxes_without_area() -> None:
    point = torch.tensor([[0.5, 0.5, 0.5, 0.5]])
    assert iou(point, point).tolist() == [[0.0]]


@settings(deadline=None, max_examples=50)
@given(boxes())
def test_corners_and_centres_match_torchvision(some: torch.Tensor) -> None:
    torch.testing.assert_close(centres(some), box_convert(some, "xyxy", "cxcywh"))
    torch.testing.assert_close(corners(centres(some)), some, atol=1e-6, rtol=0)
