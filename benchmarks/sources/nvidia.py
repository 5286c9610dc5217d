"""NVIDIA's DeepLearningExamples: ResNet-50 and EfficientNet-B0, inference at batch 1 to 256 on V100 and T4, and training.

Each device is left out together with the other cards of its chip: predicted from its data sheet and what other devices
teach, as `predict --on` would. At small batches the host sets the pace. Then four rows of a device, precision and mode,
chosen by seed, predict its others.
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
from chronograd.predict.calibration import DATASHEET_SIGMA, Calibration
from chronograd.predict.compute import Work, update_seconds
from chronograd.predict.relatives import assumed_for
from chronograd.record import Z80
from chronograd.trace import Trace

TABLE = "nvidia_deeplearningexamples/resnet50.csv"
NUM_FITTED, SEEDS, SMALL = 4, range(5), 8
# The optimizer of the training scripts.
OPTIMIZER = "sgd-momentum"


@dataclass(frozen=True)
class Timed:
    """A row of one device. `setting` is device, precision, mode and layout."""

    setting: tuple[str, str, str, bool]
    network: str
    batch: int
    trace: Trace
    sample: Sample

    @property
    def name(self) -> str:
        device, precision, mode, _ = self.setting
        return f"{self.network} {mode} on {device}, {precision}, batch {self.batch}"

    def predicted(self, calibration: Calibration) -> tuple[float, float]:
        """Predicted over measured, and the spread of its logarithm."""
        seconds = self.sample.work.total_seconds(calibration)
        if self.setting[2] == "training":
            seconds += update_seconds(self.trace, OPTIMIZER, calibration)
        return seconds / self.sample.seconds, self.sample.work.sigma_log(calibration)


def rows(folder: Path) -> list[Row]:
    """Inference, its small batches, training; and inference after four rows. Empty if the table is absent."""
    timed = read(folder)
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
    return [*found, _row(rule, 0.08, after, by_seed=tuple(by_seed))]


def _row(rule: str, aim: float, cases: Sequence[tuple[Timed, Calibration]], by_seed: tuple[float, ...] = ()) -> Row:
    found = np.array([t.predicted(c) for t, c in cases])
    return row_of(
        "NVIDIA DeepLearningExamples",
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
    """What is assumed of a device without any row of it, or of another card of its chip."""
    name, precision, mode, channels_last = setting
    chip = name.partition("-")[0]
    same = [d.name for d in catalog.devices() if d.name.partition("-")[0] == chip]
    device = catalog.device(name)
    return assumed_for(device, precision, mode=mode, channels_last=channels_last, without_devices=same)[0]


def read(folder: Path) -> list[Timed]:
    """Rows of one device."""
    path = folder / TABLE
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        lines = [line for line in csv.DictReader(stream) if line["devices"] == "1"]
    found = []
    for line in lines:
        precision = "fp16" if line["precision"] == "amp" else line["precision"]
        mode, channels_last, batch = line["phase"], line["channels_last"] == "1", int(line["batch_per_device"])
        size = int(line["image_size"])
        trace = cached_trace(line["model"], input_shape=(3, size, size), mode=mode, channels_last=channels_last)
        sample = Sample(Work.of(trace, batch, precision), batch / float(line["samples_per_s"]), line["model"])
        setting = (line["device"], precision, mode, channels_last)
        found.append(Timed(setting, line["model"].partition(":")[2], batch, trace, sample))
    return found


def calibrated(folder: Path) -> dict[str, list[Calibration]]:
    """By device, one for each precision of inference.

    One network tells nothing of another's error, which is then that of the settings with several.
    """
    timed, fitted = read(folder), {}
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
