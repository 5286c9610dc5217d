"""Detection, transferred: a detector of all classes of a set, then fine-tuned on two related ones.

SSD on MobileNet v1 starts from a trunk pretrained on ImageNet. One half of the training pictures teaches it all classes. The
other half teaches two related ones, starting from that network. Two controls have the same number of updates on the same
pictures: one starts from the trunk alone, one continues on all classes. The result of a network is its average precision on
test pictures that no network was trained on.

W. Liu et al., SSD: single shot multibox detector, arXiv 1512.02325. The published figures are those of a public SSD on
MobileNet v1 on the test pictures of PASCAL VOC 2007 (github.com/qfgaohao/pytorch-ssd, README.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd.answer import Table
from chronograd.data import datasets, published
from chronograd.errors import InputError, require
from chronograd.figure import Bar, Bars, Figure, Lines
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.units import percent
from chronograd_lab.common.arms import Arm, Trained, curves_of, job_of, mean_curve, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, distinct, ends, grouped, matching, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, pictures_shown, table
from chronograd_lab.common.weights import weights_file
from chronograd_lab.common.written import Block

if TYPE_CHECKING:
    from torch import Tensor

ALL, TUNED = "all classes", "fine-tuned on the two"
ALONE, FURTHER = "the two, from the trunk alone", "all classes, further"
STAGES = (ALL, TUNED, ALONE, FURTHER)
EXPORTED = "fine-tuned, in ONNX Runtime"
COLORS = {ALL: "grey", TUNED: "accent", ALONE: "vermilion", FURTHER: "green"}
# This replaces the name of a set: discs that the study draws itself.
DISCS = "discs"
PUBLISHED_AT = {
    "voc:bccd": "put Annotations, JPEGImages and ImageSets of github.com/Shenggan/BCCD_Dataset as bccd in the folder that "
    f"{published.FOLDER_VARIABLE} names"
}
# Average precision by the 11-point metric, as published for mobilenet-v1-ssd-mp-0_675.pth.
PUBLISHED = {
    "aeroplane": 0.6742, "bicycle": 0.7914, "bird": 0.6121, "boat": 0.5616, "bottle": 0.3471, "bus": 0.7742, "car": 0.7284,
    "cat": 0.8361, "chair": 0.5142, "cow": 0.6244, "diningtable": 0.7060, "dog": 0.7849, "horse": 0.8202, "motorbike": 0.7936,
    "person": 0.7043, "pottedplant": 0.4026, "sheep": 0.6071, "sofa": 0.7549, "train": 0.8271, "tvmonitor": 0.6460,
}  # fmt: skip
# Width of a picture on the page.
SHOWN_WIDTH = 320


# -- the runs ------------------------------------------------------------------------------------------


def job(settings: Settings, stage: str, data: str, weights: str | None) -> Job:
    """Return the job of a stage, on its half of the training pictures.

    Args:
        data: the name of the set. `weights`: the initial weights.
    """
    half = settings["half"]
    pictures: Row = {"name": data, "image_size": settings["image_size"], "samples": half}
    if stage != ALL:
        pictures |= {"skip": half}
    if stage in (TUNED, ALONE):
        pictures |= {"class_names": settings["related"]}
    own = settings["first" if stage == ALL else "second"]
    network = {"name": settings["network"], "options": settings["options"], "weights": weights}
    augmentation = {"expand": settings["expand"]}
    parts = {"task": "detection", "network": network}
    return job_of(
        settings,
        settings["network"],
        data=pictures,
        parts=parts,
        recipe="adamw",
        schedule="one_cycle",
        augmentation=augmentation,
        channels_last=settings["channels_last"],
        **own,
    )


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    data = _data(runner, settings)
    for package in ("onnx", "onnxscript", "uvicorn"):  # better to miss them now than after the runs
        require(package, "serve", "the end of this study")
    trunk = weights_file(settings["trunk"]) if settings["trunk"] else None
    seeds = range(settings["seeds"])
    first = train_arms(runner, [Arm.of(job(settings, ALL, data, trunk), seeds, stage=ALL)])
    # Evaluated at once, so that another machine can continue without the weights.
    _rows(runner, first, settings["related"])
    second = [
        Arm.of(job(settings, stage, data, trunk if stage == ALONE else str(one.run.path)), [one.seed], stage=stage)
        for stage in (TUNED, *settings["controls"])
        for one in first
    ]
    trained = first + train_arms(runner, second)
    runs, classes = _rows(runner, trained, settings["related"])
    pictures, more = _pictures(runner, trained, settings["related"])
    rows = {"runs": runs, "classes": classes, **more}
    return runner.results(settings, rows=rows, curves=curves_of(trained), pictures=pictures)


def _data(runner: StudyRunner, settings: Settings) -> str:
    """Return the name of the set. Raises InputError with its source before anything runs."""
    name = str(settings["data"])
    if name == DISCS:
        from chronograd_lab.studies.detection_transfer.drawn import write_discs

        folder = runner.folder.resolve() / DISCS
        write_discs(folder, train=4 * settings["half"], test=settings["drawn_test"])
        return f"voc:{folder}"
    try:
        datasets.card(job(settings, ALL, name, None).data)
    except InputError as error:
        raise InputError(error.message, PUBLISHED_AT.get(name, error.hint)) from None
    return name


def _rows(runner: StudyRunner, trained: Sequence[Trained], related: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Return a row of each run, and one of each of its classes, evaluated by both metrics."""
    runs, classes = [], []
    for one in trained:
        values = runner.derived(one.run, "evaluation", partial(_evaluated, one.run))
        known = {**one.arm.known, "seed": one.seed}
        means = {f"mean_{key}": value for key, value in values["mean_average_precision"].items()}
        of_related = [own["average_precision_11_point"] for own in values["classes"] if own["name"] in related]
        means["related_11_point"] = statistics.fmean(of_related)
        row = one.row()
        cost = {name: row[name] for name in ("updates", "images", "seconds", "user_s", "system_s")}
        runs.append({**known, **means, "test_images": values["test_images"], **cost})
        classes += [{**known, **own} for own in values["classes"]]
    return runs, classes


