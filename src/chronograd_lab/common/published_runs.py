"""Published learning curves, with the schedules of their learning rates.

DAWNBench's logs do not contain the schedule. If the error falls at once, at the same epoch in every run of a kind, the rate
fell. If it falls faster and faster towards the planned end, the rate was annealed. This is read from whole curves once, as the
job file of each run would have stated it before the run.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chronograd.errors import NotFoundError
from chronograd.forecast.learning_curves import LearningCurve, read_curve
from chronograd.forecast.schedule import Schedule

MEASURED_VARIABLE = "CHRONOGRAD_MEASURED"
CIFAR_RESNETS = "resnet_cifar10_k80_p100_v100"  # a folder of it
HELD_BACK = (
    "resnet50_cifar10_k80_p100_v100"  # another folder of the same source: runs of ResNet-50, to which nothing is fitted
)
# Drops of the rate, by a part of the file name. Other runs on images are annealed; for question answering the rate is constant.
DROPS: dict[str, tuple[float, ...]] = {
    "KRes34": (50, 100, 150),
    "dawn_resnet164": (91, 136),
    "diux_cifar": (82,),
    "Intel_Resnet50": (30, 60),
    "diux_resnet50": (30, 60),
    "google_resnet50": (30, 60),
    "dawn_resnet152_b_4M60": (106, 213),
    "dawn_resnet152_b_8k80": (68, 137),
}
# ResNet-50 on CIFAR-10, which `depth-and-device` predicts by Optimus' coefficients: epochs to 92 % with the 80 % interval.
RESNET50_EPOCHS_TO_92 = (12.9685, 6.49779, 25.8828)
RESNET50_REAL_EPOCHS_TO_92 = (33, 29, 26)  # of its runs on K80, P100 and V100
NO_CURVE = "drqa"  # its column of accuracies exceeds 1, so it holds something else


@dataclass(frozen=True, eq=False)
class PublishedCurve:
    """A whole curve. `group`: similar runs; none of them may forecast another. `source`: its table."""

    curve: LearningCurve
    source: str
    group: str


def dawnbench(measured: Path) -> Iterator[PublishedCurve]:
    """Yield errors on the test split by epoch, of runs on CIFAR-10, ImageNet and SQuAD."""
    runs: dict[str, list[tuple[float, float]]] = {}
    with (measured / "dawnbench" / "train_epoch_times.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["acc"] and NO_CURVE not in row["file"]:
                runs.setdefault(row["file"], []).append((float(row["epoch"]), float(row["acc"])))
    for path, points in runs.items():
        task, _, name = path.split("/")
        epochs, accuracies = np.array(points).T
        epochs = epochs + 1 - epochs[0] if epochs[0] <= 0 else epochs
        errors = 1 - accuracies / (1 if task == "SQuAD" else 100)
        schedule = _schedule(task, name, float(epochs[-1]))
        curve = LearningCurve(name.removesuffix(".tsv"), epochs, errors, "accuracy", "epoch", schedule)
        yield PublishedCurve(curve, f"DAWNBench, {task}", f"{task} of {name.split('_')[0]}")


def cifar_resnets(
    measured: Path, folder: str = CIFAR_RESNETS, source: str = "ResNets at a constant rate"
) -> Iterator[PublishedCurve]:
    """Yield training losses of ResNets of five depths on three devices, at a constant rate; in the other folder those of
    ResNet-50.
    """
    for path in sorted((measured / folder).glob("history*.json")):
        name = path.stem.removeprefix("history")
        losses = read_curve(path)
        curve = replace(losses, name=f"ResNet-{name}", schedule=Schedule("constant", (), float(losses.steps[-1])))
        yield PublishedCurve(curve, source, f"depth {name.split('_')[0]}")


def measured_folder() -> Path | None:
    """Return the folder of published timings and curves, if the user has them."""
    folder = os.environ.get(MEASURED_VARIABLE)
    if folder and not Path(folder).expanduser().is_dir():
        raise NotFoundError(f"folder of {MEASURED_VARIABLE}", folder, [])
    return Path(folder).expanduser() if folder else None


def large_models_folder() -> Path | None:
    """Return the folder of published runs of large models, if the user has them."""
    folder = measured_folder()
    return folder / "large_models" if folder is not None and (folder / "large_models").is_dir() else None


def _schedule(task: str, name: str, planned: float) -> Schedule:
    if task == "SQuAD":
        return Schedule("constant", (), planned)
    drops = next((drops for part, drops in DROPS.items() if part in name), ())
    return Schedule("multi_step", drops, planned) if drops else Schedule("annealed", (), planned)
