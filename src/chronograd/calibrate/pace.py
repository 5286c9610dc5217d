"""How fast this machine runs now: one piece of work whose time is kept with a calibration, and taken again before it is used.

A machine that shares its cores, or its host with other virtual machines, runs at another pace from minute to minute, also where
nothing tells who else uses it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

# Above this ratio of two paces the machine was busy at one of them: quiet ones differ by a few per cent.
BUSY = 1.15
_SECONDS = 0.4


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
