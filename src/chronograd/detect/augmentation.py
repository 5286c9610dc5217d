"""Augmentation of a picture with boxes, as in the SSD paper (sections 2.2 and 3.6), and the network's input without
augmentation.

Colours are distorted. Then the picture is put on a larger canvas, or a part that shows enough of an object is cut out.
Then it is mirrored, and resized to the network's input. The last three are one window on the picture, so pixels are
resampled once. NumPy's legacy generator draws the random numbers, because its stream will never change.

The numbers are those of the authors' Caffe code, as in the public ports. Left out: the exchange of colour channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from chronograd.detect.boxes import Objects
from chronograd.detect.pictures import resized

# Each distortion happens with probability 1/2.
BRIGHTNESS = 32.0  # added, up or down
CONTRAST = SATURATION = (0.5, 1.5)  # factor
HUE_DEGREES = 18.0  # turned, either way
EXPAND_CHANCE, MAX_EXPANDED = 0.5, 4.0
# Minimum overlap of a cut with some object; None for no cut, 0 for any overlap.
MIN_OVERLAPS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 0.0)
CUT_SCALES = (0.3, 1.0)
CUT_ASPECTS = (0.5, 2.0)
CUT_TRIES = 50

Random = np.random.RandomState
Array = np.ndarray[Any, Any]


class PictureWindow(NamedTuple):
    """The visible part of a picture, in units of the picture; it may extend beyond the picture's edges."""

    left: float
    top: float
    right: float
    bottom: float
    is_mirrored: bool = False


WHOLE = PictureWindow(0.0, 0.0, 1.0, 1.0)


def augmented(
    picture_CHW: Tensor,
    objects: Objects,
    side: int,
    fill: float,
    random: Random,
    most_expanded: float = MAX_EXPANDED,
) -> tuple[Tensor, Objects]:
    """Augment a picture and its objects for training: float32, 0 … 255, square.

    Objects whose centre is visible remain, clipped at the window's edges. If the picture has objects of at least a
    pixel, one or more remain.

    Args:
        picture_CHW: uint8.
        side: of the resulting square.
        fill: of the canvas around an expanded picture, the mean that is subtracted later.
        most_expanded: side of the largest canvas, in sides of the picture; 1 for none.
    """
    window = draw_window(objects.boxes_G4, random, most_expanded)
    return look(picture_CHW, objects, window, side, fill, lambda part: distort(part, random))


def look(
    picture_CHW: Tensor,
    objects: Objects,
    window: PictureWindow,
    side: int,
    fill: float,
    colours: Callable[[Tensor], Tensor] = lambda part: part,
) -> tuple[Tensor, Objects]:
    """Return the view through a window as a square of `side`, and the objects with their centre in it, in units of the window.

    Args:
        colours: applied to the picture's own pixels after resampling, when there are fewer.
    """
    columns = _span(window.left, window.right, picture_CHW.shape[2], side)
    rows = _span(window.top, window.bottom, picture_CHW.shape[1], side)
    seen = torch.full((len(picture_CHW), side, side), fill, dtype=torch.float32)
    part = picture_CHW[:, rows.first : rows.last, columns.first : columns.last]
    part = resized(part, rows.to_end - rows.to, columns.to_end - columns.to)
    seen[:, rows.to : rows.to_end, columns.to : columns.to_end] = colours(part)
    before_G4 = objects.boxes_G4
    axes = (columns, rows, columns, rows)
    boxes_G4 = torch.stack([span.placed(before_G4[:, i]) for i, span in enumerate(axes)], dim=1).clamp(0, 1)
    is_seen = _has_centre_in(before_G4, window) & (boxes_G4[:, 2:] > boxes_G4[:, :2]).all(dim=1)
    if window.is_mirrored:
        seen = seen.flip(2)
        boxes_G4 = torch.stack([1 - boxes_G4[:, 2], boxes_G4[:, 1], 1 - boxes_G4[:, 0], boxes_G4[:, 3]], dim=1)
    return seen, Objects(boxes_G4[is_seen], objects.labels_G[is_seen], objects.is_difficult_G[is_seen])


def _has_centre_in(boxes_G4: Tensor, window: PictureWindow) -> Tensor:
    x, y = ((boxes_G4[:, i] + boxes_G4[:, i + 2]) / 2 for i in (0, 1))
    return (x > window.left) & (x < window.right) & (y > window.top) & (y < window.bottom)


def draw_window(boxes_G4: Tensor, random: Random, most_expanded: float = MAX_EXPANDED) -> PictureWindow:
    """Draw a canvas around the picture with probability 1/2, then a cut of that, then a mirror."""
    window = _expanded(random, most_expanded) if random.random_sample() < EXPAND_CHANCE else WHOLE
    if len(boxes_G4):
        window = _cut(window, boxes_G4.double().numpy(), random)
    return window._replace(is_mirrored=bool(random.random_sample() < 0.5))


