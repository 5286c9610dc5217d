"""Collective times from latency and bandwidth: the α–β model.

n ranks, S bytes on each, α seconds per message, B bytes per second in one direction. Sizes, ranks, latencies and bandwidths are
numbers or NumPy arrays, which broadcast. Left out: the arithmetic of the reduction, contention between unrelated messages, and
changes of protocol with size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware.catalog import Link

Amount: TypeAlias = Any
"""A number, or an array of them; the result is then an array as well."""


def ring(message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount) -> Amount:
    """Return 2(n - 1)·α + 2(n - 1)/n · S/B: a reduce-scatter and an all-gather of n - 1 steps, S/n bytes each.

    Source: Patarasuk and Yuan 2009.

    >>> ring(1e9, 4, 0.0, 1e9), ring(1e9, np.array([1, 2]), 0.0, 1e9).tolist()
    (1.5, [0.0, 1.0])
    """
    return 2 * reduce_scatter(message_bytes, num_ranks, latency_s, bandwidth_bytes_per_s)


def tree(message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount) -> Amount:
    """Return 2⌈log2 n⌉ · (α + S/B): reduce to a root along a binary tree, broadcast back.

    >>> tree(1e9, 8, 0.0, 1e9)
    6.0
    """
    return 2 * broadcast(message_bytes, num_ranks, latency_s, bandwidth_bytes_per_s)


def halving_doubling(
    message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount
) -> Amount:
    """Return 2⌈log2 n⌉·α + 2(n - 1)/n · S/B: recursive halving, then doubling (Rabenseifner).

    >>> halving_doubling(1e9, 4, 0.5, 1e9)
    3.5
    """
    n = _ranks(num_ranks)
    return 2 * _levels(n) * latency_s + 2 * (n - 1) / n * message_bytes / bandwidth_bytes_per_s


def recursive_doubling(
    message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount
) -> Amount:
    """Return ⌈log2 n⌉ · (α + S/B): ranks exchange whole messages with ever more distant partners. PALEO's butterfly.

    >>> recursive_doubling(1e9, 8, 0.0, 1e9)
    3.0
    """
    return broadcast(message_bytes, num_ranks, latency_s, bandwidth_bytes_per_s)


def reduce_to_one(message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount) -> Amount:
    """Return 2(n - 1) · (α + S/B): all ranks send to one rank, one after the other, and receive the sum.

    Also a single parameter server: PALEO's one-to-all.

    >>> reduce_to_one(1e9, 4, 0.0, 1e9)
    6.0
    """
    return 2 * (_ranks(num_ranks) - 1) * (latency_s + message_bytes / bandwidth_bytes_per_s)


def hierarchical_copy(message_bytes: Amount, num_ranks: int, near: Link, across: Link) -> float:
    """Return 2(⌈n/2⌉ - 1) · (α + S/B) in both halves in parallel, plus 2(α + S/B) between their hubs.

    This is TensorFlow's HierarchicalCopyAllReduce. A hub of each half receives the copies of its half, one after the other. One
    hub sends its sum to the other and receives the total.

    Args:
        near: link in a half; `across`: between the hubs.
    Source: TensorFlow, tensorflow/python/distribute/cross_device_utils.py, aggregate_gradients_using_hierarchical_copy.

    >>> one = Link(name="one", title="1 GB/s", latency_s=0.0, bandwidth_bytes_per_s=1e9)
    >>> [hierarchical_copy(1e9, n, one, one) for n in (1, 2, 4, 8)]
    [0.0, 2.0, 4.0, 8.0]
    """
    if _ranks(num_ranks) == 1:
        return 0.0
    copies = -(-num_ranks // 2) - 1
    near_s, across_s = (link.latency_s + message_bytes / link.bandwidth_bytes_per_s for link in (near, across))
    return float(2 * (copies * near_s + across_s))


def reduce_scatter(
    message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount
) -> Amount:
    """Return (n - 1)·α + (n - 1)/n · S/B around a ring: rank i ends with the sum of the i-th of n parts.

    >>> reduce_scatter(1e9, 4, 0.5, 1e9)
    2.25
    """
    n = _ranks(num_ranks)
    return (n - 1) * latency_s + (n - 1) / n * message_bytes / bandwidth_bytes_per_s


def all_gather(message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount) -> Amount:
    """Return the time of an all-gather, equal to `reduce_scatter`; every rank contributes S/n and ends with S.

    >>> all_gather(1e9, 4, 0.5, 1e9)
    2.25
    """
    return reduce_scatter(message_bytes, num_ranks, latency_s, bandwidth_bytes_per_s)


def broadcast(message_bytes: Amount, num_ranks: Amount, latency_s: Amount, bandwidth_bytes_per_s: Amount) -> Amount:
    """Return ⌈log2 n⌉ · (α + S/B): from one rank to all along a binary tree. A reduction to one rank takes the same time.

    >>> broadcast(1e9, 5, 0.0, 1e9)
    3.0
    """
    return _levels(_ranks(num_ranks)) * (latency_s + message_bytes / bandwidth_bytes_per_s)


# Factors of α and 1/B in each collective of one tier: (message bytes, ranks) → (messages, bytes).
ALPHA_BETA: dict[str, Callable[[Amount, Amount], tuple[Amount, Amount]]] = {
    "all_reduce": lambda size, n: (2 * (n - 1), 2 * (n - 1) / n * size),
    "reduce_scatter": lambda size, n: (n - 1, (n - 1) / n * size),
    "all_gather": lambda size, n: (n - 1, (n - 1) / n * size),
    "broadcast": lambda size, n: (_levels(n), _levels(n) * size),
}


@dataclass(frozen=True)
class Topology:
    """Ranks in nodes: neighbours share a node, and all nodes but the last are full.

    Attributes:
        num_ranks: one number, or an array of them.
        per_node: ranks on a full node.
        intra: link between devices of a node; `inter`: between nodes.
        per_group: devices of a node that share a switch or a board, if not all do; `across`: link between such groups.

    >>> from chronograd.hardware.catalog import link
    >>> Topology(12, 8, link("nvlink2"), link("ethernet-25g")).num_nodes
    2
    """

    num_ranks: Amount
    per_node: int
    intra: Link
    inter: Link
    per_group: int | None = None
    across: Link | None = None

    @property
    def within(self) -> tuple[Amount, Amount]:
        """Return latency and bandwidth between the devices of the fullest node; of the slower link for several groups."""
        latency_s, bandwidth = self.intra.latency_s, self.intra.bandwidth_bytes_per_s
        if self.across is None or self.per_group is None:
            return latency_s, bandwidth
        crosses = self.on_node > self.per_group
        return (
            np.where(crosses, max(latency_s, self.across.latency_s), latency_s),
            np.where(crosses, min(bandwidth, self.across.bandwidth_bytes_per_s), bandwidth),
        )

    @property
    def tiers(self) -> tuple[tuple[Amount, Link], ...]:
        """Return the members and the link of each tier, nearest first: the ranks of a full group, the groups of a node, the nodes.

        Without groups, all ranks of a node are one group.
        """
        groups = -(-self.on_node // self.in_group)
        return (self.in_group, self.intra), (groups, self.across or self.intra), (self.num_nodes, self.inter)

    @property
    def in_group(self) -> Amount:
        """Return the ranks in the fullest group of a node."""
        return self.on_node if self.across is None else _at_most(self.on_node, self.per_group or self.per_node)

    @property
    def on_node(self) -> Amount:
        """Return the ranks on the fullest node."""
        return _at_most(self.num_ranks, self.per_node)

    @property
    def num_nodes(self) -> Amount:
        return -(-self.num_ranks // self.per_node)

    @property
    def slowest_link(self) -> Link:
        """Return the slowest link that a collective over all ranks crosses. `num_ranks` must be a number."""
        if self.num_nodes > 1:
            return self.inter
        return (
            self.across if self.across is not None and self.on_node > (self.per_group or self.on_node) else self.intra
        )

    def shared(self) -> Amount:
        """Return the bandwidth between nodes for each rank when all ranks of its node send at once."""
        return self.inter.bandwidth_bytes_per_s / (self.on_node if self.inter.per == "node" else 1)


def _ring(size: Amount, t: Topology) -> Amount:
    # In rank order the ring enters and leaves a node once, so each node's link carries one message at a time.
    is_far = t.num_nodes > 1
    near_s, near = t.within
    latency_s = np.where(is_far, np.maximum(t.inter.latency_s, near_s), near_s)
    return ring(size, t.num_ranks, latency_s, np.where(is_far, np.minimum(t.inter.bandwidth_bytes_per_s, near), near))


def _tree(size: Amount, t: Topology) -> Amount:
    # Within the groups first, then between one rank of each, then between one rank of each node.
    return sum(tree(size, n, link.latency_s, link.bandwidth_bytes_per_s) for n, link in t.tiers)


def _halving_doubling(size: Amount, t: Topology) -> Amount:
    # Nearest partners come first, so a rank has S/g bytes left for other groups, and less for other nodes.
    (near, intra), (groups, across), (nodes, inter) = t.tiers
    return (
        halving_doubling(size, near, intra.latency_s, intra.bandwidth_bytes_per_s)
        + halving_doubling(size / near, groups, across.latency_s, across.bandwidth_bytes_per_s)
        + halving_doubling(size / t.on_node, nodes, inter.latency_s, t.shared())
    )


def _recursive_doubling(size: Amount, t: Topology) -> Amount:
    *inside, (nodes, inter) = t.tiers
    between = recursive_doubling(size, nodes, inter.latency_s, t.shared())
    return between + sum(recursive_doubling(size, n, link.latency_s, link.bandwidth_bytes_per_s) for n, link in inside)


def _reduce_to_one(size: Amount, t: Topology) -> Amount:
    # Every device of the root's group, of another group and of another node sends separately over the link to the root.
    counts = (t.in_group, t.on_node - t.in_group + 1, t.num_ranks - t.on_node + 1)
    return sum(
        reduce_to_one(size, n, link.latency_s, link.bandwidth_bytes_per_s)
        for n, (_, link) in zip(counts, t.tiers, strict=True)
    )


def _hierarchical(size: Amount, t: Topology) -> Amount:
    """Return the time of reduce-scatter(S) in every node, all-reduce(S/g) between nodes, all-gather(S) in every node."""
    between = ring(size / t.on_node, t.num_nodes, t.inter.latency_s, t.shared())
    return _within(reduce_scatter, size, t) + between + _within(all_gather, size, t)


def _within(collective: Callable[..., Amount], size: Amount, t: Topology) -> Amount:
    return collective(size, t.on_node, *t.within)


# All-reduces of one tier: message bytes, ranks, latency, bandwidth. A hierarchy of one tier is a ring.
ALL_REDUCES: dict[str, Callable[[Amount, Amount, Amount, Amount], Amount]] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "recursive_doubling": recursive_doubling,
    "reduce_to_one": reduce_to_one,
    "hierarchical": ring,
}
_BY_TIERS: dict[str, Callable[[Amount, Topology], Amount]] = {
    "ring": _ring,
    "tree": _tree,
    "halving_doubling": _halving_doubling,
    "recursive_doubling": _recursive_doubling,
    "reduce_to_one": _reduce_to_one,
    "hierarchical": _hierarchical,
}
ALGORITHMS = tuple(ALL_REDUCES)
# Names in PALEO (Qi et al. 2017), and the other usual name of each.
ALIASES = {"one_to_all": "reduce_to_one", "parameter_server": "reduce_to_one", "butterfly": "recursive_doubling"}


def all_reduce_s(algorithm: str, message_bytes: Amount, topology: Topology) -> Amount:
    """Return the seconds of an all-reduce of `message_bytes` over the ranks of a topology, across its tiers.

    Within one node the algorithm's formula applies to the node's link. Between the groups of a node, and between nodes, each
    algorithm crosses the links in its own way. If a link between nodes belongs to a node (`Link.per`), the ranks that send at
    once share it:

        ring                the slowest of the links, crossed once per group and node; the longest latency at every step
        tree                a tree in the groups, then between one rank of each, then between one rank of each node
        halving_doubling    on S in the groups, then on S/g between groups or nodes, g ranks of each at once
        recursive_doubling  the same with S each
        reduce_to_one       every rank of another group or node crosses the link to the root, one after the other
        hierarchical        reduce-scatter(S) in the nodes, ring all-reduce(S/g) between them, all-gather(S) in the nodes

    Args:
        algorithm: one of ALGORITHMS, or of ALIASES.
        message_bytes: a number, or an array that broadcasts with the topology's `num_ranks`.
    Raises: NotFoundError for an unknown algorithm.
    Source: hierarchical as in Horovod; near partners first as in Rabenseifner 2004.

    >>> from chronograd.hardware.catalog import link
    >>> two_nodes = Topology(16, 8, link("nvlink2"), link("ethernet-25g"))
    >>> [round(all_reduce_s(a, 1e8, two_nodes), 4) for a in ("ring", "hierarchical", "tree")]
    [0.0607, 0.0333, 0.0681]
    """
    seconds = _BY_TIERS[algorithm_named(algorithm)](message_bytes, topology)
    return seconds if np.ndim(seconds) else float(seconds)


def algorithm_named(name: str) -> str:
    """Return the algorithm with a name or alias. Raises NotFoundError.

    >>> algorithm_named("butterfly")
    'recursive_doubling'
    """
    found = ALIASES.get(name, name)
    if found not in ALL_REDUCES:
        raise NotFoundError("all-reduce algorithm", name, (*ALL_REDUCES, *ALIASES))
    return found


# Bus bandwidth over algorithm bandwidth by collective: bytes on each link over bytes that the collective moves. Source:
# nccl-tests, PERFORMANCE.md.
BUS_FACTORS: dict[str, Callable[[Amount], Amount]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def bandwidths(collective: str, message_bytes: Amount, seconds: Amount, num_ranks: Amount) -> tuple[Amount, Amount]:
    """Return algorithm bandwidth S/t and bus bandwidth, in bytes per second.

    >>> bandwidths("all_reduce", 1e9, 1.0, 4)
    (1000000000.0, 1500000000.0)
    """
    if collective not in BUS_FACTORS:
        raise NotFoundError("collective", collective, BUS_FACTORS)
    algorithm = message_bytes / seconds
    return algorithm, algorithm * BUS_FACTORS[collective](_ranks(num_ranks))


def _at_most(value: Amount, most: int) -> Amount:
    return np.minimum(value, most) if _is_array(value) else min(value, most)


def _is_array(value: Amount) -> bool:
    return isinstance(value, np.ndarray)


def _levels(num_ranks: Amount) -> Amount:
    """Return ⌈log2 n⌉."""
    return np.ceil(np.log2(num_ranks)) if _is_array(num_ranks) else (num_ranks - 1).bit_length()


def _ranks(num_ranks: Amount) -> Amount:
    if np.min(num_ranks) < 1:
        raise InputError(f"{np.min(num_ranks)} ranks", "a collective needs at least one")
    return num_ranks
