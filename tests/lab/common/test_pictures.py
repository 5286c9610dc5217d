"""Pictures of augmented images show what the network gets, without its normalisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chronograd.data import datasets
from chronograd.job import Augmentation, Data
from chronograd_lab.common.pictures import augmented, pixels_of


def test_unchanged_image_is_the_original() -> None:
    dataset = datasets.load(Data(name="digits"))
    images = dataset.train.batch(np.arange(3))
    assert torch.allclose(augmented(dataset, images, Augmentation()), images.float(), atol=1e-4)
    assert pixels_of(images.float(), dataset.top).shape == (3, 8, 8, 1)


@pytest.mark.parametrize(("normalisation", "is_black"), [("own", False), ("unit", True)])
def test_hidden_pixel_is_the_zero_of_the_network(normalisation: str, is_black: bool) -> None:
    """Cutout sets a normalised pixel to 0. That is the mean colour if the mean is subtracted, and else black."""
    data = Data.model_validate({"name": "digits", "normalisation": normalisation})
    dataset = datasets.load(data)
    images = dataset.train.batch(np.arange(1))
    hidden = augmented(dataset, images, Augmentation(cutout=32))  # the square covers the whole image
    assert float(hidden.std()) == pytest.approx(0, abs=1e-4)
    mean = 0.0 if is_black else dataset.shift_C[0] / dataset.scale_C[0]
    assert float(hidden.mean()) == pytest.approx(mean, abs=1e-3)
    assert (mean == 0) == is_black
