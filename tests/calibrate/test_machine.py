"""Real calibration of this machine. The assertions hold on any machine and never check a time."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from chronograd.calibrate.blocks import TIMED_ALONE, blocks
from chronograd.calibrate.machine import WORKER, Setup, _traces_of, default_setups, gpu_of, machine_key, save_local
from chronograd.calibrate.workers import run_workers
from chronograd.cli.main import main
from chronograd.count.tracing import trace
from chronograd.errors import RunError
from chronograd.hardware import catalog
from chronograd.predict.calibration import CLASSES, FAMILIES, calibrations
from chronograd.predict.compute import Work
from chronograd.predict.relatives import calibration_for


def test_blocks_cover_all_matrix_work_without_gaps() -> None:
    classes: set[str] = set()
    macs = 0.0
    for block in blocks():
        counted = trace(block.make(), [block.input_shape], loss="sum", inputs_require_grad=True)
        assert counted.uncounted() == {}
        classes |= {CLASSES[i] for i in Work.of(counted, 2).class_index}
        macs += counted.macs(block.batch)
    families = {*FAMILIES} - {"attention_unfused", "view", "update", "unknown"}
    assert {name.partition(".")[0] for name in classes if name.endswith("forward")} >= families
    assert {name.partition(".")[0] for name in classes if name.endswith("backward")} >= families
    assert macs == 25_644_523_976  # the published errors of calibrations are those of these blocks and batches


@pytest.mark.parametrize("name", ["conv3x3-64-128-28", "conv3d-3-16", "conv3-of-words", "lstm-16-16-1"])
def test_blocks_are_traced_in_both_layouts(name: str) -> None:
    """Only images have channels last: PyTorch's format has four dimensions."""
    (block,) = (one for one in blocks() if one.name == name)
    plain, laid_out = (_traces_of(block, channels_last)["training"] for channels_last in (False, True))
    assert laid_out.channels_last == (len(block.input_shape) == 3)
    assert laid_out.macs(4) == plain.macs(4) > 0


def test_setups_share_the_cores() -> None:
    assert default_setups(2) == [Setup(1, 2), Setup(2, 1)]
    assert default_setups(1) == [Setup(1, 1), Setup(2, 1)]


@pytest.mark.usefixtures("local_device")
def test_a_single_rank_repeats_some_blocks() -> None:
    assert {block.name for block in blocks()} >= {*TIMED_ALONE}
    shares = {c.processes: c.provenance.get("alone_share") for c in calibrations(catalog.device("local"))}
    assert shares[1] is None
    assert 0 < shares[2] <= 1


def driver(name: str) -> SimpleNamespace:
    """Return the CUDA driver's report on a GPU."""
    return SimpleNamespace(name=name, total_memory=12 * 2**30, multi_processor_count=40, L2_cache_size=3 * 2**20)


def test_unknown_gpu_has_no_data_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once inherited the V100's chip, year, power, cache, links and module note."""
    reached = {"fp32": 5e12, "bf16": 2e13}
    device = gpu_of(driver("Example GX 12"), 2, reached, 3e11)
    assert (device.chip, device.year, device.tdp_w, device.priced_as) == (None, None, None, None)
    assert (device.l2_bytes, device.memory_bytes, device.num_units) == (3 * 2**20, 12 * 2**30, 40)
    assert device.usable_bytes == 12 * 2**30
    assert (device.peak_flops_per_s, device.bandwidth_bytes_per_s) == (reached, 3e11)
    assert device.base_peak_flops_per_s == {}
    assert (device.node.devices_per_node, device.node.intra_link) == (2, "pcie3")
    assert "not in the catalogue" in device.note
    assumed = [source.of for source in device.source if source.tag == "assumed"]
    assert assumed == [("node",)]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    saved = save_local(device)
    assert catalog.device("local") == saved
    assert calibration_for(saved, "bf16").peak_flops_per_s > 0


def test_catalogue_gpu_keeps_its_data_sheet() -> None:
    sheet = catalog.device("v100")
    device = gpu_of(driver("Tesla V100-SXM2-16GB"), 8, {"fp32": 1e12}, 1e11)
    assert device.title == "Tesla V100-SXM2-16GB"
    assert device.usable_bytes == 12 * 2**30
    for field in (
        "chip",
        "year",
        "tdp_w",
        "memory_bytes",
        "l2_bytes",
        "peak_flops_per_s",
        "bandwidth_bytes_per_s",
        "node",
    ):
        assert getattr(device, field) == getattr(sheet, field)
    assert device.priced_as is not None
    assert device.priced_as.device == "v100"


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_local_works_like_any_device() -> None:
    device = catalog.device("local")
    assert device.provenance["key"] == machine_key()
    kept = calibrations(device)
    ways = [(c.processes, c.threads, c.channels_last, c.mode) for c in kept]
    assert ways == [
        (p, 1, last, mode) for p, last in ((1, False), (2, False), (1, True)) for mode in ("training", "inference")
    ]
    for is_last in (False, True):
        assert calibration_for(device, threads=1, mode="training", channels_last=is_last).channels_last is is_last
    assert device.calibration is not None
    assert 0 <= device.calibration["step_sigma_log"] < 1
    assert device.calibration["after_wait"] >= 1
    for c in kept:
        assert c.origin == "measured"
        assert set(c.classes) == set(CLASSES)
        assert c.peak_flops_per_s > 1e8
        assert c.warm_update >= c.classes["update.backward"].bandwidth
        assert c.warm_pass_s >= 0
        assert c.provenance["samples"] == len(blocks()) * (2 if c.mode == "training" else 1)


@pytest.mark.slow
@pytest.mark.usefixtures("local_device")
def test_predict_for_local(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "examples/digits.yaml", "--on", "2xlocal", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["quantities"]["communication_exposed_s"]["value"] > 0
    assert "measured" in record["quantities"]["step_time_s"]["source"]


def test_failed_worker_is_reported() -> None:
    with pytest.raises(RunError, match="failed"):
        run_workers(WORKER, [["no-such-device", "1", "fp32", "0.01"]])
