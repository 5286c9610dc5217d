"""Peak memory of one process, on CUDA and on the CPU. Imports torch and psutil only when needed."""

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

RESIDENT = "peak resident memory"  # the sources of peaks of a process begin with it
_STATUS = Path("/proc/self/status")
# Of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
# Bytes to write when measuring the time of a page fault, and number of repeats.
_FAULT_BYTES = 2**26
_FAULT_REPEATS = 5


def keep_freed_memory() -> bool:
    """Keep freed memory of this process for its next allocations, if the C library is glibc; return whether it is.

    Otherwise, tensors above 32 MiB go back to the system when freed, and so does the free end of the heap above twice the
    largest other tensor. The next step gets them back page by page, each with a page fault of some 2 µs. MobileNet-V2 inference
    at batch 8 and 224 × 224 has 82,000 faults and takes 2.4 times as long (two cores of an EPYC, glibc 2.36). With this setting,
    resident memory stays at its peak. It is some 10 % higher, because tensors of other sizes use parts of freed blocks. The
    heap grows for some steps until all allocations reuse memory.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        option = ctypes.CDLL(None).mallopt
        return bool(option(_MMAP_MAX, 0)) and bool(option(_TRIM_THRESHOLD, -1))
    return False


def page_faults() -> int | None:
    """Return the number of pages that the system has given this process without a disk read; None if it does not count them."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_s() -> float | None:
    """Return the seconds per page fault: the excess of writing new memory with all threads over rewriting it; None without
    faults.
    """
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
    """Peak resident memory after `__init__` minus resident memory at that time. It includes libraries loaded on first use.

    `source` describes the method.
    """

    def __init__(self) -> None:
        import psutil  # not in the base package

        self._start_bytes: int = psutil.Process().memory_info().rss
        what = RESIDENT if _forget_peak() else f"{RESIDENT} of the process's life"
        self.source = f"{what} minus resident memory at the start"

    def peak_bytes(self) -> int:
        return max(0, _peak_resident_bytes() - self._start_bytes)


def _forget_peak() -> bool:
    """Ask Linux to reset the peak. Other systems keep it for the life of the process."""
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
    """Peak of allocations after `__init__`.

    On CUDA: the allocator's own peak, without the CUDA context of about half a GiB. On the CPU: resident memory. `source`
    describes the method.
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


def cpu_tensor_peak_bytes(
    run: Callable[[], object], held: Iterable[torch.Tensor], is_done: Callable[[bool], bool] = lambda is_freed: True
) -> int:
    """Return the peak bytes of tensors on the CPU while `run` runs once: the value that a trace predicts, without workspace.

    The allocator's own events from torch's profiler are summed in order, in addition to the tensors `held` throughout, each
    storage once. Left out: tensors neither in `held` nor allocated by `run`, such as the buckets of a data-parallel wrapper,
    and memory that libraries allocate themselves.

    Args:
        is_done: whether to stop, after a run that freed all that it allocated or not; otherwise it runs again, and the least peak
            counts. The profiler loses events of memory that a thread of gloo frees, so a peak may be too high.
    """
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    peaks = []
    while True:
        peak, left = _allocated_bytes(run)
        peaks.append(peak)
        if is_done(left == 0):
            return min(peaks) + sum(storages.values())


def _allocated_bytes(run: Callable[[], object]) -> tuple[int, int]:
    """Return the most bytes that `run` has allocated at once, and those that it has not freed."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak, now
