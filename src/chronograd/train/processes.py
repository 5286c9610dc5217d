"""The state of a process (stopped, waiting or running), and its connections with data that nobody acknowledged.

Read from /proc of Linux; other systems report nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from pathlib import Path

from chronograd.measure import process as own

ENDED, STOPPED, RUNNING = "has ended", "is stopped", "is running"
# Letters of proc(5) for the states of a process.
_STATES = {
    "R": RUNNING,
    "S": "is waiting",
    "D": "is waiting for a disk",
    "T": STOPPED,
    "t": STOPPED,
    "Z": ENDED,
    "X": ENDED,
}
# Minimum number of retransmissions of the same data; one is usual on a busy network.
MIN_REPEATS = 2


def state_of(process: int) -> tuple[str, float]:
    """Return the state of a process of this machine, such as `is stopped`, and its processor seconds.

    Empty and 0 where the system does not report them.
    """
    try:
        fields = own.stat_fields(process)
    except OSError:
        return ENDED if Path("/proc/self/stat").exists() else "", 0.0
    return _STATES.get(fields[0], ""), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def queued_s(thread: int) -> float:
    """Return the seconds that a thread and the first thread of this process waited for a processor; 0 if unknown."""
    return own.queued_s() + own.queued_s(thread)


def address_to(host: str) -> str:
    """Return the address of this machine from which it reaches a host; empty if that is loopback or unknown. Sends nothing."""
    if not host:
        return ""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address


def unanswered() -> str:
    """Return the connections of this process that resend data without an answer, such as `10.0.0.1 → 10.0.0.2`.

    A stopped process is different: its system acknowledges for it.
    """
    own = _sockets()
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
            for fields in map(str.split, lines):
                if len(fields) > 9 and fields[9] in own and int(fields[6], 16) >= MIN_REPEATS:
                    found.add(f"{_address(fields[1])} → {_address(fields[2])}")
    return ", ".join(sorted(found))


def _sockets() -> set[str]:
    """Return the inodes of this process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(entry.path).partition(":[")
                if kind == "socket":
                    found.add(inode.rstrip("]"))
    return found


def _address(text: str) -> str:
    """Decode an address such as `0100007F:1F90`: words of four bytes, each in the order of this machine.

    >>> _address("0100007F:1F90")
    '127.0.0.1'
    """
    words = text.partition(":")[0]
    packed = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
