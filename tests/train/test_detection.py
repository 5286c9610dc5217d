"""Detectors use the common training and test loop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from tests.detect.test_sets import annotation, voc_object

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.data.detection import KeptPictures
from chronograd.detect.loss import detection_loss
from chronograd.errors import InputError, JobError
from chronograd.job import Job
from chronograd.launch.jobs import check_anywhere, resume, train
from chronograd.rundir import RunDir
from chronograd.train.detection import DetectionStep, evaluate
from chronograd.train.rank_context import RankContext

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
WIDTH, HEIGHT = 96, 72
COLOURS = {"dark": (20, 20, 60), "light": (250, 240, 200)}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of one or two dark or light discs on grey, in VOC's layout with trainval and test."""
    root = tmp_path_factory.mktemp("voc") / "cells"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    random = np.random.RandomState(0)
    names = [f"{number:04d}" for number in range(24)]
    for name in names:
        picture = Image.new("RGB", (WIDTH, HEIGHT), (120, 120, 120))
        objects = []
        for half in range(random.randint(1, 3)):
            kind = ["dark", "light"][random.randint(2)]
            side = random.randint(24, 40)
            left, top = half * WIDTH // 2 + random.randint(0, WIDTH // 2 - side), random.randint(0, HEIGHT - side)
            ImageDraw.Draw(picture).ellipse((left, top, left + side - 1, top + side - 1), fill=COLOURS[kind])
            objects.append(voc_object(kind, left + 1, top + 1, left + side, top + side))
        picture.save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        (root / "Annotations" / f"{name}.xml").write_text(annotation(*objects, size=(WIDTH, HEIGHT)))
    (root / "ImageSets/Main/trainval.txt").write_text("\n".join(names[:16]))
    (root / "ImageSets/Main/test.txt").write_text("\n".join(names[16:]))
    return root


def job_on(cells: Path, **training: Any) -> Job:
    given = {"epochs": 2, "batch": 4, "learning_rate": 0.01, "evaluate_every": 2}
    return jobs.from_dict(
        {
            "task": "detection",
            "network": {"name": "ssd-mobilenet-v1", "options": {"width": 0.25}},
            "data": {"name": f"voc:{cells}", "image_size": 64},
            "training": {**given, **training},
            "cluster": {"threads": 1},
        }
    )


def step_of(job: Job) -> tuple[DetectionStep, datasets.Dataset]:
    dataset = datasets.load(job.data)
    return DetectionStep(job, dataset, PLACE), dataset


