"""Augmentation of whole batches, as tensor operations on the training device.

The results have the same distribution as torchvision's transforms of single images (RandomCrop with padding, RandomResizedCrop,
RandomHorizontalFlip, Normalize) and as the authors' Cutout. Those run one image at a time on the CPU.

Each image is augmented by one row of uniform random numbers. A row depends only on the seed and the step, and is drawn for the
global batch. Any number of ranks therefore sees the same images, and so does a resumed run.

Shapes: N samples of a rank, M copies of each, C channels, H rows, W columns, U numbers per image. Sources: T. DeVries and G.
Taylor, Cutout, arXiv 1708.04552; E. Hoffer et al., Augment your batch, arXiv 1901.09335.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chronograd.job import Augmentation

# Number of tries to find a rectangle that fits, and its minimum and maximum aspect ratio, as in
# torchvision.transforms.RandomResizedCrop.
CROP_TRIES = 10
ASPECTS = (3 / 4, 4 / 3)
# With more copies than this, images are normalised before they are copied: measured on two cores, 32 x 32.
EARLY_COPIES = 4
# Numbers of an image's row: crop (top, left), flip, cutout (row, column); then area and aspect of each try.
_NUM_FIXED = 5

Uniforms = np.ndarray[Any, np.dtype[np.float64]]


def draw(augmentation: Augmentation, seed: int, step: int, batch: int) -> Uniforms:
    """Draw uniform numbers in [0, 1) for the images of one step: shape (M, batch, U).

    NumPy's legacy generator draws them, because its stream will never change.
    """
    numbers = _NUM_FIXED + 2 * CROP_TRIES * (augmentation.resized_crop is not None)
    return np.random.RandomState([seed, step, 1]).random_sample((augmentation.copies, batch, numbers))


def augment(
    images_NCHW: Tensor,
    augmentation: Augmentation,
    draws: Tensor,
    scale_C: Tensor,
    shift_C: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the augmented batch: float32 of shape (M * N, C, H, W), copy by copy.

    Args:
        images_NCHW: whole numbers (uint8).
        draws: float64 of shape (M, N, U) on the images' device; see `draw`.
        scale_C, shift_C: normalisation, `pixel * scale - shift` per channel.
        generator: draws the pixels to drop; on the images' device.
    """
    copies, num_samples, _ = draws.shape
    u = draws.reshape(copies * num_samples, -1).unbind(1)
    which = torch.arange(num_samples, device=images_NCHW.device).repeat(copies)
    is_flipped = u[2] < 0.5 if augmentation.flip else torch.zeros_like(u[2], dtype=torch.bool)
    if augmentation.resized_crop is not None:
        seen = normalise(_resized_crop(images_NCHW[which], augmentation.resized_crop, u), scale_C, shift_C)
        seen = torch.where(is_flipped.view(-1, 1, 1, 1), seen.flip(3), seen)
    else:
        # With many copies it is cheaper to normalise before copying.
        is_early = copies > EARLY_COPIES
        padded = functional.pad(images_NCHW, (augmentation.crop,) * 4)
        padded = normalise(padded, scale_C, shift_C) if is_early else padded
        seen = _windows(padded, which, augmentation.crop, u[0], u[1], is_flipped)
        seen = seen if is_early else normalise(seen, scale_C, shift_C)
    if augmentation.cutout:
        seen.mul_(_kept(seen.shape, augmentation.cutout, u[3], u[4]))
    if augmentation.pixel_dropout:
        shape = (len(seen), 1, *seen.shape[2:])
        dropped = torch.rand(shape, device=seen.device, generator=generator) < augmentation.pixel_dropout
        seen.masked_fill_(dropped, 0.0)
    return seen