def _expanded(random: Random, most: float) -> PictureWindow:
    ratio = random.uniform(1, most)
    left, top = random.uniform(0, ratio - 1, size=2)
    return PictureWindow(-left, -top, ratio - left, ratio - top)


def _cut(window: PictureWindow, boxes_G4: Array, random: Random) -> PictureWindow:
    """Cut a part of a window that overlaps some object by the drawn amount, and contains the centre of one.

    The first success of fifty tries is used, else the whole window. Small objects, which few cuts overlap, need all
    fifty. The tries use NumPy, whose calls cost a fraction of torch's for a few numbers.
    """
    least = MIN_OVERLAPS[random.randint(len(MIN_OVERLAPS))]
    if least is None:
        return window
    width, height = window.right - window.left, window.bottom - window.top
    low_G2, high_G2 = boxes_G4[:, :2], boxes_G4[:, 2:]
    centre_G2, area_G = (low_G2 + high_G2) / 2, (high_G2 - low_G2).prod(axis=1)
    for _ in range(CUT_TRIES):
        scale = random.uniform(*CUT_SCALES)
        aspect = random.uniform(max(CUT_ASPECTS[0], scale**2), min(CUT_ASPECTS[1], scale**-2))
        across, down = scale * math.sqrt(aspect) * width, scale / math.sqrt(aspect) * height
        left = window.left + random.uniform(0, max(width - across, 0))
        top = window.top + random.uniform(0, max(height - down, 0))
        corner_2, opposite_2 = (left, top), (left + across, top + down)
        if not ((centre_G2 > corner_2) & (centre_G2 < opposite_2)).all(axis=1).any():
            continue
        shared_G = np.maximum(np.minimum(high_G2, opposite_2) - np.maximum(low_G2, corner_2), 0).prod(axis=1)
        if (shared_G / (area_G + across * down - shared_G)).max() >= least:
            return PictureWindow(*corner_2, *opposite_2)
    return window


class _Span(NamedTuple):
    """The visible pixels of a picture along one axis, and their places in the square of `side`."""

    first: int
    last: int
    to: int
    to_end: int
    length: int
    side: int

    def placed(self, x: Tensor) -> Tensor:
        """Convert places in units of the picture to units of the square."""
        scale = (self.to_end - self.to) / (self.last - self.first)
        return ((x * self.length - self.first) * scale + self.to) / self.side


def _span(low: float, high: float, length: int, side: int) -> _Span:
    """Return the span in whole pixels: all that the window touches, at least one of the picture, at one of the square."""
    first = min(max(math.floor(low * length), 0), length - 1)
    last = min(max(math.ceil(high * length), first + 1), length)
    to, to_end = (round((edge / length - low) / (high - low) * side) for edge in (first, last))
    to = min(max(to, 0), side - 1)
    return _Span(first, last, to, min(max(to_end, to + 1), side), length, side)


# -- colours ----------------------------------------------------------------------------------------


def distort(picture_CHW: Tensor, random: Random) -> Tensor:
    """Distort brightness, contrast, saturation and hue, each with probability 1/2; contrast before or after the last two."""
    chances = random.random_sample(5) < 0.5
    by = {
        "brightness": random.uniform(-BRIGHTNESS, BRIGHTNESS),
        "contrast": random.uniform(*CONTRAST),
        "saturation": random.uniform(*SATURATION),
        "hue": random.uniform(-HUE_DEGREES, HUE_DEGREES),
    }
    seen = picture_CHW + by["brightness"] if chances[0] else picture_CHW
    is_contrast_first = chances[4]
    if chances[1] and is_contrast_first:
        seen = seen * by["contrast"]
    seen = seen.clamp(0, 255)
    if chances[2]:
        seen = saturated(seen, by["saturation"])
    if chances[3]:
        seen = turned(seen, by["hue"])
    if chances[1] and not is_contrast_first:
        seen = seen * by["contrast"]
    return seen.clamp(0, 255)


def saturated(picture_CHW: Tensor, factor: float) -> Tensor:
    """Multiply the saturation of HSV by a factor, up to 1; hue and value stay."""
    value = picture_CHW.amax(dim=0, keepdim=True)
    least = picture_CHW.amin(dim=0, keepdim=True)
    most = torch.where(value > least, value / (value - least).clamp(min=1e-6), torch.inf)
    return value - (value - picture_CHW) * most.clamp(max=factor)


def turned(picture_CHW: Tensor, degrees: float) -> Tensor:
    """Turn the hue of HSV; saturation and value stay."""
    red, green, blue = picture_CHW
    value, chroma = picture_CHW.amax(dim=0), picture_CHW.amax(dim=0) - picture_CHW.amin(dim=0)
    safe = chroma.clamp(min=1e-6)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + degrees / 60
    # Smith's formula: the distance of a channel below the value is the distance of the hue from the channel's own hue.
    away = [(shift + hue) % 6 for shift in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in away])


def plain(picture_CHW: Tensor, side: int) -> Tensor:
    """Return a whole picture as input of a network outside training: float32, 0 … 255, square."""
    return resized(picture_CHW, side, side)
