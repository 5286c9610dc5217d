"""Quick measurements with PyTorch: its build, peaks of each device, an all-reduce between two processes."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from chronograd.calibrate.processor import has_bf16
from chronograd.calibrate.worker import peaks

PEAK_SECONDS = 0.3
MEETING_TIMEOUT_S = 20.0
SMALL_BYTES, FIRST_BYTES = 4_096, 2**20
MIN_BYTES, MAX_BYTES = 2**18, 2**26
SMALL_REPEATS, LARGE_REPEATS = 20, 2


def build() -> dict[str, Any]:
    """Return the build of this PyTorch without touching a GPU: a fork of a process that did cannot use CUDA."""
    settings = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", settings)
    of_numpy: Any = np.show_config(mode="dicts")
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "blas": blas[1] if blas else "",
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "numpy_blas": str(of_numpy.get("Build Dependencies", {}).get("blas", {}).get("name", "")),
        "openmp": _openmp(),
    }


def _openmp() -> list[str]:
    """Return the files of the OpenMP libraries in this process. Two of them start separate threads."""
    try:
        with open("/proc/self/maps") as stream:
            paths = {line.split()[-1] for line in stream if re.search(r"/lib(gomp|iomp5|omp)[^/]*\.so", line)}
    except OSError:
        return []
    return sorted(os.path.basename(path) for path in paths)


def devices(precision: str, threads: int, on_cpu: bool) -> dict[str, Any]:
    """Measure the peaks of all GPUs simultaneously, or of the processor if there is no GPU or `on_cpu` is set.

    `error` is torch's message if CUDA cannot be used; `nccl` is the version in use.
    """
    torch.set_num_threads(threads)
    error = "" if torch.version.cuda is None else _cuda_error()
    num_gpus = 0 if error or torch.version.cuda is None else torch.cuda.device_count()
    if on_cpu or not num_gpus:
        rows = [_device(precision, torch.device("cpu"))]
    else:
        with ThreadPoolExecutor(num_gpus) as pool:
            rows = list(pool.map(partial(_device, precision), [torch.device("cuda", i) for i in range(num_gpus)]))
    names = [torch.cuda.get_device_name(i) for i in range(num_gpus)]
    nccl: Any = torch.cuda.nccl
    return {
        "error": error,
        "gpu_names": names,
        "nccl": ".".join(map(str, nccl.version())) if num_gpus else "",
        "rows": rows,
    }


def _cuda_error() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return ""


def _device(precision: str, place: torch.device) -> dict[str, Any]:
    is_gpu = place.type == "cuda"
    # Without support, one product in bf16 takes seconds.
    used = precision if is_gpu or (precision == "bf16" and has_bf16()) else "fp32"
    row: dict[str, Any] = {"kind": place.type.replace("cuda", "gpu"), "index": place.index or 0}
    row |= {"precision": used, "asked": precision}
    here: AbstractContextManager[Any] = torch.cuda.device(place) if is_gpu else nullcontext()
    try:
        with here:
            if is_gpu:
                row["name"] = torch.cuda.get_device_name(place)
                row["free_bytes"], row["memory_bytes"] = torch.cuda.mem_get_info(place)
            row |= peaks(place, used, PEAK_SECONDS)
    except RuntimeError as error:  # includes running out of memory
        row["error"] = " ".join(str(error).split())[:300]
    return row


def pair(seconds: float = 0.2) -> dict[str, float]:
    """Time an all-reduce between this process and a fork of it, as `all_reduce`. The process must not have used CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        run = partial(all_reduce, world=2, meeting=f"file://{folder}/store", seconds=seconds)
        child = os.fork()
        if child == 0:
            try:
                run(1)
            finally:
                os._exit(0)
        try:
            return run(0)
        finally:
            os.waitpid(child, 0)


def all_reduce(rank: int, world: int, meeting: str, seconds: float = 0.5) -> dict[str, float]:
    """Return seconds of an all-reduce of 4 KiB, and bus bandwidth of a large one that takes about `seconds`, over gloo.

    Args:
        meeting: the address where ranks meet, as torch's init_method.
    Raises: RuntimeError if a rank cannot be reached.
    """
    patience = timedelta(seconds=MEETING_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=patience)
    try:
        first_s = _timed(FIRST_BYTES)
        latency_s = statistics.median(_timed(SMALL_BYTES) for _ in range(SMALL_REPEATS))
        size = torch.tensor(min(max(FIRST_BYTES * seconds / LARGE_REPEATS / first_s, MIN_BYTES), MAX_BYTES))
        dist.broadcast(size, src=0)
        num_bytes = int(size) // 4 * 4
        best_s = min(_timed(num_bytes) for _ in range(LARGE_REPEATS))
        # Bus bandwidth as nccl-tests defines it (PERFORMANCE.md).
        rate = 2 * (world - 1) / world * num_bytes / best_s
        return {"latency_s": latency_s, "bandwidth_bytes_per_s": rate, "bytes": num_bytes}
    finally:
        dist.destroy_process_group()


def _timed(num_bytes: int) -> float:
    message = torch.ones(num_bytes // 4)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(message)
    return time.perf_counter() - start
