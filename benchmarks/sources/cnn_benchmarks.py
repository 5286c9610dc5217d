"""CNNs on GPUs without measurements: Torch7's AlexNet, GoogLeNet, VGGs and ResNets, batch 16, fp32 training.

Each device is left out and predicted from its data sheet and data from all other devices, like `predict --on`. Only the newest
of several cuDNN versions counts. Networks are torchvision's of the same name. Its GoogLeNet has batch norms and auxiliary
heads, which the timed one did not have.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from chronograd.count.cached import cached_trace
from chronograd.errors import NotFoundError
from chronograd.fit.device import Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.predict.calibration import HOST_SIGMA, Calibration
from chronograd.predict.compute import Work
from chronograd.predict.relatives import assumed_for
from chronograd.record import Z80

TABLE = "cnn_benchmarks/torch7_runs.csv"
AIM = 0.20
BATCH = 16
DEVICES = {
    "GeForce GTX 1080": "gtx1080",
    "GeForce GTX 1080 Ti": "gtx1080ti",
    "GeForce GTX TITAN X": "titan-x",
    "TITAN X": "titan-x-pascal",
}
NETWORKS = {
    "alexnet": "alexnet",
    "googlenet-v1": "googlenet",
    **{f"vgg{depth}": f"vgg{depth}" for depth in (16, 19)},
    **{f"resnet-{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
}


@dataclass(frozen=True)
class Timed:
    """One network on one device: the step and its two passes."""

    device: str
    network: str
    step: Sample
    passes: tuple[Sample, Sample]


def rows(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Return a row for every device of the catalogue, left out. Empty if the table is missing."""
    timed = read(folder, say)
    if not timed:
        return []
    assumed = {
        name: assumed_for(catalog.device(name), "fp32", mode="training", without_devices=[name])[0]
        for name in {t.device for t in timed}
    }
    ratios = np.array([t.step.work.total_seconds(assumed[t.device]) / t.step.seconds for t in timed])
    sigmas = np.array([t.step.work.sigma_log(assumed[t.device]) for t in timed])
    found = row_of(
        "CNNs on GPUs without a row",
        "each device left out: its data sheet and data from other GPUs",
        AIM,
        [f"{t.network} on {t.device}" for t in timed],
        ratios,
        np.abs(np.log(ratios)) <= Z80 * sigmas,
        groups={"device": [t.device for t in timed], "network": [t.network for t in timed]},
    )
    return [found]


def read(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Timed]:
    """Return the networks with the newest cuDNN version, on devices of the catalogue."""
    path = folder / TABLE
    if not path.exists():
        return []
    newest: dict[tuple[str, str], tuple[int, float, float]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            if line["use_cudnn"] == "1" and line["model"] in NETWORKS and line["gpu_name"] in DEVICES:
                key = DEVICES[line["gpu_name"]], NETWORKS[line["model"]]
                times = float(line["forward_ms"]) / 1e3, float(line["backward_ms"]) / 1e3
                newest[key] = max(newest.get(key, (0, 0.0, 0.0)), (int(line["cudnn_version"]), *times))
    found = []
    for (device, network), (_, forward_s, backward_s) in sorted(newest.items()):
        try:
            catalog.device(device)
        except NotFoundError as error:
            say(error.message)
            continue
        work = Work.of(cached_trace(f"torchvision:{network}", input_shape=(3, 224, 224), mode="training"), BATCH)
        forward, backward = (work.chosen(work.class_index % 2 == phase) for phase in (0, 1))
        passes = Sample(forward, forward_s, network), Sample(backward, backward_s, network)
        found.append(Timed(device, network, Sample(work, forward_s + backward_s, network), passes))
    return found


def calibrated(folder: Path) -> dict[str, Calibration]:
    """Return calibrations by device, fitted to both passes of its networks. Torch7 runs from Lua, not PyTorch's host code."""
    timed, found = read(folder), {}
    for name in sorted({t.device for t in timed}):
        sheet, _ = assumed_for(
            catalog.device(name), "fp32", mode="training", without_devices={d.name for d in catalog.devices()}
        )
        samples = [sample for t in timed if t.device == name for sample in t.passes]
        fitted = fit_calibration(samples, replace(sheet, host_launch_s=0.0, host_sigma=0.0), are_networks=True)
        provenance = {**fitted.provenance, "table": TABLE}
        found[name] = replace(fitted, host_launch_s=sheet.host_launch_s, host_sigma=HOST_SIGMA, provenance=provenance)
    return found
