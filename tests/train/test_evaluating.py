"""`chronograd evaluate` and `annotate`: the accuracy of trained networks and detections in images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from tests.models.test_ssd import public

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.data import datasets
from chronograd.detect.annotating import annotate, colour_of
from chronograd.detect.boxes import Detections
from chronograd.errors import FileFormatError, InputError
from chronograd.rundir import RunDir
from chronograd.train import annotating, checkpoint
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.detection import DetectionStep, detector_of, objects_in
from chronograd.train.evaluating import evaluate, evaluate_job
from chronograd.train.methods import teacher
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep
from chronograd_lab.studies.detection_transfer.drawn import write_discs

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
NETWORKS = Path(__file__).parent


def trained(job: jobs.Job, out: Path, steps: int) -> RunDir:
    kind = DetectionStep if job.task == "detection" else TrainingStep
    step = kind(job, datasets.load(job.data), PLACE)
    for index in range(steps):
        step.run(index)
    run = RunDir.create(job, out=out)
    checkpoint.save(run.checkpoints, step, Progress(step=steps, epoch=1))
    return run


def digits_job(**network: Any) -> jobs.Job:
    training = {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 20, "epochs": 2}
    data = {"name": "digits", "samples": 200, "test_samples": 100}
    return jobs.from_dict({"network": {"name": "tiny_networks:plain", **network}, "data": data, "training": training})


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return the run of a small detector trained on a few discs; tests must not change it."""
    root = tmp_path_factory.mktemp("evaluate")
    write_discs(root / "discs", train=16, test=8)
    job = jobs.from_dict(
        {
            "task": "detection",
            "network": {"name": "ssd-mobilenet-v1", "options": {"width": 0.25}},
            "data": {"name": f"voc:{root / 'discs'}", "image_size": 64, "class_names": ["light", "dark"]},
            "training": {
                "recipe": "adamw",
                "learning_rate": 0.005,
                "batch": 4,
                "epochs": 5,
                "augmentation": {"expand": 1},
            },
        }
    )
    return trained(job, root / "cells", 20)


def coco_area(found: list[Detections], truths: Any, num_classes: int) -> list[float]:
    """Return the average precision per class by pycocotools, at an overlap of 0.5, without its recall steps."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def sides(box: Any) -> list[float]:
        left, top, right, bottom = (1000 * float(side) for side in box)
        return [left, top, right - left, bottom - top]

    truth = COCO()
    truth.dataset = {
        "images": [{"id": i} for i in range(len(truths))],
        "categories": [{"id": k} for k in range(1, num_classes + 1)],
        "annotations": [
            {"id": 1000 * i + j + 1, "image_id": i, "category_id": int(k), "bbox": sides(box), "area": 1e4, "iscrowd": 0}
            for i, t in enumerate(truths)
            for j, (box, k) in enumerate(zip(t.boxes_G4, t.labels_G, strict=True))
        ],
    }  # fmt: skip
    truth.createIndex()
    rows = [
        {"image_id": i, "category_id": int(k), "bbox": sides(box), "score": float(score)}
        for i, own in enumerate(found)
        for box, score, k in zip(*own, strict=True)
    ]
    scored = COCOeval(truth, truth.loadRes(rows), "bbox")
    scored.params.iouThrs = np.array([0.5])
    scored.params.maxDets = [10_000]
    scored.params.areaRng, scored.params.areaRngLbl = [[0, 1e10]], ["all"]
    scored.params.recThrs = np.linspace(0, 1, 10_001)
    scored.evaluate()
    scored.accumulate()
    return [float(scored.eval["precision"][0, :, k, 0, 0].mean()) for k in range(num_classes)]


def as_seen(dataset: datasets.Dataset, count: int) -> torch.Tensor:
    """Return the first test images as the network's input."""
    pixels = dataset.test.batch(np.arange(count)).float()
    return pixels * torch.tensor(dataset.scale_C).view(3, 1, 1) - torch.tensor(dataset.shift_C).view(3, 1, 1)


