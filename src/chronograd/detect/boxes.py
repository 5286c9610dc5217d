"""Boxes, the priors that predictions are relative to, and the encoding of one in terms of the other.

Section 2.2 of the SSD paper, with the sizes of the priors that SSD on MobileNet has in the public repositories.
Shapes: P priors, G objects, N and M any number of boxes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The network has six maps. Three have the stride of the network, the others the image cut into equal cells.
STRIDES = (16, 32, 64, None, None, None)
NUM_HALVINGS = 4  # of the image's side, before the first map; each map has half the side of the previous one
# Sides of the priors of each map, for an image of 300: its own entry, and the entry of the next map.
SIDES = (60, 105, 150, 195, 240, 285, 330)
SIDE_OF = 300
RATIOS = (2, 3)
PRIORS_PER_CELL = 2 + 2 * len(RATIOS)
# Divisors of the offsets of centre and size, so that they are of the order of 1.
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2


class Objects(NamedTuple):
    """The objects of an image. `is_difficult_G`: objects that count neither as detected nor as missed."""

    boxes_G4: Tensor
    labels_G: Tensor
    is_difficult_G: Tensor


class Detections(NamedTuple):
    """The detections of an image, highest score first."""

    boxes_D4: Tensor
    scores_D: Tensor
    labels_D: Tensor


def map_sides(image_size: int) -> list[int]:
    """Return the cells along a side of each map.

    >>> map_sides(300)
    [19, 10, 5, 3, 2, 1]
    """
    side, sides = image_size, []
    for halving in range(1, NUM_HALVINGS + len(STRIDES)):
        side = -(-side // 2)
        if halving >= NUM_HALVINGS:
            sides.append(side)
    return sides


def priors(image_size: int = SIDE_OF) -> Tensor:
    """Return the priors of all maps as (centre x, centre y, width, height): float32 of shape (P, 4), each clamped to 0
    … 1.

    The order is map by map, row by row, cell by cell. A cell has the small square, the large one, and for each ratio
    the wide and the tall rectangle with the area of the small square.

    >>> tuple(priors(300).shape)
    (3000, 4)
    """
    rows = []
    for side, stride, least, most in zip(map_sides(image_size), STRIDES, SIDES[:-1], SIDES[1:], strict=True):
        cells = image_size / stride if stride else side
        shapes = [(least, least), (math.sqrt(least * most),) * 2]
        for ratio in RATIOS:
            long, short = least * math.sqrt(ratio), least / math.sqrt(ratio)
            shapes += [(long, short), (short, long)]
        rows += [
            ((column + 0.5) / cells, (row + 0.5) / cells, width / SIDE_OF, height / SIDE_OF)
            for row in range(side)
            for column in range(side)
            for width, height in shapes
        ]
    return torch.tensor(rows, dtype=torch.float32).clamp(0, 1)


def corners(boxes_cxcywh: Tensor) -> Tensor:
    """Convert (centre x, centre y, width, height) to (left, top, right, bottom)."""
    centre, half = boxes_cxcywh[..., :2], boxes_cxcywh[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def centres(boxes: Tensor) -> Tensor:
    """Convert (left, top, right, bottom) to (centre x, centre y, width, height)."""
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], dim=-1)


def iou(boxes_N4: Tensor, others_M4: Tensor) -> Tensor:
    """Return the intersection over union of each pair: (N, M). 0 if neither has an area."""
    low = torch.maximum(boxes_N4[:, None, :2], others_M4[None, :, :2])
    high = torch.minimum(boxes_N4[:, None, 2:], others_M4[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area_N, area_M = ((b[:, 2:] - b[:, :2]).clamp(min=0).prod(1) for b in (boxes_N4, others_M4))
    union = area_N[:, None] + area_M - shared
    return torch.where(union > 0, shared / union, 0.0)


def encode(boxes: Tensor, priors_cxcywh: Tensor) -> Tensor:
    """Return the network outputs at these priors that stand for these boxes, which must have an area."""
    wanted = centres(boxes)
    size = priors_cxcywh[..., 2:]
    shift = (wanted[..., :2] - priors_cxcywh[..., :2]) / size / CENTRE_VARIANCE
    return torch.cat([shift, torch.log(wanted[..., 2:] / size) / SIZE_VARIANCE], dim=-1)


def decode(offsets: Tensor, priors_cxcywh: Tensor) -> Tensor:
    """Return the boxes that network outputs at these priors stand for: the inverse of `encode`."""
    size = priors_cxcywh[..., 2:]
    centre = offsets[..., :2] * CENTRE_VARIANCE * size + priors_cxcywh[..., :2]
    return corners(torch.cat([centre, torch.exp(offsets[..., 2:] * SIZE_VARIANCE) * size], dim=-1))
