"""DAWNBench: predictions of `plan` for ResNet-50 on ImageNet to 75 %, compared with the entries' hours and cost.

    python -m benchmarks.dawnbench [FILE] [--json]

FILE is `dawnbench/train_epoch_times.csv` of the measured tables (stanford-futuredata/dawn-bench-entries). Its default is in the
folder CHRONOGRAD_MEASURED. The inputs are an entry's machines and its epochs until 75 % top-1 accuracy. `plan` predicts hours
on p3.16xlarge instances (eight V100, 64 virtual CPUs for decoding) at 224 pixels, and dollars at the list price of then and
now. It uses the best batch of 16 to 256 per device in channels-first layout, as frameworks of 2018 ran. The prediction leaves
out progressive resizing, which most entries used: smaller images for most epochs, which take less time. It also leaves out
evaluation after every epoch, start-up, and networks slower than their line rate, which take more time.

The hardware of an entry is from the leaderboard as we remember it. Its file name gives the number of machines.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.hardware import catalog
from chronograd.plan.goal import Goal, SamplesToTarget, choose
from chronograd.plan.renting import PHOTOGRAPHS, RentalTerms, rent
from chronograd.plan.search import SearchSpace, search

SAMPLES = 1_281_167
TARGET = 75.0
INSTANCE = "p3.16xlarge"
BATCHES = (16, 32, 64, 128, 256)
ENDLESS = (1e15, 1e15, 1e15)  # the entry gives the epochs for any batch


@dataclass(frozen=True)
class Entry:
    """An entry of the leaderboard: file, number of V100, precision, and whether images grew during training."""

    file: str
    count: int
    precision: str
    is_resized: bool = True


ENTRIES = (
    Entry("diux_resnet50_p3-tensorpack", 8, "fp32", is_resized=False),
    Entry("fastai_pytorch", 8, "fp16"),
    Entry("gehc_resnet50_1_p3_16xlarge_tensorflow111", 8, "fp16"),
    Entry("setu_resnet50_azure-ndv2_pytorch", 8, "fp16"),
    Entry("fastai_resnet50_p3_8_machine_pytorch", 64, "fp16"),
    Entry("fastai_resnet50_p3_16_machine_pytorch", 128, "fp16"),
)


def entries(path: Path) -> dict[str, tuple[float, float]]:
    """Return epochs and hours to the target by file name, for every entry that reached it."""
    reached: dict[str, tuple[float, float]] = {}
    with path.open() as stream:
        for row in csv.DictReader(stream):
            name = row["file"].rpartition("/")[2].removesuffix(".tsv")
            if row["dataset"] == "ImageNet" and float(row["acc"]) >= TARGET:
                reached.setdefault(name, (float(row["epoch"]), float(row["hours"])))
    return reached


def predicted(entry: Entry, epochs: float) -> dict[str, float]:
    """Return hours and dollars with their 80 % intervals, for the fastest batch and layout."""
    job = jobs.from_dict(
        {
            "network": {"name": "torchvision:resnet50"},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000, "samples": SAMPLES},
            "training": {"precision": entry.precision, "batch": 256},
            "cluster": {"device": "v100"},
        }
    )
    devices = [catalog.device("v100")]
    trace = trace_network("torchvision:resnet50")
    found = search(trace, job, SearchSpace(devices, [entry.count], BATCHES, ("ring", "hierarchical")))
    effort = SamplesToTarget(epochs * SAMPLES, 256, noise_scale=ENDLESS)
    choices = choose(rent(found.columns, devices, job, RentalTerms(("on-demand",), PHOTOGRAPHS)), effort, Goal())
    (offer,) = (i for i, one in enumerate(choices.offers) if one.instance == INSTANCE)
    able = choices.is_candidate & (choices.columns["offer"] == offer)
    fastest = int(np.nanargmin(np.where(able, choices.columns["hours"], np.nan)))
    low, high = choices.interval("hours", fastest)
    return {
        "batch": int(choices.columns["batch_per_rank"][fastest]),
        "hours": float(choices.columns["hours"][fastest]), "hours_low": low, "hours_high": high,
        "dollars": float(choices.columns["dollars"][fastest]), "dollars_an_hour": float(choices.columns["price_usd_per_hour"][fastest]),
        "is_input_bound": bool(choices.columns["is_input_bound"][fastest]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = os.environ.get("CHRONOGRAD_MEASURED")
    if arguments.file is None and folder is None:
        parser.error("name train_epoch_times.csv, or the folder of measured tables in CHRONOGRAD_MEASURED")
    measured = entries(arguments.file or Path(str(folder)) / "dawnbench" / "train_epoch_times.csv")
    rows = []
    for entry in ENTRIES:
        epochs, hours = measured[entry.file]
        own = predicted(entry, epochs)
        is_inside = own["hours_low"] <= hours <= own["hours_high"]
        rows.append({**vars(entry), "epochs": epochs, "measured_hours": hours, "measured_dollars": hours * own["dollars_an_hour"],
                     **own, "is_inside": is_inside})  # fmt: skip
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'entry':42} {'V100':>4} {'epochs':>6} {'hours':>6} {'predicted':>22} {'cost':>8} {'predicted':>9} inside")
    for row in rows:
        interval = f"{row['hours']:.2f} ({row['hours_low']:.2f} … {row['hours_high']:.2f})"
        inside = "yes" if row["is_inside"] else f"no, {row['measured_hours'] / row['hours']:.1f} times"
        signs = ("*" if row["is_resized"] else "") + ("+" if row["is_input_bound"] else "")
        print(f"{row['file']:42} {row['count']:>4} {row['epochs']:6.0f} {row['measured_hours']:6.2f} {interval:>22} "
              f"${row['measured_dollars']:7.2f} ${row['dollars']:8.2f} {inside} {signs}")  # fmt: skip
    print("* smaller images in most epochs. + decoding limits the predicted speed.")


if __name__ == "__main__":
    main()