def test_detector_evaluation_matches_pycocotools(detector: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare the area metric for all detections in the test images."""
    values = evaluate(detector, detector.job().data).data
    network, names, _ = detector_of(detector)
    dataset = datasets.load(detector.job().data)
    assert dataset.annotated is not None
    found = objects_in(network, as_seen(dataset, 8))
    truths = [image.objects for image in dataset.annotated.test]
    expected = coco_area(found, truths, 2)
    capsys.readouterr()  # discard pycocotools' output
    assert [c["name"] for c in values["classes"]] == ["light", "dark"] == list(names)
    assert [c["average_precision_area"] for c in values["classes"]] == pytest.approx(expected, abs=2e-3)
    assert max(expected) > 0.05  # the detector must have learned something to compare
    assert values["mean_average_precision"]["area"] == pytest.approx(np.mean(expected), abs=2e-3)
    assert sum(c["objects"] for c in values["classes"]) == sum(len(t.labels_G) for t in truths)
    assert main(["evaluate", str(detector.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"mAP {100 * values['mean_average_precision']['11_point']:.1f} % by the 11-point metric" in said
    assert "on 8 test images" in said


def test_other_images_are_matched_by_class_names(detector: RunDir, tmp_path: Path) -> None:
    write_discs(tmp_path / "others", train=4, test=6, seed=1)
    data = detector.job().data.model_copy(update={"name": f"voc:{tmp_path / 'others'}", "class_names": None})
    values = evaluate(detector, data).data
    assert values["test_images"] == 6
    assert [c["name"] for c in values["classes"]] == ["light", "dark"]


def test_classifier_evaluation_has_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(NETWORKS))
    job = digits_job()
    run = trained(job, tmp_path / "digits", 20)
    values = evaluate(run, job.data).data
    positions, probability_NK = teacher.probabilities(run, job.data, split="test")
    labels = datasets.load(job.data).test_labels_N.numpy()
    right = probability_NK.argmax(1) == labels[positions]
    assert values["accuracy"]["value"] == right.mean()
    assert 0.2 < right.mean() < 1
    # Wilson's interval.
    z, p, n = stats.norm.ppf(0.975), right.mean(), 100
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    assert [values["accuracy"][key] for key in ("low", "high")] == pytest.approx([centre - half, centre + half])
    assert sum(c["images"] for c in values["classes"]) == 100
    by_class = sum(c["images"] * (c["accuracy"] or 0) for c in values["classes"])
    assert by_class == pytest.approx(right.sum())
    with pytest.raises(InputError, match="it detects no objects"):
        annotating.finder(run)


def test_other_tasks_are_refused(detector: RunDir) -> None:
    data = detector.job().data.model_copy(update={"name": "digits", "class_names": None})
    with pytest.raises(InputError, match="is a run of detection, and digits has no boxes"):
        evaluate(detector, data)


# -- pretrained weights -----------------------------------------------------------------------------


def test_public_detector_weights_are_evaluated(
    detector: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use the command printed by the detection study, and a file in the public layout."""
    network: Any = detector_of(detector)[0]
    torch.save(public(network), tmp_path / "mobilenet-v1-ssd.pth")
    name = detector.job().data.name
    monkeypatch.chdir(tmp_path)
    of_network = ["ssd-mobilenet-v1", "network.options={width: 0.25}", "task=detection", f"data.name={name}"]
    words = ["network.weights=mobilenet-v1-ssd.pth", "data.image_size=64", "data.class_names=[light,dark]"]
    assert main(["evaluate", *of_network, *words, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    expected = evaluate(detector, detector.job().data).data
    assert values["weights"].startswith("mobilenet-v1-ssd.pth (sha256 ")
    for key in ("mean_average_precision", "classes", "test_images"):
        assert values[key] == expected[key]
    # With all three classes of the data, the head would be random.
    assert main(["evaluate", *of_network, *words[:2]]) == 2
    assert "does not distinguish the 3 classes of" in capsys.readouterr().err


def test_classifier_weights_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use weights of a run and of a file, and the fields of a job file."""
    monkeypatch.syspath_prepend(str(NETWORKS))
    run = trained(digits_job(), tmp_path / "digits", 20)
    expected = evaluate(run, run.job().data).data
    torch.save(teacher.network_of(run).state_dict(), tmp_path / "mine.pth")
    (tmp_path / "job.yaml").write_text(jobs.to_yaml(digits_job()))
    for weights in (run.path, tmp_path / "mine.pth"):
        assert main(["evaluate", str(tmp_path / "job.yaml"), f"network.weights={weights}", "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values["accuracy"] == expected["accuracy"]
        assert values["classes"] == expected["classes"]
    (note,) = evaluate_job(digits_job(weights=str(run.path)), "job.yaml").notes
    assert "minus the mean of the training images" in note
    assert main(["evaluate", "tiny_networks:plain", f"network.weights={run.path}", "--data", "digits"]) == 0
    assert "of 360 test images are right" in " ".join(capsys.readouterr().out.split())


def test_invalid_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(NETWORKS))
    with pytest.raises(InputError, match="plain has no weights; random weights give chance accuracy"):
        evaluate_job(digits_job(), "job.yaml")
    run = trained(digits_job(), tmp_path / "digits", 1)
    other = jobs.changed(digits_job(weights=str(run.path)), ["data={name: synthetic, shape: [1, 8, 8], classes: 7}"])
    with pytest.raises(InputError, match="does not distinguish the 7 classes of synthetic"):
        evaluate_job(other, "job.yaml")
    cartpole = str(NETWORKS.parent.parent / "examples/cartpole.yaml")
    for what, words in (
        ("gpt2-small", "job of text"),
        (cartpole, "job of an agent"),
        ("lenet6", "lenet6"),
        ("runs/none", "none"),
    ):
        assert main(["evaluate", what, "network.weights=none.pth"]) == 2
        assert words in capsys.readouterr().err


# -- annotate ---------------------------------------------------------------------------------------


def test_boxes_are_drawn_at_the_reported_places(
    detector: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotated = datasets.load(detector.job().data).annotated
    assert annotated is not None
    paths = [image.path for image in annotated.test[:2]]
    words = [
        "annotate",
        *map(str, paths),
        "--model",
        str(detector.path),
        "--least",
        "0.05",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [Path(row["file"]).name for row in data["images"]] == [path.name for path in paths]
    assert any(row["objects"] for row in data["images"])
    network, _, side = detector_of(detector)
    for row, image in zip(data["images"], annotated.test, strict=False):
        found = annotating.find(network, image.read(), side, 0.05)
        assert len(row["objects"]) == len(found.labels_D)
        assert all(one["score"] >= 0.05 and one["class"] in ("light", "dark") for one in row["objects"])
        copy = Image.open(row["file"])
        assert copy.size == image.size
        if row["objects"]:
            # The most likely box is on top: its left side has the colour of its class (JPEG changes it slightly).
            best = max(row["objects"], key=lambda one: one["score"])
            colour = colour_of(best["class"])
            left, top, _, bottom = best["box"]
            row_at = round((top + 3 * bottom) / 4)
            near = [copy.convert("RGB").getpixel((min(round(left) + off, 95), row_at)) for off in range(4)]
            assert min(np.abs(np.subtract(pixel, colour)).max() for pixel in near) < 90


def test_annotation_uses_the_test_preprocessing(detector: RunDir) -> None:
    """An annotated image is prepared like test images."""
    dataset = datasets.load(detector.job().data)
    assert dataset.annotated is not None
    network, _, side = detector_of(detector)
    (expected,) = objects_in(network, as_seen(dataset, 1))
    found = annotating.find(network, dataset.annotated.test[0].read(), side, 0.0)
    torch.testing.assert_close(found.boxes_D4, expected.boxes_D4)
    torch.testing.assert_close(found.scores_D, expected.scores_D)


def test_invalid_images_for_annotation(detector: RunDir, tmp_path: Path) -> None:
    annotated = datasets.load(detector.job().data).annotated
    assert annotated is not None
    path, find = annotated.test[0].path, annotating.finder(detector)
    with pytest.raises(InputError, match="is the picture itself"):
        annotate(detector.path, find, [path], path.parent)
    with pytest.raises(InputError, match="two pictures are called"):
        annotate(detector.path, find, [path, tmp_path / path.name], tmp_path / "out")
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(FileFormatError, match="it is not a picture"):
        annotate(detector.path, find, [tmp_path / "text.jpg"], tmp_path / "out")
