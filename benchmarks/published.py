"""Writer of the table of throughputs for `chronograd judge`, from published timings.

    python -m benchmarks.published --measured DIR
    python -m benchmarks.published --check 70

The first command writes src/chronograd/judge/published.csv: figures only, one row for each network, device and setting.
src/chronograd/judge/sources.toml describes each source under the name in the first column. The second command compares 70 rows,
chosen by a seed, with the limit above which `judge` reports an impossible figure. All these rows are possible.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chronograd.fit.tables import read_table
from chronograd.hardware import catalog
from chronograd.job import changed
from chronograd.judge import published
from chronograd.judge.ask import Traces, job_of_network
from chronograd.judge.limits import limit_of
from chronograd.judge.published import COLUMNS

# Names in the sources → names of devices and networks in the catalogue.
DEVICES = {
    "GeForce GTX 1080 Ti": "gtx1080ti",
    "GeForce GTX TITAN X": "titan-x",
    "TITAN X": "titan-x-pascal",
    "K80": "k80-gk210",
    "P100": "p100",
}
NETWORKS = {
    "InceptionV3": ("inception_v3", 299),
    "ResNet-50": ("resnet50", 224),
    "Alexnet": ("alexnet", 224),
    "alexnet": ("alexnet", 224),
    "googlenet-v1": ("googlenet", 224),
    **{f"resnet-{depth}": (f"resnet{depth}", 224) for depth in (18, 34, 50, 101, 152)},
    **{f"vgg{depth}": (f"vgg{depth}", 224) for depth in (16, 19)},
}
Row = tuple[str, str, int, str, int, str, int, str, str]


def timm(measured: Path) -> Iterator[Row]:
    for path in sorted(measured.glob("timm/benchmark-*.csv")):
        table = read_table(path)
        device = catalog.device(table.device or "").name
        source = f"timm-{table.mode}-{table.layout}-{device}"
        for row in table.rows:
            rate = f"{row.batch / row.seconds:.5g}"
            params = "" if row.params_m is None else f"{row.params_m:g}"
            yield (source, row.model, row.image_size, device, 1, table.precision or "", row.batch, rate, params)


def nvidia(measured: Path) -> Iterator[Row]:
    for line in _lines(measured / "nvidia_deeplearningexamples" / "resnet50.csv"):
        layout = "nhwc" if line["channels_last"] == "1" else "nchw" if line["channels_last"] == "0" else "any"
        source = f"nvidia-{line['phase']}-{layout}"
        precision = "fp16" if line["precision"] == "amp" else line["precision"]
        network, size, batch = line["model"].partition(":")[2], int(line["image_size"]), int(line["batch_per_device"])
        rate = f"{float(line['samples_per_s']):.5g}"
        yield (source, network, size, line["device"], int(line["devices"]), precision, batch, rate, "")


def tensorflow(measured: Path) -> Iterator[Row]:
    """Yield rows with synthetic data only, the fastest of several machines; real data would include input time."""
    best: dict[tuple[str, int, str, int, int], float] = {}
    for line in _lines(measured / "tensorflow_benchmarks" / "k80_p100_scaling.csv"):
        if line["data"] == "synthetic":
            network, size = NETWORKS[line["model"]]
            key = (network, size, DEVICES[line["gpu"]], int(line["num_gpus"]), int(line["batch_per_gpu"]))
            best[key] = max(best.get(key, 0.0), float(line["images_per_sec"]))
    for (network, size, device, count, batch), rate in best.items():
        yield ("tensorflow", network, size, device, count, "fp32", batch, f"{rate:.5g}", "")


def cnn_benchmarks(measured: Path) -> Iterator[Row]:
    """Yield rows with cuDNN in its fastest version, on devices of the catalogue."""
    best: dict[tuple[str, int, str, int], float] = {}
    for line in _lines(measured / "cnn_benchmarks" / "torch7_runs.csv"):
        if line["use_cudnn"] == "1" and line["gpu_name"] in DEVICES and line["model"] in NETWORKS:
            network, size = NETWORKS[line["model"]]
            key = (network, size, DEVICES[line["gpu_name"]], int(line["batch_size"]))
            best[key] = max(best.get(key, 0.0), key[3] / float(line["total_ms"]) * 1e3)
    for (network, size, device, batch), rate in best.items():
        yield ("cnn-benchmarks", network, size, device, 1, "fp32", batch, f"{rate:.5g}", "")


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def check(count: int, seed: int = 0) -> None:
    """Print how close rows come to the limit, the closest first."""
    rows, traces = published.published(), Traces()
    shares = []
    for i in np.random.default_rng(seed).permutation(len(rows))[:count]:
        row = rows[i]
        library = "timm" if row.source.title == "timm" else "torchvision"
        job = job_of_network(f"{library}:{row.network}", [3, row.image_size, row.image_size])
        job = changed(job, [f"training.channels_last={str(bool(row.source.channels_last)).lower()}"])
        limit = limit_of(traces(job, row.source.mode), row.batch_per_device, catalog.device(row.device), row.precision)
        share = row.samples_per_s / row.devices * limit.least_s / row.batch_per_device
        shares.append((share, f"{row.network} on {row.device}, {row.precision}, {row.source.mode}"))
    for share, name in sorted(shares, reverse=True)[:10]:
        print(f"{share:.2f} of the limit: {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--check", type=int, metavar="ROWS")
    asked = parser.parse_args()
    if asked.measured is not None:
        write(asked.measured)
    if asked.check is not None:
        check(asked.check)


def write(measured: Path) -> None:
    rows = [row for source in (timm, nvidia, tensorflow, cnn_benchmarks) for row in source(measured)]
    with published.FILE.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{len(rows)} rows in {published.FILE}")


if __name__ == "__main__":
    main()
