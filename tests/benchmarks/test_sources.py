"""Sources of published measurements: absent tables, synthetic tables, and the published ones if available."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
from pathlib import Path

import pytest
from benchmarks.sources import cifar, cnn_benchmarks, deepbench, neusight, nvidia, pollux, tensorflow

from benchmarks import gpu
from chronograd.hardware import catalog
from chronograd.predict.collectives import ring
from chronograd.predict.scaling import USUAL_STEP_SIGMA_LOG, straggler_wait_s

SOURCES = (cifar, cnn_benchmarks, deepbench, neusight, nvidia, pollux, tensorflow)
MEASURED = os.environ.get("CHRONOGRAD_MEASURED")
needs_measured = pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of measured tables")


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.__name__.rpartition(".")[2])
def test_folder_without_the_table_has_no_rows(source: object, tmp_path: Path) -> None:
    assert source.rows(tmp_path) == []  # type: ignore[attr-defined]


def write(path: Path, header: str, lines: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header.split(","), *lines])


def test_tensorflow_predicts_its_own_scaling_law(tmp_path: Path) -> None:
    """An exchange that grows as 2(n - 1)/n is predicted exactly; the two calibration rows are not scored."""
    header = "platform,gpu,model,batch_per_gpu,precision,data,num_gpus,images_per_sec,variable_update"
    lines = [
        (
            "box",
            "K80",
            model,
            64,
            "fp32",
            "synthetic",
            n,
            n * 64 / (2.0 + 0.1 * 2 * (n - 1) / n),
            "parameter_server/cpu",
        )
        for n in (1, 2, 4, 8)
        for model in ("one", "two")
    ]
    write(tmp_path / "tensorflow_benchmarks" / "k80_p100_scaling.csv", header, lines)
    (row,) = tensorflow.rows(tmp_path)
    assert (row.n, row.mape) == (4, pytest.approx(0, abs=1e-12))


def test_tensorflow_skips_curves_with_one_row(tmp_path: Path) -> None:
    header = "platform,gpu,model,batch_per_gpu,precision,data,num_gpus,images_per_sec,variable_update"
    lines = [("box", "K80", "one", 64, "fp32", "real", 1, 50.0, "parameter_server/cpu")]
    write(tmp_path / "tensorflow_benchmarks" / "k80_p100_scaling.csv", header, lines)
    assert tensorflow.rows(tmp_path) == []


def test_deepbench_reads_rows_without_times(tmp_path: Path) -> None:
    """Products run at 90 % of a V100's peak; other rows state N/A. The device is not in DeepBench."""
    header = "device,set,sheet,precision,M,N,K,transA,transB,time_ms,tflops_reported,padded"
    sizes = [
        (m, n, k)
        for m in (512, 1024, 2048, 4096)
        for n in (256, 700, 1024, 3000, 7000)
        for k in (512, 1024, 2048, 4096)
    ]
    lines = [
        ("NV_V100", "train", "s", "Float", m, n, k, "N", "N", 2e3 * m * n * k / 14e12, "", "") for m, n, k in sizes
    ]
    lines.append(("NV_V100", "train", "s", "Float", 64, 64, 64, "N", "N", "N/A*", "", ""))
    write(tmp_path / "deepbench" / "gemm.csv", header, lines)
    (row,) = deepbench.rows(tmp_path)
    assert row.n == len(deepbench.SEEDS) * (len(sizes) - deepbench.NUM_FITTED)
    assert row.mape < 0.05


