"""Normalisation: from the whole numbers of a pixel to the network's input, `pixel * scale - shift` per channel.

Pixels are whole numbers 0 … `top`. Needs no torch.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.words import how_many

Array = np.ndarray[Any, Any]
Channels = tuple[float, ...]
Normalisation = Literal["own", "imagenet", "signed", "unit", "raw"]

# Mean and deviation of ImageNet's training images, as the pretrained networks of torchvision and timm expect them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Grey images get the means of the three.
IMAGENET_GREY_MEAN, IMAGENET_GREY_STD = (0.449,), (0.226,)


class PixelCounts:
    """Counts of each pixel value per channel, added up over batches, so that mean and deviation are exact."""

    def __init__(self, num_channels: int, top: int) -> None:
        self.counts_CV = np.zeros((num_channels, top + 1), dtype=np.int64)

    def add(self, images_NCHW: Array) -> None:
        for channel, counts_V in enumerate(self.counts_CV):
            counts_V += np.bincount(images_NCHW[:, channel].ravel(), minlength=len(counts_V))

    def mean_std(self) -> tuple[Channels, Channels]:
        """Return mean and standard deviation per channel, in units of `top`. A constant channel has deviation 1."""
        values_V = np.arange(self.counts_CV.shape[1]) / (self.counts_CV.shape[1] - 1)
        shares_CV = self.counts_CV / self.counts_CV.sum(axis=1, keepdims=True)
        mean_C = shares_CV @ values_V
        std_C = np.sqrt((shares_CV * (values_V - mean_C[:, None]) ** 2).sum(axis=1))
        return tuple(mean_C.tolist()), tuple((float(s) or 1.0) for s in std_C)


def scale_shift(kind: Normalisation, mean_C: Channels, std_C: Channels, top: int) -> tuple[Channels, Channels]:
    """Return scale and shift per channel.

    own       (x / top - mean) / std with the mean and std of the training images

    imagenet  the same with ImageNet's

    signed    2 x / top - 1

    unit      x / top

    raw       x * 255 / top

    Raises: InputError for `imagenet` on images of other than 1 or 3 channels.
    """
    channels = len(mean_C)
    if kind == "imagenet":
        mean_C, std_C = _imagenet(channels)
    elif kind == "signed":
        mean_C, std_C = (0.5,) * channels, (0.5,) * channels
    elif kind != "own":
        largest = 1.0 if kind == "unit" else 255.0
        return (largest / top,) * channels, (0.0,) * channels
    return (
        tuple(1 / (top * std) for std in std_C),
        tuple(mean / std for mean, std in zip(mean_C, std_C, strict=True)),
    )


def _imagenet(channels: int) -> tuple[Channels, Channels]:
    if channels == 1:
        return IMAGENET_GREY_MEAN, IMAGENET_GREY_STD
    if channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    raise InputError(
        f"data.normalisation is imagenet and images have {how_many(channels, 'channels')}; ImageNet's have 3",
        "write data.normalisation=own",
    )
