"""The queue between a host and its device in a trace: what each takes by itself, and both together.

A host asks for kernels ahead of the device, which takes them from its queue. Together they take as long as the slower of the two;
did the host wait for each kernel before it asked for the next, both would add up.
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
    """Seconds of one trace, from its first launch to the last end of a kernel, less loading of batches.

    Attributes:
        host_s: of asking for kernels: the time of the launches less what the host waited for the device or for a batch.
        device_s: in which kernels ran. `together_s`: of both.
        delay_s: median time that a kernel waits in the queue, from the end of its launch to its start; 0 where the device waits.
        kernels: how many have a launch in the trace.
    """

    name: str
    kernels: int
    host_s: float
    device_s: float
    together_s: float
    delay_s: float

    @property
    def one_by_one_s(self) -> float:
        """Did the host wait for each kernel before it asks for the next, without what the waiting itself takes."""
        return self.host_s + self.device_s


def queue_of(path: Path) -> Queue:
    """Raises FileFormatError for what is no trace, ChronogradError for one without kernels and their launches."""
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

    # What is loaded while kernels run takes nobody's time.
    idle_loading_s = within(loading | busy, end) - within(busy, end)
    return Queue(
        name=path.name,
        kernels=len(pairs),
        host_s=(last_launch - begin - within(waiting, last_launch)) / 1e6,
        device_s=within(busy, end) / 1e6,
        together_s=(end - begin - idle_loading_s) / 1e6,
        delay_s=float(np.median([max(0.0, kernel.start - launch.end) for launch, kernel in pairs])) / 1e6,
    )
