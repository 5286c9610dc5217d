"""Suppression inside a graph: for any scores and boxes, the same objects as `detect.suppression` and as the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.onnx_models import save

from chronograd.deploy import SUPPRESSED, suppression
from chronograd.deploy.detection import DetectorFormat
from chronograd.deploy.export import read_graph
from chronograd.deploy.parity import Samples, session
from chronograd.detect.boxes import Detections
from chronograd.detect.suppression import detections
from chronograd.errors import ExportError

pytestmark = pytest.mark.onnx


def detector(path: Path, num_priors: int, num_labels: int) -> Path:
    """Write a detector whose input has its scores and boxes side by side."""
    from onnx import TensorProto, helper

    return save(
        path,
        [
            helper.make_node("Slice", ["input", "zero", "labels", "axis"], ["scores"]),
            helper.make_node("Slice", ["input", "labels", "end", "axis"], ["boxes"]),
        ],
        [("input", TensorProto.FLOAT, ["batch", num_priors, num_labels + 4])],
        [
            ("scores", TensorProto.FLOAT, ["batch", num_priors, num_labels]),
            ("boxes", TensorProto.FLOAT, ["batch", num_priors, 4]),
        ],
        {
            name: np.array([at], np.int64)
            for name, at in (("zero", 0), ("labels", num_labels), ("end", 99), ("axis", 2))
        },
    )


def drawn(seed: int, batch: int, num_priors: int, num_labels: int) -> torch.Tensor:
    """Draw rows of scores and boxes. Scores of some pictures are rounded, so that many are equal; one picture has no object."""
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(batch, num_priors, num_labels, generator=generator)).softmax(2)
    scores[1] = (scores[1] * 8).round() / 8
    scores[2] = torch.eye(num_labels)[0]
    corner = 0.8 * torch.rand(batch, num_priors, 2, generator=generator)
    side = (0.4 * torch.rand(batch, num_priors, 2, generator=generator) - 0.02).clamp(min=0)  # a few boxes without area
    return torch.cat([scores, corner, corner + side], dim=2)


@pytest.mark.parametrize(("num_priors", "num_labels"), [(40, 2), (300, 4), (500, 21)])
def test_objects_equal_those_of_training_and_of_the_server(tmp_path: Path, num_priors: int, num_labels: int) -> None:
    file = detector(tmp_path / "drawn.onnx", num_priors, num_labels)
    rows = torch.cat([drawn(seed, 4, num_priors, num_labels) for seed in range(5)])
    assert suppression.suppress_inside(file, [Samples("drawn", rows, rows)], 4) == 20
    graph = read_graph(file)
    assert [(port.name, port.shape) for port in graph.outputs] == [
        ("boxes", ("batch", "objects", 4)),
        ("labels", ("batch", "objects")),
        ("scores", ("batch", "objects")),
    ]
    running = session(file)
    boxes, labels, scores = running.run(list(SUPPRESSED), {"input": rows.numpy()})
    classes = [f"class {k}" for k in range(1, num_labels)]
    outside = DetectorFormat("x", 8, 8, None, None, classes, 0.45, 200)
    inside = DetectorFormat("x", 8, 8, None, None, classes, 0.45, 200, SUPPRESSED)
    counts = (labels > 0).sum(axis=1)
    assert counts[2] == 0
    assert len(set(counts.tolist())) > 3
    assert counts.max() == labels.shape[1]
    for n, row in enumerate(rows):
        expected = detections(row[:, :num_labels], row[:, num_labels:])
        np.testing.assert_array_equal(scores[n, : counts[n]], expected.scores_D)
        np.testing.assert_array_equal(labels[n, : counts[n]], expected.labels_D)
        np.testing.assert_array_equal(boxes[n, : counts[n]], expected.boxes_D4)
        for values in (scores, labels, boxes):
            assert not values[n, counts[n] :].any()
        for least in (0.01, 0.3):
            served = inside.objects([boxes[n], labels[n], scores[n]], 640, 480, least)
            raw = row.numpy()
            assert served == outside.objects([raw[:, :num_labels], raw[:, num_labels:]], 640, 480, least)
    # One picture without an object has no row at all.
    assert [part.shape[1] for part in running.run(list(SUPPRESSED), {"input": rows[2:3].numpy()})] == [0, 0, 0]


def test_other_objects_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(0, 4, 40, 3)
    keep = detections

    def without_the_last(scores: torch.Tensor, boxes: torch.Tensor) -> Detections:
        return Detections(*(part[:-1] for part in keep(scores, boxes)))

    monkeypatch.setattr(suppression, "detections", without_the_last)
    file = detector(tmp_path / "drawn.onnx", 40, 3)
    with pytest.raises(ExportError, match="in 3 of 4 samples, ONNX Runtime's suppression gives other objects"):
        suppression.suppress_inside(file, [Samples("drawn", rows, rows)], 2)
