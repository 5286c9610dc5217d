"""Classification through the server: a picture returns class names and probabilities with training's preprocessing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.deploy import onnx_models
from tests.deploy.conftest import NETWORK
from tests.deploy.running import Running, floats, serving

from chronograd.cli.main import main
from chronograd.data.folders import decode
from chronograd.deploy import model as models
from chronograd.deploy import pictures
from chronograd.deploy.classification import Classifier
from chronograd.deploy.protocol import ProtocolError

ABOUT = {
    "preprocessing": {"place": "outside", "scale": [2 / 255] * 3, "shift": [1.0] * 3, "top": 255},
    "classes": ["red", "green", "blue"],
}


def body(picture: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **how)
    return stream.getvalue()


def turned(picture: Image.Image, orientation: int) -> bytes:
    """Return the file of a picture with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return body(picture, exif=exif)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def post(server: Running, model: str, content: bytes, kind: str = "image/png") -> tuple[int, Any]:
    status, _, told = server.ask("POST", f"/v2/models/{model}/infer", content, Content_Type=kind)
    return status, json.loads(told)


@pytest.mark.serve
def test_classes_of_a_picture(tmp_path: Path) -> None:
    onnx_models.classifier(tmp_path / "outside.onnx", ABOUT)
    onnx_models.classifier(tmp_path / "wide.onnx", ABOUT, width=3)
    onnx_models.classifier(tmp_path / "unknown.onnx", {})
    onnx_models.scale(tmp_path / "m.onnx")
    left_red = Image.new("RGB", (40, 40))
    left_red.paste((255, 0, 0), (0, 0, 20, 40))
    with serving(tmp_path) as server:
        status, answer = post(server, "outside", body(Image.new("RGB", (40, 40), (255, 0, 0))))
        assert status == 200
        # Logits 1, -1, -1: the normalised red of the top left pixel, and no green or blue.
        share = np.exp([1, -1, -1]) / np.exp([1, -1, -1]).sum()
        assert answer == {
            "model_name": "outside",
            "model_version": "1",
            "classes": [
                {"label": name, "probability": pytest.approx(value, abs=1e-5)}
                for name, value in zip(("red", "green", "blue"), share, strict=True)
            ],
        }
        assert post(server, "outside", body(left_red, "JPEG"), "image/jpeg; q=1")[1]["classes"][0]["label"] == "red"
        # Stored upside down and turned upright by EXIF: red is on the right.
        by_exif = post(server, "outside", turned(left_red, 3))[1]["classes"]
        assert {row["label"]: row["probability"] for row in by_exif}["red"] < 0.5
        assert post(server, "outside", body(left_red))[1]["classes"][0]["probability"] > 0.7
        for model, content, words in (
            ("outside", b"no picture", "not a readable picture"),
            ("outside", body(left_red)[:60], "not a readable picture"),
            ("wide", body(left_red), "not a classifier of square pictures"),
            ("m", body(left_red), "m does not take pictures"),
            ("unknown", body(left_red), "has no preprocessing or classes"),
        ):
            status, answer = post(server, model, content)
            assert (status, words in answer["error"], "\n" in answer["error"]) == (400, True, False), answer
        assert post(server, "outside", body(Image.new("RGB", (10_000, 6_000))))[0] == 413
        assert server.infer("m", x=floats([1, 2, 3, 4]))["y"].tolist() == [[2, 4, 6, 8]]


@pytest.mark.onnx
@pytest.mark.parametrize("place", ["inside", "outside"])
def test_pixels_match_training(tmp_path: Path, place: str) -> None:
    about = {**ABOUT, "preprocessing": {**ABOUT["preprocessing"], "place": place}}  # type: ignore[dict-item]
    classifier = Classifier.of(models.load(onnx_models.classifier(tmp_path / "m.onnx", about, side=16)))
    for number, content in enumerate((body(noise(40, 20)), turned(noise(20, 33), 6), body(noise(16, 16).convert("L")))):
        path = tmp_path / f"{number}.png"
        path.write_bytes(content)
        pixels, _ = decode(path, 16)
        (seen,) = classifier.read(content)
        expected = pixels if place == "inside" else pixels * np.float32(2 / 255) - np.float32(1)
        assert seen.dtype == (np.uint8 if place == "inside" else np.float32)
        np.testing.assert_allclose(seen, expected, atol=1e-6)


def test_picture_memory_is_limited(tmp_path: Path) -> None:
    classifier = Classifier("x", 3, 224, 255, None, None, ["a"])
    held: list[int] = []
    classifier.read(body(noise(40, 20)), held.append)
    assert held == [4 * 40 * 20, -4 * 40 * 20]
    # A line of n pixels would be resized to 224 n x 224.
    with pytest.raises(ProtocolError, match="too narrow"):
        classifier.read(body(Image.new("RGB", (pictures.MAX_PIXELS // 224**2 + 1, 1))))


def test_five_most_likely_classes_come_first() -> None:
    named = Classifier("x", 3, 8, 255, None, None, list("abcdef"))
    rows = named.labels(np.array([0, 5, 1, 4, 2, 3], np.float32))
    assert [row["label"] for row in rows] == ["b", "d", "f", "e", "c"]
    assert rows[0]["probability"] == pytest.approx(np.exp(5) / np.exp(np.arange(6)).sum(), abs=1e-6)
    assert Classifier("x", 3, 8, 255, None, None, []).labels(np.array([0, 1000]))[0] == {
        "label": "1",
        "probability": 1.0,
    }


@pytest.mark.serve
def test_exported_run_names_classes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Grey 8-bit pictures for a data set whose pixels end at 16."""
    from chronograd.data import datasets
    from chronograd.rundir import RunDir

    assert main(["--trust", NETWORK.rpartition(":")[0], "export", "runs/mine", "--onnx", "mine.onnx"]) == 0
    capsys.readouterr()
    digits = datasets.load(RunDir.open("runs/mine").job().data)
    images_NHW = digits.test.images_NCHW.numpy()[:20, 0]  # type: ignore[union-attr]
    with serving(here / "mine.onnx") as server:
        told = [
            post(server, "mine", body(Image.fromarray(np.rint(one * (255 / 16)).astype(np.uint8))))[1]["classes"]
            for one in images_NHW
        ]
    assert [len(rows) for rows in told] == [5] * 20
    right = [rows[0]["label"] == str(int(label)) for rows, label in zip(told, digits.test_labels_N, strict=False)]
    assert sum(right) >= 18
