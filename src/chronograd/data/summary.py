"""What a loaded data set looks like: images per class, and a few sample images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chronograd.data.datasets import Dataset

Array = np.ndarray[Any, Any]

SAMPLE_CLASSES = 2
SAMPLES_PER_CLASS = 4


@dataclass(frozen=True)
class SampleImages:
    """Training images of one class: their numbers in the published split, and their pixels 0 … 255."""

    class_name: str
    samples: Sequence[int]
    images_NCHW: Array


def images_per_class(dataset: Dataset) -> tuple[list[float], list[int]]:
    """Training and test images of each class. Where labels are probabilities, the first are their sums."""
    num_classes = dataset.card.num_classes
    test = torch.bincount(dataset.test_labels_N, minlength=num_classes).tolist()
    if dataset.train_labels.ndim == 1:
        return torch.bincount(dataset.train_labels, minlength=num_classes).tolist(), test
    return dataset.train_labels.sum(dim=0, dtype=torch.float64).tolist(), test


def sample_images(dataset: Dataset) -> list[SampleImages]:
    """The first training images of the first two classes that have any; of probabilities the largest decides."""
    labels_N = dataset.train_labels if dataset.train_labels.ndim == 1 else dataset.train_labels.argmax(dim=1)
    found = []
    for label in torch.unique(labels_N).tolist()[:SAMPLE_CLASSES]:
        positions = np.flatnonzero(labels_N.numpy() == label)[:SAMPLES_PER_CLASS]
        pixels = dataset.train.batch(positions).numpy()
        if dataset.top != 255:
            pixels = np.rint(pixels * (255 / dataset.top)).astype(np.uint8)
        samples = dataset.train_samples_N[positions].tolist()
        found.append(SampleImages(dataset.card.class_names[label], samples, pixels))
    return found
