"""The place where ranks meet: a port of the first node."""

from __future__ import annotations

import socket
import time

from chronograd.errors import RunError

LOOPBACK = "127.0.0.1"
JOIN_S = 300.0
RETRY_S = 0.2
# For `python -c` on another host: prints a port that is free there now.
FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
HINT = "see that these hosts reach each other (`ping`, `chronograd calibrate links`), then resume the run"


def free_port() -> int:
    """Return a port that is free now; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_reached(host: str, port: int) -> bool:
    """Return whether something listens at a port of a host."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def wait_for(host: str, port: int) -> None:
    """Wait until something listens at a port of a host. Raises RunError if nothing does for JOIN_S."""
    deadline = time.monotonic() + JOIN_S
    while not is_reached(host, port):
        if time.monotonic() > deadline:
            raise RunError(f"rank 0 does not answer at {host}:{port}", HINT)
        time.sleep(RETRY_S)
