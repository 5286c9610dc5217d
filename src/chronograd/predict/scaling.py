"""Several devices: gradient exchange during backward, ZeRO, and waits for the slowest rank and for input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link
from chronograd.job import Cluster
from chronograd.predict.collectives import Amount, Topology, all_reduce_s, broadcast
from chronograd.predict.derived import derived
from chronograd.record import normal_quantile
from chronograd.trace import KINDS, PHASES, Trace

# As in PyTorch's DistributedDataParallel: a small first bucket, so that communication starts early, then 25 MiB.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
# Spread of a GPU's steps in a group, without measurements: the additional time of published steps of 8 GPUs in one machine,
# converted with z below. Sources: TensorFlow's performance page (2017; no AlexNet, no VGG) and NVIDIA's DeepLearningExamples.
# The median of 16 rows is 0.05, that of five machines 0.06: DGX-1 with P100 0.01 and with V100 0.06, eight K80 0.05 and 0.06,
# DGX A100 0.07.
USUAL_STEP_SIGMA_LOG = 0.05
# DataParallel: time for each tensor of each replica, and for each operator of forward in threads that share an interpreter.
# Measured by benchmarks/data_parallel.py: the minimum of resnet20 and resnet56 in 2 and 4 replicas, on the Xeon and with the
# PyTorch of benchmarks/results/data_parallel.json.
REPLICA_TENSOR_S = 36e-6
REPLICA_OPERATOR_S = 39e-6
_ROUNDING = 1e-9  # share of the whole: the difference of two sums of the same times can be this large by rounding


@dataclass(frozen=True)
class Bucket:
    """Gradients exchanged together: start, in seconds from the start of backward, and duration."""

    size_bytes: int
    start_s: Amount
    seconds: Amount


@dataclass(frozen=True)
class Communication:
    """Seconds of one step's gradient exchange; `exposed_s` is the part that is not hidden behind backward.

    Arrays if the topology's number of ranks is an array.
    """

    total_s: Amount = 0.0
    exposed_s: Amount = 0.0
    buckets: tuple[Bucket, ...] = field(default=(), repr=False)

    @property
    def overlapped_s(self) -> Amount:
        return less(self.total_s, self.exposed_s)

    @property
    def num_buckets(self) -> int:
        return len(self.buckets)

    @property
    def message_bytes(self) -> int:
        return sum(bucket.size_bytes for bucket in self.buckets)


@dataclass(frozen=True)
class Packing:
    """The packing of gradients into messages.

    Attributes:
        bucket_bytes: gradients exchanged together; see `buckets`.
        sent_share: share of their bytes that is sent, with compression.
    """

    bucket_bytes: int | None = None
    sent_share: float = 1.0


def buckets(trace: Trace, bucket_bytes: int | None = None) -> list[tuple[int, int]]:
    """Return (bytes, id of the operator that completes it) of each bucket, in the order gradients become ready.

    Without `bucket_bytes`, the first bucket has 1 MiB, and the others 25 MiB each.
    """
    ready = sorted((s.birth, s.bytes.const) for s in trace.storages if s.role == "gradient")
    found: list[tuple[int, int]] = []
    size, cap = 0, bucket_bytes or FIRST_BUCKET_BYTES
    for birth, gradient_bytes in ready:
        size += gradient_bytes
        if size >= cap:
            found.append((size, birth))
            size, cap = 0, bucket_bytes or BUCKET_BYTES
    if size:
        found.append((size, ready[-1][0]))
    return found


def exchange(
    trace: Trace,
    times: np.ndarray,
    backward_s: Amount,
    topology: Topology,
    algorithm: str,
    overlap: float = 1.0,
    packing: Packing = Packing(),
    rest_s: Amount = np.inf,
) -> Communication:
    """Return the gradient exchange of one step: each bucket waits for its last gradient and for the bucket before it.

    Args:
        times: seconds of each operator, scaled to `backward_s`, the whole backward pass. For several batches they have the
            shapes (batches, 1, operators) and (batches, 1), and results the shape (batches, numbers of ranks).
        overlap: share of the communication within a node that can run at the same time as backward, 0 to 1; see `slowed_by`.
        rest_s: time between the end of backward and the start of the next, in which a link recovers its burst.
    """
    parts = derived(trace, ("buckets", packing.bucket_bytes), lambda: buckets(trace, packing.bucket_bytes))
    if not parts or np.max(topology.num_ranks) == 1:
        return Communication()
    is_backward = trace.columns["phase"] == PHASES.index("backward")
    elapsed = np.cumsum(np.where(is_backward, times, 0.0), axis=-1)
    share = elapsed / np.maximum(elapsed[..., -1:], 1e-30)
    found: list[Bucket] = []
    total: Amount = 0.0
    now: Amount = 0.0  # time at which the link is free; `done` is the part of backward done by then
    done: Amount = 0.0
    credit: Amount = 0.0
    full, latency_s = burst_s(topology), all_reduce_s(algorithm, 0.0, topology)
    for size, after in parts:
        ready = share[..., min(after, len(is_backward) - 1)] * backward_s
        idle = np.maximum(ready - done, 0.0)
        start, done = now + idle, done + idle
        credit = np.minimum(full, credit + (idle if found else idle + rest_s))
        whole = all_reduce_s(algorithm, packing.sent_share * size, topology)
        at_once = np.minimum(credit, whole - latency_s)
        seconds, credit = whole - at_once, credit - at_once
        slowed = slowed_by(algorithm, packing.sent_share * size, topology, overlap, seconds)
        done = np.minimum(done + (1 - slowed) * seconds, backward_s)
        now = start + seconds
        found.append(Bucket(size, start, seconds))
        total = total + seconds
    exposed = np.maximum(now + (backward_s - done) - backward_s, 0.0)
    if not np.ndim(total):
        total, exposed = float(total), float(exposed)
    return Communication(total, exposed, tuple(found))


def slowed_by(algorithm: str, message_bytes: Amount, topology: Topology, overlap: float, seconds: Amount) -> Amount:
    """Return the share of backward's speed that an all-reduce of `seconds` costs, 0 to 1.

    Within a node of CPUs it costs all of it, because the same cores do the work (`overlap` 0). Between nodes the work is that
    of the same message within a node, spread over the time of the transfer. The rest of that time is waiting for the network.
    """
    if overlap == 1:
        return 0.0
    within = all_reduce_s(algorithm, message_bytes, replace(topology, per_node=int(np.max(topology.num_ranks))))
    return (1 - overlap) * np.minimum(within / np.maximum(seconds, 1e-30), 1.0)


def upkeep_s(
    trace: Trace, tensor_s: float | None, topology: Topology, meeting_s: float | None = None, num_buckets: int = 0
) -> Amount:
    """Return the time of DistributedDataParallel in a step in addition to its all-reduces, which nothing hides.

    Rank 0's buffers are broadcast before forward. Each gradient and each buffer is copied to a message and back.

    Args:
        tensor_s: calibrated time of each of those tensors; None if it was never measured, and then the result is 0.
        meeting_s: time of each of `num_buckets` and of the broadcast, for ranks that synchronise after computing; None if only
            tensors were measured.
    """
    if tensor_s is None or np.max(topology.num_ranks) == 1:
        return 0.0
    sizes = [trace.storages[tensor.storage].bytes.const for tensor in trace.buffers().values()]
    num_gradients = sum(storage.role == "gradient" for storage in trace.storages)
    copied_s = tensor_s * (num_gradients + len(sizes)) * (np.asarray(topology.num_ranks) > 1)
    met_s = (meeting_s or 0.0) * (num_buckets + bool(sizes)) * (np.asarray(topology.num_ranks) > 1)
    return copied_s + met_s + (buffers_s(sum(sizes), topology) if sizes else 0.0)


def replicas_s(trace: Trace, num_ranks: Amount, forward_s: Amount) -> Amount:
    """Return the time that the process of torch.nn.DataParallel needs for its replicas in a step, which nothing hides.

    Each parameter and each buffer is copied into each replica, and in training its gradient comes back. Threads that share one
    interpreter issue forward of all replicas; the time beyond forward on one device counts. Copies between devices belong to
    the exchange, in inference to `replicated_s`. Left out: CPUs other than the measured one.
    """
    num_trained = sum(storage.role == "gradient" for storage in trace.storages)
    num_tensors = (num_trained if trace.mode == "training" else len(trace.parameters())) + len(trace.buffers())
    is_forward = trace.columns["phase"] == PHASES.index("forward")
    num_operators = int(np.count_nonzero(is_forward & (trace.columns["kind"] != KINDS.index("view"))))
    ranks = np.asarray(num_ranks)
    issued_s = REPLICA_OPERATOR_S * num_operators * ranks
    whole_s = REPLICA_TENSOR_S * num_tensors * ranks + np.maximum(issued_s - forward_s, 0.0)
    return np.where(ranks > 1, whole_s, 0.0)


def replicated_s(trace: Trace, topology: Topology) -> Amount:
    """Return the time to copy all parameters to the replicas of torch.nn.DataParallel: the half of its exchange before forward.

    Left out, as in training: buffers, and the samples and outputs that cross between devices.
    """
    size = sum(trace.storages[tensor.storage].bytes.const for tensor in trace.parameters().values())
    return all_reduce_s("reduce_to_one", size, topology) / 2


def buffers_s(num_bytes: int, topology: Topology) -> Amount:
    """Return the time to broadcast buffers: one message for each of two number types, statistics and counters."""
    links = (topology.inter, topology.intra)
    far, near = (
        2 * broadcast(num_bytes / 2, topology.num_ranks, link.latency_s, link.bandwidth_bytes_per_s) for link in links
    )
    return np.where(topology.num_nodes > 1, far, near)


def burst_s(topology: Topology) -> Amount:
    """Return the burst that the slowest link has saved after a long rest, in seconds at its rate; see `Link.burst_bytes`."""
    far, near = (link.burst_bytes / link.bandwidth_bytes_per_s for link in (topology.inter, topology.intra))
    return np.where(topology.num_nodes > 1, far, near)


def topology_of(
    device: Device, count: int, per_node: int | None = None, inter: str | None = None, intra: Link | str | None = None
) -> Topology:
    """Return the topology of `count` devices, by default with the device's usual node and links.

    If no link between nodes is named, all ranks on the CPU of this machine are on this machine, however few cores it has.

    Raises: NotFoundError for an unknown link.
    """
    node = device.node
    if is_this_processor(device) and inter is None:
        per_node = per_node or int(np.max(count))
    within, between = (
        catalog.link(x) if isinstance(x, str) else x for x in (intra or node.intra_link, inter or node.inter_link)
    )
    # A link that the job names counts as that of the whole machine.
    across = catalog.link(node.group_link) if node.group_link and not intra else None
    return Topology(
        count, per_node or node.devices_per_node, within, between, node.per_group if across else None, across
    )


def is_this_processor(device: Device) -> bool:
    """Return whether a device is the CPU of this machine, as `calibrate` measured it."""
    return device.name == "local" and device.kind == "cpu"


def crowding(device: Device, cluster: Cluster, topology: Topology) -> Amount:
    """Return the threads of ranks per core of this machine's CPU, at least 1: the factor by which work takes longer."""
    if not is_this_processor(device):
        return 1.0
    on_node = np.asarray(topology.on_node)
    each = np.vectorize(cluster.threads_per_rank, otypes=[int])(device.num_units, on_node)
    return np.asarray(np.maximum(on_node * each / device.num_units, 1.0))