def _evaluated(run: RunDir) -> dict[str, Any]:
    """Return the precision of a run's network on the test pictures."""
    from chronograd.train.evaluating import evaluate

    values: dict[str, Any] = evaluate(run, run.job().data).data
    return values


def _pictures(
    runner: StudyRunner, trained: Sequence[Trained], related: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[Row]]]:
    """Return a test picture for each related class: true boxes, and the detections of the networks of the first seed before and
    after, and of the exported last one.

    Returns: the pictures, and rows: of boxes of each related class in a picture, and of the exported network.
    """
    import torch

    from chronograd.detect.annotating import DetectedObject, drawn
    from chronograd.detect.boxes import Detections
    from chronograd.detect.pictures import resized
    from chronograd.figure import png_base64
    from chronograd.train import annotating
    from chronograd_lab.studies.detection_transfer.exported import in_onnx_runtime

    runs = {one.arm.known["stage"]: one.run for one in trained if one.seed == 0}
    data = next(one.run.job().data for one in trained if one.arm.known["stage"] == TUNED)
    annotated = datasets.load(data).annotated
    assert annotated is not None
    shown: dict[str, str] = {}
    rows: list[Row] = []
    chosen: dict[str, tuple[int, Path]] = {}
    for number, name in enumerate(related, 1):
        place, image = next(
            (place, image) for place, image in enumerate(annotated.test)
            if (place, image.path) not in chosen.values() and number in image.objects.labels_G
        )  # fmt: skip
        chosen[name] = place, image.path
    exported = runner.derived(runs[TUNED], "in ONNX Runtime", partial(in_onnx_runtime, runs[TUNED], chosen, related))
    for name, (place, _) in chosen.items():
        image = annotated.test[place]
        picture = image.read()
        height, width = picture.shape[1:]
        small = resized(picture, round(height * SHOWN_WIDTH / width), SHOWN_WIDTH).round().clamp(0, 255).byte()
        truth = annotating.in_pixels(small, annotating.true_boxes(image.objects), related)
        shown[f"{name}/as annotated"] = png_base64(drawn(small, truth, with_scores=False))
        by_stage: dict[str, list[DetectedObject]] = {}
        for stage in (ALL, TUNED):
            detected = runner.derived(
                runs[stage], f"objects in a picture of {name}", partial(_detected, runs[stage], picture, small)
            )
            by_stage[stage] = [DetectedObject(of, score, tuple(box)) for of, score, box in detected]
        boxes, scores, labels = map(torch.tensor, exported["found"][name])
        runtime = Detections(boxes.reshape(-1, 4), scores, labels)
        by_stage[EXPORTED] = annotating.in_pixels(small, runtime, related)
        for stage, found in by_stage.items():
            shown[f"{name}/{stage}"] = png_base64(drawn(small, found))
            names = [one.name for one in found]
            rows += [{"picture": name, "stage": stage, "name": of, "boxes": names.count(of)} for of in related]
    return shown, {
        "pictured": rows,
        "file": [exported["file"]],
        **{key: exported[key] for key in ("outputs", "objects")},
    }


def _detected(run: RunDir, picture_CHW: Tensor, shown_CHW: Tensor) -> list[list[Any]]:
    """Return the objects that a run's network detects in a picture: name, score, and box in pixels of the shown picture."""
    from chronograd.train import annotating
    from chronograd.train.detection import detector_of

    network, names, side = detector_of(run)
    return [list(one) for one in annotating.in_pixels(shown_CHW, annotating.find(network, picture_CHW, side), names)]


