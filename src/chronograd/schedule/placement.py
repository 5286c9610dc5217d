"""The nodes of a cluster: which GPUs the workers of a job get."""

from __future__ import annotations

from collections.abc import Iterable

Place = dict[int, int]
"""The number of workers by node."""


class FreeNodes:
    """The free GPUs of each node.

    Args:
        gpus: of the cluster. largest: size of each job, so that nodes which no job needs take no memory.

    >>> nodes = FreeNodes(8, per_node=4, largest=[3, 2, 3])
    >>> nodes.take(3), nodes.take(2), nodes.take(3)
    ({0: 3}, {1: 2}, {1: 2, 0: 1})
    """

    def __init__(self, gpus: int, per_node: int, largest: Iterable[int]) -> None:
        self.per_node, self.count = per_node, -(-gpus // per_node)
        needed = min(self.count, sum(-(-workers // per_node) for workers in largest))
        self.free = [min(per_node, gpus - node * per_node) for node in range(needed)]
        self.lost = set[int]()

    def take(self, workers: int) -> Place:
        """Take GPUs on as few nodes as possible. Of the nodes that fit, the one with the fewest free GPUs is used."""
        place, left = Place(), workers
        while left:
            free = {node: count for node, count in enumerate(self.free) if count and node not in self.lost}
            enough = [node for node, count in free.items() if count >= left]
            node = min(enough, key=free.__getitem__) if enough else max(free, key=free.__getitem__)
            place[node] = min(left, free[node])
            self.free[node] -= place[node]
            left -= place[node]
        return place

    def give_back(self, place: Place) -> None:
        """Free the GPUs of a place."""
        for node, count in place.items():
            self.free[node] += count

    def is_spread(self, place: Place) -> bool:
        """Return whether a place has more nodes than its workers need."""
        return len(place) > -(-sum(place.values()) // self.per_node)

    def lose(self, count: int) -> None:
        """Let `count` nodes be absent, the last ones first."""
        self.lost = set(range(self.count - count, len(self.free)))

    def is_lost(self, place: Place) -> bool:
        """Return whether a place has workers on an absent node."""
        return not self.lost.isdisjoint(place)
