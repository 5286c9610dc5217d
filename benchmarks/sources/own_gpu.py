"""Steps that we timed on GPUs with `benchmarks.gpu`: ten different networks, both modes, batch 1 to 32,768, four precisions.

    predicted beforehand         by the package before we had access to the machine; the file is from that commit
    no measurement of the chip   by the current package, without this chip's rows
    chronograd calibrate         on that machine, half a minute per precision: blocks that differ from these networks
    one network left out         calibrated on the others' steps

The score of a training step covers forward and backward, with a wait after each. The update and the input are other terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import by_case, cases, name_of, pairs
from benchmarks.sources import Row, row_of
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.fit.device import Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.job import from_dict
from chronograd.predict.calibration import Calibration, calibrations
from chronograd.predict.compute import Work
from chronograd.predict.relatives import assumed_for, calibration_for, sheet_for
from chronograd.record import Z80

FOLDER = Path(__file__).parents[1] / "results" / "gpu"
SOURCE = "Chronograd, benchmarks/results/gpu"
TITLE = "GPUs timed here"
# Before these rows, only hosts of 2018 were timed.
_OLD_HOST = "xeon-e5-2698-v4"


@dataclass(frozen=True)
class Timed:
    """One case of a device. `seconds`: of forward and backward, with a wait after each."""

    device: str
    case: dict[str, Any]
    sample: Sample

    @property
    def name(self) -> str:
        return f"{self.device}: {name_of(self.case)}"

    @property
    def network(self) -> str:
        return str(self.case["network"]["name"])

    @property
    def setting(self) -> tuple[str, str, str, bool]:
        """Return device, precision, mode and layout. Text has no layout, and shares that of the images in its precision."""
        training = self.case["training"]
        return self.device, training["precision"], self.case["mode"], training["precision"] != "fp32"


def read(folder: Path = FOLDER) -> list[Timed]:
    """Return every timed eager case; traces are made on the CPU."""
    found = []
    for path in sorted(folder.glob("measured-*.json")):
        rows = by_case(path)
        for case in cases():
            row = rows.get(name_of(case))
            if row is None or case["training"].get("compile"):
                continue
            job = from_dict(case)
            work = Work.of(trace_job(job), job.training.batch, job.training.precision)
            sample = Sample(work, row["forward_s"] + row["backward_s"], case["network"]["name"])
            found.append(Timed(path.stem.removeprefix("measured-"), case, sample))
    return found


def rows(folder: Path) -> list[Row]:
    """Return the rows of our GPUs. Ignores `folder`: the results are part of the project."""
    timed = read()
    if not timed:
        return []
    hosts = {"": _OLD_HOST, ", but of its host": None}
    without = {(s, host): _without_chip(s, host) for s in {t.setting for t in timed} for host in hosts.values()}
    return [
        *_beforehand(),
        *(
            _row(f"no measurement of the chip{w}", [(t, without[t.setting, h]) for t in timed])
            for w, h in hosts.items()
        ),
        _row("chronograd calibrate on that machine", list(_by_blocks(timed))),
        _row("calibrated on its steps, one network left out", list(_left_out(timed))),
    ]


def _beforehand() -> list[Row]:
    """Return full steps, predicted by the file that was committed before we had access to the machine."""
    timed = [
        (path.stem.removeprefix("measured-"), pair)
        for path in sorted(FOLDER.glob("measured-*.json"))
        for pair in pairs(path.with_name(path.name.replace("measured", "predicted")), path)
    ]
    names = [f"{device}: {pair.case}" for device, pair in timed]
    ratios, inside = [pair.ratio for _, pair in timed], [pair.is_inside for _, pair in timed]
    return [row_of(TITLE, "whole steps, predicted beforehand", None, names, ratios, inside, groups=_groups(names))]


def _groups(names: Sequence[str]) -> dict[str, list[str]]:
    return {
        "device": [name.partition(":")[0] for name in names],
        "mode": ["inference" if ", inference" in name else "training" for name in names],
        "batch": ["8 and less" if int(name.split("batch ")[1].split(",")[0]) <= 8 else "more" for name in names],
        "precision": [name.split("batch ")[1].split(", ")[1] for name in names],
    }


def _row(rule: str, predicted: Sequence[tuple[Timed, Calibration]]) -> Row:
    ratios = np.array([t.sample.work.total_seconds(c) / t.sample.seconds for t, c in predicted])
    spread = np.array([t.sample.work.sigma_log(c) for t, c in predicted])
    names = [t.name for t, _ in predicted]
    return row_of(TITLE, rule, None, names, ratios, np.abs(np.log(ratios)) <= Z80 * spread, groups=_groups(names))


def _without_chip(setting: tuple[str, str, str, bool], host: str | None) -> Calibration:
    """Return the assumed calibration of a device without any row of it or of another card of its chip, on a host or the usual one."""
    name, precision, mode, channels_last = setting
    device = catalog.device(name)
    device = device.model_copy(update={"node": device.node.model_copy(update={"host": host or device.node.host})})
    same = [d.name for d in catalog.devices() if d.kind == "gpu" and (d.year or 0) >= (device.year or 0) - 1]
    return assumed_for(device, precision, mode=mode, channels_last=channels_last, without_devices=same)[0]


def _by_blocks(timed: Sequence[Timed]) -> Iterator[tuple[Timed, Calibration]]:
    """Yield the predictions from `chronograd calibrate` on each machine; precisions without a calibration are skipped."""
    for t in timed:
        device, precision, mode, channels_last = t.setting
        local = catalog.device(str(FOLDER / f"calibrated-{device}.toml"))
        if any(c.precision == precision for c in calibrations(local)):
            yield t, calibration_for(local, precision, mode=mode, channels_last=channels_last)


def _prior(setting: tuple[str, str, str, bool]) -> Calibration:
    name, precision, mode, channels_last = setting
    return sheet_for(catalog.device(name), precision, mode, channels_last, is_compiled=False, has_fused_attention=True)


def _left_out(timed: Sequence[Timed]) -> list[tuple[Timed, Calibration]]:
    """Return each network predicted from the steps of the others, if there are enough of them."""
    found = []
    for setting in sorted({t.setting for t in timed}):
        own = [t for t in timed if t.setting == setting]
        for network in dict.fromkeys(t.network for t in own):
            others = [t.sample for t in own if t.network != network]
            try:
                fitted = fit_calibration(others, _prior(setting), are_networks=True)
            except InputError:
                continue
            found += [(t, fitted) for t in own if t.network == network]
    return found


def calibrated() -> dict[str, list[Calibration]]:
    """Return calibrations by device, one for each precision and mode with enough steps."""
    timed = read()
    found: dict[str, list[Calibration]] = {}
    for setting in sorted({t.setting for t in timed}):
        own = [t.sample for t in timed if t.setting == setting]
        try:
            fitted = fit_calibration(own, _prior(setting), are_networks=True)
        except InputError as error:
            print(f"{setting}: {error.message}")
            continue
        table = {"table": f"benchmarks/results/gpu/measured-{setting[0]}.json", "torch": "2.11.0"}
        found.setdefault(setting[0], []).append(replace(fitted, provenance={**fitted.provenance, **table}))
    return found
