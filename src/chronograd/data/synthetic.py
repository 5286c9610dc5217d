"""Synthetic images of any shape: a seed draws pixels from a normal distribution, and labels."""

from __future__ import annotations

import math

from chronograd.data.published import Arrays, DatasetCard
from chronograd.errors import InputError
from chronograd.job import Data
from chronograd.measure import environment
from chronograd.units import si

SAMPLES = 1024
# Mean and standard deviation of the pixels before they are rounded and clipped to 0 … 255.
MEAN, STD = 128.0, 32.0
# Images drawn at once, so that the floating-point numbers take little memory.
_CHUNK = 64


def card(data: Data) -> DatasetCard:
    """Return the card of a job's synthetic set: `data.samples` training images, and `data.test_samples` or a quarter as
    test images.

    Raises InputError for a shape that is not an image, and for fields that select from an existing set.
    """
    if data.shape is None or data.classes is None:
        raise InputError(
            "data.name is synthetic and data.shape or data.classes is not given",
            "write data.shape=[3,32,32] data.classes=10",
        )
    if len(data.shape) != 3:
        raise InputError(f"data.shape is {data.shape}; an image has channels, height and width", "such as [3,32,32]")
    for field in ("image_size", "skip", "long_tail"):
        if getattr(data, field):
            raise InputError(
                f"data.{field} is {getattr(data, field)}; synthetic images cannot be selected or resized",
                f"leave data.{field} out; set data.shape and data.samples instead",
            )
    channels, height, width = data.shape
    samples = data.samples or SAMPLES
    return DatasetCard(
        name="synthetic",
        shape=(channels, height, width),
        num_classes=data.classes,
        class_names=tuple(str(c) for c in range(data.classes)),
        train_size=samples,
        test_size=data.test_samples or max(1, samples // 4),
        source="drawn from a normal distribution",
    )


def check_memory(described: DatasetCard) -> None:
    """Raise InputError for images that do not fit into this machine's total memory."""
    count = described.train_size + described.test_size
    size, memory = count * math.prod(described.shape), environment.ram_bytes()
    if memory is not None and size > memory:
        raise InputError(
            f"{count:,} synthetic images of {' × '.join(map(str, described.shape))} take {si(size, 'B')}, "
            f"and this machine has {si(memory, 'B')} of memory",
            "write a smaller data.shape or data.samples",
        )


def draw(described: DatasetCard, seed: int) -> Arrays:
    """Draw images and labels. They are independent, so that accuracy stays at chance.

    Raises InputError for images that do not fit into this machine's memory.
    """
    check_memory(described)
    import torch

    generator = torch.Generator().manual_seed(seed)

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(described.num_classes, (count,), generator=generator)
        images = torch.empty(count, *described.shape, dtype=torch.uint8)
        for start in range(0, count, _CHUNK):
            chunk = images[start : start + _CHUNK]
            drawn = torch.randn(chunk.shape, generator=generator).mul_(STD).add_(MEAN)
            chunk.copy_(drawn.round_().clamp_(0, 255))
        return images, labels

    (train, train_labels), (test, test_labels) = part(described.train_size), part(described.test_size)
    return Arrays(train.numpy(), train_labels.numpy(), test.numpy(), test_labels.numpy(), top=255)
