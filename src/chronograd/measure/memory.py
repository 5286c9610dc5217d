"""Peak memory of one process, on CUDA and on the CPU. Imports torch and psutil only where they are needed."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
# Of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
# What is written to learn what a page fault takes, and how often.
_FAULT_BYTES, _FAULT_REPEATS = 2**26, 5


def keep_freed_memory() -> bool:
    """Keep what this process frees for what it allocates next, where the C library is glibc; True if so.

    Else a tensor above 32 MiB, and the free end of the heap above twice the largest of the others, go back to the system, and come
    again page by page in the next step, each by a fault of some 2 µs. MobileNet-V2 in inference at batch 8 and 224 × 224 takes 82,000
    faults, and 2.4 times as long (two cores of an EPYC, glibc 2.36). Resident memory then stays at its peak, some 10 % higher as
    tensors of other sizes take parts of what was freed; the heap grows for some steps until nothing comes anew.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        option = ctypes.CDLL(None).mallopt
        return bool(option(_MMAP_MAX, 0)) and bool(option(_TRIM_THRESHOLD, -1))
    return False


def page_faults() -> int | None:
    """Pages that the system has given this process without reading a disk, since it began; None where it does not count them."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_s() -> float | None:
    """Seconds by which writing new memory with all threads takes longer than writing it again, for each fault; None without faults."""
    import torch

    before, found = page_faults(), list[float]()
    for _ in range(_FAULT_REPEATS):
        memory = torch.frombuffer(mmap.mmap(-1, _FAULT_BYTES), dtype=torch.float32)
        written_s = []
        for value in range(2):
            start_s = time.perf_counter()
            memory.fill_(value)
            written_s.append(time.perf_counter() - start_s)
        del memory
        found.append(written_s[0] - written_s[1])
    faults = (page_faults() or 0) - (before or 0)
    pages = faults / _FAULT_REPEATS
    return max(0.0, statistics.median(found)) / pages if pages >= 1 else None


class PeakResident:
    """Peak resident memory after `__init__` less what was resident then; so it also holds what libraries load on first use.

    `source` says how it was read.
    """

    def __init__(self) -> None:
        import psutil  # not in the base package

        self._start_bytes: int = psutil.Process().memory_info().rss
        what = "peak resident memory" if _forget_peak() else "peak resident memory of the process's life"
        self.source = f"{what} less what was resident at the start"

    def peak_bytes(self) -> int:
        return max(0, _peak_resident_bytes() - self._start_bytes)


def _forget_peak() -> bool:
    """Ask Linux to forget the peak so far. Other systems remember it for the life of the process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_resident_bytes() -> int:
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


class PeakMemory:
    """Peak of what is allocated after `__init__`.

    On CUDA: the allocator's own peak; the CUDA context, about half a GiB, is left out. On the CPU: resident memory.
    `source` says how it was read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(device)
            self.source = "torch.cuda.max_memory_allocated"
            return
        self._resident = PeakResident()
        self.source = self._resident.source

    def peak_bytes(self) -> int:
        if self._device.type == "cuda":
            import torch

            return int(torch.cuda.max_memory_allocated(self._device))
        return self._resident.peak_bytes()


def cpu_tensor_peak_bytes(run: Callable[[], object], held: Iterable[torch.Tensor]) -> int:
    """Peak bytes of tensors on the CPU while `run` runs once: what a trace predicts, less workspace.

    The allocator's own events, from torch's profiler, summed in order, on top of the tensors `held` all along, each
    storage once. Left out: what is neither in `held` nor allocated by `run`, such as the buckets of a data-parallel
    wrapper; memory that libraries take past the allocator.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    return peak + sum(storages.values())
