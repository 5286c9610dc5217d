"""The meeting of Horovod's ranks that another launcher than horovodrun has started, such as SLURM's srun.

Rank 0 serves the addresses of the ranks at MASTER_PORT, as horovodrun does for ranks that it starts. It needs Horovod's own
environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from chronograd.backends import meeting
from chronograd.train.watchdog import WATCHDOG

# Variables by which a launcher gives a rank its place. All nodes but the last have LOCAL_WORLD_SIZE ranks, in order.
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_of(rank: int, world_size: int, per_node: int) -> dict[str, int]:
    """Return the place of a rank by Horovod's names. `cross` is the group of the ranks with one local rank on all nodes.

    >>> place_of(2, 3, 2)
    {'rank': 2, 'size': 3, 'local_rank': 0, 'local_size': 1, 'cross_rank': 1, 'cross_size': 2}
    """
    node, local_rank = divmod(rank, per_node)
    return {
        "rank": rank,
        "size": world_size,
        "local_rank": local_rank,
        "local_size": min(per_node, world_size - node * per_node),
        "cross_rank": node,
        "cross_size": len(range(local_rank, world_size, per_node)),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Horovod reads, from those in NEEDED."""
    rank, world_size, per_node = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    place = place_of(rank, world_size, per_node)
    interface = environment.get("GLOO_SOCKET_IFNAME")
    return {
        **{f"HOROVOD_{name.upper()}": str(value) for name, value in place.items()},
        "HOROVOD_HOSTNAME": _node(place["cross_rank"]),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": environment["MASTER_ADDR"],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": environment["MASTER_PORT"],
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({"HOROVOD_GLOO_IFACE": interface} if interface else {}),
    }


@contextmanager
def met() -> Iterator[None]:
    """Set Horovod's variables, and serve the addresses on rank 0 until the end; other ranks wait for that server.

    Raises: RunError if it cannot be reached.
    """
    os.environ.update(variables(os.environ))
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with _served(port, int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])):
            yield
    else:
        with WATCHDOG.waiting("rendezvous"):
            meeting.wait_for(host, port)
        yield


def _node(number: int) -> str:
    return f"node-{number}"


@contextmanager
def _served(port: int, world_size: int, per_node: int) -> Iterator[None]:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    places = [place_of(rank, world_size, per_node) for rank in range(world_size)]
    with RendezvousHTTPServer(("", port), RendezvousHandler, 0) as server:
        server.init([SlotInfo(hostname=_node(place["cross_rank"]), **place) for place in places])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield
        server.shutdown()
        thread.join()
