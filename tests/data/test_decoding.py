"""Data that a host decodes during training."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from chronograd.data.decoding import decoding_of, paced_by_input
from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.job import from_dict
from chronograd.plan.renting import PHOTOGRAPHS, Decoding


def test_photographs_are_decoded_during_training(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (300, 240), (40 * i, 90, 10)).save(folder / f"{i}.jpg")
    stated = {"name": f"folder:{tmp_path}"}

    def decoding(data: dict[str, object], per_vcpu: float | None = None, **cluster: object) -> object:
        return decoding_of(from_dict({"network": {"name": "resnet20"}, "data": data, "cluster": cluster}), per_vcpu)

    assert decoding(stated) == PHOTOGRAPHS
    assert decoding({**stated, "loading": "resident"}) is None
    assert decoding(stated, input_samples_per_s=1000.0) is None
    assert decoding(stated, 0.0) is None
    assert decoding({"name": "digits"}, 500.0) == Decoding(500.0, 500.0, 500.0)
    assert decoding({"name": "cifar10"}) is None
    assert decoding({"name": "synthetic", "shape": [3, 224, 224], "classes": 2, "samples": 10}) is None


@pytest.mark.parametrize(
    ("count", "vcpus", "batch", "expected"),
    [
        (1, 8.0, 256, 8 * 140.0),  # training takes 2,560 images/s
        (1, 32.0, 256, None),
        (1, None, 256, None),
        (8, 8.0, 256, 64 * 140.0),  # eight instances of one device are one node of eight
        (16, 8.0, 256, 64 * 140.0),
    ],
)
def test_few_virtual_cpus_limit_training(
    monkeypatch: pytest.MonkeyPatch, count: int, vcpus: float | None, batch: int, expected: float | None
) -> None:
    offer = Price(vendor="v", instance="i", device="v100", count=1, price_usd_per_hour=1.0, kind="on-demand", includes_host=True,
                  date="2026-11-01", tag="assumed", source="here", vcpus=vcpus, up_to=8)  # fmt: skip
    monkeypatch.setattr(market, "price_of", lambda device, count: offer)
    job = from_dict(
        {
            "network": {"name": "torchvision:resnet50"},
            "data": {"name": "imagenet"},
            "training": {"batch": batch * count},
            "cluster": {"device": "v100", "count": count},
            "backend": "ddp" if count > 1 else "single",
        }
    )
    paced = paced_by_input(job, 0.1)
    if expected is None:
        assert paced is None
        return
    assert paced is not None
    assert paced[0].cluster.input_samples_per_s == expected
    assert f"decode {expected:,.0f} images/s" in paced[1]
    assert paced_by_input(paced[0], 0.1) is None  # the job states the rate now
    assert paced_by_input(job.model_copy(update={"mode": "inference"}), 0.1) is None
