"""A meeting of ranks to exchange addresses: all connect to rank 0 at MASTER_ADDR and MASTER_PORT, which tells everyone.

TensorFlow needs the addresses of all workers before it starts any, and a launcher gives one for all.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack

from chronograd.errors import RunError

# Importing TensorFlow can take minutes on a network file system; a rank that has failed ends the others anyway.
TIMEOUT_S = 600.0
RETRY_S = 0.05


def addresses(rank: int, world_size: int, master: tuple[str, int], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return `host:port` of every rank; each rank's own port is free on its machine at that time.

    A rank's host is the address by which rank 0 sees it. Raises RunError if not all have come in time.
    """
    with socket.socket(_family(master)) as own:
        # Bound until all have met, so that two ranks of a machine do not choose the same port.
        own.bind(("", 0))
        port: int = own.getsockname()[1]
        try:
            if rank == 0:
                return _gather(world_size, master, port, timeout_s)
            return _report(rank, master, port, timeout_s)
        except (OSError, ValueError) as error:
            raise RunError(
                f"rank {rank} of {world_size} did not meet the others at {master[0]}:{master[1]} "
                f"within {timeout_s:g} s: {error}",
                "all ranks must be able to reach that address; the end of the other ranks' output may show why they are missing",
            ) from None


def _gather(world_size: int, master: tuple[str, int], port: int, timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    found = {0: _text(master[0], port)}
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(master, family=_family(master)))
        waiting = []
        while len(found) < world_size:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            connection, (host, *_) = server.accept()
            opened.enter_context(connection)
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            rank, other = json.loads(connection.makefile().readline())
            found[int(rank)] = _text(host, int(other))
            waiting.append(connection)
        everyone = [found[number] for number in range(world_size)]
        for connection in waiting:
            connection.sendall(json.dumps(everyone).encode() + b"\n")
    return everyone


def _report(rank: int, master: tuple[str, int], port: int, timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection(master, timeout=timeout_s)
            break
        except ConnectionRefusedError:  # rank 0 does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
    with connection:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.sendall(json.dumps([rank, port]).encode() + b"\n")
        return [str(address) for address in json.loads(connection.makefile().readline())]


def _family(master: tuple[str, int]) -> socket.AddressFamily:
    return socket.getaddrinfo(*master, type=socket.SOCK_STREAM)[0][0]


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