# -- results ------------------------------------------------------------------------------------------


def precision(results: Results, stage: str, name: str) -> Spread:
    """Return the precision of a class by the 11-point metric, over the seeds."""
    return spread(results.rows["classes"], "average_precision_11_point", stage=stage, name=name)


def of_related(results: Results, stage: str) -> Spread:
    """Return the precision over the seeds, averaged over the related classes in each run."""
    return spread(results.rows["runs"], "related_11_point", stage=stage)


# -- the page ------------------------------------------------------------------------------------------


KEYS = {ALL: "before", TUNED: "after", ALONE: "from_trunk", FURTHER: "further", EXPORTED: "exported"}


def values(results: Results) -> dict[str, Any]:
    runs, classes = results.rows["runs"], results.rows["classes"]
    stages = {
        KEYS[stage]: {
            **{name: precision(results, stage, name) for name in distinct(classes, "name", stage=stage)},
            "related": of_related(results, stage),
            "all": spread(runs, "mean_11_point", stage=stage),
            "first": matching(runs, stage=stage)[0]["mean_11_point"],
            "updates": matching(runs, stage=stage)[0]["updates"],
        }
        for stage in distinct(runs, "stage")
    }
    boxes = {
        KEYS[stage]: {name: sum(row["boxes"] for row in own) for name, own in grouped(rows, "name").items()}
        for stage, rows in grouped(results.rows["pictured"], "stage").items()
        if stage in KEYS
    }
    published = {"mean": statistics.fmean(PUBLISHED.values()), "bottle": PUBLISHED["bottle"], "cat": PUBLISHED["cat"]}
    published |= ends(PUBLISHED.values())
    known = {"boxes": boxes, "published": published, "test_images": runs[0]["test_images"]}
    return {**stages, **known, "onnx": _onnx(results)}