@pytest.mark.slow
def test_run_has_precisions_and_resumes_identically(cells: Path, tmp_path: Path) -> None:
    job = job_on(cells)
    run = train(job, out=tmp_path / "whole")
    record = run.record()
    mean, dark, light = (record[n] for n in ("test_accuracy", "average_precision.dark", "average_precision.light"))
    assert mean.value == pytest.approx(((dark.value or 0) + (light.value or 0)) / 2)
    assert mean.n == 8
    assert mean.source.startswith("mean average precision of 2 classes, 11-point metric")
    assert 0 <= (record["mean_average_precision_area"].value or 0) <= 1
    truths = datasets.load(job.data).annotated
    assert truths is not None
    assert (dark.n or 0) + (light.n or 0) == sum(len(image.objects.labels_G) for image in truths.test)
    copy = Path(shutil.copytree(run.path, tmp_path / "interrupted"))
    shutil.rmtree(copy / "checkpoints/step-00000008")
    (copy / "record.json").unlink()
    again = resume(RunDir.open(copy))
    weights = [load_file(one.checkpoints / "step-00000008/model.safetensors") for one in (run, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert again.record()["average_precision.dark"].value == dark.value


def test_detector_overfits_a_batch(cells: Path) -> None:
    """The loss on four repeated images falls by half."""
    step, _ = step_of(job_on(cells, epochs=20, optimizer="adamw", learning_rate=0.001))
    step.gather(0)
    losses = []
    for _ in range(25):
        parts = [call for name, call in step.parts(0) if name not in ("input", "transfer")]
        step.prepare()
        for call in parts:
            call()
        losses.append(step.loss.item())
    assert losses[-1] < losses[0] / 2


def test_perfect_detector_has_a_precision_of_1(cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the targets as logits and offsets, to test decoding, suppression and counting together."""
    step, dataset = step_of(job_on(cells))
    rows = iter(
        [
            torch.stack([_answer(step, image) for image in step.annotated.test[start : start + step.chunk]])
            for start in range(0, 8, step.chunk)
        ]
    )

    def predictions(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        answer = next(rows)
        assert len(answer) == len(seen)
        return 30 * torch.nn.functional.one_hot(answer[..., 0].long(), 3).float(), answer[..., 1:]

    monkeypatch.setattr(step.network, "predictions", predictions)
    loss, mean = evaluate(step, dataset, step.place)
    assert loss == pytest.approx(0, abs=1e-4)
    assert mean == 1.0
    assert step.precisions == {"11-point": [1.0, 1.0], "area": [1.0, 1.0]}


def test_loss_and_test_follow_a_sigmoid_detector(cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All columns of background priors are near 0: softmax would report objects there, and a loss of 3 ln 3 instead of 90."""
    step, dataset = step_of(job_on(cells))
    pictures = iter(step.annotated.test)

    def predictions(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        answer = torch.stack([_answer(step, next(pictures)) for _ in seen])
        columns = torch.nn.functional.one_hot(answer[..., 0].long(), 3).float()
        columns[..., 0] = 0  # also the background, for which binary cross-entropy wants 1
        return 60 * columns - 30, answer[..., 1:]

    monkeypatch.setattr(step.network, "predictions", predictions)
    monkeypatch.setattr(step.network, "activation", "sigmoid")
    loss, mean = evaluate(step, dataset, step.place)
    assert mean == 1.0
    # Three background priors for each object, each with a loss of 30; fewer where the picture has too few priors.
    rows = torch.stack([_answer(step, image) for image in step.annotated.test])
    positives = (rows[..., 0] > 0).sum(1)
    negatives = torch.minimum(3 * positives, rows.shape[1] - positives)
    assert loss == pytest.approx(30 * float(negatives.sum() / positives.sum()), rel=1e-5)
    step.gather(0)
    step.prepare()
    outputs = torch.randn(4, rows.shape[1], 3), torch.zeros(4, rows.shape[1], 4)
    expected = detection_loss(*outputs, step._targets[..., 0].long(), step._targets[..., 1:], "sigmoid")
    assert float(step._loss_of(outputs, step._targets)) == pytest.approx(float(sum(expected)), rel=1e-6)


def _answer(step: DetectionStep, image: Any) -> torch.Tensor:
    from chronograd.train.detection import _rows

    return _rows(step._priors, image.objects.boxes_G4, image.objects.labels_G)


def test_augmentation_depends_on_seed_step_and_image(cells: Path) -> None:
    step, _ = step_of(job_on(cells))
    step.gather(3)
    first, order = step._raw.clone(), step._mine.copy()
    step.gather(4)
    step.gather(3)
    assert torch.equal(step._raw, first)
    alone, _ = step._sample(3, int(order[2]))
    assert torch.equal(alone, first[2])
    assert not torch.equal(step._sample(4, int(order[2]))[0], alone)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task=classification", "task is classification, and voc:.* has boxes"),
        ("data.name=digits", "task is detection, and digits has no boxes"),
        ("network.name=resnet20", "is not a detector of 2 classes|cannot be built|resnet20"),
        ("training.augmentation.flip=true", "training.augmentation is given"),
        ("training.label_smoothing=0.1", "label_smoothing is 0.1"),
        ("backend=ddp", "backend is ddp"),
        ("data.label_noise=0.5", "data.label_noise is 0.5"),
        ("data.normalisation=unit", "data.normalisation is unit"),
        ("data.classes=7", "has 2 classes"),
        ("data.samples=17", "has 16 training images"),
        ("training.augmentation.crop=2", "training.augmentation is given"),
        ("data.class_names=[dark,grey]", "no training picture of voc:.* has a grey, .*\n.*other classes.*: light"),
    ],
)
def test_unsupported_detector_options(cells: Path, override: str, message: str) -> None:
    changed = ["network.options={}"] if override.startswith("network.name") else []
    job = jobs.changed(job_on(cells), [override, *changed])
    with pytest.raises((InputError, JobError), match=message):
        check_anywhere(job)


def test_classes_follow_the_given_names(cells: Path) -> None:
    both, one = (
        datasets.load(jobs.changed(job_on(cells), [f"data.class_names={names}"]).data)
        for names in ("[light,dark]", "[dark]")
    )
    usual = datasets.load(job_on(cells).data)
    assert [d.card.class_names for d in (usual, both, one)] == [("dark", "light"), ("light", "dark"), ("dark",)]
    for theirs, swapped in zip(usual.annotated.test, both.annotated.test, strict=True):  # type: ignore[union-attr]
        assert torch.equal(swapped.objects.labels_G, 3 - theirs.objects.labels_G)
    assert one.annotated is not None
    assert all((image.objects.labels_G == 1).all() and len(image.objects.labels_G) for image in one.annotated.train)
    assert len(one.annotated.train) < 16
    assert len(one.annotated.test) == 8
    digits = {"network": {"name": "resnet8"}, "data": {"name": "digits", "class_names": ["1"]}}
    with pytest.raises(InputError, match=r"data\.class_names is given, and digits has no boxes"):
        check_anywhere(jobs.from_dict(digits))
    expanded = {"network": {"name": "resnet8"}, "data": {"name": "digits"}, "training": {"augmentation": {"expand": 2}}}
    with pytest.raises(JobError, match="expand is of pictures with boxes"):
        check_anywhere(jobs.from_dict(expanded))


def test_coco_and_open_images_layouts(cells: Path, tmp_path: Path) -> None:
    """The same images and boxes in three layouts give the same data."""
    usual = datasets.load(job_on(cells).data).annotated
    assert usual is not None
    coco, guns = tmp_path / "coco", tmp_path / "open"
    (coco / "annotations").mkdir(parents=True)
    guns.mkdir()
    (guns / "class-descriptions-boxable.csv").write_text("/m/1,dark\n/m/2,light\n")
    for split, theirs, images in (("train2017", "train", usual.train), ("val2017", "validation", usual.test)):
        shutil.copytree(cells / "JPEGImages", coco / split)
        shutil.copytree(cells / "JPEGImages", guns / theirs)
        pictures, boxes, lines = [], [], ["ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf"]
        for number, image in enumerate(images):
            pictures.append({"id": number, "file_name": image.path.name, "width": WIDTH, "height": HEIGHT})
            for box, label in zip(image.objects.boxes_G4.tolist(), image.objects.labels_G.tolist(), strict=True):
                left, top, right, bottom = (a * b for a, b in zip(box, (WIDTH, HEIGHT, WIDTH, HEIGHT), strict=True))
                boxes.append(
                    {"image_id": number, "category_id": label, "bbox": [left, top, right - left, bottom - top]}
                )
                lines.append(f"{image.path.stem},/m/{label},{box[0]},{box[2]},{box[1]},{box[3]},0")
        categories = [{"id": 1, "name": "dark"}, {"id": 2, "name": "light"}]
        whole = {"images": pictures, "annotations": boxes, "categories": categories}
        (coco / f"annotations/instances_{split}.json").write_text(json.dumps(whole))
        (guns / f"{theirs}-annotations-bbox.csv").write_text("\n".join(lines) + "\n")
    for name, more in ((f"coco:{coco}", []), (f"open-images:{guns}", ["data.class_names=[dark,light]"])):
        job = jobs.changed(job_on(cells), [f"data.name={name}", *more])
        check_anywhere(job)
        found = datasets.load(job.data).annotated
        assert found is not None
        for ours, theirs_ in ((found.train, usual.train), (found.test, usual.test)):
            assert [i.path.name for i in ours] == [i.path.name for i in theirs_]
            for a, b in zip(ours, theirs_, strict=True):
                torch.testing.assert_close(a.objects.boxes_G4, b.objects.boxes_G4)
                assert torch.equal(a.objects.labels_G, b.objects.labels_G)
    with pytest.raises(InputError, match=r"data\.class_names chooses none"):
        datasets.card(jobs.changed(job_on(cells), [f"data.name=open-images:{guns}"]).data)


def test_second_network_with_the_same_interface(cells: Path) -> None:
    step, dataset = step_of(jobs.changed(job_on(cells), ["network.name=ssdlite-mobilenet-v3", "network.options={}"]))
    step.run(0)
    loss, mean = evaluate(step, dataset, step.place)
    assert np.isfinite(loss)
    assert 0 <= mean <= 1


def test_decoded_images_are_cached_while_they_fit(cells: Path) -> None:
    annotated = datasets.load(job_on(cells).data).annotated
    assert annotated is not None
    size = annotated.train[0].read().nbytes
    read = KeptPictures(annotated.train, most_bytes=2 * size)
    first = [read(number) for number in range(3)]
    assert [read(number) is first[number] for number in range(3)] == [True, True, False]
    assert torch.equal(read(2), first[2])


def test_fewer_images_and_images_without_objects(cells: Path, tmp_path: Path) -> None:
    job = jobs.changed(job_on(cells), ["data.samples=6", "data.test_samples=3"])
    dataset = datasets.load(job.data)
    assert dataset.annotated is not None
    assert (len(dataset.annotated.train), len(dataset.annotated.test)) == (6, 3)
    assert (dataset.card.train_size, dataset.card.test_size) == (6, 3)
    copy = tmp_path / "copy"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (copy / folder).mkdir(parents=True)
        for path in (cells / folder).iterdir():
            if path.is_file():
                (copy / folder / path.name).write_bytes(path.read_bytes())
    (copy / "Annotations/0000.xml").write_text(annotation(size=(WIDTH, HEIGHT)))
    dataset = datasets.load(jobs.changed(job_on(copy), []).data)
    assert dataset.card.train_size == 15
    assert dataset.notes == ("left out 1 training picture without an object",)
    other = copy.rename(tmp_path / "other")  # the contents of a folder are cached
    (other / "ImageSets/Main/test.txt").unlink()
    with pytest.raises(InputError, match=r"has trainval.txt\n.*it needs two lists"):
        datasets.card(job_on(other).data)
