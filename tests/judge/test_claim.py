"""Throughput figures as people write them."""

from __future__ import annotations

import pytest

from chronograd.errors import InputError
from chronograd.judge.claim import is_claim, parse


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("812 images/s", 812),
        ("812/s", 812),
        ("812 samples / s", 812),
        ("1,812.5 img/sec", 1812.5),
        ("812", 812),
        ("78 ms", 64 / 0.078),
        ("78ms/step", 64 / 0.078),
        ("0.078 seconds per step", 64 / 0.078),
        ("12.5 steps/s", 12.5 * 64),
        ("12.5 it/s", 12.5 * 64),
        ("2 ms per image", 500),
        ("812 images per second", 812),
        ("812 tokens/s", 812 / 16),
        ("812 tok/s/gpu", 8 * 812 / 16),
        ("812 images/s/GPU", 8 * 812),
        ("812 images/s per device", 8 * 812),
    ],
)
def test_figures_with_units(text: str, rate: float) -> None:
    assert is_claim(text)
    assert parse(text).samples_per_s(batch=64, devices=8, tokens=16) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["0/s", "812 parsecs", "812 images/h", "fast", "812 ms/s", "-3/s", "78 ms/gpu"])
def test_invalid_figures(text: str) -> None:
    with pytest.raises(InputError, match="throughput"):
        parse(text)


@pytest.mark.parametrize("text", ["resnet50", "runs/mine", "torchvision:vgg19", "job.yaml"])
def test_names_are_not_figures(text: str) -> None:
    assert not is_claim(text)
