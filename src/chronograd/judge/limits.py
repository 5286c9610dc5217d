"""The limit for any software: the least time of a step, from counted FLOPs and bytes and a device's data sheet.

    least = Σ over operators of max(FLOPs / (peak · saved), (bytes - cache) / bandwidth)

Operators run one after the other. `saved` is the reduction of multiplications: Winograd's form of a 3×3 convolution, with tiles
of four by four, needs a quarter of them. Larger convolutions may use a Fourier transform, and are not counted at all. Bytes are
those of a compiled network, in which one pass does all work between two matrix operators. Each operator may find up to a full
cache of its bytes in the cache. Vector arithmetic is not counted.

Source: Lavin & Gray 2015, Fast algorithms for convolutional neural networks, F(4×4, 3×3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.hardware.catalog import Device
from chronograd.predict.compute import at_batch
from chronograd.predict.traffic import traffic
from chronograd.trace import KINDS, Trace
from chronograd.units import FLOPS_PER_MAC

WINOGRAD = 4.0
# Well-cooled desktop cards exceed the clock of their data sheet: a GTX 1080 Ti is sold with 1.58 GHz and reaches about 1.9. The
# data sheet of a server card states its maximum.
CLOCK_OF_DESKTOP = 1.2
_FEWER = {"conv_3x3": WINOGRAD, "conv_kxk": np.inf}


@dataclass(frozen=True)
class Limit:
    """The limit of one device and its share of a batch.

    Attributes:
        flops_per_sample: FLOPs of matrix work, as counted. `bytes_per_sample`: bytes that have to move.
        least_s: the least time of a step; `flops_s` and `bytes_s` are its parts, each without the other.
        peak_flops_per_s, bandwidth_bytes_per_s: values of the data sheet.
    """

    flops_per_sample: float
    bytes_per_sample: float
    least_s: float
    flops_s: float
    bytes_s: float
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float


def limit_of(trace: Trace, batch: int, device: Device, precision: str) -> Limit:
    """Return the limit of a step with `batch` samples on one device. Raises InputError if the device lacks the precision."""
    peak, bandwidth = device.peak(precision), device.bandwidth_bytes_per_s  # type: ignore[arg-type]
    kinds = trace.columns["kind"]
    fewer = np.array([_FEWER.get(name, 1.0) for name in KINDS])[kinds]
    flops = FLOPS_PER_MAC * at_batch(trace.columns["macs"], batch)
    moved = np.maximum(0.0, at_batch(traffic(trace, precision, is_compiled=True).moved, batch) - device.l2_bytes)
    clock = CLOCK_OF_DESKTOP if device.is_desktop else 1.0
    flops_s, bytes_s = flops / fewer / (clock * peak), moved / bandwidth
    return Limit(
        trace.flops(batch) / batch,
        float(moved.sum()) / batch,
        float(np.maximum(flops_s, bytes_s).sum()),
        float(flops_s.sum()),
        float(bytes_s.sum()),
        peak,
        bandwidth,
    )