def normalise(images_NCHW: Tensor, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """Return `pixel * scale - shift` per channel, as float32, in new memory."""
    copy = images_NCHW.to(torch.float32, copy=True)
    return copy.mul_(scale_C.view(1, -1, 1, 1)).sub_(shift_C.view(1, -1, 1, 1))


def _whole(u: Tensor, count: int | Tensor) -> Tensor:
    """Return uniform whole numbers 0 … count - 1 from uniform numbers in [0, 1)."""
    return (u * count).long()


def _windows(
    padded_NCHW: Tensor, which: Tensor, padding: int, u_top: Tensor, u_left: Tensor, is_flipped: Tensor
) -> Tensor:
    """Cut a window at a random place out of each padded image, and mirror it where `is_flipped`. A window is smaller by
    the padding on each side.

    Every row of a window is a run of W pixels in memory. Indexing all possible runs once is several times faster than
    indexing images, tops and lefts.
    """
    both = torch.cat([padded_NCHW, padded_NCHW.flip(3)])
    num_images, channels, tall, wide = padded_NCHW.shape
    height, width = tall - 2 * padding, wide - 2 * padding
    top, left = _whole(u_top, 2 * padding + 1), _whole(u_left, 2 * padding + 1)
    left = torch.where(is_flipped, 2 * padding - left, left)
    first = ((which + num_images * is_flipped) * channels * tall + top) * wide + left
    lines = torch.arange(channels, device=both.device)[:, None] * tall + torch.arange(height, device=both.device)
    starts = first[:, None] + wide * lines.flatten()
    runs = both.as_strided((both.numel() - width + 1, width), (1, 1))  # a view: runs overlap
    return runs.index_select(0, starts.flatten()).view(-1, channels, height, width)


def _resized_crop(images_NCHW: Tensor, least_area: float, u: tuple[Tensor, ...]) -> Tensor:
    """Cut a random rectangle out of each image and resize it to the size of the images: float32.

    The first of ten random rectangles that fits is used. If none fits, the largest centred one with an allowed aspect ratio is.
    """
    height, width = images_NCHW.shape[2:]
    area = height * width * (least_area + (1 - least_area) * torch.stack(u[_NUM_FIXED::2], 1))
    low, high = (math.log(aspect) for aspect in ASPECTS)
    aspect = torch.exp(low + (high - low) * torch.stack(u[_NUM_FIXED + 1 :: 2], 1))
    tall, wide = torch.round(torch.sqrt(area / aspect)), torch.round(torch.sqrt(area * aspect))
    fits = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    whole = min(max(width / height, ASPECTS[0]), ASPECTS[1])
    middle = (height, round(height * whole)) if whole < width / height else (round(width / whole), width)
    is_fit = fits.any(1)
    h, w = (
        torch.where(is_fit, sizes.gather(1, first).squeeze(1), float(fallback))
        for sizes, fallback in zip((tall, wide), middle, strict=True)
    )
    top = torch.where(is_fit, _whole(u[0], height - h + 1), ((height - h) / 2).long())
    left = torch.where(is_fit, _whole(u[1], width - w + 1), ((width - w) / 2).long())
    return _sample(images_NCHW, top, left, h, w)


def _sample(images_NCHW: Tensor, top: Tensor, left: Tensor, h: Tensor, w: Tensor) -> Tensor:
    """Resize one box of each image to the size of the images, bilinearly, as if each box had been cropped first."""
    height, width = images_NCHW.shape[2:]

    def places(first: Tensor, length: Tensor, size: int) -> Tensor:
        """Return the centres of the new pixels in units of old ones, clamped to the centres of the outer pixels of the box."""
        steps = torch.arange(size, device=first.device) + 0.5
        inside = (steps * (length / size)[:, None]).clamp(min=0.5).minimum(length[:, None] - 0.5)
        return (first[:, None] + inside) * 2 / size - 1

    y, x = places(top, h, height), places(left, w, width)
    grid = torch.stack([x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], dim=3)
    return functional.grid_sample(images_NCHW.float(), grid.float(), mode="bilinear", align_corners=False)


def _kept(shape: tuple[int, ...], side: int, u_row: Tensor, u_column: Tensor) -> Tensor:
    """Return 0 inside the squares and 1 elsewhere: float32 of shape (N, 1, H, W).

    The centre of a square is uniform over all pixels. It extends `side // 2` in each direction, clipped at the edges.
    """

    def inside(u: Tensor, size: int) -> Tensor:
        away = torch.arange(size, device=u.device) - _whole(u, size)[:, None]
        return ((away >= -(side // 2)) & (away < side // 2)).float()

    rows, columns = inside(u_row, shape[2]), inside(u_column, shape[3])
    return (1 - rows[:, :, None] * columns[:, None, :]).unsqueeze(1)
