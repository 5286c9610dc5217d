"""NVIDIA's DeepLearningExamples: ResNet-50 and EfficientNet-B0, inference at batch 1 to 256 on V100 and T4, and training.

Each device is left out together with the other cards of its chip, and predicted from its data sheet and data from other
devices, like `predict --on`. At small batches the host limits the speed. Then four rows of a device, precision and mode, chosen
by seed, predict its other rows.

Training on eight GPUs is predicted twice: without any row of the device, and from its row of one GPU. The variation of steps
between GPUs is `USUAL_STEP_SIGMA_LOG`. TensorFlow's page alone also gives its value of 0.05, so nothing here is fitted to these
rows.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from chronograd.count.cached import cached_trace
from chronograd.fit.device import Sample, fit_calibration
from chronograd.fit.tables import shuffled
from chronograd.hardware import catalog
from chronograd.job import Training, from_dict
from chronograd.predict.calibration import DATASHEET_SIGMA, Calibration, calibrations
from chronograd.predict.compute import Work, update_seconds
from chronograd.predict.prediction import rank_work, with_others
from chronograd.predict.relatives import assumed_for
from chronograd.predict.setting import setting_of
from chronograd.record import Z80
from chronograd.trace import Trace

SOURCE = "NVIDIA DeepLearningExamples"
TABLE = "nvidia_deeplearningexamples/resnet50.csv"
NUM_FITTED = 4
SEEDS = range(5)
SMALL = 8
# The optimizer of the training scripts.
TRAINING = Training(recipe="sgd-momentum", weight_decay=1e-4)
# The usual host of both is known from these rows, so each gets the one that the other's rows show.
_HOST_OF = {"v100": "t4", "t4": "v100"}


@dataclass(frozen=True)
class Timed:
    """A row of one device, or of `devices` in one machine. `setting` is device, precision, mode and layout."""

    setting: tuple[str, str, str, bool]
    network: str
    batch: int
    trace: Trace
    sample: Sample
    devices: int = 1

    @property
    def name(self) -> str:
        device, precision, mode, _ = self.setting
        count = f"{self.devices} × " if self.devices > 1 else ""
        return f"{self.network} {mode} on {count}{device}, {precision}, batch {self.batch}"

    def predicted(self, calibration: Calibration) -> tuple[float, float]:
        """Return predicted over measured, and the spread of its logarithm."""
        seconds = self.sample.work.total_seconds(calibration)
        if self.setting[2] == "training":
            seconds += update_seconds(self.trace, TRAINING, calibration)
        return seconds / self.sample.seconds, self.sample.work.sigma_log(calibration)


def rows(folder: Path) -> list[Row]:
    """Return rows for inference, its small batches, training, inference after four rows, and eight GPUs. Empty without the
    table.
    """
    everything = read(folder)
    timed = [t for t in everything if t.devices == 1]
    if not timed:
        return []
    without = {s: assumed_without(s) for s in {t.setting for t in timed}}
    inference = [t for t in timed if t.setting[2] == "inference"]
    small = [t for t in inference if t.batch <= SMALL]
    training = [t for t in timed if t.setting[2] == "training"]
    left_out = "each device left out"
    found = [
        _row(f"inference, {left_out}", 0.15, [(t, without[t.setting]) for t in inference]),
        _row(f"inference, batch 1 to {SMALL}, {left_out}", 0.20, [(t, without[t.setting]) for t in small]),
        _row(f"training, {left_out}", 0.12, [(t, without[t.setting]) for t in training]),
    ]
    after: list[tuple[Timed, Calibration]] = []
    by_seed = []
    for seed in SEEDS:
        start = len(after)
        for setting in sorted({t.setting for t in inference}):
            order = shuffled([t for t in inference if t.setting == setting], seed)
            fitted = fit_calibration([t.sample for t in order[:NUM_FITTED]], without[setting], are_networks=True)
            after += [(t, fitted) for t in order[NUM_FITTED:]]
        by_seed.append(float(np.mean([abs(t.predicted(c)[0] - 1) for t, c in after[start:]])))
    rule = f"inference, {NUM_FITTED} rows of a device and precision predict the rest"
    found.append(_row(rule, 0.08, after, by_seed=tuple(by_seed)))
    several = [t for t in everything if t.devices > 1]
    return [*found, *_of_several(several, {t.setting: t for t in training}, without)] if several else found


def _of_several(
    several: Sequence[Timed],
    alone: dict[tuple[str, str, str, bool], Timed],
    without: dict[tuple[str, str, str, bool], Calibration],
) -> list[Row]:
    """Return rows for training on several GPUs of a machine: without any row of the device, and from its row of one GPU."""
    calibrations = [without[t.setting] for t in several]
    ratios = [[step_of_several(t, c, one) / t.sample.seconds for t, c in zip(several, calibrations, strict=True)]
              for one in (None, alone)]  # fmt: skip
    sigma = [t.sample.work.sigma_log(c) for t, c in zip(several, calibrations, strict=True)]
    inside = np.abs(np.log(ratios[0])) <= Z80 * np.array(sigma)
    names, groups = (
        [t.name for t in several],
        {"device, precision": [f"{t.setting[0]}, {t.setting[1]}" for t in several]},
    )
    return [
        row_of(SOURCE, "training on 8 GPUs, each device left out", 0.12, names, ratios[0], inside, groups),
        row_of(SOURCE, "training on 8 GPUs, from the row of one", None, names, ratios[1], None, groups),
    ]


def step_of_several(
    timed: Timed, calibration: Calibration, alone: dict[tuple[str, str, str, bool], Timed] | None
) -> float:
    """Return predicted seconds of a step of several GPUs; if `alone` has a row of one rank, its measured time is used."""
    name, precision, _, channels_last = timed.setting
    layout = {"channels_last": channels_last} if channels_last else {}
    job = from_dict(
        {
            "network": {"name": timed.network},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
            "training": {"batch": timed.batch * timed.devices, "precision": precision, **layout},
            "cluster": {"device": name, "count": timed.devices},
            "backend": "ddp",
        }
    )
    setting = replace(setting_of(job), calibration=calibration)
    times, parts = rank_work(timed.trace, timed.batch, setting)
    longer = 1.0 if alone is None else alone[timed.setting].sample.seconds / sum(parts.values())
    parts = {part: seconds * longer for part, seconds in parts.items()}
    return float(sum(with_others(timed.trace, times * longer, parts, setting)[0].values()))


def _row(rule: str, aim: float, cases: Sequence[tuple[Timed, Calibration]], by_seed: tuple[float, ...] = ()) -> Row:
    found = np.array([t.predicted(c) for t, c in cases])
    return row_of(
        SOURCE,
        rule,
        aim,
        [t.name for t, _ in cases],
        found[:, 0],
        np.abs(np.log(found[:, 0])) <= Z80 * found[:, 1],
        by_seed=by_seed,
        groups={
            "device, precision": [f"{t.setting[0]}, {t.setting[1]}" for t, _ in cases],
            "network": [t.network for t, _ in cases],
        },
    )


def assumed_without(setting: tuple[str, str, str, bool]) -> Calibration:
    """Return the assumed calibration of a device without any row of it or of another card of its chip, nor of their host."""
    name, precision, mode, channels_last = setting
    chip = name.partition("-")[0]
    same = [d.name for d in catalog.devices() if d.name.partition("-")[0] == chip]
    device = catalog.device(name)
    assumed = assumed_for(device, precision, mode=mode, channels_last=channels_last, without_devices=same)[0]
    hosts = [c.host_launch_s for c in calibrations(catalog.device(_HOST_OF.get(chip, name))) if c.mode == mode]
    return replace(assumed, host_launch_s=float(np.mean(hosts))) if chip in _HOST_OF and hosts else assumed


def read(folder: Path) -> list[Timed]:
    """Return the rows of one device, and training rows of several."""
    path = folder / TABLE
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    found = []
    for line in lines:
        precision = "fp16" if line["precision"] == "amp" else line["precision"]
        mode, channels_last, batch = line["phase"], line["channels_last"] == "1", int(line["batch_per_device"])
        size = int(line["image_size"])
        trace = cached_trace(line["model"], input_shape=(3, size, size), mode=mode, channels_last=channels_last)
        devices = int(line["devices"])
        seconds = devices * batch / float(line["samples_per_s"])
        sample = Sample(Work.of(trace, batch, precision), seconds, line["model"])
        setting = (line["device"], precision, mode, channels_last)
        found.append(Timed(setting, line["model"].partition(":")[2], batch, trace, sample, devices))
    return found


def calibrated(folder: Path) -> dict[str, list[Calibration]]:
    """Return calibrations by device, one for each precision of inference.

    One network does not show the error on another, so the error is from the settings with several networks.
    """
    timed, fitted = [t for t in read(folder) if t.devices == 1], {}
    everything = {d.name for d in catalog.devices()}
    for setting in sorted({t.setting for t in timed if t.setting[2] == "inference"}):
        name, precision, mode, channels_last = setting
        sheet, _ = assumed_for(
            catalog.device(name), precision, mode=mode, channels_last=channels_last, without_devices=everything
        )
        fitted[setting] = fit_calibration([t.sample for t in timed if t.setting == setting], sheet, are_networks=True)
    several = [s for s in fitted if len({t.network for t in timed if t.setting == s}) > 1]
    error = max((fitted[s].sigma for s in several), default=DATASHEET_SIGMA)
    found: dict[str, list[Calibration]] = {}
    for setting, c in fitted.items():
        provenance = {**c.provenance, "table": TABLE}
        if setting not in several:
            c, provenance = replace(c, sigma=error), {**provenance, "error_of_whole_networks": error}
        found.setdefault(setting[0], []).append(replace(c, provenance=provenance))
    return found
