"""Matching of priors to objects."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from tests.detect.test_boxes import boxes

from chronograd.detect.boxes import corners, decode, iou, priors
from chronograd.detect.matching import match, targets

PRIORS = priors(300)
CORNERS = corners(PRIORS)


def test_four_steps_by_hand() -> None:
    own = torch.tensor(
        [
            [0.0, 0.0, 0.4, 0.4],  # is the first object
            [0.0, 0.0, 0.4, 0.3],  # overlaps it by 0.75
            [0.0, 0.0, 0.4, 0.1],  # by 0.25: background
            [0.6, 0.6, 1.0, 1.0],  # overlaps the second object by 0.0625, the best prior for it
        ]
    )
    objects = torch.tensor([[0.0, 0.0, 0.4, 0.4], [0.7, 0.7, 0.8, 0.8]])
    assert match(own, objects).tolist() == [0, 0, -1, 1]


def test_best_prior_of_an_object_has_priority() -> None:
    own = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.4]])
    objects = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.1]])
    # the second prior overlaps the first object by 0.8, and the second by 0.25, as its best prior
    assert match(own, objects).tolist() == [0, 1]
    # the later of two objects gets their common best prior
    assert match(own[:1], objects).tolist() == [1]


@settings(deadline=None, max_examples=50)
@given(boxes())
def test_matching_equals_a_naive_implementation(objects: torch.Tensor) -> None:
    """The reference loops over pairs, unlike the code."""
    object_P = match(CORNERS, objects).tolist()
    overlaps = iou(CORNERS, objects)
    forced = {}
    for number in range(len(objects)):
        column = overlaps[:, number].tolist()
        forced[column.index(max(column))] = number
    for prior, row in enumerate(overlaps.tolist()):
        best = max(row)
        expected = forced.get(prior, row.index(best) if best >= 0.5 else -1)
        assert object_P[prior] == expected


@settings(deadline=None, max_examples=50)
@given(boxes())
def test_targets_are_the_objects(objects: torch.Tensor) -> None:
    labels = torch.arange(1, len(objects) + 1)
    labels_P, offsets_P4 = targets(PRIORS, objects, labels)
    is_object = labels_P > 0
    assert is_object.any()
    assert offsets_P4[~is_object].abs().sum() == 0
    meant = decode(offsets_P4, PRIORS)[is_object]
    torch.testing.assert_close(meant, objects[labels_P[is_object] - 1], atol=1e-5, rtol=0)


def test_image_without_objects_is_background() -> None:
    labels_P, offsets_P4 = targets(PRIORS, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert labels_P.sum() == 0
    assert offsets_P4.abs().sum() == 0