def less(whole_s: Amount, part_s: Amount) -> Amount:
    """Return whole minus part in seconds, or 0 if the difference, of either sign, is as small as a rounding error.

    >>> less(0.3, 0.1 + 0.2), less(0.3, 0.1)
    (0.0, 0.19999999999999998)
    """
    rest_s = np.asarray(whole_s - part_s)
    rest_s = np.where(rest_s > _ROUNDING * np.asarray(whole_s), rest_s, 0.0)
    return rest_s if rest_s.ndim else float(rest_s)


def straggler_wait_s(step_s: Amount, num_ranks: Amount, sigma_log: float) -> Amount:
    """Return the expected wait for the slowest of n ranks whose step times vary independently, log-normal with `sigma_log`.

    t·(exp(σ·z) - 1) with z = Φ⁻¹((n - 0.375) / (n + 0.25)), the expected maximum of n standard normals. `step_s` is a typical
    (median) step of one rank. Left out: ranks that are permanently slow, or slow together.

    Source: Blom, "Statistical estimates and transformed beta-variables", 1958.

    >>> straggler_wait_s(1.0, 1, 0.1), round(straggler_wait_s(1.0, 64, 0.1), 3)
    (0.0, 0.263)
    """
    largest = normal_quantile((num_ranks - 0.375) / (num_ranks + 0.25))
    wait = step_s * np.expm1(sigma_log * largest)
    return wait if np.ndim(wait) else float(wait)


