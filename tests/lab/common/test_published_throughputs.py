"""Published throughputs: the table matches its sources, and a corrected prediction reproduces its row."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from chronograd.compare.scaling import Ladder
from chronograd.data.trace_job import trace_job
from chronograd_lab.common.published_throughputs import base_row, correction, factor_shown, published
from chronograd_lab.common.scaling import scaling_job
from chronograd_lab.studies.all_reduce_algorithms.study import PUBLISHED

MEASURED = os.environ.get("CHRONOGRAD_MEASURED")
PHOTOS = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000}


@pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of published timings")
def test_rows_match_the_sources() -> None:
    folder = Path(MEASURED or "")
    with (folder / "tensorflow_benchmarks" / "k80_p100_scaling.csv").open(newline="") as file:
        wanted = {"gpu": "K80", "model": "ResNet-50", "batch_per_gpu": "64", "data": "synthetic"}
        rows = [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]
    k80 = published("k80-gk210", "resnet50-v1")
    assert [(r["gpus"], r["images_per_s"]) for r in k80] == [
        (int(r["num_gpus"]), float(r["images_per_sec"])) for r in rows
    ]
    with (folder / "nvidia_deeplearningexamples" / "resnet50.csv").open(newline="") as file:
        wanted = {"phase": "training", "device": "v100", "precision": "fp32"}
        rows = [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]
    v100 = published("v100", "torchvision:resnet50")
    assert [(r["gpus"], r["images_per_s"]) for r in v100] == [
        (int(r["devices"]), float(r["samples_per_s"])) for r in rows
    ]


@pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of published timings")
@pytest.mark.parametrize(("network", "app"), [("torchvision:resnet50", "imagenet"), ("resnet18-cifar", "cifar10")])
def test_rows_of_pollux_match_the_source(network: str, app: str) -> None:
    with (Path(MEASURED or "") / "pollux" / "step_and_sync_times.csv").open(newline="") as file:
        steps = {(row["app"], row["placement"], int(row["local_bsz"])): row for row in csv.DictReader(file)}
    for row in published("t4", network):
        placement = {1: "1", 2: "2", 4: "4", 8: "44", 16: "4444"}[row["gpus"]]
        theirs = steps[app, placement, row["batch_per_gpu"]]
        assert row["images_per_s"] == pytest.approx(
            row["gpus"] * row["batch_per_gpu"] / float(theirs["step_time_s"]), rel=1e-4
        )
        assert row["nodes"] == len(placement)
    assert float(steps["imagenet", "44", 20]["sync_time_s"]) == pytest.approx(0.410, abs=0.0005)  # cited in cited.toml


@pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of published timings")
def test_all_reduces_match_the_source() -> None:
    with (Path(MEASURED or "") / "deepbench" / "allreduce.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["algorithm"].startswith("NCCL 2.0")]
    known = {(row["device"], row["n_accelerators"], row["n_floats"]): float(row["mean_ms"]) for row in rows}
    for card, world, numbers, ms in PUBLISHED:
        device = {"GTX 1080 Ti": "NV_1080Ti", "M40": "NV_M40"}[card]
        assert ms == pytest.approx(known[device, str(world), str(numbers)], rel=1e-3)


def test_corrected_prediction_reproduces_its_row() -> None:
    row = base_row("k80-gk210", "resnet50-v1")
    assert row is not None
    settings = {"network": "resnet50-v1", "data": PHOTOS}
    job = scaling_job(settings, "horovod", {"batch": 64}, device="k80-gk210")
    factor = correction("k80-gk210", "resnet50-v1")
    without, corrected = (Ladder(job, trace_job(job)).predicted([1], "weak", f)[0] for f in (None, factor))
    assert corrected.throughput_samples_per_s == pytest.approx(
        row["images_per_s"], rel=1e-3
    )  # copying a batch to the device is free
    assert without.step_time_s is not None
    assert 64 / row["images_per_s"] / without.step_time_s == pytest.approx(factor_shown(row))


def test_host_limited_step_gets_no_device_correction() -> None:
    """A V100 waits for its host during most of a step of 16 images (28 × 28), but rarely with 64 photographs."""
    shown = factor_shown(base_row("v100", "resnet50-v1") or {})
    factor = correction("v100", "resnet50-v1")
    assert factor is not None
    small = scaling_job(
        {"network": "resnet50-v1", "data": {"name": "fashion-mnist"}}, "ddp", {"batch": 16}, device="v100"
    )
    large = scaling_job({"network": "resnet50-v1", "data": PHOTOS}, "ddp", {"batch": 64}, device="v100")
    assert factor(large) == pytest.approx(shown, rel=0.01)
    assert abs(factor(small) - 1) < 0.5 * abs(shown - 1)


def test_other_network_is_not_corrected() -> None:
    assert correction("v100", "lenet5") is None
    assert correction("h100", "resnet50-v1") is None
