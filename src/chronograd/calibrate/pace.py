"""How fast this machine runs now: one piece of work whose time is kept with a calibration, and taken again before it is used.

A machine that shares its cores, or its host with other virtual machines, runs at another pace from minute to minute, also where
nothing tells who else uses it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from chronograd.measure.environment import processor_ticks

# Above this ratio of two paces the machine was busy at one of them: quiet ones differ by a few per cent.
BUSY = 1.15
_SECONDS = 0.4
# Cores that others use at which times of this process are no longer its own: a tenth is what a desktop does at rest.
BUSY_CORES = 0.15


def _own_s() -> float:
    """Seconds that this process has computed, and those of its children that have ended."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Watch:
    """Who uses this machine's cores, from when it is made: this process with the children that it ends meanwhile, or others."""

    _ticks: float = field(default_factory=lambda: sum(processor_ticks()))
    _computed_s: float = field(default_factory=_own_s)
    _began: float = field(default_factory=time.monotonic)

    def others_cores(self) -> float:
        """Cores that other processes, and other machines of the host, used since then; 0 where the system does not say."""
        used_s = (sum(processor_ticks()) - self._ticks) / os.sysconf("SC_CLK_TCK")
        return max(0.0, used_s - (_own_s() - self._computed_s)) / (time.monotonic() - self._began)


def probe_s(seconds: float = _SECONDS) -> float:
    """Median seconds of one forward and backward pass of a convolution on one core, over some tenths of a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        block = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU())
        images = torch.ones(16, 32, 16, 16)
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < 5 or time.perf_counter() < end:
            start = time.perf_counter()
            block(images).sum().backward()
            found.append(time.perf_counter() - start)
        return statistics.median(found[2:])
    finally:
        torch.set_num_threads(threads)


def spread(probes: Sequence[float]) -> float:
    """Slowest over fastest: 1 on a machine that does nothing else.

    >>> spread([0.01, 0.012])
    1.2
    """
    return max(probes) / min(probes)
