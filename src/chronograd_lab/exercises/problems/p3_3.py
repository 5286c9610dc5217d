# %% A detector that is trained here at a small size, its ONNX file, and the runs of the reported detectors.
from pathlib import Path
from typing import Any

import numpy as np

import chronograd
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import grouped, mean
from chronograd_lab.exercises.problems import RUNS, image, results, show, trained

REPORTED, BEFORE, AFTER = results("detection-transfer"), "all classes", "fine-tuned on the two"
SMALL: dict[str, Any] = {
    "half": 96, "drawn_test": 24, "image_size": 64, "batch": 16, "seeds": 1, "controls": [],
    "first": {"epochs": 40, "learning_rate": 0.004, "evaluate_every": 20}, "second": {"epochs": 20, "learning_rate": 0.002},
}  # fmt: skip
RUN = RUNS / "detection-transfer" / "runs" / "fine-tuned-on-the-two" / "seed-0"
HERE, FULL = Path("trained-here.onnx"), Path("fine-tuned.onnx")  # the second one only if README.md lists it


def show_precisions(study: Results, *stages: str) -> None:
    print(f"— size {study.size}: average precision by the 11-point metric, mean of the seeds")
    for (stage, name), rows in grouped(study.rows["classes"], "stage", "name").items():
        if stage in stages and (stages == (BEFORE,) or name in study.settings["related"]):
            print(f"{stage}, {name}: {mean(rows, 'average_precision_11_point'):.2%}")


def seen(picture: Any, side: int) -> np.ndarray:  # (1, 3, side, side), as the network takes it
    from chronograd.data.detection import PIXEL_MEAN, PIXEL_SCALE
    from chronograd.detect.augmentation import plain

    pixels: np.ndarray = ((plain(picture, side).round().clamp(0, 255) - PIXEL_MEAN) / PIXEL_SCALE)[None].numpy()
    return pixels


def exported() -> Path:  # the reported detector if its file is in the archive, else the one that is trained here
    if not FULL.exists() and not HERE.exists():
        trained("detection-transfer", **SMALL)
        chronograd.export(RUN, onnx=HERE)
    return FULL if FULL.exists() else HERE


# %% 3.3.1 Train a detector on discs drawn in three greys. Then the reported precision of each class.
for study in (trained("detection-transfer", **SMALL), REPORTED):
    show_precisions(study, BEFORE)
# %% 3.3.2 The two related classes before and after fine-tuning, here and as reported.
for study in (trained("detection-transfer", **SMALL), REPORTED):
    show_precisions(study, BEFORE, AFTER)
# %% 3.3.3 Train as in part 1, then export. The shape of the dummy input counts, and its first dimension is free.
import onnxscript
import torch

small = trained("detection-transfer", **SMALL)
chronograd.show(chronograd.export(RUN, onnx=HERE))
print(
    f"PyTorch {torch.__version__} and onnxscript {onnxscript.__version__} wrote {HERE}; the cells below use {exported()}"
)
# %% 3.3.4 Load the file, and check its graph, types and shapes.
import onnx

onnx.checker.check_model(onnx.load(exported()), full_check=True)
print(exported(), "is valid:", len(onnx.load(exported()).graph.node), "operators")
# %% 3.3.5 Run it in ONNX Runtime on 3 random images.
import onnxruntime

session = onnxruntime.InferenceSession(exported())
(images,) = session.get_inputs()
noise = np.random.default_rng(0).normal(size=(3, *images.shape[1:])).astype(np.float32)
print(
    "ONNX Runtime",
    onnxruntime.__version__,
    "gives:",
    *(output.shape for output in session.run(None, {images.name: noise})),
)
# %% 3.3.6 Compare the outputs of the file that is exported here with those of PyTorch, on 3 test pictures. Then the reported differences.
import onnxruntime
import torch

from chronograd.data import datasets
from chronograd.rundir import RunDir
from chronograd.train.detection import detector_of

small = trained("detection-transfer", **SMALL)
chronograd.export(RUN, onnx=HERE)
network, _, side = detector_of(RunDir.open(RUN))
test_set: Any = datasets.load(RunDir.open(RUN).job().data).annotated
images = np.concatenate([seen(picture.read(), side) for picture in test_set.test[:3]])
theirs = onnxruntime.InferenceSession(HERE).run(None, {"images": images})
with torch.no_grad():
    ours = [output.numpy() for output in network(torch.from_numpy(images))]
for name, one, other in zip(("scores", "boxes"), ours, theirs, strict=True):
    print(f"{name}: at most {np.abs(one - other).max():.1e} apart, {np.mean(one == other):.0%} equal")
    assert np.allclose(one, other, rtol=1e-3, atol=1e-5)
for study in (small, REPORTED):
    for row in study.rows["outputs"]:
        print(f"size {study.size}, {row['kind']}, {row['output']}: at most {row['largest_absolute']:.1e} apart")
# %% 3.3.7 Run the file on a picture of each class and list its 3 best objects. Then the number of objects in the reported pictures.
import onnxruntime
import torch

from chronograd.data import datasets
from chronograd.detect.suppression import detections
from chronograd.rundir import RunDir

session = onnxruntime.InferenceSession(exported())
pictures: dict[str, Any] = {}
if exported() == FULL:
    for number, name in enumerate(REPORTED.settings["related"], 1):
        pixels = torch.from_numpy(255 * image(REPORTED.pictures[f"{name}/as annotated"])[..., :3])
        pictures[name] = number, pixels.permute(2, 0, 1)
else:
    discs = datasets.load(RunDir.open(RUN).job().data)
    annotated: Any = discs.annotated
    for number, name in enumerate(discs.card.class_names, 1):
        pictures[name] = number, next(one.read() for one in annotated.test if number in one.objects.labels_G)
names = list(pictures)
for name, (_, pixels) in pictures.items():
    scores, boxes = map(
        torch.from_numpy, session.run(None, {"images": seen(pixels, session.get_inputs()[0].shape[-1])})
    )
    objects = zip(*detections(scores[0], boxes[0], least_score=0.1), strict=True)
    print(f"a picture of {name}:", *(f"{names[label - 1]} {score:.2f}" for _, score, label in list(objects)[:3]))
for row in REPORTED.rows["pictured"]:
    print(f"reported, picture of {row['picture']}, {row['stage']}: {row['boxes']} {row['name']}")
# %% 3.3.8 Boxes and labels: as annotated, before and after fine-tuning, and as ONNX Runtime gives them. Here, then as reported.
for study in (trained("detection-transfer", **SMALL), REPORTED):
    show({name: image(png) for name, png in study.pictures.items()}, columns=4)
