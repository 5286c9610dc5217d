"""Peak memory of one process, on CUDA and on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from chronograd.measure.resident import PeakResident


class PeakMemory:
    """Peak of what is allocated after `__init__`.

    On CUDA: the allocator's own peak; the CUDA context, about half a GiB, is left out. On the CPU: resident memory.
    `source` says how it was read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.source = "torch.cuda.max_memory_allocated"
            return
        self._resident = PeakResident()
        self.source = self._resident.source

    def peak_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return self._resident.peak_bytes()


def cpu_tensor_peak_bytes(run: Callable[[], object], held: Iterable[torch.Tensor]) -> int:
    """Peak bytes of tensors on the CPU while `run` runs once: what a trace predicts, less workspace.

    The allocator's own events, from torch's profiler, summed in order, on top of the tensors `held` all along, each
    storage once. Left out: what is neither in `held` nor allocated by `run`, such as the buckets of a data-parallel
    wrapper; memory that libraries take past the allocator.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    return peak + sum(storages.values())
