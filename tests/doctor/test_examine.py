"""`doctor`: planted faults with their remedies, and plausible figures for this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.calibrate import processor
from chronograd.data.trace_job import trace_job
from chronograd.doctor import answer, storage
from chronograd.doctor import checks as doctor_checks
from chronograd.doctor import cores as doctor_cores
from chronograd.doctor import devices as doctor_devices
from chronograd.doctor import examine as doctor
from chronograd.doctor import hosts as doctor_hosts
from chronograd.doctor import job as doctor_job
from chronograd.doctor import software as doctor_software
from chronograd.doctor.finding import Finding
from chronograd.doctor.process import asked
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.launch.hosts import Host
from chronograd.measure import environment
from chronograd.predict.prediction import footprint_of
from chronograd.predict.setting import setting_of

DIGITS = {"network": {"name": "resnet20"}, "data": {"name": "digits"}}
is_root = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(
    not is_root or sys.platform != "linux", reason="mounts and namespaces need root on Linux"
)


def only(found: list[Finding], state: str) -> Finding:
    rows = [one for one in found if one.state == state]
    assert len(rows) == 1, found
    assert rows[0].to_do
    return rows[0]


def command(*words: str) -> None:
    """Run a command to plant a fault; skip the test if the machine forbids it."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine forbids {words[0]}: {done.stderr.strip()}")


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Extend the deadlines, as the machine is shared; tests of deadlines use programs that never answer."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in ((doctor_checks, ("BUILD_S", "REST_S", "MARK_S")), (doctor_hosts, ("FACTS_S", "LINK_S"))):
            for name in names:
                patch.setattr(module, name, 240.0)
        patch.setattr(storage, "DEADLINE_S", 60.0)
        yield


# -- all checks on this machine ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    """A job of two ranks on the CPU."""
    out = tmp_path_factory.mktemp("runs")
    job = jobs.from_dict({**DIGITS, "backend": "ddp", "cluster": {"device": "cpu", "count": 2}})
    found = doctor.examine(job, out=str(out))
    assert list(out.iterdir()) == []
    assert [one for one in found if one.state == "obstacle"] == []
    assert doctor.can_start(found)
    return {one.what: one for one in found}


def test_cpu_peaks_are_plausible(here: dict[str, Finding]) -> None:
    numbers = here[f"processor {environment.processor_name()}"].numbers
    assert numbers["precision"] == "fp32"
    assert isinstance(numbers["flops_per_s"], float)
    assert isinstance(numbers["bytes_per_s"], float)
    assert 1e8 < numbers["flops_per_s"] < 1e14
    assert 1e8 < numbers["bytes_per_s"] < 1e13
    if numbers["share_of_peak"] is not None:
        assert 0 < float(numbers["share_of_peak"]) < 4  # turbo, and vector units that the flags do not show


def test_link_between_two_processes_is_measured(here: dict[str, Finding]) -> None:
    numbers = here["two processes here"].numbers
    assert 1e-6 < float(numbers["latency_s"] or 0) < 1
    assert 1e6 < float(numbers["bandwidth_bytes_per_s"] or 0) < 1e12


def test_storage_and_memory_match_the_system(here: dict[str, Finding]) -> None:
    speed = here["speed"].numbers
    assert 0 < float(speed["fsync_s"] or 0) < 5
    assert float(speed["write_bytes_per_s"] or 0) > 1e4
    free = here["memory"].numbers["free_bytes"]
    assert 0 < int(free or 0) < (environment.ram_bytes() or 0)


def test_memory_of_a_job_equals_predict(here: dict[str, Finding]) -> None:
    """Two ranks, including the memory of a process without tensors."""
    job = jobs.from_dict({**DIGITS, "cluster": {"device": "cpu", "count": 2}, "backend": "ddp"})
    tensors = footprint_of(trace_job(job), setting_of(job)).at(32).total
    assert here["memory"].numbers["need_bytes"] == 2 * (tensors + 740_000_000)


