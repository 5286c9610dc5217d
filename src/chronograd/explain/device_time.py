"""Device time in a trace, from the union of its events: computation, communication, copies, and idle time by host activity.

A device's span goes from the first start to the last end of its kernels, copies and sets. In it

    computation             kernels that are not communication
    exposed communication   collectives and sends, minus computation
    exposed copies          copies and sets of memory, minus both
    idle                    the rest

These add up to the span. Idle time counts as input while the host waits for a batch. It counts as synchronisation if the host
was waiting for the device when the device ran out of work. In the rest the host was launching work, or doing something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.explain.intervals import Intervals

# Kernel names of NCCL and RCCL, and of serving engines and mixtures of experts.
_COMMUNICATION = re.compile(
    r"nccl|rccl|(?<!sm)all_?reduce|(?<!sm)all_?gather|reduce_?scatter|all_?to_?all|all2all|cross_device_reduce"
    r"|send_?recv|\bep_?(dispatch|combine)|deep_?ep\b|(intra|inter)node(_ll)?::|(?<![a-z])a2a|nvshmem",
    re.IGNORECASE,
)
_GRADIENTS = re.compile(r"all_?reduce|reduce_?scatter", re.IGNORECASE)
# Calls in which the host waits for the device: …Synchronize, and copies that are not asynchronous.
_WAITING = re.compile(r"Synchronize$|^(cuda|hip)Memcpy(WithStream|2D|3D|DtoH.*|HtoD.*)?$|^cuMemcpy(DtoH|HtoD).*[^c]$")
MAX_KERNELS = 5


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of a device's span, and the kernels with the most time in it.

    Attributes:
        communication_s, copies_s: including the part hidden behind computation.
        input_s, synchronizing_s, launching_s: idle, by host activity.
        kernels: names with their seconds, largest first; overlapping ones count twice.
        exchanges_gradients: whether most of the communication is all-reduces or reduce-scatters.
    """

    name: str
    span_s: float
    computation_s: float
    communication_s: float
    exposed_s: float
    copies_s: float
    exposed_copies_s: float
    input_s: float
    synchronizing_s: float
    launching_s: float
    kernels: tuple[tuple[str, float], ...]
    exchanges_gradients: bool

    @property
    def idle_s(self) -> float:
        return self.input_s + self.synchronizing_s + self.launching_s

    @property
    def busy_s(self) -> float:
        return self.computation_s + self.exposed_s + self.exposed_copies_s

    def share(self, part_s: float) -> float:
        return part_s / self.span_s if self.span_s > 0 else 0.0

    def rows(self) -> list[tuple[str, float]]:
        """Return the parts of the span with their seconds, in display order; indented parts belong to the part above."""
        return [
            ("busy", self.busy_s),
            ("  computation", self.computation_s),
            ("  exposed communication", self.exposed_s),
            ("  exposed copies", self.exposed_copies_s),
            ("idle", self.idle_s),
            ("  waiting for input", self.input_s),
            ("  after synchronisation", self.synchronizing_s),
            ("  while the host launches", self.launching_s),
            ("all communication", self.communication_s),
            ("all copies", self.copies_s),
        ]

    def as_data(self) -> dict[str, Any]:
        """Return the seconds of the span, and shares of it, 0 to 1."""
        parts = {
            "busy": self.busy_s,
            "computation": self.computation_s,
            "communication": self.communication_s,
            "exposed_communication": self.exposed_s,
            "copies": self.copies_s,
            "exposed_copies": self.exposed_copies_s,
            "idle": self.idle_s,
            "idle_input": self.input_s,
            "idle_synchronizing": self.synchronizing_s,
            "idle_launching": self.launching_s,
        }
        kernels = [{"name": name, "seconds": seconds} for name, seconds in self.kernels]
        shares = {name: self.share(part_s) for name, part_s in parts.items()}
        return {"name": self.name, "span_s": self.span_s, "shares": shares, "kernels": kernels}


@dataclass(frozen=True)
class Activity:
    """The activity of one device, and the host's waits during it; microseconds."""

    computing: Intervals
    communicating: Intervals
    copying: Intervals
    inputs: Intervals
    waits: Intervals

    @property
    def busy(self) -> Intervals:
        return self.computing | self.communicating | self.copying

    @property
    def span(self) -> tuple[float, float]:
        busy = self.busy
        return float(busy.starts[0]), float(busy.ends[-1])

    def parts(self, lows: np.ndarray, highs: np.ndarray) -> dict[str, np.ndarray]:
        """Return computation, exposed communication, copies, and idle time by host activity, for each window; they add up."""
        computing, busy = self.computing, self.busy
        exchanged = computing | self.communicating
        gaps = busy.gaps()
        dry = gaps.where(self.waits.hold(gaps.starts))
        fed = busy | self.inputs
        waited = fed | dry

        def length(one: Intervals) -> np.ndarray:
            return one.within(lows, highs)

        return {
            "computation": length(computing),
            "exposed": length(exchanged) - length(computing),
            "copies": length(busy) - length(exchanged),
            "input": length(fed) - length(busy),
            "synchronizing": length(waited) - length(fed),
            "launching": (highs - lows) - length(waited),
        }


def is_communication(name: str) -> bool:
    """Return whether a kernel communicates between devices.

    >>> is_communication("ncclDevKernel_AllReduce_Sum_f32"), is_communication("void splitKreduce_kernel<float>")
    (True, False)
    """
    return _COMMUNICATION.search(name) is not None


def is_waiting(name: str) -> bool:
    """Return whether the host waits for the device in this runtime call.

    >>> is_waiting("cudaStreamSynchronize"), is_waiting("cudaMemcpyAsync"), is_waiting("hipMemcpyWithStream")
    (True, False, True)
    """
    return _WAITING.search(name) is not None


def device_time(name: str, activity: Activity, kernels: Sequence[tuple[str, float]]) -> DeviceTime:
    """Return the time of one device by part, with the names and microseconds of its kernels."""
    low, high = (np.array([edge]) for edge in activity.span)
    parts_s = {part: float(value[0]) / 1e6 for part, value in activity.parts(low, high).items()}
    totals: dict[str, float] = {}
    for kernel, length in kernels:
        totals[kernel] = totals.get(kernel, 0.0) + length / 1e6
    dearest = sorted(totals.items(), key=lambda item: -item[1])[:MAX_KERNELS]
    exchanged = {kernel: total for kernel, total in totals.items() if is_communication(kernel)}
    gradients_s = sum(total for kernel, total in exchanged.items() if _GRADIENTS.search(kernel))
    return DeviceTime(
        name=name,
        span_s=float(high[0] - low[0]) / 1e6,
        computation_s=parts_s["computation"],
        communication_s=float(activity.communicating.within(low, high)[0]) / 1e6,
        exposed_s=parts_s["exposed"],
        copies_s=float(activity.copying.within(low, high)[0]) / 1e6,
        exposed_copies_s=parts_s["copies"],
        input_s=parts_s["input"],
        synchronizing_s=parts_s["synchronizing"],
        launching_s=parts_s["launching"],
        kernels=tuple(dearest),
        exchanges_gradients=bool(exchanged) and gradients_s >= 0.5 * sum(exchanged.values()),
    )
