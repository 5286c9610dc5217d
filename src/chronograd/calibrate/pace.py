"""How fast this machine runs now: one piece of work whose time is kept with a calibration, and taken again before it is used.

A machine that shares its cores, or its host with other virtual machines, runs at another pace from minute to minute, also where
nothing tells who else uses it.
"""

from __future__ import annotations

import math
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
# Of the piece of work between two others: some 20 ms.
PASSES = 5
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


class Piece:
    """A piece of work: one forward and backward pass of a convolution, with as many images for each of `threads` threads."""

    def __init__(self, threads: int = 1) -> None:
        self._block = torch.nn.Sequential(
            torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
        )
        self._images = torch.ones(16 * threads, 32, 16, 16)

    def run_s(self) -> float:
        """Seconds of the work, once."""
        start = time.perf_counter()
        self._block(self._images).sum().backward()
        return time.perf_counter() - start


def probe_s(seconds: float = _SECONDS) -> float:
    """Median seconds of the piece of work on one core, over some tenths of a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        piece, found = Piece(), list[float]()
        end = time.perf_counter() + seconds
        while len(found) < 5 or time.perf_counter() < end:
            found.append(piece.run_s())
        return statistics.median(found[2:])
    finally:
        torch.set_num_threads(threads)


class Laps:
    """The pace around each of several pieces of work, which this process does one after the other with all its threads.

    What was timed at a pace of p is taken to the median of all by the factor median / p. On two cores of a virtual machine whose pace
    changed by half within a minute, times of blocks followed it one to one (0.9 to 1.0 in the log by phase, 0.7 to 1.8 by sort of block; R² 0.7): six calibrations
    in a row were 10.6 % apart in place of 20.5 (root mean square over 276 times of blocks; 2026-11-24, AMD EPYC).
    """

    def __init__(self, passes: int = PASSES) -> None:
        self._piece, self._passes = Piece(torch.get_num_threads()), passes
        self.all_s: list[float] = []
        self._probe()  # which warms up
        self._last = self._probe()

    def _probe(self) -> float:
        return statistics.median(self._piece.run_s() for _ in range(self._passes))

    def lap(self) -> float:
        """Seconds of the piece of work, from before and after what was done since the last call."""
        before, self._last = self._last, self._probe()
        self.all_s.append(math.sqrt(before * self._last))
        return self.all_s[-1]

    @property
    def median_s(self) -> float:
        return statistics.median(self.all_s)

    @property
    def sigma_log(self) -> float:
        """Standard deviation of the log of the paces; half of what lies between their 16 % and 84 %, as a few are far off."""
        ordered = sorted(self.all_s)
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.16, 0.84))
        return math.log(high / low) / 2


def spread(probes: Sequence[float]) -> float:
    """Slowest over fastest: 1 on a machine that does nothing else.

    >>> spread([0.01, 0.012])
    1.2
    """
    return max(probes) / min(probes)