def test_checkpoint_size_includes_buffers_and_optimizer(here: dict[str, Finding]) -> None:
    """Momentum has the size of the parameters; two checkpoints remain while a third is written."""
    trace = trace_job(jobs.from_dict(DIGITS))
    need = here[next(what for what in here if what.startswith("run directory"))].numbers["need_bytes"]
    parameters = sum(trace.storages[t.storage].bytes.const for t in trace.parameters().values())
    buffers = sum(s.bytes.const for s in trace.storages if s.role == "buffer")
    assert need == 3 * (2 * parameters + buffers)


# -- a job that cannot run here ------------------------------------------------------------------------------


@pytest.mark.skipif(bool(environment.gpus()), reason="this machine has a GPU")
def test_gpu_job_without_a_gpu() -> None:
    job = jobs.from_dict({**DIGITS, "cluster": {"device": "h100"}})
    found = doctor_job.needs(jobs.resolved(job), [])
    row = only(doctor_job.findings(job, found, {"rows": []}), "obstacle")
    assert row.what == "device h100"
    assert "has no NVIDIA GPU" in row.seen
    assert "cluster.device=local" in row.to_do


def test_network_for_other_images_is_reported() -> None:
    job = jobs.from_dict({**DIGITS, "network": {"name": "alexnet"}})
    row = only(doctor_job.findings(job, doctor_job.needs(jobs.resolved(job), []), {"rows": []}), "obstacle")
    assert row.what == "network alexnet"


def test_missing_data_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    gone = jobs.from_dict({"network": {"name": "resnet20", "weights": "gone.safetensors"}, "data": {"name": "cifar10"}})
    data, weights = doctor_job.data_and_weights(gone)
    assert (data.state, weights.state) == ("warning", "obstacle")
    assert "chronograd data cifar10" in data.to_do
    assert "CHRONOGRAD_DATA" in data.to_do
    assert doctor_job.data_and_weights(jobs.from_dict(DIGITS))[0].state == "fine"
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    of_library = jobs.from_dict({**DIGITS, "network": {"name": "torchvision:resnet18", "weights": "torchvision"}})
    missing = doctor_job.data_and_weights(of_library)[1]
    assert (missing.state, missing.seen) == ("warning", "resnet18-f37072fd.pth is not on this machine")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth").touch()
    assert doctor_job.data_and_weights(of_library)[1].state == "fine"
    no_folder = jobs.from_dict({**DIGITS, "data": {"name": "folder:nowhere"}})
    assert only(doctor_job.data_and_weights(no_folder), "obstacle").what == "data folder:nowhere"


def test_job_larger_than_memory() -> None:
    assert storage.memory(10**15, 2).state == "obstacle"
    assert "training.batch" in storage.memory(10**15, 2).to_do
    assert storage.memory(1, 1).numbers["need_bytes"] == 1


# -- findings against the predicted step ---------------------------------------------------------------------

TWO = {**DIGITS, "backend": "ddp", "cluster": {"device": "cpu", "count": 2}}
NEED = {"gradient_bytes": 1_080_000, "step_s": 0.033, "hides_s": 0.0, "step_from": "test"}


def test_exchange_longer_than_the_step_warns_with_remedies() -> None:
    """The reported case: 171 ms of exchange in a step of 33 ms. A ring of two sends each byte once."""
    rate = 1_080_000 / 0.171
    (row,) = doctor_job.exchange(jobs.from_dict(TWO), NEED, rate, "between these hosts")
    assert row.state == "warning"
    assert row.share == pytest.approx(0.171 / (0.033 + 0.171))
    assert "84 % is waiting" in row.seen
    # The smallest power of two (at most 16) batches between exchanges that limits waiting to 10 % of a step.
    assert "204 ms → 43.7 ms" in row.to_do
    assert "training.accumulation=16 training.batch=1024" in row.to_do
    assert "send fp16 (119 ms a step)" in row.to_do