def test_deepbench_learns_slow_shapes_from_other_gpus(tmp_path: Path) -> None:
    """Random shapes use a slow algorithm, which takes three times as long on both GPUs."""
    header = "device,set,sheet,precision,W,H,C,N,K,S_filter_w,R_filter_h,pad_w,pad_h,stride_v,stride_h,fwd_ms,bwd_inputs_ms,bwd_params_ms"
    draw = random.Random(0)
    lines: list[tuple[object, ...]] = []
    for size, c, n, k in itertools.product((14, 28, 56), (64, 128, 256), (4, 8, 16, 32), (64, 256, 512)):
        flops = 2 * size * size * c * k * n
        ms = 1e3 * flops / 5e12 * draw.choice((1, 1, 3))
        for device, faster in (("NV_M40", 1), ("NV_P100", 1.7)):
            lines.append((device, "train", "s", "Float", size, size, c, n, k, 1, 1, 0, 0, 1, 1, ms / faster, "", ""))
    write(tmp_path / "deepbench" / "conv.csv", header, lines)
    alone, with_others = deepbench.rows(tmp_path)
    assert alone.n == with_others.n == 2 * len(deepbench.SEEDS) * (len(lines) // 2 - deepbench.NUM_FITTED)
    assert alone.mape > 0.3
    assert with_others.mape < 0.5 * alone.mape


def test_all_reduces_of_one_ring_predict_each_other(tmp_path: Path) -> None:
    """Rows of one machine and library follow a ring; small messages predict nothing, and two rows are too few."""
    link, header = catalog.link("pcie3"), "device,algorithm,n_accelerators,n_floats,mean_ms"
    lines = [
        ("box", library, 4, n, 1e3 * float(ring(4 * n, 4, link.latency_s, 6e9)))
        for library, sizes in (("one", (1e5, 4e6, 8e6, 64e6)), ("another", (4e6, 8e6)))
        for n in map(int, sizes)
    ]
    write(tmp_path / "deepbench" / "allreduce.csv", header, lines)
    rest, near = deepbench.rows(tmp_path)
    assert (rest.n, near.n) == (9, 2)
    assert rest.mape == pytest.approx(0, abs=1e-9)


def test_eight_gpus_are_predicted_from_one(tmp_path: Path) -> None:
    """Long steps hide every exchange; only the wait for the slowest of eight GPUs remains."""
    header = "phase,model,image_size,device,devices,precision,channels_last,batch_per_device,samples_per_s"
    wait = straggler_wait_s(1.0, 8, USUAL_STEP_SIGMA_LOG)
    lines = [
        ("training", "torchvision:resnet18", 224, "v100", count, "fp32", 0, 64, count * 3.0 / (1 + wait * (count > 1)))
        for count in (1, 8)
    ]
    write(tmp_path / "nvidia_deeplearningexamples" / "resnet50.csv", header, lines)
    one, eight = nvidia.read(tmp_path)
    assumed = nvidia.assumed_without(eight.setting)
    assert nvidia.step_of_several(eight, assumed, {one.setting: one}) == pytest.approx(eight.sample.seconds, rel=0.01)
    assert nvidia.step_of_several(eight, assumed, None) < 0.1 * eight.sample.seconds


def test_neusight_device_aliases() -> None:
    assert neusight._key("Tesla_V100-PCIE-32GB") == neusight._key("V100-PCIe-32GB")
    assert neusight._key("NVIDIA_A100_80GB_PCIe") != neusight._key("NVIDIA_A100-PCIE-40GB")


# The error of each rule when it was written, plus a margin of 25 %, to detect regressions. The goals are in
# the rows themselves.
REACHED = {"TensorFlow": (0.027,), "Pollux": (0.068, 0.063), "NeuSight": (0.107, 0.114), "CIFAR ResNets": (0.25,)}


@pytest.mark.published
@needs_measured
@pytest.mark.parametrize("source", [tensorflow, pollux, neusight, cifar], ids=lambda s: s.__name__.rpartition(".")[2])
def test_published_tables(source: object) -> None:
    rows = source.rows(Path(str(MEASURED)))  # type: ignore[attr-defined]
    assert rows
    for row, reached in zip(rows, REACHED[rows[0].source], strict=True):
        assert row.mape < 1.25 * reached, row.rule
        assert row.coverage80 is None or 0.7 < row.coverage80 < 0.9, row.rule


@pytest.mark.published
@needs_measured
@pytest.mark.parametrize(
    ("source", "aims"),
    [(nvidia, (0.15, 0.20, 0.14, 0.08, 0.15, 0.07)), (cnn_benchmarks, (0.20,))],
    ids=["nvidia", "cnn_benchmarks"],
)
def test_held_out_devices(source: object, aims: tuple[float, ...]) -> None:
    """Training is off by 13.6 % (goal: 12 %), on eight GPUs by 14.4 %. VGGs are inside their intervals."""
    rows = source.rows(Path(str(MEASURED)))  # type: ignore[attr-defined]
    assert [row.mape < aim for row, aim in zip(rows, aims, strict=True)] == [True] * len(aims)
    for row in rows:
        assert row.coverage80 is None or row.coverage80 > 0.7, row.rule
        for name in ("vgg16", "vgg19"):
            assert row.groups.get("network", {}).get(name, {"mape": 0})["mape"] < 0.2  # type: ignore[operator]


def test_cnn_rows_use_newest_cudnn_and_known_devices(tmp_path: Path) -> None:
    """Skips older versions, Torch's own kernels, unknown networks and unknown devices."""
    header = "model,gpu_name,use_cudnn,cudnn_version,batch_size,forward_ms,backward_ms"
    lines = [
        ("alexnet", "GeForce GTX TITAN X", 1, 4007, 16, 8.0, 18.0),
        ("alexnet", "GeForce GTX TITAN X", 1, 5105, 16, 7.0, 15.0),
        ("alexnet", "GeForce GTX TITAN X", 0, "none", 16, 70.0, 150.0),
        ("resnet-200", "GeForce GTX TITAN X", 1, 5105, 16, 70.0, 150.0),
        ("alexnet", "a card of nobody", 1, 5105, 16, 70.0, 150.0),
    ]
    write(tmp_path / "cnn_benchmarks" / "torch7_runs.csv", header, lines)
    (timed,) = cnn_benchmarks.read(tmp_path)
    assert (timed.device, timed.network, timed.step.seconds) == ("titan-x", "alexnet", pytest.approx(0.022))
    assert [sample.seconds for sample in timed.passes] == pytest.approx([0.007, 0.015])
    parts = [sample.work.flops.sum() for sample in timed.passes]
    assert timed.step.work.flops.sum() == pytest.approx(sum(parts))
    assert parts[1] > 1.5 * parts[0]


@pytest.mark.published
@needs_measured
def test_published_deepbench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepbench, "SEEDS", range(1))  # the figures below are for the first of three seeds
    rows = deepbench.rows(Path(str(MEASURED)))
    for row, reached in zip(rows, (0.127, 0.167, 0.112, 0.201, 0.134, 0.175, 0.137, 0.131, 0.094), strict=True):
        assert row.mape < 1.25 * reached, row.rule


def test_predictions_are_joined_with_measurements(tmp_path: Path) -> None:
    """Cases of both files, without errors, in the order of the measurements, as benchmarks.gpu and own_gpu score them."""
    told = [
        {"case": case, "seconds": s, "low": 0.5 * s, "high": 2 * s} for case, s in (("a", 1.0), ("b", 2.0), ("c", 1.0))
    ]
    seen = [{"case": "b", "seconds": 1.0}, {"case": "a", "seconds": 4.0}, {"case": "c", "error": "no memory"}, {"case": "d", "seconds": 1.0}]  # fmt: skip
    paths = [tmp_path / "predicted.json", tmp_path / "measured.json"]
    for path, rows in zip(paths, (told, seen), strict=True):
        path.write_text(json.dumps({"rows": rows}))
    assert [(pair.case, pair.ratio, pair.is_inside) for pair in gpu.pairs(*paths)] == [
        ("b", 2.0, True),
        ("a", 0.25, False),
    ]
