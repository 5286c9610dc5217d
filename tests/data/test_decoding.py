"""Which data a host decodes while a job trains."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from chronograd.data.decoding import decoding_of
from chronograd.job import from_dict
from chronograd.plan.renting import PHOTOGRAPHS, Decoding


def test_photographs_in_files_are_decoded_while_training(tmp_path: Path) -> None:
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
