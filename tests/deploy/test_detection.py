"""Detection through the server: a picture returns labelled boxes in its own pixels, after suppression."""

from __future__ import annotations

import io
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.deploy import onnx_models
from tests.deploy.running import Running, floats, serving

from chronograd.cli.main import main
from chronograd.deploy.detection import DetectorFormat, suppressed
from chronograd.deploy.protocol import ProtocolError
from chronograd.detect.annotating import colour_of

ABOUT = {
    "preprocessing": {"place": "outside", "scale": [1 / 255] * 3, "shift": [0.0] * 3, "top": 255},
    "suppression": {"place": "outside", "score": 0.01, "overlap": 0.45, "candidates": 200},
    "classes": ["cat", "dog"],
}


# Formats that only Pillow reads: one starts a program, one raises an unrelated error.
OTHERS = (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", b"DDS " + struct.pack("<31I", 124, *[0] * 30))


def png(level: int, width: int = 40, height: int = 20) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (width, height), (level,) * 3).save(stream, "PNG")
    return stream.getvalue()


def post(server: Running, model: str, body: bytes, query: str = "") -> tuple[int, Any]:
    status, _, content = server.ask("POST", f"/v2/models/{model}/detect{query}", body)
    return status, json.loads(content)


@pytest.mark.serve
def test_objects_of_a_picture(tmp_path: Path) -> None:
    onnx_models.detector(tmp_path / "outside.onnx", ABOUT)
    inside = {**ABOUT["preprocessing"], "place": "inside"}
    onnx_models.detector(tmp_path / "inside.onnx", {**ABOUT, "preprocessing": inside})
    onnx_models.detector(tmp_path / "unknown.onnx", {"preprocessing": {"place": "outside"}})
    onnx_models.scale(tmp_path / "m.onnx")
    with serving(tmp_path, "--queue", "2") as server:
        status, answer = post(server, "outside", png(255))
        assert status == 200
        assert (answer["model_name"], answer["width"], answer["height"]) == ("outside", 40, 20)
        # The second box is a dog; as a cat, the first box suppresses it. The third box ends at the border.
        assert answer["objects"] == [
            {"label": "cat", "score": 0.9, "box": [0.0, 0.0, 20.0, 10.0]},
            {"label": "dog", "score": 0.7, "box": [0.0, 0.0, 20.0, 8.0]},
            {"label": "cat", "score": 0.6, "box": [20.0, 10.0, 40.0, 20.0]},
        ]
        half = post(server, "outside", png(128))[1]["objects"]
        assert [row["score"] for row in half] == pytest.approx(
            [0.9 * 128 / 255, 0.7 * 128 / 255, 0.6 * 128 / 255], abs=2e-4
        )
        assert len(post(server, "outside", png(255), "?least=0.65")[1]["objects"]) == 2
        # Raw pixels; this model normalises them itself.
        assert post(server, "inside", png(1))[1]["objects"] == answer["objects"]
        for model, body, query, words in (
            ("outside", b"no picture", "", "not a readable picture"),
            ("outside", png(255)[:60], "", "not a readable picture"),
            *(("outside", content, "", "it is not JPEG, PNG") for content in OTHERS),
            ("outside", png(255), "?least=2", "send a number from 0 to 1"),
            ("m", png(255), "", "m is not a detection model"),
            ("unknown", png(255), "", "has no metadata on the normalisation of pixels"),
        ):
            status, answer = post(server, model, body, query)
            assert (status, words in answer["error"]) == (400, True), answer
        assert post(server, "outside", png(0, 10_000, 6_000))[0] == 413
        assert server.infer("m", x=floats([1, 2, 3, 4]))["y"].tolist() == [[2, 4, 6, 8]]
        # A few large pictures are decoded at a time, and a few wait.
        large = png(0, 3000, 3000)
        with ThreadPoolExecutor(16) as pool:
            told = list(pool.map(lambda _: server.ask("POST", "/v2/models/outside/detect", large)[:2], range(16)))
        assert {status for status, _ in told} == {200, 503}
        assert all(headers["retry-after"] == "1" for status, headers in told if status == 503)


def test_pixel_budget_is_reserved_during_decoding() -> None:
    held: list[int] = []
    detector = DetectorFormat("x", 8, 8, None, None, ["a"], 0.45, 50)
    assert detector.read(png(1, 40, 20), held.append)[1:] == (40, 20)
    assert held == [4 * 40 * 20, -4 * 40 * 20]

    def refuse(count: int) -> None:
        raise ProtocolError("full", 503, 1)

    with pytest.raises(ProtocolError, match="full"):
        detector.read(png(1, 40, 20), refuse)


def test_suppression_matches_training() -> None:
    """`detect.suppression`, which uses torchvision, gives the same result for equal scores and boxes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from chronograd.detect.suppression import detections

    random = np.random.default_rng(0)
    low = random.uniform(0, 0.7, (300, 2)).astype(np.float32)
    boxes = np.concatenate([low, low + random.uniform(0.05, 0.3, (300, 2)).astype(np.float32)], axis=1)
    scores = random.dirichlet(np.ones(4), 300).astype(np.float32)
    told = detections(torch.from_numpy(scores), torch.from_numpy(boxes), least_score=0.3, candidates=50)
    classes = ["a", "b", "c"]
    rows = DetectorFormat("x", 8, 8, None, None, classes, 0.45, 50).objects([scores, boxes], 1000, 1000, 0.3)
    assert [row["label"] for row in rows] == [classes[label - 1] for label in told.labels_D.tolist()]
    np.testing.assert_allclose([row["score"] for row in rows], told.scores_D.numpy(), atol=1e-4)
    np.testing.assert_allclose([row["box"] for row in rows], 1000 * told.boxes_D4.numpy().clip(0, 1), atol=0.06)
    assert len(rows) > 20


@pytest.mark.serve
def test_onnx_annotation_matches_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "cats.onnx"
    onnx_models.detector(model, ABOUT)
    (tmp_path / "white.png").write_bytes(png(255))
    asked = ["annotate", str(tmp_path / "white.png"), "--model", str(model), "--out", str(tmp_path / "out")]
    assert main([*asked, "--least", "0.65", "--json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert image["objects"] == [
        {"class": "cat", "score": 0.9, "box": [0.0, 0.0, 20.0, 10.0]},
        {"class": "dog", "score": 0.7, "box": [0.0, 0.0, 20.0, 8.0]},
    ]
    assert Image.open(tmp_path / "out" / "white.png").convert("RGB").getpixel((1, 8)) == colour_of("cat")
    onnx_models.scale(tmp_path / "m.onnx")
    for path, words in (("m.onnx", "m is not a detection model"), ("none.onnx", "cannot read")):
        assert main([*asked[:3], str(tmp_path / path)]) == 2
        assert words in capsys.readouterr().err
    for content in (b"no picture", *OTHERS):
        (tmp_path / "white.png").write_bytes(content)
        assert main(asked) == 2
        assert "white.png cannot be read: it is not a picture" in capsys.readouterr().err


def test_empty_boxes_suppress_nothing() -> None:
    assert suppressed(np.zeros((3, 4)), np.array([2, 0, 1]), 0.5) == [2, 0, 1]
