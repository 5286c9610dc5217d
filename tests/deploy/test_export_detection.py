"""Detectors as ONNX files: scores and boxes before suppression, for a run and for a named network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.test_export import exported, run_onnx
from tests.train.test_detection import PLACE, cells, job_on  # noqa: F401, the pictures are a fixture

from chronograd.data import datasets
from chronograd.deploy.export import metadata
from chronograd.detect.suppression import CANDIDATES, MAX_OVERLAP, MIN_CANDIDATE_SCORE
from chronograd.rundir import RunDir
from chronograd.train import checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.detection import DetectionStep, evaluate

pytestmark = [pytest.mark.onnx, pytest.mark.slow]
STEPS = 30


@pytest.fixture(scope="module")
def detector(cells: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: F811
    """The run of a small detector after a few epochs, and its average precision."""
    job = job_on(cells, epochs=8, optimizer="adamw", learning_rate=0.002)
    dataset = datasets.load(job.data)
    step = DetectionStep(job, dataset, PLACE)
    for index in range(STEPS):
        step.run(index)
    run = RunDir.create(job, out=tmp_path_factory.mktemp("detector") / "runs" / "cells")
    checkpoint.save(run.checkpoints, step, Progress(step=STEPS, epoch=7))
    _, precision = evaluate(step, dataset, PLACE)
    return {"run": run.path, "dataset": dataset, "precision": precision, "network": step.evaluated.eval()}


def test_exported_run_returns_scores_and_boxes_at_any_batch(
    detector: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cells.onnx"
    printed = exported(f"{detector['run']} --onnx {file} --batches 1,2,8 --int8 static", capsys)
    priors = len(detector["network"].priors)
    assert printed["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, 64, 64]}]
    assert [(port["name"], port["shape"]) for port in printed["outputs"]] == [
        ("scores", ["batch", priors, 3]),
        ("boxes", ["batch", priors, 4]),
    ]
    rows = printed["parity"]["outputs"]
    assert printed["parity"]["holds"]
    assert [(row["output"], row["samples"]) for row in rows] == [
        ("scores", 64),
        ("boxes", 64),
        ("scores", 8),
        ("boxes", 8),
    ]
    assert [row["num_rows"] > 0 for row in rows] == [True, False, True, False]  # boxes have no most likely class
    stated = metadata(file)
    assert stated["classes"] == ["dark", "light"]
    assert stated["data"] == "voc:cells"
    assert stated["suppression"] == {
        "place": "outside",
        "score": MIN_CANDIDATE_SCORE,
        "overlap": MAX_OVERLAP,
        "candidates": CANDIDATES,
    }
    before, after = printed["int8"]["before"], printed["int8"]["after"]
    assert detector["precision"] > 0.01
    assert before == {"accuracy": pytest.approx(detector["precision"], abs=1e-4), "loss": None, "num_samples": 8}
    assert 0 <= after["accuracy"] <= 1
    assert printed["int8"]["changed"] is None


def test_graph_normalises_pixels_like_training(
    detector: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cells.onnx"
    printed = exported(f"{detector['run']} --onnx {file} --with-preprocessing --batches 3", capsys)
    assert [port["name"] for port in printed["inputs"] + printed["outputs"]] == ["pixels", "scores", "boxes"]
    pixels = detector["dataset"].test.batch(np.arange(3))
    assert pixels.dtype == torch.uint8
    with torch.no_grad():
        scores, _ = detector["network"]((pixels.float() - 127) / 128)
    np.testing.assert_allclose(run_onnx(file, pixels.numpy()), scores.numpy(), atol=1e-5)


def test_named_detector_has_three_thousand_priors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ssd.onnx"
    line = f"ssd-mobilenet-v1 network.options.width=0.25 --onnx {file} --batches 1,2 --samples 2"
    printed = exported(line, capsys)
    assert [port["shape"] for port in printed["outputs"]] == [["batch", 3000, 21], ["batch", 3000, 4]]
    assert json.loads(json.dumps(metadata(file)))["suppression"]["place"] == "outside"
