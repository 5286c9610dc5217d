"""Data parallelism: gradients go out in buckets while backward still runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.hardware.catalog import Device, Link
from chronograd.predict.collectives import Collective
from chronograd.trace import PHASES, Trace

# Of PyTorch's DistributedDataParallel: a small first bucket, so that communication starts early, then 25 MiB.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Communication:
    """Seconds of one step's gradient exchange, of which `exposed_s` is not hidden behind backward."""

    total_s: float
    exposed_s: float
    num_buckets: int
    message_bytes: int

    @property
    def overlapped_s(self) -> float:
        return self.total_s - self.exposed_s


def buckets(trace: Trace) -> list[tuple[int, int]]:
    """(bytes, operator id after which it is complete) of each bucket, in the order gradients become ready."""
    ready = sorted((s.birth, s.bytes.const) for s in trace.storages if s.role == "gradient")
    found: list[tuple[int, int]] = []
    size, cap = 0, FIRST_BUCKET_BYTES
    for birth, gradient_bytes in ready:
        size += gradient_bytes
        if size >= cap:
            found.append((size, birth))
            size, cap = 0, BUCKET_BYTES
    if size:
        found.append((size, ready[-1][0]))
    return found


def exchange(
    trace: Trace,
    times: np.ndarray,
    backward_s: float,
    num_ranks: int,
    link: Link,
    algorithm: Collective,
    overlap: float,
) -> Communication:
    """The gradient exchange of one step.

    Args:
        times: seconds of each operator; `backward_s` the whole backward pass, to which they are scaled.
        overlap: share of the communication that may run at the same time as backward, 0 to 1.

    Each bucket waits for its last gradient and for the bucket before it.
    """
    parts = buckets(trace)
    if num_ranks == 1 or not parts:
        return Communication(0.0, 0.0, 0, 0)
    is_backward = trace.columns["phase"] == PHASES.index("backward")
    elapsed = np.cumsum(np.where(is_backward, times, 0.0))
    elapsed *= backward_s / max(float(elapsed[-1]), 1e-30)
    total = free_at = 0.0
    for size, after in parts:
        seconds = algorithm(size, num_ranks, link.latency_s, link.bandwidth_bytes_per_s)
        total += seconds
        free_at = max(free_at, float(elapsed[min(after, len(elapsed) - 1)])) + seconds
    exposed_at_best = max(0.0, free_at - backward_s)
    exposed = total - overlap * (total - exposed_at_best)
    return Communication(total, exposed, len(parts), sum(size for size, _ in parts))


def tier(device: Device, count: int, per_node: int | None) -> tuple[int, str]:
    """Number of nodes, and the name of the slowest link that a collective over `count` devices crosses."""
    on_node = per_node or device.node.devices_per_node
    nodes = -(-count // on_node)
    return nodes, device.node.inter_link if nodes > 1 else device.node.intra_link