def test_hidden_or_short_exchange_is_fine() -> None:
    job, rate = jobs.from_dict(TWO), 1_080_000 / 0.171
    hidden = doctor_job.exchange(job, {**NEED, "step_s": 1.0, "hides_s": 0.17}, rate, "here")[0]
    assert hidden.state == "fine"
    assert hidden.numbers["exposed_s"] == pytest.approx(0.001)
    assert doctor_job.exchange(job, NEED, 1e9, "here")[0].state == "fine"
    assert doctor_job.exchange(jobs.from_dict(DIGITS), NEED, rate, "here") == []
    half = jobs.from_dict({**TWO, "communication": {"compression": "fp16"}})
    assert doctor_job.exchange(half, NEED, rate, "here")[0].numbers["seconds"] == pytest.approx(0.171 / 2)


def test_cpu_step_is_predicted_from_measured_peaks() -> None:
    """Half the peaks, or twice the ranks, double the time, except the cost per operator."""
    job = jobs.resolved(jobs.from_dict(TWO))
    rows = {"flops_per_s": 1e9, "bytes_per_s": 1e8}
    first, slower, shared = (
        doctor_job.needs(job, [], [{name: rate / less for name, rate in rows.items()}], ranks)["step_s"]
        for less, ranks in ((1, 1), (2, 1), (1, 2))
    )
    assert slower == pytest.approx(2 * first, rel=0.05)
    assert shared == pytest.approx(slower)


def test_largest_cost_comes_first() -> None:
    (row,) = doctor_job.exchange(jobs.from_dict(TWO), NEED, 6.25e6, "between these hosts")
    sections = answer.sections_of([row, Finding("cores", "load", "busy", "warning", "wait")], 1.0)
    assert sections[0].takeaway.startswith("A run can start, and 84 % of its time goes into waiting for gradients.")


def test_slow_writing_matters_relative_to_the_interval() -> None:
    """10 MB at 10 MB/s take 1 s: negligible every minute, 10 % of the time every 10 s."""
    measured = {"write_bytes_per_s": 1e7, "fsync_s": 0.0, "rename_s": 0.0, "has_locks": True}
    states = [storage._speed(measured, 10**7, {}, between_s).state for between_s in (None, 60.0, 9.0)]
    assert states == ["warning", "fine", "warning"]
    assert storage._speed(measured, 10**7, {}, 9.0).share == pytest.approx(0.1)


def test_checks_irrelevant_to_the_job_are_skipped() -> None:
    absent = [Finding("software", what, "not installed", "absent") for what in
              ("backend horovod", "backend tf_mirrored", "launcher horovodrun", "launcher slurm")]  # fmt: skip
    others = [
        Finding("software", "Horovod", "for another torch", "warning"),
        Finding("memory", "memory", "?", "absent"),
    ]

    def kept(backend: str | None) -> list[str]:
        return [one.what for one in [*absent, *others] if doctor_software.concerns(one, backend)]

    assert kept(None) == kept("ddp") == ["memory"]
    assert kept("tf_mirrored") == ["backend tf_mirrored", "memory"]
    assert kept("horovod") == ["backend horovod", "launcher horovodrun", "Horovod", "memory"]


# -- cores and threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "why"), [
    ("OMP_NUM_THREADS", "64000", "wait for each other"),
    ("MKL_NUM_THREADS", "64000", "wait for each other"),
    ("OMP_NUM_THREADS", "many", "is not a number"),
])  # fmt: skip
def test_wrong_thread_variables(name: str, text: str, why: str) -> None:
    row = only(doctor_cores.thread_variables(1, {name: text}), "warning")
    assert row.what == name
    assert why in row.seen
    assert f"export {name}={doctor_cores.usable_cores()}" in row.to_do


