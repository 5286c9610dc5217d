"""Collectives of a group of ranks in nodes: α–β with the protocols of NCCL, and rings across both tiers.

A ring enters and leaves each node once, so a collective runs at the slower of both tiers. The ranks of a group in one node use
their shares of the node's network together. Left out: contention between groups, and topologies of switches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chronograd.hardware.catalog import Link
from chronograd.predict.collectives import Topology, reduce_scatter

# Share of a link's bandwidth that large messages reach. nccl-tests on a DGX A100: bus bandwidth 230 of 300 GB/s (recalled).
REACHED = 0.77
# Protocols of NCCL (2.8, src/graph/tuning.cc): share of the latency of the simple one, and share of its bandwidth. NVLink: 3.4,
# 1.9 and 0.6 µs; LL128 sends 120 of 128 bytes, LL 4 of 8.
PROTOCOLS = ((1.0, 1.0), (0.56, 0.94), (0.18, 0.5))
# Time to launch a collective and to meet. NCCL counts 8.4 µs for ranks that wait for it; in training, its stream waits for that of
# the products, and ranks come one after another. Chosen by vTrain's rows: from 25 to 80 µs the regret is lower than below, in both
# halves of the groups by a seed. From 8 to 45 µs, the mean errors of all files change by less than 2 percentage points.
CALL_S = 3e-5
# Share of a hidden exchange by which the work that hides it takes longer, as both use units and memory of the device. Assumed:
# between 0 and 0.3, errors on llm-foundry change by 0.6 percentage points.
CONTENTION = 0.1


@dataclass(frozen=True)
class Collective:
    """A kind of exchange of a step on one rank.

    Attributes:
        name: such as `all-gather of parameters`.
        calls, bytes: per step; bytes of one call are those of the whole result.
        ranks: of its group.
        tier: the link that limits it, a name of the link catalogue.
        seconds: of all calls; `exposed_s` of these are not hidden behind `hidden_by`.
    """

    name: str
    calls: int
    bytes: float
    ranks: int
    tier: str
    seconds: float
    exposed_s: float
    hidden_by: str = ""

    def times(self, number: int) -> Collective:
        """Return the collective of `number` equal pieces of a step."""
        seconds, exposed_s = number * self.seconds, number * self.exposed_s
        return replace(self, calls=number * self.calls, seconds=seconds, exposed_s=exposed_s)

    def with_calls_of(self, other: Collective) -> Collective:
        """Return the collective with the calls of another one of equal size."""
        calls, seconds, exposed_s = (
            getattr(self, name) + getattr(other, name) for name in ("calls", "seconds", "exposed_s")
        )
        return replace(self, calls=calls, seconds=seconds, exposed_s=exposed_s)


@dataclass(frozen=True)
class Cover:
    """Work that hides an exchange: its name, its seconds, and the share of the exchange that the software can hide."""

    name: str = ""
    seconds: float = 0.0
    share: float = 0.0

    def exposed_s(self, seconds: float) -> float:
        """Return the seconds of an exchange that the work does not hide, with the slowdown of the work.

        >>> Cover("forward", 2.0, 1.0).exposed_s(3.0), Cover("forward", 2.0, 0.5).exposed_s(2.0)
        (1.2, 1.1)
        """
        hidden = min(self.share * seconds, self.seconds)
        return seconds - hidden + CONTENTION * hidden

    def after(self, exchanges: Iterable[Collective]) -> Cover:
        """Return the work that remains to hide further exchanges."""
        return replace(self, seconds=max(self.seconds - sum(one.seconds for one in exchanges), 0.0))


@dataclass(frozen=True)
class Group:
    """Ranks that exchange data: every `stride`-th rank, `ranks` of them.

    >>> from chronograd.hardware.catalog import link
    >>> nodes = Topology(64, 8, link("nvlink4"), link("efa-3200g"))
    >>> Group(8, 2, nodes).on_node, Group(8, 2, nodes).nodes, Group(8, 8, nodes).nodes
    (4, 2, 8)
    """

    ranks: int
    stride: int
    topology: Topology

    @property
    def on_node(self) -> int:
        """Return the ranks of the group in one node."""
        return max(1, min(self.ranks, int(self.topology.on_node) // self.stride))

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.on_node)

    @property
    def tier(self) -> Link:
        """Return the link that limits the group."""
        return self.topology.inter if self.nodes > 1 else self.topology.intra

    @property
    def network(self) -> float:
        """Return the bytes per second between nodes for each rank, when all ranks of a node send."""
        return REACHED * float(self.topology.shared())

    @property
    def inside(self) -> float:
        """Return the bytes per second between the devices of a node."""
        return REACHED * float(self.topology.within[1])

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second of a ring through the group."""
        return min(self.inside, self.network * self.on_node) if self.nodes > 1 else self.inside

    @property
    def hop_s(self) -> float:
        """Return the mean latency of the hops of a ring."""
        near = float(self.topology.within[0])
        if self.nodes == 1:
            return near
        far, hops = self.nodes - 1, self.ranks - 1
        return ((hops - far) * near + far * max(self.topology.inter.latency_s, near)) / hops

    def gather_s(self, message_bytes: float) -> float:
        """Return the seconds of an all-gather or a reduce-scatter of `message_bytes`, the size of the whole tensor."""
        if self.ranks == 1 or not message_bytes:
            return 0.0
        options = (
            reduce_scatter(message_bytes, self.ranks, share * self.hop_s, part * self.bandwidth)
            for share, part in PROTOCOLS
        )
        return CALL_S + float(min(options))

    def all_reduce_s(self, message_bytes: float) -> float:
        """Return the seconds of an all-reduce: a ring, or a chain in each node and a double binary tree between nodes."""
        if self.ranks == 1 or not message_bytes:
            return 0.0
        near, far = float(self.topology.within[0]), self.topology.inter.latency_s
        depth_s = (self.on_node - 1) * near + math.ceil(math.log2(self.nodes)) * far
        tree = min(2 * (share * depth_s + message_bytes / (part * self.bandwidth)) for share, part in PROTOCOLS)
        return min(2 * self.gather_s(message_bytes) - CALL_S, CALL_S + tree)

    def all_to_all_s(self, message_bytes: float, copies: float, sends_once: bool) -> float:
        """Return the seconds in which each rank sends `message_bytes` of tokens to `copies` random ranks per token.

        Args:
            sends_once: a token crosses the network once for each other node with a receiver. On average these are
                (nodes − 1) · (1 − (1 − 1/nodes)^copies) nodes.
        """
        if self.ranks == 1 or not message_bytes:
            return 0.0
        others = copies * (self.ranks - self.on_node) / self.ranks
        if sends_once:
            others = (self.nodes - 1) * (1 - (1 - 1 / self.nodes) ** copies)
        inside = copies * (self.on_node - 1) / self.on_node
        return CALL_S + message_bytes * max(others / self.network, inside / self.inside)

    def send_s(self, message_bytes: float) -> float:
        """Return the seconds in which every rank sends to the next one of its group, which may be in another node."""
        if self.ranks == 1 or not message_bytes:
            return 0.0
        far = self.nodes > 1
        latency_s = self.topology.inter.latency_s if far else float(self.topology.within[0])
        return CALL_S + latency_s + message_bytes / (self.network if far else self.inside)

    def exchange(
        self, name: str, calls: int, message_bytes: float, each_s: float, cover: Cover = Cover()
    ) -> list[Collective]:
        """Return `calls` equal exchanges of this group behind a piece of work; none for a group of one rank."""
        if self.ranks == 1 or not calls or not message_bytes:
            return []
        seconds = calls * each_s
        exposed_s = cover.exposed_s(seconds)
        return [Collective(name, calls, message_bytes, self.ranks, self.tier.name, seconds, exposed_s, cover.name)]
