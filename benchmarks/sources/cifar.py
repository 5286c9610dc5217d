"""Epoch times of CIFAR ResNets on K80, P100 and V100: one network predicted from the others on its device.

    epoch = steps · (a · device time + h · launches)

Device time and launches of one training step come from the trace and the datasheet; a and h are fitted to the other networks of
the device, with wide priors. The measured time is the median epoch; the spread of epochs within a run is reported next to the
error. Depths of the form 6n + 2 are traced as networks for CIFAR, others as those for ImageNet at 32 x 32. The source does not
state this. Its depth 18 takes twice as long as our ImageNet version, the time of depth 20.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.sources import Row, row_of
from chronograd.count.cached import cached_trace
from chronograd.errors import NotFoundError
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet
from chronograd.predict.compute import Work

_FILE = re.compile(r"history(?P<depth>\d+)_(?P<device>\w+)\.json$")
BATCH = 128
STEPS = 50_000 / BATCH
# A process uses one of the K80's two GPUs.
_ONE_GPU = {"k80": "k80-gk210"}
# Standard deviations of log a and log h.
_PRIOR_SD = np.array([0.7, 1.0])
Run = tuple[int, float, float, float]


def rows(folder: Path) -> list[Row]:
    """Return every run whose device has two others. Empty if the folder is missing."""
    runs: dict[str, list[Run]] = {}
    noise: dict[str, float] = {}
    for path in sorted((folder / "resnet_cifar10_k80_p100_v100").glob("history*.json")):
        said = _FILE.search(path.name)
        if said is None:
            continue
        epochs = np.array(json.loads(path.read_text(encoding="utf-8"))["time"], dtype=float)
        device, depth = said["device"].lower(), int(said["depth"])
        step = _step(_ONE_GPU.get(device, device), depth)
        if step is not None:
            runs.setdefault(device, []).append((depth, float(np.median(epochs)), *step))
            low, high = np.quantile(epochs, [0.1, 0.9])
            noise[f"ResNet-{depth} on {said['device']}"] = round(float(high / low - 1), 3)
    names, ratios = [], []
    for device, of_device in runs.items():
        for i, run in enumerate(of_device):
            others = of_device[:i] + of_device[i + 1 :]
            if len(others) >= 2:
                names.append(f"ResNet-{run[0]} on {device.upper()}")
                ratios.append(_epoch_s(run, _fit(others)) / run[1])
    if not names:
        return []
    by_case = dict(zip(names, (round(r, 3) for r in ratios), strict=True))
    found = row_of(
        "CIFAR ResNets",
        "each run from the other networks on its device",
        None,
        names,
        ratios,
        note="Noise: the excess of a run's slowest tenth of epochs over its fastest",
        details={"predicted / measured": by_case, "noise": noise},
    )
    return [found]


def _step(device: str, depth: int) -> tuple[float, float] | None:
    """Return seconds on the device and number of launches of one training step; None if the catalogue lacks the device."""
    try:
        calibration = from_datasheet(catalog.device(device))
    except NotFoundError:
        return None
    if (depth - 2) % 6 == 0:
        options = {"depth": depth, "num_classes": 10, "in_channels": 3}
        trace = cached_trace("chronograd.models.resnet:CifarResNet", options, input_shape=(3, 32, 32))
    else:
        trace = cached_trace(f"torchvision:resnet{depth}", {"num_classes": 10}, input_shape=(3, 32, 32))
    work = Work.of(trace, BATCH)
    return float(work.seconds(calibration).sum()), float(work.launches.sum())


def _epoch_s(run: Run, log_factors: np.ndarray) -> float:
    a, h = np.exp(log_factors)
    return float(STEPS * (a * run[2] + h * run[3]))


def _fit(runs: list[Run]) -> np.ndarray:
    """Return the logarithms of a and h. The prior is the device's datasheet and 10 µs per launch."""
    start = np.log([1.0, 1e-5])

    def residuals(x: np.ndarray) -> np.ndarray:
        errors = [np.log(_epoch_s(run, x) / run[1]) / 0.1 for run in runs]
        return np.concatenate([errors, (x - start) / _PRIOR_SD])

    return np.asarray(least_squares(residuals, start, loss="soft_l1").x)
