"""Detectors as ONNX files: scores and boxes before suppression, for a run and for a named network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.running import serving
from tests.deploy.test_export import exported, run_onnx
from tests.train.test_detection import PLACE, cells, job_on  # noqa: F401, the pictures are a fixture

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.deploy import SUPPRESSED
from chronograd.deploy.export import metadata
from chronograd.deploy.parity import session
from chronograd.detect.suppression import CANDIDATES, MAX_OVERLAP, MIN_CANDIDATE_SCORE, detections
from chronograd.job import Job
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
    return trained(job, tmp_path_factory.mktemp("detector") / "runs" / "cells")


def trained(job: Job, out: Path) -> dict[str, Any]:
    dataset = datasets.load(job.data)
    step = DetectionStep(job, dataset, PLACE)
    for index in range(STEPS):
        step.run(index)
    run = RunDir.create(job, out=out)
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


# -- suppression inside ------------------------------------------------------------------------------


def check_suppressed(raw: Path, suppressed: Path, dataset: datasets.Dataset) -> list[int]:
    """Compare the objects of both files for all test pictures; return their number for each picture."""
    without, inside = session(raw), session(suppressed)
    counts = []
    for n in range(len(dataset.test)):
        pixels = dataset.test.batch(np.arange(n, n + 1)).numpy()
        scores_all, boxes_all = without.run(["scores", "boxes"], {"pixels": pixels})
        boxes, labels, scores = (part[0] for part in inside.run(list(SUPPRESSED), {"pixels": pixels}))
        expected = detections(torch.from_numpy(scores_all[0]), torch.from_numpy(boxes_all[0]))
        assert labels.tolist() == expected.labels_D.tolist()
        np.testing.assert_allclose(scores, expected.scores_D, atol=1e-6)
        np.testing.assert_allclose(boxes, expected.boxes_D4, atol=1e-5)
        counts.append(len(scores))
    return counts


@pytest.mark.serve
def test_suppressed_graph_and_its_server_answer_with_objects(
    detector: dict[str, Any],
    cells: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw, suppressed = tmp_path / "raw.onnx", tmp_path / "cells.onnx"
    exported(f"{detector['run']} --onnx {raw} --with-preprocessing", capsys)
    line = f"{detector['run']} --onnx {suppressed} --with-preprocessing --with-suppression --int8 static"
    printed = exported(line, capsys)
    assert printed["suppression"] is True
    assert [(port["name"], port["shape"]) for port in printed["outputs"]] == [
        ("boxes", ["batch", "objects", 4]),
        ("labels", ["batch", "objects"]),
        ("scores", ["batch", "objects"]),
    ]
    assert metadata(suppressed)["suppression"]["place"] == "inside"
    assert min(check_suppressed(raw, suppressed, detector["dataset"])) > 0
    pictures = [path.read_bytes() for path in sorted((cells / "JPEGImages").glob("*.jpg"))[16:]]
    with serving(tmp_path) as server:
        for picture in pictures:
            answers = [
                json.loads(server.ask("POST", f"/v2/models/{model}/detect?least=0.05", picture)[2])
                for model in ("raw", "cells", "cells-int8")
            ]
            first, second = (answer["objects"] for answer in answers[:2])
            assert first
            assert [row["label"] for row in first] == [row["label"] for row in second]
            for key, error in (("score", 2e-4), ("box", 0.2)):
                np.testing.assert_allclose([row[key] for row in first], [row[key] for row in second], atol=error)
            assert {row["label"] for row in answers[2]["objects"]} <= {"dark", "light"}
    assert main(["annotate", str(sorted((cells / "JPEGImages").glob("*.jpg"))[16]), "--model", str(suppressed),
                 "--out", str(tmp_path / "drawn"), "--least", "0.05", "--json"]) == 0  # fmt: skip
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert len(image["objects"]) > 0


@pytest.mark.data
def test_objects_in_photographs_equal_those_of_the_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = jobs.from_dict(
        {
            "task": "detection",
            "network": {"name": "ssd-mobilenet-v1", "options": {"width": 0.25}},
            "data": {"name": "voc:bccd", "image_size": 160, "samples": 96},
            "training": {"epochs": 8, "batch": 4, "recipe": "adamw", "learning_rate": 0.002, "evaluate_every": 8},
            "cluster": {"threads": 1},
        }
    )
    own = trained(job, tmp_path / "runs" / "cells")
    raw, suppressed = tmp_path / "raw.onnx", tmp_path / "cells.onnx"
    exported(f"{own['run']} --onnx {raw} --with-preprocessing --batches 8", capsys)
    exported(f"{own['run']} --onnx {suppressed} --with-preprocessing --with-suppression --batches 8", capsys)
    counts = check_suppressed(raw, suppressed, own["dataset"])
    assert len(counts) == 72
    assert min(counts) > 0


def test_network_without_boxes_has_no_suppression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "resnet8", "--onnx", str(tmp_path / "a.onnx"), "--with-suppression"]) == 2
    assert "resnet8 is not a detector, and has no suppression" in capsys.readouterr().err
