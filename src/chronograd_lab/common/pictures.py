"""Training images as a network sees them after augmentation, without its normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronograd.job import Augmentation

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from chronograd.data.datasets import Dataset


def augmented(dataset: Dataset, images: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    """Return the augmented copies of some images (N, C, H, W), in the data set's own range.

    The network gets 0 for a hidden pixel, after normalisation. So a hidden pixel has the mean colour if the mean is subtracted.
    """
    import torch

    from chronograd.data import augment

    draws = torch.from_numpy(augment.draw(augmentation, 0, 0, len(images)))
    scale_C, shift_C = torch.tensor(dataset.scale_C), torch.tensor(dataset.shift_C)
    seen = augment.augment(images, augmentation, draws, scale_C, shift_C)
    return (seen + shift_C.view(1, -1, 1, 1)) / scale_C.view(1, -1, 1, 1)


def pixels_of(images: torch.Tensor, top: float) -> NDArray[np.uint8]:
    """Return images as bytes (N, H, W, C); `top` is the value of white."""
    import torch

    shown = (images * (255 / top)).round().clamp(0, 255).to(torch.uint8)
    return shown.permute(0, 2, 3, 1).numpy()
