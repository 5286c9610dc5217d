"""Writer of the calibrations that ship with the package, fitted to published tables.

    python -m benchmarks.calibrations --measured DIR [--without-timm]

Writes src/chronograd/hardware/calibrations/DEVICE.toml, one setting per table, each with its error on networks left out of the
fit. Classes of work that a table does not contain are omitted. timm's tables take minutes: with --without-timm, the files of
devices that have only those tables stay unchanged.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sources import cnn_benchmarks, neusight, nvidia, own_gpu
from chronograd.calibrate.tables import fit_table, join, prior_of
from chronograd.errors import NotFoundError
from chronograd.fit.tables import read_table
from chronograd.hardware import catalog
from chronograd.predict.calibration import Calibration

FOLDER = Path(catalog.__file__).parent / "calibrations"
SOURCE = "huggingface/pytorch-image-models results/, Apache-2.0"


def rounded(value: Any) -> Any:
    """Round numbers to four digits: more digits are noise and make the files unreadable."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def text_of(settings: list[Calibration]) -> str:
    """Return TOML with one line per class."""
    lines = ["# Made by `python -m benchmarks.calibrations` from published timings; see docs/accuracy.md.", ""]
    for c in settings:
        table = rounded(c.to_table())
        classes, provenance = table.pop("classes"), table.pop("provenance")
        lines += ["[[settings]]", *(f"{k} = {json.dumps(v)}" for k, v in table.items()), "", "[settings.provenance]"]
        lines += [f"{k} = {json.dumps(v)}" for k, v in provenance.items()]
        lines += ["", "[settings.classes]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in classes.items()), ""]
    return "\n".join(lines)


def only_seen(c: Calibration) -> Calibration:
    """Return a calibration without unmeasured rates; rates from NeuSight's other direction count as measured."""
    return replace(c, classes={k: v for k, v in c.classes.items() if k in c.classes_seen})


def fitted(measured: Path, without_timm: bool = False) -> dict[str, list[Calibration]]:
    """Return calibrations by device: one per timm table, per device with kernels timed by NeuSight, and per table of CNNs."""
    found: dict[str, list[Calibration]] = defaultdict(list)
    for path in [] if without_timm else sorted(measured.glob("timm/benchmark-*.csv")):
        table = read_table(path)
        try:
            device = catalog.device(table.device or "")
        except NotFoundError as error:
            print(f"{path.name}: {error.message}")
            continue
        joined = join(table, table.rows)
        calibration = fit_table(table, joined.timed, *prior_of(table, device, "datasheet"))
        provenance = {**calibration.provenance, "source": SOURCE}
        found[device.name].append(only_seen(replace(calibration, provenance=provenance)))
        print(f"{path.name}: {len(joined.timed)} networks, error left out {calibration.sigma:.3f}")
    kernels = {name: [c] for name, c in neusight.calibrated(measured).items()}
    cnns = {name: [c] for name, c in cnn_benchmarks.calibrated(measured).items()}
    for source, fitted_here in (
        ("sitar-lab/NeuSight, MIT", kernels),
        ("jcjohnson/cnn-benchmarks, MIT", cnns),
        ("NVIDIA/DeepLearningExamples, README tables", nvidia.calibrated(measured)),
        (own_gpu.SOURCE, own_gpu.calibrated()),
    ):
        for name, settings in fitted_here.items():
            for c in settings:
                found[name].append(only_seen(replace(c, provenance={**c.provenance, "source": source})))
                print(
                    f"{source}, {name}, {c.precision}: error left out {c.sigma:.3f}, host {c.host_launch_s * 1e6:.0f} µs"
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--without-timm", action="store_true")
    asked = parser.parse_args()
    for name, settings in fitted(asked.measured, asked.without_timm).items():
        (FOLDER / f"{name}.toml").write_text(text_of(settings), encoding="utf-8")


if __name__ == "__main__":
    main()
