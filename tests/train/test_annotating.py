"""`annotate` with pretrained weights of a detector: a planted object, and a photograph with the public weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from chronograd.cli.main import main
from chronograd.models import pretrained
from chronograd.models.registry import build

FILE = "two.safetensors"
PUBLIC = "object_detection_ssd_mobilenetv2_oidv4_fp16.tflite"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the table of weights: a detector that always sees a dog in the first prior of the last map."""
    network: Any = build("ssd-mobilenet-v2", num_classes=2)
    with torch.no_grad():
        for headers in (network.classification_headers, network.regression_headers):
            for header in headers:
                header.weight.zero_()
                header.bias.fill_(-9.0 if headers is network.classification_headers else 0.0)
        network.classification_headers[5].bias[2] = 2.0  # of the first prior's background, cat and dog
    path = tmp_path / "weights" / FILE
    path.parent.mkdir()
    save_file(network.state_dict(), path)
    row = {
        "network": "ssd-mobilenet-v2",
        "classes": ["cat", "dog"],
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    monkeypatch.setattr(pretrained, "_table", lambda: {FILE: row})
    monkeypatch.setenv("CHRONOGRAD_WEIGHTS", str(path.parent))
    return path


def objects_of(
    capsys: pytest.CaptureFixture[str], picture: Path, model: str, out: Path, *least: str
) -> list[dict[str, Any]]:
    assert main(["annotate", str(picture), "--model", model, "--out", str(out), "--json", *least]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    objects: list[dict[str, Any]] = image["objects"]
    return objects


def test_planted_object_of_pretrained_weights(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prior is the square of side 0.95 in the middle: 0.025 to 0.975 of 200 and 100 pixels; its score is a sigmoid of 2."""
    picture = tmp_path / "grey.png"
    Image.new("RGB", (200, 100), (90, 90, 90)).save(picture)
    for model in (FILE, str(weights)):
        (dog,) = objects_of(capsys, picture, model, tmp_path / "out")
        assert (dog["class"], dog["box"]) == ("dog", [5.0, 2.5, 195.0, 97.5])
        assert dog["score"] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-4)
    assert (tmp_path / "out" / "grey.png").is_file()


def test_missing_or_another_file_is_an_error(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "grey.png"
    Image.new("RGB", (20, 10)).save(picture)
    other = tmp_path / FILE
    other.write_bytes(weights.read_bytes() + b" ")
    assert main(["annotate", str(picture), "--model", str(other)]) == 2
    assert f"{other} has the sha256 " in capsys.readouterr().err
    monkeypatch.setenv("CHRONOGRAD_WEIGHTS", str(tmp_path / "empty"))
    assert main(["annotate", str(picture), "--model", FILE]) == 2
    assert f"weights {FILE} are not on this machine" in capsys.readouterr().err


def test_public_weights_find_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Matplotlib's photograph of Grace Hopper: one person, who takes most of it. Her score is 0.48."""
    if pretrained.located(PUBLIC) is None:
        pytest.skip(f"{PUBLIC} is not on this machine")
    cbook = pytest.importorskip("matplotlib.cbook")
    picture = Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    (person,) = objects_of(capsys, picture, PUBLIC, tmp_path, "--least", "0.3")
    assert person["class"] == "Person"
    left, top, right, bottom = person["box"]
    with Image.open(picture) as image:
        width, height = image.size
    assert (right - left) * (bottom - top) > 0.5 * width * height
