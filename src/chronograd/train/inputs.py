"""The input of a network, batch by batch: normalised and augmented images, stored features, or text.

All have the same three stages: `gather` (on the CPU, or on the device of the images), `transfer` to the device,
`prepare` there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from chronograd.data import augment
from chronograd.data.datasets import Dataset
from chronograd.data.images import Images
from chronograd.job import Augmentation
from chronograd.train.order import CHUNK


class ImageInput:
    """Images of one split, normalised on the device, and augmented there in training."""

    def __init__(
        self,
        images: Images,
        dataset: Dataset,
        device: torch.device,
        channels_last: bool = False,
        augmentation: Augmentation | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.images = images.to(device)
        self.augmentation = augmentation
        self._scale_C = torch.tensor(dataset.scale_C, dtype=torch.float32, device=device)
        self._shift_C = torch.tensor(dataset.shift_C, dtype=torch.float32, device=device)
        self._dtype = dtype
        self._layout = torch.channels_last if channels_last else torch.contiguous_format

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, samples: np.ndarray) -> Tensor:
        """Return the raw samples. If they are files, wait for those that are still being read."""
        return self.images.batch(samples)

    def prefetch(self, samples: np.ndarray) -> None:
        """Announce samples that will be needed soon."""
        self.images.prefetch(samples)

    def prepare(self, raw: Tensor, draws: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Return the network's input from raw samples on the device, augmented by `draws` if given."""
        if draws is None or self.augmentation is None:
            seen = augment.normalise(raw, self._scale_C, self._shift_C)
        else:
            seen = augment.augment(raw, self.augmentation, draws, self._scale_C, self._shift_C, generator)
        return seen.to(self._dtype).contiguous(memory_format=self._layout)


class RowInput:
    """Rows on the device, unchanged: tokens, or features that a frozen trunk computed from the images. N rows."""

    def __init__(self, rows_N: Tensor) -> None:
        self.rows_N = rows_N

    def __len__(self) -> int:
        return len(self.rows_N)

    def gather(self, samples: np.ndarray) -> Tensor:
        return self.rows_N[torch.from_numpy(samples).to(self.rows_N.device)]

    def prefetch(self, samples: np.ndarray) -> None:
        """Do nothing: the rows are in memory."""

    def prepare(self, raw: Tensor, draws: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        return raw


InputSplit = ImageInput | RowInput


def input_of(
    split: Images | Tensor,
    dataset: Dataset,
    device: torch.device,
    channels_last: bool = False,
    augmentation: Augmentation | None = None,
    dtype: torch.dtype = torch.float32,
) -> InputSplit:
    """Return the input of a network from a split of images, in a data type, or of text."""
    if isinstance(split, Tensor):
        return RowInput(split.to(device))
    return ImageInput(split, dataset, device, channels_last, augmentation, dtype)


def in_chunks(
    seen: InputSplit, samples: np.ndarray, device: torch.device, size: int = CHUNK
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield samples as input of a network, not augmented, `size` at a time. The next chunk is read while one is used."""
    for start in range(0, len(samples), size):
        chunk, later = samples[start : start + size], samples[start + size : start + 2 * size]
        if len(later):
            seen.prefetch(later)
        yield chunk, seen.prepare(seen.gather(chunk).to(device))
