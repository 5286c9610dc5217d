"""The queue between a host and its device in a trace: the time of each alone, and of both together.

A host launches kernels ahead of the device, which takes them from its queue. Together they take the time of the slower of the
two. If the host waited for each kernel before it launched the next, both times would add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chronograd.errors import ChronogradError
from chronograd.explain.device_time import is_waiting
from chronograd.explain.intervals import Intervals
from chronograd.explain.profiler import events_of
from chronograd.words import how_many


@dataclass(frozen=True)
class Queue:
    """Seconds of one trace, from its first launch to the last end of a kernel, without loading of batches.

    Attributes:
        host_s: of launching kernels: the time of the launches without the host's waits for the device or for a batch.
        device_s: in which kernels ran. `together_s`: of both.
        delay_s: median time of a kernel in the queue, from the end of its launch to its start; 0 if the device waits.
        kernels: number of kernels with a launch in the trace.
    """

    name: str
    kernels: int
    host_s: float
    device_s: float
    together_s: float
    delay_s: float

    @property
    def one_by_one_s(self) -> float:
        """Return the time if the host waited for each kernel before the next launch, without the overhead of waiting."""
        return self.host_s + self.device_s


def queue_of(path: Path) -> Queue:
    """Return the queue of a trace. Raises FileFormatError for a file that is not a trace, ChronogradError for one without
    kernels and their launches.
    """
    events = events_of(path)
    launches = {e.correlation: e for e in events.calls if e.correlation is not None and "aunch" in e.name}
    pairs = [(launches[k.correlation], k) for k in events.kernels if k.correlation in launches]
    if len(pairs) < 2:
        raise ChronogradError(
            f"{path} has {how_many(len(pairs), 'kernels')} with their launches", "give a trace of a GPU's work"
        )
    begin = min(launch.start for launch, _ in pairs)
    end = max(kernel.end for _, kernel in pairs)
    last_launch = max(launch.end for launch, _ in pairs)
    loading = Intervals.union([(e.start, e.end) for e in events.on_host if e.name.startswith("enumerate(DataLoader)")])
    waiting = loading | Intervals.union([(e.start, e.end) for e in events.calls if is_waiting(e.name)])
    busy = Intervals.union([(kernel.start, kernel.end) for _, kernel in pairs])

    def within(intervals: Intervals, high: float) -> float:
        return float(intervals.within(np.array([begin]), np.array([high]))[0])

    # Loading while kernels run costs no time.
    idle_loading_s = within(loading | busy, end) - within(busy, end)
    return Queue(
        name=path.name,
        kernels=len(pairs),
        host_s=(last_launch - begin - within(waiting, last_launch)) / 1e6,
        device_s=within(busy, end) / 1e6,
        together_s=(end - begin - idle_loading_s) / 1e6,
        delay_s=float(np.median([max(0.0, kernel.start - launch.end) for launch, kernel in pairs])) / 1e6,
    )