def _onnx(results: Results) -> dict[str, Any]:
    """Return the figures of the exported network, and the differences and equal objects of its pictures, as PyTorch and as served."""
    outputs, (every, *own) = results.rows["outputs"], results.rows["objects"]
    served = [row["served"] for row in own]
    return {
        **results.rows["file"][0], "every": every, "holds": all(row["holds"] for row in outputs),
        "largest": {row["output"]: row["largest_absolute"] for row in matching(outputs, kind=every["where"])},
        "own": {key: sum(row[key] for row in own) for key in ("objects", "same")},
        "served": {key: sum(row[key] for row in served) for key in ("objects", "same")}
        | {key: max(row[key] for row in served) for key in ("corners", "scores")},
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    related, controls = results.settings["related"], results.settings["controls"]
    every = distinct(results.rows["classes"], "name", stage=ALL)
    shown = {
        "All classes": Block(_precisions(results, [ALL], every)),
        "Two related classes, before and after": Block(_precisions(results, [ALL, TUNED], related), _related(results)),
    }
    if controls:
        shown["The value of the first network"] = Block(_precisions(results, [TUNED, *controls], related))
    if results.pictures:
        shown["Detections in a picture of each class"] = Block(figure=pictures_shown(results))
    ranked = sorted(PUBLISHED, key=lambda name: -PUBLISHED[name])
    outputs: dict[str, Any] = {
        "pictures": "kind", "output": "output", "largest difference": ("largest_absolute", "{:.1e}".format),
        "largest relative": ("largest_relative", "{:.1e}".format), "equal bit for bit": lambda row: percent(row["num_equal"] / row["num_values"], 0),
        "share of tolerance": ("tightest", "{:.2g}".format),
    }  # fmt: skip
    objects: dict[str, Any] = {
        "pictures": "where", "objects": ("objects", "{:,}".format), "same in ONNX Runtime": ("same", "{:,}".format), "corners differ by": ("corners", "{:.1e}".format),
        "scores": ("scores", "{:.1e}".format), "same in the server": lambda row: str(row["served"]["same"]) if "served" in row else "",
    }  # fmt: skip
    return {
        **shown,
        "The same outputs in ONNX Runtime?": Block(table(results.rows["outputs"], outputs, text=2)),
        "The same objects, and served?": Block(table(results.rows["objects"], objects)),
        "How it learns": Block(figure=_learning(results)),
        "Twenty classes of VOC 2007, as published": Block(
            listed(["class", "11-point metric, published"], [[n, f"{100 * PUBLISHED[n]:.2f} %"] for n in ranked])
        ),
        "What is not measured": Block(listed(["row", "value", "how to get it"], _MISSING, 3)),
    }


def _precisions(results: Results, stages: Sequence[str], names: Sequence[str]) -> Table:
    body = []
    for name in names:
        for stage in stages:
            rows = matching(results.rows["classes"], stage=stage, name=name)
            if rows:
                area = spread(rows, "average_precision_area").percent()
                body.append([name, stage, str(rows[0]["objects"]), *precision(results, stage, name).cells(), area])
    return listed(["class", "network", "test objects", "11-point metric", "seeds", "area metric"], body, 2)


def _related(results: Results) -> Figure:
    bars = []
    for name in results.settings["related"]:
        for word, stage in (("before", ALL), ("after", TUNED)):
            own = precision(results, stage, name)
            bars.append(Bar(f"{name}, {word}", "measured", {stage: 100 * own.mean}, 100 * own.low, 100 * own.high))
    return Figure([Bars("average precision, %", "class", bars, {stage: COLORS[stage] for stage in (ALL, TUNED)})])


def _learning(results: Results) -> Figure:
    """Return a panel for the networks of all classes and one for those of the two: their mAP is of other classes."""
    stages, panels = distinct(results.rows["runs"], "stage"), []
    for is_all, classes in ((True, "all classes"), (False, " and ".join(results.settings["related"]))):
        own = [stage for stage in stages if (stage in (ALL, FURTHER)) is is_all]
        series = [mean_curve(results.curves, stage, "epoch", stage, COLORS[stage]) for stage in own]
        panels.append(Lines("epochs", f"mAP of {classes}, %", series, from_zero=True, most_y=100))
    return Figure(panels)


# Commands that a user can copy, one after the other.
TO_MEASURE = {
    "twenty classes of VOC 2007, public weights": (
        "chronograd data voc:VOCdevkit/VOC2007 --download",
        "chronograd evaluate ssd-mobilenet-v1 task=detection network.weights=mobilenet-v1-ssd-mp-0_675.pth "
        "data.name=voc:VOCdevkit/VOC2007",
    ),
    "two related classes of Open Images, fine-tuned from them": (
        "chronograd data open-images:guns class_names=[Handgun,Shotgun] --download",
        "chronograd train ssd-mobilenet-v1 task=detection network.weights=mobilenet-v1-ssd-mp-0_675.pth data.name=open-images:guns "
        "data.class_names=[Handgun,Shotgun] training.recipe=adamw training.learning_rate=0.001 training.epochs=100 "
        "training.batch=24 --out runs/guns",
        "chronograd evaluate runs/guns",
    ),
}
_MISSING = [[row, "not measured", "; ".join(commands)] for row, commands in TO_MEASURE.items()]


_SMOKE: Mapping[str, Any] = {
    "data": DISCS, "drawn_test": 8, "half": 16, "related": ["dark", "light"], "trunk": None,
    "network": "ssd-mobilenet-v1", "options": {"width": 0.25}, "image_size": 64, "expand": 1.0, "channels_last": False, "batch": 8,
    "first": {"epochs": 2, "learning_rate": 0.002, "evaluate_every": 1}, "second": {"epochs": 1, "learning_rate": 0.002},
    "controls": [ALONE, FURTHER], "seeds": 2,
}  # fmt: skip
_LAPTOP: Mapping[str, Any] = {
    "data": "voc:bccd", "half": 146, "related": ["RBC", "WBC"], "trunk": "mobilenetV1X0.25_pretrain.tar",
    "network": "ssd-mobilenet-v1", "options": {"width": 0.25}, "image_size": 160, "expand": 1.0, "channels_last": True, "batch": 8,
    "first": {"epochs": 8, "learning_rate": 0.002, "evaluate_every": 4},
    "second": {"epochs": 4, "learning_rate": 0.001, "evaluate_every": 2},
    "controls": [ALONE], "seeds": 3,
}  # fmt: skip
_EVENING: Mapping[str, Any] = {
    **_LAPTOP, "image_size": 300,
    "first": {"epochs": 60, "learning_rate": 0.002, "evaluate_every": 10},
    "second": {"epochs": 30, "learning_rate": 0.001, "evaluate_every": 5}, "controls": [ALONE, FURTHER],
    "seeds": 2,
}  # fmt: skip
_PAPER: Mapping[str, Any] = {
    **_EVENING, "options": {}, "expand": 4.0, "batch": 24, "trunk": None,
    "first": {"epochs": 200, "learning_rate": 0.001, "evaluate_every": 20},
    "second": {"epochs": 100, "learning_rate": 0.001, "evaluate_every": 20}, "seeds": 3,
}  # fmt: skip

STUDY = Study(
    name="detection-transfer",
    question="How accurate is a detector on each class, and on two related classes before and after it is fine-tuned on them?",
    hypothesis="Training on two related classes alone helps both, and starting from a detector of more classes helps more than "
    "starting from the trunk",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    published="evening",
)
