"""Clocks around each layer of a forward pass, around the whole pass, and around matrix products alone.

A pass is cut at the start and end of every layer. Each stretch belongs to its innermost layer, so the stretches of a pass add
up to it. The overhead of the hooks is part of the stretches.

Source: Z. Lu, S. Rallapalli, K. Chan, T. La Porta, Modeling the resource requirements of convolutional neural networks on
mobile devices, 2017. A GPU works behind the host, so timing a layer requires waiting for the device, and waiting removes the
overlap of the queue. Their section 5 times the matrix products alone instead.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from chronograd.measure.layer_times import OUTSIDE, LayerTiming, Product
from chronograd.measure.steps import clock

# A layer: the path of its module, and the number of its call in a pass, from 0.
Key = tuple[str, int]
Forward = Callable[[], object]
# Number of passes in the queue together, to time one among others.
QUEUED = 2
# Time for repeating a product in seconds, maximum number of repeats, number of loops; and maximum bytes of its operands.
_LOOP_S = 0.02
_MAX_LOOPS = 200
_LOOPS_TIMED = 3
_MAX_OPERAND_BYTES = 2**30


class _HostClock:
    """Marks by the host's clock, with a wait for the device at each."""

    def __init__(self, device: torch.device) -> None:
        self._now, self._times = clock(device), [0.0]

    def begin(self) -> None:
        self._times = []

    def mark(self) -> None:
        self._times.append(self._now())

    def stretches_s(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self._times)]


class _DeviceClock:
    """Marks that a GPU passes in its queue, without a wait before the end of a pass. Events are reused."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._events, self._used = device, list[Any](), 0

    def begin(self) -> None:
        self._used = 0
        torch.cuda.synchronize(self._device)

    def mark(self) -> None:
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[self._used].record()
        self._used += 1

    def stretches_s(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        used = self._events[: self._used]
        return [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(used)]


@dataclass
class _Cuts:
    """Marks of a running pass, and the layer of each stretch between two of them."""

    mark: Callable[[], None]
    owners: list[Key] = field(default_factory=list)
    inside: list[Key] = field(default_factory=lambda: [(OUTSIDE, 0)])
    calls: Counter[str] = field(default_factory=Counter)

    def cut(self) -> None:
        self.mark()
        self.owners.append(self.inside[-1])

    def enter(self, name: str) -> None:
        self.cut()
        self.inside.append((name, self.calls[name]))
        self.calls[name] += 1

    def leave(self) -> None:
        self.cut()
        self.inside.pop()


@contextmanager
def _hooked(layers: Mapping[str, nn.Module], cuts: _Cuts) -> Iterator[None]:
    def entering(name: str) -> Callable[..., None]:
        return lambda *_: cuts.enter(name)

    handles = []
    for name, module in layers.items():
        handles.append(module.register_forward_pre_hook(entering(name)))
        handles.append(module.register_forward_hook(lambda *_: cuts.leave()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _seconds_by_layer(
    forward: Forward, layers: Mapping[str, nn.Module], timer: _HostClock | _DeviceClock
) -> dict[Key, float]:
    """Return the seconds of each layer in one pass."""
    cuts = _Cuts(timer.mark)
    with _hooked(layers, cuts):
        timer.begin()
        timer.mark()
        forward()
        cuts.cut()
    seconds: dict[Key, float] = defaultdict(float)
    for owner, stretch_s in zip(cuts.owners, timer.stretches_s(), strict=True):
        seconds[owner] += stretch_s
    return dict(seconds)


@dataclass(frozen=True)
class PassTimes:
    """Medians by layer, and of passes; see `layer_times.LayerTimes`."""

    synchronised_s: dict[Key, float]
    unsynchronised_s: dict[Key, float]
    synchronised: LayerTiming
    unsynchronised: LayerTiming
    whole: LayerTiming
    issued: LayerTiming
    queued: LayerTiming


def time_passes(
    forward: Forward, layers: Mapping[str, nn.Module], device: torch.device, repeats: int, warmup: int
) -> PassTimes:
    """Time a forward pass in four ways, alternating so that all of them see the same machine load.

    Args:
        forward: runs the network once. layers: its modules to time, by path.
        repeats, warmup: number of timed passes of each way, and of passes before them.
    """
    now = clock(device)
    host_clock = _HostClock(device)
    device_clock = _DeviceClock(device) if device.type == "cuda" else _HostClock(device)
    synchronised, unsynchronised = list[dict[Key, float]](), list[dict[Key, float]]()
    whole_s, issued_s, queued_s = list[float](), list[float](), list[float]()
    for number in range(warmup + repeats):
        start_s = now()
        forward()
        issue_s = time.perf_counter() - start_s
        pass_s = now() - start_s
        start_s = now()
        for _ in range(QUEUED):
            forward()
        one_queued_s = (now() - start_s) / QUEUED
        by_event = _seconds_by_layer(forward, layers, device_clock)
        by_host = _seconds_by_layer(forward, layers, host_clock)
        if number >= warmup:
            whole_s.append(pass_s)
            issued_s.append(issue_s)
            queued_s.append(one_queued_s)
            unsynchronised.append(by_event)
            synchronised.append(by_host)
    return PassTimes(
        _medians(synchronised),
        _medians(unsynchronised),
        timing([sum(one.values()) for one in synchronised]),
        timing([sum(one.values()) for one in unsynchronised]),
        timing(whole_s),
        timing(issued_s),
        timing(queued_s),
    )


def _medians(passes: list[dict[Key, float]]) -> dict[Key, float]:
    keys = dict.fromkeys(key for one in passes for key in one)
    return {key: statistics.median(one.get(key, 0.0) for one in passes) for key in keys}


def timing(values_s: Iterable[float]) -> LayerTiming:
    low, median, high = np.quantile(list(values_s), (0.1, 0.5, 0.9)).tolist()
    return LayerTiming(median=median, low=low, high=high)


def product_seconds(product: Product, device: torch.device, dtype: torch.dtype) -> float:
    """Return the seconds of a matrix product alone: the median of several loops, each with one wait at its end.

    If the columns of a whole batch would take more than a GiB, only the columns that fit are multiplied, and the time is
    scaled. Operands that fit a cache are read from it, because every repeat uses the same ones.
    """
    element_bytes = torch.empty((), dtype=dtype).element_size()
    room = _MAX_OPERAND_BYTES // (element_bytes * product.groups) - product.m * product.k
    n = max(1, min(product.n, room // (product.k + product.m)))
    left = torch.randn(product.groups, product.m, product.k, device=device).to(dtype)
    right = torch.randn(product.groups, product.k, n, device=device).to(dtype)
    out = torch.empty(product.groups, product.m, n, device=device, dtype=dtype)
    multiply: Callable[..., Any] = torch.bmm
    if product.groups == 1:
        multiply, left, right, out = torch.mm, left[0], right[0], out[0]
    now = clock(device)

    def loop_s(times: int) -> float:
        start_s = now()
        for _ in range(times):
            multiply(left, right, out=out)
        return now() - start_s

    with torch.inference_mode():
        loop_s(2)  # the first call allocates workspaces and selects a kernel
        times = max(1, min(_MAX_LOOPS, round(_LOOP_S / max(loop_s(2) / 2, 1e-7))))
        once_s = statistics.median(loop_s(times) / times for _ in range(_LOOPS_TIMED))
    return once_s * product.n / n