def test_valid_or_unset_thread_variables() -> None:
    cores = doctor_cores.usable_cores()
    assert doctor_cores.thread_variables(cores, {"OMP_NUM_THREADS": "1"})[0].state == "fine"
    assert doctor_cores.thread_variables(1, {}) == []


@pytest.mark.parametrize(("files", "own", "expected"), [
    ({"cpu.max": "150000 100000"}, "0::/", 1.5),
    ({"cpu.max": "max 100000"}, "0::/", None),
    ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "max 100000"}, "0::/a/b", 4.0),
    ({"a/cpu.max": "50000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b", 0.5),
    ({"cpu/d/cpu.cfs_quota_us": "200000", "cpu/d/cpu.cfs_period_us": "100000"}, "4:memory:/x\n1:cpu:/d\n0::/", 2.0),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", None),
])  # fmt: skip
def test_cpu_quota_of_cgroup_v1_and_v2(tmp_path: Path, files: dict[str, str], own: str, expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert doctor_cores.quota_cores(tmp_path / "root", tmp_path / "own") == expected


def test_cpu_quota_below_the_cores_is_reported() -> None:
    row = only(doctor_cores.cores(1, None, 0.5), "warning")
    assert row.what == "quota"
    assert "cluster.threads=1" in row.to_do
    assert doctor_cores.cores(1, None, None)[0].state == "fine"
    assert doctor_cores.cores(1, None, float(environment.cores()))[0].state == "fine"


def test_more_threads_than_cores() -> None:
    cores = environment.cores()
    row = only(doctor_cores.cores(2, cores, None), "warning")
    assert f"cluster.threads={max(1, cores // 2)}" in row.to_do
    assert "cluster.count" in only(doctor_cores.cores(cores + 1, None, None), "warning").to_do


def test_load_excludes_own_processes() -> None:
    """The kernel counts the load; the load of others includes at least a process of another parent."""
    before = time.process_time()
    load = doctor_cores.Load()
    while time.process_time() - before < 0.5:
        pass
    own = load.finding().numbers
    load = doctor_cores.Load()
    busy = subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 30: pass"])
    try:
        time.sleep(1.0)
        others = load.finding().numbers
    finally:
        busy.kill()
        busy.wait()
    assert 0 <= float(own["busy_cores_of_others"] or 0) <= environment.cores()
    assert float(others["busy_cores_of_others"] or 0) > 0.2


def test_two_openmp_libraries_and_no_blas() -> None:
    build = {"blas": "", "numpy_blas": "mkl", "vectors": "AVX2", "openmp": ["libgomp-abc.so.1", "libiomp5.so"]}
    blas, openmp = doctor_cores.blas(build)
    assert (blas.state, openmp.state) == ("warning", "warning")
    assert [one.state for one in doctor_cores.blas({**build, "blas": "mkl", "openmp": ["libgomp.so.1"]})] == ["fine"]


# -- devices -------------------------------------------------------------------------------------------------

EPYC = "vendor_id : AuthenticAMD\ncpu MHz : 2445.426\nflags : fpu sse2 avx fma avx2\n"


@pytest.mark.parametrize(("text", "precision", "expected"), [
    (EPYC, "fp32", 2 * 2.445426e9 * 32),
    (EPYC.replace("avx2", "avx2 avx512f avx512_bf16"), "bf16", 2 * 2.445426e9 * 64),
    (EPYC.replace("AuthenticAMD", "GenuineIntel").replace("avx2", "avx2 avx512f"), "fp32", 2 * 2.445426e9 * 64),
    (EPYC.replace("avx2", "avx2 amx_bf16"), "bf16", 2 * 2.445426e9 * 1024),
    (EPYC.replace("avx fma avx2", ""), "fp32", 2 * 2.445426e9 * 8),
])  # fmt: skip
def test_cpu_data_sheet(tmp_path: Path, text: str, precision: str, expected: float) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    sheet = processor.sheet(2, precision, tmp_path / "cpuinfo", tmp_path / "none")
    assert sheet is not None
    assert sheet.flops_per_s == pytest.approx(expected)
    assert "2.45 GHz" in sheet.assumption
    (tmp_path / "clock").write_text("3500000\n")
    faster = processor.sheet(2, precision, tmp_path / "cpuinfo", tmp_path / "clock")
    assert faster is not None
    assert faster.flops_per_s == pytest.approx(expected * 3.5e9 / 2.445426e9)


def test_bf16_job_on_a_cpu_without_bf16() -> None:
    row = {"kind": "cpu", "asked": "bf16", "precision": "fp32", "flops_per_s": 1e11, "bytes_per_s": 1e10}
    found = only(doctor_devices.peaks({"rows": [row]}, [], 2), "warning")
    assert "no arithmetic for bf16" in found.seen
    assert "training.precision=fp32" in found.to_do


def test_unknown_cpu_has_no_data_sheet(tmp_path: Path) -> None:
    assert processor.sheet(2, cpuinfo=tmp_path / "none") is None
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    assert processor.sheet(2, "fp32", tmp_path / "cpuinfo", tmp_path / "none") is None


@pytest.mark.parametrize(("driver_name", "device"), [
    ("NVIDIA A100-SXM4-80GB", "a100-80"),
    ("NVIDIA A100-SXM4-40GB", "a100-40"),
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA H100 PCIe", "h100-pcie"),
    ("Tesla T4", "t4"),
    ("NVIDIA L40S", "l40s"),
    ("NVIDIA GeForce RTX 3090", "rtx3090"),
    ("Tesla V100-PCIE-16GB", "v100-pcie"),
    ("Tesla K80", "k80-gk210"),
    ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
    ("NVIDIA GeForce RTX 3090 Ti", None),
    ("NVIDIA H200 NVL", None),
])  # fmt: skip
def test_driver_names_map_to_devices(driver_name: str, device: str | None) -> None:
    found = catalog.of_driver_name(driver_name)
    assert (found.name if found else None) == device


def gpu_row(share: float) -> dict[str, Any]:
    sheet = catalog.device("h100")
    rates = {"flops_per_s": share * sheet.peak("bf16"), "bytes_per_s": 0.9 * sheet.bandwidth_bytes_per_s}
    return {"kind": "gpu", "index": 0, "name": "NVIDIA H100 80GB HBM3", "precision": "bf16", **rates}


def test_slow_gpu_is_reported_with_the_drivers_reason() -> None:
    driver = {"name": "NVIDIA H100 80GB HBM3", "power.limit": "300.00", "power.default_limit": "700.00"}
    row = only(doctor_devices.peaks({"rows": [gpu_row(0.3)]}, [driver], 2), "warning")
    assert "30 % of its data sheet" in row.seen
    assert "300 of 700 W" in row.to_do
    assert doctor_devices.peaks({"rows": [gpu_row(0.7)]}, [driver], 2)[0].state == "fine"


@pytest.mark.parametrize(("cuda", "hidden", "driver_cuda", "error", "to_do"), [
    (None, None, "13.0", "", "index with CUDA builds"),
    ("13.0", "", "13.0", "", "unset CUDA_VISIBLE_DEVICES"),
    ("13.0", None, "12.4", "", "a driver for CUDA 13.0"),
    ("12.8", None, "13.0", "no permission", "--gpus all"),
])  # fmt: skip
def test_gpus_that_pytorch_cannot_use(
    cuda: str | None, hidden: str | None, driver_cuda: str, error: str, to_do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    build, found = {"cuda": cuda, "version": "2.14.1"}, {"gpu_names": [], "error": error}
    rows = doctor_devices.usable([{"name": "Tesla T4"}], driver_cuda, build, found)
    assert to_do in only(rows, "warning").to_do


def test_nvidia_smi_output_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output comes from a machine with the driver."""
    smi = tmp_path / "nvidia-smi"
    row = "NVIDIA H100 80GB HBM3, 570.86.15, 81559, 1, 0, 700.00, 700.00, 31"
    banner = "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8     |"
    smi.write_text(f'#!/bin/sh\ncase "$1" in --query*) echo "{row}";; *) echo "{banner}";; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    rows, cuda = doctor_devices.listed()
    assert rows[0]["name"] == "NVIDIA H100 80GB HBM3"
    assert rows[0]["power.default_limit"] == "700.00"
    assert cuda == "12.8"


# -- storage ---------------------------------------------------------------------------------------------------


def look(path: Path, need_bytes: int | None = None, removed_s: float = 5.0) -> list[Finding]:
    started = time.monotonic()
    with asked({"of": "folder", "path": str(path)}) as checks:
        found = storage.run_directory(checks, path, need_bytes, started)
        checks.tell({"end": True})
        checks.wait("removed", time.monotonic() + removed_s)
    return found


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def test_missing_folder_is_checked_at_its_parent(tmp_path: Path) -> None:
    found = look(tmp_path / "a" / "b")
    assert [one.state for one in found if one.state == "obstacle"] == []
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert "not a folder" in only(look(tmp_path / "runs"), "obstacle").seen


@pytest.mark.skipif(is_root, reason="root may write anywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o555)
    assert "permission to write there" in only(look(tmp_path / "runs"), "obstacle").to_do


@needs_root
def test_read_only_file_system(mounted: Path) -> None:
    command("mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(mounted))
    row = only(look(mounted), "obstacle")
    assert f"tmpfs at {mounted}" in row.seen
    assert "mount it for writing" in row.to_do


@needs_root
def test_full_disk(mounted: Path) -> None:
    command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted))
    (mounted / "full").write_bytes(b"x" * (2**20 - 4096))
    row = only(look(mounted), "obstacle")
    assert "No space left" in row.seen
    assert "free some space" in row.to_do


@needs_root
def test_disk_too_small_for_checkpoints_or_without_inodes(mounted: Path) -> None:
    command("mount", "-t", "tmpfs", "-o", "size=200m,nr_inodes=100", "tmpfs", str(mounted))
    assert "3 GB needed" in only(look(mounted, 10**9), "obstacle").seen
    rows = [one for one in look(mounted) if one.state == "warning"]
    assert "inodes" in rows[0].seen


@needs_root
def test_hung_file_system_does_not_block_doctor(mounted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A frozen file system blocks its writers like a dead server."""
    image = tmp_path / "image"
    with image.open("wb") as stream:
        stream.truncate(2**24)
    if not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))):
        pytest.skip("mkfs.ext4 or fsfreeze is not here")
    command("mkfs.ext4", "-q", str(image))
    command("mount", "-o", "loop", str(image), str(mounted))
    command("fsfreeze", "-f", str(mounted))
    monkeypatch.setattr(storage, "DEADLINE_S", 1.0)
    try:
        started = time.monotonic()
        row = only(look(mounted, removed_s=0.1), "obstacle")  # deletion fails as well
        assert time.monotonic() - started < 20
    finally:
        subprocess.run(["fsfreeze", "-u", str(mounted)], check=True)
    assert "no answer in 1 s" in row.seen
    assert "--out" in row.to_do


