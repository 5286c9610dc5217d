"""Normalisation, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd.data.normalisation import PixelCounts, scale_shift
from chronograd.errors import InputError


def test_mean_and_deviation_cover_all_batches() -> None:
    images = np.random.RandomState(0).randint(0, 17, (50, 3, 4, 5)).astype(np.uint8)
    counts = PixelCounts(3, top=16)
    for part in (images[:7], images[7:]):
        counts.add(part)
    mean_C, std_C = counts.mean_std()
    assert mean_C == pytest.approx((images / 16).mean(axis=(0, 2, 3)), rel=1e-12)
    assert std_C == pytest.approx((images / 16).std(axis=(0, 2, 3)), rel=1e-12)


def test_constant_channel_has_deviation_one() -> None:
    counts = PixelCounts(1, top=255)
    counts.add(np.full((2, 1, 3, 3), 51, np.uint8))
    assert counts.mean_std() == ((pytest.approx(0.2),), (1.0,))


def test_scale_and_shift_by_hand() -> None:
    def seen(kind: str, pixel: int, top: int) -> float:
        (scale,), (shift,) = scale_shift(kind, (0.25,), (0.5,), top)  # type: ignore[arg-type]
        return pixel * scale - shift

    assert seen("own", 16, 16) == pytest.approx((1 - 0.25) / 0.5)
    assert seen("own", 0, 16) == pytest.approx(-0.25 / 0.5)
    assert seen("unit", 16, 16) == pytest.approx(1)
    assert seen("unit", 51, 255) == pytest.approx(0.2)
    assert seen("signed", 16, 16) == pytest.approx(1)
    assert seen("signed", 0, 255) == pytest.approx(-1)
    assert seen("raw", 16, 16) == pytest.approx(255)
    assert seen("raw", 200, 255) == pytest.approx(200)
    assert seen("imagenet", 255, 255) == pytest.approx((1 - 0.449) / 0.226)  # grey: means of the three


def test_imagenet_normalisation_needs_one_or_three_channels() -> None:
    scale_C, shift_C = scale_shift("imagenet", (0.0,) * 3, (1.0,) * 3, 255)
    assert [255 * s for s in scale_C] == pytest.approx([1 / 0.229, 1 / 0.224, 1 / 0.225])
    assert shift_C == pytest.approx((0.485 / 0.229, 0.456 / 0.224, 0.406 / 0.225))
    with pytest.raises(InputError, match="images have 2 channels"):
        scale_shift("imagenet", (0.0,) * 2, (1.0,) * 2, 255)
