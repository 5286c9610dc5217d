"""The current speed of this machine: the time of a fixed piece of work, saved with a calibration and measured again before its
use.

The speed of a machine that shares its cores, or its host with other virtual machines, changes from minute to minute, even if no
counter shows other users.
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

# If two probe times differ by more than this ratio, the machine was busy at one of them; idle ones differ by a few per cent.
BUSY = 1.15
_SECONDS = 0.4
# Runs of the piece of work per probe: about 20 ms.
PASSES = 5
# If other programs use more cores than this, timings are unreliable; an idle desktop uses a tenth of a core.
BUSY_CORES = 0.15


def _own_s() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Watch:
    """The use of this machine's cores by other programs since the watch was created."""

    _ticks: float = field(default_factory=lambda: sum(processor_ticks()))
    _computed_s: float = field(default_factory=_own_s)
    _began: float = field(default_factory=time.monotonic)

    def others_cores(self) -> float:
        """Return the cores used by other processes and other machines of the host since then; 0 if unknown."""
        used_s = (sum(processor_ticks()) - self._ticks) / os.sysconf("SC_CLK_TCK")
        return max(0.0, used_s - (_own_s() - self._computed_s)) / (time.monotonic() - self._began)


class Piece:
    """A piece of work: one forward and backward pass of a convolution, with the same number of images for each thread."""

    def __init__(self, threads: int = 1) -> None:
        self._block = torch.nn.Sequential(
            torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
        )
        self._images = torch.ones(16 * threads, 32, 16, 16)

    def run_s(self) -> float:
        """Run the work once and return its seconds."""
        start = time.perf_counter()
        self._block(self._images).sum().backward()
        return time.perf_counter() - start


def probe_s(seconds: float = _SECONDS) -> float:
    """Return median seconds of the piece of work on one core, over a few tenths of a second."""
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
    """Probe times around several pieces of work, which this process runs one after another with all its threads.

    A time measured at probe time p is scaled by median / p to the median of all probes. We tested this on two cores of a
    virtual machine whose speed changed by half within a minute (2026-11-24, AMD EPYC). Block times followed the probes one to
    one: exponent 0.9 to 1.0 by phase, 0.7 to 1.8 by kind of block; R² 0.7. Scaling reduced the differences between six
    calibrations in a row from 20.5 % to 10.6 % (root mean square over 276 block times).
    """

    def __init__(self, passes: int = PASSES) -> None:
        self._piece, self._passes = Piece(torch.get_num_threads()), passes
        self.all_s: list[float] = []
        self._probe()  # which warms up
        self._last = self._probe()

    def _probe(self) -> float:
        return statistics.median(self._piece.run_s() for _ in range(self._passes))

    def lap(self) -> float:
        """Return the seconds of the piece of work: geometric mean of the probes before and after the work."""
        before, self._last = self._last, self._probe()
        self.all_s.append(math.sqrt(before * self._last))
        return self.all_s[-1]

    @property
    def median_s(self) -> float:
        return statistics.median(self.all_s)

    @property
    def sigma_log(self) -> float:
        """Return the robust standard deviation of the log of probe times: half of the range from 16 % to 84 %."""
        ordered = sorted(self.all_s)
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.16, 0.84))
        return math.log(high / low) / 2


def spread(probes: Sequence[float]) -> float:
    """Return slowest over fastest: 1 on an otherwise idle machine.

    >>> spread([0.01, 0.012])
    1.2
    """
    return max(probes) / min(probes)