def input_stall_s(step_s: Amount, samples_per_node: Amount, input_samples_per_s: float | None) -> Amount:
    """Return how long a step waits for its batch, which is loaded in the background during the previous step.

    max(0, samples / rate - step): the step lasts max(step, input). Without a rate nothing stalls.

    >>> input_stall_s(0.1, 512, 2560.0), input_stall_s(0.1, 512, None)
    (0.1, 0.0)
    """
    if input_samples_per_s is None:
        return 0.0 * step_s
    stall = np.maximum(samples_per_node / input_samples_per_s - step_s, 0.0)
    return stall if np.ndim(stall) else float(stall)


def traffic_factor(stage: int) -> float:
    """Return the bytes that a stage of ZeRO moves per step over those of an all-reduce. `memory` describes what stages store.

    Stages 0 to 2 move the bytes of an all-reduce: a reduce-scatter of gradients and an all-gather of parameters (or of summed
    gradients). Stage 3 gathers parameters twice, for forward and for backward.

    Source: Rajbhandari et al. 2020, ZeRO, section 7.

    >>> traffic_factor(2), traffic_factor(3)
    (1.0, 1.5)
    """
    return 1.5 if stage == 3 else 1.0


def gather_exposed_s(stage: int, exchange_s: Amount, forward_s: Amount, overlap: float) -> Amount:
    """Return the time that stage 3's all-gather in forward adds to a step: half an all-reduce, less the part hidden by forward.

    The other two thirds of its traffic run in backward and are hidden there like an all-reduce.

    Args:
        exchange_s: seconds of all all-reduces of a step.
        overlap: share of it that can run at the same time as forward, 0 to 1.

    >>> gather_exposed_s(3, 4.0, 1.5, 1.0), gather_exposed_s(2, 4.0, 1.5, 1.0)
    (0.5, 0.0)
    """
    gather_s = exchange_s * (traffic_factor(stage) - 1.0)
    excess = gather_s - forward_s
    hidden = gather_s - excess * (excess > 0)
    return gather_s - overlap * hidden
