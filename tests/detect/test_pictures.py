"""Annotated pictures: where labels lie, and the colours of classes."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from chronograd.detect.annotating import COLOURS, Finding, colour_of, drawn
from chronograd.detect.pictures import label_places


def test_labels_lie_over_no_other_and_within_the_picture() -> None:
    """Forty boxes in a picture that is full of them."""
    random = np.random.default_rng(0)
    corners = random.uniform(0, 260, (40, 2))
    boxes = [(x, y, x + 60, y + 50) for x, y in corners.tolist()]
    places = label_places(boxes, [(48.0, 12.0)] * len(boxes), (320, 320))
    labels = [place for place in places if place is not None]
    assert len(labels) > 30
    for one, other in itertools.combinations(labels, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for left, top, right, bottom in labels:
        assert left >= 0
        assert top >= 0
        assert right <= 320
        assert bottom <= 320


def test_a_label_without_a_place_is_left_out() -> None:
    box = (0.0, 0.0, 10.0, 10.0)
    assert label_places([box] * 3, [(40.0, 10.0)] * 3, (40, 20)) == [
        (0.0, 0.0, 40.0, 10.0),
        (0.0, 10.0, 40.0, 20.0),
        None,
    ]


def test_a_class_has_one_colour_whichever_network_has_found_it() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == 14
    assert len({colour_of(name) for name in ("RBC", "WBC", "Platelets")}) == 3
    white = torch.full((3, 60, 60), 255, dtype=torch.uint8)
    cell, other = Finding("RBC", 0.9, (10.0, 20.0, 50.0, 50.0)), Finding("WBC", 0.8, (30.0, 30.0, 40.0, 40.0))
    for found in ([cell], [cell, other], [other, cell]):
        assert tuple(drawn(white, found)[35, 10]) == colour_of("RBC")