@needs_root
def test_small_shared_memory(mounted: Path) -> None:
    command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mounted))
    assert "--shm-size" in only(storage.shared_memory(mounted), "warning").to_do


# -- software --------------------------------------------------------------------------------------------------


def plant(folder: Path, name: str, version: str, *lines: str) -> None:
    """Write the metadata of a distribution as pip does."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    text = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *lines]
    (info / "METADATA").write_text("\n".join(text) + "\n")


def test_incompatible_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, count = doctor_software.conflicts(doctor_software.libraries())
    plant(
        tmp_path,
        "torchvision",
        "0.99",
        "Requires-Dist: numpy==0.1",
        "Requires-Dist: not-there>=2",
        "Requires-Python: <3",
    )
    plant(tmp_path, "timm", "9", "Requires-Dist: numpy>=1; python_version>'3'", "Requires-Dist: gone; extra == 'all'")
    monkeypatch.syspath_prepend(str(tmp_path))
    found, _ = doctor_software.conflicts(doctor_software.libraries())
    new = {one.requirement: one for one in found if one not in before}
    assert count > 10
    assert {one.requirement for one in new.values() if one.owner == "torchvision"} == {
        "numpy==0.1",
        "not-there>=2",
        "python<3",
    }
    assert not [one for one in new.values() if one.owner == "timm"]
    rows = [one for one in doctor_software.versions() if "torchvision 0.99 needs numpy==0.1" in one.seen]
    assert "pip install 'numpy==0.1'" in only(rows, "warning").to_do


def test_loaded_nccl_differs_from_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "nvidia_nccl_cu13", "2.30.7")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "LD_LIBRARY_PATH" in only(doctor_software.nccl("2.18.1"), "warning").to_do
    assert doctor_software.nccl("2.30.7")[0].state == "fine"
    assert doctor_software.nccl("") == []


# -- processes -------------------------------------------------------------------------------------------------


def test_check_that_hangs_or_dies_is_reported() -> None:
    started = time.monotonic()
    with asked({}, ("sleep", "60")) as checks:
        assert checks.wait("said", started + 0.3) is None
        assert checks.why_ended == ""
    with asked({}, (sys.executable, "-c", "raise SystemExit('no such thing')")) as checks:
        assert checks.wait("said", started + 20) is None
        assert checks.why_ended == "no such thing"
    assert time.monotonic() - started < 15


# -- hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client")
def test_unreachable_host() -> None:
    """192.0.2.0/24 is reserved for documentation (RFC 5737)."""
    started = time.monotonic()
    found, rate = doctor_hosts.check("192.0.2.1", None, "runs", None)
    row = only(found, "obstacle")
    assert row.what == "host 192.0.2.1"
    assert "ssh" in row.to_do
    assert rate is None
    assert time.monotonic() - started < 10


def test_invalid_host_names() -> None:
    with pytest.raises(InputError, match="named twice"):
        doctor_hosts.check("a,a", None, "runs", None)


@pytest.fixture
def two_hosts() -> Iterator[str]:
    """Two network namespaces on a bridge, each limited to 300 Mbit/s."""
    tag = f"d{os.getpid() % 100_000}"
    names = [f"{tag}h{i}" for i in (1, 2)]
    command("ip", "link", "add", f"{tag}b", "type", "bridge")
    try:
        command("ip", "link", "set", f"{tag}b", "up")
        for i, name in enumerate(names, 1):
            command("ip", "netns", "add", name)
            command("ip", "link", "add", f"{tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            command("ip", "link", "set", f"{tag}v{i}", "master", f"{tag}b", "up")
            command("ip", "-n", name, "addr", "add", f"10.91.7.{i}/24", "dev", "eth0")
            command("ip", "-n", name, "link", "set", "eth0", "up")
            command("ip", "-n", name, "link", "set", "lo", "up")
            shape = "root handle 1: tbf rate 300mbit burst 256kb latency 50ms"
            command("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape.split())
        yield ",".join(f"netns:{name}" for name in names)
    finally:
        for words in (*(("netns", "del", name) for name in names), ("link", "del", f"{tag}b")):
            subprocess.run(["ip", *words], capture_output=True, check=False)


@pytest.mark.slow
@needs_root
def test_two_hosts_measure_the_rate_of_their_link(two_hosts: str, tmp_path: Path) -> None:
    found, rate = doctor_hosts.check(two_hosts, str(tmp_path), str(tmp_path), 2)
    assert [one for one in found if one.state == "obstacle"] == []
    assert rate is not None
    assert 0.5 * 300e6 / 8 < rate < 1.1 * 300e6 / 8
    trip = next(one for one in found if one.what == "reach").numbers["round_trip_s"]
    assert 0 < float(trip or 0) < 1
    assert sum("sees" in one.seen for one in found) == 2


@needs_root
def test_disconnected_hosts_are_reported(two_hosts: str, tmp_path: Path) -> None:
    first = two_hosts.split(",")[0].removeprefix("netns:")
    subprocess.run(["ip", "-n", first, "route", "add", "blackhole", "10.91.7.2/32"], check=True)
    found, rate = doctor_hosts.check(two_hosts, str(tmp_path / "gone"), "runs", 1)
    rows = {one.what: one for one in found if one.state == "obstacle"}
    assert rate is None
    assert "cluster.count=2" in rows["ranks"].to_do
    cut = rows[f"netns:{first} to netns:{two_hosts.split(':')[-1]}"]
    assert "firewall" in cut.to_do
    assert "share" in rows[f"netns:{first} and the run directory"].to_do


def test_clock_difference_is_reported() -> None:
    assert only(doctor_hosts._clocks({"a": (0.0, 0.01), "b": (3.0, 0.02)}), "warning").what == "clocks"
    assert doctor_hosts._clocks({"a": (0.0, 0.01), "b": (0.02, 0.02)})[0].state == "fine"


def test_hosts_with_different_versions() -> None:
    def host_with(name: str, torch: str) -> doctor_hosts.HostReport:
        facts = {"cores": 8, "gpus": [{"name": "Tesla T4"}] * 2, "versions": {"python": "3.12.1", "torch": torch}}
        return doctor_hosts.HostReport(Host(name, "10.0.0.1", "eth0", ("ssh", name)), None, facts)  # type: ignore[arg-type]

    found = doctor_hosts._facts([host_with("a", "2.14.1"), host_with("b", "2.13.0")])
    assert "8 cores, 2 × Tesla T4" in found[0].seen
    row = only(found, "warning")
    assert row.what == "torch differs"
    assert row.seen == "2.14.1 on a, 2.13.0 on b"


def test_host_without_a_working_python() -> None:
    host = Host("b", "10.0.0.2", "eth0", ("ssh", "b"))
    with asked({}, (sys.executable, "-c", "raise SystemExit('env: python: No such file')")) as checks:
        checks.wait("facts", time.monotonic() + 20)
        row = doctor_hosts._silent(host, checks)
    assert row.seen == "env: python: No such file"
    assert "at the same path" in row.to_do


def test_verdict_comes_first_then_obstacles() -> None:
    found = [
        Finding("cores", "cores", "2"),
        Finding("storage", "runs", "cannot be written", "obstacle", "name another folder"),
    ]
    first, second = answer.sections_of(found, 1.25)
    assert first.takeaway == "A run cannot start as it is. The checks took 1.2 s. This section lists 1 of 2 checks."
    assert first.table is not None
    assert list(first.table.rows) == [["storage", "runs: cannot be written\n→ name another folder"]]
    assert (second.title, second.takeaway) == ("Fine", "This section lists 1 of 2 checks.")
    (fine,) = answer.sections_of(found[:1], 1.0)
    assert fine.takeaway.startswith("A run can start. ")


@pytest.mark.parametrize("why", ["", "was killed by SIGKILL"])
def test_silent_devices_are_reported_with_the_exit_reason(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    from chronograd.doctor import checks

    class Ended:
        why_ended = why

        def wait(self, name: str, until: float) -> None:
            return None

    monkeypatch.setattr(checks.cores, "blas", lambda build: [])
    found, need = checks._of_torch(Ended(), {"has_link": False}, None, [], "")  # type: ignore[arg-type]
    assert need == {}
    assert found[-1].to_do == (why or "check that no other process uses the devices")
